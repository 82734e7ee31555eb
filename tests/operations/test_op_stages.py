"""Stages on the way: what a canned host makes of them. Walked for real: tests/lab/test_rollback.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.operations.fake_hosts import Converge, settings
from tests.operations.test_op_plan import REAL
from tests.operations.test_op_release import (
    CURRENT,
    FOUND,
    LOADED,
    MACHINE,
    MODELS,
    ROOT,
    UNIT,
    UNIT_FILE,
    host,
    its_stamps,
    locked,
)
from wsllama.operations import release, server, stages
from wsllama.operations.base import resource
from wsllama.settings import Settings

WIDE: dict[str, Any] = {"host": "0.0.0.0", "api_key": True, "ctx_size": 16384, "threads": 3}
SERVING = {
    "files": {UNIT_FILE.path: {"sha256": "1", "mtime_ns": 1}, "/etc/wsllama/api-key": {"sha256": "2", "mtime_ns": 1}},
    "units": {UNIT: LOADED},
    "stamps": {"/var/lib/wsllama/llama-server.service.started-with": None},
}


def wide(tmp_path: Path) -> Settings:
    """Settings that go through all stages."""
    return settings(model=locked(tmp_path, mmproj=True), server=WIDE)


def seen(*releases: tuple[server.Release, bool], **links: str | None) -> dict[str, Any]:
    """What a probe tells of a host that has these releases, each accepted or not; the last one is current."""
    numbers = {str(n): {"digest": r.digest, "accepted": ok, **r.record} for n, (r, ok) in enumerate(releases, 1)}
    there = {"numbers": numbers, "highest": len(numbers), "current": str(len(numbers)) if numbers else None, "last-good": None}
    now = {**host(models={MODELS: its_stamps()}), **SERVING, "releases": {ROOT: {**there, **links}}}
    now["files"] = {**now["files"], CURRENT: {"mtime_ns": 1}}
    return now


def path(tmp_path: Path) -> list[server.Release]:
    """The release of each stage, in order."""
    wanted, now = wide(tmp_path), seen()
    left = stages.on_the_way(now, wanted)
    assert [stage.name for stage in left] == ["text", "context", "vision"]
    return [*(release.wanted(now, wanted, stage) for stage in left), release.wanted(now, wanted)]


def word(made: server.Release, flag: str) -> str | None:
    return made.words[made.words.index(flag) + 1] if flag in made.words else None


def test_each_stage_is_a_release_that_says_which(tmp_path: Path) -> None:
    made = path(tmp_path)
    assert [(r.record["stage"], r.record["final"]) for r in made] == [
        ("text", False), ("context", False), ("vision", False), ("lan", True),
    ]  # fmt: skip
    projector = "/opt/wsllama/current/mmproj/mmproj-F16.gguf"
    assert [[word(r, flag) for flag in ("--ctx-size", "--mmproj", "--host")] for r in made] == [
        ["8192", None, "127.0.0.1"],
        ["16384", None, "127.0.0.1"],
        ["16384", projector, "127.0.0.1"],
        ["16384", projector, "0.0.0.0"],
    ]
    assert [(r.record["server"]["ctx_size"], r.record["server"]["host"]) for r in made] == [
        (8192, "127.0.0.1"), (16384, "127.0.0.1"), (16384, "127.0.0.1"), (16384, "0.0.0.0"),
    ]  # fmt: skip
    assert ["mmproj" in r.links for r in made] == [False, False, True, True]
    assert [len(server.files_of(r.record["model"])) for r in made] == [1, 1, 2, 2]
    assert ["IPAddressDeny=any" in r.files["unit"] for r in made] == [True, True, True, False]
    assert {word(r, "--threads") for r in made} == {"3"}, "nothing else is another than wanted"
    assert len({r.digest for r in made}) == 4


def test_settings_of_one_stage_are_the_release_that_they_always_were() -> None:
    made = release.wanted(host(), settings(server={"ctx_size": 8192}))
    assert (made.record["stage"], made.record["final"]) == ("text", True)
    assert stages.on_the_way(host(), settings(server={"ctx_size": 8192})) == []


@pytest.mark.parametrize("passed", [1, 2, 3])
def test_the_next_run_begins_behind_what_passed(converge: Converge, tmp_path: Path, passed: int) -> None:
    """Also when the stage behind it was made and not accepted."""
    made = path(tmp_path)
    now = seen(*((r, n <= passed) for n, r in enumerate(made[: passed + 1], 1)), **{"last-good": str(passed)})
    left = [stage.name for stage in stages.on_the_way(now, wide(tmp_path))]
    assert left == ["text", "context", "vision"][passed:]


def test_what_was_accepted_is_not_walked_again(converge: Converge, tmp_path: Path) -> None:
    now = seen((path(tmp_path)[-1], True), **{"last-good": "1"})
    got = converge(stages.walked, wide(tmp_path), seen=now)
    assert (got.commands, got.probes, got.changed, got.failed) == ([], 1, False, False)
    other = settings(model=locked(tmp_path, mmproj=True), server={**WIDE, "threads": 1, "port": 9000})
    assert not converge(stages.walked, other, seen=now).changed


def test_the_first_stage_of_a_new_host(converge: Converge, tmp_path: Path) -> None:
    got = converge(stages.walked, wide(tmp_path), seen=seen())
    assert got.commands[:2] == ["python3 -I -S - # release make", "python3 -I -S - # release switch"]
    assert (got.sent[0]["record"]["stage"], got.sent[0]["number"]) == ("text", 1)
    assert "stage text: 8192 tokens of context, text only, at 127.0.0.1" in got.log


@pytest.fixture
def last_words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said at the end of a run."""
    said: list[str] = []
    monkeypatch.setattr(server, "at_the_end", said.extend)
    return said


def walk(converge: Converge, tmp_path: Path, found: Any, good: str | None = None) -> Any:
    """A host whose first stage is current and isn't accepted yet, as a killed run leaves it."""
    data = {"platform": "linux", "model": locked(tmp_path, mmproj=True), "server": WIDE}
    now = seen((path(tmp_path)[0], False), **{"last-good": good})
    back = json.dumps({"serves": good, "switched": False})
    answers = {"# accept": json.dumps(found), "# release back": back}
    return converge(stages.walked, wide(tmp_path), seen=now, answers=answers, data=data)


def test_a_stage_is_started_asked_and_accepted_before_the_next_is_made(
    converge: Converge, tmp_path: Path, last_words: list[str]
) -> None:
    got = walk(converge, tmp_path, FOUND)
    assert got.commands[:5] == [
        f"python3 -I -S - # {what}" for what in ("release start", "accept wait", "accept", "release accept", "release make")
    ]
    _, _, asked, accepts, makes = got.sent[:5]
    assert (asked["stage"], asked["whole"], asked["url"]) == ("text", True, "http://127.0.0.1:8080")
    assert (accepts["number"], accepts["on_the_way"], accepts["baseline"]) == ("1", True, {"version": "1"})
    assert makes["record"]["stage"] == "context"
    assert "stage text accepted in " in got.log
    assert last_words == [], "how a client connects is said of the last stage"


def test_a_stage_that_is_not_accepted_ends_the_walk(converge: Converge, tmp_path: Path) -> None:
    got = walk(converge, tmp_path, {"ok": False, "error": "it does not answer"}, good="7")
    assert got.failed
    assert [argument.get("action") for argument in got.sent] == ["start", None, None, "back"]
    assert "stage text: release 1 is not accepted: it does not answer; release 7, which another run made" in got.log


def test_the_last_stage_is_accepted_as_what_is_wanted(converge: Converge, tmp_path: Path, last_words: list[str]) -> None:
    made = path(tmp_path)[-1]
    data = {"platform": "linux", "model": locked(tmp_path, mmproj=True), "server": WIDE}
    now = seen((made, False))
    got = converge(server.accepted, seen=now, answers={"# accept": json.dumps(FOUND)}, data=data)
    asked, accepts = got.sent
    assert (asked["stage"], asked["url"], accepts["on_the_way"]) == ("lan", "http://127.0.0.1:8080", False)
    assert any("0.0.0.0" in line or "127.0.0.1" in line for line in last_words)


def test_a_current_release_that_is_not_whole_is_no_news_of_the_server(converge: Converge, tmp_path: Path) -> None:
    now = seen(current="3")
    data = {"platform": "linux", "model": locked(tmp_path, mmproj=True), "server": WIDE}
    got = converge(server.accepted, seen=now, data=data)
    assert got.failed
    assert "the current release is not whole any more" in got.log


def test_each_stage_records_the_figures_of_what_it_serves_itself(converge: Converge) -> None:
    """One plan: the next stage takes it from the record of the one before, with other figures. KV: 20 KiB a token at f16."""
    given, found = settings(plan={"decides": True}), []
    now = host(models={MODELS: {"ab/a.gguf": REAL}}, system={**MACHINE, "memory_total": 48 << 30})

    @resource(release.looks)
    def both(now: Any, settings: Settings) -> Iterator[Any]:
        """Nothing is changed."""
        (stage,) = stages.on_the_way(now, settings)
        text = release.wanted(now, settings, stage)
        numbers = {"1": {"digest": text.digest, "accepted": True, **text.record}}
        now = {**now, "releases": {ROOT: {"numbers": numbers, "highest": 1, "current": "1", "last-good": "1"}}}
        found.extend([text.record, release.wanted(now, settings).record])
        yield from ()

    assert not converge(both, given, seen=now).failed
    text, last = found
    assert (text["stage"], last["stage"], last["final"]) == ("text", "context", True)
    assert (text["server"]["ctx_size"], last["server"]["ctx_size"]) == (8192, 16384)
    assert [of["plan"]["memory"]["ram"]["kv"] for of in found] == [8192 * 20 << 10, 16384 * 20 << 10]
    assert text["plan"]["key"] == last["plan"]["key"]
    assert {**text["server"], "ctx_size": 0} == {**last["server"], "ctx_size": 0}


def test_without_a_build_it_is_not_known_yet(converge: Converge, tmp_path: Path) -> None:
    got = converge(stages.walked, wide(tmp_path), seen={**seen(), "builds": {"/opt/wsllama/builds": {}}})
    assert got.failed
    assert "is not there yet" in got.log
