"""Models in wsllama.lock: names, quantisations, shards, projectors, and what a plan needs to know of a file without having it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wsllama.domain import gguf
from wsllama.domain.gguf_audit import ARCHITECTURE

# A quantisation as publishers write it at the end of a file's name: Q4_K_M, UD-IQ2_XXS, MXFP4_MOE, BF16
QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d_[A-Z0-9]+(?:_[A-Z0-9]+)*|TQ\d_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))$", re.IGNORECASE
)
PROJECTORS = ("BF16", "F16", "F32")  # the best first; a projector has less than a gigabyte

# What plans ask for, by the names after `qwen35moe.`; of Qwen3.6-35B-A3B (config.json of the model, log of llama.cpp)
KEYS = {
    "attention.head_count": 16,
    "attention.head_count_kv": 2,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "block_count": 40,
    "context_length": 262_144,
    "embedding_length": 2048,
    "expert_count": 256,
    "expert_used_count": 8,
    "full_attention_interval": 4,
    "nextn_predict_layers": 0,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 16,
    "ssm.inner_size": 4096,
    "ssm.state_size": 128,
}
LAYERS = 40
# Parameters of Qwen3.6-35B-A3B; with the layer for multi-token prediction it has 35.51 billion.
PARAMETERS, PREDICTING = 34_660_610_688, 850_000_000
EXPERTS = LAYERS * 3 * 256 * 512 * 2048  # 92.94 per cent
EMBEDDING = 248_320 * 2048
DENSE = PARAMETERS - EXPERTS - 2 * EMBEDDING


@dataclass(frozen=True)
class Tensors:
    """Bytes of tensors by class. `experts` and `dense` are bytes a layer, by the layers that have them, as in {"0-2,5": 100}."""

    dense: dict[str, int]
    embedding: int
    experts: dict[str, int]
    mtp: int
    other: int
    output: int

    def experts_by_layer(self) -> list[int]:
        """Bytes of routed experts of each layer."""
        return by_layer(self.experts)

    def dense_by_layer(self) -> list[int]:
        """Bytes of everything else of each layer."""
        return by_layer(self.dense)

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return sum(self.experts_by_layer()) + sum(self.dense_by_layer()) + self.embedding + self.output + self.mtp + self.other


@dataclass(frozen=True)
class Summary:
    """What a GGUF's header says that a plan needs. `keys` by their names after the architecture's."""

    architecture: str
    keys: dict[str, int]
    tensors: Tensors


def summary(headers: Sequence[gguf.Header]) -> Summary:
    """The summary of a model from the headers of its files, in order. Raises GgufError when they claim impossible layers."""
    first = headers[0]
    found = gguf.classes(first, (tensor for header in headers for tensor in header.tensors))
    keys = {name: gguf.whole(first, f"{first.architecture}.{name}") for name in KEYS}
    keys["full_attention_interval"] = keys["full_attention_interval"] or KEYS["full_attention_interval"]  # the loader's default
    tensors = Tensors(grouped(found.dense), found.embedding, grouped(found.experts), found.mtp, found.other, found.output)
    return Summary(first.architecture, keys, tensors)


def estimate(size: int, mtp: bool = False) -> Summary:
    """The summary of a quant of Qwen3.6-35B-A3B of which only the bytes of its files are known, by shares of its parameters.

    A quant gives experts fewer bits than the rest, so experts are over- and the rest underestimated by some per cent.
    """
    parameters = PARAMETERS + PREDICTING * mtp

    def share(part: int) -> int:
        return size * part // parameters

    everywhere = f"0-{LAYERS - 1}"
    tensors = Tensors(
        dense={everywhere: share(DENSE) // LAYERS},
        embedding=share(EMBEDDING),
        experts={everywhere: share(EXPERTS) // LAYERS},
        mtp=share(PREDICTING * mtp),
        other=0,
        output=share(EMBEDDING),
    )
    keys = {**KEYS, "block_count": LAYERS + mtp, "nextn_predict_layers": int(mtp)}
    return Summary(ARCHITECTURE, keys, tensors)


def grouped(numbers: Sequence[int]) -> dict[str, int]:
    """Numbers by the places that have them: [7, 7, 9, 7] is {"0-1,3": 7, "2": 9}."""
    places: dict[int, list[list[int]]] = {}
    for place, number in enumerate(numbers):
        runs = places.setdefault(number, [])
        if runs and runs[-1][1] == place - 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return {
        ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs): number
        for number, runs in places.items()
    }


def by_layer(groups: Mapping[str, int]) -> list[int]:
    """The reverse of `grouped`. Raises ValueError when a place has none or two numbers, or isn't written so."""
    found: dict[int, int] = {}
    for places, number in groups.items():
        for run in places.split(","):
            first, _, last = run.partition("-")
            for place in range(int(first), min(int(last or first), gguf.MAX_LAYERS) + 1):
                if place in found:
                    raise ValueError(f"layer {place} is there twice")
                found[place] = number
    if sorted(found) != list(range(len(found))):
        raise ValueError("a layer is missing")
    return [found[place] for place in range(len(found))]


def quants(paths: Iterable[str]) -> dict[str, list[str]]:
    """Quantisation -> its files in a repository, shards in order; projectors and incomplete splits are left out."""
    present = set(paths)
    found: dict[str, list[str]] = {}
    for path in sorted(present):
        folder, _, name = path.rpartition("/")
        names = gguf.shard_names(name)
        if name != names[0] or not name.endswith(".gguf") or is_projector(path):
            continue
        quant = quant_of(name)
        files = [f"{folder}/{shard}" if folder else shard for shard in names]
        if quant and quant not in found and present.issuperset(files):
            found[quant] = files
    return found


def missing_shards(paths: Iterable[str], quant: str) -> list[str]:
    """Files of a quantisation that the names of its shards promise, and that a repository lacks."""
    present = set(paths)
    promised = {
        path[: path.rfind("/") + 1] + shard
        for path in present
        if quant_of(name := path.rpartition("/")[2]) == quant and not is_projector(path)
        for shard in gguf.shard_names(name)
    }
    return sorted(promised - present)


def quant_of(name: str) -> str | None:
    """The quantisation that a file's name ends with."""
    shard = gguf.SHARD.match(name)
    found = QUANT.search(shard[1] if shard else name.removesuffix(".gguf"))
    return found[1].upper() if found else None


def is_projector(path: str) -> bool:
    """Whether a file's name is one of a projector; llama.cpp looks for it by the same beginning."""
    name = path.rpartition("/")[2].lower()
    return name.endswith(".gguf") and name.startswith("mmproj")


def projector(paths: Iterable[str]) -> str | None:
    """The projector that goes with a repository's models; None when there is none."""
    found = [path for path in sorted(paths) if is_projector(path)]

    def rank(path: str) -> int:
        kind = quant_of(path.rpartition("/")[2])
        return PROJECTORS.index(kind) if kind in PROJECTORS else len(PROJECTORS)

    return min(found, key=rank, default=None)


def name_of(repo: str, quant: str) -> str:
    """The name in the lock: what the repository is called without its owner and -GGUF, and the quantisation."""
    return f"{re.sub(r'[-_.]gguf$', '', repo.rpartition('/')[2], flags=re.IGNORECASE)}-{quant}"
