"""The GGUF reader against the `gguf` library's reading of the same file, the file's own size, and damaged files."""

import contextlib
import io
import struct
import time
from pathlib import Path

import gguf as library
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import tiny_model
from wsllama.domain import gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", layers=4)


def checked(data: bytes) -> gguf.Header:
    return gguf.check(io.BytesIO(data), len(data))


def header_bytes(version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def test_agrees_with_the_library(tiny: Path) -> None:
    size = tiny.stat().st_size
    with tiny.open("rb") as stream:
        header = gguf.check(stream, size)
    theirs = library.GGUFReader(tiny)
    assert header.data_offset == theirs.data_offset
    assert {t.name: (t.type, t.shape, t.size, header.data_offset + t.offset) for t in header.tensors} == {
        t.name: (t.tensor_type.name, tuple(map(int, t.shape)), int(t.n_bytes), int(t.data_offset)) for t in theirs.tensors
    }
    assert 0 <= size - header.expected_size < header.alignment  # all that may follow the data is its padding
    for name, field in theirs.fields.items():
        if name.startswith("GGUF."):
            continue
        value, contents = header.metadata[name], field.contents()
        if isinstance(value, gguf.Counted):
            assert value.length == len(contents) > gguf.MAX_LISTED
        else:
            assert value == contents
    assert header.architecture == "qwen35moe"
    assert (header.split_count, header.split_no) == (1, 0)


def test_types_are_the_library_s() -> None:
    theirs = {int(kind): (kind.name, *size) for kind, size in library.GGML_QUANT_SIZES.items()}
    ours = dict(gguf.TENSOR_TYPES)
    # The library called a block of Q8_1 40 bytes for long; block_q8_1 in ggml-common.h is two halfs and 32 bytes.
    # Q2_0 is at the pin but not in every release of the library.
    assert ours.pop(9) == ("Q8_1", 32, 2 * 2 + 32)
    assert ours.pop(42) == ("Q2_0", 64, 2 + 64 // 4)
    theirs.pop(9)
    theirs.pop(42, None)
    assert ours == theirs


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "IQ4_XS", "MXFP4", "BF16"])
def test_size_of_a_quantised_file(tmp_path: Path, kind: str) -> None:
    """The library lays out the file; its length is what we have to expect."""
    path = tmp_path / "quantised.gguf"
    number = library.GGMLQuantizationType[kind]
    block, block_bytes = library.GGML_QUANT_SIZES[number]
    writer = library.GGUFWriter(path, "qwen35moe")
    writer.add_tensor("a", np.zeros((3, 5, 512 // block * block_bytes), np.uint8), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tensor,) = checked(path.read_bytes()).tensors
    assert (tensor.type, tensor.shape) == (kind, (512, 5, 3))
    assert 0 <= path.stat().st_size - checked(path.read_bytes()).expected_size < 32


def test_split_files_are_told(tmp_path: Path) -> None:
    data = header_bytes(keys=2) + key("split.count", 2, struct.pack("<H", 3)) + key("split.no", 2, struct.pack("<H", 1))
    header = checked(data)
    assert (header.split_count, header.split_no) == (3, 1)


def test_every_cut_is_noticed(tiny: Path) -> None:
    data = tiny.read_bytes()
    end = checked(data).expected_size
    start = checked(data).data_offset
    for length in [*range(3000), *range(3000, start, 97), *range(start, end, 50_021), end - 1]:
        with pytest.raises(gguf.GgufError):
            checked(data[:length])


def test_a_cut_in_the_data_names_both_sizes(tiny: Path) -> None:
    data = tiny.read_bytes()
    end = checked(data).expected_size
    with pytest.raises(gguf.GgufError, match=rf"it has {end - 1} bytes where its header asks for {end};"):
        checked(data[: end - 1])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_gives_another_exception(tiny: Path, data: st.DataObject) -> None:
    damaged = bytearray(tiny.read_bytes()[:40_000])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 13_000))
        damaged[at : at + 1] = data.draw(st.binary(min_size=1, max_size=9))
    with contextlib.suppress(gguf.GgufError):
        gguf.check(io.BytesIO(damaged), tiny.stat().st_size)


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    for start in (b"", header_bytes(), header_bytes(tensors=1), header_bytes(keys=1)):
        try:
            checked(start + data)
        except gguf.GgufError:
            continue
        assert start == header_bytes()  # no keys and no tensors: nothing that could be wrong


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"GG", "cut off inside its header"),
        (b"GGUF\x03\x00", "cut off inside its header"),
        (b"\n<!DOCTYPE html><html><body>Sign in", "an HTML page"),
        (b"<html><head>", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "a git-lfs pointer"),
        (b"PK\x03\x04" + bytes(40), "a zip archive"),
        (b"\x1f\x8b\x08" + bytes(40), "a gzip archive"),
        (b"\x88\x01\x00\x00\x00\x00\x00\x00{\"__metadata__\":{", "a safetensors file"),
        (b'{"error": "Invalid username or password."}', "a JSON text"),
        (bytes(64), "starts with zeros"),
        (b"lmgg" + bytes(60), "starts with the bytes 6c 6d 67 67"),
        (header_bytes(version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header_bytes(keys=2**63), "damaged"),
        (header_bytes(tensors=2**40), "damaged"),
        (header_bytes(keys=1) + key("a", 8, struct.pack("<Q", 2**62)), "damaged"),
        (header_bytes(keys=1) + key("a", 9, struct.pack("<IQ", 8, 2**62)), "cut off"),
        (header_bytes(keys=1) + key("a", 9, struct.pack("<IQ", 4, 2**62)), "cut off"),
        (header_bytes(keys=1) + key("a", 9, struct.pack("<IQ", 9, 1000)), "unknown type 9"),
        (header_bytes(keys=1) + key("a", 77, b""), "unknown type 77"),
        (header_bytes(keys=2) + key("a", 0, b"1") * 2, "twice"),
        (header_bytes(keys=1) + key("general.alignment", 4, struct.pack("<I", 3)), "alignment of 3"),
        (header_bytes(tensors=1) + key("t", 1, struct.pack("<QIQ", 32, 43, 0)), "type 43"),
        (header_bytes(tensors=1) + key("t", 1, struct.pack("<QIQ", 33, 8, 0)), "33 values, not a multiple of 32"),
        (header_bytes(tensors=1) + key("t", 5, b""), "5 dimensions"),
        (header_bytes(tensors=2) + key("t", 1, struct.pack("<QIQ", 0, 0, 0)) * 2, "same name"),
    ],
)  # fmt: skip
def test_what_it_is_is_named(data: bytes, words: str) -> None:
    with pytest.raises(gguf.GgufError) as caught:
        checked(data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_architecture_is_reported_not_refused() -> None:
    value = struct.pack("<Q", 5) + b"llama"
    assert checked(header_bytes(keys=1) + key("general.architecture", 8, value)).architecture == "llama"


class Pipe(io.BytesIO):
    """Gives what it likes, as a pipe does, and can't seek."""

    def read(self, count: int | None = -1, /) -> bytes:
        return super().read(min(count or 0, 701))

    def seek(self, *_: int) -> int:
        raise OSError("a pipe")


def test_reads_a_pipe(tiny: Path) -> None:
    data = tiny.read_bytes()
    assert gguf.check(Pipe(data), len(data)) == checked(data)


def test_a_real_vocabulary_is_quick() -> None:
    words = b"".join(struct.pack("<Q", 7) + b"token%02d" % (n % 100) for n in range(248_320))
    data = header_bytes(keys=1) + key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 248_320) + words)
    started = time.process_time()
    assert checked(data).metadata["tokenizer.ggml.tokens"] == gguf.Counted(248_320)
    assert time.process_time() - started < 3  # 0.3 s when nothing else runs
