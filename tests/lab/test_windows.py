"""WSL's own settings, from inside the distro: found, edited, refused, pending until WSL starts anew. Windows is played."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.lab import Host
from lab.windows import WslMachine
from tests.lab.deployed import Deployed, Run, answers

GIB = 1 << 30
STATE = "/var/lib/wsllama/windows"
WSL: dict[str, Any] = {"platform": "wsl", "llama_cpp": {"backend": "cpu"}}

# As it is found: written by hand on Windows, then by WSL's settings program, which put a key above its section (WSL#12671).
THEIRS = (
    b"memory=8GB\r\n"
    b"# limits, see the wiki\r\n"
    b"[wsl2]\r\n"
    b"processors=4   # leave some for Windows\r\n"
    b"memory=20GB\r\n"
    b"memory=12GB\r\n"
    b"; vmIdleTimeout=60000\r\n"
    b"\r\n"
    b"[experimental]\r\n"
    b"autoMemoryReclaim=gradual\r\n"
    b"[wsl-gui]\r\n"
    b"theme=dark\r\n"
)


class Machine(WslMachine):
    def __enter__(self) -> Machine:
        super().__enter__()
        return self

    @property
    def wslconfig(self) -> Path:
        return self.path(f"{self.profile}/.wslconfig")


@pytest.fixture
def host(deployed: Deployed) -> Iterator[Host]:
    """A lab host without a trace of an earlier test's Windows."""
    chosen = deployed.lab.hosts[0]
    yield chosen
    chosen.run(f"rm -rf {STATE} /etc/wsl.conf /etc/wsl.conf.*.bak")


def run(deployed: Deployed, host: Host, counted: bool = False, **wsl: Any) -> Run:
    return deployed.run({host.name: {**WSL, "wsl": wsl}}, hosts=[host], counted=counted)


def ended(done: Run, status: int) -> Run:
    """Itself; AssertionError when it ended in another way, or anything failed though it says otherwise."""
    assert done.returncode == status, done.stderr
    assert status == 1 or not (done.results["failed_hosts"] or done.results["totals"]["error"]), done.stderr
    return done


def test_a_mangled_file_is_put_right_and_waits_for_a_restart(deployed: Deployed, host: Host) -> None:
    wanted: dict[str, Any] = {"wsl2": {"memory": "24GB", "swap": "6GB", "networkingMode": "consomme"}}
    with Machine(host) as machine:
        machine.wslconfig.write_bytes(THEIRS)
        first = ended(run(deployed, host, **wanted), 5)
        now = machine.wslconfig.read_bytes()
        assert now == (
            b"memory=8GB\r\n"
            b"# limits, see the wiki\r\n"
            b"[wsl2]\r\n"
            b"processors=4   # leave some for Windows\r\n"
            b"memory=24GB\r\n"
            b"memory=12GB\r\n"
            b"vmIdleTimeout=-1\r\n"
            b"swap=6GB\r\n"
            b"networkingMode=Consomme\r\n"
            b"; vmIdleTimeout=60000\r\n"
            b"\r\n"
            b"[experimental]\r\n"
            b"autoMemoryReclaim=Disabled\r\n"
            b"[wsl-gui]\r\n"
            b"theme=dark\r\n"
            b"\r\n"
            b"[general]\r\n"
            b"instanceIdleTimeout=-1\r\n"
        )
        (sentence,) = first.results["pending"][host.name]
        assert sentence.startswith("pending: wsl --shutdown")
        for name in ("wsl2.memory", "wsl2.swap", "wsl2.networkingMode", "general.instanceIdleTimeout", "wsl2.vmIdleTimeout"):
            assert name in sentence
        for said in (".wslconfig:1: ", ".wslconfig:6: ", ".wslconfig:7: A ; does not begin a comment", ".wslconfig:11: "):
            assert said in first.stderr
        backups = [*machine.wslconfig.parent.glob(".wslconfig.*.bak"), *machine.path(STATE).glob("wslconfig.*.bak")]
        assert [path.read_bytes() for path in backups] == [THEIRS, THEIRS]
        assert "systemd=true" in host.run("cat /etc/wsl.conf").stdout

        machine.forget()
        second = ended(run(deployed, host, **wanted), 5)
        assert second.results["totals"]["success"] == 0, second.operations("success")
        assert second.results["pending"] == first.results["pending"]
        assert machine.calls("cmd.exe") == [], "the profile is known"
        assert machine.wslconfig.read_bytes() == now

        machine.restart()
        third = ended(run(deployed, host, counted=True, **wanted), 0).unchanged()
        assert len(third.commands[host.name]) == 2, "the probe and acceptance, as on any host"
        assert third.results["pending"] == {}
        assert machine.state()["shutdowns"] == 0
        assert answers(host)


def test_a_plan_that_needs_more_than_the_guest_has_gets_it_from_wslconfig(deployed: Deployed, host: Host) -> None:
    """Host caches that may take 40 GiB, where WSL gives the guest half of 64: its file has to say more, and then it is served."""
    large = {host.name: {**WSL, "server": {"cache_ram": 40 * 1024}}}
    with Machine(host, memory_bytes=64 * GIB) as machine:
        machine.wslconfig.write_bytes(b"[wsl2]\r\nmemory=20GB\r\nswap=1GB\r\n")
        machine.restart()
        serving = host.run("readlink /opt/wsllama/current").stdout
        first = deployed.run(large, hosts=[host])
        assert first.returncode == 1
        found = [line.strip() for line in machine.wslconfig.read_text().split("\n")[:3]]
        assert (found[0], found[2]) == ("[wsl2]", "swap=1GB")
        assert 42 <= int(found[1].removeprefix("memory=").removesuffix("GB")) <= 56  # the caches, the system, some compilers
        assert re.search(rf"{host.name}: pending: wsl --shutdown .*wsl2\.memory", first.stderr)
        assert "the server is not started: its plan takes 42" in first.stderr
        assert host.run("readlink /opt/wsllama/current").stdout == serving
        assert answers(host)
        machine.restart()
        ended(deployed.run(large, hosts=[host]), 0)
        assert host.run("readlink /opt/wsllama/current").stdout != serving
    with Machine(host, memory_bytes=48 * GIB) as machine:
        done = deployed.run(large, hosts=[host])
        assert done.returncode == 1
        assert "the host part of tiny.gguf is 42" in done.stderr
        assert not machine.wslconfig.exists()


def test_what_no_restart_brought_is_no_restart_to_come(deployed: Deployed, host: Host) -> None:
    with Machine(host) as machine:
        ended(run(deployed, host, wsl2={"processors": 6}), 5)
        host.run(f"touch -d @1 {machine.profile}/.wslconfig")  # as if the VM were younger: here it has this machine's clock
        machine.restart({"processors": 4})
        done = ended(run(deployed, host, wsl2={"processors": 6}), 0).unchanged()
        assert "not in effect although WSL was started since: wsl2.processors (wanted 6, seen 4)" in done.stderr


@contextmanager
def windows_that_restarts(machine: WslMachine) -> Iterator[None]:
    """Plays the console of Windows that runs `wsl --shutdown` and starts the distro again."""
    ends = threading.Event()

    def watch() -> None:
        while not ends.wait(0.3):
            if any("--shutdown" in word for call in machine.calls("cmd.exe") for word in call.argv):
                time.sleep(1)
                machine.restart()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def test_a_run_may_restart_wsl_and_goes_on(deployed: Deployed, host: Host) -> None:
    with Machine(host, others={"docker-desktop": True, "Debian": False}) as machine:
        with windows_that_restarts(machine):
            done = ended(run(deployed, host, restart=True, wsl2={"memory": "24GB"}), 0)
        assert done.results["pending"] == {}
        assert "it ends Ubuntu-24.04, docker-desktop" in done.stderr
        (asked,) = [call.argv for call in machine.calls("cmd.exe") if "start" in call.argv]
        assert asked[-1] == "wsl.exe --shutdown & wsl.exe -d Ubuntu-24.04 -u root --exec /bin/true"
        assert "accepted" in done.stderr, "the stages behind it ran"
        ended(run(deployed, host, restart=True, wsl2={"memory": "24GB"}), 0).unchanged()


def test_without_interop_or_a_profile_all_inside_the_distro_is_done(deployed: Deployed, host: Host) -> None:
    with Machine(host, interop="off", profiles=()):
        for done in (ended(run(deployed, host), 0), ended(run(deployed, host), 0).unchanged()):
            assert "not done on Windows: .wslconfig was not looked at, because Windows programs can't be started" in done.stderr
            assert "instanceIdleTimeout=-1" in done.stderr
        assert "systemd=true" in host.run("cat /etc/wsl.conf").stdout
        assert answers(host)


def test_windows_is_left_alone_when_that_is_wished(deployed: Deployed, host: Host) -> None:
    with Machine(host) as machine:
        done = ended(run(deployed, host, windows=False), 0)
        assert not machine.wslconfig.exists()
        assert machine.calls() == []
        assert "not done on Windows" not in done.stderr


@pytest.mark.parametrize(
    ("more", "given", "found"),
    [
        ({"user": "Stephan Höchdörfer", "profiles": ("Stephan Höchdörfer", "Ada"), "language": "de"}, None, "Stephan Höchdörfer"),
        ({"interop": "no-binfmt", "profiles": ("Ada", "Bob")}, None, "Ada"),
        ({"interop": "dead-socket", "profiles": ("Ada", "Bob")}, None, "Ada"),
        ({"interop": "dead-sockets"}, None, "Ada"),
        ({"root": "/", "filesystem": "virtiofs", "profiles": ("Ada", "Bob")}, None, "Ada"),
        ({"profiles": ("Ada", "Bob")}, "C:\\Users\\Bob", "Bob"),
    ],
    ids=["letters", "no binfmt", "dead socket", "the only one", "other root", "given"],
)
def test_the_profile_is_found(deployed: Deployed, host: Host, more: dict[str, Any], given: str | None, found: str) -> None:
    with Machine(host, **more) as machine:
        ended(run(deployed, host, profile=given), 5)
        there = sorted(path.parent.name for path in machine.path(f"{machine.drive}/Users").glob("*/.wslconfig"))
        assert there == [found]


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "folder": ({}, {}, ".wslconfig is a folder: move it away"),
    "read-only": ({}, {}, ".wslconfig is read-only"),
    "locked": ({}, {}, ".wslconfig can't be opened for writing"),
    "full": ({}, {}, "no disk space for /mnt/c/Users/Ada/.wslconfig"),
    "memory": ({}, {"wsl2": {"memory": "33GB"}}, "wsl.wsl2.memory is 33 GiB, but the machine has 32.0 GiB"),
    "no profile": ({}, {"profile": "/mnt/c/Windows"}, "/mnt/c/Windows is no profile of a Windows user"),
    "no folder": ({}, {"profile": "C:\\Users\\Eve"}, "there is no folder /mnt/c/Users/Eve"),
    "in the distro": ({}, {"profile": "/root"}, "/root is not on a drive of Windows"),
    "two": ({"interop": "off", "profiles": ("Ada", "Bob")}, {}, "there are /mnt/c/Users/Ada, /mnt/c/Users/Bob: set wsl.profile"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_before_anything_is_written(deployed: Deployed, host: Host, what: str) -> None:
    more, wsl, said = BAD[what]
    with Machine(host, **more) as machine:
        path = f"{machine.profile}/.wslconfig"
        if what == "folder":
            machine.wslconfig.mkdir()
        elif what in ("read-only", "locked"):
            machine.wslconfig.write_bytes(THEIRS)
        if what == "read-only":
            machine.wslconfig.chmod(0o444)
        elif what == "locked":
            machine.lock(path)
        elif what == "full":
            machine.fill()
        files = f"find {machine.drive}/Users /etc/wsl.conf* {STATE} -printf '%p %s %T@\\n'"
        before = host.run(files, check=False).stdout
        done = ended(run(deployed, host, **wsl), 1)
        assert said in done.stderr
        assert host.run(files, check=False).stdout == before


@pytest.mark.parametrize(
    ("wsl", "said"),
    [
        ({"wsl2": {"memory": "16gb"}}, "as in 16GB"),
        ({"wsl2": {"memory": "1.5GB"}}, "as in 16GB"),
        ({"wsl2": {"memory": "50%"}}, "as in 16GB"),
        ({"wsl2": {"swapFile": "C:\temp\\swap.vhdx"}}, "control characters"),
        ({"wsl2": {"kernel": "C:\\Users\\José\\kernel"}}, "only ASCII"),
        ({"distro": "Übuntu"}, "ASCII letters"),
    ],
)
def test_wrong_settings_are_refused_before_a_connection(deployed: Deployed, host: Host, wsl: dict[str, Any], said: str) -> None:
    done = run(deployed, host, counted=True, **wsl)
    assert (done.returncode, done.commands[host.name]) == (2, [])
    assert said in done.stderr


def test_a_path_of_windows_is_written_as_wsl_reads_it(deployed: Deployed, host: Host) -> None:
    with Machine(host) as machine:
        ended(run(deployed, host, wsl2={"swapFile": "C:\\temp\\swap.vhdx"}), 5)
        assert b"swapFile=C:\\\\temp\\\\swap.vhdx" in machine.wslconfig.read_bytes()
