"""The CUDA toolkit from a signed apt repository: stand-in packages, a key of this test, a server on the lab's bridge.

What brings a toolkit is no operation of its own, so a deploy of three lines stands for the build that asks for it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lab import Lab
from lab.lab import Host
from tests.lab.deployed import BIN, LIMIT_S, ROOT
from wsllama.operations import cuda

DEPLOY = """\
import json, os, sys

sys.path.insert(0, {root!r})
from pyinfra import host
from wsllama import lock
from wsllama.guard import settings_of
from wsllama.operations import cuda
from wsllama.operations.base import resource

wheels = cuda.pins().wheels
with open(os.environ["PINS"]) as f:
    ours = lock.CudaApt.model_validate(json.load(f))
cuda.pins = lambda: lock.Cuda(apt=ours, wheels=wheels)


@resource(lambda settings: cuda.looks(settings))
def toolkit(now, settings):
    yield from cuda.toolkit_commands(now, settings)


toolkit(settings_of(host), name="toolkit")
"""
# `wsllama bundle` with these pins, from a host whose apt knows of nothing else.
BUNDLE = """\
import gevent.monkey

gevent.monkey.patch_all()
import json, os, sys

sys.path.insert(0, {root!r})
from wsllama import cli, lock
from wsllama.operations import cuda, llama_cpp

wheels = cuda.pins().wheels
with open(os.environ["PINS"]) as f:
    ours = lock.CudaApt.model_validate(json.load(f))
cuda.pins = lambda: lock.Cuda(apt=ours, wheels=wheels)
llama_cpp.package_names = lambda now: []
cli.main()
"""
NVCC = '#!/bin/sh\necho "Cuda compilation tools, release 13.0, V{version}"\n'
FIRST = {"cuda-nvcc-13-0": "13.0.48-1", "cuda-cudart-dev-13-0": "13.0.48-1", "libcublas-dev-13-0": "13.0.0.19-1"}
SECOND = {**FIRST, "cuda-nvcc-13-0": "13.0.88-1"}
OURS = (cuda.KEYRING, cuda.SOURCES, cuda.PREFERENCES)
# Holds apt's lock until somebody says that he waits for it.
HOLD = """
import fcntl, glob, time
until = time.monotonic() + 900
with open("/var/lib/dpkg/lock-frontend", "w") as f:
    fcntl.lockf(f, fcntl.LOCK_EX)
    open("/run/held", "w").close()
    while time.monotonic() < until and not any("wait for python3" in open(p).read() for p in glob.glob("/var/log/wsllama/*.log")):
        time.sleep(0.2)
"""


class Keys:
    """A key of gpg's for this test; its public part as gpg exports it, and its fingerprint."""

    def __init__(self, home: Path, name: str) -> None:
        self.home = home / name
        self.home.mkdir(mode=0o700)
        self.gpg("--passphrase", "", "--quick-gen-key", f"{name} <{name}@example.invalid>", "rsa3072", "sign", "never")
        self.public, self.binary = self.home / "public.asc", self.home / "public.gpg"
        self.gpg("--armor", "--output", str(self.public), "--export")
        self.gpg("--output", str(self.binary), "--export")
        listed = self.gpg("--with-colons", "--list-keys").split("\n")
        self.fingerprint = next(line.split(":")[9] for line in listed if line.startswith("fpr"))

    def gpg(self, *words: str) -> str:
        command = ["gpg", "--homedir", str(self.home), "--batch", "--quiet", "--yes", "--pinentry-mode", "loopback", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout


@dataclass
class Repository:
    """A flat repository as NVIDIA's: packages, their list, its signature."""

    folder: Path
    uri: str
    keys: Keys

    def package(self, name: str, version: str, depends: str = "", files: Mapping[str, str] | None = None) -> None:
        tree = self.folder.parent / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        for path, text in (files or {}).items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text)
            (tree / path).chmod(0o755)
        fields = {"Package": name, "Version": version, "Architecture": "amd64", "Maintainer": "t <t@example.invalid>"}
        fields |= {"Depends": depends} if depends else {}
        fields["Description"] = "stand-in"
        (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
        (tree / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
        deb = self.folder / f"{name}_{version}_amd64.deb"
        subprocess.run(["dpkg-deb", "--build", "-Znone", "--root-owner-group", tree, deb], capture_output=True, check=True)

    def publish(self, signed_by: Keys | None = None) -> None:
        entries = []
        for deb in sorted(self.folder.glob("*.deb")):
            control = subprocess.run(["dpkg-deb", "--field", deb], capture_output=True, text=True, check=True).stdout
            data = deb.read_bytes()
            entries.append(f"{control}Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n")
        listed = {"Packages": "\n".join(entries).encode()}
        listed["Packages.gz"] = gzip.compress(listed["Packages"])
        for name, data in listed.items():
            (self.folder / name).write_bytes(data)
        sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n" for name, data in listed.items())
        date = time.strftime("%a, %d %b %Y %H:%M:%S UTC", time.gmtime())
        (self.folder / "Release").write_text(f"Origin: stand-in\nDate: {date}\nSHA256:\n{sums}")
        signs = signed_by or self.keys
        signs.gpg("--output", str(self.folder / "InRelease"), "--clearsign", str(self.folder / "Release"))

    def remove(self, name: str, version: str) -> None:
        (self.folder / f"{name}_{version}_amd64.deb").unlink()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing: what is asked for is no news."""


@dataclass
class Cuda:
    """A host, the repository, and the run of pyinfra that brings the toolkit."""

    host: Host
    lab: Lab
    folder: Path
    repository: Repository
    stranger: Keys

    def run(
        self, packages: Mapping[str, str], key_file: Path | None = None, more: Mapping[str, Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Bring a toolkit of these pins with pyinfra; more: of the host's data."""
        (self.folder / "deploy_cuda.py").write_text(DEPLOY.format(root=str(ROOT)))
        pins = {"uri": "https://unused.invalid/", "key": self.repository.keys.fingerprint, "packages": {"13.0": packages}}
        (self.folder / "pins.json").write_text(json.dumps(pins))
        wanted = {"version": "13.0", "provider": "apt", "compute": ["8.9"], "repository": self.repository.uri}
        wanted |= {"key_file": str(key_file)} if key_file else {}
        data = {"platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}, "llama_cpp": {"backend": "cuda"}}
        data |= {"cuda": wanted, **(more or {})}
        inventory = self.lab.inventory(self.folder / "inventory", {self.host.name: data}, [self.host])
        return subprocess.run(
            [str(BIN / "pyinfra"), str(inventory), str(self.folder / "deploy_cuda.py"), "-y", "--json"],
            cwd=ROOT,
            env={**os.environ, "PINS": str(self.folder / "pins.json")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def changed(self, packages: Mapping[str, str], **more: Any) -> bool:
        p = self.run(packages, **more)
        assert p.returncode == 0, p.stderr
        return bool(json.loads(p.stdout)["results"]["totals"]["success"])

    def refused(self, packages: Mapping[str, str], **more: Any) -> str:
        p = self.run(packages, **more)
        assert p.returncode == 1, p.stderr
        assert "Traceback" not in p.stderr
        return p.stderr

    def installed(self) -> dict[str, str]:
        wanted = "${db:Status-Status} ${Package} ${Version}\n"
        lines = self.host.run(["dpkg-query", "-W", "-f", wanted]).stdout.splitlines()
        words = [line.split(" ") for line in lines]
        return {w[1]: w[2] for w in words if w[0] == "installed" and ("cuda" in w[1] or "nvidia" in w[1] or "cublas" in w[1])}

    def there(self) -> list[str]:
        return [path for path in OURS if (self.host.root / path.lstrip("/")).exists()]


@pytest.fixture(scope="module")
def cuda_lab(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cuda]:
    folder = tmp_path_factory.mktemp("cuda")
    if not shutil.which("gpg"):
        subprocess.run(
            ["apt-get", "install", "-q", "-y", "-o", "DPkg::Lock::Timeout=900", "--no-install-recommends", "gpg", "gpg-agent"],
            check=True,
        )
    host = lab.hosts[0]
    host.reset()
    host.run(
        "rm -rf /var/lib/apt/lists/* /etc/apt/sources.list /etc/apt/sources.list.d/*"
    )  # apt reads the distribution's at every start, for seconds
    served = folder / "served"
    served.mkdir()
    bridge = host.address.rpartition(".")[0] + ".1"
    with ThreadingHTTPServer((bridge, 0), partial(Quiet, directory=str(served))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        keys, stranger = Keys(folder, "ours"), Keys(folder, "stranger")
        repository = Repository(served, f"http://{bridge}:{server.server_address[1]}/", keys)
        for version in ("13.0.48", "13.0.88"):
            files = {"usr/local/cuda-13.0/bin/nvcc": NVCC.format(version=version)}
            repository.package("cuda-nvcc-13-0", f"{version}-1", files=files)
        repository.package("cuda-nvcc-13-0", "13.0.99-1", depends="nvidia-driver-580 (>= 580)")
        repository.package("cuda-cudart-dev-13-0", "13.0.48-1")
        repository.package("libcublas-dev-13-0", "13.0.0.19-1")
        repository.package("nvidia-driver-580", "580.65-1", depends="libnvidia-compute-580")
        repository.package("libnvidia-compute-580", "580.65-1")
        repository.package("cuda-drivers", "580.65-1")
        repository.publish()
        shutil.copy(keys.public, served / f"{keys.fingerprint[-8:].lower()}.pub")
        yield Cuda(host, lab, folder, repository, stranger)
        server.shutdown()
    for key in (keys, stranger):
        subprocess.run(["gpgconf", "--homedir", key.home, "--kill", "all"], check=False)
    host.reset()


# One after the other, as a machine lives through them.


def test_a_key_of_somebody_else_is_refused_and_nothing_is_written(cuda_lab: Cuda) -> None:
    stranger, ours = cuda_lab.stranger, cuda_lab.repository.keys
    said = cuda_lab.refused(FIRST, key_file=stranger.public)
    assert f"is not NVIDIA's signing key: its fingerprint is {stranger.fingerprint} instead of {ours.fingerprint};" in said
    both = cuda_lab.folder / "both.gpg"
    both.write_bytes(ours.binary.read_bytes() + stranger.binary.read_bytes())
    assert f"{ours.fingerprint} and {stranger.fingerprint}" in cuda_lab.refused(FIRST, key_file=both)
    assert cuda_lab.there() == []
    assert cuda_lab.installed() == {}


def test_a_repository_that_somebody_else_signed_is_refused(cuda_lab: Cuda) -> None:
    cuda_lab.repository.publish(signed_by=cuda_lab.stranger)
    said = cuda_lab.refused(FIRST)
    assert f"{cuda_lab.repository.uri} is not signed with NVIDIA's key (" in said
    assert cuda_lab.stranger.fingerprint[-16:] in said
    assert cuda.SOURCES not in cuda_lab.there(), "it would break every later apt-get update of the machine"
    assert cuda_lab.installed() == {}
    cuda_lab.repository.publish()


def test_exact_versions_then_no_change(cuda_lab: Cuda) -> None:
    assert cuda_lab.changed(FIRST)
    assert cuda_lab.installed() == FIRST
    assert cuda_lab.there() == list(OURS)
    assert not cuda_lab.changed(FIRST)


def test_apt_itself_keeps_the_pins_and_takes_no_driver(cuda_lab: Cuda) -> None:
    apt = ["apt-get", "-q", "-y", "-o", f"Dir::Etc::SourceList={cuda.SOURCES}", "-o", "Dir::Etc::SourceParts=-"]
    cuda_lab.host.run([*apt, "-o", "APT::Get::List-Cleanup=0", "update"])
    cuda_lab.host.run([*apt, "upgrade"])
    assert cuda_lab.installed() == FIRST, "a newer version is there, with a driver behind it"
    for name in ("nvidia-driver-580", "libnvidia-compute-580", "cuda-drivers"):
        p = cuda_lab.host.run([*apt, "install", name], check=False)
        assert p.returncode != 0
        assert "Candidate: (none)" in cuda_lab.host.run(["apt-cache", "policy", name]).stdout


def test_another_pin_is_taken_up_and_down(cuda_lab: Cuda) -> None:
    assert cuda_lab.changed(SECOND)
    assert cuda_lab.installed() == SECOND
    assert cuda_lab.changed(FIRST)
    assert cuda_lab.installed() == FIRST


def test_a_package_that_asks_for_a_driver_is_refused(cuda_lab: Cuda) -> None:
    said = cuda_lab.refused({**FIRST, "cuda-nvcc-13-0": "13.0.99-1"})
    assert "cuda-nvcc-13-0 depends on nvidia-driver-580, a Linux driver, which would hide Windows' own" in said
    assert cuda_lab.installed() == FIRST


def test_others_that_use_apt_are_waited_for_and_named(cuda_lab: Cuda) -> None:
    cuda_lab.host.run(["systemd-run", "--quiet", "--unit", "holder", "python3", "-c", HOLD])
    cuda_lab.host.run("until test -e /run/held; do sleep 0.1; done")
    p = cuda_lab.run(SECOND)
    assert p.returncode == 0, p.stderr
    assert "==> wait for python3 (process " in p.stderr
    assert "which holds /var/lib/dpkg/lock-frontend" in p.stderr
    assert cuda_lab.installed() == SECOND


def test_a_version_that_vanished_is_named_with_those_that_are_there(cuda_lab: Cuda) -> None:
    cuda_lab.repository.remove("cuda-nvcc-13-0", "13.0.48-1")
    cuda_lab.repository.publish()
    said = cuda_lab.refused(FIRST)
    assert "has no cuda-nvcc-13-0 13.0.48-1, only 13.0.99-1, 13.0.88-1: take what is there" in said
    assert cuda_lab.installed() == SECOND, "what was there goes on to be there"


def test_a_compiler_that_was_deleted_comes_back(cuda_lab: Cuda) -> None:
    cuda_lab.host.run(["rm", "-r", "/usr/local/cuda-13.0"])
    assert cuda_lab.changed(SECOND)
    assert "V13.0.88" in cuda_lab.host.run(["/usr/local/cuda-13.0/bin/nvcc", "--version"]).stdout
    assert not cuda_lab.changed(SECOND)


def test_a_bundle_brings_them_to_a_host_without_key_or_repository(cuda_lab: Cuda) -> None:
    cuda_lab.changed(SECOND)
    assert cuda_lab.installed() == SECOND
    out = cuda_lab.folder / "bundle"
    words = ["bundle", str(cuda_lab.folder / "inventory"), str(out), "--json"]
    made = subprocess.run(
        [sys.executable, "-c", BUNDLE.format(root=str(ROOT)), *words],
        cwd=ROOT,
        env={**os.environ, "PINS": str(cuda_lab.folder / "pins.json")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["kinds"]["package"]["files"] == len(SECOND)

    other = replace(cuda_lab, host=cuda_lab.lab.hosts[1])
    more = {"llama_cpp": {"backend": "cuda", "source": "bundle"}, "bundle": {"path": str(out)}}
    assert other.installed() == {}
    try:
        assert other.changed(SECOND, more=more)
        assert other.installed() == SECOND
        assert other.there() == []
        assert not other.changed(SECOND, more=more)
    finally:
        other.host.reset()
