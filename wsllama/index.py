"""What is fetched with the pip of this machine, from the index that it is set up for: one fetch at a time, whole or never."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


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
    lines = [f"{name}=={version} --hash=sha256:{sha256}" for name, version, sha256 in pins]
    return pip_download(lines, work, env, options, files)


def pip_download(lines: Sequence[str], work: Path, env: Mapping[str, str], options: Sequence[str], files: str) -> list[Path]:
    """The same of lines of a requirements file, each with its hashes."""
    wanted, out = work / "requirements.txt", work / "out"
    wanted.write_text("".join(f"{line}\n" for line in lines))
    what = ["--no-deps", "--require-hashes", *options, "--dest", str(out), "--requirement", wanted.name]
    said = pip("download", what, work, env)
    got = list(out.glob(files)) if out.is_dir() else []
    if said is None and len(got) == len(lines):
        return got
    named = ", ".join(line.split()[0].replace("==", " ") for line in lines)
    raise SourceError(_sentence(named, said or ""))


def pip(verb: str, words: Sequence[str], work: Path, env: Mapping[str, str]) -> str | None:
    """Run this machine's pip in `work`; None, or what it said when it failed."""
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "2"]
    ran = subprocess.run(
        [sys.executable, "-m", "pip", verb, *quiet, *words],
        cwd=work,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    return ran.stdout + ran.stderr if ran.returncode else None


def _sentence(what: str, said: str) -> str:
    if "No module named pip" in said:
        return f"pip is missing for {sys.executable}, so {what} cannot be fetched; run scripts/setup"
    if "DO NOT MATCH THE HASHES" in said:
        return f"the Python index gave {what} with another sha256 than wsllama.lock has, and it was refused"
    if any(sign in said for sign in ("connection broken", "ConnectionError", "Max retries", "ProxyError", "timed out")):
        return f"the Python index cannot be reached for {what}; check the network and the setting network.proxy"
    last = next((line for line in said.splitlines() if line.startswith("ERROR:")), said.strip()[-300:])
    return f"pip cannot fetch {what}: {last.removeprefix('ERROR:').strip()}"
