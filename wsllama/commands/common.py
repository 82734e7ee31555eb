"""What the commands share: their arguments, the inventory, connected hosts, exit codes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from wsllama.remote import Fleet

ROOT = Path(__file__).resolve().parents[2]
FAILED, REFUSED, DRIFT, UNREACHABLE, PENDING = 1, 2, 3, 4, 5

Inventory = Annotated[str, typer.Argument(metavar="INVENTORY", help="As pyinfra takes it: a file, hosts with commas, @local.")]
Limit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME", help="Only this group, or hosts whose name matches; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def refuse(sentences: list[str], as_json: bool = False, **more: Any) -> None:
    """End with exit code 2 and these sentences. more: what else the JSON has."""
    if as_json:
        print(json.dumps({"ok": False, "errors": sentences, **more}))
    for sentence in sentences:
        typer.echo(f"refused: {sentence}", err=True)
    raise typer.Exit(REFUSED)


def cooperative() -> None:
    """Make blocking calls cooperative, as the pyinfra command does: what waits for one host lets the others go on."""
    import gevent.events
    import gevent.monkey

    # It would search all installed packages for listeners, 25 times: a tenth of what a command takes to start.
    gevent.events.notify_and_call_entry_points = gevent.events.notify
    gevent.monkey.patch_all()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def interrupt(*_: Any) -> None:
    """Ctrl-C ends the command, wherever it comes: raised in a greenlet that happens to run, it would print a traceback first."""
    import gevent

    main = gevent.get_hub().parent
    if gevent.getcurrent() is main:
        raise KeyboardInterrupt
    gevent.kill(main, KeyboardInterrupt)


def read(name: str, limit: list[str] | None, as_json: bool = False) -> tuple[Any, list[Any]]:
    """The inventory and the hosts of it that are meant; ends with exit code 2 when there are none or settings are wrong."""
    cooperative()
    from wsllama import engine, guard

    sys.path.insert(0, str(ROOT))
    if found := guard.absent(name):
        refuse(found, as_json)
    try:
        inventory = engine.read_inventory(name, os.getcwd())
    except Exception as e:
        refuse([guard.unreadable(name, e)], as_json)
    try:
        guard.with_recovery(inventory, name)
    except ValueError as e:
        refuse([str(e)], as_json)
    hosts = guard.limited(inventory, limit or [])
    errors = guard.host_errors(inventory, name, limit or [])
    if found := errors or guard.settings_errors(inventory, hosts):
        refuse(found, as_json)
    return inventory, hosts


@contextmanager
def connected(name: str, limit: list[str] | None, as_json: bool = False) -> Iterator[Fleet]:
    """The hosts of an inventory, connected as far as they can be."""
    cooperative()
    from wsllama.remote import Fleet

    inventory, _ = read(name, limit, as_json)
    fleet = Fleet(inventory, limit or []).connect()
    try:
        yield fleet
    finally:
        fleet.close()


def each(
    fleet: Fleet, ask: Callable[[Any], Any], limit_s: float | None = None, names: Collection[str] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Ask all connected hosts at once: what `ask(host)` gave by name, and why others failed.

    limit_s: seconds after which a host counts as failed, none for what may take hours; names: of these hosts only.
    """
    import gevent

    from wsllama.remote import RemoteError

    found: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def one(host: Any) -> None:
        try:
            with gevent.Timeout(limit_s, RemoteError(f"no answer within {limit_s:g} s" if limit_s else "")):
                found[host.name] = ask(host)
        except RemoteError as e:
            failed[host.name] = str(e)

    hosts = [host for host in fleet.hosts if names is None or host.name in names]
    gevent.joinall([gevent.spawn(one, host) for host in hosts], raise_error=True)
    return dict(sorted(found.items())), failed


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table: each column as wide as what is in it, the last one free."""
    lines = [tuple(head), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    for line in lines:
        yield "  ".join([*(word.ljust(width) for word, width in zip(line, widths, strict=False)), line[-1]]).rstrip()


def unlooked(failed: dict[str, str], unreachable: dict[str, str]) -> None:
    """Say why hosts failed or could not be reached."""
    for name, reason in failed.items():
        typer.echo(f"{name}: {reason}", err=True)
    for name, reason in unreachable.items():
        typer.echo(f"{name} can't be reached: {reason}", err=True)


def end(failed: dict[str, str], unreachable: dict[str, str]) -> None:
    """Say why hosts failed, and end with the exit code that stands for it."""
    unlooked(failed, unreachable)
    raise typer.Exit(UNREACHABLE if unreachable else FAILED if failed else 0)
