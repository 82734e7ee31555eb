"""Runs on the host: packs a build into an archive of always the same bytes, and puts one that was sent into place.

The archive is a tar.gz of BUILDS/<id>/build.json and of the files that it lists. Packing keeps nothing on the disk: the
archive goes to stdout as it is made, each block behind a line {"block": its bytes, "done": bytes of the build that are
in so far, "total": all of them}; the last line is the result.

    BUILDS/.incoming/       what has come so far (wsllama/host/receive.py)
    BUILDS/.partial-<id>/   what is being unpacked; the lock of wsllama/host/build.py says that nobody else is at it
"""

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from wsllama.host import build, receive

# Names that stay inside, links' targets included: no slash, and no dot in front.
NAME = r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*"
MEMBER = re.compile(rf"build\.json|(bin|lib)/{NAME}")


class Blocks:
    """What gzip writes, passed on in blocks; `digest` and `size` are of all of it, `done` and `total` of what goes in."""

    def __init__(self, out: BinaryIO, total: int) -> None:
        self.out, self.total, self.done = out, total, 0
        self.digest, self.size, self.waiting = hashlib.sha256(), 0, bytearray()

    def write(self, data: bytes) -> int:
        self.waiting += data
        if len(self.waiting) >= receive.BLOCK:
            self.pass_on()
        return len(data)

    def pass_on(self) -> None:
        self.line(block=len(self.waiting), done=self.done, total=self.total)
        self.out.write(self.waiting)
        self.digest.update(self.waiting)
        self.size += len(self.waiting)
        self.waiting.clear()

    def line(self, **what: Any) -> None:
        self.out.write(b"%s\n" % json.dumps(what).encode())


class Reading:
    """A file that is hashed and counted as it is read."""

    def __init__(self, file: BinaryIO, blocks: Blocks) -> None:
        self.file, self.blocks, self.digest = file, blocks, hashlib.sha256()

    def read(self, count: int) -> bytes:
        data = self.file.read(count)
        self.digest.update(data)
        self.blocks.done += len(data)
        return data


def pack(builds: str, build_id: str, out: BinaryIO) -> None:
    """Write the archive of a whole build. Raises SystemExit for one that isn't as it was made."""
    folder = os.path.join(builds, build_id)
    record = build.whole(folder, build_id)
    if record is None:
        raise SystemExit(f"there is no whole build {build_id} in {builds}")
    files, names = record["files"], ["build.json", *sorted(record["files"])]
    paths = [os.path.join(folder, name) for name in names]
    blocks = Blocks(out, sum(os.path.getsize(path) for path in paths if not os.path.islink(path)))
    squeezed = gzip.GzipFile("", "wb", compresslevel=1, fileobj=blocks, mtime=0)  # type: ignore[call-overload]  # only writes
    with squeezed, tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            found = add(tar, folder, name, blocks)
            if found and name in files and found != files[name]["sha256"]:
                raise SystemExit(f"{folder}/{name} is not as it was built: remove {folder} and run again")
    blocks.pass_on()
    blocks.line(ok=True, sha256=blocks.digest.hexdigest(), size=blocks.size, record=record)
    out.flush()


def add(tar: tarfile.TarFile, folder: str, name: str, blocks: Blocks) -> str | None:
    """Put a file into the archive, without anything that depends on when and where; its sha256, or None for a link."""
    path, member = os.path.join(folder, name), tarfile.TarInfo(name)
    if os.path.islink(path):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
        tar.addfile(member)
        return None
    with open(path, "rb") as file:
        member.size, member.mode = os.fstat(file.fileno()).st_size, 0o644 if name == "build.json" else 0o755
        reading = Reading(file, blocks)
        tar.addfile(member, reading)  # type: ignore[arg-type]  # only reads
    return reading.digest.hexdigest()


def place(archive: str, builds: str, work: str, build_id: str) -> bool:
    """Make a verified archive the build `build_id`, which appears whole or never; False when it was there meanwhile.

    Raises SystemExit for an archive that isn't that build. It is removed in every case.
    """
    final, partial = os.path.join(builds, build_id), os.path.join(builds, f".partial-{build_id}")
    try:
        with alone(work):
            if build.whole(final, build_id):
                return False
            try:
                shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
                unpack(archive, partial)
                check(partial, build_id)
                build.publish(partial, final)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except (build.BuildError, tarfile.TarError, EOFError) as error:
        raise SystemExit(f"build {build_id} was sent, but {error}") from None
    finally:
        os.unlink(archive)
    return True


@contextlib.contextmanager
def alone(work: str) -> Iterator[None]:
    """No build goes on here meanwhile: it would clear away what is unpacked."""
    os.makedirs(work, exist_ok=True)
    with open(os.path.join(work, "lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            receive.say("a build is going on here: waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpack(archive: str, partial: str) -> None:
    for folder in ("bin", "lib"):
        os.makedirs(os.path.join(partial, folder))
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            target = os.path.join(partial, member.name)
            if not MEMBER.fullmatch(member.name):
                raise build.BuildError(f"its archive holds {member.name!r}, which has no place in a build")
            if member.issym() and re.fullmatch(NAME, member.linkname):
                os.symlink(member.linkname, target)
            elif member.isreg():
                with tar.extractfile(member) as source, open(target, "xb") as file:  # type: ignore[union-attr]  # regular
                    shutil.copyfileobj(source, file, receive.BLOCK)
                os.chmod(target, 0o755 if member.mode & 0o100 else 0o644)
            else:
                raise build.BuildError(f"its archive holds {member.name!r}, which is neither a file nor a link beside itself")


def check(partial: str, build_id: str) -> None:
    """Every file is what its record says, nothing else is there, and the server runs here and names its commit."""
    record = build.whole(partial, build_id)
    there = [f"{folder}/{name}" for folder in ("bin", "lib") for name in os.listdir(os.path.join(partial, folder))]
    if record is None or sorted(there) != sorted(record["files"]):
        raise build.BuildError("its archive doesn't hold the files of that build")
    for name, of in record["files"].items():
        if build.sha256_of(os.path.join(partial, name)) != of["sha256"]:
            raise build.BuildError(f"{name} in its archive is not what was built")
    build.ask_version(partial, record["options"])


def need_room(builds: str, build_id: str, need: int) -> None:
    """End with a sentence, before anything is sent, when archive and build don't fit beside each other."""
    there = os.statvfs(builds)
    free = there.f_bavail * there.f_frsize
    if need > free:
        sizes = f"{receive.gib(need)} with its archive, and {receive.gib(free)} are free"
        raise SystemExit(f"no space: build {build_id} needs {sizes} in {builds}; make room there and run again")


def main(argument: dict[str, Any]) -> None:
    """Pack a build that is here, or make one of an archive that is sent.

    - action: "pack" or "unpack"; build_id
    - to unpack: sha256 of the archive; size: bytes that the stream will bring, or path: where it lies on the host;
      unpacked: bytes that the build takes
    - builds, work: other folders than the usual ones, for tests

    The last line on stdout is {"ok", "sha256", "size", "record"} or {"ok", "changed", "build_id", "sha256", "size"}.
    Raises SystemExit with a sentence.
    """
    builds, name = argument.get("builds", build.BUILDS), argument["build_id"]
    os.umask(0o022)  # the service's user reads what is unpacked
    with receive.one_sentence(builds):
        if argument["action"] == "pack":
            pack(builds, name, sys.stdout.buffer)
            return
        os.makedirs(builds, exist_ok=True)
        path = argument.get("path")
        size = os.stat(path).st_size if path else argument["size"]
        # one name for all, so that what is left of one is removed when another comes
        job: receive.Job = {"name": "build.tar.gz", "size": size, "sha256": argument["sha256"]}
        job["incoming"] = os.path.join(builds, ".incoming")

        def result(sha256: str, changed: bool) -> dict[str, Any]:
            return {"ok": True, "changed": changed, "build_id": name, "sha256": sha256, "size": size}

        def installed() -> receive.There:
            if build.whole(os.path.join(builds, name), name):
                return argument["sha256"], lambda: result(argument["sha256"], False)
            need_room(builds, name, size + argument["unpacked"])
            return None

        def put(part: str, sha256: str) -> dict[str, Any]:
            return result(sha256, place(part, builds, argument.get("work", build.WORK), name))

        if path:
            receive.tell(**receive.from_path(job, path, installed, put))
        else:
            receive.tell(**receive.from_stream(job, installed, put))
