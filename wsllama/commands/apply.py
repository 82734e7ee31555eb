"""`wsllama apply`: the deploy over a fleet, a canary first, then in batches."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wsllama.commands.common import FAILED, REFUSED, Inventory, Json, Limit, connected, cooperative, interrupt, read, refuse
from wsllama.domain import record
from wsllama.domain import rollout as rules

if TYPE_CHECKING:
    from wsllama.rollout import Report

INTERRUPTED = 130
DEFAULTS: dict[str, Any] = {
    "canary": None, "batch": rules.DEFAULT_BATCH, "max_failures": 0, "on_failure": "keep", "limit": [], "bench": True,
    "max_slower": 20,
}  # fmt: skip
"""Of what a report keeps of the options, and a rollout that is gone on with takes from there."""

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
        str | None,
        typer.Option(metavar="HOST|N", help="The host that goes first, or how many of the first, 0 for none; default: 1."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help=f"Hosts at a time behind the canaries; default: {rules.DEFAULT_BATCH}.")
    ] = None,
    max_failures: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Stop when more hosts than this failed; default: 0. A canary may not fail."),
    ] = None,
    on_failure: Annotated[
        Literal["keep", "rollback"] | None,
        typer.Option(help="What becomes of hosts that have the new release, when others failed; default: keep."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="REPORT", help="Go on with this report, as it was begun: hosts that don't have the release yet."),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the report goes: rollouts/TIME.json.")] = None,
    bench: Annotated[
        bool | None,
        typer.Option("--bench/--no-bench", help="Measure canaries before and after, a few seconds each; default: do."),
    ] = None,
    max_slower: Annotated[
        float | None,
        typer.Option(min=0, metavar="PERCENT", help="A canary that got slower by more than this has failed; default: 20."),
    ] = None,
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

    given: dict[str, Any] = {"canary": canary, "batch": batch, "max_failures": max_failures, "on_failure": on_failure}
    given |= {"limit": limit or None, "bench": bench, "max_slower": max_slower}
    try:
        earlier = rollout.Report.resumed(resume) if resume else None
        options = {**DEFAULTS, **(earlier.options if earlier else {}), **{k: v for k, v in given.items() if v is not None}}
        _, hosts = read(inventory, options["limit"], as_json)
        path = report or Path("rollouts") / f"{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime())}.json"
        of = earlier or rollout.Report.begun(path, hosts, options)
        of.fits(hosts)
        of.document["options"] = options
        canaries, batches, offline = _begin(inventory, of, hosts, canary, as_json)
    except (rollout.RolloutError, ValueError) as e:
        refuse([str(e)], as_json)
    if (canaries or batches) and not yes and not typer.confirm("Begin?", err=True):
        raise typer.Exit(REFUSED)
    _run(inventory, of, canaries, batches, offline, as_json)
    _end(of, inventory, as_json)


def _begin(
    inventory: str, of: Report, hosts: list[Any], canary: str | None, as_json: bool
) -> tuple[list[str], list[list[str]], dict[str, str]]:
    """Who comes when, and why others are left out, which is shown. Raises ValueError with one sentence.

    canary: as it was given now
    """
    from wsllama import guard, rollout

    if wrong := [host.name for host in hosts if {h.name for h in guard.limited(host.inventory, [host.name])} != {host.name}]:
        raise ValueError(f"{', '.join(wrong)}: --limit takes this for others, too, or for a group: give the host another name")
    left = rules.left(of.states)
    there: dict[str, str | None] = {}
    offline: dict[str, str] = {}
    if left:  # no name would mean all
        with connected(inventory, left, as_json) as fleet:
            there = {host.name: rollout.release_of(fleet, host) for host in fleet.hosts}
            offline = dict(fleet.unreachable)
    began = {name: host["batch"] for name, host in of.document["hosts"].items() if "batch" in host}
    canary = canary or rules.canary_of_the_rest(of.options["canary"], began, of.states)
    canaries, batches = rules.batches(list(there), canary, of.options["batch"])
    for line in _plan(canaries, batches, there, offline, of):
        typer.echo(line, err=True)
    return canaries, batches, offline


def _run(
    inventory: str, of: Report, canaries: list[str], batches: list[list[str]], offline: dict[str, str], as_json: bool
) -> None:
    """Do it, and keep the report; Ctrl-C ends it with exit code 130."""
    from wsllama import rollout
    from wsllama.remote import Fleet

    signal.signal(signal.SIGTERM, interrupt)  # its report is left whole either way, but pyinfra has to end too
    run = rollout.Rollout(
        inventory=inventory,
        report=of,
        max_failures=of.options["max_failures"],
        roll_back=of.options["on_failure"] == "rollback",
        connect=lambda names: Fleet(read(inventory, None, as_json)[0], names).connect(),
        measure=rollout.measured if of.options["bench"] else lambda fleet, host: None,
        slower=partial(record.regression, percent=of.options["max_slower"]),
        say=_say,
    )
    try:
        of.save()
    except rollout.RolloutError as e:
        refuse([str(e)], as_json)
    try:
        for name, why in offline.items():
            of.set(name, state="offline", reason=why)
        run.run(canaries, batches)
    except rollout.RolloutError as e:
        typer.echo(f"stopped: {e}", err=True)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {_go_on(of, inventory)}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _say(text: str) -> None:
    """Who closed what reads our words, as `| head` does, has not asked to leave a fleet in the middle: the report says it all."""
    with suppress(BrokenPipeError):
        typer.echo(text, err=True)


def _go_on(of: Report, inventory: str) -> str:
    return f"go on with: {shlex.join(['wsllama', 'apply', inventory, '--resume', str(of.path)])}"


def _plan(
    canaries: list[str], batches: list[list[str]], there: dict[str, str | None], offline: dict[str, str], of: Report
) -> list[str]:
    """What is about to be done, in lines."""
    have = [name for name, state in of.states.items() if state in rules.FINISHED]
    lines = [f"have the release already: {', '.join(have)}"] if have else []
    steps = [("canary", canaries), *((f"batch {number}", names) for number, names in enumerate(batches, 1))]
    for title, names in steps if canaries else steps[1:]:
        served = ", ".join(f"{name} (serves release {there[name]})" if there[name] else f"{name} (new)" for name in names)
        lines.append(f"{title}: {served}")
    return lines + [f"offline, left out: {name}: {why}" for name, why in offline.items()]


def _end(of: Report, inventory: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps(of.document, ensure_ascii=False))
    else:
        for name, host in of.document["hosts"].items():
            release = f", release {host['after']}" if host.get("after") else ""
            typer.echo(f"{name}: {host['state']}{release}" + (f": {host['reason']}" if "reason" in host else ""))
    left = of.document["left"]
    typer.echo(f"report: {of.path}" + (f"; {_go_on(of, inventory)}" if left else ""), err=True)
    raise typer.Exit(of.document["exit_code"])
