"""`wsllama gguf`: files of the real shapes, written by the gguf library, and all that can be wrong with them."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf as library
import numpy as np
import pytest

from lab import ghost_model, tiny_model
from wsllama.domain import gguf
from wsllama.domain.gguf_audit import File, Report, audit, projection
from wsllama.host.model import seen

WSLLAMA = str(Path(sys.executable).parent / "wsllama")
TOKENS = 300


@pytest.fixture(scope="module")
def ghost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ghost_model.write(tmp_path_factory.mktemp("ghost") / "ghost.gguf", tokens=TOKENS)[0]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model in three shards."""
    folder = tmp_path_factory.mktemp("split")
    ghost_model.write(folder / "ghost.gguf", tokens=TOKENS, shard_tensors=300)
    return folder


def report_of(path: Path, mmproj: Path | None = None, any_size: bool = False) -> Report:
    files = [seen(str(path.with_name(name)), name) for name in gguf.shard_names(path.name)]
    return audit(files, path.name, seen(str(mmproj), mmproj.name) if mmproj else None, any_size)


def projector(path: Path, width: int = 2048, deepstack: int = 0, of: str = "Qwen3.6-35B-A3B", last: bool = True) -> Path:
    writer = library.GGUFWriter(path, "clip")
    writer.add_string("general.type", "mmproj")
    writer.add_string("general.basename", of)
    writer.add_string("clip.projector_type", "qwen3vl_merger")
    writer.add_uint32("clip.vision.projection_dim", width)
    if last:
        writer.add_tensor("mm.2.bias", np.zeros(width, np.float32))
    for layer in range(deepstack):
        writer.add_tensor(f"v.deepstack.{layer}.fc1.weight", np.zeros((4, 4), np.float32))
        writer.add_tensor(f"v.deepstack.{layer}.fc2.bias", np.zeros(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_bytes_by_class_are_those_of_the_library(tmp_path: Path) -> None:
    """Shares of the real shapes: the experts are 32.21 billion of 34.66 billion parameters, 92.94 per cent."""
    path = ghost_model.write(tmp_path / "f16.gguf", ghost_model.Types(*["F16"] * 5), mtp=True, tokens=TOKENS)[0]
    header = seen(str(path), path.name).header
    assert header is not None
    found = gguf.classes(header, header.tensors)
    theirs: dict[str, int] = {}
    for tensor in library.GGUFReader(path).tensors:
        theirs[tensor.name] = int(tensor.n_bytes)
    assert sum(found.experts) == sum(n for name, n in theirs.items() if "_exps." in name and not name.startswith("blk.40."))
    assert found.experts == (3 * 256 * 512 * 2048 * 2,) * 40
    assert round(sum(found.experts) / 2 / 34_660_610_688, 4) == 0.9294
    assert found.mtp == sum(n for name, n in theirs.items() if name.startswith("blk.40."))
    assert found.embedding == theirs["token_embd.weight"] == 248_320 * 2048 * 2
    assert found.output == theirs["output.weight"] + theirs["output_norm.weight"]
    for layer in (0, 3, 39):
        of_layer = {n: size for n, size in theirs.items() if n.startswith(f"blk.{layer}.")}
        assert found.dense[layer] == sum(size for name, size in of_layer.items() if "_exps." not in name)
    assert sum(found.experts) + sum(found.dense) + found.embedding + found.output + found.mtp == sum(theirs.values())
    # 34 660 610 688 parameters are published; all of ours without the layer that predicts more tokens
    assert (
        sum(t.size // {"F32": 4, "F16": 2}[t.type] for t in header.tensors if not t.name.startswith("blk.40.")) == 34_660_610_688
    )


@pytest.mark.parametrize(
    "change", [{}, {"mtp": True}, {"types": ghost_model.Types("IQ2_XXS", "IQ3_XXS", "Q5_K", "Q4_K", "Q6_K")}]
)
def test_a_good_file(tmp_path: Path, change: dict[str, Any]) -> None:
    path = ghost_model.write(tmp_path / "a.gguf", tokens=TOKENS, **change)[0]
    report = report_of(path)
    assert (report.problems, report.warnings, report.ok) == ([], [], True)
    assert (report.architecture, report.expert_count, report.shards) == ("qwen35moe", 256, 1)
    assert report.block_count == 40 + ("mtp" in change)
    assert report.bytes_expected == report.bytes_present == path.stat().st_size


def test_the_command(ghost: Path, tmp_path: Path) -> None:
    ran = subprocess.run([WSLLAMA, "gguf", ghost, "--json"], capture_output=True, text=True)
    assert ran.returncode == 0
    assert json.loads(ran.stdout) == {
        "ok": True,
        "architecture": "qwen35moe",
        "block_count": 40,
        "expert_count": 256,
        "bytes_expected": ghost.stat().st_size,
        "bytes_present": ghost.stat().st_size,
        "shards": 1,
        "problems": [],
        "warnings": [],
    }
    (tmp_path / "\x1b[31m.gguf").write_bytes(b"")
    ran = subprocess.run([WSLLAMA, "gguf", tmp_path / "\x1b[31m.gguf"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (1, "not fit: ?[31m.gguf: it is empty, not a GGUF\n")


def test_the_small_model_only_with_any_size(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf", layers=4)
    assert report_of(path, any_size=True).problems == []
    (problem,) = report_of(path).problems
    assert problem.startswith("tiny.gguf: it has 4 blocks, but Qwen3.6-35B-A3B has 40, or 41 with multi-token prediction")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"template": False}, "it has no chat template"),
        ({"template": False, "names": {"tokenizer.chat_template": "{{ messages }}"}}, "its chat template has no <think>"),
        ({"change": {"block_count": 39}}, "it has 39 blocks"),
        ({"change": {"block_count": 41}}, "0 of its 41 blocks predict more tokens"),
        ({"change": {"block_count": 2**32 - 1}}, "4294967295 blocks"),
        ({"change": {"block_count": 41, "nextn_predict_layers": 41}}, "41 blocks, of which 41 predict"),
        ({"mtp": True, "change": {"nextn_predict_layers": 2}}, "2 of its 41 blocks predict"),
        ({"change": {"block_count": 41, "nextn_predict_layers": 1}}, "there are no experts for block 40"),
        ({"change": {"expert_count": 128}}, "8 of 128 experts are used, but Qwen3.6-35B-A3B uses 8 of 256"),
        ({"change": {"expert_used_count": 0}}, "0 of 256 experts are used"),
        ({"change": {"expert_count": 0}}, "8 of 0 experts are used"),
        ({"change": {"embedding_length": 3072, "expert_count": 512}}, "doesn't hold 512 experts"),
        ({"names": {"general.type": "imatrix"}}, "it holds an imatrix, not a model"),
    ],
)
def test_what_makes_it_unfit(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    path = ghost_model.write(tmp_path / "a.gguf", tokens=TOKENS, **options)[0]
    problems = report_of(path).problems
    assert len(problems) == 1
    assert problems[0].startswith("a.gguf: ")
    assert said in problems[0]
    assert report_of(path, any_size=True).problems == problems


def other_architecture(path: Path, name: str) -> Path:
    writer = library.GGUFWriter(path, name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", ["qwen35", "qwen3moe", "qwen35moe2", "llama"])
def test_another_architecture(tmp_path: Path, name: str) -> None:
    (problem,) = report_of(other_architecture(tmp_path / "a.gguf", name)).problems
    assert problem == (f"a.gguf: its architecture is {name!r}, but that of Qwen3.6-35B-A3B is 'qwen35moe': it is another model")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"),
        (b"<!DOCTYPE html><title>Sign in</title>", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 22134528992\n", "a git-lfs pointer"),
        (struct.pack("<Q", 300) + b'{"__metadata__":{"format":"pt"}}', "a safetensors file"),
        (bytes(4096), "starts with zeros"),
    ],
)
def test_no_gguf_at_all(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "a.gguf").write_bytes(data)
    report = report_of(tmp_path / "a.gguf")
    (problem,) = report.problems
    assert said in problem
    assert (report.bytes_expected, report.bytes_present) == (None, len(data))


def test_missing_and_unreadable(tmp_path: Path) -> None:
    assert report_of(tmp_path / "a.gguf").problems == ["a.gguf: it is not there: copy or download it"]
    assert report_of(tmp_path).problems == [f"{tmp_path.name}: it is no file: give the GGUF itself"]
    os.mkfifo(tmp_path / "pipe.gguf")
    assert report_of(tmp_path / "pipe.gguf").problems == ["pipe.gguf: it is no file: give the GGUF itself"]


def test_cut_by_one_mebibyte(ghost: Path, tmp_path: Path) -> None:
    cut = with_size(tmp_path / "cut.gguf", open_head(ghost), ghost.stat().st_size - 2**20)
    report = report_of(cut)
    whole = ghost.stat().st_size
    assert report.problems == [
        f"cut.gguf: it is cut off: it has {whole - 2**20} bytes where its header asks for {whole}; copy or download it again"
    ]
    assert (report.bytes_expected, report.bytes_present) == (whole, whole - 2**20)


def test_what_follows_the_last_tensor_is_only_mentioned(ghost: Path, tmp_path: Path) -> None:
    long = with_size(tmp_path / "long.gguf", open_head(ghost), ghost.stat().st_size + 4096)
    report = report_of(long)
    assert (report.ok, report.warnings) == (True, ["long.gguf: 4096 bytes follow its last tensor, which nothing reads"])


def test_a_tensor_at_a_wrong_place(ghost: Path, tmp_path: Path) -> None:
    data = bytearray(open_head(ghost))
    at = data.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8 + 4
    (offset,) = struct.unpack_from("<Q", data, at)
    struct.pack_into("<Q", data, at, offset - 32)
    moved = with_size(tmp_path / "moved.gguf", data, ghost.stat().st_size)
    (problem,) = report_of(moved).problems
    assert f"the tensor 'output_norm.weight' begins at {offset - 32} where {offset} is right" in problem


def open_head(path: Path) -> bytes:
    """The header and a bit more: what follows are holes, which a copy would fill."""
    with path.open("rb") as file:
        return file.read(200_000)


def with_size(path: Path, data: bytes | bytearray, size: int) -> Path:
    path.write_bytes(data)
    os.truncate(path, size)
    return path


def test_a_split_model(split: Path) -> None:
    report = report_of(split / "ghost-00001-of-00003.gguf")
    assert (report.problems, report.shards, report.block_count) == ([], 3, 40)
    assert report.bytes_expected == sum(file.stat().st_size for file in split.iterdir())
    assert report_of(split / "ghost-00003-of-00003.gguf").problems == [
        "ghost-00003-of-00003.gguf: llama-server wants the first shard of a model: give it ghost-00001-of-00003.gguf"
    ]


def copied(split: Path, folder: Path) -> list[Path]:
    for file in split.iterdir():
        os.link(file, folder / file.name)
    return sorted(folder.iterdir())


def test_a_shard_is_missing(split: Path, tmp_path: Path) -> None:
    first, second, _ = copied(split, tmp_path)
    second.unlink()
    report = report_of(first)
    assert report.problems == ["ghost-00002-of-00003.gguf: it is not there: copy or download it"]
    assert (report.shards, report.bytes_expected) == (3, None)


def test_shards_with_each_other_s_names(split: Path, tmp_path: Path) -> None:
    first, second, third = copied(split, tmp_path)
    second.rename(tmp_path / "x")
    third.rename(second)
    (tmp_path / "x").rename(third)
    problems = report_of(first).problems
    assert len(problems) == 2
    assert "ghost-00002-of-00003.gguf: its header says that it is shard 3 of 3, its name says 2 of 3" in problems[0]


def test_a_shard_without_its_name(split: Path, tmp_path: Path) -> None:
    _, second, _ = copied(split, tmp_path)
    second.rename(tmp_path / "part2.gguf")
    problems = report_of(tmp_path / "part2.gguf").problems
    assert "its header says that it is shard 2 of 3, but its name does not" in problems[0]
    assert "end in -00002-of-00003.gguf" in problems[0]


@pytest.mark.parametrize(
    ("other", "place", "said"),
    [
        ({"types": ghost_model.Types("Q8_0", "Q8_0"), "shard_tensors": 300}, 2, "shard 2 has experts of type Q8_0"),
        ({"shard_tensors": 290}, 2, "is in more than one shard"),
        ({"shard_tensors": 310}, 3, "its shards hold 713 tensors where 733 were split"),
    ],
)
def test_a_shard_of_another_quant(split: Path, tmp_path: Path, other: dict[str, Any], place: int, said: str) -> None:
    first, *_ = files = copied(split, tmp_path)
    second = files[place - 1]
    (tmp_path / "other").mkdir()
    ghost_model.write(tmp_path / "other" / "ghost.gguf", tokens=TOKENS, **other)
    second.unlink()
    (tmp_path / "other" / second.name).rename(second)
    problems = report_of(first).problems
    assert len(problems) == 1
    assert said in problems[0]


def test_a_projector_that_fits(ghost: Path, tmp_path: Path) -> None:
    report = report_of(ghost, projector(tmp_path / "mmproj-F16.gguf"))
    assert (report.problems, report.warnings) == ([], [])
    assert report_of(ghost, projector(tmp_path / "b.gguf", last=False)).problems == []


def test_projectors_that_do_not_fit(ghost: Path, tmp_path: Path) -> None:
    def problem(path: Path) -> str:
        (found,) = report_of(ghost, path).problems
        return found

    assert problem(projector(tmp_path / "a.gguf", 4096)) == (
        "a.gguf: it gives vectors of 4096 values where the model takes 2048: it is another model's projector"
    )
    # ggml-org's issue 20899: three deepstack layers make 8192 of 2048, which is right for the model with deepstack only
    assert "it gives vectors of 8192 values where the model takes 2048" in problem(projector(tmp_path / "b.gguf", deepstack=3))
    assert "it is no projector: its architecture is 'qwen35moe'" in problem(ghost)
    assert problem(tmp_path / "none.gguf") == "none.gguf: it is not there: copy or download it"
    cut = projector(tmp_path / "cut.gguf")
    os.truncate(cut, cut.stat().st_size - 100)
    assert "cut.gguf: it is cut off" in problem(cut)


def test_deepstack_layers_on_both_sides(tmp_path: Path) -> None:
    model = ghost_model.write(tmp_path / "m.gguf", tokens=TOKENS, change={"n_deepstack_layers": 3})[0]
    with_deepstack = projector(tmp_path / "mmproj.gguf", deepstack=3)
    header = seen(str(with_deepstack), with_deepstack.name).header
    assert header is not None
    assert projection(header) == 8192
    assert report_of(model, with_deepstack).problems == []
    assert len(report_of(model, projector(tmp_path / "plain.gguf")).problems) == 1


def test_a_projector_of_the_model_before(ghost: Path, tmp_path: Path) -> None:
    """Same width, so llama-server would load it."""
    model = ghost_model.write(tmp_path / "m.gguf", tokens=TOKENS, names={"general.basename": "Qwen3.6-35B-A3B"})[0]
    report = report_of(model, projector(tmp_path / "mmproj.gguf", of="Qwen3.5-35B-A3B"))
    assert report.ok
    assert report.warnings == [
        "mmproj.gguf: it says it is of Qwen3.5-35B-A3B, the model of Qwen3.6-35B-A3B: take both from one repository"
    ]


def test_a_projector_in_place_of_the_model(tmp_path: Path) -> None:
    (problem,) = report_of(projector(tmp_path / "mmproj.gguf")).problems
    assert "it is a projector (mmproj), not a model" in problem


@pytest.mark.parametrize("hostile", ["strings", "texts", "numbers", "keys"])
def test_a_file_with_holes_is_not_read_to_its_end(hostile: str) -> None:
    """A terabyte of zeros behind a count: no more is read than a header may have."""
    start = {
        "strings": struct.pack("<IQ", 9, 8)[:4] + struct.pack("<IQ", 8, 2**30),
        "texts": struct.pack("<IIQ", 9, 8, 8_000_000),  # within a header's bytes, and a turn each
        "numbers": struct.pack("<IIQ", 9, 10, 2**36),
        "keys": struct.pack("<I", 0) + b"\0",
    }[hostile]
    keys = 60_000 if hostile == "keys" else 1
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, keys) + struct.pack("<Q", 1) + b"k" + start
    stream = Zeros(data)
    with pytest.raises(gguf.GgufError, match="damaged"):
        gguf.read(stream, 2**40)  # type: ignore[arg-type]
    assert stream.given <= (gguf.CHUNK if hostile == "texts" else gguf.MAX_HEADER + gguf.CHUNK)


class Zeros:
    """A stream of some bytes and zeros without end that counts what it gives."""

    def __init__(self, data: bytes) -> None:
        self.data, self.given = io.BytesIO(data), 0

    def read(self, count: int) -> bytes:
        self.given += count
        return self.data.read(count).ljust(count, b"\0")


NUMBERS = [0, 1, 2**8 - 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One to eight changes: a bit, a byte, a number of 4 or 8 bytes, a piece cut out, doubled or put elsewhere, an early end."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        if len(out) < 64:
            break
        at, size = chance.randrange(len(out) - 8), chance.choice((1, 4, 8, 64))
        elsewhere = out[chance.randrange(len(out)) :][:size]
        number = chance.choice(NUMBERS)
        start, end, new = chance.choice(
            (
                (at, at + 1, bytes([out[at] ^ 1 << chance.randrange(8)])),
                (at, at + 1, bytes([chance.randrange(256)])),
                (at, at + 4, (number % 2**32).to_bytes(4, "little")),
                (at, at + 8, number.to_bytes(8, "little")),
                (at, at + size, b""),
                (at, at, out[at : at + size]),
                (at, at + size, elsewhere),
                (max(at, len(out) // 2), len(out), b""),
            )
        )
        out[start:end] = new
    return bytes(out)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, int]]:
    """Headers, each with the size of its file in bytes: a model, a shard, a projector."""
    folder = tmp_path_factory.mktemp("seeds")
    files = [
        tiny_model.write(folder / "tiny.gguf", layers=4),
        projector(folder / "mmproj.gguf", deepstack=2),
        ghost_model.write(folder / "ghost.gguf", tokens=TOKENS, shard_tensors=60)[1],
    ]
    found = []
    for file in files:
        header = seen(str(file), file.name).header
        assert header is not None
        with file.open("rb") as stream:
            found.append((stream.read(header.data_offset), file.stat().st_size))
    return found


def fuzz(seeds: list[tuple[bytes, int]], times: int) -> tuple[int, int]:
    """How many mutated headers were still read, and how many were refused; anything else is raised."""
    chance = random.Random(20260416)
    read = refused = 0
    for _ in range(times):
        data, size = chance.choice(seeds)
        data = mutated(data, chance)
        stream = Zeros(data)
        try:
            header = gguf.read(stream, chance.choice((size, 2**44)))  # type: ignore[arg-type]
            file, read = File("a-00001-of-00002.gguf", size, header), read + 1
        except gguf.GgufError as e:
            file, refused = File("a.gguf", size, None, str(e)), refused + 1
        assert stream.given <= gguf.MAX_HEADER + gguf.CHUNK
        assert "\n" not in file.problem
        for files in ([file], [file, file]):
            report = audit(files, file.name, file, any_size=True)
            json.dumps(report.problems)
            assert bool(file.problem) <= bool(report.problems)
    return read, refused


def test_mutated_headers(seeds: list[tuple[bytes, int]]) -> None:
    read, refused = fuzz(seeds, 2_000)
    assert min(read, refused) > 100  # else the mutations are all too wild, or all harmless


@pytest.mark.full
def test_a_hundred_thousand_mutated_headers(seeds: list[tuple[bytes, int]]) -> None:
    read, refused = fuzz(seeds, 100_000)
    assert read + refused == 100_000
