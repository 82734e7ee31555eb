"""What is said of a plan: why there is none and the nearest that works, what to mind, and all that follows from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from wsllama.domain import build, memory
from wsllama.domain.gguf_audit import ARCHITECTURE
from wsllama.domain.memory import GIB, MIB, Shape
from wsllama.domain.models import PARAMETERS
from wsllama.domain.planner import CONTEXT, DESKTOP, SYSTEM, Gpu, Machine, Model, Plan, Wanted, fit
from wsllama.domain.toolkit import NEAREST

FLASH_PAIRS = (("f16", "f16"), ("bf16", "bf16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"))  # GGML_CUDA_FA_QUANTS at the pin
BUILD_CORE_MINUTES = {"cpu": 15, "cuda": 120}  # seen with this project's options, one architecture, no ccache
SOURCE_BYTES = 76_589_250  # of the archive that carries llama.cpp
CUDA_APT_BYTES = 3 * GIB  # toolkit packages from NVIDIA's repository, about
# Below this much of free VRAM Windows moves buffers into RAM without an error, at a tenth of the speed (WSL#11050).
HEADROOM = 1 * GIB
SPARE = 2 * GIB  # RAM beside a plan from which on weights are read instead of mapped
_SEEN = dict.fromkeys(("total", "held_now", "now"), "measured")


@dataclass
class Report:
    """What `wsllama plan` says of one host."""

    machine: Machine
    wanted: Wanted
    plan: Plan | None
    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    nearest: Plan | None = None
    table: list[dict[str, Any]] = field(default_factory=list)
    fit: list[str] | None = None  # what llama-fit-params on the host says otherwise; None: it wasn't asked

    @property
    def ok(self) -> bool:
        return not self.refusals


def report(machine: Machine, wanted: Wanted, models: Sequence[Model], others: Sequence[Model] = ()) -> Report:
    """Plan a machine.

    + models: the wanted one, then those that may take its place, the larger first
    + others: that are only shown, and named when nothing else fits
    """
    out = Report(machine, wanted, None)
    first = models[0]
    out.refusals = [*machine_problems(machine), *load_problems(machine, wanted, first)]
    out.warnings = [*_machine_warnings(machine), *_model_warnings(wanted, first)]
    if out.refusals:
        if not machine_problems(machine) and first.summary.architecture == ARCHITECTURE:
            out.nearest = _nearest(machine, _possible(wanted, first), [first])
        return out
    plans = [fit(machine, wanted, model) for model in models]
    out.plan = next((plan for plan in plans if plan.fits), None)
    if out.plan is None:
        out.refusals.append(too_small(machine, plans[0]))
        out.nearest = _nearest(machine, wanted, [*models, *others])
        out.refusals.append(_nearest_text(machine, out.nearest, [*models, *others], wanted))
    else:
        out.warnings += _plan_warnings(machine, out.plan, first)
    out.table = [_row(machine, fit(machine, wanted, model)) for model in _by_size([*models, *others])]
    return out


def _by_size(models: Sequence[Model]) -> list[Model]:
    return sorted({model.name: model for model in models}.values(), key=lambda model: (-model.bytes, model.name))


def machine_problems(machine: Machine) -> list[str]:
    """What is wrong with the figures of a machine, one sentence each."""
    out = []
    for gpu in machine.gpus:
        if gpu.total is None:
            out.append(f"the memory of {gpu.name} isn't reported ([N/A]): give it, as in --gpu '{gpu.name}:12282'")
        elif gpu.total <= 0:
            out.append(f"{gpu.name} reports {gpu.total} MiB of memory: update the driver on Windows, or give the right number")
        elif gpu.used is not None and not 0 <= gpu.used <= gpu.total:
            what = "more memory free than it has" if gpu.used < 0 else "more memory in use than it has"
            out.append(
                f"{gpu.name} reports {what} ({memory.text(gpu.total)}): update the driver on Windows, then run wsl --shutdown"
            )
    if machine.guest_ram <= 0:
        out.append("the guest's RAM is 0 or less: give it in MiB")
    if machine.host_ram is not None and machine.host_ram < machine.guest_ram:
        out.append(
            f"the guest has more RAM ({memory.text(machine.guest_ram)}) than its host ({memory.text(machine.host_ram)}):"
            " one of the two is wrong"
        )
    return out


def load_problems(machine: Machine, wanted: Wanted, model: Model) -> list[str]:
    """What can't be served whatever the memory, one sentence each."""
    out, keys = [], model.summary.keys
    if model.summary.architecture != ARCHITECTURE:
        return [f"{model.name} is of architecture {model.summary.architecture!r}, and plans are for {ARCHITECTURE!r} only"]
    if wanted.ctx_size < memory.PADDING:
        out.append(f"a context of {wanted.ctx_size} holds no conversation: {NEAREST} {memory.PADDING}")
    if not 1 <= wanted.parallel <= memory.SLOTS:
        out.append(f"{wanted.parallel} slots can't be served: {NEAREST} {_slots(wanted)}")
    if wanted.ctx_size > keys["context_length"]:
        out.append(f"the context of {wanted.ctx_size} is above the model's: {NEAREST} {keys['context_length']}")
    pair = wanted.cache_type_k, wanted.cache_type_v
    for kind in sorted({*pair} - set(memory.CACHE_TYPES)):
        out.append(f"{kind} is no type of a KV cache: {NEAREST} q8_0")
    if wanted.cache_type_v in memory.QUANTISED and not wanted.flash_attn:
        out.append(
            f"a V cache of {wanted.cache_type_v} needs flash attention, which is off: {NEAREST} f16, or flash attention on"
        )
    elif wanted.backend == "cuda" and wanted.flash_attn and {*pair} <= set(memory.CACHE_TYPES) and pair not in FLASH_PAIRS:
        out.append(
            f"the build has no flash attention for K {pair[0]} with V {pair[1]}, so each token would convert the cache:"
            f" {NEAREST} q8_0 for both"
        )
    predicting = bool(keys["nextn_predict_layers"])
    if wanted.mtp and not predicting:
        out.append(
            f"{model.name} has no layer for multi-token prediction: take its -MTP- file, or leave --spec-type draft-mtp out"
        )
    if wanted.mmproj and model.projector is None:
        out.append(f"there is no projector with {model.name}: {NEAREST} without pictures (--no-mmproj)")
    elif wanted.mmproj and model.projector and model.projector.width not in (None, keys["embedding_length"]):
        out.append(
            f"the projector gives vectors of {model.projector.width} values where {model.name} takes {keys['embedding_length']}:"
            " it is another model's, take the one of the same repository"
        )
    return out


def _machine_warnings(machine: Machine) -> list[str]:
    out = []
    sizes = {gpu.total for gpu in machine.gpus}
    if len(sizes) > 1:
        out.append("the GPUs are of different size: layers are split by what each has free, not in halves (--tensor-split)")
    for gpu in machine.gpus:
        if gpu.used is None:
            out.append(f"{gpu.name}: what Windows and others hold now is not reported; {_reserved(machine)} is left to them")
        elif gpu.used > (CONTEXT if machine.headless else DESKTOP):
            by = gpu.by or "by whom is not reported"
            out.append(
                f"{gpu.name}: {memory.text(gpu.used)} is in use now ({by}) and isn't planned; close it and plan again for more"
            )
    if not machine.gpus:
        out.append("no GPU: the processor does all the work, which is many times slower")
    return out


def _reserved(machine: Machine) -> str:
    return memory.text(CONTEXT if machine.headless or not machine.windows else DESKTOP)


def _model_warnings(wanted: Wanted, model: Model) -> list[str]:
    out = []
    if model.summary.keys["nextn_predict_layers"] and not wanted.mtp:
        extra = f", {memory.text(model.summary.tensors.mtp)} of the download"
        out.append(f"{model.name} has a layer for multi-token prediction, which stays unused{extra}: add --spec-type draft-mtp")
    if not model.exact:
        out.append(f"weights of {model.name} are estimated from its size: `wsllama lock update {model.name}` reads its header")
    return out


def _plan_warnings(machine: Machine, plan: Plan, first: Model) -> list[str]:
    out = []
    if plan.model != first:
        out.append(f"{first.quant} doesn't fit, so {plan.model.quant} is planned")
    if plan.ram > machine.guest_ram:
        out.append(
            f"the guest has {memory.text(machine.guest_ram)} now and {memory.text(plan.ram)} is needed:"
            f" memory={wsl_memory(machine, plan)}GB in .wslconfig, then wsl --shutdown"
        )
    for gpu, part in zip(machine.gpus, plan.needs.gpus, strict=True):
        if machine.windows and (gpu.total or 0) - part.total < HEADROOM:
            out.append(
                f"{gpu.name}: {memory.text(part.total)} of {memory.text(gpu.total or 0)} is planned; what is too much,"
                " Windows moves to RAM without an error, and answers come at a tenth of the speed"
            )
    return out


def too_small(machine: Machine, plan: Plan) -> str:
    """Why a plan doesn't fit with everything given up."""
    model = plan.model.quant or plan.model.name
    if "ram" in plan.short:
        most = machine.guest_possible
        can = f"can have {memory.text(most)} at most" if most > machine.guest_ram else f"has {memory.text(most)}"
        return f"the host part of {model} is {memory.text(plan.ram)}, but the guest {can}"
    needs, free = plan.needs.vram.total, sum((gpu.total or 0) for gpu in machine.gpus) - sum(plan.reserves)
    cards = zip(machine.gpus, plan.needs.gpus, plan.reserves, strict=True)
    lack = [gpu.name for gpu, part, held in cards if part.total + held > (gpu.total or 0)] if len(machine.gpus) > 1 else []
    projector = ": the first GPU has the projector" if plan.load.mmproj else ""
    of_them = f", and {' and '.join(lack)} has too little for its part{projector}" if lack else ""
    return (
        f"{model} takes {memory.text(needs)} of VRAM with all experts in RAM and a context of {plan.load.ctx_size},"
        f" but {memory.text(max(0, free))} is free beside what is held{of_them}"
    )


def _possible(wanted: Wanted, model: Model) -> Wanted:
    """The nearest wish that a model and the build can serve."""
    keys = model.summary.keys
    ctx_size = max(memory.PADDING, min(wanted.ctx_size, keys["context_length"]))
    wish = replace(wanted, ctx_size=ctx_size, parallel=_slots(wanted), mtp=False)
    pair = wanted.cache_type_k, wanted.cache_type_v
    if not wanted.flash_attn or pair not in FLASH_PAIRS:
        kind = "q8_0" if wanted.flash_attn else "f16"
        wish = replace(wish, cache_type_k=kind, cache_type_v=kind)
    projector = model.projector
    if wanted.mmproj and (projector is None or projector.width not in (None, keys["embedding_length"])):
        wish = replace(wish, mmproj=False)
    return wish


def _slots(wanted: Wanted) -> int:
    return max(1, min(wanted.parallel, memory.SLOTS))


def _nearest(machine: Machine, wanted: Wanted, models: Sequence[Model]) -> Plan | None:
    """The largest quant that fits as wanted, else with what was fixed by hand left to the plan, else with the least context,
    else without the GPUs."""
    free = replace(wanted, n_gpu_layers=None, n_cpu_moe=None)
    wishes = wanted, free, replace(free, mmproj=False), replace(free, mmproj=False, least_ctx_size=4096)
    for wish in dict.fromkeys(wishes):  # of which some are often equal, and each tries every quant
        for model in _by_size(models):
            if not load_problems(machine, wish, model) and (plan := fit(machine, wish, model)).fits:
                return plan
    return _nearest(replace(machine, gpus=()), replace(free, backend="cpu"), models) if machine.gpus else None


def _nearest_text(machine: Machine, plan: Plan | None, models: Sequence[Model], wanted: Wanted) -> str:
    if plan:
        where = f"--n-cpu-moe {plan.load.n_cpu_moe}" if plan.load.n_gpu_layers else "all in RAM"
        where += " without the GPU (llama_cpp.backend cpu)" if machine.gpus and not plan.reserves else ""
        picture = ", without the projector" if wanted.mmproj and not plan.load.mmproj else ""
        return f"{NEAREST} {plan.model.quant or plan.model.name} with a context of {plan.load.ctx_size}, {where}{picture}"
    least = min((fit(machine, wanted, model) for model in models), key=lambda tried: tried.ram)
    return f"{NEAREST} none of the known quants; the smallest needs {memory.text(least.ram)} of RAM in the guest on this machine"


def _row(machine: Machine, plan: Plan) -> dict[str, Any]:
    """One quant in the table of all: what it costs, and what it gives."""
    shape = Shape.of(plan.model.summary)
    return {
        "name": plan.model.name,
        "quant": plan.model.quant,
        "bytes": plan.model.bytes,
        "bits": round(plan.model.bytes * 8 / PARAMETERS, 2),
        "ok": plan.fits,
        "vram": plan.needs.vram.total,
        "ram": plan.ram,
        "n_cpu_moe": plan.load.n_cpu_moe,
        "experts_on_gpu_percent": round(100 * (shape.layers - plan.load.n_cpu_moe) / shape.layers) if machine.gpus else 0,
        "ctx_size": plan.load.ctx_size,
        "cache_type": plan.load.cache_type_k,
        "estimated": not plan.model.exact,
        "why": None if plan.fits else too_small(machine, plan),
    }


# What follows from a plan


def threads(cores: int | None) -> int | None:
    """Threads that generate: memory is the limit, and two of a guest's processors share a core; None leaves it to the server."""
    return None if cores is None else cores if cores <= 4 else cores // 2


def load_mode(machine: Machine, plan: Plan) -> str:
    """none where weights have room in RAM twice over what is spare, so that Windows' reclaim of page cache can't drop them; else
    mmap, whose pages can be read again."""
    return "none" if plan.ram + SPARE <= machine.guest_ram else "mmap"


def wsl_memory(machine: Machine, plan: Plan) -> int:
    """`memory` of .wslconfig in GB: the host part and a build beside it; at most what Windows can spare."""
    compilers = build.BYTES_PER_CUDA_JOB * min(4, machine.cores or 4)
    whole = -(-(plan.ram + compilers) // GIB)
    return max(-(-plan.ram // GIB), min(whole, machine.guest_possible // GIB))


def wsl_swap(gigabytes: int) -> int:
    """`swap` of .wslconfig in GB: a quarter of the memory as WSL itself takes, between 2 and 8."""
    return max(2, min(8, -(-gigabytes // 4)))


def build_minutes(machine: Machine, backend: build.Backend) -> tuple[int, int] | None:
    """About how long the build takes, and with how many compilers; None when the cores aren't known."""
    if machine.cores is None:
        return None
    each = build.BYTES_PER_CUDA_JOB if backend == "cuda" else build.BYTES_PER_JOB
    jobs = build.jobs(machine.cores, machine.guest_ram - GIB, each)
    return -(-BUILD_CORE_MINUTES[backend] // jobs), jobs


def server_settings(plan: Plan, machine: Machine, wanted: Wanted) -> dict[str, Any]:
    """Fields of the settings' `server` topic that make the server start as planned.

    With several GPUs --tensor-split goes to `extra_args`. llama-server's own --fit aborts where these are given.
    """
    load = plan.load
    out: dict[str, Any] = {
        "ctx_size": load.ctx_size,
        "parallel": load.parallel,
        "cache_type_k": load.cache_type_k,
        "cache_type_v": load.cache_type_v,
        "flash_attn": "on" if load.flash_attn else "off",
        "batch_size": load.batch_size,
        "ubatch_size": load.ubatch_size,
        "threads": wanted.threads or threads(machine.cores),
        "n_gpu_layers": load.n_gpu_layers,
        "n_cpu_moe": load.n_cpu_moe,
        "load_mode": load_mode(machine, plan) if wanted.load_mode == "auto" else wanted.load_mode,
        "cache_ram": load.cache_ram,
        "ctx_checkpoints": load.ctx_checkpoints,
        "extra_args": ["--tensor-split", ",".join(map(str, load.split))] if len(load.split) > 1 else [],
    }
    return out


def document(of: Report, toolkit_bytes: int = CUDA_APT_BYTES) -> dict[str, Any]:
    """The report as JSON has it. toolkit_bytes: download of the CUDA toolkit."""
    plan = of.plan
    out: dict[str, Any] = {
        "ok": of.ok,
        "refusals": of.refusals,
        "warnings": of.warnings,
        "server": None,
        "memory": None,
        "wsl": None,
        "model": None,
        "given_up": [],
        "explanation": [],
        "download": None,
        "build": None,
        "nearest": None,
        "quants": of.table,
        "fit": of.fit,
    }
    if of.nearest:
        out["nearest"] = {
            "model": _named(of.nearest.model),
            "server": server_settings(of.nearest, of.machine, of.wanted),
        }
    if plan is None:
        return out
    gigabytes = wsl_memory(of.machine, plan)
    out |= {
        "server": server_settings(plan, of.machine, of.wanted),
        "memory": _memory(of.machine, plan),
        "wsl": {"memory": f"{gigabytes}GB", "swap": f"{wsl_swap(gigabytes)}GB"} if of.machine.windows else None,
        "model": _named(plan.model),
        "given_up": list(plan.given_up),
        "download": _download(of, plan, toolkit_bytes),
        "build": _build(of),
    }
    out["explanation"] = explanation(of, out)
    return out


def _named(model: Model) -> dict[str, Any]:
    return {"name": model.name, "quant": model.quant, "bytes": model.bytes}


def _memory(machine: Machine, plan: Plan) -> dict[str, Any]:
    cards: list[dict[str, Any]] = []
    for gpu, part, held in zip(machine.gpus, plan.needs.gpus, plan.reserves, strict=True):
        total = gpu.total or 0
        used = {key: getattr(part, key) for key in ("weights", "kv", "recurrent", "compute", "mmproj")}
        cards.append(
            {"name": gpu.name, "total": total, **used, "reserve": held, "free": total - part.total - held, "held_now": gpu.used}
        )
    place = memory.places(Shape.of(plan.model.summary).layers, plan.load, len(cards))
    classes = [memory.weights_by_class(plan.model.summary, plan.load, place, device) for device in (*range(len(cards)), -1)]
    for card, of_card in zip(cards, classes, strict=False):
        card["weights_by_class"] = of_card
    keys = ("total", "weights", "kv", "recurrent", "compute", "mmproj", "reserve", "free")
    ram = asdict(plan.needs.ram)
    compute = [part.compute for part in (*plan.needs.gpus, plan.needs.ram)]
    return {
        "vram": {key: sum(card[key] for card in cards) for key in keys},
        "gpus": cards,
        "ram": {
            "total": max(machine.guest_ram, plan.ram),
            **ram,
            "weights_by_class": classes[-1],
            "system": SYSTEM,
            "free": max(machine.guest_ram, plan.ram) - plan.ram,
            "now": machine.guest_ram,
            "possible": machine.guest_possible,
        },
        "marks": {**memory.marks(plan.model.exact), "reserve": "estimated", "system": "estimated", **_SEEN},
        "margins": {"compute": max(map(memory.margin, compute)), "mmproj": memory.PICTURE // 4 if plan.load.mmproj else 0},
    }


def figures(found: Mapping[str, Any], model: Model, load: memory.Load) -> dict[str, Any]:
    """The figures of another load on the machine of a plan. found: `memory` of the plan's document."""
    gpus = tuple(Gpu(card["name"], card["total"], card["held_now"]) for card in found["gpus"])
    needs = memory.needs(model.summary, load, len(gpus))
    plan = Plan(model, load, needs, tuple(card["reserve"] for card in found["gpus"]), frozenset())
    out = _memory(Machine(gpus, found["ram"]["now"]), plan)
    out["ram"]["possible"] = found["ram"]["possible"]
    return out


def _download(of: Report, plan: Plan, toolkit_bytes: int) -> dict[str, int]:
    parts = {
        "model": plan.model.bytes,
        "mmproj": plan.load.mmproj,
        "source": SOURCE_BYTES,
        "toolkit": toolkit_bytes if of.wanted.backend == "cuda" else 0,
    }
    return {**parts, "total": sum(parts.values())}


def _build(of: Report) -> dict[str, Any]:
    known = build_minutes(of.machine, of.wanted.backend)
    minutes, jobs = known or (None, None)
    return {"minutes": minutes, "jobs": jobs, "core_minutes": BUILD_CORE_MINUTES[of.wanted.backend], "mark": "estimated"}


def explanation(of: Report, out: dict[str, Any]) -> list[str]:
    """A plan in five lines."""
    plan, machine = of.plan, of.machine
    assert plan
    vram, ram, server, shown = out["memory"]["vram"], out["memory"]["ram"], out["server"], memory.text
    load, shape = plan.load, Shape.of(plan.model.summary)
    names = " and ".join(f"{gpu.name} ({(gpu.total or 0) // MIB} MiB)" for gpu in machine.gpus) or "the processor"
    slots = "one request" if load.parallel == 1 else f"{load.parallel} requests"
    where = f"experts of {load.n_cpu_moe} of {shape.layers} layers in RAM" if load.n_cpu_moe else "all experts on the GPU"
    held = "not reported" if any(gpu.used is None for gpu in machine.gpus) else shown(sum(gpu.used or 0 for gpu in machine.gpus))
    projector = f" + projector {shown(vram['mmproj'])}" if vram["mmproj"] else ""
    minutes = out["build"]["minutes"]
    takes = f"{minutes} minutes" if minutes else f"{out['build']['core_minutes']} minutes of one core"
    wsl = f"; .wslconfig: memory={out['wsl']['memory']}, swap={out['wsl']['swap']}" if out["wsl"] else ""
    return [
        f"{plan.model.name} on {names}: a context of {load.ctx_size} for {slots}, {where if machine.gpus else 'all in RAM'}.",
        f"VRAM: weights {shown(vram['weights'])} + KV {shown(vram['kv'])} + state {shown(vram['recurrent'])} + compute"
        f" {shown(vram['compute'])}{projector}; {shown(vram['reserve'])} is left to Windows and CUDA (held now: {held}),"
        f" {shown(vram['free'])} stays free."
        if machine.gpus
        else "VRAM: none is used.",
        f"RAM: {shown(ram['weights'])} of weights + {shown(plan.needs.ram.total - ram['weights'])} of caches and buffers + system"
        f" {shown(SYSTEM)} = {shown(plan.ram)} of the guest's {shown(machine.guest_ram)}; load mode {server['load_mode']}{wsl}.",
        f"Given up: {'; '.join(plan.given_up)}." if plan.given_up else "Nothing had to be given up.",
        f"To be downloaded: {shown(out['download']['total'])}, of which the model is {shown(out['download']['model'])};"
        f" the build takes about {takes}; threads: {server['threads'] or 'the server chooses'}.",
    ]
