"""What somebody changes by hand on a host, the next run puts right: exactly that, and only there."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import pytest

from lab.lab import Host
from tests.lab.deployed import Deployed, answers, arguments_of

DATA = {name: {"server": {"api_key": True}} for name in ("lab-1", "lab-2")}

UNIT_FILE = "/etc/systemd/system/llama-server.service"
LINKS = (
    "readlink -f /opt/wsllama/current/build /opt/wsllama/current/model; cmp /opt/wsllama/current/args /opt/wsllama/last-good/args"
)
MODEL = "m=$(readlink -f /opt/wsllama/current/model/tiny.gguf)"
RELEASE = "r=$(readlink -f /opt/wsllama/current)"
OLD = "releases/$(ls /opt/wsllama/releases | grep -vx $(basename $(readlink /opt/wsllama/current)) | sort -n | tail -1)"
AGAIN = "systemctl restart llama-server"  # by hand, so that the server runs with what was spoilt


@dataclass(frozen=True)
class Drift:
    """+ spoil: a shell line that does the harm
    + repairs: operations that have to change something, all others nothing; who starts the service also waits for it
    + looks: a shell line whose output after the repair is that from before the harm
    """

    name: str
    spoil: str
    repairs: tuple[str, ...]
    looks: str = "systemctl is-active llama-server; systemctl is-enabled llama-server"


DRIFTS = [
    Drift("unit-edited", f"sed -i 's/^RestartSec=5/RestartSec=50/' {UNIT_FILE}", ("unit", "service"), f"cat {UNIT_FILE}"),
    Drift("unit-removed", f"rm {UNIT_FILE}; systemctl daemon-reload", ("unit", "service"), f"cat {UNIT_FILE}"),
    Drift("model-truncated", f"{MODEL}; truncate -s -1000000 $m", ("model", "service"), f"{MODEL}; sha256sum $m"),
    Drift("model-removed", f"{MODEL}; rm $m", ("model", "service"), f"{MODEL}; sha256sum $m"),
    Drift(
        "model-of-other-bytes",
        f"{MODEL}; head -c 100000 /dev/urandom | dd of=$m conv=notrunc status=none",
        ("model", "service"),
        f"{MODEL}; sha256sum $m",
    ),
    Drift("current-moved", f"ln -sfn {OLD} /opt/wsllama/current", ("release", "service"), LINKS),
    Drift("current-moved-and-used", f"ln -sfn {OLD} /opt/wsllama/current; {AGAIN}", ("release", "service"), LINKS),
    Drift("current-removed", "rm /opt/wsllama/current", ("release", "service"), LINKS),
    Drift(
        "current-is-a-folder",
        "rm /opt/wsllama/current; mkdir /opt/wsllama/current; touch /opt/wsllama/current/mine",
        ("release", "service"),
        LINKS,
    ),
    Drift("last-good-removed", "rm /opt/wsllama/last-good", ("accepted",), LINKS),
    Drift("stopped", "systemctl stop llama-server", ("service",)),
    Drift("disabled", "systemctl disable -q llama-server", ("accepted",)),
    Drift(
        "program-truncated",
        f"{RELEASE}; truncate -s 100 $r/build/bin/llama-bench",
        ("receive", "service"),
        f"{RELEASE}; sha256sum $r/build/bin/*",
    ),
    Drift(
        "program-removed",
        f"{RELEASE}; rm $r/build/bin/llama-server",
        ("receive", "service"),
        f"{RELEASE}; sha256sum $r/build/bin/*",
    ),
    Drift("arguments-edited-and-used", f"{RELEASE}; sed -i 's/8192/4096/' $r/args; {AGAIN}", ("release", "service"), LINKS),
    Drift(
        "unit-edited-and-used",
        f"sed -i 's/^UMask=.*/UMask=0022/' {UNIT_FILE}; systemctl daemon-reload; {AGAIN}",
        ("unit", "service"),
        f"cat {UNIT_FILE}",
    ),
    Drift("package-removed", "dpkg --force-depends --purge ninja-build >/dev/null 2>&1", ("packages",), "ninja --version"),
    Drift("user-with-shell", "usermod -s /bin/bash llama", ("user of the service",), "getent passwd llama"),
    Drift("apt-conf-removed", "rm /etc/apt/apt.conf.d/80wsllama", ("apt and certificates",), "cat /etc/apt/apt.conf.d/80wsllama"),
    Drift("folder-opened", "chmod 777 /opt/wsllama/releases", ("folders",), "stat -c %a /opt/wsllama/releases"),
    Drift("key-readable", "chmod 644 /etc/wsllama/api-key", ("API key",), "stat -c '%a %U %G' /etc/wsllama/api-key"),
    Drift("key-replaced", "echo mine >/etc/wsllama/api-key", ("service",)),
    Drift("key-removed", "rm /etc/wsllama/api-key", ("API key", "service"), "stat -c '%a %U %G' /etc/wsllama/api-key"),
    Drift("nothing", "true", ()),
]
PAIRS = list(zip(DRIFTS[0::2], DRIFTS[1::2], strict=True))


@pytest.fixture(scope="module")
def keyed(deployed: Deployed) -> Deployed:
    """Both hosts ask for a key, and have an older release besides."""
    deployed.run(DATA).green()
    return deployed


@pytest.mark.parametrize("drifts", PAIRS, ids=[f"{a.name} {b.name}" for a, b in PAIRS])
def test_next_run_repairs_exactly_that(keyed: Deployed, drifts: tuple[Drift, Drift]) -> None:
    """One drift on each host, in the same run."""
    both = list(zip(keyed.lab.hosts, drifts, strict=True))
    before = [host.run(drift.looks).stdout for host, drift in both]
    for host, drift in both:
        host.run(drift.spoil)
    repair = keyed.run(DATA).green()
    for (host, drift), looked in zip(both, before, strict=True):
        waits = ("accepted",) if "service" in drift.repairs else ()
        assert tuple(repair.changed(host.name)) == drift.repairs + waits, f"{host.name}: {drift.name}\n{repair.stderr}"
        assert host.run(drift.looks).stdout == looked
        assert answers(host)
        assert arguments_of(host)[1:] == words_of(host)
    keyed.run(DATA).unchanged()


def words_of(host: Host) -> list[str]:
    """What the current release says that the server is to be started with, read as systemd reads it."""
    line = host.run(["cat", "/opt/wsllama/current/args"]).stdout
    return shlex.split(shlex.split(line.partition("=")[2])[0])
