"""Releases on a real folder, by the program as it runs on a host; systemctl and llama-server are small scripts.

Killed at each of its steps, `current` names a whole release, and the next run finishes and clears up.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wsllama import program
from wsllama.host import probe, release

SERVER = """#!/bin/sh
for word in "$@"; do [ "$word" = --nonsense ] && { echo "warming up"; echo "error: invalid argument: --nonsense"; exit 1; }; done
[ "$word" = --version ] || { echo "it was started for real" >&2; exit 9; }
echo "version: 1"
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$0.log"
grep -qx "$1" "$0.fails" 2>/dev/null && { echo "Job for it failed."; echo "See journalctl."; exit 1; } >&2
exit 0
"""
STEPS = ("replace", "rename", "symlink", "unlink", "fsync", "makedirs", "rmdir")


def _deadly(stock: Callable[..., Any], left: Iterator[int]) -> Callable[..., Any]:
    return lambda *args, **more: stock(*args, **more) if next(left, None) is not None else os._exit(137)


def killed_before(step: int, argument: dict[str, Any]) -> bool:
    """Run the program in a process that dies, as by a kill, before this step; False when it had no so many."""
    pid = os.fork()
    if pid == 0:
        left = iter(range(step))
        for name in STEPS:
            setattr(os, name, _deadly(getattr(os, name), left))
        try:
            release.main(argument)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 137), code
    return code == 137


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Host:
    def __init__(self, folder: Path) -> None:
        self.root, self.bin, self.stamp = folder / "root", folder / "bin", folder / "stamp"
        self.root.mkdir()
        script(folder / "builds/b/bin/llama-server", SERVER)
        script(self.bin / "systemctl", SYSTEMCTL)
        self.links = {"build": str(folder / "builds/b"), "model": str(folder / "models/m")}

    def argument(self, action: str, **more: Any) -> dict[str, Any]:
        return {"action": action, "root": str(self.root), "unit": "llama-server.service", "stamp": str(self.stamp), **more}

    def run(self, action: str, **more: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        text = program.call("release", self.argument(action, **more))
        p = subprocess.run([sys.executable, "-I", "-S", "-"], input=text, env=environment, capture_output=True, text=True)
        assert "Traceback" not in p.stderr, p.stderr
        return p

    def release(self, number: int, words: tuple[str, ...] = ()) -> dict[str, Any]:
        """What a release of this number is made of."""
        return {
            "number": number,
            "links": self.links,
            "files": {"args": f"ARGS={number}\n", "env": ""},
            "record": {"model": {"file": "m/a.gguf"}, "build": "b"},
            "digest": f"d{number}",
            "check": ["--port", "1", *words],
        }

    def make(self, number: int, words: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return self.run("make", **self.release(number, words))

    def fails(self, *verbs: str) -> None:
        (self.bin / "systemctl.fails").write_text("".join(f"{v}\n" for v in verbs))

    @property
    def asked(self) -> list[str]:
        log = self.bin / "systemctl.log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def seen(self) -> dict[str, Any]:
        found: dict[str, Any] = probe.releases([str(self.root)])[str(self.root)]
        return found

    def leftovers(self) -> list[str]:
        return [p.name for p in self.root.rglob("*") if p.name.endswith(".tmp") or p.name.startswith(".partial")]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def done(p: subprocess.CompletedProcess[str]) -> None:
    assert p.returncode == 0, p.stderr


def test_a_release_is_made_whole_and_then_switched_to(host: Host) -> None:
    done(host.make(1))
    assert host.seen["numbers"].keys() == {"1"}
    assert host.seen["current"] is None
    record = json.loads((host.root / "releases/1/release.json").read_text())
    assert (record["digest"], record["build"], record["links"]) == ("d1", "b", host.links)
    done(host.run("switch", number=1))
    assert os.readlink(host.root / "current") == "releases/1"
    assert (host.root / "current/args").read_text() == "ARGS=1\n"
    assert host.asked == [], "neither starts anything"


def test_words_that_the_program_refuses(host: Host) -> None:
    p = host.make(1, words=("--nonsense",))
    assert p.returncode == 1
    assert p.stderr.strip() == (
        "llama-server refuses the arguments of the settings: error: invalid argument: --nonsense; the service was not touched"
    )
    assert host.seen["numbers"] == {}
    assert host.leftovers() == []


def test_a_number_that_another_run_took_meanwhile(host: Host) -> None:
    done(host.make(1))
    created = (host.root / "releases/1/release.json").read_text()
    done(host.make(1))
    assert (host.root / "releases/1/release.json").read_text() == created, "the same release: nothing to do"
    p = host.run("make", **{**host.release(1), "digest": "other"})
    assert p.returncode == 1
    assert p.stderr.startswith("release 1 was made by another run meanwhile, with other settings; run again")
    assert (host.root / "releases/1/release.json").read_text() == created


@pytest.mark.parametrize("action", ["make", "switch"])
def test_killed_at_every_step(host: Host, tmp_path: Path, action: str) -> None:
    make, switch = host.argument("make", **host.release(2)), host.argument("switch", number=2)
    done(host.make(1))
    done(host.run("switch", number=1))
    if action == "switch":
        done(host.make(2))
    before = tmp_path / "before"
    shutil.copytree(host.root, before, symlinks=True)
    for step in range(100):
        shutil.rmtree(host.root)
        shutil.copytree(before, host.root, symlinks=True)
        killed = killed_before(step, make if action == "make" else switch)
        now = host.seen
        assert now["current"] in now["numbers"], f"step {step}: {now}"
        if not killed:
            break
        if "2" not in now["numbers"]:
            assert now["highest"] == 1
            release.main(make)
        release.main(switch)
        assert host.seen["numbers"].keys() == {"1", "2"}
        assert host.seen["current"] == "2"
        assert host.leftovers() == [], f"step {step}"
    assert step > (8 if action == "make" else 2)


def test_a_folder_in_the_links_place_is_kept(host: Host) -> None:
    done(host.make(1))
    (host.root / "current").mkdir()
    (host.root / "current/precious").write_text("mine")
    done(host.run("switch", number=1))
    assert os.readlink(host.root / "current") == "releases/1"
    (kept,) = host.root.glob("current.*.moved")
    assert (kept / "precious").read_text() == "mine"


def test_start_writes_down_what_was_started(host: Host) -> None:
    done(host.run("start", digest="abc"))
    assert host.asked[-1] == "restart llama-server.service"
    assert host.stamp.read_text() == "abc\n"


def test_a_start_that_fails_leaves_no_stamp(host: Host) -> None:
    host.stamp.write_text("old\n")
    host.fails("restart")
    p = host.run("start", digest="abc")
    assert p.returncode == 1
    assert p.stderr.strip() == "llama-server.service did not start: Job for it failed. See journalctl."
    assert not host.stamp.exists(), "the next run starts it again"


def test_what_runs_already_is_not_started_again(host: Host) -> None:
    host.stamp.write_text("abc\n")
    done(host.run("start", digest="abc"))
    assert [words for words in host.asked if words.startswith("restart")] == []
    host.fails("is-active")
    done(host.run("start", digest="abc"))
    assert host.asked[-1] == "restart llama-server.service"


def test_accepted_is_recorded_and_enabled(host: Host) -> None:
    done(host.make(1))
    done(host.run("switch", number=1))
    done(host.run("accept", number=1, baseline={"version": "1"}))
    assert os.readlink(host.root / "last-good") == "releases/1"
    assert json.loads((host.root / "releases/1/baseline.json").read_text()) == {"version": "1"}
    assert host.asked == ["enable --quiet llama-server.service"]
    assert host.seen["numbers"]["1"]["accepted"]
    done(host.run("accept", number=1, baseline=None))
    assert json.loads((host.root / "releases/1/baseline.json").read_text()) == {"version": "1"}, "the first record stays"


def test_what_is_no_longer_current_is_not_accepted(host: Host) -> None:
    for number in (1, 2):
        done(host.make(number))
        done(host.run("switch", number=number))
    p = host.run("accept", number=1, baseline={})
    assert p.returncode == 1
    assert p.stderr.startswith("release 1 gave way to release 2 of another run while it was asked; run again")
    assert not (host.root / "last-good").exists()


def test_enabling_that_fails_is_one_sentence(host: Host) -> None:
    done(host.make(1))
    done(host.run("switch", number=1))
    host.fails("enable")
    p = host.run("accept", number=1, baseline={})
    assert p.returncode == 1
    assert p.stderr == "llama-server.service can't be enabled at boot: Job for it failed. See journalctl.\n"


def accepted_then(host: Host) -> None:
    """Release 1 was accepted; 2 is current."""
    for number in (1, 2):
        done(host.make(number))
        done(host.run("switch", number=number))
        if number == 1:
            done(host.run("accept", number=1, baseline={}))
    host.stamp.write_text("x")


def test_back_to_the_last_good(host: Host) -> None:
    accepted_then(host)
    p = host.run("back", number=2)
    done(p)
    assert json.loads(p.stdout) == {"serves": "1"}
    assert host.seen["current"] == "1"
    assert host.asked[-1] == "restart llama-server.service"
    assert not host.stamp.exists(), "the next run starts what is wanted again"


def test_what_another_run_switched_to_stays(host: Host) -> None:
    accepted_then(host)
    done(host.make(3))
    done(host.run("switch", number=3))
    p = host.run("back", number=2)
    assert json.loads(p.stdout) == {"serves": "3"}
    assert host.seen["current"] == "3"
    assert host.stamp.read_text() == "x"
    assert [words for words in host.asked if words.startswith(("restart", "stop"))] == []


def test_back_without_anything_good_stops(host: Host) -> None:
    done(host.make(1))
    done(host.run("switch", number=1))
    p = host.run("back", number=1)
    assert json.loads(p.stdout) == {"serves": None}
    assert host.asked == ["stop llama-server.service"]


def test_a_root_that_is_not_there_is_one_sentence(host: Host) -> None:
    host.root.rmdir()
    p = host.run("switch", number=1)
    assert p.returncode == 1
    assert p.stderr.count("\n") == 1
    assert str(host.root) in p.stderr
