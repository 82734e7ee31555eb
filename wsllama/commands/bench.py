"""`wsllama bench`: measure the served model of hosts, and keep the records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from wsllama import bench as work
from wsllama.commands.common import Inventory, Json, Limit, connected, end, refuse
from wsllama.domain import record
from wsllama.domain.report import planned

EPILOG = """\b
Examples:
  wsllama bench inventory
  wsllama bench inventory --limit desk-1 --scenario answer --runs 5 --label 'after the driver'
  wsllama bench inventory --threads-sweep 4,6,8,12 --budgets 128,512,2048

Scenarios: reasoning, answer, conversation; also short, for a canary.

Exit codes: 0 every host was measured, 1 a host was not, 2 settings or options are wrong, 4 a host can't be reached."""

Records = Annotated[Path, typer.Option("--records", metavar="FOLDER", help="Folder here that records are collected in.")]


def bench(
    inventory: Inventory,
    limit: Limit = None,
    scenario: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this scenario; may be repeated. Default: the first three.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Runs of reasoning and answer.")] = 3,
    threads_sweep: Annotated[
        str, typer.Option(metavar="LIST", help="Also llama-bench with these numbers of threads, as in 4,8.")
    ] = "",
    budgets: Annotated[
        str,
        typer.Option(metavar="LIST", help="Also how many questions get an answer with so many tokens of thinking."),
    ] = "",
    label: Annotated[str, typer.Option(metavar="TEXT", help="Kept in the record and shown beside it.")] = "",
    restart: Annotated[
        bool,
        typer.Option(
            help="Start the service again first, to see its memory before the first request, and for what needs another start."
        ),
    ] = True,
    records: Records = Path(work.FOLDER),
    as_json: Json = False,
) -> None:
    """Measure the served model: speed of prompt and generation, time to the first token, memory, power.

    The service is started again first, unless --no-restart; nobody is served meanwhile. On a GPU the conversation is
    also held without CUDA graphs. Each record stays on its host and is copied here; one that is incomplete is refused.
    """
    wrong, numbers = [], {}
    for option, text in (("--threads-sweep", threads_sweep), ("--budgets", budgets)):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not all(part.isdecimal() and int(part) <= 65536 for part in parts) or (option == "--threads-sweep" and "0" in parts):
            wrong.append(f"{option} {text!r}: give numbers with commas between them, as in 4,8")
        else:
            numbers[option] = sorted({int(part) for part in parts})
    try:
        names = work.scenario_names(scenario)
    except ValueError as e:
        wrong.append(str(e))
    if threads_sweep and not restart:
        wrong.append("--threads-sweep stops the service, which --no-restart forbids: leave one of them out")
    if wrong:
        refuse(wrong, as_json)
    more = {
        "budgets": numbers["--budgets"],
        "threads": numbers["--threads-sweep"],
        "restart": restart,
        "graphs": "auto" if restart else "never",
    }
    _measure(inventory, limit, names, runs, label, more, records, as_json)


def _measure(
    inventory: str,
    limit: list[str] | None,
    names: list[str],
    runs: int,
    label: str,
    more: dict[str, Any],
    folder: Path,
    as_json: bool,
) -> None:
    done: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with connected(inventory, limit, as_json) as fleet:
        import gevent

        from wsllama.remote import RemoteError

        def one(host: Any) -> None:
            try:
                done[host.name] = work.measure(fleet, host, work.argument(fleet, host, names, runs, label, **more))
                work.collect(fleet, host, folder)
            except (RemoteError, OSError) as e:
                failed[host.name] = str(e)

        gevent.joinall([gevent.spawn(one, host) for host in fleet.hosts], raise_error=True)
    if as_json:
        document = {"records": done, "failed": failed, "unreachable": fleet.unreachable, "folder": str(folder)}
        typer.echo(json.dumps(document, ensure_ascii=False))
    else:
        for found in done.values():
            for line in lines(found):
                typer.echo(line)
    end(failed, fleet.unreachable)


def lines(of: Mapping[str, Any]) -> list[str]:
    """A record for people: the conditions, then the figures, as the guide to local deployment writes them."""
    gpus = ", ".join(f"{g['name']}, {g['vram_bytes'] / 2**30:.1f} GiB, driver {g['driver']}" for g in of["gpus"]) or "none"
    offload, idle, peak, load = of["offload"], of["memory"]["idle"], of["memory"]["peak"], of["gpu_load"]
    out = [
        f"{of['host']['name']}, {of['taken']}" + (f", {of['label']}" if of["label"] else ""),
        f"  GPU         {gpus}",
        f"  llama.cpp   {of['llama_cpp']['commit'][:9]}, build {of['llama_cpp']['build_id']}, release {of['release']}",
        f"  model       {of['model']['file']}, sha256 {of['model']['sha256'][:16]}",
        f"  context     {of['context']}; KV cache {of['kv_cache']['k']} and {of['kv_cache']['v']}; layers on the GPU by the log:"
        f" {offload['layers']} of {offload['of']}"
        + (f", experts of {of['server']['n_cpu_moe']} in RAM" if of["server"].get("n_cpu_moe") else ""),
        f"  VRAM        {size(idle['vram_bytes'])} {idle['state']}, {size(peak['vram_bytes'])} at most",
        f"  RAM         {size(idle['server_bytes'])} of the server {idle['state']}, {size(peak['server_bytes'])} at most",
        f"  power       {watts(load['power_mean_w'])} on average, {watts(load['power_peak_w'])} at most",
    ]
    for name, one in of["scenarios"].items():
        times = f"{len(one['runs'])} {'turns' if len(one['prompt']) > 1 else 'times'}"
        out.append(f"  {name} ({times}, replies of {one['output_cap']} tokens)")
        for key, what, unit, _ in record.FIGURES:
            f = one[key]
            out.append(f"    {what:<23} {f['median']:>9.2f} {unit:<8}  {f['min']:.2f} to {f['max']:.2f}")
        out += _of_turns(one)
    out += [
        f"  thinking of {b['budget']} tokens: {b['answered']} of {b['of']} answered, {b['correct']} right" for b in of["budgets"]
    ]
    out += [
        f"  {t['threads']} threads: prompt {t['prompt_per_s']:.2f} tokens/s, generation {t['generation_per_s']:.2f} tokens/s"
        for t in of["threads"]
    ]
    out += [f"  plan, {p['where']}: {p['what']} {p['planned']}, measured {p['measured']}, {p['difference']}" for p in planned(of)]
    return [*out, *([f"  mind: {of['disturbed']}"] if of["disturbed"] else [])]


def _of_turns(one: Mapping[str, Any]) -> list[str]:
    if "last_to_first" not in one:
        return []
    last, growth = one["last_to_first"], one["growth"]
    out = [
        f"    last turn to first      generation {last['generation_per_s']:.2f} times as fast, memory of the server"
        f" {size(growth['server_bytes'], '+')}, VRAM {size(growth['vram_bytes'], '+')}"
    ]
    if "without_graphs" in one:
        f = one["without_graphs"]["generation_per_s"]
        out.append(f"    without CUDA graphs     {f['median']:.2f} tokens/s  {f['min']:.2f} to {f['max']:.2f}")
    return out


def size(value: int | str, sign: str = "") -> str:
    """Bytes as people read them; what isn't reported stays so."""
    if isinstance(value, str):
        return value
    return f"{value / 2**30:{sign}.2f} GiB" if abs(value) >= 2**30 else f"{value / 2**20:{sign}.1f} MiB"


def watts(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.0f} W"
