"""What the end of a deploy says: its commands are run, by the shell that a person would use, against a server that answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from wsllama.domain import client


@pytest.fixture
def seen() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Port of a server, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append({"path": self.path, "key": self.headers.get("Authorization"), "body": json.loads(body)})
            asked[-1]["type"] = self.headers["Content-Type"]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("localhost", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("192.0.2.1", "http://192.0.2.1:80"),
    ],
)
def test_base_url(host: str, url: str) -> None:
    assert client.base_url(host, 80) == url


def line(name: str, lines: list[str]) -> str:
    (found,) = [text.strip() for text in lines if text.strip().startswith(name)]
    return found[len(name) :].strip()


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl here")
def test_the_curl_line_asks(seen: tuple[int, list[dict[str, Any]]]) -> None:
    port, asked = seen
    lines = client.lines("desk-1", "127.0.0.1", port, "qwen3.6-35b-a3b", None)
    subprocess.run(["sh", "-ec", line("curl", lines)], check=True, timeout=600)
    (got,) = asked
    assert got["path"] == "/v1/chat/completions"
    assert got["key"] is None
    assert got["type"] == "application/json"
    assert got["body"]["model"] == "qwen3.6-35b-a3b"
    assert got["body"]["messages"][0]["role"] == "user"


def test_where_everything_is() -> None:
    lines = client.lines("desk-1", "127.0.0.1", 8080, "qwen", "/etc/wsllama/api-key")
    assert lines[0] == "desk-1 serves qwen"
    assert line("base URL", lines) == "http://127.0.0.1:8080/v1"
    assert line("model id", lines) == "qwen"
    assert line("API key", lines) == "/etc/wsllama/api-key on the host"
    assert "Authorization: Bearer $(sudo cat /etc/wsllama/api-key)" in line("curl", lines)
    assert "(wsl.exe -u root cat /etc/wsllama/api-key)" in line("PowerShell", lines)
    assert not [text for text in lines if "other machines" in text]


def test_a_server_that_others_reach_says_so() -> None:
    text = "\n".join(client.lines("desk-1", "0.0.0.0", 9000, "qwen", "/etc/key"))
    assert "from other machines: the same with this machine's address and port 9000" in text


def test_the_powershell_line_has_the_same_body_in_one_pair_of_quotes() -> None:
    lines = client.lines("desk-1", "127.0.0.1", 8080, "qwen", None)
    body = line("PowerShell", lines).split("-Body ")[1]
    assert body.startswith("'")
    assert body.endswith("'")
    assert "'" not in body[1:-1]  # in single quotes PowerShell reads everything else as it is
    assert json.loads(body[1:-1])["model"] == "qwen"
