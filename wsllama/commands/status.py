"""`wsllama status`: what each host of a fleet serves now."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import typer

from wsllama.commands.common import FAILED, UNREACHABLE, Inventory, Json, Limit, connected, each, table, unlooked
from wsllama.domain.status import SERVES

if TYPE_CHECKING:
    from wsllama.remote import Fleet

EPILOG = """\b
Examples:
  wsllama status inventory
  wsllama status inventory --limit desk-1 --json

Exit codes: 0 every host serves, 1 one does not or could not be looked at, 2 settings are wrong, 4 a host can't be reached, also
when others don't serve."""
LIMIT_S = 60.0
HEAD = ("HOST", "STATE", "SINCE", "RELEASE", "BUILD", "MODEL", "CONTEXT", "GPU", "MEMORY", "LAST DEPLOY")


def status(inventory: Inventory, limit: Limit = None, as_json: Json = False) -> None:
    """Show what hosts serve: state, release, build, model, context, GPU, memory, what waits. Reads only, one question a host."""
    with connected(inventory, limit, as_json) as fleet:
        hosts, failed = each(fleet, lambda host: document(fleet, host), LIMIT_S)
    if as_json:
        typer.echo(json.dumps({"hosts": hosts, "failed": failed, "unreachable": fleet.unreachable}, ensure_ascii=False))
    else:
        rows = [row(name, of) for name, of in hosts.items()]
        rows += [(name, "unreachable", *["-"] * (len(HEAD) - 2)) for name in sorted(fleet.unreachable)]
        for line in table(HEAD, rows):
            typer.echo(line)
        for name, of in hosts.items():
            for sentence in of["pending"]:
                typer.echo(f"{name}: {sentence}")
    unlooked(failed, fleet.unreachable)
    idle = failed or any(of["state"] != SERVES for of in hosts.values())
    raise typer.Exit(UNREACHABLE if fleet.unreachable else FAILED if idle else 0)


def document(fleet: Fleet, host: Any) -> dict[str, Any]:
    """What one host serves, for JSON. Raises RemoteError."""
    from wsllama import layout
    from wsllama.domain import status as rules
    from wsllama.domain import windows as files
    from wsllama.facts import probe
    from wsllama.guard import settings_of
    from wsllama.operations import cuda, windows

    settings = settings_of(host)
    own: probe.Looks = {"releases": {layout.ROOT: None}, "system": {"memory_total": None, "memory_available": None}}
    smi: probe.Looks = {"gpu": {cuda.NVIDIA_SMI[settings.platform]: None}} if settings.backend == "cuda" else {}
    side = windows.look(settings) if settings.platform == "wsl" else {}
    argument = {"looks": probe.together(own, smi, side), "root": layout.ROOT, "unit": layout.UNIT}
    seen = fleet.run(host, "status", argument)
    gpu = cuda.reading(seen["now"], settings) if smi else None
    waiting: list[str] = []
    if side:
        found = seen["now"]["windows"]["side"]
        wanted = windows.in_file(found, settings) if settings.wsl.windows else {}
        waiting = files.pending(files.effect(found, wanted)[0])
    return rules.status(seen, layout.ROOT, gpu, waiting)


def row(name: str, of: dict[str, Any]) -> tuple[str, ...]:
    """A host as a row of the table."""
    accepted = time.strftime(" (%Y-%m-%d %H:%M)", time.localtime(of["accepted"])) if of["accepted"] else ""
    gpus = ", ".join(f"{gpu['name']} {gpu['driver'] or ''}".strip() for gpu in of["gpu"]) or of["gpu_status"] or "-"
    memory = f"{(of['server_rss'] or 0) / 2**30:.1f} of {of['memory_total'] / 2**30:.1f} GiB"
    return (
        name,
        of["state"],
        of["since"] or "-",
        f"{of['release'] or '-'}",
        f"{(of['commit'] or '-')[:9]} {of['build'] or ''}".strip(),
        " ".join(filter(None, (of["model"], of["quant"]))) or "-",
        str(of["ctx_size"] or "-"),
        gpus,
        memory,
        f"{of['result'] or '-'}{accepted}",
    )
