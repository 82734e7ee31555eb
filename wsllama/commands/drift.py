"""`wsllama drift`: what on hosts is not as their records and the inventory say, and who would win."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from wsllama.commands.common import DRIFT, FAILED, UNREACHABLE, Inventory, Json, Limit, connected, each, table, unlooked
from wsllama.domain.drift import DEPLOY, Finding

EPILOG = """\b
Examples:
  wsllama drift inventory
  wsllama drift inventory --limit desk-1 --deep --json

Who wins: deploy, the next deploy puts it right; user, the deploy leaves it to the user; nobody, the deploy doesn't look at it.

Exit codes: 0 none, 3 drift, 4 a host can't be reached, also when others drift; 1 a host could not be looked at, 2 settings are
wrong."""


LIMIT_S = 300.0  # the controller may have to fetch a source first
HEAD = ("HOST", "WINS", "KIND", "WHAT IS THERE, WHAT SHOULD BE; AND WHAT TO DO, WHERE A DEPLOY IS NOT ENOUGH")


def drift(
    inventory: Inventory,
    limit: Limit = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte of builds and models: minutes for 20 GB.")] = False,
    as_json: Json = False,
) -> None:
    """Show what is not as it was deployed, or not as the inventory wants it. Changes nothing.

    Each host is held against the records of its own release, and against what a deploy would do now. Named are the file, flag,
    package, hash or setting, what it is and should be, who would win, and what to do.
    """
    with connected(inventory, limit, as_json) as fleet:
        from wsllama import ahead

        ahead.prepare(fleet)
        found, failed = each(fleet, lambda host: ahead.look(fleet, host, deep).findings, None if deep else LIMIT_S)
    if as_json:
        hosts = {name: [finding.document() for finding in of] for name, of in found.items()}
        typer.echo(json.dumps({"hosts": hosts, "failed": failed, "unreachable": fleet.unreachable}, ensure_ascii=False))
    else:
        for line in lines(found):
            typer.echo(line)
    unlooked(failed, fleet.unreachable)
    drifts = any(found.values())
    raise typer.Exit(UNREACHABLE if fleet.unreachable else FAILED if failed else DRIFT if drifts else 0)


def lines(found: Mapping[str, Sequence[Finding]]) -> Iterator[str]:
    """A table for people: the findings of each host, and the hosts that have none."""
    rows: list[tuple[str, ...]] = []
    for name, of in found.items():
        for one in of:
            rows.append((name, one.wins, one.kind, f"{one.what}: {one.now}; should be: {one.should}"))
            if one.mend != DEPLOY:
                rows.append(("", "", "", f"  {one.mend}"))
    yield from table(HEAD, rows) if rows else ()
    for name in found:
        if not found[name]:
            yield f"{name}: no drift"
