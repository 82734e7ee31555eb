"""A bundle of the lab's hosts, and a host that is provisioned from it while neither it nor this machine has a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import Lab, network
from lab.base import cache_dir
from tests.lab.deployed import BIN, ROOT, Deployed, Run, answers
from wsllama.bundle import Manifest

CCACHE = "/var/cache/wsllama/ccache"
LOG = "var/log/wsllama/build.log"  # a host that never compiled has none


def make(deployed: Deployed, out: Path, cache: Path) -> dict[str, Any]:
    """`wsllama bundle` with one of the session's hosts; its report."""
    inventory = deployed.inventory(hosts=deployed.lab.hosts[:1], name="of-bundle")
    words = [str(BIN / "wsllama"), "bundle", str(inventory), str(out), "--with-model", "--json"]
    p = subprocess.run(words, cwd=ROOT, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    report: dict[str, Any] = json.loads(p.stdout)
    return report


@contextmanager
def cut_off(lab: Lab) -> Iterator[list[str]]:
    """Words before a command that runs on this machine with nothing but a lab's bridge to talk to."""
    name, outside = f"wlns{lab.record.id}", f"wlv{lab.record.id}"
    address = network.address(lab.record.subnet, 250)
    for words in (
        f"netns add {name}",
        f"link add {outside} type veth peer name lab0 netns {name}",
        f"link set {outside} master {network.bridge_name(lab.record.id)} up",
        f"-n {name} addr add {address}/24 dev lab0",
        f"-n {name} link set lab0 up",
        f"-n {name} link set lo up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    try:
        yield ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)  # and the link with it


class Gap(Deployed):
    """One fresh host and this machine, both without a network, and a bundle; this user's cache is empty."""

    def __init__(self, lab: Lab, folder: Path, bundle: Path, before: list[str]) -> None:
        self.lab, self.folder, self.before, self.cache, self.bundle = lab, folder, before, folder / "cache", bundle
        self.model = bundle / "models" / "tiny.gguf"
        self.base = {
            "platform": "linux",
            "llama_cpp": {"source": "bundle"},
            "bundle": {"path": str(bundle)},
            "model": {"path": str(self.model)},
            "server": {"threads": 1, "ctx_size": 8192},
            "acceptance": {"long_prompt_s": 0},
        }

    def command(self, inventory: Path, *options: str) -> list[str]:
        return [*self.before, *super().command(inventory, *options)]

    def here(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command on this machine without its network."""
        return subprocess.run([*self.before, *words], cwd=ROOT, env=self.environment, capture_output=True, text=True)

    @contextmanager
    def flipped(self, name: str) -> Iterator[Path]:
        """One byte of a file of the bundle is another."""
        path = self.bundle / name
        whole = path.read_bytes()
        path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
        try:
            yield path
        finally:
            path.write_bytes(whole)


@pytest.fixture(scope="module")
def gap(deployed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gap]:
    """Its bundle holds no build: it was made by somebody who has the sources only."""
    folder = tmp_path_factory.mktemp("gap")
    (folder / "maker" / "wsllama").mkdir(parents=True)
    (folder / "maker" / "wsllama" / "sources").symlink_to((deployed.cache / "wsllama" / "sources").resolve())
    report = make(deployed, folder / "bundle", folder / "maker")
    assert report["distros"]
    assert set(report["kinds"]) == {"source", "package", "index", "model", "bom"}
    with Lab(hosts=1, name="gap", internet=False, binds={cache_dir() / "ccache": CCACHE}) as lab, cut_off(lab) as before:
        found = Gap(lab, folder, folder / "bundle", before)
        found.lab.hosts[0].run("rm -f /var/cache/apt/archives/*.deb")  # the lab's own, which save it downloads
        yield found


def test_neither_side_has_a_network(gap: Gap) -> None:
    update = "apt-get -o Acquire::Retries=0 -o APT::Update::Error-Mode=any update"
    assert gap.lab.hosts[0].run(update, check=False).returncode == 100
    reached = gap.here("python3", "-c", "import socket; socket.create_connection(('192.0.2.1', 80), 5)")
    assert "Network is unreachable" in reached.stderr
    assert json.loads(gap.here("ip", "-j", "route", "show", "default").stdout or "[]") == []


def state_of(gap: Gap) -> str:
    """What a deploy would change first on the host."""
    return gap.lab.hosts[0].run("ls /opt /var/lib /var/cache /etc/apt /etc/apt/*; cat /etc/passwd; dpkg -l").stdout


def test_a_flipped_byte_is_named_before_the_first_change(gap: Gap) -> None:
    manifest = Manifest.model_validate_json((gap.bundle / "manifest.json").read_bytes())
    package = next(name for name in manifest.files if "/ccache_" in name)
    source = next(name for name in manifest.files if name.startswith("sources/"))
    before = state_of(gap)
    with gap.flipped(package) as one, gap.flipped(source) as other, gap.flipped("models/tiny.gguf") as third:
        run = gap.run()
        assert run.returncode == 1
        for path in (one, other, third):
            said = [line for line in run.stderr.splitlines() if f"{path} has sha256 " in line]
            assert len(said) == 1, run.stderr
            assert "where the bundle's manifest has" in said[0]
    assert state_of(gap) == before


def test_a_host_is_provisioned_from_it(gap: Gap) -> None:
    host = gap.lab.hosts[0]
    first: Run = gap.run().green()
    assert "trying the sources" not in first.stderr
    assert "packages come from the bundle" in first.stderr
    assert (host.root / LOG).exists()
    assert answers(host)
    assert gap.run().unchanged()
    verified = gap.here(str(BIN / "wsllama"), "verify", str(gap.folder / "inventory"))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_nothing_of_it_stays_in_apt(gap: Gap) -> None:
    host = gap.lab.hosts[0]
    assert not [name for name in host.run("ls -A /var/cache/wsllama").stdout.split() if "deb" in name or "bundle" in name]
    assert "wsllama" not in host.run("cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null", check=False).stdout
    assert "wsllama" not in host.run("ls /var/lib/apt/lists").stdout
    assert host.run("apt-get check").returncode == 0


@pytest.mark.full
def test_a_build_that_is_here_comes_with_it(deployed: Deployed, gap: Gap) -> None:
    """What is in the bundle already is not fetched again, and a host of the same kind need not compile."""
    before = {path: path.stat().st_ino for path in (gap.bundle / "debs").rglob("*")}
    report = make(deployed, gap.bundle, deployed.cache)
    assert report["changed"]
    assert 0 < report["fetched"] == sum(p.stat().st_size for p in (gap.bundle / "builds").glob("*.tar.gz"))
    assert {path: path.stat().st_ino for path in (gap.bundle / "debs").rglob("*")} == before
    assert not make(deployed, gap.bundle, deployed.cache)["changed"]

    host = gap.lab.hosts[0]
    host.run(f"rm -rf /opt/wsllama/builds/* /{LOG}")
    shutil.rmtree(gap.cache)
    (name,) = (str(p.relative_to(gap.bundle)) for p in (gap.bundle / "builds").glob("*.tar.gz"))
    with gap.flipped(name) as path:
        run = gap.run()
        assert run.returncode == 1
        assert f"{path} has sha256 " in run.stderr
        assert not list((host.root / "opt/wsllama/builds").glob("[!.]*"))
    assert "receive" in gap.run().green().changed()
    assert not (host.root / LOG).exists()
    assert answers(host)
    gap.run().unchanged()
