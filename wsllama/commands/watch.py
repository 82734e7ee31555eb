"""`wsllama watch`: what the GPUs of a fleet do, live in the terminal or once."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wsllama.commands.common import FAILED, UNREACHABLE, Inventory, Json, Limit, connected, each, table, unlooked

if TYPE_CHECKING:
    from wsllama.remote import Fleet

EPILOG = """\b
Examples:
  wsllama watch inventory
  wsllama watch inventory --limit desk-1 --once
  wsllama watch inventory --json

Exit codes: 0 nothing to warn of, 1 a host warns, is not watched or gave no answer, 2 settings
are wrong, 4 a host can't be reached. Ctrl-C ends it, with the code of the last look."""
LIMIT_S = 20.0
HEAD = ("HOST", "STATE", "GPU", "USED", "MEMORY", "POWER", "HEAT", "REQUESTS", "TOKENS/S")
WELL = ("idle", "works")


def watch(
    inventory: Inventory,
    limit: Limit = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, as without a terminal.")] = False,
    every: Annotated[float, typer.Option(min=1, max=3600, metavar="SECONDS", help="Seconds between two looks.")] = 5,
    as_json: Json = False,
) -> None:
    """Show what GPUs do beside their servers, and what the hosts warn of: one question a host and look. Reads only.

    The figures are those of llama-watch.service on each host (settings: watch). A host that can't be reached at the start is not
    tried again.
    """
    with connected(inventory, limit, as_json) as fleet:
        live = sys.stdout.isatty() and not once and not as_json
        hosts, failed = followed(fleet, every) if live else looked(fleet)
    if as_json:
        typer.echo(json.dumps({"hosts": hosts, "failed": failed, "unreachable": fleet.unreachable}, ensure_ascii=False))
    elif not live:
        for line in shown(hosts, failed, fleet.unreachable):
            typer.echo(line)
    unlooked(failed, fleet.unreachable)
    wrong = failed or any(of["state"] not in WELL for of in hosts.values())
    raise typer.Exit(UNREACHABLE if fleet.unreachable else FAILED if wrong else 0)


def looked(fleet: Fleet) -> tuple[dict[str, Any], dict[str, str]]:
    """One look at all hosts at once: what each samples, with its state in a word, and why others gave no answer."""
    from wsllama import layout
    from wsllama.domain.watch import state_of
    from wsllama.remote import RemoteError

    def ask(host: Any) -> dict[str, Any]:
        try:
            found = fleet.run(host, "watched", {"folder": layout.WATCH_FOLDER, "unit": layout.WATCH_UNIT})
        except RemoteError:
            raise
        except Exception as e:  # of whatever connects: a host that is gone must not end the look at the others
            raise RemoteError(f"the connection is gone: {str(e) or type(e).__name__}") from e
        return {"state": state_of(found), **found}

    return each(fleet, ask, LIMIT_S)


def followed(fleet: Fleet, every: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Look again and again and show it in place, until Ctrl-C; returns the last look."""
    from rich.live import Live
    from rich.text import Text

    hosts, failed = looked(fleet)
    try:
        with Live(auto_refresh=False) as live:
            while True:
                lines = shown(hosts, failed, fleet.unreachable)
                live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)
                time.sleep(every)
                hosts, failed = looked(fleet)
    except KeyboardInterrupt:
        return hosts, failed


def shown(hosts: dict[str, Any], failed: dict[str, str], unreachable: dict[str, str]) -> list[str]:
    """Lines of one look: a row a GPU, then a line a warning."""
    rows = [row for name, of in hosts.items() for row in rows_of(name, of)]
    rows += [
        (name, state, *["-"] * (len(HEAD) - 2))
        for state, names in (("no answer", failed), ("unreachable", unreachable))
        for name in names
    ]
    lines = list(table(HEAD, rows))
    for name, of in hosts.items():
        if of["sample"] is None or of["state"] == "stale":
            lines.append(f"{name}: llama-watch.service is {of['unit'] or 'not there'}: watch.enabled decides (docs/settings.md)")
            continue
        since = ((time.strftime("%H:%M", time.localtime(w["since"])), w["sentence"]) for w in of["sample"]["warnings"])
        lines += [f"{name}: since {at}: {sentence}" for at, sentence in since]
        if of["sample"]["why"]:
            lines.append(f"{name}: {of['sample']['why']}")
    return lines


def rows_of(name: str, of: dict[str, Any]) -> list[tuple[str, ...]]:
    """One host as rows of the table, one a GPU."""
    sample = of["sample"]
    if sample is None:
        return [(name, of["state"], *["-"] * (len(HEAD) - 2))]
    server, speed = sample["server"], sample["tokens_per_second"]
    ends = (str(server.get("busy", "-")), "-" if speed is None else f"{speed:.1f}")
    rows = [_gpu(gpu) for gpu in sample["gpus"]] or [("not reported", *["-"] * 4)]
    return [
        (name if not n else "", of["state"] if not n else "", *row, *(ends if not n else ("", ""))) for n, row in enumerate(rows)
    ]


def _gpu(gpu: dict[str, Any]) -> tuple[str, ...]:
    def told(value: Any, text: str) -> str:
        return "not reported" if value is None else text.format(value)

    used, total = gpu["used"], gpu["total"]
    memory = "not reported" if None in (used, total) else f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB"
    return (
        gpu["name"],
        told(gpu["utilization_percent"], "{}%"),
        memory,
        told(gpu["power_w"], "{:.0f} W"),
        told(gpu["temperature_c"], "{} °C"),
    )
