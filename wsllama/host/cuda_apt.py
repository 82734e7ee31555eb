"""Runs on the host: installs the CUDA toolkit's packages from NVIDIA's repository with apt, in exact versions.

SOURCES is written once the repository could be read and its signature was right: a source that can't be read would fail
every later `apt-get update` of the machine. What may not be installed is told apt by its preferences, written before.
"""

import fcntl
import fnmatch
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
LOCKED = re.compile(r"Could not get lock|Unable to (acquire|lock)|is another process using it")
UNSIGNED = re.compile(
    r"NO_PUBKEY [0-9A-F]+|(?:EXPKEYSIG|EXPSIG|REVKEYSIG|BADSIG|ERRSIG) [0-9A-F]+|Missing key [0-9A-F]+|is not signed"
    r"|no longer signed|invalid signature|signature could not be verified|Release file for \S+ is expired|Not live until",
    re.I,
)


class AptError(Exception):
    """One sentence: what failed, where, what to do."""


def main(argument: dict[str, Any]) -> None:
    """Install `packages` unless they are there; the last line is {"changed", "versions": package -> version}.

    argument: packages (name -> exact version, or null for the newest); compiler (path of a file that they bring); sources
    (path) and text (its content, which names the repository); uri (of it); forbidden (patterns of packages that apt's
    preferences refuse); lock_limit_s (seconds to wait for others that use apt).
    """
    try:
        print(json.dumps(install(argument)), flush=True)
    except (AptError, OSError) as e:
        sys.exit(f"cannot install the CUDA toolkit with apt: {e}")


def stage(text: str) -> None:
    print(f"==> {text}", flush=True)


def install(a: dict[str, Any]) -> dict[str, Any]:
    wanted: dict[str, str | None] = a["packages"]
    lacks = missing(wanted)
    if changed := bool(lacks) or not os.path.exists(a["compiler"]):
        stage(f"read {a['uri']}")
        known = read(a)
        if absent := [sentence(name, v, known[name]) for name, v in wanted.items() if not there(v, known[name])]:
            raise AptError(f"{a['uri']} has {'; and '.join(absent)}: take what is there, or set cuda.version to another release")
    write(a["sources"], a["text"])
    if changed:
        chosen = [f"{name}={v}" if v else name for name, v in wanted.items()]
        stage(f"install {' '.join(chosen)}")
        again = [] if lacks else ["--reinstall"]
        status, text = apt(a, ["install", "--no-install-recommends", "--allow-downgrades", "--no-remove", *again, *chosen])
        if status:
            raise AptError(why_not(text, a))
        if left := [*missing(wanted), *([] if os.path.exists(a["compiler"]) else [a["compiler"]])]:
            raise AptError(f"apt says that all went well, but {' '.join(left)} is not there")
    return {"changed": changed, "versions": versions(list(wanted))}


def versions(names: Sequence[str]) -> dict[str, str]:
    p = run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n", *names])
    lines = [line.split(" ") for line in p[1].splitlines()]
    return {word[1]: word[2] for word in lines if len(word) == 3 and word[0] == "installed"}


def missing(wanted: Mapping[str, str | None]) -> list[str]:
    found = versions(list(wanted))
    return [name for name, version in wanted.items() if name not in found or version not in (None, found[name])]


def read(a: dict[str, Any]) -> dict[str, list[str]]:
    """Package -> the versions that the repository has, newest first; read by a file aside, without apt's other sources."""
    with tempfile.TemporaryDirectory(prefix="wsllama-") as aside:
        os.chmod(aside, 0o755)
        path = os.path.join(aside, "cuda.sources")
        write(path, a["text"])
        only = {"Dir::Etc::SourceList": path, "Dir::Etc::SourceParts": "-", "APT::Get::List-Cleanup": "0"}
        options = [word for key, value in only.items() for word in ("-o", f"{key}={value}")]
        status, text = apt(a, [*options, "-o", "APT::Update::Error-Mode=any", "update"])
        if status:
            raise AptError(unread(text, a["uri"]))
        lines = run(["apt-cache", *options, "madison", *a["packages"]])[1].splitlines()
    found: dict[str, list[str]] = {name: [] for name in a["packages"]}
    for line in lines:
        name, version, _ = (part.strip() for part in f"{line}||".split("|")[:3])
        if name in found:
            found[name].append(version)
    return found


def unread(text: str, uri: str) -> str:
    if unsigned := UNSIGNED.search(text):
        return f"{uri} is not signed with NVIDIA's key ({unsigned[0]}), so nothing of it is taken; check cuda.repository"
    if "does not have a Release file" in text:
        return f"{uri} is no apt repository; check cuda.repository"
    return f"{uri} cannot be read ({first_error(text)}); check the network and the setting network.proxy"


def there(version: str | None, offers: Sequence[str]) -> bool:
    return version in offers if version else bool(offers)


def sentence(name: str, version: str | None, offers: Sequence[str]) -> str:
    if not offers:
        return f"no package {name}"
    return f"no {name} {version}, only {', '.join(offers)}"


def apt(a: dict[str, Any], words: Sequence[str]) -> tuple[int, str]:
    """Status and output of apt-get, once nobody else uses apt: only its install waits by itself, and says nothing of it."""
    until = time.monotonic() + float(a["lock_limit_s"])
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "NEEDRESTART_SUSPEND": "1"}
    waits, repaired = ["-o", "DPkg::Lock::Timeout={}".format(a["lock_limit_s"])], False
    while True:
        wait(until)
        status, text = run(["apt-get", "-q", "-y", *waits, *words], environment)
        print(text, flush=True)
        if status and "dpkg --configure -a" in text and not repaired:  # the machine was switched off while it installed
            repaired = True
            print(run(["dpkg", "--configure", "-a"], environment)[1], flush=True)
        elif not (status and LOCKED.search(text)) or time.monotonic() > until:
            return status, text


def wait(until: float) -> None:
    said = ""
    while holder := holds():
        if holder != said:
            stage(f"wait for {holder}")
        if time.monotonic() > until:
            raise AptError(f"others use it for too long: {holder}; wait for its end or stop it, and run again")
        said = holder
        time.sleep(0.5)


def holds() -> str:
    """Who holds one of apt's locks, in words; '' when nobody does."""
    for path in LOCKS:
        try:
            with open(path, "rb") as f:  # struct flock: type, whence, start, length, process
                asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = struct.unpack("hhqqi", fcntl.fcntl(f, fcntl.F_GETLK, asked))
        except FileNotFoundError:
            continue
        if kind != fcntl.F_UNLCK:
            return f"{name_of(pid)} (process {pid}), which holds {path}"
    return ""


def name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as f:
            return f.read().strip()
    except OSError:
        return "another program"


def why_not(text: str, a: dict[str, Any]) -> str:
    """One sentence out of what apt-get install said."""
    pairs = [(m[1] or "", m[2]) for m in re.finditer(r"(?:^ *(\S+) : |^ +)(?:Pre)?Depends: (\S+)", text, re.M)]
    if pairs:
        asker = next(name for name, _ in pairs if name)
        for _, needed in pairs:
            if any(fnmatch.fnmatchcase(needed, pattern) for pattern in a["forbidden"]):
                return f"{asker} depends on {needed}, a Linux driver, which would hide Windows' own; take another version of it"
        return f"{asker} depends on {pairs[0][1]}, which apt cannot install: {first_error(text)}"
    if re.search(r"No space left on device|enough free space", text):
        return "the disk is full; make room and run again"
    return first_error(text)


def first_error(text: str) -> str:
    lines = [line[3:] for line in text.splitlines() if line.startswith("E: ")]
    lines += [line.strip() for line in text.splitlines() if line.strip()][-1:]
    return lines[0][:300] if lines else "it said nothing"


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    p = subprocess.run(command, env=environment or {**os.environ, "LC_ALL": "C.UTF-8"}, **streams)
    return p.returncode, p.stdout.decode("utf-8", "replace")


def write(path: str, text: str) -> None:
    try:
        with open(path, encoding="utf-8") as f:
            if f.read() == text:
                return
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    aside = path + ".wsllama-new"  # apt passes over files with another ending
    with open(aside, "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.chmod(aside, 0o644)
    os.replace(aside, path)
