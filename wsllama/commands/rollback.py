"""`wsllama rollback`: hosts serve an earlier release again."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from wsllama.commands.common import Inventory, Json, Limit, connected, each, end

EPILOG = """\b
Examples:
  wsllama rollback inventory                      the accepted release before the current one
  wsllama rollback inventory --limit desk-1 --to 3

The next deploy serves what the settings say again: change them first, if the release is to stay.

Exit codes: 0 every host serves it, 1 a host does not, 2 settings are wrong, 4 a host can't be reached."""


def rollback(
    inventory: Inventory,
    to: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of the release; default: the one before.")] = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Serve an earlier release again.

    Build, model, settings and unit are switched together and asked as a deploy asks; a release that does not answer gives
    way to the one that served before.
    """
    with connected(inventory, limit, as_json) as fleet:
        from wsllama import releases

        done, failed = each(fleet, lambda host: releases.roll_back(fleet, host, to))
    if as_json:
        typer.echo(json.dumps({"done": done, "failed": failed, "unreachable": fleet.unreachable}))
    else:
        for name, what in done.items():
            said = f"release {what['to']} serves" + (f", {what['from']} did" if what["changed"] else " already")
            typer.echo(f"{name}: {said}")
    end(failed, fleet.unreachable)
