"""Small helpers that every part of the lab uses: run a command, say something, install what is missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

# command -> Debian package that brings it
NEEDED = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "nft": "nftables",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "unshare": "util-linux",
}


class LabError(Exception):
    """What went wrong, where, and what to do, in one sentence."""


def say(message: str) -> None:
    """Print one progress line on stderr, so that stdout stays free for results."""
    print(f"lab: {message}", file=sys.stderr, flush=True)


def run(
    argv: Sequence[str | Path], *, timeout: float = 600, check: bool = True, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command quietly.

    + argv: the command, never a shell string
    + timeout: seconds
    + check: raise when the exit code is not 0
    + env: variables on top of this process's own

    Raises LabError when the command is missing, takes too long, or (with check) fails; the sentence ends with its
    last line of output.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env={**os.environ, **env} if env else None,
        )
    except FileNotFoundError as error:
        raise LabError(f"The command {words[0]} is missing on this machine: install it and try again.") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{' '.join(words)}` did not end within {timeout:.0f} s.") from error
    if check and done.returncode != 0:
        raise LabError(failure(words, done))
    return done


def failure(words: Sequence[str], done: subprocess.CompletedProcess[str]) -> str:
    """One sentence about a command that failed, with the last line that it printed."""
    lines = (done.stderr.strip() or done.stdout.strip() or "it printed nothing").splitlines()
    return f"`{' '.join(words)}` ended with exit code {done.returncode}: {lines[-1]}"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file atomically: temporary name in the same folder, fsync, rename. Makes missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as stream:
        os.fchmod(stream.fileno(), mode)  # the umask must not decide
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(path)


def require_root() -> None:
    """Raise LabError unless this process is root: namespaces, mounts and bridges need it."""
    if os.geteuid() != 0:
        raise LabError("The lab starts systemd machines and needs root: run the same command with sudo.")


def install_missing(keyring: Path, say: Callable[[str], None] = say) -> None:
    """Install by apt-get what the lab needs and this machine lacks; nothing is done when all is there.

    + keyring: the archive keyring that debootstrap verifies with; its package has the file's name

    Raises LabError when there is no apt-get or it fails.
    """
    packages = {package for command, package in NEEDED.items() if not shutil.which(command)}
    if not keyring.exists():
        # Debian names the package after the file; Ubuntu's file is ubuntu-archive-keyring.gpg of ubuntu-keyring
        packages.add("ubuntu-keyring" if keyring.stem.startswith("ubuntu") else keyring.stem)
    if not packages:
        return
    say(f"installing {', '.join(sorted(packages))} with apt-get (once) …")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    run(["apt-get", "-q", *wait, "update"], timeout=600, env=quiet)
    run(["apt-get", "-qy", *wait, "install", "--no-install-recommends", *sorted(packages)], timeout=1200, env=quiet)
