"""The record of a benchmark: what has to stand in it, whether two can be compared, and what got worse. Pure; used on hosts too.

The fields are those that the guide to local deployment lists as the least that makes a figure repeatable (GPU and driver,
llama.cpp's commit, the GGUF's full name, context, KV cache, offload by the log, fixed prompt, fixed output, memory after loading
and at peak, prompt and generation speed apart), and what makes a difference explainable. Bytes are bytes, times are seconds.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SCHEMA = 1
NOT_REPORTED = "not reported"
"""What a machine doesn't tell, as NVML in WSL does for much: a value of its own, and only where the schema lets it stand."""

_TEXT, _INT, _NUMBER, _LIST, _DICT = (str,), (int,), (int, float), (list,), (dict,)
_MAYBE = "or " + NOT_REPORTED
_ABOVE = "above 0"  # something else is divided by it

# Path -> types, and whether "not reported" may stand there. A path with * holds for each entry of a list or mapping.
FIELDS: Mapping[str, tuple[Any, ...]] = {
    "schema": _INT,
    "taken": _TEXT,
    "label": _TEXT,
    "took_s": _NUMBER,
    "disturbed": _TEXT,
    "host.name": _TEXT,
    "host.distro": _TEXT,
    "host.kernel": _TEXT,
    "host.wsl": (bool,),
    "host.cpu": _TEXT,
    "host.cores": _INT,
    "host.ram_bytes": _INT,
    "gpus": _LIST,
    "gpus.*.name": _TEXT,
    "gpus.*.vram_bytes": _INT,
    "gpus.*.driver": (*_TEXT, _MAYBE),
    "llama_cpp.commit": _TEXT,
    "llama_cpp.build_id": _TEXT,
    "llama_cpp.version": _TEXT,
    "release": _TEXT,
    "model.file": _TEXT,
    "model.sha256": _TEXT,
    "model.bytes": _INT,
    "context": _INT,
    "slots": _INT,
    "kv_cache.k": _TEXT,
    "kv_cache.v": _TEXT,
    "server": _DICT,
    "offload.layers": (*_INT, _MAYBE),
    "offload.of": (*_INT, _MAYBE),
    "buffers": _DICT,
    "buffers.*": _DICT,
    "buffers.*.*": _NUMBER,
    "memory.idle.state": _TEXT,
    "memory.idle.vram_bytes": (*_INT, _MAYBE),
    "memory.idle.server_bytes": _INT,
    "memory.idle.used_bytes": _INT,
    "memory.peak.vram_bytes": (*_INT, _MAYBE),
    "memory.peak.server_bytes": _INT,
    "memory.peak.used_bytes": _INT,
    "memory.without_server.vram_bytes": (*_INT, _MAYBE),
    "memory.without_server.used_bytes": (*_INT, _MAYBE),
    "gpu_load.power_mean_w": (*_NUMBER, _MAYBE),
    "gpu_load.power_peak_w": (*_NUMBER, _MAYBE),
    "gpu_load.utilization_mean_pct": (*_NUMBER, _MAYBE),
    "gpu_load.temperature_peak_c": (*_NUMBER, _MAYBE),
    "scenarios": _DICT,
    "scenarios.*.prompt": _LIST,
    "scenarios.*.prompt_sha256": _TEXT,
    "scenarios.*.thinking": (bool,),
    "scenarios.*.output_cap": _INT,
    "scenarios.*.runs": _LIST,
    "scenarios.*.runs.*.prompt_tokens": _INT,
    "scenarios.*.runs.*.cached_tokens": _INT,
    "scenarios.*.runs.*.generated_tokens": (*_INT, _ABOVE),
    "scenarios.*.runs.*.prompt_s": (*_NUMBER, _ABOVE),
    "scenarios.*.runs.*.generation_s": (*_NUMBER, _ABOVE),
    "scenarios.*.runs.*.first_token_s": (*_NUMBER, _ABOVE),
    "scenarios.*.prompt_per_s": _DICT,
    "scenarios.*.generation_per_s": _DICT,
    "scenarios.*.first_token_s": _DICT,
    **{
        f"scenarios.*.{figure}.{what}": (*_NUMBER, _ABOVE)
        for figure in ("prompt_per_s", "generation_per_s", "first_token_s")
        for what in ("median", "min", "max")
    },
    "plan": _DICT,
    "budgets": _LIST,
    "budgets.*.budget": _INT,
    "budgets.*.answered": _INT,
    "budgets.*.correct": _INT,
    "budgets.*.of": _INT,
    "threads": _LIST,
    "threads.*.threads": _INT,
    "threads.*.prompt_per_s": _NUMBER,
    "threads.*.generation_per_s": _NUMBER,
}
# What a scenario of several turns has besides.
TURNS: Mapping[str, tuple[Any, ...]] = {
    "growth.server_bytes": _INT,
    "growth.vram_bytes": (*_INT, _MAYBE),
    "last_to_first.generation_per_s": _NUMBER,
    "last_to_first.first_token_s": _NUMBER,
}
# What stands in a plan, where the release was planned.
PLAN: Mapping[str, tuple[Any, ...]] = {
    "plan.memory.gpus": _LIST,
    "plan.memory.ram": _DICT,
    **{f"plan.memory.{where}.{part}": _INT for where in ("gpus.*", "ram") for part in ("weights", "kv", "recurrent", "compute")},
    **{f"plan.memory.gpus.*.{part}": _INT for part in ("total", "free", "reserve")},
}


def problems(record: Any) -> list[str]:
    """What keeps a record from being one: each field that is missing or of a wrong kind, one sentence each; empty when whole."""
    if not isinstance(record, dict):
        return ["it is no JSON object"]
    if record.get("schema") != SCHEMA:
        return [f"its schema is {record.get('schema')!r}, and this version reads {SCHEMA}: update wsllama"]
    fields = {**FIELDS, **(PLAN if record.get("plan") else {})}
    out = [wrong for path, kinds in fields.items() for wrong in _wrong(record, path.split("."), kinds, "")]
    if not record.get("scenarios"):
        out.append("scenarios is empty")
    for name, one in _items(record.get("scenarios")):
        if isinstance(one, dict) and len(one.get("prompt") or ()) > 1:
            out += [wrong for path, kinds in TURNS.items() for wrong in _wrong(one, path.split("."), kinds, f"scenarios.{name}.")]
        if isinstance(one, dict) and not one.get("runs"):
            out.append(f"scenarios.{name}.runs is empty")
    return out


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from ((str(i), one) for i, one in enumerate(value))


def _wrong(value: Any, path: Sequence[str], kinds: tuple[Any, ...], where: str) -> Iterator[str]:
    name, rest = path[0], path[1:]
    if name == "*":
        for key, one in _items(value):
            yield from _wrong(one, rest, kinds, f"{where}{key}.") if rest else _judged(one, kinds, where + key)
    elif not isinstance(value, dict) or name not in value:
        if not rest or isinstance(value, dict):
            yield f"{where}{name} is missing"
    elif rest:
        yield from _wrong(value[name], rest, kinds, f"{where}{name}.")
    else:
        yield from _judged(value[name], kinds, where + name)


def _judged(value: Any, kinds: tuple[Any, ...], where: str) -> Iterator[str]:
    allowed = tuple(kind for kind in kinds if kind not in (_MAYBE, _ABOVE))
    if value == NOT_REPORTED:
        if _MAYBE not in kinds:
            yield f"{where} is {NOT_REPORTED!r}, which may not stand there"
    elif not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        yield f"{where} is {value!r}, not {' or '.join(kind.__name__ for kind in allowed)}"
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where} is {value!r}, not a number that can be compared"
    elif _ABOVE in kinds and value <= 0:
        yield f"{where} is {value!r}, not {_ABOVE}"


# Figures


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and largest of several runs."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def figures(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The three figures of a scenario, with their spread: speed of prompt and of generation, seconds to the first token.

    The server's own clock counts, and its own count of what it computed: tokens of the prompt that came from its cache are in
    neither. The first token's time is the client's.
    """
    return {
        "prompt_per_s": spread([run["prompt_tokens"] / run["prompt_s"] for run in runs]),
        "generation_per_s": spread([run["generated_tokens"] / run["generation_s"] for run in runs]),
        "first_token_s": spread([run["first_token_s"] for run in runs]),
    }


# Comparison

FIGURES = (
    ("prompt_per_s", "prompt speed", "tokens/s", True),
    ("generation_per_s", "generation speed", "tokens/s", True),
    ("first_token_s", "time to the first token", "s", False),
)
"""Key, name, unit, and whether more is better."""


def incomparable(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Why figures of two records don't belong beside each other, one sentence each."""
    out = []
    if before["model"]["sha256"] != after["model"]["sha256"]:
        out.append(f"they are of different models: {before['model']['file']} and {after['model']['file']}")
    common = shared(before, after)
    if not common:
        names = [", ".join(record["scenarios"]) for record in (before, after)]
        out.append(f"they have no scenario in common: {names[0]} and {names[1]}")
    for name in common:
        a, b = before["scenarios"][name], after["scenarios"][name]
        if a["prompt_sha256"] != b["prompt_sha256"]:
            out.append(f"scenario {name} has another prompt, length or thinking in each")
    out += [
        f"the {which} was disturbed: {record['disturbed']}"
        for which, record in (("first", before), ("second", after))
        if record["disturbed"]
    ]
    return out


def shared(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of the scenarios that both have."""
    return [name for name in before["scenarios"] if name in after["scenarios"]]


def regression(before: Mapping[str, Any], after: Mapping[str, Any], percent: float) -> list[str]:
    """What got worse by more than `percent` between two records, one sentence each.

    A figure counts only when its median is also worse than the worst run before: a spread that was seen is no regression. Where
    most of a prompt came from the cache, its speed says nothing.
    """
    out = []
    for name in shared(before, after):
        cached = any(run["cached_tokens"] for of in (before, after) for run in of["scenarios"][name]["runs"])
        for key, what, unit, more in FIGURES:
            if cached and key == "prompt_per_s":
                continue
            a, b = before["scenarios"][name][key], after["scenarios"][name][key]
            worse = (1 - b["median"] / a["median"] if more else b["median"] / a["median"] - 1) * 100
            beyond = b["median"] < a["min"] if more else b["median"] > a["max"]
            if worse > percent and beyond:
                figures_of = f"{a['median']:.4g} to {b['median']:.4g} {unit}"
                out.append(f"{name}: {what} is {worse:.0f} % worse, {figures_of}; {percent:g} % is allowed")
    return out


CONDITIONS = (
    ("host", "host.name"),
    ("distro", "host.distro"),
    ("kernel", "host.kernel"),
    ("processor", "host.cpu"),
    ("processors", "host.cores"),
    ("llama.cpp commit", "llama_cpp.commit"),
    ("build", "llama_cpp.build_id"),
    ("release", "release"),
    ("model", "model.file"),
    ("context", "context"),
    ("slots", "slots"),
    ("K cache", "kv_cache.k"),
    ("V cache", "kv_cache.v"),
    ("layers on the GPU", "offload.layers"),
)


def at(record: Mapping[str, Any], path: str) -> Any:
    """The value at a path with dots; None where there is none."""
    value: Any = record
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conditions that two records don't share: what, and its value in each."""
    rows: list[tuple[str, Any, Any]] = [(what, at(before, path), at(after, path)) for what, path in CONDITIONS]
    cards = [", ".join(f"{gpu['name']} ({gpu['driver']})" for gpu in of["gpus"]) or "none" for of in (before, after)]
    rows.append(("GPU and driver", cards[0], cards[1]))
    rows += [
        (f"server.{name}", before["server"].get(name), after["server"].get(name))
        for name in sorted({*before["server"], *after["server"]})
    ]
    return [{"what": what, "first": a, "second": b} for what, a, b in rows if a != b]


def ratios(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each figure of both records and how the second stands to the first; what one doesn't report has no ratio."""
    rows = [
        (f"{name}: {what}", unit, before["scenarios"][name][key]["median"], after["scenarios"][name][key]["median"])
        for name in shared(before, after)
        for key, what, unit, _ in FIGURES
    ]
    rows += [
        (f"{kind}, {when}", "bytes", before["memory"][when][key], after["memory"][when][key])
        for when in ("idle", "peak")
        for kind, key in (("VRAM", "vram_bytes"), ("RAM of the server", "server_bytes"))
    ]
    rows.append(("mean power", "W", before["gpu_load"]["power_mean_w"], after["gpu_load"]["power_mean_w"]))
    return [
        {
            "what": what,
            "unit": unit,
            "first": a,
            "second": b,
            "ratio": NOT_REPORTED if NOT_REPORTED in (a, b) or not a else round(b / a, 4),
        }
        for what, unit, a, b in rows
    ]
