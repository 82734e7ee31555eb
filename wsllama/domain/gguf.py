"""The header of a GGUF file: what it holds, and whether the file is whole.

Imports nothing but the standard library and opens no file, so that the same text runs on a controller and, sent there
as text, on a host. The layout is the one of `docs/gguf.md` in ggml; the table of types is `enum ggml_type` and
`ggml-common.h` of llama.cpp at the project's pin.
"""

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # llama.cpp refuses version 1, which had 32-bit counts
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
# Real files have some 50 keys, 750 tensors and, with their vocabulary, a header of 11 MiB. The bounds keep a hostile count
# from filling memory or time; a file's own size is none, because a file with holes may claim any.
MAX_HEADER = 64 * 1024 * 1024
MAX_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
MAX_NAME = 65_535
MAX_TEXT = 1024 * 1024
MAX_TENSOR_NAME = 63  # GGML_MAX_NAME, which counts a closing zero
MAX_TEXTS = 2 * 1024 * 1024  # of all lists together, each a turn; a real file has half a million
MAX_LISTED = 64  # longer arrays (a vocabulary has 248 320 strings) are only counted
CHUNK = 1024 * 1024

# type number: (name, elements a block, bytes a block)
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}

# value type number: struct format; 8 is a string, 9 an array
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf\Z", re.ASCII)  # llama_split_path
MAX_SHARDS = 1000  # of 50 GB each; the key's type would allow 65 535
BLOCK_TENSOR = re.compile(r"blk\.(\d{1,9})\.", re.ASCII)
EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")  # LLM_FFN_EXPS_REGEX of common/common.h
PARTS = {"token_embd": "embedding", "output": "output", "output_norm": "output"}

NOT_GGUF = (
    (b"<!doctype", "an HTML page, so a server answered with a login or error page in place of the file"),
    (b"<html", "an HTML page, so a server answered with a login or error page in place of the file"),
    (b"version https://git-lfs", "a git-lfs pointer, so the file itself was not fetched: run `git lfs pull`"),
    (b"pk\x03\x04", "a zip archive: unpack it first"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"),
    (b"ggjt", "a GGML file from before GGUF: get the model as GGUF"),
    (b"tjgg", "a GGML file from before GGUF: get the model as GGUF"),
    (b"{", "a JSON text"),
)

Scalar = int | float | bool | str


class GgufError(ValueError):
    """What is wrong with the file, as a sentence that goes after the file's name and a colon."""


@dataclass(frozen=True)
class Counted:
    """An array of which only the length was kept."""

    length: int


Value = Scalar | list[Scalar] | Counted


@dataclass(frozen=True)
class Tensor:
    """One tensor: `offset` in bytes from the start of the data, `size` in bytes without padding."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class Header:
    """What the header says. `expected_size` is the least size in bytes that holds every tensor."""

    version: int
    architecture: str
    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]
    alignment: int
    data_offset: int
    expected_size: int

    @property
    def split_count(self) -> int:
        """How many files the model is split into; 1 when it isn't."""
        return max(1, _whole(self.metadata.get("split.count")))

    @property
    def split_no(self) -> int:
        """Which of them this is, from 0."""
        return _whole(self.metadata.get("split.no"))


def read(stream: BinaryIO, size: int) -> Header:
    """Read the header from a binary stream that stands at its start; it is only read forward.

    - size: bytes of the whole file

    Raises GgufError when it isn't a GGUF, when the header is cut off, or when llama.cpp could not read it.
    """
    source = _Source(stream, size)
    version, n_tensors, n_keys = _start(source)
    metadata: dict[str, Value] = {}
    for _ in range(n_keys):
        key = source.text(MAX_NAME, "a key")
        if key in metadata:
            raise GgufError(f"its header is damaged: the key {key!r} is there twice")
        metadata[key] = _value(source, key)
    infos = [_tensor(source) for _ in range(n_tensors)]
    if len({tensor.name for tensor in infos}) < len(infos):
        raise GgufError("its header is damaged: two tensors have the same name")
    alignment = _alignment(metadata)
    data_offset = -(-source.at // alignment) * alignment
    end = max((tensor.offset + tensor.size for tensor in infos), default=0)
    architecture = metadata.get("general.architecture")
    return Header(
        version=version,
        architecture=architecture if isinstance(architecture, str) else "",
        metadata=metadata,
        tensors=tuple(infos),
        alignment=alignment,
        data_offset=data_offset,
        expected_size=data_offset + end if infos else source.at,
    )


def check(stream: BinaryIO, size: int) -> Header:
    """Read the header and hold it against the size of the file in bytes.

    Raises GgufError as `read` does, and when the data is cut off. The architecture is reported, not judged.
    """
    header = read(stream, size)
    if size < header.expected_size:
        raise GgufError(cut_off(header, size))
    return header


def not_gguf(head: bytes) -> str | None:
    """What a file is that begins with these bytes, at least 9 of them, as a sentence; None when it may be a GGUF."""
    return None if head.startswith(MAGIC) else f"it is not a GGUF but {_looks_like(head)}" if head else "it is empty, not a GGUF"


def cut_off(header: Header, size: int) -> str:
    """The sentence about a file of fewer bytes than its header asks for."""
    return f"it is cut off: it has {size} bytes where its header asks for {header.expected_size}; copy or download it again"


@dataclass(frozen=True)
class Classes:
    """Bytes of a model's tensors by what they are for, without padding; `experts` and `dense` have one number a layer.

    `experts` are what llama.cpp's --n-cpu-moe keeps in RAM; shared experts are dense. A layer for multi-token prediction
    is no layer here but `mtp`. `output` is 0 when the embedding serves as output too.
    """

    experts: tuple[int, ...]
    dense: tuple[int, ...]
    embedding: int
    output: int
    mtp: int
    other: int


def classes(header: Header, tensors: Iterable[Tensor]) -> Classes:
    """Bytes by class of the tensors of all of a model's files; `header` is the first file's.

    Raises GgufError when the header claims more layers than llama.cpp takes, or none.
    """
    layers = layer_count(header)
    sums = {"embedding": 0, "output": 0, "mtp": 0, "other": 0}
    experts, dense = [0] * layers, [0] * layers
    for tensor in tensors:
        found = BLOCK_TENSOR.match(tensor.name)
        if found and int(found[1]) < layers:
            (experts if EXPERTS.search(tensor.name) else dense)[int(found[1])] += tensor.size
        else:
            part = "mtp" if found else PARTS.get(tensor.name.partition(".")[0], "other")
            sums[part] += tensor.size
    return Classes(tuple(experts), tuple(dense), **sums)


def layer_count(header: Header) -> int:
    """Layers without those for multi-token prediction. Raises GgufError when there are none, or more than llama.cpp takes."""
    blocks, predicting = (whole(header, f"{header.architecture}.{key}") for key in ("block_count", "nextn_predict_layers"))
    if not 0 < blocks <= MAX_LAYERS or not 0 <= predicting < blocks:
        raise GgufError(f"its header is damaged: {blocks} blocks, of which {predicting} predict more tokens")
    return blocks - predicting


def whole(header: Header, key: str) -> int:
    """A whole number of the header; 0 when it isn't there or is something else."""
    return _whole(header.metadata.get(key))


def shard_names(name: str) -> list[str]:
    """File names of all shards of a split model, in order, from the name of one; just this name when it is none of a shard."""
    found = SHARD.match(name)
    if not found or not 0 < int(found[2]) <= int(found[3]) <= MAX_SHARDS:
        return [name]
    return [f"{found[1]}-{number:05d}-of-{found[3]}.gguf" for number in range(1, int(found[3]) + 1)]


class _Source:
    """Reads forward in large pieces and knows how much can still come."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream, self.size = stream, size
        self.at = 0  # position in the file of the next byte that is handed out
        self.piece, self.next = b"", 0
        self.texts = 0  # that lists had so far

    def take(self, count: int) -> bytes:
        """The next `count` bytes; GgufError when the file ends before, or when a header can't be that long."""
        self.allow(count)
        if len(self.piece) - self.next < count:
            self.piece = self.piece[self.next :] + self._more(count - (len(self.piece) - self.next))
            self.next = 0
        data = self.piece[self.next : self.next + count]
        self.next += count
        self.at += count
        return data

    def _more(self, least: int) -> bytes:
        """At least `least` bytes from the stream, which may hand out less than asked for (a pipe)."""
        pieces, got = [], 0
        while got < least:
            piece = self.stream.read(max(CHUNK, least - got))
            if not piece:
                raise self.cut()
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)

    def allow(self, count: int) -> None:
        if count > self.size - self.at:
            raise self.cut()
        if self.at + count > MAX_HEADER:
            raise GgufError(f"its header is damaged: it is longer than {MAX_HEADER // 2**20} MiB")

    def skip(self, count: int) -> None:
        self.allow(count)
        while count:
            step = min(count, CHUNK)
            self.take(step)
            count -= step

    def number(self, form: str) -> int:
        return int(struct.unpack("<" + form, self.take(struct.calcsize(form)))[0])

    def text(self, limit: int, what: str) -> str:
        length = self.number("Q")
        if length > min(limit, self.size - self.at):
            raise self.cut() if length <= limit else GgufError(f"its header is damaged: {what} of {length} bytes")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise GgufError(f"its header is damaged: {what} is not UTF-8") from None

    def cut(self) -> GgufError:
        return GgufError(
            f"it is cut off inside its header: it has {self.size} bytes and the header goes on; copy or download it again"
        )


def _start(source: _Source) -> tuple[int, int, int]:
    """The fixed first 24 bytes: version, number of tensors, number of keys."""
    if not source.size:
        raise GgufError("it is empty, not a GGUF")
    head = source.take(min(source.size, 24))
    if not MAGIC.startswith(head[:4]) or len(head) < 4:
        raise source.cut() if MAGIC.startswith(head) else GgufError(f"it is not a GGUF but {_looks_like(head)}")
    if len(head) < 24:
        raise source.cut()
    version, n_tensors, n_keys = struct.unpack("<IQQ", head[4:])
    if version & 0xFFFF == 0:
        raise GgufError("it is a big-endian GGUF, which this machine's llama.cpp can't load")
    if version not in VERSIONS:
        raise GgufError(f"it is a GGUF of version {version}; llama.cpp reads {' and '.join(map(str, VERSIONS))}")
    if n_keys > MAX_KEYS or n_tensors > MAX_TENSORS:
        raise GgufError(f"its header is damaged: {n_keys} keys and {n_tensors} tensors")
    return version, n_tensors, n_keys


def _looks_like(head: bytes) -> str:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for magic, what in NOT_GGUF:
        if start.startswith(magic):
            return what
    if head[8:9] == b"{":  # a length of 8 bytes, then JSON
        return "a safetensors file: convert it, or get the model as GGUF"
    if not any(head):
        return "a file that starts with zeros, as an aborted download leaves one: download it again"
    return f"something that starts with the bytes {head[:8].hex(' ')}"


def _value(source: _Source, key: str) -> Value:
    kind = source.number("I")
    if kind != ARRAY:
        return _scalar(source, kind, key)
    kind, length = source.number("I"), source.number("Q")
    if length <= MAX_LISTED:
        return [_scalar(source, kind, key) for _ in range(length)]
    if kind == STRING:
        source.allow(8 * length)  # before so many turns
        source.texts += length
        if source.texts > MAX_TEXTS:
            raise GgufError(f"its header is damaged: the key {key!r} is a list of {length} texts")
        for _ in range(length):
            source.skip(source.number("Q"))
    elif kind in SCALARS:
        source.skip(length * struct.calcsize(SCALARS[kind]))
    else:
        raise GgufError(f"its header is damaged: the key {key!r} is an array of the unknown type {kind}")
    return Counted(length)


def _scalar(source: _Source, kind: int, key: str) -> Scalar:
    if kind == STRING:
        return source.text(MAX_TEXT, f"the value of {key!r}")
    if kind not in SCALARS:
        raise GgufError(f"its header is damaged: the key {key!r} has the unknown type {kind}")
    form = SCALARS[kind]
    value: Scalar = struct.unpack("<" + form, source.take(struct.calcsize(form)))[0]
    return value


def _tensor(source: _Source) -> Tensor:
    name = source.text(MAX_TENSOR_NAME, "a tensor's name")
    n_dimensions = source.number("I")
    if n_dimensions > MAX_DIMENSIONS:
        raise GgufError(f"its header is damaged: the tensor {name!r} has {n_dimensions} dimensions")
    shape = tuple(source.number("Q") for _ in range(n_dimensions))
    kind, offset = source.number("I"), source.number("Q")
    if kind not in TENSOR_TYPES:
        raise GgufError(
            f"the tensor {name!r} has type {kind}, which llama.cpp at this project's pin does not know: "
            "the file is damaged or newer than the pin"
        )
    type_name, block, block_bytes = TENSOR_TYPES[kind]
    row = shape[0] if shape else 1
    if row % block:
        raise GgufError(f"its header is damaged: a row of {name!r} has {row} values, not a multiple of {block}")
    size = row // block * block_bytes
    for length in shape[1:]:
        size *= length
    return Tensor(name, type_name, shape, offset, size)


def _alignment(metadata: dict[str, Value]) -> int:
    alignment = _whole(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    if alignment < 1 or alignment & (alignment - 1):
        raise GgufError(f"its header is damaged: an alignment of {metadata['general.alignment']!r}")
    return alignment


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
