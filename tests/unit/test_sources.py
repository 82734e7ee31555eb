"""The archives are made here; the real source distribution is fetched once, into the user's cache (scripts/test has it)."""

import functools
import gzip
import hashlib
import http.server
import io
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wsllama import lock, sources
from wsllama.lock import LlamaCppPin
from wsllama.sources import SourceError, fetch

PIN = lock.load(Path(__file__).parents[2] / "wsllama.lock").llama_cpp
OTHER = "1" * 40
FILES = {"CMakeLists.txt": b"project(x)\n", "src/a.c": b"int a;\n", "src/b/run.sh": b"#!/bin/sh\n", "docs/x.md": b"# x\n"}


def tar(path: Path, files: dict[str, bytes], top: str = "llama.cpp-1/", extra: tarfile.TarInfo | None = None) -> str:
    with tarfile.open(path, "w:gz") as out:
        for name, data in files.items():
            member = tarfile.TarInfo(top + name)
            member.size, member.mode = len(data), 0o755 if name.endswith(".sh") else 0o644
            out.addfile(member, io.BytesIO(data))
        if extra:
            out.addfile(extra)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git_tree_of(folder: Path) -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "-A", "-f")
    return git("write-tree")


@pytest.fixture
def archive(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "a.tar.gz"
    return path, tar(path, FILES)


def get(archive: Path | str, sha256: str, cache: Path, commit: str = OTHER) -> sources.Source:
    return fetch(PIN, "archive", commit=commit, archive=str(archive), archive_sha256=sha256, cache=cache)


def test_an_archive_becomes_a_tree_that_git_names_the_same(archive: tuple[Path, str], tmp_path: Path) -> None:
    source = get(*archive, tmp_path / "cache")
    (tmp_path / "given").mkdir()
    subprocess.run(["tar", "-xzf", archive[0], "-C", tmp_path / "given"], check=True)
    assert source.tree == git_tree_of(tmp_path / "given" / "llama.cpp-1")
    assert source.path
    with tarfile.open(source.path) as packed:
        assert packed.getnames() == ["CMakeLists.txt", "src/a.c", "src/b/run.sh"]  # without what no build reads
        assert packed.getmember("src/b/run.sh").mode == 0o755
        stream = packed.extractfile("src/a.c")
        assert stream
        assert stream.read() == FILES["src/a.c"]
    assert (source.sha256, source.size) == (hashlib.sha256(source.path.read_bytes()).hexdigest(), source.path.stat().st_size)


def test_the_same_files_are_the_same_bytes_whatever_they_came_in(archive: tuple[Path, str], tmp_path: Path) -> None:
    other = tmp_path / "b.tar.gz"
    sha256 = tar(other, dict(reversed(FILES.items())), top="another-name/")
    assert sha256 != archive[1]
    made = get(other, sha256, tmp_path / "c1")
    assert made.sha256 == get(*archive, tmp_path / "c2").sha256
    assert made.path
    assert made.path.read_bytes()[3:8] == bytes(5)  # gzip's flags and time: no name, no clock


def test_a_second_call_reads_neither_archive_nor_result(archive: tuple[Path, str], tmp_path: Path) -> None:
    first = get(*archive, tmp_path / "cache")
    archive[0].unlink()
    assert get(*archive, tmp_path / "cache") == first


def test_a_result_that_was_cut_in_the_cache_is_made_again(archive: tuple[Path, str], tmp_path: Path) -> None:
    first = get(*archive, tmp_path / "cache")
    assert first.path
    first.path.write_bytes(b"cut")
    assert get(*archive, tmp_path / "cache") == first
    assert hashlib.sha256(first.path.read_bytes()).hexdigest() == first.sha256


def test_one_changed_byte_is_refused(archive: tuple[Path, str], tmp_path: Path) -> None:
    path, sha256 = archive
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match=f"has sha256 [0-9a-f]{{64}} instead of {sha256}"):
        get(path, sha256, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.tar.gz"))


def test_an_archive_that_is_not_the_pinned_commit_is_refused(archive: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"is not commit {PIN.commit}: that is tree {PIN.tree}, but it holds tree"):
        get(*archive, tmp_path / "cache", commit=PIN.commit)


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (tarfile.TarInfo("llama.cpp-1/../../evil"), "leads out of its folder"),
        (tarfile.TarInfo("llama.cpp-1//etc/evil"), "leads out of its folder"),
        (link("llama.cpp-1/src/passwd", "/etc/passwd"), "no plain file"),
        (tarfile.TarInfo("second-top/file"), "in one top folder"),
    ],
)
def test_a_hostile_archive_is_refused(tmp_path: Path, extra: tarfile.TarInfo, said: str) -> None:
    path = tmp_path / "a.tar.gz"
    sha256 = tar(path, FILES, extra=extra)
    with pytest.raises(SourceError, match=said):
        get(path, sha256, tmp_path / "cache")


def test_what_is_no_archive_of_llama_cpp_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(b"no tar at all" * 99))
    with pytest.raises(SourceError, match=r"cannot be read as a tar\.gz"):
        get(path, hashlib.sha256(path.read_bytes()).hexdigest(), tmp_path / "cache")
    sha256 = tar(path, {"README": b""})
    with pytest.raises(SourceError, match=r"does not hold llama\.cpp"):
        get(path, sha256, tmp_path / "cache")
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        get(tmp_path / "nowhere.tar.gz", sha256, tmp_path / "cache")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_archive_is_fetched_from_a_url(archive: tuple[Path, str], address: str, tmp_path: Path) -> None:
    assert get(f"{address}/a.tar.gz", archive[1], tmp_path / "cache").size
    with pytest.raises(SourceError, match="cannot be fetched"):
        get(f"{address}/nowhere.tar.gz", archive[1], tmp_path / "cache")
    with pytest.raises(SourceError, match="neither a path nor an http"):
        get("ftp://127.0.0.1/a.tar.gz", archive[1], tmp_path / "cache")


def test_git_is_left_to_the_host(tmp_path: Path) -> None:
    source = fetch(PIN, "git", cache=tmp_path)
    assert source.for_host("") == {"kind": "git", "url": PIN.git, "commit": PIN.commit, "tree": PIN.tree}
    assert fetch(PIN, "git", commit=OTHER, git_url="file:///x", cache=tmp_path).for_host("")["tree"] is None
    assert not list(tmp_path.iterdir())


def test_another_commit_cannot_come_from_the_index(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"holds commit {PIN.commit} only; commit {OTHER} can come with"):
        fetch(PIN, "sdist", commit=OTHER, cache=tmp_path)


def test_the_pinned_commit_comes_from_the_index() -> None:
    """Into the cache that a deploy uses; what proves it is the tree hash, which git made."""
    source = fetch(PIN, "sdist")
    assert source.tree == PIN.tree
    assert source.path
    assert fetch(PIN, "sdist") == source
    assert source.for_host("/x") == {"kind": "tar", "path": "/x", "sha256": source.sha256}


def test_a_wrong_pin_is_refused_by_pip_and_nothing_is_kept(tmp_path: Path) -> None:
    wrong = LlamaCppPin.model_validate({**PIN.model_dump(), "sdist": {**PIN.sdist.model_dump(), "sha256": "0" * 64}})
    with pytest.raises(SourceError, match="another sha256"):
        fetch(wrong, "sdist", cache=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["lock"]


def test_without_a_network_one_sentence_says_so(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(tmp_path)}
    with pytest.raises(SourceError, match="the Python index cannot be reached for llama-cpp-python"):
        fetch(PIN, "sdist", cache=tmp_path / "cache", environment=nowhere)


def test_nothing_of_the_archive_is_run_by_pip(tmp_path: Path) -> None:
    """An archive whose build backend would leave a trace, in an index of its own."""
    name, backend = "llama_cpp_python-0.3.36/", b"open(%r, 'w').close()\n" % str(tmp_path / "ran")
    files = {
        "pyproject.toml": b"[build-system]\nrequires = []\nbuild-backend = 'scikit_build_core.build'\n",
        "setup.py": backend,
        "scikit_build_core/__init__.py": backend,
        "scikit_build_core/build.py": backend,
        "PKG-INFO": b"Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.3.36\n",
        "vendor/llama.cpp/CMakeLists.txt": FILES["CMakeLists.txt"],
        "vendor/llama.cpp/.git": b"gitdir: elsewhere\n",
    }
    (tmp_path / "index").mkdir()
    sha256 = tar(tmp_path / "index" / "llama_cpp_python-0.3.36.tar.gz", files, top=name)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "CMakeLists.txt").write_bytes(FILES["CMakeLists.txt"])
    changed = {**PIN.model_dump(), "tree": git_tree_of(tmp_path / "tree"), "sdist": {**PIN.sdist.model_dump(), "sha256": sha256}}
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index"), "PIP_CONFIG_FILE": os.devnull}
    pin = LlamaCppPin.model_validate(changed)
    assert fetch(pin, "sdist", cache=tmp_path / "cache", environment=offline).tree == pin.tree
    assert not (tmp_path / "ran").exists()


def test_the_index_also_carries_the_commit_itself(tmp_path: Path) -> None:
    bare = sources.true_pin_repository(PIN, tmp_path / "bare")
    said = subprocess.run(["git", "-C", str(bare), "rev-parse", f"{PIN.commit}^{{tree}}"], capture_output=True, text=True)
    assert said.stdout.strip() == PIN.tree, said.stderr
