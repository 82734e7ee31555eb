"""`wsllama rebuild-check`: whether a machine that was built again came to the same end state."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from wsllama import whole
from wsllama.commands.common import DRIFT, FAILED, UNREACHABLE, Inventory, Json, Limit, connected, each, refuse, table, unlooked
from wsllama.domain import manifest

EPILOG = """\b
Examples:
  wsllama rebuild-check inventory --record manifests.json         after a deploy that is good
  wsllama rebuild-check inventory --against manifests.json        after the deploy of a fresh machine
  wsllama rebuild-check inventory --limit desk-2 --against manifests.json --like desk-1

Compared are packages and their versions, files with sha256, mode and owner, the build's files, what it was made with, models,
units, arguments and variables of the service. Left out is what each machine has of its own: times, numbers of releases, the key.

Exit codes: 0 recorded, or the same; 3 something is not the same, 1 a host could not be looked at, has no release or no record,
2 settings or options are wrong, 4 a host can't be reached."""


def rebuild_check(
    inventory: Inventory,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the end state of the hosts to this file; others in it stay.")
    ] = None,
    against: Annotated[Path | None, typer.Option(metavar="FILE", help="Compare the hosts with this file.")] = None,
    like: Annotated[str | None, typer.Option(metavar="HOST", help="Compare all with this one of the file, not by name.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte of builds and models: minutes for 20 GB.")] = False,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Record the end state of hosts, or hold hosts against what was recorded, and list what is not the same."""
    if (record is None) == (against is None) or (like and not against):
        refuse(["give either --record FILE or --against FILE; --like HOST belongs to --against"], as_json)
    known = _read(against, like, as_json) if against else {}
    kept = _read(record, None, as_json) if record and record.exists() else {}  # of hosts that are not asked now, or can't be
    with connected(inventory, limit, as_json) as fleet:
        from wsllama import ahead, layout
        from wsllama.guard import settings_of
        from wsllama.remote import RemoteError
        from wsllama.settings import LOCK

        ahead.prepare(fleet)

        def one(host: Any) -> manifest.Manifest:
            found = ahead.look(fleet, host, deep)
            if not found.record:  # two hosts that have nothing are the same, which says nothing
                raise RemoteError("no release is there yet: deploy first")
            settings = json.dumps(settings_of(host).model_dump(mode="json"), sort_keys=True)
            inputs = {"input wsllama.lock": LOCK.read_bytes(), "input settings": settings.encode()}
            sums = {name: hashlib.sha256(data).hexdigest() for name, data in inputs.items()}
            return {**manifest.made(found.now, found.seen, {layout.API_KEY}), **sums}

        made, failed = each(fleet, one)
    if record and made:
        _write(record, {**kept, **made}, as_json)
    differ: dict[str, list[manifest.Difference]] = {}
    for name, here in made.items() if against else ():
        if (recorded := known.get(like or name)) is None:
            failed[name] = f"{against} has no host of this name: give --like HOST, one of {', '.join(known)}"
        else:
            differ[name] = manifest.differences(recorded, here)
    _show(made, differ, record, as_json)
    if as_json:
        found = {name: [one._asdict() for one in of] for name, of in differ.items()}
        print(json.dumps({"hosts": made, "differences": found, "failed": failed, "unreachable": fleet.unreachable}))
    unlooked(failed, fleet.unreachable)
    raise typer.Exit(UNREACHABLE if fleet.unreachable else FAILED if failed else DRIFT if any(differ.values()) else 0)


def _show(made: dict[str, Any], differ: dict[str, list[manifest.Difference]], record: Path | None, as_json: bool) -> None:
    if as_json:
        return
    if record:
        for name, of in sorted(made.items()):
            typer.echo(f"{name}: {len(of)} facts recorded in {record}")
    rows = [
        (name, one.what, f"{one.here or 'nothing'}, was {one.recorded or 'nothing'}") for name, of in differ.items() for one in of
    ]
    for line in table(("HOST", "WHAT", "IS, AND WAS"), rows) if rows else ():
        typer.echo(line)
    for name, of in differ.items():
        if not of:
            typer.echo(f"{name}: the same in {len(made[name])} facts")


def _read(path: Path, like: str | None, as_json: bool) -> dict[str, manifest.Manifest]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        hosts: dict[str, manifest.Manifest] = document["hosts"]
        wrong = document["format"] != manifest.FORMAT or not all(isinstance(of, dict) for of in hosts.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        refuse([f"{path} holds no end state that was recorded by `wsllama rebuild-check --record`: {e!r}"], as_json)
    if wrong:
        refuse([f"{path} was recorded by another version of wsllama: record it again"], as_json)
    if like and like not in hosts:
        refuse([f"--like {like}: {path} has {', '.join(sorted(hosts))}"], as_json)
    return hosts


def _write(path: Path, hosts: dict[str, manifest.Manifest], as_json: bool) -> None:
    text = json.dumps({"format": manifest.FORMAT, "hosts": hosts}, indent=1, sort_keys=True, ensure_ascii=False)
    try:
        whole.text(path, text + "\n")
    except OSError as e:
        refuse([f"{path} can't be written: {e.strerror}"], as_json)
