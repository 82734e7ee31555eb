"""What plans are made of: models from the lock or from files, wishes from settings, machines from what a probe found.

`looks`, `machine_of` and `server_for` are what a deploy needs to start a server as planned (wsllama/operations/plan.py);
`wsllama plan` uses the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wsllama import lock, model_files
from wsllama.domain import gguf, gguf_audit, memory, models, nvidia_smi, plan_report, planner, spelling
from wsllama.domain.guest import NVIDIA_SMI
from wsllama.domain.memory import MIB
from wsllama.host.model import seen
from wsllama.settings import LOCK, Server, Settings

FAMILY, QUANT = "Qwen3.6-35B-A3B", "UD-Q4_K_M"
SMI = {"wsl": NVIDIA_SMI, "linux": "/usr/bin/nvidia-smi"}


def candidates_of(name: str, quant: str | None, mmproj: bool) -> tuple[list[planner.Model], list[planner.Model]]:
    """The models that may be planned, the wanted one first, and those that are shown beside them.

    name: of a model in the lock, of a family of them, or a path. A quant that is named, or a file, is the only candidate.
    Raises ValueError, one sentence, when there is none; LockError.
    """
    known = {key: of_lock(key, pin) for key, pin in lock.load(LOCK).models.items()}
    if name.endswith(".gguf") or Path(name).is_file():
        if quant:
            raise ValueError("--quant belongs to a model of wsllama.lock; a file has the one that it has")
        family = [known[key] for key in known if family_of(known[key]) == FAMILY]
        return [of_file(Path(name), mmproj)], family
    if name in known and quant is None:
        return [known[name]], [one for one in known.values() if family_of(one) == family_of(known[name])]
    family = [one for one in known.values() if name in (one.name, family_of(one))]
    if not family:
        families = sorted({family_of(one) for one in known.values()})
        raise ValueError(f"wsllama.lock has no model {name}: it has {', '.join(families)}, each with several quants")
    family = [one for one in known.values() if family_of(one) == family_of(family[0])]
    wanted = (quant or QUANT).upper()
    first = next((one for one in family if one.quant in (wanted, f"UD-{wanted}")), None)
    if first is None:
        have = ", ".join(sorted(one.quant for one in family))
        raise ValueError(f"wsllama.lock has no quant {quant or QUANT} of {name}: it has {have}")
    smaller = sorted((one for one in family if one.bytes < first.bytes), key=lambda one: -one.bytes)
    return [first, *([] if quant else smaller)], family


def family_of(model: planner.Model) -> str:
    """A model's name in the lock without its quantisation."""
    return model.name.removesuffix(f"-{model.quant}")


def of_lock(name: str, pin: lock.ModelPin) -> planner.Model:
    """A model of the lock."""
    projector = planner.Projector(pin.mmproj.bytes) if pin.mmproj else None
    return planner.Model(name, pin.quant, pin.bytes, pin.known_or_estimated, pin.summary is not None, projector)


def of_file(path: Path, mmproj: bool = False) -> planner.Model:
    """A model from its files, with the projector that lies beside it. Raises ValueError, one sentence, when it can't be read."""
    places = [str(path.with_name(name)) for name in gguf.shard_names(path.name)]
    beside = models.projector(one.name for one in path.parent.iterdir()) if mmproj and path.parent.is_dir() else None
    return of_files(places, str(path.with_name(beside)) if beside else None)


def of_files(places: Sequence[str], mmproj: str | None) -> planner.Model:
    """A model from its shards in order and its projector. Raises ValueError, one sentence, when one can't be read."""
    files = [seen(place, Path(place).name) for place in places]
    name = files[0].name
    if problems := gguf_audit.audit(files, name, any_size=True).problems:
        raise ValueError(problems[0])
    headers = [file.header for file in files if file.header]
    projector = None
    if mmproj:
        file = seen(mmproj, Path(mmproj).name)
        if file.header is None:
            raise ValueError(f"{file.name}: {file.problem}")
        projector = planner.Projector(file.size, gguf_audit.projection(file.header))
    size = sum(file.size for file in files)
    vocabulary = next((tensor.shape[-1] for tensor in headers[0].tensors if tensor.name == "token_embd.weight"), 0)
    try:
        return planner.Model(name, models.quant_of(name) or "", size, models.summary(headers), True, projector, vocabulary)
    except gguf.GgufError as e:
        raise ValueError(f"{name}: {e}") from None


Look = Callable[[Sequence[str], "str | None"], dict[str, Any]]
"""Asks the host for files of a model on it and its projector: wsllama/host/model.py with `look`."""


def model_of(settings: Settings, on_host: bool, look: Look) -> planner.Model | None:
    """The model that settings mean, before it is installed; None where nothing of it is known yet.

    By the lock's summary, by headers here or on the host, else estimated from the lock's bytes. on_host: model.path is one of
    the host. Raises ModelError, and ValueError, one sentence, for files that can't be read or served.
    """
    files, pinned = model_files.wanted(settings), model_files.pinned(settings)
    if pinned and (pinned[1].summary or settings.model.way in ("hub", "url")):
        return of_lock(*pinned)
    if settings.model.way in ("hub", "url"):
        return None
    places, mmproj = [file.place for file in files.files], files.mmproj.place if files.mmproj else None
    found = of_look(places, look(places, mmproj)) if on_host else of_files(places, mmproj)
    return replace(found, name=pinned[0]) if pinned else found


def of_look(places: Sequence[str], found: Mapping[str, Any]) -> planner.Model:
    """A model from what the host said of its files. Raises ValueError, a sentence a line, when they can't be served."""
    known = summary_of(found["summary"])
    if found["problems"] or known is None:
        raise ValueError("\n".join(found["problems"]) or f"{places[0]}: its header tells no layers: give another file")
    name = spelling.name(places[0])
    projector = planner.Projector(**found["mmproj"]) if found["mmproj"] else None
    return planner.Model(name, models.quant_of(name) or "", found["bytes"], known, True, projector)


def summary_of(found: Any) -> models.Summary | None:
    """A summary from JSON; None for anything else: what lies on a host may have been written by anybody."""
    try:
        summary = models.Summary(found["architecture"], dict(found["keys"]), models.Tensors(**found["tensors"]))
        layers = len(summary.tensors.dense_by_layer())
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
    return summary if layers and set(models.KEYS) <= set(summary.keys) else None


def load_of(server: Server, mmproj: int) -> memory.Load:
    """What a server topic that a plan has filled asks of memory. mmproj: bytes of the projector, 0 without one."""
    words = list(server.extra_args)
    split = words[words.index("--tensor-split") + 1].split(",") if "--tensor-split" in words else []
    same = ("ctx_size", "parallel", "cache_type_k", "cache_type_v", "cache_ram", "ctx_checkpoints")
    return memory.Load(
        **{name: getattr(server, name) for name in same},
        flash_attn=server.flash_attn != "off",
        batch_size=server.batch_size or 2048,
        ubatch_size=server.ubatch_size or 512,
        n_gpu_layers=server.n_gpu_layers or 0,
        n_cpu_moe=server.n_cpu_moe or 0,
        split=tuple(map(int, split)),
        mmproj=mmproj,
        mtp="draft-mtp" in words,
    )


def wanted_of(settings: Settings, wishes: dict[str, Any] | None = None) -> planner.Wanted:
    """What a host's settings ask for; wishes: what is asked for instead."""
    server, given = settings.server, settings.server.model_fields_set
    batch_size = server.batch_size or 2048
    least = settings.plan.least_ctx_size or (server.ctx_size if "ctx_size" in given else planner.LEAST_CONTEXT)
    wanted = {
        **{key: getattr(server, key) for key in ("ctx_size", "parallel", "cache_type_k", "cache_type_v", "n_gpu_layers")},
        **{key: getattr(server, key) for key in ("n_cpu_moe", "cache_ram", "ctx_checkpoints", "load_mode", "threads")},
        "least_ctx_size": least,
        "flash_attn": server.flash_attn != "off" and (settings.backend != "cuda" or settings.cuda.flash_attention),
        "batch_size": batch_size,
        "ubatch_size": server.ubatch_size or min(512, batch_size),
        "mmproj": bool(settings.model.mmproj),
        "mtp": "draft-mtp" in server.extra_args,
        "backend": settings.backend,
        "fixed": frozenset(given) - {"ctx_size"},
    }
    return planner.Wanted(**{**wanted, **(wishes or {})})


def looks(settings: Settings) -> dict[str, dict[str, Any]]:
    """What `machine_of` looks at, as the probe takes it."""
    gpu = {"gpu": {SMI[settings.platform]: None}} if settings.backend == "cuda" else {}
    return {"system": {"cores": None, "memory_total": None}, **gpu}


def machine_of(
    settings: Settings, now: Any, host_ram: int | None = None, ours: Sequence[int] = ()
) -> tuple[planner.Machine, list[str]]:
    """A machine from what a probe found, and why its GPU can't be planned with.

    host_ram: of Windows, in bytes; ours: bytes that our running server holds on each GPU, which a new plan may use
    """
    cards: tuple[planner.Gpu, ...] = ()
    problems = []
    if settings.backend == "cuda":
        said = now["gpu"][SMI[settings.platform]]
        read = nvidia_smi.read(said["text"], said["returncode"], said["command"]) if said else nvidia_smi.Reading("no_driver")
        if read.status != "ok":
            why = "[N/A]" if said and "[N/A]" in said["text"] else read.status
            problems.append(
                f"{SMI[settings.platform]} reports no GPU with its memory ({why}): repair the driver on Windows, or set"
                " llama_cpp.backend to cpu"
            )
        cards = cards_of(read, ours)
    system = now["system"]
    windows = settings.platform == "wsl"
    return planner.Machine(cards, system["memory_total"], host_ram, False, system["cores"], windows), problems


def cards_of(read: nvidia_smi.Reading, ours: Sequence[int] = ()) -> tuple[planner.Gpu, ...]:
    """GPUs of a reading of nvidia-smi. ours: bytes of our own server's buffers on each, which a new plan may use, as it may use
    what CUDA took for them."""
    out = []
    for number, gpu in enumerate(read.gpus):
        used = None if gpu.vram_used_mib is None else gpu.vram_used_mib * MIB
        own = ours[number] + planner.CONTEXT if number < len(ours) and ours[number] else 0
        out.append(
            planner.Gpu(gpu.name, gpu.vram_total_mib * MIB, used if used is None else max(0, used - own) if used >= 0 else used)
        )
    return tuple(out)


def buffers(text: str) -> list[int]:
    """Bytes of all buffers of each CUDA device, by a server's log."""
    sizes: dict[int, float] = {}
    for device, size in re.findall(r"CUDA(\d+) \w+ buffer size = +(\d+\.?\d*) MiB", text):
        sizes[int(device)] = sizes.get(int(device), 0) + float(size)
    return [int(sizes.get(number, 0) * MIB) for number in range(max(sizes, default=-1) + 1)]


def server_for(
    settings: Settings, machine: planner.Machine, model: planner.Model, others: Sequence[planner.Model] = ()
) -> tuple[Server | None, plan_report.Report]:
    """The server topic that starts as planned on a machine, and the report; None with its refusals when nothing fits.

    What the settings fix stays as it is. others: models that may be named as the nearest that works.
    """
    wanted = wanted_of(settings)
    report = plan_report.report(machine, wanted, [model])
    if report.plan is None:
        return None, plan_report.report(machine, wanted, [model], others) if others else report
    return with_planned(settings.server, planned_fields(report)), report


def planned_fields(report: plan_report.Report) -> dict[str, Any]:
    """Fields of the server topic that a report's plan sets; extra_args are those that come behind the settings' own."""
    assert report.plan
    fields = plan_report.server_settings(report.plan, report.machine, report.wanted)
    if not report.machine.gpus:  # a build for the processor warns of them, as a server does that has lost its GPU
        fields = {key: value for key, value in fields.items() if key not in ("n_gpu_layers", "n_cpu_moe")}
    return fields


def with_planned(server: Server, fields: dict[str, Any]) -> Server:
    """A server topic with what a plan sets. Raises pydantic's ValidationError for what can't be."""
    more = (*server.extra_args, *fields["extra_args"])
    return Server.model_validate({**server.model_dump(), **fields, "extra_args": more})


def without_others(report: plan_report.Report) -> str | None:
    """What would be planned if nobody else held VRAM now: one sentence, None when that is the same."""
    plan, machine = report.plan, report.machine
    assert plan
    if not any(gpu.used for gpu in machine.gpus):
        return None
    alone = replace(machine, gpus=tuple(replace(gpu, used=None) for gpu in machine.gpus))
    better = planner.fit(alone, report.wanted, plan.model)
    if not better.fits or better.load == plan.load:
        return None
    held = memory.text(sum(gpu.used or 0 for gpu in machine.gpus))
    names = ("ctx_size", "parallel", "n_cpu_moe", "n_gpu_layers", "ubatch_size", "cache_type_k")
    differ = [name for name in names if getattr(better.load, name) != getattr(plan.load, name)]
    more = ", ".join(f"{name} {getattr(better.load, name)} instead of {getattr(plan.load, name)}" for name in differ)
    return f"others hold {held} of VRAM: without them it would be {more or 'more host caches'}; another plan.anew plans again"
