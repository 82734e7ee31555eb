"""What llama-server takes of each GPU and of RAM, before it is started. Pure; all figures in bytes.

Weights, KV cache and recurrent state are exact: rules of llama.cpp at the pin (src/llama-kv-cache.cpp, -memory-recurrent.cpp,
-hparams.cpp, -model.cpp). Compute buffers follow from a graph that only llama.cpp builds: the factors below were read off its
own reservations over a grid (llama.h's no_alloc, with the CPU and with a second device), so they are estimates with a margin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Literal

from wsllama.domain.models import Summary, by_layer

Mark = Literal["computed", "estimated", "measured"]
MIB = 1 << 20
GIB = 1 << 30
# type of a cache: (values a block, bytes a block); ggml-common.h
CACHE_TYPES = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}
QUANTISED = frozenset(CACHE_TYPES) - {"f32", "f16", "bf16"}
VOCABULARY = 248_320  # of Qwen3.6
PADDING = 256  # cells of a context, llama-context.cpp
SLOTS = 64  # at most: the settings' limit, and each takes a recurrent state of 63 MiB; LLAMA_MAX_SEQ at the pin is 256
DRAFT = 3  # --spec-draft-n-max, and the states that a slot keeps to go back to
# A projector's graph for the largest picture that it takes (4096 tokens), which llama.cpp's own estimate leaves out: the server
# reserves 248.10 MiB for 2116 tokens of Qwen3.6's projector before it warms up, and each has four patches as wide.
PICTURE = 481 * MIB
# How far the factors are off at most.
COMPUTE_MARGIN, COMPUTE_SHARE = 16 * MIB, 20


@dataclass(frozen=True)
class Load:
    """What a server is started with, by the names of its arguments. `n_gpu_layers` counts the output as one more layer.

    + split: layers of each GPU, in order; empty for one GPU
    + mmproj: bytes of the projector's file, 0 without one; mtp: predicts with the model's own layer
    + unified: slots share one context (--kv-unified), as this project starts the server; else each has its part of it
    """

    ctx_size: int
    parallel: int = 1
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: bool = True
    batch_size: int = 2048
    ubatch_size: int = 512
    n_gpu_layers: int = 0
    n_cpu_moe: int = 0
    split: tuple[int, ...] = ()
    cache_ram: int = 0  # MiB, as the argument
    ctx_checkpoints: int = 0
    mmproj: int = 0
    mtp: bool = False
    unified: bool = True

    @property
    def slot_cells(self) -> int:
        """Cells that one token may look at: those of its slot where the context is divided. llama.cpp pads both."""
        whole = -(-self.ctx_size // PADDING) * PADDING
        return whole if self.unified else -(-(whole // self.parallel) // PADDING) * PADDING

    @property
    def cells(self) -> int:
        """Cells of the whole context."""
        return self.slot_cells if self.unified else self.slot_cells * self.parallel

    @property
    def tokens(self) -> int:
        """Tokens of the largest graph."""
        return min(self.ubatch_size, self.batch_size, self.cells)


@dataclass(frozen=True)
class Shape:
    """A model's sizes that memory follows from."""

    layers: int
    attention: tuple[int, ...]
    heads: int
    row_k: int
    row_v: int
    width: int
    experts_used: int
    channels: int  # of the convolution before the recurrent state
    conv: int
    state: int

    @classmethod
    def of(cls, model: Summary) -> Shape:
        """From a summary's keys."""
        k = model.keys
        layers = k["block_count"] - k["nextn_predict_layers"]
        return cls(
            layers=layers,
            attention=tuple(il for il in range(layers) if (il + 1) % k["full_attention_interval"] == 0),
            heads=k["attention.head_count"],
            row_k=k["attention.key_length"] * k["attention.head_count_kv"],
            row_v=k["attention.value_length"] * k["attention.head_count_kv"],
            width=k["embedding_length"],
            experts_used=k["expert_used_count"],
            channels=k["ssm.inner_size"] + 2 * k["ssm.group_count"] * k["ssm.state_size"],
            conv=k["ssm.conv_kernel"],
            state=k["ssm.state_size"] * k["ssm.inner_size"],
        )


@dataclass(frozen=True)
class Part:
    """What is taken of one GPU, or of RAM."""

    weights: int = 0
    kv: int = 0
    recurrent: int = 0
    compute: int = 0
    mmproj: int = 0
    output: int = 0
    cache_ram: int = 0
    checkpoints: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, one.name) for one in fields(self))

    def __add__(self, other: Part) -> Part:
        return Part(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


@dataclass(frozen=True)
class Needs:
    """What a load takes: `gpus` in order, and `ram`."""

    gpus: tuple[Part, ...]
    ram: Part = field(default_factory=Part)

    @property
    def vram(self) -> Part:
        """Of all GPUs together."""
        return sum(self.gpus, Part())


def marks(exact: bool) -> dict[str, Mark]:
    """How each figure of a Part is known; exact: the model's header was read."""
    estimated = ("compute", "mmproj", "checkpoints", "cache_ram") + (() if exact else ("weights",))
    return {one.name: "estimated" if one.name in estimated else "computed" for one in fields(Part)}


def row_bytes(kind: str, values: int) -> int:
    """Bytes of a row of a cache. Raises KeyError for a type that is none of a cache."""
    block, size = CACHE_TYPES[kind]
    return -(-values // block) * size


def kv_bytes(shape: Shape, load: Load, layers: int) -> int:
    """Of this many full-attention layers: one pool of cells for all slots (unified)."""
    return layers * load.cells * (row_bytes(load.cache_type_k, shape.row_k) + row_bytes(load.cache_type_v, shape.row_v))


def state_bytes(shape: Shape, layers: int) -> int:
    """Recurrent state of one sequence in this many gated-delta-net layers: always f32, whatever the context."""
    return 4 * layers * ((shape.conv - 1) * shape.channels + shape.state)


def needs(model: Summary, load: Load, gpus: int = 1) -> Needs:
    """What a model takes with a load on a machine with so many GPUs; 0: all of it in RAM."""
    shape = Shape.of(model)
    place = places(shape.layers, load, gpus)
    out = [on_gpu(model, shape, load, place, device) for device in range(gpus)]
    ram = _of_device(model, shape, load, place, -1)
    checkpoint = state_bytes(shape, shape.layers - len(shape.attention))
    ram += Part(
        output=load.parallel * (1 + load.mtp) * VOCABULARY * 4,
        cache_ram=load.cache_ram * MIB,
        checkpoints=load.ctx_checkpoints * load.parallel * checkpoint,
        mmproj=0 if gpus or not load.mmproj else load.mmproj + PICTURE,
    )
    return Needs(tuple(out), ram)


def on_gpu(model: Summary, shape: Shape, load: Load, place: Sequence[int], gpu: int) -> Part:
    """What one GPU takes, by the device of each layer and of the output; the first has the projector (mtmd)."""
    part = _of_device(model, shape, load, place, gpu)
    return part + Part(mmproj=load.mmproj + PICTURE) if gpu == 0 and load.mmproj else part


def _by_layer(groups: Mapping[str, int]) -> Sequence[int]:
    """Bytes of each layer, remembered: a plan asks for them at every step."""
    return _remembered(tuple(groups.items()))


@lru_cache(maxsize=256)
def _remembered(groups: tuple[tuple[str, int], ...]) -> Sequence[int]:
    return tuple(by_layer(dict(groups)))


def places(layers: int, load: Load, gpus: int) -> list[int]:
    """Device of each layer and, last, of the output; -1 is RAM. Layers go to GPUs from the back (llama-model.cpp)."""
    on_gpu = min(load.n_gpu_layers, layers + 1) if gpus else 0
    split = load.split or (on_gpu, *[0] * (gpus - 1))
    devices = [device for device, count in enumerate(split) for _ in range(count)]
    return [-1] * (layers + 1 - on_gpu) + devices[:on_gpu]


def weights_by_class(model: Summary, load: Load, place: Sequence[int], device: int) -> dict[str, int]:
    """Bytes of weights on a device, by what they are for. Experts of the first n_cpu_moe layers and the embedding are in RAM."""
    dense, experts = _by_layer(model.tensors.dense), _by_layer(model.tensors.experts)
    device_of = [-1 if il < load.n_cpu_moe else place[il] for il in range(len(experts))]
    last, tensors = place[-1] == device, model.tensors
    return {
        "experts": sum(size for size, on in zip(experts, device_of, strict=True) if on == device),
        "dense": sum(size for size, on in zip(dense, place[:-1], strict=True) if on == device),
        "embedding": tensors.embedding if device < 0 else 0,
        "output": tensors.output if last else 0,
        "mtp": tensors.mtp if last and load.mtp else 0,
        "other": tensors.other if last else 0,
    }


def _of_device(model: Summary, shape: Shape, load: Load, place: Sequence[int], device: int) -> Part:
    """What one device takes for the layers on it."""
    here = [il for il in range(shape.layers) if place[il] == device]
    attention = [il for il in here if il in shape.attention]
    last = place[-1] == device
    kv = kv_bytes(shape, load, len(attention))
    if last and load.mtp:
        kv += kv_bytes(shape, replace(load, cache_type_k="f16", cache_type_v="f16"), 1)
    states = load.parallel * (1 + DRAFT * load.mtp)
    return Part(
        weights=sum(weights_by_class(model, load, place, device).values()),
        kv=kv,
        recurrent=states * state_bytes(shape, len(here) - len(attention)),
        compute=(1 + (load.mtp and last)) * _compute(shape, load, here, place, device),
    )


def _compute(shape: Shape, load: Load, here: Sequence[int], place: Sequence[int], device: int) -> int:
    """The graph's buffer on a device: the largest of its tensors that live at the same time, each as wide as its tokens."""
    tokens, unit = load.tokens, 4 * shape.width
    mask = 2 * load.slot_cells * tokens
    in_ram = sum(il < load.n_cpu_moe for il in here)
    if device < 0 and not here and load.n_gpu_layers:  # all layers are on GPUs: RAM has inputs, and experts that were moved
        moved = min(load.n_cpu_moe, shape.layers)
        return tokens * (2 * shape.experts_used * unit + 1024 if moved else 2 * unit) + mask
    if device >= 0 and not here and place[-1] != device:
        return 0
    routed = 2 * shape.experts_used + (2 if device < 0 else 1 if not in_ram else 3)
    if device >= 0 and here and in_ram == len(here):
        routed = 0
    channels = 4 * shape.channels
    layer = tokens * max(routed * unit, 7 * channels // 2) + mask
    mixed = device >= 0 and 0 < in_ram < len(here)
    states = tokens * (16 if mixed else 13) * channels // 4 + mask + load.parallel * 4 * _state_rows(shape, load)
    attention = 0
    if not load.flash_attn:  # scores of all heads in f32, and the mask
        attention = tokens * (load.slot_cells * 4 * (shape.heads + 1) + 3 * channels)
    if "f32" in (load.cache_type_k, load.cache_type_v) and device >= 0:  # flash attention takes them as f16
        attention = max(attention, tokens * 3 * channels + mask + 2 * load.cells * (shape.row_k + shape.row_v))
    return max(layer, states, attention)


def _state_rows(shape: Shape, load: Load) -> int:
    """Values of a slot's states that are in use at the same time."""
    return (2 + DRAFT * load.mtp) * shape.state + (shape.conv - 1) * shape.channels


def margin(compute: int) -> int:
    """How far the estimate of a compute buffer may be off."""
    return max(COMPUTE_MARGIN, compute // COMPUTE_SHARE)


def pool_bytes(shape: Shape, load: Load) -> int:
    """What CUDA's flash attention takes beside the buffers: one layer's quantised cache as f16 (fattn-common.cuh)."""
    kinds = ((load.cache_type_k, shape.row_k), (load.cache_type_v, shape.row_v))
    return sum(2 * load.cells * row for kind, row in kinds if kind != "f16")


# llama-fit-params, asked for the same load


@dataclass(frozen=True)
class FitRow:
    """One line of `llama-fit-params --fit-print on`, in MiB that it rounds down."""

    device: str
    model: int
    context: int
    compute: int


def fit_arguments(load: Load) -> list[str]:
    """Its arguments, without the model; it takes no --kv-unified.

    -nr: a build without CUDA would lay experts out anew and count them nowhere.
    """
    words = [
        "--fit-print",
        "on",
        "-nr",
        "-c",
        load.ctx_size,
        "-np",
        load.parallel,
        "-b",
        load.batch_size,
        "-ub",
        load.ubatch_size,
    ]
    words += ["-ctk", load.cache_type_k, "-ctv", load.cache_type_v, "-fa", "on" if load.flash_attn else "off"]
    words += ["-ngl", load.n_gpu_layers, "-ncmoe", load.n_cpu_moe]
    if len(load.split) > 1:
        words += ["-ts", ",".join(map(str, load.split))]
    return [str(word) for word in words]


def read_fit(text: str) -> list[FitRow]:
    """Its rows: devices in order, Host last. Raises ValueError when there is no row of Host."""
    rows = [FitRow(m[1], *(int(m[n]) for n in (2, 3, 4))) for m in re.finditer(r"^(\S+) (\d+) (\d+) (\d+) *$", text, re.M)]
    if not rows or rows[-1].device != "Host":
        raise ValueError("llama-fit-params printed no row of Host")
    return rows


def fit_rows(model: Summary, load: Load, gpus: int = 0, vocabulary: int = VOCABULARY) -> list[FitRow]:
    """What it should print. Other than the server, as we start it, it divides the context by the slots, reserves an output for
    every token of a batch, and knows no projector and no prediction."""
    shape = Shape.of(model)
    load = replace(load, mtp=False, unified=False)
    has = needs(model, load, gpus)
    place = places(shape.layers, load, gpus)
    outputs = load.tokens * 4 * (vocabulary + 3 * shape.width)
    names = [*(f"GPU{number}" for number in range(gpus)), "Host"]
    rows = []
    for number, (name, part) in enumerate(zip(names, (*has.gpus, has.ram), strict=True)):
        device = number if number < gpus else -1
        compute = max(part.compute, outputs) if place[-1] == device else part.compute
        rows.append(FitRow(name, *(size // MIB for size in (part.weights, part.kv + part.recurrent, compute))))
    return rows


def disagreements(ours: Sequence[FitRow], theirs: Sequence[FitRow]) -> list[str]:
    """Where llama-fit-params says otherwise, one sentence each; a MiB is what its rounding takes."""
    if len(ours) != len(theirs):
        return [f"llama-fit-params counts {len(theirs) - 1} GPUs, the plan {len(ours) - 1}"]
    out = []
    for our, their in zip(ours, theirs, strict=True):
        for what in ("model", "context", "compute"):
            plan, said = getattr(our, what), getattr(their, what)
            allowed = margin(said * MIB) // MIB if what == "compute" else 1
            if abs(plan - said) > allowed:
                out.append(f"{their.device}: llama-fit-params says {said} MiB for {what}, the plan {plan} MiB")
    return out


def text(size: int) -> str:
    """Bytes for people."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"
