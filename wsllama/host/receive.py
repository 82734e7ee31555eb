"""Runs on the host: takes one big file, from the stream that the controller sends or from a path on the host itself.

The bytes are read once: written to a partial file, hashed and dropped from the page cache as they come, so that a model
larger than the memory leaves the rest of the machine alone. Only whole and verified bytes are renamed into place. A
stream that breaks leaves its partial file, and the next one goes on from there if the sender's bytes agree so far.

    <folder>/.incoming/<name>.lock          one run at a time; the others wait, then find the file there
    <folder>/.incoming/<name>-<size>.part   what has come so far

Progress goes to stdout as plain lines. The rest there is one JSON document a line: {"have": bytes}, {"sha256": of
these bytes}, and the result, which has "ok". The sender says {"from": offset}, the bytes from there on, and
{"sha256": of all, or null where the receiver knows it}.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import queue
import re
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

BLOCK = 1 << 20  # bytes a read
DROP_EVERY = 64 << 20  # bytes between two drops from the page cache
SILENCE_S = 900  # a stream that is silent for so long has lost its sender; hashing 100 GB takes it less
QUIET_S, LONGEST_QUIET_S, STEP = 5, 30, 0.05  # a line of progress after 5 s and 5 %, or after 30 s

Job = dict[str, Any]
Read = Callable[[int], bytes]
There = tuple[str, Callable[[], dict[str, Any]]] | None
Installed = Callable[[], There]
Place = Callable[[str, str], "dict[str, Any]"]


class Progress:
    """Says how far a copy is, now and then. `done` and `total` are bytes."""

    def __init__(self, what: str, total: int, done: int, say: Callable[[str], None]) -> None:
        self.what, self.total, self.say = what, max(total, 1), say
        self.first, self.last = done, done
        self.began = self.said = time.monotonic()

    def at(self, done: int) -> None:
        now = time.monotonic()
        quiet = now - self.said
        if quiet < QUIET_S or (done - self.last < STEP * self.total and quiet < LONGEST_QUIET_S):
            return
        self.last, self.said = done, now
        rate = (done - self.first) / (now - self.began)
        left = f", {duration((self.total - done) / rate)} left" if rate else ""
        self.say(f"{self.what}: {100 * done // self.total} % of {gib(self.total)}, {rate / 2**20:.1f} MiB/s{left}")

    def end(self) -> None:
        took = time.monotonic() - self.began
        rate = (self.total - self.first) / max(took, 0.001) / 2**20
        self.say(f"{self.what}: {gib(self.total)} in {duration(took)}, {rate:.1f} MiB/s")


def lower(sha256: str | None) -> str | None:
    return sha256.lower() if sha256 else None


def gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextlib.contextmanager
def hashing(digest: Any) -> Iterator[Callable[[bytes], None]]:
    """Feeds a hash in a second thread, which runs beside reading and writing; when the block is left, all is in."""
    blocks: queue.Queue[bytes] = queue.Queue(8)

    def work() -> None:
        for block in iter(blocks.get, b""):
            digest.update(block)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield blocks.put
    finally:
        blocks.put(b"")
        thread.join()


class Part:
    """The partial file of one job. `have` counts its bytes, `digest` is their sha256."""

    def __init__(self, incoming: str, name: str, size: int) -> None:
        self.path, self.size = os.path.join(incoming, f"{name}-{size}.part"), size
        for other in os.listdir(incoming):  # of an earlier file of that name, which nobody will ask for again
            if re.fullmatch(re.escape(name) + r"-\d+\.part", other) and other != os.path.basename(self.path):
                os.unlink(os.path.join(incoming, other))
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.have = os.fstat(self.fd).st_size
        if self.have > size:
            self.restart()
        self.digest = hashlib.sha256()

    def restart(self) -> None:
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.have, self.digest = 0, hashlib.sha256()

    def hash_what_is_there(self) -> str:
        os.lseek(self.fd, 0, os.SEEK_SET)
        left = self.have
        while left:
            block = os.read(self.fd, min(BLOCK, left))
            if not block:
                raise SystemExit(f"{self.path} was changed by another program: run again")
            self.digest.update(block)
            left -= len(block)
        os.posix_fadvise(self.fd, 0, self.have, os.POSIX_FADV_DONTNEED)
        return str(self.digest.hexdigest())

    def fill(self, read: Read, dropped: Callable[[int], None] | None = None) -> None:
        """Append blocks from `read` up to the size. `dropped` hears how far the page cache was emptied."""
        clean = self.have
        with hashing(self.digest) as feed:
            while self.have < self.size:
                block = read(min(BLOCK, self.size - self.have))
                if not block:
                    raise SystemExit(
                        f"the file ended after {self.have} of {self.size} bytes; they are kept, "
                        "and the next run goes on from there"
                    )
                feed(block)
                view = memoryview(block)
                while view:
                    view = view[os.write(self.fd, view) :]
                self.have += len(block)
                if self.have - clean >= DROP_EVERY or self.have == self.size:
                    self.drop(clean)
                    clean = self.have
                    if dropped:
                        dropped(clean)

    def drop(self, start: int) -> None:
        """Only clean pages can be dropped, so they are written first."""
        os.fdatasync(self.fd)
        os.posix_fadvise(self.fd, start, self.have - start, os.POSIX_FADV_DONTNEED)

    def verified(self, name: str, *expected: str | None) -> str:
        """The sha256, after the bytes are on disk. Anything else than what was expected removes them."""
        found = str(self.digest.hexdigest())
        for wanted in expected:
            if wanted and wanted != found:
                os.unlink(self.path)
                raise SystemExit(f"{name} has sha256 {found} where {wanted} was expected; nothing was changed")
        os.fsync(self.fd)
        return found


@contextlib.contextmanager
def locked(job: Job) -> Iterator[None]:
    """One run at a time for a name. The kernel lets go of the lock when its holder ends, however it ends."""
    incoming, name = job["incoming"], job["name"]
    if name != os.path.basename(name) or name.startswith(".") or not name or len(name) > 200:
        raise SystemExit(f"{name!r} can't be the name of a file here")
    os.makedirs(incoming, mode=0o700, exist_ok=True)
    fd = os.open(os.path.join(incoming, f"{name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stage(f"{name} is being copied by another run: waiting for that")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def need_room(job: Job, part: Part) -> None:
    """End with a sentence when what is still to come doesn't fit."""
    there = os.statvfs(job["incoming"])
    free, need = there.f_bavail * there.f_frsize, job["size"] - part.have
    if need > free:
        folder = os.path.dirname(job["incoming"])
        raise SystemExit(f"no space: {job['name']} needs {need} bytes in {folder}, where {free} are free")


def sync_folder(folder: str) -> None:
    """Make a rename in it last."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def from_stream(job: Job, installed: Installed, place: Place) -> dict[str, Any]:
    """Take the file from stdin, in the talk that the module describes.

    - job: name, size in bytes, sha256 or None, incoming (folder of partial files)
    - installed: gives the sha256 of a file of that name and size that is in place already, and what gives the result for it
    - place: puts a verified partial file into place, given its path and sha256, and gives the result

    Raises SystemExit with a sentence.
    """
    signal.signal(signal.SIGALRM, lost)
    with locked(job):
        there = installed()
        if there and job["sha256"] == there[0]:
            return there[1]()
        if there and offered(job["size"], lambda: there[0]):
            heard()  # the sender ends its part of the talk the same way in every case
            return there[1]()
        part = Part(job["incoming"], job["name"], job["size"])
        need_room(job, part)
        if there:
            part.restart()
        elif not part.have:
            tell(have=0)
        elif not offered(part.have, part.hash_what_is_there):
            part.restart()
        part.fill(patient_read)
        return place(part.path, part.verified(job["name"], heard()["sha256"], job["sha256"]))


def from_path(job: Job, path: str, installed: Installed, place: Place) -> dict[str, Any]:
    """Take the file from a path on the host; the rest as `from_stream`.

    Without a sha256 in the job a partial file is gone on with when the file at the path begins with the same bytes.
    """
    with open(path, "rb", buffering=0) as source, locked(job):
        before = os.fstat(source.fileno())
        there = installed()
        if there and not job["sha256"]:
            stage(f"{path}: read to compare it with {job['name']} as it is installed")
        if there and there[0] == (job["sha256"] or file_sha256(source.fileno())):
            return there[1]()
        part = resumed(job, lambda count: file_sha256(source.fileno(), count))
        os.lseek(source.fileno(), part.have, os.SEEK_SET)
        progress = Progress(f"copy of {job['name']}", job["size"], part.have, stage)

        def dropped(done: int) -> None:
            os.posix_fadvise(source.fileno(), 0, done, os.POSIX_FADV_DONTNEED)

        def read(count: int) -> bytes:
            progress.at(part.have)
            return source.read(count) or b""

        part.fill(read, dropped)
        if identity(os.stat(path)) != identity(before):
            raise SystemExit(f"{path} was changed while it was copied: run again")
        progress.end()
        return place(part.path, part.verified(path, job["sha256"]))


def from_source(job: Job, content: Callable[[int], Iterator[bytes]], installed: Installed, place: Place) -> dict[str, Any]:
    """Take the file from elsewhere. content: gives its bytes from an offset on; the rest as `from_stream`."""
    with locked(job):
        there = installed()
        if there and there[0] == job["sha256"]:
            return there[1]()
        part = resumed(job)
        progress = Progress(f"download of {job['name']}", job["size"], part.have, stage)
        pieces = content(part.have) if part.have < job["size"] else iter(())

        def read(count: int) -> bytes:
            progress.at(part.have)
            return next(pieces, b"")[:count]

        part.fill(read)
        progress.end()
        return place(part.path, part.verified(job["name"], job["sha256"]))


def resumed(job: Job, begins: Callable[[int], str] | None = None) -> Part:
    """The partial file of a job, with what is there of it when that can be right.

    Whether it was is told by the sum at the end; where that isn't known by `begins`, the sha256 of so many bytes of the source.
    """
    part = Part(job["incoming"], job["name"], job["size"])
    there = part.hash_what_is_there() if part.have and (job["sha256"] or begins) else ""
    if there and (job["sha256"] or (begins and begins(part.have) == there)):
        stage(f"{job['name']} goes on after the {gib(part.have)} that are there")
    else:
        part.restart()
    need_room(job, part)
    return part


def identity(of: os.stat_result) -> dict[str, int]:
    """What tells that a file is still the one that was hashed, without reading it."""
    return {"size": of.st_size, "mtime_ns": of.st_mtime_ns, "inode": of.st_ino}


def file_sha256(fd: int, count: int | None = None) -> str:
    """Of a file's first `count` bytes, by default of all, which are dropped from the page cache as they are read."""
    digest, done = hashlib.sha256(), 0
    os.lseek(fd, 0, os.SEEK_SET)
    with hashing(digest) as feed:
        while block := os.read(fd, BLOCK if count is None else min(BLOCK, count - done)):
            feed(block)
            done += len(block)
            if done % DROP_EVERY < BLOCK:
                os.posix_fadvise(fd, 0, done, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def say(text: str) -> None:
    print(text, flush=True)


def stage(text: str) -> None:
    """The same, marked for wsllama/host/follow.py, which passes on what is marked so."""
    say(f"==> {text}")


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def heard() -> dict[str, Any]:
    signal.alarm(SILENCE_S)
    line = sys.stdin.buffer.readline(4096)
    signal.alarm(0)
    if not line.endswith(b"\n"):
        raise SystemExit("the sender is gone; what came is kept, and the next run goes on from there")
    answer: dict[str, Any] = json.loads(line)
    return answer


def offered(have: int, sha256: Callable[[], str]) -> bool:
    """Whether the sender's file begins with these bytes. Both sides hash them at the same time."""
    tell(have=have)
    tell(sha256=sha256())
    return bool(heard()["from"] == have)


def patient_read(count: int) -> bytes:
    signal.alarm(SILENCE_S)
    block = sys.stdin.buffer.read(count)
    signal.alarm(0)
    return block


def lost(*_: object) -> NoReturn:
    raise SystemExit(f"nothing came for {SILENCE_S} s; what came is kept, and the next run goes on from there")


@contextlib.contextmanager
def one_sentence(about: str) -> Iterator[None]:
    """Turn an error of the system into the one sentence that this host says."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else about
        advice = ": free some space and run again" if error.errno == errno.ENOSPC else ""
        raise SystemExit(f"{where}: {error.strerror or error}{advice}") from None


def main(argument: dict[str, Any]) -> None:
    """Take a plain file.

    - target: path on the host; mode: its permissions; sha256: what it has to be, or None
    - size: bytes that the stream will bring; or path: where the file lies on the host

    The last line on stdout is {"ok", "changed", "file", "sha256", "size"}.
    """
    target = argument["target"]
    folder, name = os.path.split(target)
    with one_sentence(target):
        size = os.stat(argument["path"]).st_size if "path" in argument else argument["size"]
        job = {"name": name, "size": size, "sha256": lower(argument.get("sha256"))}
        job["incoming"] = os.path.join(folder, ".incoming")

        def result(sha256: str, changed: bool) -> dict[str, Any]:
            return {"ok": True, "changed": changed, "file": target, "sha256": sha256, "size": size}

        def installed() -> There:
            if not os.path.lexists(target):
                return None
            if not stat.S_ISREG(os.lstat(target).st_mode):
                raise SystemExit(f"{target} is there and not a plain file: move it away")
            with open(target, "rb") as file:
                if os.fstat(file.fileno()).st_size != size:
                    return None
                found = file_sha256(file.fileno())
            return found, lambda: result(found, False)

        def place(part: str, sha256: str) -> dict[str, Any]:
            os.chmod(part, argument.get("mode", 0o644))
            os.replace(part, target)
            sync_folder(folder)
            return result(sha256, True)

        if "path" in argument:
            tell(**from_path(job, argument["path"], installed, place))
        else:
            tell(**from_stream(job, installed, place))
