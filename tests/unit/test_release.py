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
if [ "$1" = --help ]; then cat <<HELP
----- server params -----

--port PORT                             port to listen (default: 8080)
                                        (env: LLAMA_ARG_PORT)
--load-mode MODE                        how the model is loaded: auto, none, mmap, mlock
--nonsense                              taken by --help only
HELP
exit 0; fi
for word in "$@"; do [ "$word" = --nonsense ] && { echo "warming up"; echo "error: invalid argument: --nonsense"; exit 1; }; done
[ "$word" = --version ] || { echo "it was started for real" >&2; exit 9; }
echo "version: 1"
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$0.log"
[ "$1" = show ] && cat "$0.shows" 2>/dev/null
grep -qx "$1" "$0.fails" 2>/dev/null && { echo "Job for it failed."; echo "See journalctl."; exit 1; } >&2
exit 0
"""
UNIT = "llama-server.service"
RELOAD = "daemon-reload"
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
        self.root, self.bin, self.stamp, self.unit = folder / "root", folder / "bin", folder / "stamp", folder / "a.service"
        script(self.bin / "systemctl", SYSTEMCTL)
        self.build("b")
        self.model = self.root / "models/m"
        self.model.mkdir(parents=True)

    def argument(self, action: str, **more: Any) -> dict[str, Any]:
        places = {"root": str(self.root), "stamp": str(self.stamp), "unit": UNIT, "unit_file": str(self.unit)}
        return {"action": action, **places, **more}

    def build(self, name: str) -> str:
        script(self.root / f"builds/{name}/bin/llama-server", SERVER)
        return name

    def run(self, action: str, **more: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        text = program.call("release", self.argument(action, **more))
        p = subprocess.run([sys.executable, "-I", "-S", "-"], input=text, env=environment, capture_output=True, text=True)
        assert "Traceback" not in p.stderr, p.stderr
        return p

    def release(self, number: int, words: tuple[str, ...] = (), build: str = "b") -> dict[str, Any]:
        """What a release of this number is made of."""
        return {
            "number": number,
            "links": {"build": str(self.root / "builds" / build), "model": str(self.model)},
            "files": {"env": "", "unit": f"[Unit]\nDescription={number}\n"},
            "record": {"model": {"file": "m/a.gguf"}, "server": {}, "gpu": False, "build": build},
            "digest": f"d{number}",
            "words": ["--port", str(number), *words],
            "allow_tools": False,
        }

    def make(self, number: int, words: tuple[str, ...] = (), build: str = "b") -> subprocess.CompletedProcess[str]:
        return self.run("make", **self.release(number, words, build))

    def accept(self, number: int, baseline: Any = None, keep: int = 5) -> subprocess.CompletedProcess[str]:
        return self.run("accept", number=number, baseline=baseline, keep=keep)

    def serve(self, number: int, keep: int = 5, build: str = "b", accepted: bool = True) -> None:
        """All that a deploy does to serve this release; it exists already, or is made."""
        if not (self.root / f"releases/{number}").exists():
            done(self.make(number, build=build))
        done(self.run("switch", number=number))
        if accepted:
            done(self.accept(number, baseline={}, keep=keep))

    def says_of_the_unit(self, text: str) -> None:
        (self.bin / "systemctl.shows").write_text(f"{text}\n")

    def fails(self, *verbs: str) -> None:
        (self.bin / "systemctl.fails").write_text("".join(f"{v}\n" for v in verbs))

    @property
    def asked(self) -> list[str]:
        """Words that systemctl was called with to change something."""
        log = self.bin / "systemctl.log"
        return [words for words in log.read_text().splitlines() if not words.startswith("show")] if log.exists() else []

    def names(self, folder: str) -> list[str]:
        return sorted(os.listdir(self.root / folder))

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
    assert (record["digest"], record["build"], record["links"]) == ("d1", "b", host.release(1)["links"])
    done(host.run("switch", number=1))
    assert os.readlink(host.root / "current") == "releases/1"
    assert (host.root / "current/args").read_text() == 'LLAMA_SERVER_ARGS="\\"--port\\" \\"1\\""\n'
    assert host.unit.read_text() == "[Unit]\nDescription=1\n"
    assert host.unit.stat().st_mode & 0o777 == 0o644
    assert host.asked == [RELOAD], "neither starts anything"


def test_the_unit_is_installed_when_it_is_another_one(host: Host) -> None:
    host.serve(1, accepted=False)
    host.serve(1, accepted=False)
    assert host.asked == [RELOAD]
    host.serve(2, accepted=False)
    assert host.unit.read_text() == "[Unit]\nDescription=2\n"
    assert host.asked == [RELOAD, RELOAD]


def test_a_unit_that_systemd_was_not_told_of(host: Host) -> None:
    host.serve(1, accepted=False)
    for said, reloads in (("no", 1), ("yes", 2)):
        host.says_of_the_unit(said)
        done(host.run("switch", number=1))
        assert host.asked == [RELOAD] * reloads


def test_a_release_without_its_unit_is_not_switched_to(host: Host) -> None:
    host.serve(1, accepted=False)
    done(host.make(2))
    (host.root / "releases/2/unit").unlink()
    p = host.run("switch", number=2)
    assert p.returncode == 1
    assert p.stderr == f"{host.root}/releases/2/unit: No such file or directory; mend that and run again\n"
    assert host.seen["current"] == "1"


def test_a_release_whose_model_another_run_removed_is_not_switched_to(host: Host) -> None:
    host.serve(1, accepted=False)
    done(host.make(2))
    host.model.rmdir()
    p = host.run("switch", number=2)
    assert p.returncode == 1
    assert p.stderr.startswith(f"{host.model} is gone, which release 2 needs: another run removed it; run again")
    assert host.seen["current"] == "1"


def test_a_model_that_is_switched_to_is_not_awaited_any_more(host: Host) -> None:
    (host.model / ".awaited").touch()
    done(host.make(1))
    assert (host.model / ".awaited").exists()
    done(host.run("switch", number=1))
    assert not (host.model / ".awaited").exists()


def test_words_that_the_program_refuses(host: Host) -> None:
    p = host.make(1, words=("--nonsense",))
    assert p.returncode == 1
    assert p.stderr.strip() == (
        "llama-server refuses the arguments of the settings: error: invalid argument: --nonsense; the service was not touched"
    )
    assert host.seen["numbers"] == {}
    assert host.leftovers() == []


def test_words_that_the_build_does_not_know(host: Host) -> None:
    p = host.make(1, words=("--prot", "2"))
    assert p.returncode == 1
    assert "--prot" in p.stderr
    assert p.stderr.strip().endswith("; the service was not touched")
    assert host.leftovers() == []


def test_words_are_spelled_as_the_build_has_them(host: Host) -> None:
    done(host.make(1, words=("--no-mmap",)))
    text = (host.root / "releases/1/args").read_text()
    assert "--load-mode" in text
    assert "--no-mmap" not in text
    assert host.seen["numbers"]["1"]["digest"] == "d1", "a release whose words were translated is whole"


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
def test_killed_at_every_step(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    monkeypatch.setenv("PATH", f"{host.bin}:{os.environ['PATH']}")
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
        host.unit.write_text("[Unit]\nDescription=1\n")
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
        assert host.unit.read_text() == "[Unit]\nDescription=2\n"
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
    assert p.returncode == 0, "acceptance, which comes next, goes back"
    assert p.stdout.startswith("llama-server.service did not start: Job for it failed. See journalctl.")
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
    done(host.accept(1, baseline={"version": "1"}))
    assert os.readlink(host.root / "last-good") == "releases/1"
    assert json.loads((host.root / "releases/1/baseline.json").read_text()) == {"version": "1"}
    assert host.asked == [RELOAD, "enable --quiet llama-server.service"]
    assert host.seen["numbers"]["1"]["accepted"]
    done(host.accept(1, baseline=None))
    assert json.loads((host.root / "releases/1/baseline.json").read_text()) == {"version": "1"}, "the first record stays"


def test_what_is_no_longer_current_is_not_accepted(host: Host) -> None:
    for number in (1, 2):
        done(host.make(number))
        done(host.run("switch", number=number))
    p = host.accept(1, baseline={})
    assert p.returncode == 1
    assert p.stderr.startswith("release 1 gave way to release 2 of another run while it was asked; run again")
    assert not (host.root / "last-good").exists()


def test_enabling_that_fails_is_one_sentence(host: Host) -> None:
    done(host.make(1))
    done(host.run("switch", number=1))
    host.fails("enable")
    p = host.accept(1, baseline={})
    assert p.returncode == 1
    assert p.stderr == "llama-server.service can't be enabled at boot: Job for it failed. See journalctl.\n"


def accepted_then(host: Host) -> None:
    """Release 1 was accepted; 2 is current."""
    host.serve(1)
    host.serve(2, accepted=False)
    host.stamp.write_text("x")


def test_back_to_the_last_good(host: Host) -> None:
    accepted_then(host)
    p = host.run("back", number=2)
    done(p)
    assert json.loads(p.stdout) == {"serves": "1", "switched": True}
    assert host.seen["current"] == "1"
    assert host.unit.read_text() == "[Unit]\nDescription=1\n"
    assert host.asked[-1] == RELOAD
    assert not host.stamp.exists(), "a run that is killed here leaves it to the next one to start what is wanted"
    done(host.run("resume", number="1", digest="d"))
    assert host.asked[-2:] == ["reset-failed llama-server.service", "restart llama-server.service"]
    assert host.stamp.read_text() == "d\n", "the next run need not start it again"


def test_what_serves_again_but_is_not_known_is_started_again_by_the_next_run(host: Host) -> None:
    accepted_then(host)
    done(host.run("back", number=2))
    done(host.run("resume", number="1", digest=None))
    assert host.asked[-1] == "restart llama-server.service"
    assert not host.stamp.exists()


def test_the_last_good_release_that_does_not_start_either(host: Host) -> None:
    accepted_then(host)
    done(host.run("back", number=2))
    host.fails("restart")
    p = host.run("resume", number="1", digest="d")
    assert p.returncode == 1
    assert p.stderr.startswith("llama-server.service did not start: Job for it failed.")
    assert not host.stamp.exists()


def test_what_another_run_switched_to_is_not_started_in_its_place(host: Host) -> None:
    accepted_then(host)
    done(host.run("back", number=2))
    host.serve(3, accepted=False)
    done(host.run("resume", number="1", digest="d"))
    assert not host.stamp.exists()
    assert [words for words in host.asked if words.startswith("restart")] == []


def test_what_was_accepted_stays(host: Host) -> None:
    accepted_then(host)
    done(host.accept(2, baseline={}))
    p = host.run("back", number=2)
    assert json.loads(p.stdout) == {"serves": "2", "switched": False}
    assert host.stamp.read_text() == "x"


def test_what_another_run_switched_to_stays(host: Host) -> None:
    accepted_then(host)
    done(host.make(3))
    done(host.run("switch", number=3))
    p = host.run("back", number=2)
    assert json.loads(p.stdout) == {"serves": "3", "switched": False}
    assert host.seen["current"] == "3"
    assert host.stamp.read_text() == "x"
    assert [words for words in host.asked if words.startswith(("restart", "stop"))] == []


def test_back_without_anything_good_stops(host: Host) -> None:
    done(host.make(1))
    done(host.run("switch", number=1))
    p = host.run("back", number=1)
    assert json.loads(p.stdout) == {"serves": None, "switched": False}
    assert host.asked[-1] == "stop llama-server.service"
    assert [words for words in host.asked if words.startswith("restart")] == []


def test_the_newest_releases_stay_beside_current_and_last_good(host: Host) -> None:
    for number in range(1, 6):
        host.serve(number, keep=2)
    assert host.names("releases") == ["3", "4", "5"]
    host.serve(3, keep=1)
    assert host.names("releases") == ["3", "4", "5"], "the newest one is nobody's to remove, another run may need it"
    host.serve(6, keep=1)
    assert host.names("releases") == ["5", "6"]
    assert (os.readlink(host.root / "current"), os.readlink(host.root / "last-good")) == ("releases/6", "releases/6")


def test_what_was_never_accepted_takes_no_place(host: Host) -> None:
    host.serve(1)
    for number in (2, 3, 4):
        host.serve(number, accepted=False)
        done(host.run("back", number=number))
    host.serve(5, keep=1)
    assert host.names("releases") == ["1", "5"]


def test_builds_go_with_the_last_release_that_needs_them(host: Host) -> None:
    for number, build in enumerate(("b", "b2", "b2", "b3"), start=1):
        host.serve(number, keep=1, build=host.build(build))
    assert host.names("releases") == ["3", "4"]
    assert host.names("builds") == ["b2", "b3"]
    (host.root / "builds/.partial").mkdir()
    host.serve(5, keep=1, build="b3")
    assert host.names("builds") == [".partial", "b3"], "what is being unpacked is not looked at"
    assert host.seen["numbers"].keys() == {"4", "5"}


def test_a_build_that_was_made_meanwhile_stays(host: Host) -> None:
    """Another run has built, and is about to make a release of it."""
    host.serve(1, accepted=False)
    host.build("other")
    done(host.accept(1, baseline={}))
    assert host.names("builds") == ["b", "other"]
    host.serve(2)
    assert host.names("builds") == ["b"]


def test_folders_that_are_no_releases_are_left_alone(host: Host) -> None:
    for name in ("²", "07", "notes"):
        (host.root / "releases" / name).mkdir(parents=True)
    for number in (1, 2, 3):
        host.serve(number, keep=1)
    assert host.names("releases") == sorted(["2", "3", "²", "07", "notes"])


def test_a_release_that_was_damaged_by_hand_does_not_stop_it(host: Host) -> None:
    host.serve(1)
    (host.root / "releases/1/build").unlink()
    host.serve(2, build=host.build("b2"))
    assert host.names("builds") == ["b2"]


def test_killed_while_it_accepts_and_prunes(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{host.bin}:{os.environ['PATH']}")
    for number in (1, 2, 3):
        host.serve(number, build=host.build(f"b{number}"), accepted=number < 3)
    shutil.copytree(host.root, tmp_path / "before", symlinks=True)
    for step in range(100):
        shutil.rmtree(host.root)
        shutil.copytree(tmp_path / "before", host.root, symlinks=True)
        killed = killed_before(step, host.argument("accept", number=3, baseline={}, keep=1))
        now = host.seen
        assert now["current"] == "3"
        assert now["last-good"] in ("2", "3")
        for number in {"3", now["last-good"]}:
            assert (host.root / f"releases/{number}/build/bin/llama-server").exists()
            assert number in now["numbers"]
        if not killed:
            break
        os.utime(host.root / "releases/3/release.json")  # copied, every build is younger than it
        release.main(host.argument("accept", number=3, baseline={}, keep=1))
        assert host.names("releases") == ["2", "3"]
        assert host.names("builds") == ["b2", "b3"]
        assert host.leftovers() == []
    assert step > 8


def test_a_root_that_is_not_there_is_one_sentence(host: Host) -> None:
    shutil.rmtree(host.root)
    p = host.run("switch", number=1)
    assert p.returncode == 1
    assert p.stderr.count("\n") == 1
    assert str(host.root) in p.stderr


def on_the_way(host: Host, number: int, keep: int = 5) -> None:
    """A stage on the way to what is wanted is made, served and accepted."""
    made = host.release(number)
    done(host.run("make", **{**made, "record": {**made["record"], "final": False}}))
    done(host.run("switch", number=number))
    done(host.run("accept", number=number, baseline={}, keep=keep, on_the_way=True))


def links(host: Host) -> tuple[str, str]:
    return os.readlink(host.root / "current"), os.readlink(host.root / "last-good")


def test_of_a_new_host_each_stage_is_what_the_next_gives_way_to(host: Host) -> None:
    for number in (1, 2):
        on_the_way(host, number)
        assert links(host) == (f"releases/{number}", f"releases/{number}")
    assert host.asked[-1] == "enable --quiet llama-server.service", "also a host that is started now serves the stage"
    host.serve(3, accepted=False)
    done(host.run("back", number=3))
    assert links(host) == ("releases/2", "releases/2")


def test_a_stage_does_not_take_the_place_of_what_served_more(host: Host) -> None:
    host.serve(1)
    for number in (2, 3):
        on_the_way(host, number, keep=1)
        assert links(host) == (f"releases/{number}", "releases/1")
        assert host.seen["numbers"][str(number)]["accepted"], "so the next run begins behind it"
    host.serve(4, accepted=False)
    done(host.run("back", number=4))
    assert links(host) == ("releases/1", "releases/1")
    host.serve(5, keep=1)
    assert links(host) == ("releases/5", "releases/5")


def test_the_last_good_release_is_never_pruned(host: Host) -> None:
    host.serve(1)
    for number in (2, 3, 4):
        on_the_way(host, number, keep=1)
    assert host.names("releases") == ["1", "3", "4"]


def test_stages_take_no_place_of_what_can_be_gone_back_to(host: Host) -> None:
    host.serve(1)
    for number in (2, 3):
        on_the_way(host, number, keep=1)
    host.serve(4, keep=1)
    assert host.names("releases") == ["1", "3", "4"]
    host.serve(5, keep=1)
    assert host.names("releases") == ["3", "4", "5"]


def test_going_back_to_a_stage_by_its_number_makes_it_the_last_good_one(host: Host) -> None:
    on_the_way(host, 1)
    host.serve(2)
    done(host.run("switch", number=1))
    done(host.accept(1))
    assert links(host) == ("releases/1", "releases/1")


def test_what_an_earlier_version_made_was_no_stage_on_the_way(host: Host) -> None:
    host.serve(1)
    assert "final" not in json.loads((host.root / "releases/1/release.json").read_text())
    on_the_way(host, 2)
    assert links(host) == ("releases/2", "releases/1")
    (host.root / "releases/1/release.json").write_text("{")
    on_the_way(host, 3)
    assert links(host) == ("releases/3", "releases/3"), "a damaged one is nothing to go back to"
