"""Who of several canned hosts builds, and what the others make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from pyinfra.context import ctx_host

from tests.operations.fake_hosts import PROBE, Converge, Outcome, settings
from tests.operations.test_op_base import Fleet
from tests.operations.test_op_release import BUILDS, MACHINE, MODELS, build_id, host
from tests.unit.test_artifacts import bring
from wsllama import artifacts, transfer
from wsllama.domain import build as rules
from wsllama.operations import llama_cpp, preflight
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


def fleet(root_at: str | None = None, **seen: dict[str, Any]) -> tuple[Fleet, dict[str, list[Any]]]:
    """Hosts that lack their build, detected; Fleet.run executes. root_at: the one that is root by sudo."""
    found = Fleet({name: json.dumps({**LACKS, **more}) for name, more in seen.items()})
    if root_at:
        found.hosts[root_at].data._sudo = True
    ops = (llama_cpp.announce, llama_cpp.build, llama_cpp.receive)
    return found, found.deploy([(op, (WANTED,)) for op in ops])


def test_each_kind_builds_for_itself() -> None:
    other_cpu = {"system": {**MACHINE, "cpu": {"model": "", "flags": ["avx512f"]}}}
    found, _ = fleet(a={}, b=other_cpu, c={}, d=other_cpu)
    found.run()
    assert {name: FOLLOW in found.commands(name) for name in "abcd"} == {"a": True, "b": True, "c": False, "d": False}


HAS = {"builds": {BUILDS: {NAME: {"commit": "", "version": "", "made": [1, 2]}}}}


def test_who_has_the_build_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def fetch(host: Any, build_id: str, out: BinaryIO, *, say: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append((host.name, arguments))
        if host.name == "@fake/c":
            raise transfer.TransferError("it has lost a file")
        given: dict[str, Any] = bring(build_id=build_id)(out)
        return given

    monkeypatch.setattr(transfer, "fetch_build", fetch)  # a fake host has no channel to send one over
    found, _ = fleet(root_at="d", a={}, b={}, c=HAS, d=HAS, e=HAS)
    found.run()
    assert [name for name, _ in asked] == ["@fake/c", "@fake/d"], "once, by name, until one of them could"
    assert [arguments["_sudo"] for _, arguments in asked] == [False, True], "as that host's data say, not as the other's"
    assert not any(FOLLOW in found.commands(name) for name in "abcde")
    assert artifacts.known(NAME)


def test_who_has_the_build_but_cannot_give_it_is_built_for(converge: Converge) -> None:
    """Their connector can send nothing."""
    found, _ = fleet(a={}, b={}, c=HAS)
    found.run()
    assert [name for name in "abc" if FOLLOW in found.commands(name)] == ["a"]


def test_who_has_the_build_is_asked_for_it_only_when_somebody_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "fetch_build", None)
    found, _ = fleet(a=HAS, b=HAS)
    found.run()
    assert [found.commands(name) for name in "ab"] == [[PROBE, PROBE]] * 2, "one look in the detection, one when it is run"


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


def test_room_and_source_are_asked_for_only_where_a_build_may_be_made(converge: Converge, tmp_path: Path) -> None:
    gone = {"llama_cpp": {"source": "archive", "archive": str(tmp_path / "gone.tar.gz"), "archive_sha256": "ab" * 32}}
    name, free = build_id(host(), **gone), 10**9
    seen = host(builds={BUILDS: {}}, disk={"/opt/wsllama": free, "/var/cache/wsllama": 0, MODELS: free})
    got = converge(preflight.ready, settings(**gone), seen=seen)
    assert got.failed
    assert "no disk space for /var/cache/wsllama: 1.5 GB and 0.5 GB of room are needed, 0.0 GB are free" in got.log
    assert "gone.tar.gz" in got.log
    artifacts.keep(name, bring(build_id=name))
    got = converge(preflight.ready, settings(**gone), seen=seen)
    assert (got.commands, got.failed) == ([], False), got.log
    got = converge(preflight.ready, settings(**gone), seen={**seen, "disk": {**seen["disk"], "/opt/wsllama": 599_999_999}})
    assert "no disk space for /opt/wsllama: 0.1 GB" in got.log
    got = converge(preflight.ready, settings(**gone), seen={**seen, "packages": {**seen["packages"], "cmake": None}})
    assert "gone.tar.gz" in got.log, "which build it will be isn't known before the toolchain is there"


def test_a_host_that_builds_is_told_the_room_that_preflight_asked_for(converge: Converge) -> None:
    (task,) = of(converge, A).sent
    assert task["argument"]["work_bytes"] == llama_cpp.space(LACKS, WANTED)["/var/cache/wsllama"] == rules.WORK_BYTES


def test_one_run_knows_nothing_of_another() -> None:
    first, _ = fleet(a={})
    first.run()
    second, _ = fleet(b={})
    second.run()
    assert FOLLOW in second.commands("b"), "the builder of the run before isn't waited for"
