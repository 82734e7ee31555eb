"""`wsllama uninstall`: hosts as they were before; what the deploy added is taken back, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wsllama.commands.common import FAILED, Inventory, Json, Limit, connected, each, end, refuse

if TYPE_CHECKING:
    from wsllama.remote import Fleet

EPILOG = """\b
Examples:
  wsllama uninstall inventory                     says what would go, and asks
  wsllama uninstall inventory --keep-model -y --limit desk-1

Packages that the deploy installed stay, and so do drop-ins of the unit. What the user changed in .wslconfig and wsl.conf since
stays too. A second run changes nothing.

Exit codes: 0 nothing of ours is left, 1 something is left (the command for it is said), 2 refused, 4 a host can't be reached."""
PACKAGES = "packages that the deploy installed stay: apt-get autoremove, or remove them by name"


def uninstall(
    inventory: Inventory,
    keep_model: Annotated[bool, typer.Option("--keep-model", help="Leave the model files where they are.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Don't ask.")] = False,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Take back what a deploy added.

    Service, releases, builds, toolkits, models, folders, user, apt's files, masks; on Windows the task or Startup file, rules and
    ports, and our settings in .wslconfig.
    """
    if not yes and (as_json or not sys.stdin.isatty()):
        refuse(["there is no terminal to ask on: give -y to take back what the deploy added"], as_json)
    with connected(inventory, limit, as_json) as fleet:
        plans, failed = each(fleet, lambda host: plan(fleet, host, keep_model))
        would = {name: items for name, (_, items) in plans.items() if any(i["state"] != "unchanged" for i in items)}
        for name, items in would.items() if not yes else ():
            _show(name, items, "would be taken back")
        if would and not yes and not typer.confirm("Take this back?"):
            raise typer.Exit(FAILED)
        taken, not_taken = each(
            fleet, lambda host: fleet.run(host, "uninstall", {**plans[host.name][0], "look": False})["items"], names=would
        )
    done = {name: taken.get(name, items) for name, (_, items) in plans.items() if name not in not_taken}
    failed |= not_taken
    if as_json:
        typer.echo(json.dumps({"hosts": done, "failed": failed, "unreachable": fleet.unreachable, "stays": PACKAGES}))
    else:
        for name, items in done.items():
            _show(name, items, "taken back")
        if taken:
            typer.echo(PACKAGES)
    left = {name: "not all could be taken back" for name, items in done.items() if any(i["state"] == "left" for i in items)}
    end({**failed, **left}, fleet.unreachable)


def _show(name: str, items: list[dict[str, Any]], verb: str) -> None:
    told = [item for item in items if item["state"] != "unchanged" or item["note"]]
    if all(item["state"] == "unchanged" for item in items):
        typer.echo(f"{name}: nothing to do")
    for item in told:
        state = {"changed": verb, "unchanged": "unchanged", "left": "LEFT"}[item["state"]]
        note = f" ({item['note']})" if item["note"] else ""
        command = f"; run: {item['command']}" if item["command"] else ""
        typer.echo(f"{name}: {item['what']}: {state}{note}{command}")


def plan(fleet: Fleet, host: Any, keep_model: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The argument of wsllama/host/uninstall.py for one host, and what it would do. Raises RemoteError."""
    from wsllama import layout
    from wsllama.operations import cuda, lean, watch

    argument: dict[str, Any] = {
        "look": True,
        "unit_files": [layout.WATCH_UNIT_FILE, layout.WATCHDOG_UNIT_FILE, layout.UNIT_FILE],
        "lean": lean.RECORD,
        "files": [layout.APT_CONF, cuda.SOURCES, cuda.PREFERENCES, cuda.KEYRING],
        "link": [layout.WATCH_TEXTFILE, watch.TARGET],
        "folders": [
            *(layout.ROOT, layout.CACHE, layout.ETC, "/var/log/wsllama"),
            *(os.path.dirname(layout.WATCHDOG_STATE), layout.WATCH_FOLDER),
        ],
        "user": layout.USER,
        "state": layout.STATE,
        "keep": [layout.MODELS] if keep_model else [],
        **_windows(fleet, host),
    }
    items: list[dict[str, Any]] = fleet.run(host, "uninstall", argument)["items"]
    return argument, items


def _windows(fleet: Fleet, host: Any) -> dict[str, Any]:
    """The Windows side's part of the argument."""
    from wsllama.domain.keep_alive import task_name
    from wsllama.facts import probe
    from wsllama.guard import settings_of
    from wsllama.operations import exposure, keep_alive

    settings = settings_of(host)
    if settings.platform != "wsl":
        return {"side": None}
    wsl = settings.wsl.model_copy(update={"windows": True})  # what was done before the setting changed is ours still
    settings = settings.model_copy(update={"wsl": wsl})
    now = fleet.run(host, "probe", probe.together(keep_alive.looks(settings), exposure.looks(settings)))
    side, kept, ports = (now[facet]["side"] for facet in ("windows", "keep_alive", "exposure"))
    recorded = side["journal"].get("keep_alive", {}).get("name")
    names = {*([task_name(kept["distro"])] if kept["distro"] else []), *([recorded] if recorded else [])}
    steps = exposure.steps_for(ports, [])
    return {
        "side": {**side, "distro": settings.wsl.distro or side["distro"]},
        "names": sorted(names),
        "steps": steps,
        "by_hand": {step["id"]: exposure.command(step) for step in steps},
        "run": hashlib.sha256(json.dumps(steps, sort_keys=True).encode()).hexdigest()[:16],
        "script": base64.b64encode(exposure.SCRIPT.read_bytes()).decode(),
        "configuration": configuration(side),
    }


def configuration(side: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Path -> bytes (base64) of WSL's two files now and without us, for those that we changed."""
    from wsllama.domain.windows import held, undo

    out: dict[str, dict[str, Any]] = {}
    there = {side[kind]["path"]: side[kind] for kind in ("wslconfig", "wslconf") if side[kind]}
    for path, entry in side["journal"].items():
        if not path.startswith("/"):
            continue
        if path not in there:
            why = side["interop"] or side["why"] or "its drive is not mounted"
            out[path] = {"now": None, "undone": None, "backups": [], "why": why}
            continue
        now, before = held(there[path]), _bytes(entry["before"])
        undone = undo(before, _bytes(entry["ours"]) or b"", now, entry["kind"], entry["changes"]) if now is not None else None
        backups = entry["backups"] if undone == before else []
        stuck = there[path]["problem"] if now is None or undone != now else None
        out[path] = {"now": _text(now), "undone": _text(undone), "backups": backups, "why": stuck}
    return out


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
