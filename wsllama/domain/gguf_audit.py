"""Whether GGUF files are fit to be served as Qwen3.6-35B-A3B: all shards there and whole, the right architecture, a template.

Imports nothing but the reader beside it, and opens no file. Rules are those of llama.cpp at the project's pin: the loader
(src/llama-model-loader.cpp), the architecture (src/models/qwen35moe.cpp), the header (ggml/src/gguf.cpp) and the projector
(tools/mtmd/clip.cpp).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wsllama.domain import gguf

ARCHITECTURE = "qwen35moe"
PROJECTOR = "clip"
BLOCKS = (40, 41)  # of Qwen3.6-35B-A3B, and with its layer for multi-token prediction
WIDTH, EXPERTS, EXPERTS_USED = 2048, 256, 8
THINK = "<think>"
SHOWN = 4  # names in one sentence


@dataclass(frozen=True)
class File:
    """One file as it was found: its name, its size in bytes, and its header or why there is none."""

    name: str
    size: int
    header: gguf.Header | None
    problem: str = ""


@dataclass
class Report:
    """What is to be said. `bytes_expected` is what the headers ask for, None while one of them can't be read."""

    architecture: str = ""
    block_count: int = 0
    expert_count: int = 0
    bytes_expected: int | None = None
    bytes_present: int = 0
    shards: int = 1
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether it can be served."""
        return not self.problems


def audit(files: Sequence[File], asked: str, mmproj: File | None = None, any_size: bool = False) -> Report:
    """Judge a model's files, and its projector.

    - files: of all shards, in order; one that isn't there has a problem and no header
    - asked: name of the file that was given, of which llama-server wants the first shard
    - mmproj: the projector's file
    - any_size: take other sizes of the architecture too
    """
    first = files[0].header
    report = Report(bytes_present=sum(file.size for file in files), shards=len(files))
    report.problems += [f"{file.name}: {file.problem}" for file in files if file.problem]
    if first is not None:
        report.architecture = first.architecture
        report.block_count = gguf.whole(first, f"{first.architecture}.block_count")
        report.expert_count = gguf.whole(first, f"{first.architecture}.expert_count")
        report.shards = max(len(files), first.split_count)
    headers = [file.header for file in files if file.header is not None]
    for file in files:
        report.problems += _sizes(file)
        report.problems += _shard(file, files)
    if len(headers) == len(files):
        report.bytes_expected = sum(header.expected_size for header in headers)
    if asked != files[0].name:
        report.problems.append(f"{asked}: llama-server wants the first shard of a model: give it {files[0].name}")
    if first is not None:
        report.problems += _kind(files[0].name, first)
        if first.architecture == ARCHITECTURE:
            report.problems += _shape(files[0].name, first, any_size)
            report.problems += _template(files[0].name, first)
            if len(headers) == len(files) and not report.problems:
                report.problems += _tensors(files[0].name, headers)
    if mmproj is not None:
        _projector(report, mmproj, first)
    report.warnings += _spare(files)
    return report


def printable(text: str) -> str:
    """What a file says of itself must neither steer a terminal nor look like a line of ours."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _sizes(file: File) -> Iterator[str]:
    """Cut off, or laid out as llama.cpp refuses it: every tensor begins where the one before it ends."""
    header = file.header
    if header is None:
        return
    if file.size < header.expected_size:
        yield f"{file.name}: {gguf.cut_off(header, file.size)}"
    end = 0
    for tensor in header.tensors:
        if tensor.offset != end:
            yield (
                f"{file.name}: its header is damaged: the tensor {tensor.name!r} begins at {tensor.offset} where {end} is right;"
                " download it again"
            )
            return
        end += -(-tensor.size // header.alignment) * header.alignment


def _shard(file: File, files: Sequence[File]) -> Iterator[str]:
    """Whether a file is the shard that its name and its place say."""
    if file.header is None:
        return
    place, count = file.header.split_no + 1, file.header.split_count
    if len(files) == 1 and count > 1 and not gguf.SHARD.match(file.name):
        yield (
            f"{file.name}: its header says that it is shard {place} of {count}, but its name does not: give all shards back"
            f" their names, which end in -{place:05d}-of-{count:05d}.gguf"
        )
    elif (place, count) != (files.index(file) + 1, len(files)):
        yield (
            f"{file.name}: its header says that it is shard {place} of {count}, its name says {files.index(file) + 1} of"
            f" {len(files)}: it was renamed or belongs to another model, so download the shards again"
        )


def _kind(name: str, header: gguf.Header) -> Iterator[str]:
    kind = header.metadata.get("general.type")
    if header.architecture == PROJECTOR or kind == "mmproj":
        yield f"{name}: it is a projector (mmproj), not a model: give the model, and this one as its mmproj"
    elif kind in ("adapter", "imatrix"):
        yield f"{name}: it holds an {kind}, not a model: give the model itself"
    elif not header.architecture:
        yield f"{name}: its header names no architecture (general.architecture): download it again"
    elif header.architecture != ARCHITECTURE:
        yield (
            f"{name}: its architecture is {header.architecture[:64]!r}, but that of Qwen3.6-35B-A3B is {ARCHITECTURE!r}:"
            " it is another model"
        )


def _shape(name: str, header: gguf.Header, any_size: bool) -> Iterator[str]:
    blocks, width, experts, used, predicting = (
        gguf.whole(header, f"{ARCHITECTURE}.{key}")
        for key in ("block_count", "embedding_length", "expert_count", "expert_used_count", "nextn_predict_layers")
    )
    try:
        gguf.layer_count(header)
    except gguf.GgufError as e:
        yield f"{name}: {e}"
        return
    any_size = any_size and width != WIDTH  # what is as wide as the real model has to be it; small ones for tests aren't
    if not any_size and blocks not in BLOCKS:
        yield (
            f"{name}: it has {blocks} blocks, but Qwen3.6-35B-A3B has {BLOCKS[0]}, or {BLOCKS[1]} with multi-token prediction:"
            " it is another model"
        )
    elif not any_size and blocks - predicting != BLOCKS[0]:
        yield f"{name}: {predicting} of its {blocks} blocks predict more tokens, which doesn't leave {BLOCKS[0]}: it is damaged"
    if not 0 < used <= experts:
        yield f"{name}: its header is damaged: {used} of {experts} experts are used"
    elif not any_size and width == WIDTH and (experts, used) != (EXPERTS, EXPERTS_USED):
        yield (
            f"{name}: {used} of {experts} experts are used, but Qwen3.6-35B-A3B uses {EXPERTS_USED} of {EXPERTS}:"
            " experts were removed from it, or it is another model"
        )


def _template(name: str, header: gguf.Header) -> Iterator[str]:
    template = header.metadata.get("tokenizer.chat_template")
    if not isinstance(template, str) or not template.strip():
        yield f"{name}: it has no chat template, so a chat would not be understood: take another conversion of the model"
    elif THINK not in template:
        yield f"{name}: its chat template has no {THINK}, so it is not the one of Qwen3.6: take another conversion of the model"


def _tensors(name: str, headers: Sequence[gguf.Header]) -> Iterator[str]:
    """All blocks are there once, with as many experts as the header says; and no shard is of another quantisation."""
    tensors = [tensor for header in headers for tensor in header.tensors]
    twice = [tensor for tensor, times in Counter(tensor.name for tensor in tensors).items() if times > 1]
    if twice:
        yield f"{name}: {_some(twice)} is in more than one shard: they are of different models, so download them again"
        return
    promised = gguf.whole(headers[0], "split.tensors.count")
    if promised and promised != len(tensors):
        yield (
            f"{name}: its shards hold {len(tensors)} tensors where {promised} were split: they are of different models,"
            " so download them again"
        )
        return
    yield from _same_quant(name, headers)
    blocks = gguf.whole(headers[0], f"{ARCHITECTURE}.block_count")
    with_experts = {int(found[1]) for t in _experts(tensors) if (found := gguf.BLOCK_TENSOR.match(t.name))}
    lacking = [str(block) for block in range(blocks) if block not in with_experts]
    if lacking:
        yield f"{name}: there are no experts for block {_some(lacking)}: it is damaged, or was cut down"
    experts = gguf.whole(headers[0], f"{ARCHITECTURE}.expert_count")
    wrong = [tensor.name for tensor in _experts(tensors) if tensor.shape[-1:] != (experts,)]
    if wrong:
        yield f"{name}: {_some(wrong)} doesn't hold {experts} experts, which its header says: it is damaged"


def _experts(tensors: Sequence[gguf.Tensor]) -> list[gguf.Tensor]:
    return [tensor for tensor in tensors if gguf.EXPERTS.search(tensor.name)]


def _same_quant(name: str, headers: Sequence[gguf.Header]) -> Iterator[str]:
    """A quant mixes types, but each of its shards has some of the experts' types in common with the first that has experts."""
    kinds = [{tensor.type for tensor in _experts(header.tensors)} for header in headers]
    first = next((kind for kind in kinds if kind), set())
    for number, kind in enumerate(kinds, 1):
        if kind and not kind & first:
            yield (
                f"{name}: shard {number} has experts of type {_some(sorted(kind))}, the shards before it {_some(sorted(first))}:"
                " it is of another quantisation, so download the shards again"
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _projector(report: Report, file: File, model: gguf.Header | None) -> None:
    header = file.header
    if header is None:
        report.problems.append(f"{file.name}: {file.problem}")
        return
    report.problems += _sizes(file)
    if header.architecture != PROJECTOR:
        what = header.architecture[:64] or "nothing"
        report.problems.append(
            f"{file.name}: it is no projector: its architecture is {what!r}, not {PROJECTOR!r}; give the file mmproj-*.gguf"
        )
        return
    if model is None or not report.architecture:
        return
    gives, takes = projection(header), _input_width(model)
    if gives != takes:
        report.problems.append(
            f"{file.name}: it gives vectors of {gives} values where the model takes {takes}: it is another model's projector"
        )
    for key in ("general.base_model.0.repo_url", "general.basename"):
        theirs, ours = header.metadata.get(key), model.metadata.get(key)
        if isinstance(theirs, str) and isinstance(ours, str) and theirs != ours:
            report.warnings.append(f"{file.name}: it says it is of {theirs}, the model of {ours}: take both from one repository")
            return


def projection(header: gguf.Header) -> int:
    """Values of a vector that a projector gives: of the last of its layers, and once more for each deepstack layer.

    As clip_n_mmproj_embd reckons it for Qwen3-VL's projector, of which only that of the first model line has deepstack layers.
    """
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    last = shapes.get("mm.2.bias", ())
    width = last[0] if last else gguf.whole(header, "clip.vision.projection_dim")
    deepstack = {name.split(".")[2] for name in shapes if name.startswith("v.deepstack.") and name.count(".") > 2}
    return width * (1 + len(deepstack))


def _input_width(model: gguf.Header) -> int:
    width, deepstack = (gguf.whole(model, f"{model.architecture}.{key}") for key in ("embedding_length", "n_deepstack_layers"))
    return width * (1 + deepstack)


def _spare(files: Sequence[File]) -> Iterator[str]:
    for file in files:
        if file.header and file.size - file.header.expected_size >= file.header.alignment:
            yield f"{file.name}: {file.size - file.header.expected_size} bytes follow its last tensor, which nothing reads"
