"""`wsllama apply`: the deploy over a fleet, a canary first, then in batches."""

from __future__ import annotations

import json
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wsllama.commands.common import REFUSED, Inventory, Json, Limit, connected, cooperative, read, refuse
from wsllama.domain import record
from wsllama.domain import rollout as rules

if TYPE_CHECKING:
    from wsllama.rollout import Report

INTERRUPTED = 130

EPILOG = """\b
Examples:
  wsllama apply inventory
  wsllama apply inventory --canary desk-1 --batch 4 --on-failure rollback
  wsllama apply inventory --resume rollouts/2026-11-30T120000Z.json     those that were offline, failed or not begun

What it does is `pyinfra INVENTORY deploy.py -y` for some hosts after the other. The report is written after each step, so an
apply that was ended anywhere can be gone on with. States in it: done, unchanged, failed, vanished (the connection was lost and
did not come back), rolled_back, offline, waiting (not begun), running (begun by an apply that was ended).

Exit codes: 0 every host has the release, 1 a host failed, was rolled back or was not begun, 2 settings or options are wrong or
the answer was no, 4 nothing failed but a host was offline, 5 a host waits for `wsl --shutdown`,
130 interrupted."""


def apply(
    inventory: Inventory,
    canary: Annotated[
        str | None, typer.Option(metavar="HOST|N", help="The host that goes first, or how many of the first; default: 1.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Hosts at a time behind the canaries.")] = rules.DEFAULT_BATCH,
    max_failures: Annotated[
        int, typer.Option(min=0, metavar="N", help="Stop when more hosts than this failed; a canary may not fail.")
    ] = 0,
    on_failure: Annotated[
        Literal["keep", "rollback"], typer.Option(help="What becomes of hosts that have the new release, when others failed.")
    ] = "keep",
    resume: Annotated[
        Path | None, typer.Option(metavar="REPORT", help="Go on with this report: hosts that don't have the release yet.")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the report goes: rollouts/TIME.json.")] = None,
    bench: Annotated[bool, typer.Option(help="Measure canaries before and after, a few seconds each.")] = True,
    max_slower: Annotated[
        float, typer.Option(min=0, metavar="PERCENT", help="A canary that got slower by more than this has failed.")
    ] = 20,
    limit: Limit = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask before it begins.")] = False,
    as_json: Json = False,
) -> None:
    """Deploy a fleet step by step: canary, then batches; stop when hosts fail, and say of each host what became of it."""
    if resume and report:
        refuse(["--report names a new report, but --resume goes on with one: leave one of them out"], as_json)
    if not (yes or sys.stdin.isatty()):
        refuse(["there is no terminal to ask on: give --yes to change things, or see `wsllama diff`"], as_json)
    cooperative()  # before rollout imports what is patched
    from wsllama import rollout
    from wsllama.remote import Fleet

    _, hosts = read(inventory, limit, as_json)
    options = {"canary": canary, "batch": batch, "max_failures": max_failures, "on_failure": on_failure, "limit": limit or []}
    try:
        path = resume or report or Path("rollouts") / f"{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime())}.json"
        of = rollout.Report.resumed(path, hosts) if resume else rollout.Report.begun(path, hosts, options)
        wanted = rules.left(of.states)
        with connected(inventory, wanted, as_json) as fleet:
            there = {host.name: rollout.release_of(fleet, host) for host in fleet.hosts}
            offline = dict(fleet.unreachable)
        parts = rules.batches(list(there), canary, batch)
    except (rollout.RolloutError, ValueError) as e:
        refuse([str(e)], as_json)
    for line in _plan(parts, there, offline, of):
        typer.echo(line, err=True)
    if there and not yes and not typer.confirm("Begin?", err=True):
        raise typer.Exit(REFUSED)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # its report is left whole either way, but pyinfra has to end too
    run = rollout.Rollout(
        inventory=inventory,
        report=of,
        max_failures=max_failures,
        roll_back=on_failure == "rollback",
        connect=lambda names: Fleet(read(inventory, None, as_json)[0], names).connect(),
        measure=rollout.measured if bench else lambda fleet, host: None,
        slower=partial(record.regression, percent=max_slower),
        say=partial(typer.echo, err=True),
    )
    try:
        of.save()
        for name, why in offline.items():
            of.set(name, state="offline", reason=why)
        run.run(parts)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; go on with: wsllama apply {inventory} --resume {path}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _end(of, inventory, as_json)


def _plan(parts: list[list[str]], there: dict[str, str | None], offline: dict[str, str], of: Report) -> list[str]:
    """What is about to be done, in lines."""
    have = [name for name, state in of.states.items() if state in rules.FINISHED]
    lines = [f"have the release already: {', '.join(have)}"] if have else []
    for number, names in enumerate(parts):
        served = ", ".join(f"{name} (serves release {there[name]})" if there[name] else f"{name} (new)" for name in names)
        lines.append(f"{f'batch {number}' if number else 'canary'}: {served}")
    return lines + [f"offline, left out: {name}: {why}" for name, why in offline.items()]


def _end(of: Report, inventory: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps(of.document, ensure_ascii=False))
    else:
        for name, host in of.document["hosts"].items():
            release = f", release {host['after']}" if host.get("after") else ""
            typer.echo(f"{name}: {host['state']}{release}" + (f": {host['reason']}" if "reason" in host else ""))
    left = of.document["left"]
    typer.echo(f"report: {of.path}" + (f"; go on with: wsllama apply {inventory} --resume {of.path}" if left else ""), err=True)
    raise typer.Exit(of.document["exit_code"])
