"""What a report of benchmarks shows: tables and the geometry of its drawings, from records. Pure; nothing here is escaped."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wsllama.domain.record import FIGURES, NOT_REPORTED
from wsllama.domain.scenarios import SCENARIOS
from wsllama.domain.server_log import is_gpu

Record = Mapping[str, Any]
MIB = 1 << 20
STACK_HEIGHT = 220
"""Of a column of memory, in pixels: all that a machine has."""
TURN_HEIGHT = 56
HEADLINE = ("answer", "reasoning", "conversation", "short")  # the figure that stands for a record is of the first that it has
# Key of a record's buffers -> name, and the plan's key.
CLASSES = {"model": ("weights", "weights"), "kv": ("KV cache", "kv"), "recurrent": ("state", "recurrent"),
           "compute": ("compute", "compute")}  # fmt: skip


def view(records: Sequence[Record]) -> dict[str, Any]:
    """All that a page shows. records: whole ones, each with its `id`; in any order."""
    ordered = sorted(records, key=lambda one: (one["taken"], one["id"]))
    newest = {one["host"]["name"]: one for one in ordered}
    hosts = [newest[name] for name in sorted(newest)]
    return {
        "hosts": len(hosts),
        "records": len(ordered),
        "newest": when(ordered[-1]["taken"]) if ordered else "",
        "tiles": tiles(hosts),
        "fleet": [fleet_row(one) for one in hosts],
        "speed": [chart for name in SCENARIOS if (chart := speed(name, ordered))["rows"]],
        "stacks": [{"host": one["host"]["name"], "columns": columns(one)} for one in hosts],
        "plans": [{"host": one["host"]["name"], "rows": planned(one)} for one in hosts],
        "turns": [turns(one) for one in hosts if "conversation" in one["scenarios"]],
        "budgets": [{"host": one["host"]["name"], **row} for one in hosts for row in one["budgets"]],
        "threads": [{"host": one["host"]["name"], **row} for one in hosts for row in one["threads"]],
        "minds": [f"{one['host']['name']}, {when(one['taken'])}: {one['disturbed']}" for one in ordered if one["disturbed"]],
    }


# Words


def when(taken: str) -> str:
    return taken.replace("T", " ")[:16] + " UTC"


def size(value: float | str | None) -> str:
    """Bytes as people read them; what isn't reported stays so."""
    if value is None or isinstance(value, str):
        return value or NOT_REPORTED
    return f"{value / (1 << 30):.2f} GiB" if abs(value) >= 1 << 30 else f"{value / MIB:.1f} MiB"


def number(value: float | str) -> str:
    """Three digits that count, as figures are read; what isn't reported stays so."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def headline(of: Record) -> Mapping[str, Any]:
    """The scenario that stands for a record."""
    scenarios: Mapping[str, Mapping[str, Any]] = of["scenarios"]
    return scenarios[next((name for name in HEADLINE if name in scenarios), next(iter(scenarios)))]


def gpu_text(of: Record) -> str:
    return ", ".join(gpu["name"] for gpu in of["gpus"]) or "no GPU"


def cached(scenario: Mapping[str, Any]) -> bool:
    """Whether prompts came from the server's cache in part, so that their speed says nothing."""
    return any(run["cached_tokens"] for run in scenario["runs"])


# The fleet


def tiles(hosts: Sequence[Record]) -> list[dict[str, str]]:
    """The first look: figures of the newest record of each host."""
    if not hosts:
        return []
    out = []
    for key, what, unit, _ in sorted(FIGURES, key=lambda figure: figure[0] != "generation_per_s"):
        values = [headline(one)[key]["median"] for one in hosts]
        spread = f"{number(min(values))} to {number(max(values))}" if len(values) > 1 else hosts[0]["host"]["name"]
        out.append({"what": what, "value": number(statistics.median(values)), "unit": unit, "more": spread})
    return out


def fleet_row(of: Record) -> dict[str, str]:
    """One host in the table, from its newest record: heading -> text."""
    best, memory = headline(of), of["memory"]
    experts = of["server"].get("n_cpu_moe")
    layers = f"{of['offload']['layers']} of {of['offload']['of']}" + (f", experts of {experts} in RAM" if experts else "")
    return {
        "host": of["host"]["name"],
        "GPU": gpu_text(of),
        "model": of["model"]["file"],
        "llama.cpp": of["llama_cpp"]["commit"][:9],
        "release": of["release"],
        "context": f"{of['context']:,}",
        "KV cache": " / ".join(dict.fromkeys((of["kv_cache"]["k"], of["kv_cache"]["v"]))),
        "layers on GPU": layers if of["gpus"] else "0",
        "prompt, tokens/s": number(best["prompt_per_s"]["median"]),
        "generation, tokens/s": number(best["generation_per_s"]["median"]),
        "first token, s": number(best["first_token_s"]["median"]),
        "VRAM at peak": size(memory["peak"]["vram_bytes"]) if of["gpus"] else "none",
        "server's RAM at peak": size(memory["peak"]["server_bytes"]),
        "mean power, W": number(of["gpu_load"]["power_mean_w"]),
        "taken": when(of["taken"]),
    }


def speed(name: str, ordered: Iterable[Record]) -> dict[str, Any]:
    """Generation speed of one scenario, a bar for each release of each host, from the newest record of it.

    Widths are percent of the widest; a bar ends at the median, and a line goes from the slowest run to the fastest.
    """
    newest = {}
    for one in ordered:
        if name in one["scenarios"]:
            newest[(one["host"]["name"], one["release"], one["llama_cpp"]["build_id"], one["model"]["sha256"])] = one
    chosen = sorted(newest.values(), key=lambda one: (one["host"]["name"], one["taken"]))
    widest = max((one["scenarios"][name]["generation_per_s"]["max"] for one in chosen), default=1)
    rows = []
    for one in chosen:
        figures = one["scenarios"][name]
        rate = figures["generation_per_s"]
        rows.append(
            {
                "host": one["host"]["name"],
                "release": one["release"],
                "commit": one["llama_cpp"]["commit"][:9],
                "label": one["label"],
                "taken": when(one["taken"]),
                "value": number(rate["median"]),
                "spread": f"{number(rate['min'])} to {number(rate['max'])}",
                "prompt": "cached" if cached(figures) else number(figures["prompt_per_s"]["median"]),
                "first": number(figures["first_token_s"]["median"]),
                **{key: round(100 * rate[key] / widest, 2) for key in ("median", "min", "max")},
            }
        )
    return {"scenario": name, "about": SCENARIOS[name].about, "rows": rows}


# Memory


def by_class(of: Record, gpu: bool) -> dict[str, int]:
    """Bytes of each class of buffers that the log shows, on the GPUs or in RAM."""
    return {
        key: round(sum(mib for device, mib in of["buffers"].get(key, {}).items() if is_gpu(device) == gpu) * MIB)
        for key in CLASSES
    }


def columns(of: Record) -> list[dict[str, Any]]:
    """The memory of a host as one column, or two: what the server's log shows, what else is held, and what is free."""
    idle, peak = of["memory"]["idle"], of["memory"]["peak"]
    out = []
    if of["gpus"]:
        total = sum(gpu["vram_bytes"] for gpu in of["gpus"])
        rest = ("Windows, CUDA, others", "free")
        out.append(column("VRAM", total, by_class(of, True), idle["vram_bytes"], peak["vram_bytes"], rest))
    ram = by_class(of, False)
    held = max(sum(ram.values()), idle["server_bytes"])  # mapped weights that were not read yet are in the log alone
    rest = ("rest of the server", "not the server's")
    out.append(column("RAM", of["host"]["ram_bytes"], ram, held, max(held, peak["server_bytes"]), rest))
    return out


def column(
    name: str, total: int, classes: Mapping[str, int], idle: int | str, peak: int | str, rest: tuple[str, str]
) -> dict[str, Any]:
    """One column: segments from the bottom up, each with its place and height in pixels, and where the peak was.

    idle: what is held after loading; rest: what is held and not in the log, and what is left, by their names here.
    """
    parts = [(key, CLASSES[key][0], value) for key, value in classes.items()]
    known = sum(classes.values())
    if not isinstance(idle, str):
        parts.append(("others", rest[0], max(0, idle - known)))
    free = total - sum(value for _, _, value in parts)
    scale = STACK_HEIGHT / max(total, total - free)
    segments: list[dict[str, Any]] = []
    y = float(STACK_HEIGHT)
    for key, what, value in [*parts, ("free", rest[1], max(0, free))]:
        height = value * scale
        y -= height
        segments.append({"key": key, "what": what, "text": size(value), "y": round(y, 2), "height": round(height, 2)})
    return {
        "name": name,
        "total": size(total),
        "segments": [segment for segment in segments if segment["height"] > 0],
        "peak": size(peak),
        "peak_y": None if isinstance(peak, str) else round(max(0.0, STACK_HEIGHT - peak * scale), 2),
    }


def planned(of: Record) -> list[dict[str, str]]:
    """The plan beside the log, class by class; empty where the release was not planned."""
    plan = of["plan"].get("memory", of["plan"])
    if not plan:
        return []
    rows = []
    for where, gpu in (("VRAM", True), ("RAM", False)):
        expected = plan["gpus"] if gpu else [plan["ram"]]
        for key, found in by_class(of, gpu).items():
            want = sum(part[CLASSES[key][1]] for part in expected)
            if want or found:
                rows.append(_row(where, CLASSES[key][0], want, found))
        idle, without = of["memory"]["idle"]["vram_bytes"], of["memory"]["without_server"]["vram_bytes"]
        if gpu and expected and not isinstance(idle, str) and not isinstance(without, str):
            want = sum(card["total"] - card["free"] - card["reserve"] for card in expected)
            rows.append(_row(where, "all, by nvidia-smi", want, idle - without))
    return rows


def _row(where: str, what: str, want: int, found: int) -> dict[str, str]:
    off = f"{round(100 * (found - want) / want, 1) + 0.0:+} %" if want else "not planned"  # + 0.0: never "-0.0"
    return {"where": where, "what": what, "planned": size(want), "measured": size(found), "difference": off}


# Turns


def turns(of: Record) -> dict[str, Any]:
    """The conversation of a host: a bar a turn, its height the generation speed, and what changed from first to last."""
    one = of["scenarios"]["conversation"]
    rates = [run["generated_tokens"] / run["generation_s"] for run in one["runs"]]
    most = max(rates)
    graphs = one.get("without_graphs")
    return {
        "host": of["host"]["name"],
        "bars": [
            {"turn": i, "text": number(rate), "height": round(TURN_HEIGHT * rate / most, 2), "percent": round(100 * rate / most)}
            for i, rate in enumerate(rates, 1)
        ],
        "median": number(one["generation_per_s"]["median"]),
        "last_to_first": f"{one['last_to_first']['generation_per_s']:.2f}",
        "ram": size(one["growth"]["server_bytes"]),
        "vram": size(one["growth"]["vram_bytes"]) if of["gpus"] else "none",
        "without_graphs": number(graphs["generation_per_s"]["median"]) if graphs else "",
    }


# Markdown


def cell(value: Any) -> str:
    """Text of a cell: nothing in it ends the cell or the line, and nothing is read as a tag or as emphasis."""
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for special in "\\|`*_[]":
        text = text.replace(special, "\\" + special)
    return text


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows of equal keys as a table of Markdown."""
    if not rows:
        return []
    lines = [[*rows[0]], ["---"] * len(rows[0]), *([cell(value) for value in row.values()] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def markdown(of: Mapping[str, Any]) -> str:
    """The same as the page, without drawings. of: a view."""
    out = ["# Benchmarks", "", f"{of['records']} records of {of['hosts']} hosts, the newest of {of['newest']}.", ""]
    out += [f"- {cell(sentence)}" for sentence in of["minds"]] + [""] * bool(of["minds"])
    out += ["## Fleet", "", *table(of["fleet"])]
    for chart in of["speed"]:
        out += [f"## Speed: {chart['scenario']}", "", f"{chart['about']}.", ""]
        heads = {"host": "host", "release": "release", "commit": "llama.cpp", "value": "generation, tokens/s",
                 "spread": "slowest to fastest run", "prompt": "prompt, tokens/s", "first": "first token, s", "taken": "taken",
                 "label": "label"}  # fmt: skip
        out += table([{head: row[key] for key, head in heads.items()} for row in chart["rows"]])
    out += ["## Plan against measurement", ""]
    for host in of["plans"]:
        out += [f"### {cell(host['host'])}", "", *(table(host["rows"]) or ["Its release was not planned.", ""])]
    out += ["## Memory", ""]
    for host in of["stacks"]:
        for one in host["columns"]:
            parts = ", ".join(f"{segment['what']} {segment['text']}" for segment in one["segments"])
            out += [f"- {cell(host['host'])}, {one['name']} of {one['total']}: {parts}; {one['peak']} at peak"]
    out += ["", "## Conversation", ""]
    heads = {"host": "host", "median": "generation, tokens/s", "last_to_first": "last turn to first", "ram": "RAM grew by",
             "vram": "VRAM grew by", "without_graphs": "without CUDA graphs"}  # fmt: skip
    out += table([{head: one[key] for key, head in heads.items()} for one in of["turns"]]) or ["No record has one.", ""]
    for title, rows in (("Answers by thinking budget", of["budgets"]), ("Threads", of["threads"])):
        out += [f"## {title}", "", *table(rows)] if rows else []
    return "\n".join(out).rstrip() + "\n"
