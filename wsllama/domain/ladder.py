"""What to give up when memory runs out, one rung after the other, as settings and as commands. Pure.

The order is that of plans, planner.RUNGS. A plan knows how much is lacking and a recovery doesn't, so it takes larger steps, and
only those that free the memory that is lacking. What costs nothing comes first, and what only a person can do.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from wsllama.domain import memory, models, planner, server_log
from wsllama.domain.memory import GIB, MIB, Load, Shape
from wsllama.domain.planner import Short

MODEL = models.estimate(20 * GIB)
"""Qwen3.6-35B-A3B in a quant of the usual size: what a step frees is said for it."""
ALL_LAYERS = 99
WORTH = 16 * MIB  # a step that frees less isn't tried

_LESS = ("ctx_size", "parallel", "ubatch_size", "cache_ram", "ctx_checkpoints")
_NAMES = (*_LESS, "cache_type_k", "cache_type_v")
_VRAM: tuple[tuple[str, dict[str, Any]], ...] = (
    ("End other programs that use the card: nvidia-smi shows how much they hold, Windows' task manager who", {}),
)
_RAM: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Weights mapped instead of read: pages of the file can be given back", {"load_mode": "mmap"}),
    ("More memory and swap for WSL: wsl.wsl2.memory and swap in the settings, then wsl --shutdown on Windows", {}),
)
_LAST = {
    "vram": "A smaller quant of the model: wsllama lock shows those that are pinned",
    "ram": "Fewer experts in RAM if the card has room (n_cpu_moe), else a smaller quant of the model",
}


class Rung(NamedTuple):
    why: str
    server: dict[str, Any]  # settings of the topic server; empty where something else has to be done


def rungs(
    short_of: Short,
    server: Mapping[str, Any],
    running: Mapping[str, Any] | None = None,
    least_ctx_size: int = planner.LEAST_CONTEXT,
    gpu: bool = True,
) -> list[Rung]:
    """The rungs that are left, each with what those before it have changed.

    short_of: the card's memory, or the distro's. server: the settings. running: what ran out of memory, where a plan has set
    what the settings leave open. least_ctx_size: tokens; the context isn't made shorter. gpu: it was built for one.
    """
    settings = {name: value for name, value in server.items() if value is not None}
    out, changed = [], dict[str, Any]()
    for why, change in _VRAM if short_of == "vram" else _RAM:
        if not change or any(settings.get(name) != value for name, value in change.items()):
            changed |= change
            out.append(Rung(why, dict(changed) if change else {}))
    first = _load(settings, running or {}, gpu)
    load = first
    for why, load in _steps(short_of, first, least_ctx_size, int(gpu)):
        out.append(Rung(why, {**changed, **_settings(load, first, settings)}))
    if load.ctx_size == least_ctx_size > planner.LEAST_CONTEXT:
        out.append(Rung("A shorter context than the settings allow: plan.least_ctx_size says how far it may go down", {}))
    return [*out, Rung(_LAST[short_of], {})]


def _steps(short_of: Short, load: Load, least_ctx_size: int, gpus: int) -> Iterator[tuple[str, Load]]:
    shape = Shape.of(MODEL)
    wanted = planner.Wanted(ctx_size=load.ctx_size, least_ctx_size=least_ctx_size)
    for rung in planner.RUNGS:
        while short_of in rung.helps and (lower := _lower(rung, load, wanted, shape)):
            freed = _held(short_of, load, gpus) - _held(short_of, lower, gpus)
            if freed < WORTH:
                break  # what lies on the card, where RAM is short
            yield f"{rung.says.format_map(vars(lower))} (frees about {memory.text(freed)})", lower
            load = lower


def _lower(rung: planner.Rung, load: Load, wanted: planner.Wanted, shape: Shape) -> Load | None:
    """The load after as many steps as a recovery takes at once."""
    steps, found = 0, None
    while steps != rung.stride and (lower := rung.down(load, wanted, shape)):
        steps, found, load = steps + 1, lower, lower
    return found


def _held(short_of: Short, load: Load, gpus: int) -> int:
    needs = memory.needs(MODEL, load, gpus)
    return needs.vram.total if short_of == "vram" else needs.ram.total


def _load(settings: Mapping[str, Any], running: Mapping[str, Any], gpu: bool) -> Load:
    """What ran out of memory, never more than the settings ask for by now."""
    asked = {**{name: getattr(planner.Wanted(), name) for name in _NAMES}, **settings}
    now = {name: value for name, value in running.items() if value is not None}
    less = {name: min(asked[name], now.get(name, asked[name])) for name in _LESS}
    layers = Shape.of(MODEL).layers
    return Load(
        **less,
        cache_type_k=now.get("cache_type_k", asked["cache_type_k"]),
        cache_type_v=now.get("cache_type_v", asked["cache_type_v"]),
        flash_attn=settings.get("flash_attn") != "off",
        n_gpu_layers=min(layers + 1, now.get("n_gpu_layers", settings.get("n_gpu_layers", layers + 1))) if gpu else 0,
        n_cpu_moe=min(layers, max(now.get("n_cpu_moe", 0), settings.get("n_cpu_moe", 0))) if gpu else 0,
    )


def _settings(load: Load, first: Load, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make this load of what the settings are."""
    stock = planner.Wanted()
    out = {name: now for name in _NAMES if (now := getattr(load, name)) != settings.get(name, getattr(stock, name))}
    if (load.n_cpu_moe, load.n_gpu_layers) != (first.n_cpu_moe, first.n_gpu_layers):
        # with one of the two given, llama-server no longer fits the other (common/fit.cpp at the pin)
        out["n_gpu_layers"] = ALL_LAYERS if load.n_gpu_layers > Shape.of(MODEL).layers else load.n_gpu_layers
        out["n_cpu_moe"] = load.n_cpu_moe
    return out


def commands(found: list[Rung], inventory: str = "INVENTORY", host: str | None = None) -> list[str]:
    """Lines for a person: a comment for each rung, and the deploy that tries it."""
    limit = f" --limit {shlex.quote(host)}" if host else ""
    out = []
    for number, rung in enumerate(found, 1):
        out.append(f"# {number}. {rung.why}")
        if rung.server:
            data = shlex.quote(f"server={json.dumps(rung.server)}")
            out.append(f"pyinfra {shlex.quote(inventory)} deploy.py -y{limit} --data {data}")
    return out


def short_of(verdict: server_log.Verdict) -> Short | None:
    """Which memory a log's verdict says is too small."""
    return {"oom_vram": "vram", "oom_host": "ram"}.get(verdict)  # type: ignore[return-value]
