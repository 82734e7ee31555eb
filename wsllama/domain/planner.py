"""What a machine can serve: a plan that fits before anything starts, or why there is none and the nearest that works. Pure.

What is given up, and in which order, stands in RUNGS alone: plans and the recovery after out-of-memory go the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Literal

from wsllama.domain import build, memory
from wsllama.domain.memory import GIB, MIB, Load, Needs, Shape
from wsllama.domain.models import DENSE, EMBEDDING, LAYERS, Summary, estimate

# What Windows, its desktop and CUDA's own context take of a GPU: seen on a 3090 in WSL (club-3090, HARDWARE.md, 1.31 GiB), and
# without a desktop what is lost of a 16 GB card before the first buffer (16,311 of which 15,751 MiB were usable).
DESKTOP, CONTEXT = 1342 * MIB, 560 * MIB
# Of the guest's RAM: the system, and the server beside its buffers (CUDA's host side, the vocabulary, threads).
SYSTEM = 2 * GIB
LEAST_CONTEXT = 8192  # less cuts a thinking model's answers off

Short = Literal["vram", "ram"]


@dataclass(frozen=True)
class Gpu:
    """One GPU. `total` in bytes, None for nvidia-smi's [N/A]; `used` by others than our server, None: not reported."""

    name: str
    total: int | None
    used: int | None = None
    by: str = ""  # who holds it, where that is reported


@dataclass(frozen=True)
class Machine:
    """A host. RAM in bytes.

    + guest_ram: of the Linux guest now; host_ram: of Windows, None where there is no Windows or it isn't known
    + headless: no desktop is drawn by the GPUs; cores: that the guest sees
    """

    gpus: tuple[Gpu, ...]
    guest_ram: int
    host_ram: int | None = None
    headless: bool = False
    cores: int | None = None
    windows: bool = True

    @property
    def guest_possible(self) -> int:
        """RAM that .wslconfig can give the guest: Windows keeps 6 GiB, of more than 30 GiB up to 8."""
        if self.host_ram is None:
            return self.guest_ram
        return max(self.guest_ram, min(self.host_ram - 6 * GIB, 24 * GIB), self.host_ram - 8 * GIB)


@dataclass(frozen=True)
class Projector:
    """A projector's file. width: values of its vectors, None when its header wasn't read."""

    bytes: int
    width: int | None = None


@dataclass(frozen=True)
class Model:
    """One quant. exact: `summary` is from its header, not an estimate from its bytes."""

    name: str
    quant: str
    bytes: int
    summary: Summary
    exact: bool
    projector: Projector | None = None
    vocabulary: int = memory.VOCABULARY


@dataclass(frozen=True)
class Wanted:
    """What a server should do. `n_gpu_layers`, `n_cpu_moe` None: as many, as few as fit; `least_ctx_size`: may go so low.

    fixed: names of other fields that nothing is given up of
    """

    ctx_size: int = 16384
    least_ctx_size: int = LEAST_CONTEXT
    parallel: int = 1
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: bool = True
    batch_size: int = 2048
    ubatch_size: int = 512
    cache_ram: int = 1024
    ctx_checkpoints: int = 8
    n_gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    load_mode: str = "auto"
    threads: int | None = None
    mmproj: bool = False
    mtp: bool = False
    backend: build.Backend = "cuda"
    fixed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Plan:
    """A plan for one model. `load` is the last that was tried where it doesn't fit; `given_up` has one sentence a rung."""

    model: Model
    load: Load
    needs: Needs
    reserves: tuple[int, ...]
    short: frozenset[Short]
    given_up: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.short

    @property
    def ram(self) -> int:
        """RAM of the guest that it takes, the system included."""
        return self.needs.ram.total + SYSTEM


# The one order


@dataclass(frozen=True)
class Rung:
    """One thing that is given up: `down` is the next load with less of it, None at its end; `helps` says against what.

    + says: what a load lower on this rung is, with fields of that load in braces
    + stride: steps that a recovery takes at once, which can't know how few would do; None: all of them
    """

    name: str
    helps: frozenset[Short]
    down: Callable[[Load, Wanted, Shape], Load | None]
    says: str
    stride: int | None = None


def _slots(load: Load, wanted: Wanted, shape: Shape) -> Load | None:
    return replace(load, parallel=load.parallel - 1) if load.parallel > 1 and "parallel" not in wanted.fixed else None


def _caches(load: Load, wanted: Wanted, shape: Shape) -> Load | None:
    if load.cache_ram and "cache_ram" not in wanted.fixed:
        return replace(load, cache_ram=load.cache_ram // 2 if load.cache_ram >= 512 else 0)
    more = load.ctx_checkpoints > 1 and "ctx_checkpoints" not in wanted.fixed
    return replace(load, ctx_checkpoints=load.ctx_checkpoints // 2) if more else None


def _experts(load: Load, wanted: Wanted, shape: Shape) -> Load | None:
    moved = load.n_cpu_moe < shape.layers and wanted.n_cpu_moe is None
    return replace(load, n_cpu_moe=load.n_cpu_moe + 1) if moved else None


def _micro_batch(load: Load, wanted: Wanted, shape: Shape) -> Load | None:
    more = load.ubatch_size > 128 and "ubatch_size" not in wanted.fixed
    return replace(load, ubatch_size=max(128, load.ubatch_size // 2)) if more else None


def _kv_type(load: Load, wanted: Wanted, shape: Shape) -> Load | None:
    smaller = memory.row_bytes("q8_0", shape.row_k + shape.row_v)
    now = memory.row_bytes(load.cache_type_k, shape.row_k) + memory.row_bytes(load.cache_type_v, shape.row_v)
    may = load.flash_attn and not wanted.fixed & {"cache_type_k", "cache_type_v"}
    return replace(load, cache_type_k="q8_0", cache_type_v="q8_0") if may and now > smaller else None


def _context(load: Load, wanted: Wanted, shape: Shape) -> Load | None:
    least = min(wanted.ctx_size, wanted.least_ctx_size)
    return replace(load, ctx_size=max(least, load.ctx_size // 2)) if load.ctx_size > least else None


def _layers(load: Load, wanted: Wanted, shape: Shape) -> Load | None:
    """The processor reads all of a moved layer for each token, but 8 of 256 of its experts: so it wins after all experts only."""
    down = load.n_gpu_layers > 1 and wanted.n_gpu_layers is None
    return replace(load, n_gpu_layers=load.n_gpu_layers - 1) if down else None


_VRAM, _RAM, _BOTH = frozenset[Short]({"vram"}), frozenset[Short]({"ram"}), frozenset[Short]({"vram", "ram"})
RUNGS = (
    Rung("slots", _BOTH, _slots, "One slot"),
    Rung("host caches", _RAM, _caches, "No cached prompts, {ctx_checkpoints} context checkpoint a slot"),
    Rung("experts to RAM", _VRAM, _experts, "Experts of {n_cpu_moe} layers to RAM", 10),
    Rung("micro-batch", _BOTH, _micro_batch, "A micro-batch of {ubatch_size}: prompts are read more slowly", 1),
    Rung("KV cache to q8_0", _BOTH, _kv_type, "The KV cache as q8_0"),
    Rung("context", _BOTH, _context, "Less context: {ctx_size} tokens", 1),
    Rung("layers to RAM", _VRAM, _layers, "Whole layers to RAM, {n_gpu_layers} stay on the GPU: slower for each token", 10),
)
SMALLER_QUANT = "a smaller quant"  # the last rung, of plans over several models


def step_down(load: Load, wanted: Wanted, model: Summary, short: frozenset[Short]) -> tuple[str, Load] | None:
    """The next load to try when memory is short, and the rung's name; None at the end of the ladder."""
    shape = Shape.of(model)
    for rung in RUNGS:
        if rung.helps & short and (lower := rung.down(load, wanted, shape)):
            return rung.name, lower
    return None


# A plan for one model


def fit(machine: Machine, wanted: Wanted, model: Model) -> Plan:
    """Go down the ladder until a model fits; the VRAM that is free is used, and no more. Whatever was given up on the way and
    turns out to fit is taken back as far as no later rung has to give more."""
    shape, gpus = Shape.of(model.summary), len(machine.gpus)
    on_gpu = shape.layers + 1 if gpus else 0
    load = Load(
        **{one.name: getattr(wanted, one.name) for one in fields(Load) if one.name in _SHARED},
        n_gpu_layers=min(on_gpu, on_gpu if wanted.n_gpu_layers is None else wanted.n_gpu_layers),
        n_cpu_moe=min(shape.layers, wanted.n_cpu_moe or 0) if gpus else 0,
        mmproj=model.projector.bytes if wanted.mmproj and model.projector else 0,
    )
    tried = _tried(machine, model, load)
    while tried.short and (down := step_down(tried.load, wanted, model.summary, tried.short)):
        tried = _tried(machine, model, down[1])
    if tried.fits:
        tried = _taken_back(machine, model, load, tried)
    if tried.fits and gpus > 1:
        tried = _balanced(machine, tried)
    return replace(tried, given_up=tuple(_given_up(load, tried.load, gpus)))


_SHARED = frozenset(one.name for one in fields(Load)) - {"n_gpu_layers", "n_cpu_moe", "mmproj", "split", "unified"}


def _tried(machine: Machine, model: Model, load: Load) -> Plan:
    several = len(machine.gpus) > 1
    return _placed(machine, model, replace(load, split=_filled(machine, model, load)[0]) if several else load)


def _placed(machine: Machine, model: Model, load: Load) -> Plan:
    needs = memory.needs(model.summary, load, len(machine.gpus))
    place = memory.places(Shape.of(model.summary).layers, load, len(machine.gpus))
    reserves = tuple(
        _left(machine, model, load, place, number, part.total, part.compute) for number, part in enumerate(needs.gpus)
    )
    pairs = zip(machine.gpus, needs.gpus, reserves, strict=True)
    short: set[Short] = {"vram"} if any(part.total + held > (gpu.total or 0) for gpu, part, held in pairs) else set()
    short |= {"ram"} if needs.ram.total + SYSTEM > machine.guest_possible else set()
    return Plan(model, load, needs, reserves, frozenset(short))


def _left(machine: Machine, model: Model, load: Load, place: Sequence[int], number: int, taken: int, compute: int) -> int:
    """What a plan leaves of a GPU; of one that it puts nothing on all that is held there, whatever its size."""
    gpu = machine.gpus[number]
    least = reserve(machine, gpu, model, load, compute)
    return least + _unread(model, load, place, number) if taken else min(least, gpu.total or 0)


def reserve(machine: Machine, gpu: Gpu, model: Model, load: Load, compute: int) -> int:
    """What a plan leaves of a GPU: to others what they hold, to CUDA its context and pools, to estimates their margin."""
    idle = CONTEXT if machine.headless or not machine.windows else DESKTOP
    held = idle if gpu.used is None else max(idle, gpu.used + CONTEXT)
    picture = memory.PICTURE // 4 if load.mmproj else 0
    return held + memory.pool_bytes(Shape.of(model.summary), load) + memory.margin(compute) + picture


def _unread(model: Model, load: Load, place: Sequence[int], number: int) -> int:
    """What a GPU may need beyond estimated weights: publishers give up to 8.5 bits to all that is no expert."""
    if model.exact:
        return 0
    generous = _generous(model.bytes, bool(model.summary.keys["nextn_predict_layers"]))
    most, least = (sum(memory.weights_by_class(summary, load, place, number).values()) for summary in (generous, model.summary))
    return max(0, most - least)


@cache
def _generous(size: int, mtp: bool) -> Summary:
    """An estimate of a quant whose layers and vocabulary are Q8_0, and whose experts have the rest of the bytes."""
    plain = estimate(size, mtp)
    dense, vocabulary = (
        max(now, part * 34 // 32)
        for now, part in ((plain.tensors.dense_by_layer()[0], DENSE // LAYERS), (plain.tensors.embedding, EMBEDDING))
    )
    everywhere = f"0-{LAYERS - 1}"
    experts = (size - LAYERS * dense - 2 * vocabulary - plain.tensors.mtp) // LAYERS
    tensors = replace(
        plain.tensors, dense={everywhere: dense}, embedding=vocabulary, output=vocabulary, experts={everywhere: max(0, experts)}
    )
    return replace(plain, tensors=tensors)


def _filled(machine: Machine, model: Model, load: Load, share: float = 1.0) -> tuple[tuple[int, ...], bool]:
    """Layers of each GPU in order, each filled up to a share of what it has free; and whether all found room.

    More layers never take less of a GPU, so if there is any way to fit them in this order, filling finds one.
    """
    shape = Shape.of(model.summary)
    begin = first = shape.layers + 1 - min(load.n_gpu_layers, shape.layers + 1)
    counts: list[int] = []
    for number, gpu in enumerate(machine.gpus):
        held = min(gpu.total or 0, reserve(machine, gpu, model, load, 0))
        limit = held + share * ((gpu.total or 0) - held)

        def too_many(end: int, begin: int = begin, number: int = number, limit: float = limit) -> bool:
            place = [number if begin <= il < end else -1 if il < first else -2 for il in range(shape.layers + 1)]
            part = memory.on_gpu(model.summary, shape, load, place, number)
            return part.total + _left(machine, model, load, place, number, part.total, part.compute) > limit

        end = begin + bisect_left(range(begin + 1, shape.layers + 2), True, key=too_many)
        counts.append(end - begin)
        begin = end
    rest = shape.layers + 1 - begin
    return (*counts[:-1], counts[-1] + rest), not rest


def _balanced(machine: Machine, found: Plan) -> Plan:
    """A plan that fits, with its layers on the GPUs by what each has free: as much of each stays free as can."""
    least, most = 0.0, 1.0
    for _ in range(8):
        share = (least + most) / 2
        least, most = (least, share) if _filled(machine, found.model, found.load, share)[1] else (share, most)
    split = _filled(machine, found.model, found.load, most)[0]
    return _placed(machine, found.model, replace(found.load, split=split))


def _taken_back(machine: Machine, model: Model, first: Load, found: Plan) -> Plan:
    for name in ("parallel", "ctx_checkpoints", "cache_ram"):
        wished = getattr(first, name)
        while getattr(found.load, name) < wished:
            now = getattr(found.load, name)
            more_of_it = min(wished, now + 1 if name == "parallel" else now * 2 or 256)
            more = _tried(machine, model, replace(found.load, **{name: more_of_it}))
            if more.short:
                break
            found = more
    return found


def _given_up(first: Load, last: Load, gpus: int) -> Iterator[str]:
    if last.parallel < first.parallel:
        yield f"slots: {last.parallel} instead of {first.parallel}"
    if (last.cache_ram, last.ctx_checkpoints) < (first.cache_ram, first.ctx_checkpoints):
        yield f"host caches: {last.cache_ram} MiB of prompts and {last.ctx_checkpoints} checkpoints a slot"
    if last.n_cpu_moe > first.n_cpu_moe:
        yield f"experts to RAM: those of {last.n_cpu_moe} layers"
    if last.ubatch_size < first.ubatch_size:
        yield f"micro-batch: {last.ubatch_size} instead of {first.ubatch_size}, so prompts are read slower"
    if last.cache_type_k != first.cache_type_k or last.cache_type_v != first.cache_type_v:
        yield f"KV cache: {last.cache_type_k} instead of {first.cache_type_k}"
    if last.ctx_size < first.ctx_size:
        yield f"context: {last.ctx_size} instead of {first.ctx_size}"
    if last.n_gpu_layers < first.n_gpu_layers and gpus:
        yield f"layers to RAM: {first.n_gpu_layers - last.n_gpu_layers} of {first.n_gpu_layers}"
