"""The program that installs a model on a host, run as it is run there: python3 -I -S, from stdin."""

import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lab import tiny_model
from tests.unit import small_gguf
from wsllama import planning, program
from wsllama.host import probe, receive


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_model.write(tmp_path / "tiny.gguf", layers=4)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def seen_in(root: Path) -> dict[str, dict[str, Any]]:
    """What the probe says of the installed models."""
    found: dict[str, dict[str, Any]] = probe.models([str(root)])[str(root)]
    return found


def started(argument: dict[str, Any], name: str = "model") -> "subprocess.Popen[str]":
    text = program.call(name, argument)
    # a pipe that is written at once: the program is small
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-"], cwd="/", text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin
    process.stdin.write(text)
    process.stdin.close()
    process.stdin = None
    return process


def run(**argument: Any) -> tuple[int, list[str], str]:
    process = started(argument)
    out, err = process.communicate(timeout=900)
    return process.returncode, out.splitlines(), err


def install(source: Path, root: Path, **more: Any) -> dict[str, Any]:
    code, lines, err = run(path=str(source), root=str(root), **more)
    assert (code, err) == (0, "")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def refusal(source: Path, root: Path, **more: Any) -> str:
    code, _, err = run(path=str(source), root=str(root), **more)
    assert code == 1
    assert err.count("\n") == 1
    return err.strip()


def test_installs_and_stamps(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    expected = sha256(source)
    result = install(source, root, sha256=expected.upper())
    file = root / f"tiny-{expected[:8]}" / "tiny.gguf"
    assert result == {
        "ok": True, "changed": True, "dir": str(file.parent), "file": str(file), "sha256": expected,
        "size": source.stat().st_size, "architecture": "qwen35moe",
    }  # fmt: skip
    assert sha256(file) == expected
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    assert file.stat().st_ino != source.stat().st_ino
    assert sorted(p.name for p in file.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.stamp"]
    assert sorted(p.name for p in (root / ".incoming").iterdir()) == ["tiny.gguf.lock"]
    stamp = json.loads((file.parent / "tiny.gguf.stamp").read_text())
    readable = {"intact": True, "awaited_s": None, "mode": "644", "user": "root", "group": "root"}
    assert seen_in(root) == {f"{file.parent.name}/tiny.gguf": {**stamp, **readable}}


def test_a_stamp_has_what_a_plan_needs_to_know(source: Path, tmp_path: Path) -> None:
    """The sizes are those that the small model was written with."""
    root = tmp_path / "models"
    file = Path(install(source, root)["file"])
    for _ in range(2):
        (stamp,) = seen_in(root).values()
        known = planning.summary_of(stamp["summary"])
        assert known
        assert (known.architecture, known.keys["block_count"], known.keys["expert_count"]) == (
            "qwen35moe",
            4,
            tiny_model.N_EXPERT,
        )
        assert 0 < source.stat().st_size - known.tensors.total < 100_000  # its header
        os.utime(file)  # its stamp is lost, and made again
        install(source, root, sha256=sha256(source))


def test_files_are_looked_at_where_they_lie(source: Path, tmp_path: Path) -> None:
    projector = small_gguf.projector(tmp_path / "mmproj.gguf", width=64)

    def looked(**argument: Any) -> dict[str, Any]:
        code, lines, err = run(**{"mmproj": None, "allow_unofficial": False, **argument})
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    found = looked(look=[str(source)])
    assert (found["problems"], found["bytes"], found["mmproj"]) == ([], source.stat().st_size, None)
    assert planning.summary_of(found["summary"])
    found = looked(look=[str(source)], mmproj=str(projector))
    assert found["mmproj"] == {"bytes": projector.stat().st_size, "width": 64}
    assert "mmproj.gguf" in found["problems"][0]  # of another width than the model takes
    os.truncate(source, source.stat().st_size - 1000)
    assert "tiny.gguf: it is cut off" in looked(look=[str(source)])["problems"][0]
    source.write_bytes(b"GGUF")
    assert looked(look=[str(source)])["summary"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mmproj.gguf", "tiny.gguf"]


def test_what_a_service_is_to_get_waits_for_its_switch(source: Path, tmp_path: Path) -> None:
    """So that another run doesn't take it for an old model meanwhile."""
    root = tmp_path / "models"
    file = Path(install(source, root, group="root")["file"])
    (seen,) = seen_in(root).values()
    assert 0 <= seen["awaited_s"] < 600
    (file.parent / ".awaited").unlink()
    assert install(source, root, group="root")["changed"] is False
    (seen,) = seen_in(root).values()
    assert seen["awaited_s"] is None


def test_what_the_audit_only_mentions_is_told_once(source: Path, tmp_path: Path) -> None:
    with source.open("ab") as file:
        file.write(b"x" * 64)
    said = "==> warning: tiny.gguf: 64 bytes follow its last tensor, which nothing reads"
    code, lines, _ = run(path=str(source), root=str(tmp_path / "models"))
    assert (code, lines.count(said)) == (0, 1)
    code, lines, _ = run(path=str(source), root=str(tmp_path / "models"))
    assert (code, len(lines)) == (0, 1)


def test_what_a_file_says_of_itself_is_no_line_of_ours(tmp_path: Path) -> None:
    words = {"general.base_model.0.name": 'x\n{"ok": true}\033[2J'}
    said = refusal(small_gguf.model(tmp_path / "m.gguf", words), tmp_path / "models")
    assert 'made of x?{"ok":-true}?[2J, not of' in said


def test_another_name(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    assert install(source, root, name="other.gguf")["file"] == str(root / f"other-{sha256(source)[:8]}" / "other.gguf")
    for bad in ("../other.gguf", ".hidden.gguf", "a/b.gguf"):
        assert refusal(source, root, name=bad) == f"{bad!r} can't be the name of a file here"


def test_second_run_reads_neither_file(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    result = install(source, root)
    # Bytes changed behind all stamps: only a run that doesn't read can find everything as it was.
    for path in (source, Path(result["file"])):
        seen = path.stat()
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\xff\xff\xff\xff")
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert install(source, root) == {**result, "changed": False}


def test_a_touched_source_is_compared_and_not_copied(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    file = Path(install(source, root)["file"])
    inode = file.stat().st_ino
    os.utime(source)
    assert install(source, root)["changed"] is False
    assert file.stat().st_ino == inode
    stamp = json.loads(file.with_name(f"{file.name}.stamp").read_text())
    assert stamp["source"]["mtime_ns"] == source.stat().st_mtime_ns  # so that the next run knows it, and doesn't read it
    tiny_model.write(source, layers=4, seed=2)
    assert install(source, root)["changed"] is True
    assert len(seen_in(root)) == 2


@pytest.mark.parametrize("damage", ["truncated", "touched", "replaced", "removed"])
def test_a_damaged_installation_is_seen_and_repaired(source: Path, tmp_path: Path, damage: str) -> None:
    root = tmp_path / "models"
    file = Path(install(source, root)["file"])
    before = file.stat()
    if damage == "truncated":
        os.truncate(file, 5000)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif damage == "touched":
        os.utime(file)
    elif damage == "replaced":
        data = file.read_bytes()
        file.rename(file.with_suffix(".old"))
        file.write_bytes(data)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        file.unlink()
    (seen,) = seen_in(root).values()
    assert seen["intact"] is False
    assert install(source, root)["changed"] is True
    (seen,) = seen_in(root).values()
    assert seen["intact"] is True
    assert sha256(file) == sha256(source)


def test_models_without_a_root_or_with_damaged_stamps(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    assert seen_in(root) == {}
    file = Path(install(source, root)["file"])
    (root / "loose.gguf").write_text("x")
    for text in ("", "{", "[]", '{"size": 3}'):
        file.with_name("tiny.gguf.stamp").write_text(text)
        assert seen_in(root) == {}
    assert install(source, root)["changed"] is True


@pytest.mark.parametrize("known", [False, True])
def test_a_copy_goes_on_where_it_was_cut(source: Path, tmp_path: Path, known: bool) -> None:
    """Also without a sum that would tell at the end: what is there has to be how the file begins."""
    data, expected = source.read_bytes(), sha256(source)
    for number, (begins, goes_on) in enumerate(((data[:1_234_567], True), (b"x" * 1_234_567, False))):
        root = tmp_path / f"models{number}"
        part = root / ".incoming" / f"tiny.gguf-{len(data)}.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(begins)
        code, lines, err = run(path=str(source), root=str(root), sha256=expected if known else None)
        said = "==> tiny.gguf goes on after the 1.2 MiB that are there" in lines
        if known and not goes_on:  # only the sum tells it; the next run starts again
            assert (code, said) == (1, True)
            assert "tiny.gguf has sha256 " in err
        else:
            assert (code, said) == (0, goes_on)
            assert sha256(Path(json.loads(lines[-1])["file"])) == expected


def test_wrong_sha256(source: Path, tmp_path: Path) -> None:
    root, wrong = tmp_path / "models", "0" * 64
    assert refusal(source, root, sha256=wrong) == (
        f"{source} has sha256 {sha256(source)} where {wrong} was expected; nothing was changed"
    )
    assert seen_in(root) == {}
    assert sorted(p.name for p in root.rglob("*")) == [".incoming", "tiny.gguf.lock"]


def test_bad_sources_are_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    assert refusal(tmp_path / "no.gguf", root) == f"{tmp_path}/no.gguf: No such file or directory"
    assert refusal(tmp_path, root, name="x.gguf") == f"{tmp_path}: it is no file: give the GGUF itself"
    html = tmp_path / "page.gguf"
    html.write_text("<!DOCTYPE html><title>Sign in</title>")
    assert refusal(html, root).startswith(f"{html}: it is not a GGUF but an HTML page")
    size = source.stat().st_size
    os.truncate(source, size - 1)
    assert refusal(source, root) == (
        f"{source}: it is cut off: it has {size - 1} bytes where its header asks for {size}; copy or download it again"
    )
    shard = tmp_path / "shard.gguf"
    keys = b"".join(
        struct.pack("<Q", len(name)) + name + struct.pack("<IH", 2, value)
        for name, value in ((b"split.count", 3), (b"split.no", 1))
    )
    shard.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + keys)
    assert refusal(shard, root).startswith(f"{shard}: its header says that it is shard 2 of 3, but its name does not: give all")
    assert not root.exists()


def test_a_source_that_changes_meanwhile(source: Path, tmp_path: Path) -> None:
    def touched() -> None:  # asked after the source was opened and before it is read
        os.utime(source)

    job = {"name": "x.gguf", "size": source.stat().st_size, "sha256": None, "incoming": str(tmp_path / ".incoming")}
    with pytest.raises(SystemExit, match=rf"{source} was changed while it was copied: run again"):
        receive.from_path(job, str(source), touched, lambda part, sha256: {})


def test_no_space(source: Path, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root to mount")
    root = tmp_path / "small"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(root)], check=True)
    try:
        assert refusal(source, root) == (
            f"no space: tiny.gguf needs {source.stat().st_size} bytes in {root}, where {1 << 20} are free"
        )
        assert seen_in(root) == {}
    finally:
        subprocess.run(["umount", str(root)], check=True)


def test_killed_at_any_time_and_run_again(source: Path, tmp_path: Path) -> None:
    """Killed after 0, 15, 30 … ms: never a valid model that isn't whole, and the next run ends well."""
    expected = sha256(source)
    for number in range(14):
        root = tmp_path / f"models{number}"
        process = started({"path": str(source), "root": str(root)})
        time.sleep(0.015 * number)
        process.kill()
        process.communicate()
        for file, stamp in seen_in(root).items():
            assert not stamp["intact"] or sha256(root / file) == expected
        assert sha256(Path(install(source, root)["file"])) == expected
        assert all(stamp["intact"] for stamp in seen_in(root).values())
        assert not list(root.rglob("*.part"))


def test_progress_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    said: list[str] = []
    progress = receive.Progress("copy of x", 20 << 30, 0, said.append)
    for second in range(1, 201):
        clock[0] = float(second)
        progress.at(second * (100 << 20))
    assert said[0] == "copy of x: 5 % of 20.0 GiB, 100.0 MiB/s, 3 min 14 s left"
    assert len(said) == 18  # every 11 s, the first whole second in which 5 % more have come
    for second in range(201, 301):  # slow: a line every 30 s
        clock[0] = float(second)
        progress.at(200 * (100 << 20) + second)
    assert len(said) == 18 + 3
