"""Who of several canned hosts builds, and what the others make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyinfra.context import ctx_host

from tests.operations.fake_hosts import Converge, Outcome, settings
from tests.operations.test_op_base import Fleet
from tests.operations.test_op_release import BUILDS, MACHINE, build_id, host
from tests.unit.test_artifacts import bring
from wsllama import artifacts
from wsllama.operations import llama_cpp
from wsllama.settings import Settings

GIT = {"llama_cpp": {"source": "git"}}
WANTED = settings(**GIT)
NAME = build_id(host(), **GIT)
FOLLOW = "python3 -I -S - # follow wsllama-build"
LACKS = host(builds={BUILDS: {}})
A, B = "@fake/a", "@fake/b"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def stage_of(wanted: Settings) -> Callable[[], Any]:
    """All three, as tasks/llama_cpp.py has them; the last one's outcome counts."""

    def stage() -> Any:
        llama_cpp.announce(wanted)
        llama_cpp.build(wanted)
        return llama_cpp.receive(wanted)

    return stage


def of(converge: Converge, first: str, *others: str, **more: Any) -> Outcome:
    """What comes of the first host, when these lack the build."""
    return converge(stage_of(WANTED), hosts=(first, *others), seen=LACKS, **more)


def test_the_first_by_name_builds_and_the_others_wait_for_it(converge: Converge) -> None:
    built = of(converge, A, B)
    assert built.commands == [FOLLOW]
    waited = of(converge, B, A)
    assert waited.commands == []
    assert waited.failed
    # the fake host's build is said to be made, but nothing can be fetched from it
    assert f"[{B}] build {NAME} was made on {A} but is not here: files can't be sent to {A} over FakeConnector" in waited.log


def test_a_builder_that_fails_is_named(converge: Converge) -> None:
    answers = {"# follow": {"success": False, "stderr": "cannot build llama.cpp: no luck"}}
    waited = of(converge, B, A, answers=answers)
    assert waited.failed
    assert waited.commands == []
    assert f"[{B}] build {NAME} failed on {A}: see there" in waited.log


def test_a_build_that_is_here_is_not_made(converge: Converge) -> None:
    artifacts.keep(NAME, bring(build_id=NAME))
    for first, other in ((A, B), (B, A)):
        got = of(converge, first, other)
        assert got.commands == []
        assert f"[{first}] build {NAME} comes from this machine" in got.log
        assert f"[{first}] files can't be sent to {first}" in got.log


def test_a_damaged_one_is_removed_and_made_again(converge: Converge) -> None:
    kept = artifacts.keep(NAME, bring(build_id=NAME))
    kept.path.write_bytes(b"an archivE")
    got = of(converge, A, B)
    assert got.commands == [FOLLOW]
    assert f"[{A}] {kept.path} has sha256 " in got.log
    assert "so it was removed; it is built again" in got.log
    assert not kept.path.exists()


def fleet(**seen: dict[str, Any]) -> tuple[Fleet, dict[str, list[Any]]]:
    """Hosts that lack their build, detected; Fleet.run executes."""
    found = Fleet({name: json.dumps({**LACKS, **more}) for name, more in seen.items()})
    ops = (llama_cpp.announce, llama_cpp.build, llama_cpp.receive)
    return found, found.deploy([(op, (WANTED,)) for op in ops])


def test_each_kind_builds_for_itself() -> None:
    other_cpu = {"system": {**MACHINE, "cpu": {"model": "", "flags": ["avx512f"]}}}
    found, _ = fleet(a={}, b=other_cpu, c={}, d=other_cpu)
    found.run()
    assert {name: FOLLOW in found.commands(name) for name in "abcd"} == {"a": True, "b": True, "c": False, "d": False}


def test_the_detection_counts_one_change_and_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found, metas = fleet(a={}, b={"builds": {BUILDS: {NAME: {"commit": "", "version": "", "made": [1, 2]}}}})
    assert [meta.will_change for meta in metas["a"]] == [False, True, False]
    assert [meta.will_change for meta in metas["b"]] == [False, False, False]
    with ctx_host.use(found.hosts["a"]):
        assert not llama_cpp.lacking().hosts  # what is registered in a detection could be gone when it is executed
    artifacts.keep(NAME, bring(build_id=NAME))
    found, metas = fleet(a={})
    assert [meta.will_change for meta in metas["a"]] == [False, False, True]
    assert len(found.commands("a")) == 1, "it asks once, for all three"


def test_one_run_knows_nothing_of_another() -> None:
    first, _ = fleet(a={})
    first.run()
    second, _ = fleet(b={})
    second.run()
    assert FOLLOW in second.commands("b"), "the builder of the run before isn't waited for"
