"""What is fetched with the pip of this machine, from the index that it is set up for: one fetch at a time, whole or never."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class SourceError(Exception):
    """What is to be fetched can't be had or isn't what was asked for: one sentence."""


def cache_of(kind: str) -> Path:
    """The folder of this user where fetched files of a kind are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wsllama" / kind


@contextmanager
def alone(cache: Path) -> Iterator[None]:
    """Hold the lock of a cache, whose folder is made. Raises OSError when that can't be."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # waiting in the kernel would stop the holder, when both are greenlets of one run
                time.sleep(0.2)
        yield


def write(path: Path, fill: Callable[[io.BufferedWriter], T]) -> T:
    """Write a file aside and rename it, so that its name never stands for half of it.

    fill: writes the bytes; what it returns is returned. Raises OSError.
    """
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with open(descriptor, "wb") as out:
            result = fill(out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
    return result


def sha256_of(path: Path) -> str:
    """sha256 of a file in hex, read from its start to its end. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(
    pins: Sequence[tuple[str, str, str]],
    work: Path,
    env: Mapping[str, str],
    options: Sequence[str],
    files: str,
) -> list[Path]:
    """`pip download` of (package, version, sha256) into `work`, where pip refuses what has another sha256.

    env: the environment of pip. options: more of its options. files: pattern of the names of what comes, one a package.
    Raises SourceError: no network, no pip, another sha256, or what pip says.
    """
    wanted, out = work / "requirements.txt", work / "out"
    wanted.write_text("".join(f"{name}=={version} --hash=sha256:{sha256}\n" for name, version, sha256 in pins))
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "2"]
    what = ["--no-deps", "--require-hashes", *options, "--dest", str(out), "--requirement", wanted.name]
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "download", *quiet, *what],
        cwd=work,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    got = list(out.glob(files)) if out.is_dir() else []
    if ran.returncode == 0 and len(got) == len(pins):
        return got
    named = ", ".join(f"{name} {version}" for name, version, _ in pins)
    raise SourceError(_sentence(named, ran.stdout + ran.stderr))


def _sentence(what: str, said: str) -> str:
    if "No module named pip" in said:
        return f"pip is missing for {sys.executable}, so {what} cannot be fetched; run scripts/setup"
    if "DO NOT MATCH THE HASHES" in said:
        return f"the Python index gave {what} with another sha256 than wsllama.lock has, and it was refused"
    if any(sign in said for sign in ("connection broken", "ConnectionError", "Max retries", "ProxyError", "timed out")):
        return f"the Python index cannot be reached for {what}; check the network and the setting network.proxy"
    last = next((line for line in said.splitlines() if line.startswith("ERROR:")), said.strip()[-300:])
    return f"pip cannot fetch {what}: {last.removeprefix('ERROR:').strip()}"
