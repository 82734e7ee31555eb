"""`wsllama models`: which models hosts have, what needs them, and the room that they take."""

from __future__ import annotations

import json
from typing import Any

import typer

from wsllama.commands.common import Inventory, Json, Limit, connected, end

EPILOG = (
    "Example: wsllama models inventory. Reads only. Exit codes: 0 shown, 1 a host gave no answer, 2 settings are wrong, 4 a host"
    " can't be reached."
)


def models(inventory: Inventory, limit: Limit = None, as_json: Json = False) -> None:
    """Show the models on hosts: size, what needs them, whether they are as they were verified; what is unfinished; free space."""
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with connected(inventory, limit, as_json) as fleet:
        from wsllama import layout
        from wsllama.remote import RemoteError

        looks = {facet: {layout.MODELS: None} for facet in ("models", "incoming", "disk")} | {"releases": {layout.ROOT: None}}
        for host in fleet.hosts:
            try:
                found[host.name] = _told(fleet.run(host, "probe", looks))
            except RemoteError as e:
                failed[host.name] = str(e)
    if as_json:
        typer.echo(json.dumps({"hosts": found, "failed": failed, "unreachable": fleet.unreachable}))
    else:
        for name, told in found.items():
            unfinished = sum(file["bytes"] for file in told["incoming"])
            more = f", {unfinished / 1e9:.1f} GB unfinished" if unfinished else ""
            typer.echo(f"{name}: {told['bytes'] / 1e9:.1f} GB of models{more}, {told['free_bytes'] / 1e9:.1f} GB free")
            for file in told["files"]:
                state = "" if file["intact"] else "  not as it was verified"
                typer.echo(
                    f"  {file['file']:<60} {file['bytes'] / 2**30:8.2f} GiB  {' and '.join(file['needed_by']) or '-'}{state}"
                )
            for file in told["incoming"]:
                state = "a run is at it" if file["busy"] else f"untouched for {file['age_s'] / 3600:.0f} h"
                gone = ", abandoned: a deploy with model.keep_models removes it" if file["abandoned"] else ""
                typer.echo(f"  {file['file']:<60} {file['bytes'] / 2**30:8.2f} GiB  unfinished, {state}{gone}")
    end(failed, fleet.unreachable)


def _told(now: Any) -> dict[str, Any]:
    from wsllama import layout
    from wsllama.domain import housekeeping

    there, releases, incoming = now["models"][layout.MODELS], now["releases"][layout.ROOT], now["incoming"][layout.MODELS]
    by = {
        link: housekeeping.needed({**releases, "current": releases[link], "last-good": None, "highest": 0})
        for link in ("current", "last-good")
    }
    abandoned = housekeeping.abandoned(incoming)
    return {
        "bytes": housekeeping.total(there),
        "free_bytes": now["disk"][layout.MODELS],
        "files": [
            {
                "file": place,
                "bytes": stamp["size"],
                "sha256": stamp["sha256"],
                "intact": stamp["intact"],
                "needed_by": [link for link, folders in by.items() if place.split("/")[0] in folders],
            }
            for place, stamp in there.items()
        ],
        "incoming": [
            {
                "file": name,
                "bytes": file["size"],
                "age_s": file["age_s"],
                "busy": file["busy"],
                "abandoned": name in abandoned,
            }
            for name, file in incoming.items()
        ],
    }
