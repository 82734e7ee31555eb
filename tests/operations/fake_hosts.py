"""Our operations through pyinfra's real API: on @fake hosts, whose probe gives a canned answer, and on @local."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from pyinfra.api import Config, Inventory, State
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.operation import add_op
from pyinfra.api.operations import run_ops
from pyinfra.connectors.fake import FakeConnector
from pyinfra.context import ctx_host, ctx_inventory, ctx_state

from wsllama.guard import Callbacks
from wsllama.settings import Settings, merge, parse

PROBE = "python3 -I -S - # probe"


def settings(**data: Any) -> Settings:
    """Settings of a Linux host that has its model already and plans nothing, with these over them."""
    base = {"platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}, "plan": {"decides": False}}
    found, wrong = parse(merge([base, data]))
    assert found is not None, wrong
    return found


@dataclass
class Outcome:
    """What came of one operation on one host."""

    changed: bool
    failed: bool
    commands: list[str]  # all but the probe's
    probes: int
    sent: list[Any]  # what each of our programs but the probe got as its argument
    log: str


Converge = Callable[..., Outcome]


@pytest.fixture
def converge(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Converge:
    """Run an operation on hosts and say what came of it on the first one."""
    sent: list[tuple[str, Any]] = []
    stock = FakeConnector.run_shell_command

    def recording(self: Any, command: Any, *args: Any, **more: Any) -> Any:
        argument = re.search(r"^main\(json\.loads\((.*)\)\)$", more.get("_stdin") or "", re.M)
        if argument and PROBE not in str(command):
            sent.append((self.host.name, json.loads(json.loads(argument[1]))))
        return stock(self, command, *args, **more)

    caplog.set_level("INFO", "pyinfra")
    monkeypatch.setattr(FakeConnector, "run_shell_command", recording)

    def run(
        op: Callable[..., Any],
        *args: Any,
        seen: Mapping[str, Any] | None = None,
        answers: Mapping[str, Any] | None = None,
        hosts: tuple[str, ...] = ("@fake/a",),
        data: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Outcome:
        """+ seen: what the probe finds; answers: of other commands, by a part of them; data: of the hosts"""
        known = {PROBE: json.dumps(seen), **(answers or {})}
        state = State(
            Inventory((list(hosts), {"fake_delay": 0, "fake_delay_jitter": 0, "fake_responses": known, **(data or {})})),
            Config(),
            check_for_changes=False,
        )
        state.add_callback_handler(Callbacks())
        sent.clear()
        caplog.clear()
        with ctx_state.use(state), ctx_inventory.use(state.inventory):
            connect_all(state)
            host = next(iter(state.inventory))
            with ctx_host.use(host):
                meta = add_op(state, op, *args, **more)[host]
            try:
                run_ops(state)
            except PyinfraError:
                assert all(h not in state.active_hosts for h in state.inventory), "only when no host is left"
            commands = getattr(host.connector, "executed_commands", [])
            outcome = Outcome(
                changed=meta.did_change(),
                failed=meta.did_error(),
                commands=[c for c in commands if not c.startswith(PROBE)],
                probes=sum(c.startswith(PROBE) for c in commands),
                sent=[argument for name, argument in sent if name == host.name],
                log=caplog.text + capfd.readouterr().err,
            )
            disconnect_all(state)
        return outcome

    return run
