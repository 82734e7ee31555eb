"""One proxy and one set of certificates: read by the programs themselves."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from wsllama.domain import network

PROXY = "http://192.0.2.9:3128"


def test_nothing_is_set_without_settings() -> None:
    assert network.environment(None, None) == {}


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_python_uses_the_proxy_and_not_for_this_machine(scheme: str) -> None:
    program = """if True:
        import urllib.request as u
        print(u.getproxies().get(%r), bool(u.proxy_bypass('127.0.0.1')), bool(u.proxy_bypass('a.example')))"""
    environment = {"PATH": os.environ["PATH"], **network.environment(PROXY, None)}
    p = subprocess.run([sys.executable, "-c", program % scheme], env=environment, capture_output=True, text=True, check=True)
    assert p.stdout.split() == [PROXY, "True", "False"]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URL of a server whose certificate nobody knows, and that certificate's file."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
    wanted = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*command, *wanted, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    server = HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}/nothing-here", certificate
    server.shutdown()
    server.server_close()


PYTHON = [sys.executable, "-c", "import sys, urllib.request as u; u.urlopen(sys.argv[1])"]


@pytest.mark.parametrize("command", [["git", "ls-remote"], PYTHON], ids=["git", "python"])
def test_certificates_are_trusted(tls: tuple[str, str], command: list[str]) -> None:
    url, certificate = tls

    def said(environment: dict[str, str]) -> str:
        path = {"PATH": os.environ["PATH"], "GIT_TERMINAL_PROMPT": "0"}
        return subprocess.run([*command, url], env={**path, **environment}, capture_output=True, text=True).stderr.lower()

    assert "certificate" in said({})
    trusted = said(network.environment(None, certificate))
    assert "certificate" not in trusted
    assert "not found" in trusted, "the server itself answered"


def apt_config(text: str, tmp_path: Path, key: str) -> str:
    """Value of a key as apt itself reads this configuration."""
    path = tmp_path / "apt.conf"
    path.write_text(text, encoding="utf-8")
    p = subprocess.run(
        ["apt-config", "-c", str(path), "shell", "VALUE", key],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    return p.stdout.strip().removeprefix("VALUE=").strip("'")


def test_apt_reads_its_configuration(tmp_path: Path) -> None:
    text = network.apt_conf(PROXY, "/etc/wsllama/ca.pem")
    assert apt_config(text, tmp_path, "Acquire::http::Proxy") == PROXY
    assert apt_config(text, tmp_path, "Acquire::https::Proxy") == PROXY
    assert apt_config(text, tmp_path, "Acquire::https::CaInfo") == "/etc/wsllama/ca.pem"
    assert apt_config(text, tmp_path, "DPkg::Lock::Timeout") == "300"


def test_apt_waits_without_a_proxy_too(tmp_path: Path) -> None:
    text = network.apt_conf(None, None)
    assert apt_config(text, tmp_path, "DPkg::Lock::Timeout") == "300"
    assert apt_config(text, tmp_path, "Acquire::http::Proxy") == ""
