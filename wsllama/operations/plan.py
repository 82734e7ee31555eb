"""The plan inside a deploy: what the settings leave open follows from the host's memory.

Free VRAM changes from minute to minute, so a plan isn't made anew on each run: it has a key over what doesn't change by itself,
and while the current or an accepted release of the host was planned with the same key, its plan holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyinfra import host, logger

from wsllama import layout, lock, model_files, planning
from wsllama.domain import drift, models, plan_report, planner
from wsllama.domain import windows as rules
from wsllama.domain.memory import MIB
from wsllama.domain.wslconfig import find, parse
from wsllama.facts import probe
from wsllama.operations import cuda, llama_cpp, model, windows
from wsllama.operations.base import Refused, ask_host
from wsllama.settings import LOCK, Server, Settings

# What a plan is made by; another number makes all plans anew.
RULES = 1
RAM_STEP = 256 * MIB  # what the guest's RAM may differ by from one start of WSL to the next
# Fields of the topic `server` that a plan follows from.
READ = (
    *("ctx_size", "parallel", "cache_type_k", "cache_type_v", "flash_attn", "batch_size", "ubatch_size", "threads"),
    *("n_gpu_layers", "n_cpu_moe", "load_mode", "cache_ram", "ctx_checkpoints"),
)
ASKED = "wsllama.plan"  # in a host's connector_data: what it was asked for a plan, and what was told of one


def looks(settings: Settings) -> probe.Looks:
    """What a plan follows from."""
    if not settings.plan.decides:
        return {}
    side = windows.look(settings) if settings.platform == "wsl" and settings.wsl.windows else {}
    there: probe.Looks = {"releases": {layout.ROOT: None}, "units": {layout.UNIT: None}}
    return probe.together(planning.looks(settings), model.looks(settings), there, side)


def planned(now: Any, settings: Settings) -> tuple[Server, dict[str, Any] | None]:
    """The topic `server` as it is to be started, and what a release records of its plan.

    The plan is None where none is wanted, or where nothing is known of the model. Raises Refused with why nothing fits, and
    the nearest that does.
    """
    if not settings.plan.decides:
        return settings.server, None
    keys, unseen = keys_of(now, settings), planning.machine_of(settings, now)[1]
    # nvidia-smi may fail for a moment: that makes no other plan
    plan = recorded(now, {"apart": keys["apart"]} if unseen else keys) or _made(now, settings, keys)
    return (planning.with_planned(settings.server, plan["server"]), plan) if plan else (settings.server, None)


def of_stage(now: Any, settings: Settings, plan: dict[str, Any], server: Server, pictures: bool) -> dict[str, Any]:
    """What a release on the way to a plan records of it: the figures of what it serves itself.

    server: its topic; pictures: it has the projector
    """
    of = _model(now, settings)
    if of is None:
        return plan
    load = planning.load_of(server, of.projector.bytes if pictures and of.projector else 0)
    return {**plan, "memory": plan_report.figures(plan["memory"], of, load)}


def problems(now: Any, settings: Settings) -> list[str]:
    """Why nothing can be served here, as far as it is known before the model is there: a sentence each."""
    try:
        planned(now, settings)
    except Refused as e:
        return str(e).splitlines()
    return []


def recorded(now: Any, keys: dict[str, str]) -> dict[str, Any] | None:
    """The plan with these keys, and for this guest's RAM, of the current release, or else of the newest that was accepted.

    One that was edited on the host is none.
    """
    there = now["releases"][layout.ROOT]
    counts = [n for n, release in there["numbers"].items() if release["accepted"] or n == there["current"]]
    order = sorted(counts, key=lambda n: (n == there["current"], int(n)), reverse=True)
    plans = [there["numbers"][n].get("plan") for n in order]
    total = now["system"]["memory_total"]
    good = [plan for plan in plans if plan and drift.intact(plan)]
    return next((plan for plan in good if keys.items() <= plan.items() and _holds(plan, total)), None)


def _holds(plan: dict[str, Any], total: int) -> bool:
    """Whether a guest with so much RAM would get the same plan: it need not be made again for a guest that got more."""
    was = plan["memory"]["ram"]["now"]
    if abs(total - was) <= RAM_STEP:
        return True
    same_load_mode = (total >= plan["ram"] + plan_report.SPARE) == (was >= plan["ram"] + plan_report.SPARE)
    limited = [what for what in plan["given_up"] if not what.startswith(("experts", "layers"))]  # those are moved for VRAM
    return total >= _at_least(plan["ram"]) and same_load_mode and not (limited and total > was)


def keys_of(now: Any, settings: Settings) -> dict[str, str]:
    """`key` stands for all that a plan follows from and that doesn't change by itself: not for what is free of the memory.

    `apart` is the same without the GPUs. The guest's RAM is looked at by itself (`recorded`).
    """
    installed = model.installed_files(now, settings)
    files = [now["models"][layout.MODELS][file]["sha256"] for file in installed or ()]
    machine, _ = planning.machine_of(settings, now)
    server = settings.server
    inputs = {
        "rules": RULES,
        "model": files or [file.sha256 for file in _files(settings).every],
        "commit": llama_cpp.commit_of(settings),
        "backend": settings.backend,
        "flash_attention": settings.cuda.flash_attention,
        "server": {name: [getattr(server, name), name in server.model_fields_set] for name in READ},
        "mtp": "draft-mtp" in server.extra_args,
        "least_ctx_size": settings.plan.least_ctx_size,
        "anew": settings.plan.anew,
        "cores": machine.cores,
        "windows": machine.windows,
    }
    gpus = [[gpu.name, gpu.total] for gpu in machine.gpus]
    return {"key": _digest({**inputs, "gpus": gpus}), "apart": _digest(inputs)}


def _digest(inputs: Any) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def _made(now: Any, settings: Settings, keys: dict[str, str]) -> dict[str, Any] | None:
    """A new plan; None where nothing is known of the model, or of the GPU."""
    of = _model(now, settings)
    if of is None:
        return None
    fixed = _fixed_ram(settings)
    ram = None if fixed else _windows_ram(now, settings)
    machine, unseen = planning.machine_of(settings, now, ram, _ours(now, settings))
    if unseen and settings.cuda.require_gpu:
        _without_gpu(now, settings, unseen)
        return None
    if fixed:
        machine = replace(machine, guest_ram=fixed)
    known = [planning.of_lock(name, pin) for name, pin in lock.load(LOCK).models.items()]
    family = [one for one in known if planning.family_of(one) == planning.FAMILY] if _is_of_the_family(of) else []
    server, report = planning.server_for(settings, machine, of, family)
    if server is None or report.plan is None:
        raise Refused("\n".join(report.refusals))
    document = plan_report.document(report)
    held = planning.without_others(report)
    _tell([*document["explanation"][:4]], [*report.warnings, *([held] if held else [])])
    return {
        **keys,
        "made": _digest([keys["key"], round(machine.guest_ram / RAM_STEP)]),
        "server": planning.planned_fields(report),
        "ram": report.plan.ram,
        "memory": document["memory"],
        "wsl": document["wsl"],
        "given_up": document["given_up"],
        "held": held,
    }


def _without_gpu(now: Any, settings: Settings, unseen: list[str]) -> None:
    """No plan where the GPU's memory can't be read. Raises Refused for what is no failure of nvidia-smi itself."""
    status = cuda.reading(now, settings).status
    if status == "crashed":  # drivers 555 to 560 did that on machines that serve well
        _tell([], ["nvidia-smi crashes, so nothing is planned: llama-server itself fits the layers to the GPU"])
    elif status not in ("blocked", "no_driver", "no_device"):  # these the guards of stage CUDA explain, and end the host
        raise Refused("\n".join(f"{why}, or plan.decides to False" for why in unseen))


def fits_now(now: Any, plan: dict[str, Any]) -> bool:
    """Whether the guest has the RAM of a plan. Of what .wslconfig gives, the kernel keeps a part: as domain/windows.py has it."""
    return bool(now["system"]["memory_total"] >= _at_least(plan["ram"]))


def _at_least(need: int) -> int:
    return need * 95 // 100 - 64 * MIB


def guest_memory(now: Any, settings: Settings) -> dict[str, Any]:
    """What .wslconfig has to say so that the plan fits, by full names; nothing where what is there suffices.

    Only of what the settings leave unset, and only upwards. Raises Refused.
    """
    _, plan = planned(now, settings)
    file = now["windows"]["side"]["wslconfig"]
    if plan is None or not file or _fixed_ram(settings):
        return {}
    values = parse(rules.held(file) or b"", "wslconfig").values
    has = values.get("wsl2.memory") or now["system"]["memory_total"]
    if has >= _at_least(plan["ram"]):
        return {}
    swap = {} if settings.wsl.wsl2.swap is not None or values.get("wsl2.swap") else {"wsl2.swap": plan["wsl"]["swap"]}
    return {"wsl2.memory": plan["wsl"]["memory"], **swap}


def _fixed_ram(settings: Settings) -> int | None:
    """Bytes that the settings give to the guest."""
    fixed = settings.wsl.wsl2.memory if settings.platform == "wsl" else None
    return None if fixed is None else _bytes(fixed)


def _bytes(size: Any) -> int:
    key = find("wslconfig", "wsl2.memory")
    assert key
    return int(key.normal(size))


def _is_of_the_family(of: planner.Model) -> bool:
    """Whether it has the real model's layers: a small one for tests has no quants in the lock."""
    return of.summary.keys["block_count"] - of.summary.keys["nextn_predict_layers"] == models.LAYERS


def _tell(lines: list[str], warnings: list[str]) -> None:
    """Once a run: each stage that plans would say it again."""
    told = _asked().setdefault("told", set())
    for line in lines:
        if line not in told:
            host.log(line)
    for line in warnings:
        if line not in told:
            host.log_styled(line, fg="yellow", log_func=logger.warning)
    told.update(lines, warnings)


def _asked() -> dict[str, Any]:
    found: dict[str, Any] = host.connector_data.setdefault(ASKED, {})
    return found


# What it is made of


def _files(settings: Settings) -> model_files.Model:
    try:
        return model_files.wanted(settings)
    except model_files.ModelError as e:
        raise Refused(str(e)) from e


def _model(now: Any, settings: Settings) -> planner.Model | None:
    """The model, by its header where that can be read; None where nothing is known of it yet. Raises Refused."""
    files, pinned = _files(settings), model_files.pinned(settings)
    installed = model.installed_files(now, settings)
    try:
        if not installed:
            asked = _asked()
            if "model" not in asked:  # a real model's header takes a second to read
                asked["model"] = planning.model_of(settings, model.is_on_host(settings), partial(_look, settings))
            found_early: planner.Model | None = asked["model"]
            return found_early
        shards = len(files.files)
        stamps = [now["models"][layout.MODELS][file] for file in installed]
        places = [f"{layout.MODELS}/{file}" for file in installed]
        found = {
            "problems": [],
            "summary": stamps[0].get("summary"),
            "bytes": sum(stamp["size"] for stamp in stamps[:shards]),
            "mmproj": {"bytes": stamps[-1]["size"], "width": None} if files.mmproj else None,
        }
        if not planning.summary_of(found["summary"]):  # of an earlier version of ours
            found = _look(settings, places[:shards], places[shards] if files.mmproj else None)
        of = planning.of_look(places, found)
    except (ValueError, model_files.ModelError) as e:
        raise Refused("\n".join(f"model.path: {line}" for line in str(e).splitlines())) from e
    return replace(of, name=pinned[0]) if pinned else of


def _look(settings: Settings, places: Sequence[str], mmproj: str | None) -> dict[str, Any]:
    """What the host says of files on it, asked once a run."""
    argument = {"look": list(places), "mmproj": mmproj, "allow_unofficial": settings.model.allow_unofficial}
    asked = _asked()
    if asked.get("looked at") != argument:
        asked["looked at"], asked["seen"] = argument, ask_host("model", argument, "look")
    found: dict[str, Any] = asked["seen"]
    return found


def _windows_ram(now: Any, settings: Settings) -> int | None:
    """RAM of the Windows machine in bytes, of which the guest may get more; None where Windows isn't to be asked or can't be."""
    if settings.platform != "wsl" or not settings.wsl.windows or now["windows"]["side"]["interop"]:
        return None
    asked = _asked()
    if "windows_ram" not in asked:
        try:
            asked["windows_ram"] = ask_host("windows", {"ask": "machine"})["memory"]
        except Refused:  # it doesn't answer: the guest has what it has
            asked["windows_ram"] = None
    found: int | None = asked["windows_ram"]
    return found if found and found >= now["system"]["memory_total"] else None  # else it can't give any, whatever it says


def _ours(now: Any, settings: Settings) -> list[int]:
    """Bytes that our running server holds on each GPU, by its own log: another plan may use them."""
    if settings.backend != "cuda" or now["units"][layout.UNIT].get("ActiveState") != "active":
        return []
    return planning.buffers(probe.see({"buffers": {layout.UNIT: None}})["buffers"][layout.UNIT])
