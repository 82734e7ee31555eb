"""Refuses what can be known to be wrong before anything connects. config.py installs it; pyinfra runs config.py first.

Stock pyinfra can't refuse between reading the inventory and connecting, and exits 0 for an unknown inventory, an empty one, a
`--limit` without match, `--no-wait` with failed hosts and Ctrl-C (facts on pyinfra, 0.2).
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from typing import Any, NoReturn

import click
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.state import BaseStateCallback

from wsllama import engine, recovery
from wsllama.facts import probe
from wsllama.settings import Settings, local_problems, merge, parse

EXIT_REFUSED = 2
EXIT_PENDING = 5
EXIT_INTERRUPTED = 130
LOST_AFTER_S = 60
"""A connection whose other end acknowledges nothing for this time is lost; keepalives go every 15 s."""
_installed = False
_last_words: list[str] = []
_pending: dict[str, list[str]] = {}


def with_recovery(inventory: Any, name: str) -> Any:
    """The inventory, which knows from now on what `wsllama doctor --apply` gave up on its hosts. Raises ValueError, one sentence.

    name: the inventory's, as it was given.
    """
    inventory.wsllama_recovery = recovery.read(name)
    return inventory


def _levels(inventory: Any, host: Any) -> list[dict[str, Any]]:
    *written, given = engine.levels(inventory, host)
    return [*written, getattr(inventory, "wsllama_recovery", {}).get(host.name, {}), given]


def settings_of(host: Any) -> Settings:
    """Settings of a host, read once; the guard has refused wrong ones before. Raises PyinfraError with all errors otherwise."""
    known = host.connector_data
    if "wsllama.settings" not in known:
        found, errors = parse(merge(_levels(host.inventory, host)))
        if found is None:
            raise PyinfraError("; ".join(errors))
        known["wsllama.settings"] = found
    settings: Settings = known["wsllama.settings"]
    return settings


def settings_errors(inventory: Any, hosts: Iterable[Any]) -> list[str]:
    """Everything that is wrong in the settings of these hosts and in the files here that they name, each with its host."""
    out = []
    for host in hosts:
        found, errors = parse(merge(_levels(inventory, host)))
        out += [f"{host.name}: {e}" for e in (errors if found is None else local_problems(found))]
    return out


def limited(inventory: Any, limit: Sequence[str], exclude: Sequence[str] = ()) -> list[Any]:
    """Hosts that these groups or patterns of names leave; without a limit all of them."""

    def matches(host: Any, patterns: Sequence[str]) -> bool:
        return any(host in inventory.groups.get(p, ()) or fnmatch(host.name, p) for p in patterns)

    return [h for h in inventory if (not limit or matches(h, limit)) and not matches(h, exclude)]


def host_errors(inventory: Any, name: str, limit: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
    """Why no host would be left, each reason one sentence; name: the inventory's, as it was given."""
    if not list(inventory):
        return [f"the inventory {name} holds no host: give a file that lists some, or hosts with commas between them"]
    out = [f"--limit {p} matches no host and no group of the inventory" for p in limit if not limited(inventory, [p])]
    return out or ([] if limited(inventory, limit, exclude) else ["--limit and --exclude leave no host"])


def absent(name: str) -> list[str]:
    """Why a path can't be an inventory. Stock takes one that isn't there for a host's name, and looks that up."""
    if os.path.exists(name) or "@" in name or "," in name or not ("/" in name or name.endswith(".py")):
        return []
    return [f"there is no inventory {name}: give a file that is there, or hosts with commas between them"]


def unreadable(name: str, e: Exception) -> str:
    """Why the inventory of this name can't be read: it is a Python file, so anything may go wrong in it."""
    cause = getattr(e, "exception", e)  # pyinfra puts its own around what a file raises
    return f"the inventory {name} can't be read: {type(cause).__name__}: {cause}"


def errors(state: Any, given: dict[str, Any]) -> list[str]:
    """Every reason not to connect, each one sentence.

    state: pyinfra's, with the inventory read; given: options of the command line.
    """
    limit, exclude = given.get("limit") or (), given.get("exclude") or ()
    deploys = _deploys(given)
    asks = deploys and not (given.get("yes") or given.get("dry") or given.get("json_output") or sys.stdin.isatty())
    out = host_errors(state.inventory, str(given.get("inventory")), limit, exclude)
    out += ["--no-wait reports success for hosts that failed: leave it out"] if given.get("no_wait") else []
    out += ["there is no terminal to ask on: give -y to change things, or --dry to look"] if asks else []
    return out + (settings_errors(state.inventory, limited(state.inventory, limit, exclude)) if deploys else [])


def _deploys(given: dict[str, Any]) -> bool:
    return any(str(o).endswith(".py") for o in given.get("operations") or ())


class Callbacks(BaseStateCallback):  # type: ignore[misc]
    @staticmethod
    def host_connect(state: Any, host: Any) -> None:
        """On every connect: without NODELAY Nagle costs 40 ms a command; a quiet build outlives a NAT's memory with keepalive."""
        client = getattr(host.connector, "client", None)
        if client is None:
            return
        transport = client.get_transport()
        transport.set_keepalive(15)
        if hasattr(transport.sock, "setsockopt"):  # a ProxyJump's channel has none
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: else a host that lost its power holds up the run for 15 minutes
                transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_AFTER_S * 1000)

    @staticmethod
    def operation_host_success(state: Any, host: Any, op_hash: str, *_: Any, **__: Any) -> None:
        if op_hash not in probe.memo(host).own:  # a stock operation may have changed anything
            probe.drop(host)


def _interrupted(state: Any) -> None:
    """Stock exits 0, and only after the running operation."""
    click.echo("interrupted: what runs as a unit on a host goes on there, and the next run follows it", err=True)
    engine.stop(state)
    sys.exit(EXIT_INTERRUPTED)


def _refuse(sentences: Iterable[str]) -> NoReturn:
    for sentence in sentences:
        click.echo(f"refused: {sentence}", err=True)
    sys.exit(EXIT_REFUSED)


def _inventory(stock: Callable[[], Any]) -> Any:
    """Stock prints a traceback, or says that pyinfra itself is broken."""
    name = str(engine.command_line().get("inventory"))
    if found := absent(name):
        _refuse(found)
    try:
        inventory = stock()
    except Exception as e:
        _refuse([unreadable(name, e)])
    try:
        return with_recovery(inventory, name)
    except ValueError as e:
        _refuse([str(e)])


def _connect(state: Any, stock: Any) -> None:
    given = engine.command_line()
    if found := errors(state, given):
        _refuse(found)
    if given.get("dry"):
        engine.never_ask(state, given.get("fail_percent"))
    if _deploys(given):
        names = {host.name for host in limited(state.inventory, given.get("limit") or (), given.get("exclude") or ())}
        at_the_end(recovery.lines(str(given.get("inventory")), names))
    state.add_callback_handler(Callbacks())
    signal.signal(signal.SIGINT, lambda *_: _interrupted(state))
    atexit.register(_farewell)
    stock(state)


def quiet() -> None:
    """Why a host can't be connected comes as an exception, in a sentence; paramiko's threads print tracebacks of the same."""
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)


def install() -> None:
    """Stand between inventory and hosts; called by config.py."""
    global _installed
    if not _installed:
        quiet()
        engine.lighten()
        engine.wrap_inventory(_inventory)
        engine.wrap_connect(_connect)
        engine.wrap_results(lambda results: {**results, "pending": _pending})
        engine.wrap_exit(_exit)
        _installed = True


def required() -> None:
    """Called by deploy.py: raises PyinfraError when config.py was not read, which happens in another folder."""
    if not _installed:
        raise PyinfraError("config.py was not read: run pyinfra in the project's own folder, or give --chdir")


def at_the_end(lines: Iterable[str]) -> None:
    """Say these lines as the last ones of the run, behind pyinfra's results."""
    _last_words.extend(lines)


def pending(host: str, sentences: Iterable[str]) -> None:
    """Note what somebody has to do before all is in effect on a host: said at the end, in --json, and by the exit status."""
    _pending.setdefault(host, []).extend(sentences)


def _exit(failed: bool) -> None:
    if _pending and not failed:
        sys.exit(EXIT_PENDING)


def _farewell() -> None:
    waiting = [f"{host}: {sentence}" for host, sentences in sorted(_pending.items()) for sentence in sentences]
    for line in [*_last_words, *waiting]:
        click.echo(line, err=True)
