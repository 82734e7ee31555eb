"""sha256 of large files on the controller, each read once and dropped from the page cache. What was computed is kept with
what tells that a file is the same still (real path, size, mtime, inode), in `$XDG_CACHE_HOME/wsllama/digests.json`."""

import hashlib
import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from wsllama import whole
from wsllama.host.receive import DROP_EVERY

BLOCK = 4 * 1024 * 1024  # bytes a read
MOST = 500  # files that are remembered; the ones that were hashed last stay


def sha256_of(path: Path | str, progress: Callable[[int, int], None] | None = None,
              cache_dir: Path | None = None) -> str:  # fmt: skip
    """sha256 of a file in lower-case hex, from the cache when the file is the one that was hashed.

    - progress: called with the bytes that were read and the file's size in bytes
    - cache_dir: folder of the cache (default: the user's)

    Raises OSError as open does, and RuntimeError when the file changes while it is read.
    """
    found = known(path, cache_dir)
    if found:
        return found
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        done = 0
        while block := file.read(BLOCK):
            digest.update(block)
            done += len(block)
            if done % DROP_EVERY < BLOCK or done == before.st_size:
                os.posix_fadvise(file.fileno(), 0, done, os.POSIX_FADV_DONTNEED)
            if progress:
                progress(done, before.st_size)
        if identity(before) != identity(os.stat(path)):
            raise RuntimeError(f"{path} was changed while it was read: run again")
    remember(path, before, digest.hexdigest(), cache_dir)
    return digest.hexdigest()


def known(path: Path | str, cache_dir: Path | None = None) -> str | None:
    """The sha256 of a file if it was hashed before and wasn't changed since. Raises OSError when there is none."""
    entry = _load(_file(cache_dir)).get(os.path.realpath(path))
    if isinstance(entry, dict) and entry.get("is") == identity(os.stat(path)):
        found = entry.get("sha256")
        return found if isinstance(found, str) and len(found) == 64 else None
    return None


def path_of(sha256: str, cache_dir: Path | None = None) -> Path | None:
    """A file that was hashed before, has this sha256 and wasn't changed since; None when none is known."""
    for path, entry in _load(_file(cache_dir)).items():
        if isinstance(entry, dict) and entry.get("sha256") == sha256:
            try:
                if known(path, cache_dir) == sha256:
                    return Path(path)
            except OSError:  # it is gone
                continue
    return None


def remember(path: Path | str, hashed: os.stat_result, sha256: str, cache_dir: Path | None = None) -> None:
    """Keep the sha256 of a file that was just read from its start to its end; `hashed` is its stat from before that.

    A cache that can't be written is no error: the file is hashed again next time.
    """
    cache = _file(cache_dir)
    entries = _load(cache)
    entries.pop(os.path.realpath(path), None)
    entries[os.path.realpath(path)] = {"is": identity(hashed), "sha256": sha256}
    for oldest in list(entries)[: max(0, len(entries) - MOST)]:
        del entries[oldest]
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        whole.text(cache, json.dumps(entries, indent=1))
    except OSError:
        return


def _file(cache_dir: Path | None) -> Path:
    if cache_dir is None:
        cache_dir = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wsllama"
    return cache_dir / "digests.json"


def _load(cache: Path) -> dict[str, object]:
    try:
        return dict(_read(cache, *identity(os.stat(cache))))
    except OSError:
        return {}


@lru_cache(maxsize=2)
def _read(cache: Path, *_: int) -> dict[str, object]:
    """The cache's entries, read again when it is another file: a run asks several times for each host."""
    try:
        entries = json.loads(cache.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return entries if isinstance(entries, dict) else {}


def identity(of: os.stat_result) -> list[int]:
    """What tells that a file is the same still."""
    return [of.st_size, of.st_mtime_ns, of.st_ino, of.st_dev]
