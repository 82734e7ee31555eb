"""A fleet's rollout: order, what became of hosts, exit codes, and a report that can be gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsllama import rollout
from wsllama.domain import rollout as rules
from wsllama.settings import parse

NAMES = [f"desk-{n}" for n in range(1, 9)]
STATES = st.lists(st.sampled_from(get_args(rules.State)), max_size=12)


@pytest.mark.parametrize(
    ("canary", "batch", "expected"),
    [
        (None, 4, [1, 4, 3]),
        ("2", 3, [2, 3, 3]),
        ("0", 8, [0, 8]),
        ("99", 1, [8]),
        ("desk-5", 8, [1, 7]),
    ],
)
def test_canaries_come_first_and_then_batches(canary: str | None, batch: int, expected: list[int]) -> None:
    canaries, batches = rules.batches(NAMES, canary, batch)
    assert [len(part) for part in (canaries, *batches)] == expected
    assert next(name for part in (canaries, *batches) for name in part) == ("desk-5" if canary == "desk-5" else "desk-1")


@given(st.lists(st.text(min_size=1), unique=True, max_size=20), st.integers(0, 25), st.integers(1, 25))
def test_every_host_comes_once(names: list[str], canaries: int, batch: int) -> None:
    first, found = rules.batches(names, f"{canaries}", batch)
    assert sorted(name for part in (first, *found) for name in part) == sorted(names)
    assert all(0 < len(part) <= batch for part in found)


def test_once_a_canary_has_the_release_the_rest_needs_none() -> None:
    began = {"desk-1": "canary", "desk-2": "batch 1 of 2"}
    states: dict[str, rules.State] = {"desk-1": "done", "desk-2": "failed", "desk-3": "waiting"}
    assert rules.canary_of_the_rest("desk-1", began, states) == "0"
    assert rules.canary_of_the_rest("desk-1", began, {**states, "desk-1": "failed"}) == "desk-1"
    assert rules.canary_of_the_rest(None, {}, {**states, "desk-1": "offline"}) is None


def test_a_canary_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"^--canary desk-9: no host that can be reached has this name; give one of them"):
        rules.batches(NAMES, "desk-9", 1)
    with pytest.raises(ValueError, match="at least one host"):
        rules.batches(NAMES, None, 0)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["done", "unchanged"], 0),
        (["done", "offline"], 4),
        (["offline", "failed"], 1),
        (["done", "waiting"], 1),
        (["done", "rolled_back"], 1),
        (["vanished"], 1),
        (["running"], 1),
    ],
)
def test_exit_codes(states: list[rules.State], code: int) -> None:
    assert rules.exit_code(states) == code


@given(STATES)
def test_zero_only_when_every_host_has_it(states: list[rules.State]) -> None:
    assert (rules.exit_code(states) == 0) == (set(states) <= {"done", "unchanged"})
    assert (rules.left({str(n): state for n, state in enumerate(states)}) == []) == (rules.exit_code(states) == 0)


def batch_of(document: dict[str, Any] | None, *said: str) -> rollout.Batch:
    batch = rollout.Batch("inventory", ["desk-1", "desk-2"], lambda line: None)
    batch.results = document
    batch._hear(SimpleNamespace(stderr=[f"    {line}\n" for line in said]))  # type: ignore[arg-type]
    return batch


def operation(**hosts: list[str]) -> dict[str, Any]:
    return {"success": [], "error": [], "no_change": [], **hosts}


def test_what_pyinfra_says_of_a_host() -> None:
    operations = [operation(no_change=["desk-1", "desk-2"]), operation(success=["desk-1"], error=["desk-2"])]
    batch = batch_of({"operations": operations, "failed_hosts": []}, "[desk-2] port 22 is taken", "[desk-2] Error")
    assert [batch.succeeded(name) for name in ("desk-1", "desk-2", "desk-3")] == [True, False, False]
    assert [batch.changes(name) for name in ("desk-1", "desk-2")] == [1, 0]
    assert batch.reason("desk-2") == "port 22 is taken"


def test_a_host_that_failed_to_connect_is_no_silent_success() -> None:
    """With `-y --json` pyinfra prints nothing when no host remains; one that took part in nothing has not succeeded either."""
    batch = batch_of(None, "[desk-1]   Could not connect ([Errno None] Unable to connect to port 9 on 127.0.0.1)")
    assert (batch.succeeded("desk-1"), batch.changes("desk-1")) == (False, 0)
    assert batch.reason("desk-1").startswith("Could not connect")
    assert batch_of({"operations": [operation(no_change=["desk-2"])], "failed_hosts": []}).succeeded("desk-1") is False


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    settings, errors = parse({"model": {"path": str(tmp_path / "m.gguf")}})
    assert settings, errors
    monkeypatch.setattr(
        rollout, "settings_of", lambda host: settings if not host.other else settings.model_copy(update={"keep_releases": 9})
    )
    monkeypatch.setattr(rollout, "LOCK", tmp_path / "lock")
    (tmp_path / "lock").write_text("{}")
    return [SimpleNamespace(name=name, other=False) for name in NAMES[:2]]


def test_a_report_is_gone_on_with(tmp_path: Path, hosts: list[Any]) -> None:
    path = tmp_path / "rollouts" / "r.json"
    report = rollout.Report.begun(path, hosts, {"batch": 2})
    report.set("desk-1", state="done", after="2")
    document = json.loads(path.read_text())
    assert (document["exit_code"], document["left"]) == (1, ["desk-2"])
    assert [p.name for p in path.parent.iterdir()] == ["r.json"], "nothing aside is left"
    again = rollout.Report.resumed(path)
    again.fits(hosts)
    assert again.options == {"batch": 2}
    assert again.states == {"desk-1": "done", "desk-2": "waiting"}
    again.set("desk-2", state="unchanged", pending=["wsl --shutdown"])
    assert json.loads(path.read_text())["exit_code"] == 5


def test_the_log_of_a_server_is_not_the_reason() -> None:
    """Its last lines stand behind the sentence, further in: as the acceptance of a host of the lab says it."""
    why = "release 2 is not accepted: llama-server.service ended while it was starting (exit-code); release 1 serves again"
    log = "    0.02.545.020 E srv  start: failed", "    Failed to start llama-server.service - Qwen3.6-35B-A3B on llama.cpp."
    said = (f"[desk-1] {text}" for text in (why, *log, "Error: executed 1 commands"))
    assert batch_of(None, *said).reason("desk-1") == why


def test_another_lock_or_another_setting_is_another_rollout(tmp_path: Path, hosts: list[Any]) -> None:
    report = rollout.Report.begun(tmp_path / "r.json", hosts, {})
    report.fits(hosts)
    with pytest.raises(rollout.RolloutError, match="begin a new rollout"):
        report.fits(hosts[:1])
    hosts[0].other = True
    with pytest.raises(rollout.RolloutError, match=r"wsllama\.lock, a model's file or the hosts' settings or names have changed"):
        report.fits(hosts)
    hosts[0].other = False
    (tmp_path / "lock").write_text('{"a": 1}')
    with pytest.raises(rollout.RolloutError, match="begin a new rollout"):
        report.fits(hosts)


def test_another_file_at_the_models_path_is_another_rollout(tmp_path: Path, hosts: list[Any]) -> None:
    """Those that were offline would get another model than those that have it, with the same settings."""
    report = rollout.Report.begun(tmp_path / "r.json", hosts, {})
    (tmp_path / "m.gguf").write_bytes(b"another model")
    with pytest.raises(rollout.RolloutError, match="a model's file"):
        report.fits(hosts)


def test_a_report_that_can_not_be_written_is_said_so(tmp_path: Path, hosts: list[Any]) -> None:
    (tmp_path / "file").write_text("")
    report = rollout.Report.begun(tmp_path / "file" / "r.json", hosts, {})
    with pytest.raises(rollout.RolloutError, match=r"file/r\.json can't be written: .*: give --report another place"):
        report.save()


def canary(tmp_path: Path, hosts: list[Any], found: Any, before: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What the report says of a canary that is measured after its deploy, and what was said."""
    report, said = rollout.Report.begun(tmp_path / "r.json", hosts, {}), list[str]()
    report.document["hosts"]["desk-1"]["bench_before"] = before
    run = rollout.Rollout(
        "inventory",
        report,
        0,
        False,
        lambda names: cast(Any, None),
        lambda fleet, host: found,
        lambda a, b: ["slow"],
        said.append,
    )
    return run._slower(cast(Any, None), hosts[0]), said


def test_a_canary_that_could_not_be_measured_is_said_in_the_report(tmp_path: Path, hosts: list[Any]) -> None:
    known, said = canary(tmp_path, hosts, "the server is answering somebody now", {"disturbed": ""})
    assert known == {"not_measured": "the server is answering somebody now"}
    assert said == ["    desk-1 was not measured: the server is answering somebody now"]


def test_a_measurement_that_others_disturbed_fails_no_canary(tmp_path: Path, hosts: list[Any]) -> None:
    slow = {"disturbed": ""}
    assert canary(tmp_path, hosts, slow, slow)[0]["state"] == "failed"
    others = {"disturbed": "the server generated 9 tokens for others meanwhile"}
    for before, after in ((slow, others), (others, slow)):
        known, said = canary(tmp_path, hosts, after, before)
        assert known == {"bench_after": after, "not_measured": others["disturbed"]}
        assert said == [f"    desk-1: its speed is not judged: {others['disturbed']}"]


def test_a_host_that_served_nothing_before_keeps_what_it_has_and_is_named(tmp_path: Path, hosts: list[Any]) -> None:
    report, said = rollout.Report.begun(tmp_path / "r.json", hosts, {}), list[str]()
    report.document["hosts"] = {"desk-1": {"state": "done", "before": None, "after": "1"}, "desk-2": {"state": "failed"}}
    nobody = cast(Any, None)
    rollout.Rollout("inventory", report, 0, True, lambda names: nobody, nobody, nobody, said.append)._back()
    assert said == ["served nothing before, and keep what they have: desk-1"]
    assert report.states["desk-1"] == "done"


ODD = '{"format": 1, "digest": "", "options": {}, "hosts": {"desk-1": {"state": "odd"}}}'


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "hosts": {}}', ODD, ODD.replace("1", "2").replace("odd", "done")]
)
def test_what_is_no_report(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(rollout.RolloutError, match=r"r\.json (is no report|was written by another version)"):
        rollout.Report.resumed(tmp_path / "r.json")
