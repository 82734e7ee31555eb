"""`wsllama accept`: what a deploy asks of a server before a release counts, asked of hosts that serve."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from wsllama.commands.common import Inventory, Json, Limit, connected, each, end

EPILOG = """\b
Examples:
  wsllama accept inventory                         every check of every host, in a table
  wsllama accept inventory --limit desk-1 --strict

Exit codes: 0 every server is accepted, 1 a check failed, 2 settings are wrong, 4 a host can't be reached."""

_COLOURS = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "failed": typer.colors.RED}


def accept(
    inventory: Inventory,
    limit: Limit = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Answers have to be right, too, as with acceptance.strict in the settings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ask the server of each host everything that a deploy asks; changes nothing.

    The chain goes from /health to replies with and without thinking, a stream, a tool's call, a prompt that nearly fills the
    context, pictures where a projector is served, and the way in from Windows. After a failure the rest is asked too, as long
    as anybody answers.
    """
    with connected(inventory, limit, as_json) as fleet:
        from wsllama import releases

        found, failed = each(fleet, lambda host: releases.ask_current(fleet, host, strict))
    failed |= {name: of["error"] for name, of in found.items() if not of["ok"]}
    if as_json:
        typer.echo(json.dumps({"hosts": found, "failed": failed, "unreachable": fleet.unreachable}, ensure_ascii=False))
    else:
        for name, of in found.items():
            typer.echo(f"{name}: release {of['release']} is {'' if of['ok'] else 'not '}accepted")
            for check in of["checks"]:
                result = typer.style(f"{check['result']:<7}", fg=_COLOURS.get(check["result"]))
                typer.echo(f"  {result}  {check['check']:<13}  {check['seconds']:7.2f} s  {check['says']}")
    end(failed, fleet.unreachable)
