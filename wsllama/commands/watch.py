"""`wsllama watch`: what the GPUs of a fleet do, live in the terminal or once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection
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
AGAIN_S = 30.0  # a host that is away takes 10 s to be tried
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

    The figures are those of llama-watch.service on each host (settings: watch). While it is live, a host that is lost or away is
    tried again every half minute.
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

    def ask(host: Any) -> dict[str, Any]:
        found = fleet.run(host, "watched", {"folder": layout.WATCH_FOLDER, "unit": layout.WATCH_UNIT})
        return {"state": state_of(found), **found}

    return each(fleet, ask, LIMIT_S)


def followed(fleet: Fleet, every: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Look again and again and show it in place, until Ctrl-C; returns the last look."""
    from rich.live import Live
    from rich.text import Text

    tried = dict.fromkeys(fleet.unreachable, time.monotonic())
    hosts, failed = looked(fleet)
    try:
        with Live(auto_refresh=False) as live:
            while True:
                lines = shown(hosts, failed, fleet.unreachable)
                live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)
                reconnect(fleet, {*failed, *fleet.unreachable}, tried)
                time.sleep(every)
                hosts, failed = looked(fleet)
    except KeyboardInterrupt:
        return hosts, failed


def reconnect(fleet: Fleet, lost: Collection[str], tried: dict[str, float]) -> None:
    """Connect hosts anew beside the looks, which don't wait for that; each at most every AGAIN_S.

    lost: names; tried: when that was done last, by name
    """
    import gevent

    now = time.monotonic()
    for host in fleet.wanted:
        if host.name in lost and now - tried.get(host.name, -AGAIN_S) >= AGAIN_S:
            tried[host.name] = now
            gevent.spawn(fleet.reconnect, host)


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
