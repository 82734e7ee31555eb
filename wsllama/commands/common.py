"""What the commands share: their arguments, the inventory, connected hosts, exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from wsllama.remote import Fleet

ROOT = Path(__file__).resolve().parents[2]
FAILED, REFUSED, UNREACHABLE = 1, 2, 4

Inventory = Annotated[str, typer.Argument(metavar="INVENTORY", help="As pyinfra takes it: a file, hosts with commas, @local.")]
Limit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME", help="Only this group, or hosts whose name matches; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def refuse(sentences: list[str], as_json: bool = False) -> None:
    """End with exit code 2 and these sentences."""
    if as_json:
        print(json.dumps({"ok": False, "errors": sentences}))
    for sentence in sentences:
        typer.echo(f"refused: {sentence}", err=True)
    raise typer.Exit(REFUSED)


def read(name: str, limit: list[str] | None, as_json: bool = False) -> tuple[Any, list[Any]]:
    """The inventory and the hosts of it that are meant; ends with exit code 2 when there are none or settings are wrong."""
    from wsllama import engine, guard

    sys.path.insert(0, str(ROOT))
    if found := guard.absent(name):
        refuse(found, as_json)
    try:
        inventory = engine.read_inventory(name, os.getcwd())
    except Exception as e:
        refuse([guard.unreadable(name, e)], as_json)
    hosts = guard.limited(inventory, limit or [])
    errors = guard.host_errors(inventory, name, limit or [])
    if found := errors or guard.settings_errors(inventory, hosts):
        refuse(found, as_json)
    return inventory, hosts


@contextmanager
def connected(name: str, limit: list[str] | None, as_json: bool = False) -> Iterator[Fleet]:
    """The hosts of an inventory, connected as far as they can be."""
    import gevent.monkey

    gevent.monkey.patch_all()  # as the pyinfra command does: what waits for one host lets the others go on
    from wsllama.remote import Fleet

    inventory, _ = read(name, limit, as_json)
    fleet = Fleet(inventory, limit or []).connect()
    try:
        yield fleet
    finally:
        fleet.close()


def end(failed: dict[str, str], unreachable: dict[str, str]) -> None:
    """Say why hosts failed, and end with the exit code that stands for it."""
    for name, reason in failed.items():
        typer.echo(f"{name}: {reason}", err=True)
    for name, reason in unreachable.items():
        typer.echo(f"{name} can't be reached: {reason}", err=True)
    raise typer.Exit(UNREACHABLE if unreachable else FAILED if failed else 0)
