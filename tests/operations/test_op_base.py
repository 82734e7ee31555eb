"""What all our operations share: one question, a detection that changes nothing, failures that stay with their host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyinfra.api import Config, Inventory, State
from pyinfra.api.connect import connect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.operation import add_op
from pyinfra.api.operations import run_ops
from pyinfra.context import ctx_host, ctx_inventory, ctx_state

from tests.operations.fake_hosts import PROBE, Converge
from wsllama.facts import probe
from wsllama.operations import files
from wsllama.operations.base import Later, deferred_detection, resource
from wsllama.operations.files import File

FILE = {"kind": "file", "mode": "644", "user": "root", "group": "root", "sha256": File("/x", "hello\n").sha256}
HELLO = [File("/x", "hello\n")]


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("sudo: a password is required", "sudo asks for a password here, and there is no terminal to ask for it"),
        ("sudo: a terminal is required to read the password; either use ...", "sudo asks for a password here"),
        ("Sorry, try again.\nSorry, try again.\nsudo: 3 incorrect password attempts", "sudo did not take the password: give"),
        ("sudo: 1 incorrect password attempt", "sudo did not take the password: give the right one of this user"),
        ("sudo-rs: maximum 3 incorrect authentication attempts", "sudo did not take the password: give the right one"),
        ("me is not in the sudoers file.", "this user may not use sudo here: log in as root or as a user with sudo rights"),
        ("Sorry, user me is not allowed to execute '/bin/sh' as root on desk-1.", "may not use sudo here"),
        ("Sorry, user me may not run sudo on desk-1.", "may not use sudo here"),
        ("sh: 1: sudo: not found", "there is no sudo on the host: log in as root, with _sudo = False"),
        ("bash: line 1: sudo: command not found", "there is no sudo on the host: log in as root, with _sudo = False"),
        ("sh: 1: python3: not found", "there is no python3 on the host: run `apt-get install python3` there"),
        ("bash: line 1: python3: command not found", "there is no python3 on the host"),
        ("boom", "the host can't be looked at: boom"),
        ("", "the host can't be looked at: no answer"),
    ],
)
def test_a_host_that_cannot_be_looked_at_fails_in_words(converge: Converge, stderr: str, said: str) -> None:
    got = converge(files.files, HELLO, answers={PROBE: {"success": False, "stderr": stderr}})
    assert got.failed
    assert got.commands == []
    assert said in got.log
    assert "Traceback" not in got.log


def test_a_probe_that_says_nothing_fails_too(converge: Converge) -> None:
    got = converge(files.files, HELLO, answers={PROBE: ""})
    assert got.failed
    assert "the host can't be looked at: no answer" in got.log


def test_a_setting_that_the_operation_does_not_have() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        files.files(HELLO, nonsense=1)


def test_a_program_that_fails_fails_the_operation_with_its_words(converge: Converge) -> None:
    said = {"success": False, "stderr": "/x can't be written: Read-only file system"}
    got = converge(files.files, HELLO, seen={"files": {"/x": None}}, answers={"# apply": said})
    assert got.failed
    assert "/x can't be written: Read-only file system" in got.log


@resource(lambda kind: {"stamps": {"/stamp": None}})
def odd(now: Any, kind: str) -> Iterator[Any]:
    """An operation that does what ours must survive."""
    if kind == "later":
        raise Later("the toolchain is not installed yet")
    if kind == "bug":
        raise KeyError("missing")
    yield "true"


@pytest.mark.parametrize(("kind", "said"), [("later", "the toolchain is not installed yet"), ("bug", "KeyError: 'missing'")])
def test_what_is_raised_fails_the_host_when_executing(converge: Converge, kind: str, said: str) -> None:
    got = converge(odd, kind, seen={"stamps": {"/stamp": None}})
    assert got.failed
    assert said in got.log
    assert "Traceback" not in got.log


class Fleet:
    """Several @fake hosts at once, each with its own answer of the probe; the phases of pyinfra one by one."""

    def __init__(self, seen: dict[str, Any]) -> None:
        quick = {"fake_delay": 0, "fake_delay_jitter": 0}
        hosts = [(f"@fake/{name}", {**quick, "fake_responses": {PROBE: answer}}) for name, answer in seen.items()]
        self.state = State(Inventory((hosts, {})), Config(), check_for_changes=True)
        self.hosts = {name: self.state.inventory.get_host(f"@fake/{name}") for name in seen}

    def deploy(self, calls: list[tuple[Any, tuple[Any, ...]]]) -> dict[str, list[Any]]:
        """Register all, then detect, as deploy.py does; then run. Returns the metas of each host, and will_change before."""
        metas: dict[str, list[Any]] = {name: [] for name in self.hosts}
        with ctx_state.use(self.state), ctx_inventory.use(self.state.inventory):
            connect_all(self.state)
            for name, host in self.hosts.items():
                with ctx_host.use(host), deferred_detection():
                    metas[name] = [add_op(self.state, op, *args, host=[host])[host] for op, args in calls]
        return metas

    def run(self) -> None:
        with ctx_state.use(self.state), ctx_inventory.use(self.state.inventory):
            try:
                run_ops(self.state)
            except PyinfraError:
                assert not self.state.active_hosts

    def commands(self, name: str) -> list[str]:
        return list(self.hosts[name].connector.executed_commands)


def test_one_question_for_all_operations_of_a_phase() -> None:
    seen = {"files": {"/x": FILE, "/y": FILE, "/d": {**FILE, "kind": "directory", "mode": "755"}}}
    fleet = Fleet({"a": json.dumps(seen)})
    calls = [(files.files, (HELLO,)), (files.files, ([File("/y", "hello\n")],)), (files.directories, ({"/d": {}},))]
    metas = fleet.deploy(calls)
    assert [m.will_change for m in metas["a"]] == [False, False, False]
    assert fleet.commands("a") == [PROBE], "the detection asks once"
    fleet.run()
    assert fleet.commands("a") == [PROBE, PROBE], "what was seen before a person pressed enter is too old to act on"


def test_detection_finds_changes_and_makes_none() -> None:
    fleet = Fleet({"a": json.dumps({"files": {"/x": None}, "stamps": {"/stamp": None}})})
    metas = fleet.deploy([(files.files, (HELLO,)), (odd, ("later",))])
    assert [m.will_change for m in metas["a"]] == [True, True], "what can't be known yet counts as a change"
    assert fleet.commands("a") == [PROBE]


def test_a_change_is_followed_by_a_new_question() -> None:
    fleet = Fleet({"a": json.dumps({"files": {"/x": None, "/y": FILE}})})
    fleet.deploy([(files.files, (HELLO,)), (files.files, ([File("/y", "hello\n")],))])
    fleet.run()
    assert fleet.commands("a") == [PROBE, PROBE, "python3 -I -S - # apply /x", PROBE]


def test_one_broken_host_fails_alone() -> None:
    good, broken = json.dumps({"files": {"/x": None}}), json.dumps({"files": {"/x": {"no": "kind"}}})
    fleet = Fleet({"a": "not JSON", "b": good, "c": broken[:20]})
    fleet.deploy([(files.files, (HELLO,))])
    fleet.run()
    assert {h.name for h in fleet.state.failed_hosts} == {"@fake/a", "@fake/c"}
    assert "python3 -I -S - # apply /x" in fleet.commands("b")


def test_who_only_asks_whether_a_file_is_there_takes_no_hint_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hint the probe sends a file's text, which a --diff needs."""
    memo = probe.Memo()
    monkeypatch.setattr(probe, "memo", lambda: memo)
    probe.register({"files": {"/unit": "its text"}})
    probe.register({"files": {"/unit": None, "/other": None}})
    assert memo.wanted == {"files": {"/unit": "its text", "/other": None}}
