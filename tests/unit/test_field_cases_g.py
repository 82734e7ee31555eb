"""Field cases, section G: those about the model's files. The rows: tests/data/field_cases.json."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.operations.fake_hosts import Converge, converge, settings  # noqa: F401  # a fixture
from tests.operations.test_op_release import MACHINE, MODELS, ROOT, host
from tests.unit import small_gguf
from tests.unit.test_build_program import FILES, Host
from tests.unit.test_fetch import split
from tests.unit.test_housekeeping import installed
from wsllama import digest, program, sources
from wsllama.bundle_maker import Maker
from wsllama.domain import gguf_audit
from wsllama.host import model as model_program
from wsllama.host import probe
from wsllama.operations import llama_cpp, model, preflight
from wsllama.settings import LOCK, local_problems


def run(argument: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    text = program.call("model", argument)
    return subprocess.run([sys.executable, "-I", "-S", "-"], input=text, text=True, capture_output=True)


def test_76_a_model_on_a_drive_of_windows_is_copied_and_never_served_there(converge: Converge) -> None:  # noqa: F811
    wanted = settings(model={"path": r"C:\m\a.gguf"})
    original = {"path": "/mnt/c/m/a.gguf", "size": 100, "mtime_ns": 5, "inode": 7}
    got = converge(model.installed, wanted, seen=host(models={MODELS: {}}, originals={r"C:\m\a.gguf": original}))
    assert got.commands == ["python3 -I -S - # follow wsllama-model"]
    argument = got.sent[0]["argument"]
    assert (argument["root"], argument["files"][0]["path"]) == ("/var/lib/wsllama/models", r"C:\m\a.gguf")


def test_77_a_copy_of_no_length_that_is_marked_as_whole_is_copied_again(tmp_path: Path) -> None:
    file = installed(tmp_path)
    right = file.read_bytes()
    os.truncate(file, 0)
    assert file.with_name(f"{file.name}.stamp").exists()
    root = str(tmp_path / "models")
    assert [s["intact"] for s in probe.models([root])[root].values()] == [False]
    assert run({"path": str(tmp_path / "m.gguf"), "root": root}).returncode == 0
    assert file.read_bytes() == right


def test_79_room_in_the_distro_and_none_in_windows(converge: Converge) -> None:  # noqa: F811
    machine = {**MACHINE, "wsl": ["/dev/dxg"]}
    disk = dict.fromkeys([ROOT, "/var/cache/wsllama", MODELS], 900 * 10**9)
    original = {"path": "/srv/a.gguf", "size": 20 * 10**9, "mtime_ns": 5, "inode": 7}
    for free, fails in ((5 * 10**9, True), (30 * 10**9, False)):
        seen = host(
            system=machine,
            models={MODELS: {}},
            originals={"/srv/a.gguf": original},
            disk=disk,
            windows={"side": {"free_bytes": free}},
        )
        got = converge(preflight.ready, settings(platform="wsl", llama_cpp={"backend": "cpu"}), seen=seen)
        assert ("no disk space on the drive of Windows" in got.log) == fails
        assert got.failed == fails


def test_80_a_copy_leaves_neither_file_in_the_page_cache(tmp_path: Path) -> None:
    """Asked of the kernel: which pages of the two files are in memory."""
    source = small_gguf.model(tmp_path / "m.gguf", rows=400_000)
    subprocess.run(["sync", str(source)], check=True)  # it is new; what isn't on the disk yet can't leave memory
    assert resident(source) > 0.9
    said = run({"path": str(source), "root": str(tmp_path / "models")})
    assert said.returncode == 0
    (file,) = (tmp_path / "models").rglob("*.gguf")
    for path in (source, file):
        assert resident(path) < 0.1


def test_80_nor_does_the_controller_keep_what_it_hashed_or_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = small_gguf.model(tmp_path / "m.gguf", rows=400_000)
    subprocess.run(["sync", str(source)], check=True)
    assert resident(source) > 0.9
    sha256 = digest.sha256_of(source)
    assert resident(source) < 0.1
    Maker(tmp_path / "bundle", LOCK, print).copy(source, "models/m.gguf", "model", sha256)
    for path in (source, tmp_path / "bundle/models/m.gguf"):
        assert resident(path) < 0.1


def resident(path: Path) -> float:
    """Share of a file's pages that are in memory."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        seen = (ctypes.c_ubyte * pages)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), seen) == 0
        return sum(page & 1 for page in seen) / pages


@pytest.mark.parametrize("on", ["controller", "host"])
def test_82_a_model_that_is_cut_off_is_refused_before_anything_is_written(tmp_path: Path, on: str) -> None:
    path = small_gguf.model(tmp_path / "m.gguf", rows=20_000)
    os.truncate(path, path.stat().st_size - 2**20)
    if on == "controller":
        (said,) = local_problems(settings(model={"path": str(path), "on": "controller"}))
    else:
        ran = run({"path": str(path), "root": str(tmp_path / "models")})
        assert ran.returncode == 1
        said = ran.stderr
    assert f"it is cut off: it has {path.stat().st_size} bytes where its header asks for" in said
    assert not (tmp_path / "models").exists()


def test_83_a_missing_shard_is_named(tmp_path: Path, converge: Converge) -> None:  # noqa: F811
    first, second = split(tmp_path)
    second.unlink()
    sentences = local_problems(settings(model={"path": str(first), "on": "controller"}))
    assert [str(second) in sentence for sentence in sentences] == [True]
    originals = {str(first): {"path": str(first), "size": 9, "mtime_ns": 1, "inode": 1}, str(second): None}
    got = converge(preflight.ready, settings(model={"path": str(first)}), seen=host(models={MODELS: {}}, originals=originals))
    assert got.failed
    assert f"there is no file {second} on the host" in got.log


def test_83_shards_keep_their_names(tmp_path: Path) -> None:
    first, second = split(tmp_path)
    assert run({"path": str(first), "root": str(tmp_path / "models")}).returncode == 0
    (folder,) = (p for p in (tmp_path / "models").iterdir() if not p.name.startswith("."))
    assert sorted(p.name for p in folder.glob("*.gguf")) == [first.name, second.name]
    renamed = first.rename(tmp_path / "part1of2.gguf")
    assert "give all shards back their names" in run({"path": str(renamed), "root": str(tmp_path / "other")}).stderr


def test_85_a_projector_with_deepstack_layers_fits_by_the_sum_of_them(tmp_path: Path) -> None:
    import gguf as library
    import numpy as np

    def projector(layers: int) -> Path:
        path = tmp_path / f"mmproj-{layers}.gguf"
        writer = library.GGUFWriter(path, "clip")
        writer.add_uint32("clip.vision.projection_dim", 8)
        writer.add_tensor("mm.2.bias", np.zeros(8, np.float32))
        for layer in range(layers):
            writer.add_tensor(f"v.deepstack.{layer}.fc1.bias", np.zeros(8, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    model_file = small_gguf.model(tmp_path / "m.gguf")
    assert gguf_audit.projection(model_program.seen(str(projector(3)), "x").header) == 32  # type: ignore[arg-type]
    assert model_program.unfit([str(model_file)], str(projector(3)), False) == []
    assert (
        "it gives vectors of 24 values where the model takes 32"
        in model_program.unfit([str(model_file)], str(projector(2)), False)[0]
    )


def test_86_an_older_archive_is_refused_before_a_host_is_touched(tmp_path: Path) -> None:
    """The controller reads it: preflight asks for the source of a build that is to be made."""
    lines = {"src/llama-arch.cpp": '{ LLM_ARCH_QWEN35MOE, "qwen35moe" },', "src/llama-vocab.cpp": 'tokenizer_pre == "qwen35"'}
    for name in lines:
        files = {**FILES, **lines, name: "// nothing that it knows"}
        source = Host(tmp_path).tar({f"llama.cpp/{path}": text for path, text in files.items()})
        archive = {"archive": source["path"], "archive_sha256": source["sha256"], "cache": tmp_path / "cache"}
        with pytest.raises(sources.SourceError, match=rf"commit 1{{40}} does not know Qwen3.6 \({name} lacks "):
            sources.fetch(llama_cpp.pin(), "archive", commit="1" * 40, **archive)  # type: ignore[arg-type]
