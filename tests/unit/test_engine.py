"""Each private name of pyinfra that we use, one test a name: what an upgrade drops or changes is named by the test that fails."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import click
import pytest
from pyinfra.api import Config, Inventory, State
from pyinfra.api.connect import connect_all
from pyinfra.api.operation import add_op, operation

from wsllama import engine


@pytest.fixture
def state() -> State:
    quick = {"fake_delay": 0, "fake_delay_jitter": 0}
    state = State(Inventory((["@fake/a"], quick), web=(["@fake/a"], {"from": "web"})), Config(), check_for_changes=False)
    connect_all(state)
    return state


@operation()  # type: ignore[untyped-decorator]
def shell() -> Any:
    """A stock operation."""
    yield "true"


def test_cli_connect_all_stands_between_inventory_and_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyinfra_cli.cli as cli

    calls: list[Any] = []
    monkeypatch.setattr(cli, "connect_all", lambda state: calls.append(("stock", state)))
    engine.wrap_connect(lambda state, stock: (calls.append("ours"), stock(state))[0])  # type: ignore[func-returns-value]
    cli.connect_all("the state")
    assert calls == ["ours", ("stock", "the state")]
    source = inspect.getsource(cli._main)
    assert source.index("make_inventory(") < source.index("state.init(") < source.index("    connect_all(state)")


def test_cli_make_inventory_is_what_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyinfra_cli.cli as cli

    monkeypatch.setattr(cli, "make_inventory", lambda name, cwd: (name, cwd))
    engine.wrap_inventory(lambda stock: ("ours", stock()))
    assert cli.make_inventory("inventory", cwd="/") == ("ours", ("inventory", "/"))
    assert "inventory = make_inventory(" in inspect.getsource(cli._main)


@pytest.mark.parametrize(
    "name", ["inventory", "operations", "limit", "exclude", "yes", "dry", "json_output", "no_wait", "fail_percent"]
)
def test_cli_options_that_the_guard_reads(name: str) -> None:
    import pyinfra_cli.cli as cli

    assert name in {p.name for p in cli.cli.params}


def test_command_line_is_clicks() -> None:
    with click.Context(click.Command("x")) as context:
        context.params["dry"] = True
        assert engine.command_line() == {"dry": True}


def test_state_should_raise_failed_hosts(state: State) -> None:
    assert "should_raise_failed_hosts" in inspect.getsource(State.fail_hosts)
    engine.never_ask(state, 50)
    assert state.should_raise_failed_hosts is None
    assert state.config.FAIL_PERCENT == 50


def test_state_pool_kill(state: State) -> None:
    import gevent

    running = state.pool.spawn(gevent.sleep, 60)
    engine.stop(state)
    gevent.sleep(0)
    assert running.dead


def test_meta_hash_is_what_callbacks_get(state: State) -> None:
    host = state.inventory.get_host("@fake/a")
    meta = add_op(state, shell)[host]
    assert engine.operation_hash(meta) in state.ops[host]


def test_state_check_for_changes_is_held_back_and_caught_up(state: State) -> None:
    from pyinfra.context import ctx_host, ctx_state

    state.check_for_changes = True
    host = state.inventory.get_host("@fake/a")
    with ctx_state.use(state), ctx_host.use(host):
        assert engine.hold_detection(state) is True
        meta = add_op(state, shell)[host]
        assert meta._maybe_is_change is None, "nothing was looked at while it was registered"
        engine.detect(state, host)
        assert meta._maybe_is_change is True
        assert engine.hold_detection(state) is True, "a second deploy file of the same run is looked at, too"


def test_under_yes_nothing_is_detected(state: State) -> None:
    assert engine.hold_detection(state) is False


def test_an_operations_inner_generator() -> None:
    from pyinfra.operations import apt, server

    for op in (apt.update, apt.packages, server.group, server.user):
        assert inspect.isgeneratorfunction(op._inner)


def test_operations_are_numbered_as_stock_numbers_them(monkeypatch: pytest.MonkeyPatch, state: State, tmp_path: Path) -> None:
    """By the lines below the deploy file; and arguments are those that stock knows."""
    from pyinfra.api import arguments, util

    for module, name in ((util, "stack"), (util, "getframeinfo"), (arguments, "all_global_arguments")):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    deploy = tmp_path / "deploy.py"
    text = "def task():\n    return order(state)\n\n\nfor _ in range(2):\n    found.append((\n        task()))\n    lighten()\n"
    deploy.write_text(text)
    monkeypatch.setattr(state, "current_deploy_filename", str(deploy))
    found: list[Any] = []
    known = arguments.all_global_arguments()
    given = {"order": util.get_operation_order_from_stack, "state": state, "found": found, "lighten": engine.lighten}
    exec(compile(text, str(deploy), "exec"), given)
    assert found[0] == found[1]
    assert found[0][-2:] == [7, 2], "lines of the deploy file and of its task"
    assert util.stack is not inspect.stack
    assert arguments.all_global_arguments() == known
    assert arguments.all_global_arguments() is arguments.all_global_arguments(), "resolved once"


def test_pop_global_arguments(state: State) -> None:
    from pyinfra.context import ctx_host, ctx_state

    host = state.inventory.get_host("@fake/a")
    with ctx_state.use(state), ctx_host.use(host):
        assert engine.global_arguments(state, host)["_sudo"] is False


def test_make_inventory_as_the_command_reads_it(tmp_path: Path) -> None:
    (tmp_path / "group_data").mkdir()
    (tmp_path / "group_data" / "all.py").write_text('level = "all"\nonly_all = 1\n')
    (tmp_path / "group_data" / "desks.py").write_text('level = "group"\nonly_group = 1\n')
    (tmp_path / "inventory").write_text('desks = [("@fake/a", {"level": "host", "only_host": 1}), "@fake/b"]\n')
    inventory = engine.read_inventory(str(tmp_path / "inventory"), str(tmp_path), {"level": "given"})
    assert sorted(h.name for h in inventory) == ["@fake/a", "@fake/b"]
    levels = engine.levels(inventory, inventory.get_host("@fake/a"))
    named = [d["level"] for d in levels if "level" in d]
    assert list(dict.fromkeys(named)) == ["all", "group", "host", "given"], "the weakest first"
    assert not [d for d in engine.levels(inventory, inventory.get_host("@fake/b")) if "only_host" in d]


def test_the_fake_connector_records_commands(state: State) -> None:
    host = state.inventory.get_host("@fake/a")
    host.connector.run_shell_command("true")
    assert host.connector.executed_commands == ["true"]


def test_results_of_the_json_document_can_be_added_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyinfra_cli.prints as prints

    monkeypatch.setattr(prints, "build_results_json", lambda state: {"of": state})
    monkeypatch.setattr(prints, "build_plan_json", lambda state: [])
    engine.wrap_results(lambda results: {**results, "more": 1})
    prints.print_run_json("the state", dry=False)
    assert json.loads(capsys.readouterr().out)["results"] == {"of": "the state", "more": 1}


@pytest.mark.parametrize("failed", [False, True])
def test_the_exit_status_is_decided_in_one_place(monkeypatch: pytest.MonkeyPatch, state: State, failed: bool) -> None:
    import pyinfra_cli.cli as cli
    from pyinfra.context import ctx_state

    seen: list[bool] = []
    monkeypatch.setattr(cli, "_exit", cli._exit)
    engine.wrap_exit(seen.append)
    if failed:
        state.failed_hosts.add(next(iter(state.inventory)))
    with ctx_state.use(state), pytest.raises(SystemExit) as ended:
        cli._exit()
    assert (seen, ended.value.code) == ([failed], int(failed))
    assert inspect.getsource(cli._main).rstrip().endswith("_exit()")


def test_operations_of_a_host_and_their_commands(state: State) -> None:
    from pyinfra.context import ctx_host, ctx_state

    host = state.inventory.get_host("@fake/a")
    with ctx_state.use(state), ctx_host.use(host):
        add_op(state, shell, name="one")
        ((name, commands),) = engine.operations(state, host)
        assert name == "one"
        assert [str(command) for command in commands()] == ["true"]
