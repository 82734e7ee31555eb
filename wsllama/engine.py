"""The private names of pyinfra that we use, all of them; tests/unit/test_engine.py fails when one goes. Hence pyinfra < 3.11."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple


class _Place(NamedTuple):
    """What pyinfra reads of inspect's frame information."""

    filename: str
    lineno: int


def _place(frame: FrameType) -> _Place:
    return _Place(frame.f_code.co_filename, frame.f_lineno)


def _frames() -> list[tuple[FrameType]]:
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame:
        found.append((frame,))
        frame = frame.f_back
    return found


def lighten() -> None:
    """Spare pyinfra most of what an operation and host costs here: it looks up the source text and the module of every frame
    that called it, only to number operations by lines, and resolves the types of its own arguments anew each time."""
    from pyinfra.api import arguments, util

    util.stack, util.getframeinfo = _frames, _place
    arguments.all_global_arguments = lru_cache(arguments.all_global_arguments)


def wrap_connect(wrapper: Callable[[Any, Callable[[Any], None]], None]) -> None:
    """Put `wrapper(state, stock)` in the place of the one function that connects: the only point between inventory and hosts."""
    import pyinfra_cli.cli as cli

    stock = cli.connect_all
    cli.connect_all = lambda state: wrapper(state, stock)


def wrap_inventory(wrapper: Callable[[Callable[[], Any]], Any]) -> None:
    """Put `wrapper(stock)` in the place of the one function that reads the inventory, which is a program and may go wrong."""
    import pyinfra_cli.cli as cli

    stock = cli.make_inventory
    cli.make_inventory = lambda *given, **more: wrapper(lambda: stock(*given, **more))


def wrap_results(wrapper: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Put `wrapper(results)` in the place of what --json says of a run."""
    import pyinfra_cli.prints as prints

    stock = prints.build_results_json
    prints.build_results_json = lambda state: wrapper(stock(state))


def wrap_exit(before: Callable[[bool], None]) -> None:
    """Call `before(failed)` where the pyinfra command decides its exit status; it may end the program with another one."""
    import pyinfra_cli.cli as cli
    from pyinfra.context import ctx_state

    stock = cli._exit

    def leave() -> None:
        before(bool(ctx_state.isset() and ctx_state.get().failed_hosts))
        stock()

    cli._exit = leave


def command_line() -> dict[str, Any]:
    """Options of the pyinfra command that runs."""
    import click

    return dict(click.get_current_context().params)


def never_ask(state: Any, fail_percent: int | None) -> None:
    """A failing host in a dry run fails; stock asks "continue?", also without a terminal."""
    state.should_raise_failed_hosts = None
    state.config.FAIL_PERCENT = fail_percent


def stop(state: Any) -> None:
    """End what runs, at once: stock waits for a place in the pool, which is the end of the running operation."""
    state.pool.kill(block=False)


def operation_hash(meta: Any) -> str:
    """The identity that callbacks get of an operation."""
    return str(meta._hash)


def hold_detection(state: Any) -> bool:
    """Keep pyinfra from looking for changes as each operation is called; returns whether it is to look at all."""
    state.detect = getattr(state, "detect", state.check_for_changes)
    state.check_for_changes = False
    return bool(state.detect)


def detect(state: Any, host: Any) -> None:
    """Look for the changes of all operations that this host has registered."""
    this = state.inventory.get_host(host.name)
    for op_hash in list(host.op_hash_order):
        if this in state.active_hosts:
            _ = state.ops[this][op_hash].operation_meta.will_change


def operations(state: Any, host: Any) -> Iterator[tuple[str, Callable[[], Iterator[Any]]]]:
    """Each operation that this host has registered, in order: its name with its stage's, and what yields its commands."""
    this = state.inventory.get_host(host.name)
    for op_hash in list(host.op_hash_order):
        yield min(state.op_meta[op_hash].names), state.ops[this][op_hash].command_generator


def read_inventory(name: str, cwd: str, data: dict[str, Any] | None = None, group_data: Sequence[str] = ()) -> Any:
    """The inventory as the pyinfra command reads it: a file, hosts, a connector; `group_data` is looked for in `cwd`."""
    from pyinfra.api import State
    from pyinfra.context import ctx_state
    from pyinfra_cli.inventory import make_inventory

    with ctx_state.use(State()):  # the file is executed, and what it imports may ask for the state
        return make_inventory(name, override_data=data or {}, cwd=cwd, group_data_directories=list(group_data))


def global_arguments(state: Any, host: Any) -> dict[str, Any]:
    """Arguments such as `_sudo` as a host's data and the configuration give them."""
    from pyinfra.api.arguments import pop_global_arguments

    return dict(pop_global_arguments(state, host, {})[0])


def levels(inventory: Any, host: Any) -> list[dict[str, Any]]:
    """Data of a host, the weakest first: all, groups in their order, the host's own, the command line's."""
    groups = [inventory.get_group_data(name) for name in host.groups]
    return [inventory.get_data(), *groups, inventory.get_host_data(host.name), inventory.get_override_data()]
