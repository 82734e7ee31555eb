"""Going back on real hosts: by hand to an earlier release, by itself from one that isn't accepted; what is pruned after."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import tiny_model
from lab.lab import Host
from tests.lab.deployed import ROOT, UNIT, Data, Deployed, answers, arguments_of, main_pid, wsllama
from wsllama import lock, sources

UNIT_FILE = "etc/systemd/system/llama-server.service"
# One line of the server: who asks for the models gets the answer to another question.
ASKED = b'"/v1/models",                ex_wrapper(routes.get_models)'
PATCHED = b'"/v1/models",                ex_wrapper(routes.get_health)'


def number(host: Host, link: str = "current") -> int:
    """The release that `current` or `last-good` names."""
    return int(os.readlink(host.root / "opt/wsllama" / link).removeprefix("releases/"))


def accepted(host: Host) -> list[int]:
    """The releases that were accepted once, in order."""
    return sorted(int(p.parent.name) for p in (host.root / "opt/wsllama/releases").glob("*/baseline.json"))


def of(host: Host, **topics: Any) -> Data:
    """Data of this host."""
    return {host.name: topics}


def rolled_back(deployed: Deployed, host: Host | None, *words: str) -> subprocess.CompletedProcess[str]:
    """`wsllama rollback` on this host, or on both."""
    limit = ["--limit", host.name] if host else []
    return wsllama("rollback", str(deployed.inventory()), *limit, *words)


def serves(host: Host, release: int, *words: str) -> None:
    """Assert that this release serves, with these arguments, is the one to go back to, and starts at boot."""
    assert (number(host), number(host, "last-good")) == (release, release)
    running = " ".join(arguments_of(host))
    assert " ".join(words) in running, running
    assert host.run(["systemctl", "is-enabled", UNIT], check=False).stdout == "enabled\n"
    assert host.run(["systemctl", "show", "--value", "-p", "NeedDaemonReload", UNIT]).stdout == "no\n"


def test_back_and_further_back_and_forth_again(deployed: Deployed) -> None:
    one, two = hosts = deployed.lab.hosts
    for size in (5120, 5376):
        deployed.run({host.name: {"server": {"ctx_size": size}} for host in hosts}).green()
    new = {host.name: number(host) for host in hosts}
    two.run(["systemctl", "disable", "-q", UNIT])

    p = rolled_back(deployed, None, "--json")
    assert p.returncode == 0, p.stderr
    done = {name: {"from": str(n), "to": str(n - 1), "changed": True} for name, n in new.items()}
    assert json.loads(p.stdout) == {"done": done, "failed": {}, "unreachable": {}}
    for host in hosts:
        serves(host, new[host.name] - 1, "--ctx-size", "5120")
        assert answers(host)

    earlier = max(n for n in accepted(one) if n < new[one.name] - 1)
    p = rolled_back(deployed, one)
    assert (p.returncode, p.stdout) == (0, f"{one.name}: release {earlier} serves, {new[one.name] - 1} did\n"), p.stderr
    serves(one, earlier)
    p = rolled_back(deployed, one, "--to", str(earlier))
    assert (p.returncode, p.stdout) == (0, f"{one.name}: release {earlier} serves already\n"), p.stderr

    data = of(two, server={"ctx_size": 5376})
    run = deployed.run(data, hosts=[two]).green()
    assert run.changed() == ["release", "service", "accepted"]
    serves(two, new[two.name], "--ctx-size", "5376")
    deployed.run(data, hosts=[two]).unchanged()


@pytest.fixture(scope="module")
def earlier(deployed: Deployed) -> dict[str, int]:
    """Releases of before: of the first host one that listens on its own address, of the second one with another model."""
    one, two = deployed.lab.hosts
    other = tiny_model.write(deployed.folder / "of-before.gguf", seed=3)
    deployed.run({**of(one, server={"host": one.address, "api_key": True}), **of(two, model={"path": str(other)})}).green()
    found = {host.name: number(host) for host in (one, two)}
    deployed.run().green()
    return found


def health(host: Host) -> int:
    """Status of the server as another machine gets it at the host's address; 0 when nothing answers."""
    try:
        with urllib.request.urlopen(f"http://{host.address}:8080/health", timeout=300) as answer:
            return int(answer.status)
    except OSError:
        return 0


def test_another_address_brings_its_unit(deployed: Deployed, earlier: dict[str, int]) -> None:
    one = deployed.lab.hosts[0]
    base = number(one)
    assert "IPAddressDeny=any" in (one.root / UNIT_FILE).read_text()
    assert health(one) == 0
    for there in (earlier[one.name], base):
        p = rolled_back(deployed, one, "--to", str(there))
        assert p.returncode == 0, p.stderr
        serves(one, there, "--host", one.address if there != base else "127.0.0.1")
        denied = one.run(["systemctl", "show", "--value", "-p", "IPAddressDeny", UNIT]).stdout.strip()
        assert (there == base) == ("IPAddressDeny=any" in (one.root / UNIT_FILE).read_text()) == bool(denied)
        assert health(one) == (200 if there != base else 0)
    deployed.run(hosts=[one]).unchanged()


def model_of(host: Host, release: int) -> str:
    """The model's file of a release, a path on the host."""
    record = json.loads((host.root / f"opt/wsllama/releases/{release}/release.json").read_text())
    return f"/var/lib/wsllama/models/{record['model']['file']}"


def test_a_release_that_cannot_start_gives_way(deployed: Deployed, earlier: dict[str, int]) -> None:
    two = deployed.lab.hosts[1]
    before, old = number(two), earlier[two.name]
    model = model_of(two, old)
    two.run(["chmod", "000", model])
    p = rolled_back(deployed, two, "--to", str(old))
    two.run(["chmod", "640", model])
    assert p.returncode == 1
    assert p.stdout == ""
    last = p.stderr.splitlines()[-1]
    assert last.startswith(f"{two.name}: release {old} is not accepted: "), p.stderr
    assert last.endswith(f"; release {before} serves again"), p.stderr
    serves(two, before)
    deployed.run(hosts=[two]).unchanged()
    assert answers(two)


def test_a_release_whose_model_is_gone_is_not_tried(deployed: Deployed, earlier: dict[str, int]) -> None:
    two = deployed.lab.hosts[1]
    before, pid, old = number(two), main_pid(two), earlier[two.name]
    model = model_of(two, old)
    two.run(["mv", model, f"{model}.aside"])
    p = rolled_back(deployed, two, "--to", str(old), "--json")
    two.run(["mv", f"{model}.aside", model])
    said = f"release {old} can't be served, it needs the model {model} as it was; nothing was touched"
    assert p.returncode == 1
    assert json.loads(p.stdout) == {"done": {}, "failed": {two.name: said}, "unreachable": {}}
    assert (number(two), main_pid(two)) == (before, pid)


@pytest.fixture(scope="module")
def unacceptable(deployed: Deployed) -> dict[str, str]:
    """Settings of a source that builds but isn't accepted: the pinned one with one line changed."""
    pin = lock.load(ROOT / "wsllama.lock").llama_cpp
    path = deployed.folder / "unacceptable.tar.gz"
    source = sources.fetch(pin, "sdist").path
    assert source
    whole = io.BytesIO()
    with tarfile.open(source) as tar, tarfile.open(fileobj=whole, mode="w") as out:
        for member in tar:
            data = tar.extractfile(member)
            content = data.read() if data else b""
            if member.name == "tools/server/server.cpp":
                assert content.count(ASKED) == 1
                content = content.replace(ASKED, PATCHED)
            named = tarfile.TarInfo(f"llama.cpp/{member.name}")
            named.mode, named.size = member.mode, len(content)
            out.addfile(named, io.BytesIO(content))
    path.write_bytes(gzip.compress(whole.getvalue(), 1, mtime=0))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"source": "archive", "archive": str(path), "archive_sha256": sha256, "commit": "f" * 40}


def build_of(host: Host) -> str:
    """Name of the build that the running server is of."""
    program = Path(host.run(["readlink", "-f", f"/proc/{main_pid(host)}/exe"]).stdout.strip())
    return program.parents[1].name


def test_a_deploy_that_is_not_accepted_restores_itself(deployed: Deployed, unacceptable: dict[str, str]) -> None:
    deployed.run().green()
    one, two = deployed.lab.hosts
    good, build = number(one), build_of(one)

    run = deployed.run({**of(one, llama_cpp=unacceptable), **of(two, server={"ctx_size": 5632})})
    bad = max(int(name) for name in os.listdir(one.root / "opt/wsllama/releases") if name.isdigit())
    assert run.returncode == 1
    assert run.results["failed_hosts"] == [one.name]
    assert run.operations("error", one.name)[0] == "acceptance | accepted", run.stderr
    reason = f"release {bad} is not accepted: /v1/models names no model, not qwen3.6-35b-a3b; release {good} serves again"
    said = run.stderr.partition(reason)[2].splitlines()
    assert len([line for line in said if f"[{one.name}]     " in line]) >= 5, run.stderr  # lines of the log of the server
    serves(one, good)
    assert answers(one)
    assert build_of(one) == build
    bad_build = Path(os.readlink(one.root / f"opt/wsllama/releases/{bad}/build")).name
    assert bad_build != build, "it was another program that was not accepted"
    assert "fffffffff" in one.run(f"/opt/wsllama/builds/{bad_build}/bin/llama-server --version 2>&1").stdout
    assert run.changed(two.name) == ["release", "service", "accepted"]
    serves(two, number(two), "--ctx-size", "5632")

    p = rolled_back(deployed, one, "--to", str(bad))
    assert (p.returncode, p.stdout) == (1, "")
    assert p.stderr.startswith(f"{one.name}: release {bad} is not there, or was never accepted: accepted are ")
    assert number(one) == good

    pid = main_pid(one)
    assert deployed.run().green().changed(one.name) == []
    assert main_pid(one) == pid, "what serves again is not started once more"


def full_releases(host: Host) -> list[int]:
    """The releases on a host that were no stage on the way: tests before this one may have left one of those."""
    records = (host.root / "opt/wsllama/releases").glob("*/release.json")
    return sorted(int(path.parent.name) for path in records if json.loads(path.read_text()).get("final", True))


def test_old_releases_and_their_builds_are_pruned(deployed: Deployed) -> None:
    one = deployed.lab.hosts[0]
    builds = one.root / "opt/wsllama/builds"
    one.run("cd /opt/wsllama/builds && cp -r $(readlink -f ../current/build) nobody-needs-it")
    for size in (5888, 6144):
        deployed.run(of(one, keep_releases=1, server={"ctx_size": size}), hosts=[one]).green()
    new = number(one)
    serves(one, new, "--ctx-size", "6144")
    assert full_releases(one) == [new - 1, new]
    assert [p.name for p in builds.iterdir() if not p.name.startswith(".")] == [build_of(one)]
    p = rolled_back(deployed, one)
    assert p.returncode == 0, p.stderr
    serves(one, new - 1, "--ctx-size", "5888")
    p = rolled_back(deployed, one)
    assert p.returncode == 1
    assert p.stderr.startswith(f"{one.name}: there is no earlier release to go back to: accepted are "), p.stderr
    assert f"{new - 1}, {new}, current is {new - 1}" in p.stderr, p.stderr
    deployed.restore()
    deployed.run().unchanged()


# Stages

RELEASES = "/opt/wsllama/releases"
# A server that can't have its address is started again and again: here at once, so that the test needn't wait for it.
AT_ONCE = "/etc/systemd/system/llama-server.service.d/at-once.conf"


@pytest.fixture
def new(deployed: Deployed) -> Iterator[Host]:
    """The second host, which never served anything."""
    host = deployed.lab.hosts[1]
    host.run(f"systemctl disable -q --now {UNIT}; rm -rf {RELEASES}/* /opt/wsllama/current /opt/wsllama/last-good")
    host.run(f"mkdir -p {os.path.dirname(AT_ONCE)}; printf '[Service]\nRestartSec=50ms\n' >{AT_ONCE}; systemctl daemon-reload")
    yield host
    host.run(f"rm -r {os.path.dirname(AT_ONCE)}; systemctl daemon-reload")


def walked(host: Host) -> list[tuple[str, int, str, bool]]:
    """Of each release in order: its stage, context and address, and whether it was accepted."""
    found = []
    for path in sorted((host.root / RELEASES.lstrip("/")).glob("*/release.json"), key=lambda p: int(p.parent.name)):
        made_of = json.loads(path.read_text())
        server = made_of["server"]
        found.append((made_of["stage"], server["ctx_size"], server["host"], (path.parent / "baseline.json").exists()))
    return found


def test_a_stage_that_fails_leaves_the_one_before_and_the_next_run_begins_there(deployed: Deployed, new: Host) -> None:
    wide = {"ctx_size": 8448, "api_key": True, "host": "192.0.2.1"}  # an address that no machine has
    run = deployed.run(of(new, server=wide))
    assert (run.returncode, run.results["failed_hosts"]) == (1, [new.name])
    assert run.operations("error", new.name)[0] == "acceptance | accepted", run.stderr
    assert run.changed(new.name) == ["API key", "stages before", "release", "service"]
    assert "stage lan: release 3 is not accepted: " in run.stderr
    assert "; release 2 serves again" in run.stderr
    on_the_way = [("text", 8192, "127.0.0.1", True), ("context", 8448, "127.0.0.1", True)]
    assert walked(new) == [*on_the_way, ("lan", 8448, "192.0.2.1", False)]
    serves(new, 2, "--host 127.0.0.1 --port 8080 --ctx-size 8448")
    assert answers(new)
    p = rolled_back(deployed, new)
    assert (p.returncode, "; 1 served less, as a stage on the way: --to takes its number\n" in p.stderr) == (1, True), p.stderr

    data = of(new, server={**wide, "host": new.address})
    run = deployed.run(data, hosts=[new]).green()
    assert run.changed() == ["release", "service", "accepted"]
    assert [found for found in walked(new) if found[3]] == [*on_the_way, ("lan", 8448, new.address, True)]
    serves(new, 4, f"--host {new.address}")
    assert health(new) == 200
    deployed.run(data, hosts=[new]).unchanged()
