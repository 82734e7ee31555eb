"""A build on its way: packed on one host, kept here, put into place on another; and what is refused on the way."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest

from tests.unit import test_transfer
from tests.unit.test_transfer import needs_sshd, sha256
from wsllama import artifacts, program, transfer
from wsllama.host import artifact, build

over_ssh, sshd, there = test_transfer.over_ssh, test_transfer.sshd, test_transfer.there

ID, COMMIT = "0123456789abcdef", "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
OPTIONS = {"LLAMA_BUILD_NUMBER": "7", "LLAMA_BUILD_COMMIT": COMMIT[:9]}
SERVER = f"#!/bin/sh\necho version: build 7 '({COMMIT[:9]})' >&2\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make(builds: Path, server: str = SERVER) -> Path:
    """A whole build as wsllama/host/build.py leaves it, with a server of one line."""
    folder = builds / ID
    for name in ("bin", "lib"):
        (folder / name).mkdir(parents=True)
    (folder / "bin" / "llama-server").write_text(server)
    (folder / "bin" / "llama-server").chmod(0o755)
    (folder / "lib" / "libllama.so.0.5.0").write_bytes(os.urandom(3_000_000))
    (folder / "lib" / "libllama.so.0.5.0").chmod(0o755)
    (folder / "lib" / "libllama.so.0").symlink_to("libllama.so.0.5.0")
    (folder / "lib" / "libllama.so").symlink_to("libllama.so.0")
    build.write_record(str(folder), {"build_id": ID, "commit": COMMIT, "options": OPTIONS, "version": "b7"})
    return folder


class Machine:
    """A host, and folders of its own for builds and work: what the programs get as such."""

    def __init__(self, host: Any, folder: Path) -> None:
        self.host, self.builds, self.work = host, folder / "builds", folder / "work"
        self.said: list[str] = []

    def fetch(self, out: Any) -> dict[str, Any]:
        return self._with_folders(lambda: transfer.fetch_build(self.host, ID, out, say=self.said.append, arguments={}))

    def send(self, source: Path, **more: Any) -> dict[str, Any]:
        wanted = {"build_id": ID, "sha256": sha256(source.read_bytes()), "unpacked": 10_000_000, **more}
        return self._with_folders(lambda: transfer.send_build(self.host, source, **wanted, say=self.said.append, arguments={}))

    def _with_folders(self, action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        call, folders = program.call, {"builds": str(self.builds), "work": str(self.work)}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(program, "call", lambda name, argument, **how: call(name, {**argument, **folders}, **how))
            return action()

    def left(self) -> list[str]:
        """What is in the folder of builds, and of partial files."""
        incoming = self.builds / ".incoming"
        parts = [p.name for p in incoming.iterdir() if p.suffix != ".lock"] if incoming.exists() else []
        return sorted([*parts, *(p.name for p in self.builds.iterdir() if p != incoming)]) if self.builds.exists() else []


@pytest.fixture(params=[pytest.param("over_ssh", marks=needs_sshd), "there"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(request.getfixturevalue(request.param), tmp_path / "machine")


@pytest.fixture
def here(there: Any, tmp_path: Path) -> Machine:
    return Machine(there, tmp_path / "here")


def tree(folder: Path) -> dict[str, tuple[str, str]]:
    """Name -> permissions and what it holds, or where it leads to."""
    return {
        str(p.relative_to(folder)): ("link", os.readlink(p))
        if p.is_symlink()
        else (f"{p.stat().st_mode & 0o7777:o}", sha256(p.read_bytes()) if p.is_file() else "")
        for p in (folder, *folder.rglob("*"))
    }


# From a host, and to one


def test_a_build_arrives_as_it_was_made(machine: Machine, tmp_path: Path) -> None:
    folder = make(machine.builds)
    kept = artifacts.keep(ID, machine.fetch)
    (said,) = machine.said
    assert re.fullmatch(rf"copy of build {ID}: 2\.9 MiB in \d+ s, [\d.]+ \w+/s", said)
    assert machine.left() == [ID]  # nothing was written on the host
    assert kept == artifacts.verified(ID)
    assert kept.record == json.loads((folder / "build.json").read_text())
    assert kept.unpacked == 3_000_000 + len(SERVER)
    other = Machine(machine.host, tmp_path / "other")
    sent = other.send(kept.path, unpacked=kept.unpacked)
    assert sent == {"ok": True, "changed": True, "build_id": ID, "sha256": kept.sha256, "size": kept.size}
    assert tree(other.builds / ID) == tree(folder)
    assert other.left() == [ID]
    inode = (other.builds / ID).stat().st_ino
    assert other.send(kept.path)["changed"] is False
    assert (other.builds / ID).stat().st_ino == inode


def test_what_is_not_whole_is_replaced(machine: Machine, tmp_path: Path) -> None:
    folder = make(machine.builds)
    kept, before = artifacts.keep(ID, machine.fetch), tree(folder)
    os.truncate(folder / "bin" / "llama-server", 10)
    shutil.copytree(folder, machine.builds / f".partial-{ID}", symlinks=True)  # of a run that was killed
    assert machine.send(kept.path)["changed"]
    assert tree(folder) == before
    assert machine.left() == [ID]


def test_the_same_build_is_the_same_archive_whenever_and_whoever_made_it(here: Machine) -> None:
    folder, packed = make(here.builds), io.BytesIO()
    first = here.fetch(packed)
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (1, 1), follow_symlinks=False)
        os.chown(path, 1, 1, follow_symlinks=False)
    (folder / "lib" / "unknown").write_text("of somebody else: not listed, so not packed")
    again = io.BytesIO()
    assert here.fetch(again) == first
    assert again.getvalue() == packed.getvalue()
    with tarfile.open(fileobj=io.BytesIO(packed.getvalue())) as tar:
        assert tar.getnames() == ["build.json", "bin/llama-server", *(f"lib/libllama.so{v}" for v in ("", ".0", ".0.5.0"))]
        assert {(m.uid, m.gid, m.mtime) for m in tar} == {(0, 0, 0)}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(os.urandom(3_000_000)), "lib/libllama.so.0.5.0 is not as it was built: remove "),
        (lambda path: os.truncate(path, 100), f"there is no whole build {ID} in "),
    ],
)
def test_a_spoilt_build_is_not_taken(machine: Machine, spoil: Callable[[Path], None], said: str) -> None:
    spoil(make(machine.builds) / "lib" / "libllama.so.0.5.0")
    with pytest.raises(transfer.TransferError) as caught:
        artifacts.keep(ID, machine.fetch)
    assert said in str(caught.value)
    assert list(artifacts.default_cache().iterdir()) == []


def test_bytes_that_change_on_their_way_are_noticed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    make(machine.builds)
    way: Any = transfer._way(machine.host)
    read = way.read
    monkeypatch.setattr(way, "read", lambda self, count: read(self, count)[:-1] + b"?")
    with pytest.raises(transfer.TransferError, match=rf"build {ID} came with sha256 \w+ where \w+ was sent: run again"):
        artifacts.keep(ID, machine.fetch)
    assert artifacts.known(ID) is None


def test_a_connection_that_breaks(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    make(machine.builds)

    def broken(*_: Any) -> bytes:
        raise EOFError("the line went dead")

    monkeypatch.setattr(transfer._way(machine.host), "read", broken)
    with pytest.raises(transfer.TransferError, match=f"the connection broke while build {ID} was fetched: the line went dead"):
        artifacts.keep(ID, machine.fetch)
    assert list(artifacts.default_cache().iterdir()) == []


# What is sent is looked at


def archive(path: Path, folder: Path, *more: tarfile.TarInfo, without: str = "", named: str = "") -> Path:
    """An archive of a build by hand: with these members at its end (without content), without or with another one."""
    with tarfile.open(path, "w:gz") as tar:
        for name in ["build.json", *sorted(json.loads((folder / "build.json").read_text())["files"])]:
            if name != without:
                tar.add(folder / name, named or name if name == "bin/llama-server" else name)
        for member in more:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, to, size
    return made


BAD = {
    "leads-up": (member("../evil"), "its archive holds '../evil', which has no place in a build"),
    "leads-up-inside": (member("bin/../../evil"), "which has no place in a build"),
    "root": (member("/evil"), "its archive holds '/evil', which has no place in a build"),
    "dots": (member("bin/.."), "which has no place in a build"),
    "deep": (member("bin/a/b"), "which has no place in a build"),
    "folder-is-a-link": (member("lib", tarfile.SYMTYPE, "/etc"), "its archive holds 'lib', which has no place in a build"),
    "link-out": (member("lib/x", tarfile.SYMTYPE, "../../x"), "'lib/x', which is neither a file nor a link beside itself"),
    "link-to-root": (member("lib/x", tarfile.SYMTYPE, "/etc/passwd"), "is neither a file nor a link beside itself"),
    "hard-link": (member("lib/x", tarfile.LNKTYPE, "lib/libllama.so"), "is neither a file nor a link beside itself"),
    "device": (member("lib/x", tarfile.CHRTYPE), "is neither a file nor a link beside itself"),
    "twice": (member("bin/llama-server"), "bin/llama-server: File exists"),
    "unlisted": (member("lib/x", size=5), "its archive doesn't hold the files of that build"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_archive_that_leads_out_is_refused(here: Machine, tmp_path: Path, name: str) -> None:
    bad, said = BAD[name]
    refused(here, archive(tmp_path / "bad.tar.gz", make(tmp_path / "made"), bad), said)
    assert not list(tmp_path.rglob("evil"))


def refused(machine: Machine, source: Path, said: str) -> None:
    with pytest.raises(transfer.TransferError) as caught:
        machine.send(source)
    assert said in str(caught.value)
    assert machine.left() == []


def test_an_archive_of_something_else_is_refused(here: Machine, tmp_path: Path) -> None:
    folder, bad = make(tmp_path / "made"), tmp_path / "bad.tar.gz"
    listed = "its archive doesn't hold the files of that build"
    refused(here, archive(bad, folder, without="bin/llama-server"), listed)
    refused(here, archive(bad, folder, without="build.json"), listed)
    refused(here, archive(bad, folder, named="bin/llama"), listed)
    (folder / "lib" / "libllama.so.0.5.0").write_bytes(os.urandom(3_000_000))
    refused(here, archive(bad, folder), "lib/libllama.so in its archive is not what was built")
    bad.write_bytes(b"<!DOCTYPE html>")
    refused(here, bad, f"build {ID} was sent, but not a gzip file")


def test_a_build_that_does_not_run_here_is_refused(here: Machine, tmp_path: Path) -> None:
    other = make(tmp_path / "other", SERVER.replace(COMMIT[:9], "fffffffff"))
    refused(here, archive(tmp_path / "other.tar.gz", other), f"--version does not name build 7 and commit {COMMIT[:9]}")
    crashes = make(tmp_path / "crashes", "#!/bin/sh\nkill -ILL $$\n")
    refused(here, archive(tmp_path / "crashes.tar.gz", crashes), "(status -4)")


def test_a_wrong_sha256_is_refused(machine: Machine, tmp_path: Path) -> None:
    source = archive(tmp_path / "a.tar.gz", make(tmp_path / "made"))
    with pytest.raises(transfer.TransferError, match=f"has sha256 {sha256(source.read_bytes())} where {'0' * 64} was expected"):
        machine.send(source, sha256="0" * 64)
    assert machine.left() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_no_room_is_said_before_anything_is_sent(machine: Machine, tmp_path: Path) -> None:
    source = archive(tmp_path / "a.tar.gz", make(tmp_path / "made"))
    machine.builds.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(machine.builds)], check=True)
    try:
        with pytest.raises(transfer.TransferError) as caught:
            machine.send(source, unpacked=3_000_000)
        sizes = "5.7 MiB with its archive, and 4.0 MiB are free"
        assert str(caught.value) == f"no space: build {ID} needs {sizes} in {machine.builds}; make room there and run again"
        assert machine.left() == []
        assert machine.said == []
    finally:
        subprocess.run(["umount", str(machine.builds)], check=True)


def test_a_build_that_goes_on_is_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It would clear away what is being unpacked; and when it has made the same one, that stays."""
    source, builds, work = archive(tmp_path / "a.tar.gz", make(tmp_path / "made")), tmp_path / "builds", tmp_path / "work"
    work.mkdir()
    builds.mkdir()
    real_threads = gevent.get_hub().threadpool  # a cooperative one would stop the whole test while it waits for the lock
    with open(work / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = real_threads.spawn(artifact.place, str(source), str(builds), str(work), ID)
        deadline = time.monotonic() + 600
        while "a build is going on here: waiting for its end" not in capfd.readouterr().out:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert list(builds.iterdir()) == []
        shutil.copytree(tmp_path / "made" / ID, builds / ID, symlinks=True)
        inode = (builds / ID).stat().st_ino
    assert waiting.get(timeout=600) is False
    assert (builds / ID).stat().st_ino == inode
    assert not source.exists()


# Kept on the controller


def bring(data: bytes = b"an archive", build_id: str = ID) -> Callable[[Any], dict[str, Any]]:
    record = {"build_id": build_id, "files": {"bin/x": {"size": 5, "sha256": "ab"}, "bin/y": {"size": 5, "sha256": "ab"}}}

    def write(out: Any) -> dict[str, Any]:
        out.write(data)
        return {"sha256": sha256(data), "size": len(data), "record": record}

    return write


def names() -> list[str]:
    return sorted(p.name for p in artifacts.default_cache().iterdir())


def test_what_is_kept_is_found() -> None:
    assert artifacts.known(ID) is None
    assert artifacts.verified(ID) is None
    kept = artifacts.keep(ID, bring())
    assert names() == [f"{ID}.json", f"{ID}.tar.gz"]
    assert artifacts.known(ID) == artifacts.verified(ID) == kept
    assert kept.unpacked == 5
    assert json.loads((artifacts.default_cache() / f"{ID}.json").read_text())["sha256"] == sha256(b"an archive")


def test_one_flipped_byte_is_refused_and_removed() -> None:
    kept = artifacts.keep(ID, bring())
    before = kept.path.stat()
    kept.path.write_bytes(b"an archivE")
    os.utime(kept.path, ns=(before.st_atime_ns, before.st_mtime_ns))  # a disk that goes wrong doesn't tell the time of it
    with pytest.raises(artifacts.ArtifactError) as caught:
        artifacts.verified(ID)
    wrong = f"{kept.path} has sha256 {sha256(b'an archivE')} instead of {kept.sha256}, so it was removed"
    assert str(caught.value) == wrong
    assert artifacts.verified(ID) is None
    assert artifacts.keep(ID, bring()) == artifacts.verified(ID)


@pytest.mark.parametrize("spoil", ["{", "[]", '{"sha256": "", "size": 10, "record": {}}', None])
def test_an_entry_that_is_not_whole_is_none(spoil: str | None) -> None:
    kept = artifacts.keep(ID, bring())
    if spoil is None:
        os.truncate(kept.path, 5)
    else:
        kept.path.with_name(f"{ID}.json").write_text(spoil)
    assert artifacts.known(ID) is None
    assert artifacts.verified(ID) is None


def test_what_belongs_to_another_build_is_none() -> None:
    artifacts.keep(ID, bring(build_id="f" * 16))
    assert artifacts.known(ID) is None


def test_a_failure_leaves_what_was_there() -> None:
    kept = artifacts.keep(ID, bring())

    def fails(out: Any) -> dict[str, Any]:
        out.write(b"half")
        raise transfer.TransferError("the line went dead")

    with pytest.raises(transfer.TransferError):
        artifacts.keep(ID, fails)
    assert artifacts.verified(ID) == kept
    assert names() == [f"{ID}.json", f"{ID}.tar.gz"]


def test_those_used_last_stay_and_those_that_are_needed() -> None:
    ids = [f"{number:016x}" for number in range(artifacts.MOST)]
    for age, build_id in enumerate(ids):
        kept = artifacts.keep(build_id, bring(build_id=build_id))
        os.utime(kept.path, (1000 + age, 1000 + age))
    assert artifacts.verified(ids[0])  # it is used, so it isn't the oldest any more
    os.utime(artifacts.default_cache() / f"{ids[5]}.tar.gz", (1, 1))
    (artifacts.default_cache() / ".partial-old").touch()
    os.utime(artifacts.default_cache() / ".partial-old", (1, 1))
    (artifacts.default_cache() / ".partial-of-another-run").touch()
    artifacts.keep("f" * 16, bring(build_id="f" * 16), needed=[ids[5]])
    assert artifacts.known(ids[5])
    artifacts.keep("e" * 16, bring(build_id="e" * 16), needed=[ids[1]])
    gone = [build_id for build_id in ids if not artifacts.known(build_id)]
    assert gone == [ids[5]]
    left = names()
    assert [name for name in left if name.startswith(".")] == [".partial-of-another-run"]
    assert f"{ids[5]}.json" not in left


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_cache_without_room_says_so(here: Machine) -> None:
    make(here.builds)
    cache = artifacts.default_cache()
    cache.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(cache)], check=True)
    try:
        with pytest.raises(transfer.TransferError, match=f"build {ID} can't be written on this machine: No space left on device"):
            artifacts.keep(ID, here.fetch)
        assert list(cache.iterdir()) == []
    finally:
        subprocess.run(["umount", str(cache)], check=True)


def test_a_cache_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(
        artifacts.ArtifactError, match=rf"build {ID} can't be kept in {artifacts.default_cache()}: Not a directory"
    ):
        artifacts.keep(ID, bring())
