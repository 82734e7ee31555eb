"""`wsllama …`: what is done beside the deploy. Every command that reports has --json; exit codes are in each command's help."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wsllama.commands import toolkit

ROOT = Path(__file__).resolve().parents[1]
FAILED, REFUSED, UNREACHABLE = 1, 2, 4

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Inventory = Annotated[str, typer.Argument(metavar="INVENTORY", help="As pyinfra takes it: a file, hosts with commas, @local.")]
Limit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME", help="Only this group, or hosts whose name matches; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def _refuse(sentences: list[str], as_json: bool = False) -> None:
    if as_json:
        print(json.dumps({"ok": False, "errors": sentences}))
    for sentence in sentences:
        typer.echo(f"refused: {sentence}", err=True)
    raise typer.Exit(REFUSED)


def _read(name: str, limit: list[str] | None, as_json: bool = False) -> tuple[Any, list[Any]]:
    """The inventory and the hosts of it that are meant; ends with exit code 2 when there are none or settings are wrong."""
    from wsllama import engine, guard

    sys.path.insert(0, str(ROOT))
    if found := guard.absent(name):
        _refuse(found, as_json)
    try:
        inventory = engine.read_inventory(name, os.getcwd())
    except Exception as e:
        _refuse([guard.unreadable(name, e)], as_json)
    hosts = guard.limited(inventory, limit or [])
    errors = guard.host_errors(inventory, name, limit or [])
    if found := errors or guard.settings_errors(inventory, hosts):
        _refuse(found, as_json)
    return inventory, hosts


@app.callback()
def _about() -> None:
    """Servers of Qwen3.6-35B-A3B on Windows machines: llama.cpp in WSL2, provisioned by pyinfra.

    The deploy itself is `pyinfra inventory deploy.py`, in the project's folder. Run these commands there too: that is where
    group_data is looked for.
    """


@app.command(
    short_help="Check settings without connecting.",
    epilog="Example: wsllama check inventory. Exit codes: 0 all right, 2 something is wrong.",
)
def check(inventory: Inventory, limit: Limit = None, as_json: Json = False) -> None:
    """Check the settings of every host without connecting; all that is wrong is said at once."""
    _, hosts = _read(inventory, limit, as_json)
    if as_json:
        print(json.dumps({"ok": True, "errors": [], "hosts": [h.name for h in hosts]}))
    else:
        typer.echo(f"{len(hosts)} host{'s' if len(hosts) != 1 else ''}, nothing wrong: {', '.join(h.name for h in hosts)}")


@app.command(
    short_help="Assert the end state of hosts.",
    epilog="Example: wsllama verify inventory --limit desk-1. Exit codes: 0 as wanted, 1 a check failed, 2 settings are"
    " wrong, 4 a host can't be reached.",
)
def verify(inventory: Inventory, limit: Limit = None, as_json: Json = False) -> None:
    """Assert the end state of hosts with testinfra: packages, files, build, model, service, socket, a reply. Changes nothing."""
    from wsllama import endstate

    _patch()
    known, _ = _read(inventory, limit, as_json)
    report = endstate.check(ROOT / "tests" / "endstate", known, limit or [], quiet=as_json)
    if as_json:
        print(json.dumps(report))
    for name, reason in report["unreachable"].items():
        typer.echo(f"{name} can't be reached: {reason}", err=True)
    if not as_json:
        typer.echo(f"{report['passed']} passed, {report['failed']} failed on {len(report['hosts'])} hosts")
    raise typer.Exit(UNREACHABLE if report["unreachable"] else FAILED if report["failed"] or not report["passed"] else 0)


@app.command(
    short_help="Ask the served model.",
    epilog='Example: wsllama ask inventory "What is 2 + 2?" --limit desk-1. Exit codes: 0 answered, 1 no answer from a host,'
    " 2 settings are wrong, 4 a host can't be reached.",
)
def ask(
    inventory: Inventory,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask.")],
    limit: Limit = None,
    thinking: Annotated[bool, typer.Option(help="Let the model think first.")] = True,
    max_tokens: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most tokens of thinking and answer.")] = None,
    as_json: Json = False,
) -> None:
    """Ask the served model; the question is put on the host itself, so no port need be reachable from here."""
    from wsllama import layout
    from wsllama.domain import client
    from wsllama.guard import settings_of
    from wsllama.remote import Fleet, RemoteError

    _patch()
    known, _ = _read(inventory, limit, as_json)
    fleet, replies, failed = Fleet(known, limit or []).connect(), {}, dict[str, str]()
    try:
        for host in fleet.hosts:
            settings = settings_of(host)
            argument = {
                "url": client.base_url(settings.server.host, settings.server.port),
                "alias": settings.model.alias,
                "key_file": layout.API_KEY if settings.server.api_key else None,
                "request_timeout_s": settings.acceptance.request_timeout_s,
                "question": question,
                "thinking": thinking,
                "max_tokens": max_tokens,
            }
            try:
                replies[host.name] = fleet.run(host, "ask", argument)
            except RemoteError as e:
                failed[host.name] = str(e)
    finally:
        fleet.close()
    if as_json:
        print(json.dumps({"replies": replies, "failed": failed, "unreachable": fleet.unreachable}, ensure_ascii=False))
    else:
        for name, reply in replies.items():
            typer.echo(
                f"{name} (thinks): {reply['reasoning'].strip()}" if reply["reasoning"] else "", nl=bool(reply["reasoning"])
            )
            typer.echo(f"{name}: {reply['content'].strip()}")
    for name, reason in {**failed, **fleet.unreachable}.items():
        typer.echo(f"{name}: {reason}", err=True)
    raise typer.Exit(UNREACHABLE if fleet.unreachable else FAILED if failed else 0)


app.command(epilog=toolkit.EPILOG)(toolkit.toolkit)


def _patch() -> None:
    """As the pyinfra command does, before anything connects: what waits for one host lets the others go on."""
    import gevent.monkey

    gevent.monkey.patch_all()


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
