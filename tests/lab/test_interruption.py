"""A deploy that is killed, interrupted or doubled: the next plain run ends green, and the one after it changes nothing."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab import tiny_model
from lab.lab import Host
from tests.lab import rollouts
from tests.lab.deployed import LIMIT_S, ROOT, Deployed, Run, answers, arguments_of, wait_for
from wsllama import program

# The pyinfra command, killed with all that it started (kill -9) at a place that a look from outside would come too late for.
KILLED = """
import os, signal, sys
import pyinfra_cli.main

def kill():
    os.killpg(0, signal.SIGKILL)

{before}
sys.argv[0] = "pyinfra"
pyinfra_cli.main.main()
"""


def before_command(label: str, nth: int = 1) -> str:
    """Where it is killed: before it sends a host the nth command that is named so."""
    return f"""
import paramiko
stock, left = paramiko.Channel.exec_command, [{nth}]

def exec_command(self, command):
    if str(command).rpartition(" # ")[2].strip("'") == {label!r}:
        left[0] -= 1
        left[0] or kill()
    return stock(self, command)

paramiko.Channel.exec_command = exec_command
"""


def after_blocks(count: int) -> str:
    """Where it is killed: when so many blocks of a file are on their way."""
    return f"""
from wsllama import transfer
stock = transfer._Sending.blocks

def blocks(self, start, end):
    for number, block in enumerate(stock(self, start, end)):
        number < {count} or kill()
        yield block

transfer._Sending.blocks = blocks
"""


class Started:
    """A deploy that runs; what it says is collected. before: where it is killed by itself."""

    def __init__(self, deployed: Deployed, inventory: Path, before: str = "") -> None:
        words = deployed.command(inventory)
        if before:
            words = [sys.executable, "-c", KILLED.format(before=before), *words[1:]]
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=deployed.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait until something is so; the deploy must not end before."""
        deadline = time.monotonic() + LIMIT_S
        while not happened():
            assert self.process.poll() is None, f"it ended before it could be interrupted:\n{self.text}"
            assert time.monotonic() < deadline, self.text
            time.sleep(0.005)

    def says(self, words: str) -> Callable[[], bool]:
        return lambda: any(words in line for line in list(self.lines))

    def killed(self) -> None:
        """Wait for its end at the place where it is killed."""
        assert self.ended() == -signal.SIGKILL, self.text

    def kill(self) -> None:
        """kill -9 of the whole process group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.ended()

    def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        status = self.process.wait(LIMIT_S)
        self._reader.join()
        return status


@contextmanager
def started(deployed: Deployed, data: Mapping[str, Any] | None = None, before: str = "") -> Iterator[Started]:
    """A deploy of the first host, killed at the end if it still runs. before: where it is killed by itself."""
    host = deployed.lab.hosts[0]
    run = Started(deployed, deployed.inventory({host.name: data or {}}, [host]), before)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.kill()


def ends_green(deployed: Deployed, data: Mapping[str, Any] | None = None) -> Run:
    """A plain run of the first host ends green and the one after it changes nothing; returns the first of them."""
    host = deployed.lab.hosts[0]
    run = deployed.run({host.name: data or {}}, hosts=[host]).green()
    deployed.run({host.name: data or {}}, hosts=[host]).unchanged()
    assert answers(host)
    assert not list((host.root / "opt/wsllama").rglob("*.partial-*")) + list((host.root / "opt/wsllama").rglob("*.tmp"))
    return run


def unit(host: Host, name: str) -> str:
    """Which start of a unit runs; empty when it doesn't."""
    p = host.run(["systemctl", "show", "-p", "InvocationID,ActiveState", name])
    shown = dict(line.split("=", 1) for line in p.stdout.splitlines())
    return shown["InvocationID"] if shown["ActiveState"] == "active" else ""


def test_build_is_followed_by_who_comes_next_and_by_two_at_once(deployed: Deployed) -> None:
    host, service = deployed.lab.hosts[0], "wsllama-build.service"
    log = host.root / "var/log/wsllama/build.log"
    begun = log.stat().st_size if log.exists() else 0
    server = unit(host, "llama-server.service")
    host.run("rm -rf /opt/wsllama/builds/*")
    shutil.rmtree(deployed.cache / "wsllama/artifacts", ignore_errors=True)  # or it would come from this machine
    with started(deployed) as first:
        # Its own log is the first to say so; it is held before anything else, so that it can't end before all have seen it.
        first.until(lambda: log.exists() and b"==> compile" in log.read_bytes()[begun:])
        host.nsenter(["systemctl", "kill", "--signal=STOP", service])
        building = unit(host, service)
        assert building
        first.until(first.says("==> compile"))
        os.kill(first.process.pid, signal.SIGINT)
        assert first.ended() == 130, "it doesn't wait for the build, which stands still"
    assert "interrupted: what runs as a unit on a host goes on there, and the next run follows it" in first.text
    assert "Traceback" not in first.text
    with started(deployed) as second:
        second.until(second.says("==> compile"))
        second.kill()
    assert unit(host, service) == building
    assert unit(host, "llama-server.service") == server  # it has its files open
    with started(deployed) as third, started(deployed) as fourth:
        third.until(third.says("==> compile"))
        fourth.until(fourth.says("==> compile"))
        assert unit(host, service) == building
        host.run(["systemctl", "kill", "--signal=CONT", service])
        assert (third.ended(), fourth.ended()) == (0, 0), third.text + fourth.text
    assert (host.root / "var/log/wsllama/build.log").read_text().rpartition("==> unpack")[2].count("==> compile") == 1
    assert ends_green(deployed).changed() == []


def test_killed_while_the_model_is_copied(deployed: Deployed, tmp_path: Path) -> None:
    host, size = deployed.lab.hosts[0], 300_000_000
    big = Path(shutil.copyfile(deployed.model, tmp_path / "big.gguf"))
    os.truncate(big, size)  # llama.cpp doesn't mind what stands behind the last tensor
    part = host.root / f"var/lib/wsllama/models/.incoming/{big.name}-{size}.part"
    try:
        with started(deployed, {"model": {"path": str(big)}}, after_blocks(64)) as run:
            run.killed()
        # What is on its way to the host when the connection ends may get lost; most of it is there.
        assert 0 < part.stat().st_size < size
        assert answers(host)
        again = ends_green(deployed, {"model": {"path": str(big)}})
        assert re.search(r"big\.gguf goes on after the [0-9.]+ MiB that are on the host", again.stderr)
        assert arguments_of(host)[1:3] == ["--model", "/opt/wsllama/current/model/big.gguf"]
    finally:
        host.run("rm -rf /var/lib/wsllama/models/big-*")


def current(host: Host) -> str:
    return os.readlink(host.root / "opt/wsllama/current")


def ctx_size(host: Host) -> str:
    words = arguments_of(host)
    return words[words.index("--ctx-size") + 1]


def test_killed_between_the_switch_and_the_restart(deployed: Deployed) -> None:
    host, wanted = deployed.lab.hosts[0], {"server": {"ctx_size": 1024}}
    before = current(host), ctx_size(host)
    with started(deployed, wanted, before_command("release start")) as run:
        run.killed()
    assert current(host) != before[0]
    assert ctx_size(host) == before[1]
    assert ends_green(deployed, wanted).changed() == ["service", "accepted"]
    assert ctx_size(host) == "1024"


def test_killed_while_the_service_is_restarted(deployed: Deployed) -> None:
    """The host's own program goes too, as when the host loses its power: nothing writes down what was started."""
    host, wanted = deployed.lab.hosts[0], {"server": {"ctx_size": 1280}}
    stamp = host.root / "var/lib/wsllama/llama-server.service.started-with"
    rollouts.slow_to_start(host)  # or it may have been started before all of this is done
    with started(deployed, wanted) as run:
        run.until(lambda: not stamp.exists())
        host.nsenter(["pkill", "-9", "-f", "^python3 -I -S -$"])
        run.kill()
    rollouts.as_before(host)
    assert not stamp.exists()
    assert ends_green(deployed, wanted).changed() == ["service", "accepted"]
    assert ctx_size(host) == "1280"


def test_killed_while_the_release_is_being_accepted(deployed: Deployed) -> None:
    host, wanted = deployed.lab.hosts[0], {"server": {"ctx_size": 1536}}
    root = host.root / "opt/wsllama"
    good = os.readlink(root / "last-good")
    with started(deployed, wanted, before_command("accept")) as run:
        run.killed()
    assert run.says("acceptance | accepted")()
    assert os.readlink(root / "last-good") == good != current(host)
    assert not (root / current(host) / "baseline.json").exists()
    assert ends_green(deployed, wanted).changed() == ["accepted"]
    assert os.readlink(root / "last-good") == current(host)


def test_killed_between_two_stages(deployed: Deployed) -> None:
    """Something serves, what served before all of it is gone back to still, and the next run walks what is left."""
    host, root = deployed.lab.hosts[0], deployed.lab.hosts[0].root / "opt/wsllama"
    model = tiny_model.write(deployed.folder / "in-stages.gguf", seed=4)
    wanted = {"model": {"path": str(model)}, "server": {"ctx_size": 8448}}
    good, before = os.readlink(root / "last-good"), set(root.glob("releases/*/baseline.json"))
    with started(deployed, wanted, before_command("release make", 2)) as run:
        run.killed()
    (text,) = set(root.glob("releases/*/baseline.json")) - before
    made_of = json.loads((text.parent / "release.json").read_text())
    assert (made_of["stage"], made_of["server"]["ctx_size"]) == ("text", 8192)
    assert os.readlink(root / "last-good") == good
    assert answers(host)
    assert "stages before" not in ends_green(deployed, wanted).changed()
    assert ctx_size(host) == "8448"
    assert os.readlink(root / "last-good") == current(host)


def programs(host: Host) -> list[str]:
    """What of ours runs on a host, sent by a deploy."""
    return host.nsenter(["pgrep", "-f", "^python3 -I -S -$"], check=False).stdout.split()


def test_a_rollout_that_gets_ctrl_c_in_a_batch_ends_what_it_began_and_goes_on(deployed: Deployed, tmp_path: Path) -> None:
    """The canary has it, the other one's service is just being started; the next run takes that one alone."""
    one, two = deployed.lab.hosts
    inventory = deployed.inventory({host.name: {"server": {"cache_ram": 519}} for host in (one, two)}, name="rollout")
    report, before = tmp_path / "report.json", arguments_of(two)
    rollouts.slow_to_start(two)
    said = f"[{two.name}] llama-server.service: "
    first = rollouts.apply(deployed, inventory, report, "--no-bench", interrupted_by=said)
    assert first.returncode == 130, first.stderr
    assert first.states == {one.name: "done", two.name: "running"}
    assert (first.report["left"], first.report["exit_code"]) == ([two.name], 1)
    assert f"interrupted; go on with: wsllama apply {inventory} --resume {report}\n" in first.stderr
    deadline = time.monotonic() + LIMIT_S
    while programs(two):
        assert time.monotonic() < deadline, "its program goes on there, though nobody listens"
        time.sleep(0.2)
    rollouts.as_before(two)
    second = rollouts.apply(deployed, inventory, report)
    assert (second.returncode, second.states, second.report["left"]) == (0, dict.fromkeys(deployed.names, "done"), []), (
        second.stderr
    )
    assert f"have the release already: {one.name}\nbatch 1: {two.name} " in second.stderr
    assert answers(two)
    assert arguments_of(two) != before
    deployed.pyinfra(inventory).unchanged()


def test_two_runs_at_once_that_want_the_same(deployed: Deployed) -> None:
    host, wanted = deployed.lab.hosts[0], {"server": {"ctx_size": 1792}}
    with started(deployed, wanted) as one, started(deployed, wanted) as other:
        assert (one.ended(), other.ended()) == (0, 0), one.text + other.text
    assert ends_green(deployed, wanted).changed() == []
    assert ctx_size(host) == "1792"


def waiting(lock: int) -> int:
    """How many programs, of whichever machine here, wait for a file's lock, by the kernel's own list (proc_locks(5))."""
    number = f":{os.fstat(lock).st_ino} "
    return sum(" -> " in line and number in line for line in Path("/proc/locks").read_text().splitlines())


def test_two_runs_at_once_that_want_different_things(deployed: Deployed) -> None:
    host = deployed.lab.hosts[0]
    sizes = (2304, 2560)
    wishes = [{"server": {"ctx_size": size}} for size in sizes]
    inventories = [deployed.inventory({host.name: wish}, [host], f"wish-{i}") for i, wish in enumerate(wishes)]
    root = host.root / "opt/wsllama"
    with open(root / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # both have chosen the same number before one of them can go on
        runs = [Started(deployed, inventory) for inventory in inventories]
        for run in runs:
            run.until(run.says("is made"))
        wait_for(lambda: waiting(lock.fileno()) == 2, "two programs that wait for the lock")
    codes = [run.ended() for run in runs]
    assert sorted(codes) == [0, 1], runs[0].text + runs[1].text
    for run, code in zip(runs, codes, strict=True):
        assert "Traceback" not in run.text
        assert code == 0 or "run again when that one has ended" in run.text
    assert os.readlink(root / "last-good") == current(host)
    made = [json.loads(path.read_text())["server"]["ctx_size"] for path in root.glob("releases/*/release.json")]
    assert all(size in made for size, code in zip(sizes, codes, strict=True) if code == 0)  # a good one made what it said
    assert ctx_size(host) in [str(size) for size, code in zip(sizes, codes, strict=True) if code == 0]
    ends_green(deployed, wishes[0])
    assert ctx_size(host) == "2304"


def test_build_that_takes_longer_than_its_limit(deployed: Deployed) -> None:
    host = deployed.lab.hosts[0]
    slow = "def main(argument):\n    import time\n    print('==> sleep', flush=True)\n    time.sleep(3600)\n"
    task = {"unit": "wsllama-slow", "key": "a", "limit_s": 2, "program": slow, "argument": {}, "environment": {}}
    call = program.call("follow", {**task, "log": "/var/log/wsllama/slow.log"})
    p = host.run(["python3", "-I", "-S", "-"], input=call, check=False)
    assert p.returncode == 1
    assert p.stderr.splitlines()[0] == "wsllama-slow was stopped at its time limit of 2 s; raise the limit and run again"
    assert not json.loads(p.stdout.splitlines()[-1])["ok"]
    assert unit(host, "wsllama-slow.service") == ""
