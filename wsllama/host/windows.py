"""Runs on the host, a WSL distro: what its Windows side is, and WSL's two files, each written with a way back.

/var/lib/wsllama/windows/
  journal.json   per file: what it was without us, what we made of it, what we set, and since which start of WSL
  profile.json   the profile that was found, so that no run without changes has to start a Windows program for it
  *.bak          each file as it was before our first change; another copy lies beside the file itself
"""

import base64
import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from wsllama.host import interop

STATE = "/var/lib/wsllama/windows"
JOURNAL = f"{STATE}/journal.json"
PROFILE = f"{STATE}/profile.json"
WSLCONF = "/etc/wsl.conf"
STALE_S = 3600  # longer than any write takes
# Folders in C:\Users that belong to no person.
_NOBODY = re.compile(r"public|default( user)?|all users|wdagutilityaccount|defaultuser\d+", re.I)


def side(hint: Mapping[str, Any]) -> dict[str, Any]:
    """The Windows side of this distro. hint: `profile`, the operator's path or None; `windows`, False to leave Windows alone."""
    known, journal = _json(PROFILE), _json(JOURNAL)
    there = interop.find() if hint["windows"] else None
    blocked = interop.blocked() if there else "no drive of Windows is mounted here (is automount off in /etc/wsl.conf?)"
    distro = _distro(blocked) or known.get("distro")
    profile: dict[str, Any] = {"profile": None, "why": None, "candidates": []}
    user = None
    if hint["windows"]:
        profile, blocked = _profile(there, hint["profile"], known if known.get("distro") == distro else {}, blocked)
        user = known.get("user")
        with contextlib.suppress(interop.NoInterop):
            user = user or (_asked(there, "%USERDOMAIN%\\%USERNAME%") if there and not blocked else None)
    path = profile["profile"]
    return {
        **profile,
        "wsl": _is_wsl(),
        "distro": distro,
        "drive": there and there.drive,
        "interop": blocked,
        "profile_windows": there.windows(path) if there and path else None,
        "user": user,
        "wslconfig": _file(f"{path}/.wslconfig") if path else None,
        "wslconf": _file(WSLCONF),
        "seen": _seen(blocked),
        "free_bytes": shutil.disk_usage(path).free if path else None,
        "journal": journal,
        "recorded": known,
    }


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def _is_wsl() -> bool:
    kernel = _text("/proc/sys/kernel/osrelease").lower()
    return "microsoft" in kernel or "wsl" in kernel or os.path.isdir(interop.SOCKETS)


def _distro(blocked: str | None) -> str | None:
    """The distro's name: that of its root on Windows, as in //wsl.localhost/Ubuntu-24.04/."""
    if not blocked and not os.environ.get("WSL_DISTRO_NAME"):
        found = re.match(r"//[^/]+/([^/\n]+)", _answer(["wslpath", "-am", "/"]))
        return found[1] if found else None
    return os.environ.get("WSL_DISTRO_NAME")


def _answer(command: list[str]) -> str:
    """What one of WSL's own Linux programs says; nothing when it fails."""
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    try:
        p = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if p.returncode else interop.decode(p.stdout).strip()


# The profile


def _profile(
    there: interop.Windows | None, given: str | None, known: Mapping[str, Any], blocked: str | None
) -> tuple[dict[str, Any], str | None]:
    """The Windows user's folder: the operator's, the one found before, the one that Windows names, the only one there is.

    Returns profile, why there is none, candidates; and why Windows programs can't be started.
    """
    if given:
        return _judged(there, given), blocked
    if known.get("profile") and not _no_profile(there, known["profile"]):
        return {"profile": known["profile"], "why": None, "candidates": []}, blocked
    if there and not blocked:
        try:
            return _named(there), None
        except interop.NoInterop as e:
            blocked = str(e)
    found = _candidates(there.drive) if there else []
    why = None if len(found) == 1 else blocked
    return {"profile": found[0] if len(found) == 1 else None, "why": why, "candidates": found}, blocked


def _judged(there: interop.Windows | None, given: str) -> dict[str, Any]:
    path = given if given.startswith("/") else there.linux(given) if there else None
    path = os.path.normpath(path) if path else None
    why = _no_profile(there, path) if path else f"{given} is on a drive that is not mounted in this distro"
    return {"profile": None if why else path, "why": why, "candidates": []}


def _named(there: interop.Windows) -> dict[str, Any]:
    """The folder that Windows itself names. /U is UTF-16, so no code page damages a name; /D keeps AutoRun out of the answer."""
    said = _asked(there, "%USERPROFILE%")
    path = there.linux(said) if said else None
    if not path:
        return {"profile": None, "why": f"Windows names {said or 'no folder'} as its user's, which is not here", "candidates": []}
    why = _no_profile(there, path)
    return {"profile": None if why else path, "why": why, "candidates": []}


def _asked(there: interop.Windows, variable: str) -> str | None:
    """The value of variables as cmd.exe knows them. Its banner about UNC paths may stand before."""
    _, out, _ = there.run("cmd.exe", "/U", "/D", "/C", f"echo.{variable}")
    lines = [line.strip() for line in interop.decode(out).splitlines() if line.strip()]
    return lines[-1] if lines and "%" not in lines[-1] else None


def _no_profile(there: interop.Windows | None, path: str) -> str | None:
    """Why a folder is no Windows user's profile: one sentence, or None when it is one."""
    if not os.path.isdir(path):
        return f"there is no folder {path}"
    if not there or not there.windows(path):
        return f"{path} is not on a drive of Windows"
    try:
        names = {name.lower() for name in os.listdir(path)}
    except OSError as e:
        return f"{path} can't be read: {e.strerror}"
    if not names & {"appdata", "ntuser.dat"}:
        return f"{path} is no profile of a Windows user: it holds neither AppData nor NTUSER.DAT"
    return None


def _candidates(drive: str) -> list[str]:
    """Folders that may be a person's; one that can't be read may be one too."""
    root = f"{drive}/Users"
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    there = interop.Windows(drive, {"C": drive})
    paths = [f"{root}/{name}" for name in names if not _NOBODY.fullmatch(name) and os.path.isdir(f"{root}/{name}")]
    return [path for path in paths if "neither" not in (_no_profile(there, path) or "")]


# What is there


def _file(path: str) -> dict[str, Any]:
    """A file's bytes, why it can't be written, its time, and what lies beside it under a name like its own."""
    out: dict[str, Any] = {"path": path, "data": None, "problem": None, "mtime": None, "look_alikes": []}
    with contextlib.suppress(OSError):
        out["look_alikes"] = sorted(n for n in os.listdir(os.path.dirname(path)) if "wsl" in n.lower() and n[-4:] != ".bak")
    try:
        if os.path.isdir(path):
            return {**out, "problem": f"{path} is a folder: move it away"}
        with open(path, "rb") as f:
            out["data"] = base64.b64encode(f.read()).decode()
        status = os.stat(path)
        out["mtime"] = status.st_mtime
        if not status.st_mode & 0o200:
            return {**out, "problem": f"{path} is read-only: take that away (in Windows: attrib -r .wslconfig)"}
        with open(path, "r+b"):  # what holds it on Windows keeps us from this, and changes nothing
            pass
    except FileNotFoundError:
        pass
    except OSError as e:
        out["problem"] = f"{path} can't be opened for writing: {e.strerror}; close the program that holds it, or give it rights"
    return out


def _seen(blocked: str | None) -> dict[str, Any]:
    """What the virtual machine is like, for comparison with what was asked for; sizes in bytes, times in seconds."""
    memory = re.search(r"^MemTotal: +(\d+) kB", _text("/proc/meminfo"), re.M)
    swaps = [line.split() for line in _text("/proc/swaps").splitlines()[1:]]
    booted = re.search(r"^btime (\d+)", _text("/proc/stat"), re.M)
    return {
        "memory": int(memory[1]) * 1024 if memory else 0,
        "swap": sum(int(word[2]) for word in swaps if word[1] == "partition" and "zram" not in word[0]) * 1024,
        "processors": len(re.findall(r"^processor\s*:", _text("/proc/cpuinfo"), re.M)),
        "networking_mode": (None if blocked else _answer(["wslinfo", "--networking-mode"])) or None,
        "boot_id": _text("/proc/sys/kernel/random/boot_id").strip(),
        "booted": int(booted[1]) if booted else 0,
        "init": (_text("/proc/1/stat").rpartition(")")[2].split() or [""] * 20)[19],
        "systemd": os.path.isdir("/run/systemd/system"),
    }


# What is done


def write(path: str, data: bytes) -> None:
    """Put bytes in place at once or not at all; what a link points to is written, not the link. Raises OSError."""
    target = os.path.realpath(path)
    for left in glob.glob(f"{glob.escape(target)}.*.tmp"):  # by a run that was killed here; a younger one may be at work
        with contextlib.suppress(OSError):
            if time.time() - os.stat(left).st_mtime > STALE_S:
                os.unlink(left)
    aside = f"{target}.{os.getpid()}.tmp"
    try:
        with open(aside, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        with open(aside, "rb") as back:
            if back.read() != data:
                raise OSError(None, "what was written reads back differently")
        if os.path.exists(target):
            shutil.copymode(target, aside)
        os.replace(aside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
    with contextlib.suppress(OSError):  # a drive of Windows can't sync a folder
        folder = os.open(os.path.dirname(target), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def record(path: str, document: Any) -> None:
    """Write one of the files of STATE."""
    os.makedirs(STATE, mode=0o755, exist_ok=True)
    write(path, json.dumps(document, indent=1).encode())


def change(files: list[dict[str, Any]]) -> None:
    """Write files of WSL's. Each: `path`; `was`, what the decision was made for; `data`; `entry`, what the journal says of it.

    Backup and journal come first: a run that ends in between has left the file as it was.
    """
    journal = _json(JOURNAL)
    os.makedirs(STATE, mode=0o755, exist_ok=True)
    for file in files:
        path, was = file["path"], _bytes(file["was"])
        there = _there(path)
        if there != was and there == _bytes(file["data"]):
            continue  # another distro of this Windows user had the same wish, and was faster: it is that one's
        if there != was:
            raise SystemExit(f"{path} was changed by somebody else in this moment: run again")
        known = journal.get(path, {})
        kept = known.get("backups") or (_backup(path, was) if was is not None else [])
        journal[path] = {**file["entry"], "backups": kept}
        record(JOURNAL, journal)
        write(path, _bytes(file["data"]) or b"")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _there(path: str) -> bytes | None:
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def _backup(path: str, data: bytes) -> list[str]:
    """Two copies: where its owner finds it, and where uninstall does."""
    dated = f"{os.path.basename(path)}.{time.strftime('%Y-%m-%dT%H%M%S')}.bak"
    paths = [f"{os.path.dirname(os.path.realpath(path))}/{dated}", f"{STATE}/{dated.lstrip('.')}"]
    for copy in paths:
        write(copy, data)
    return paths


def machine(there: interop.Windows) -> dict[str, Any]:
    """The Windows machine's memory in bytes; None when Windows doesn't say."""
    query = "(Get-CimInstance Win32_ComputerSystem).TotalPhysicalMemory"
    powershell = "WindowsPowerShell/v1.0/powershell.exe"
    try:
        _, out, _ = there.run(powershell, "-NoProfile", "-NonInteractive", "-Command", query, timeout=60)
    except interop.NoInterop:
        return {"memory": None}
    found = re.fullmatch(r"\s*(\d+)\s*", interop.decode(out))
    return {"memory": int(found[1]) if found else None}


def wsl_exe(there: interop.Windows) -> str:
    """WSL's own program; that of System32 is a stand-in that fails where nobody is logged in (WSL#9231)."""
    path = f"{there.drive}/Program Files/WSL/wsl.exe"
    return path if os.path.exists(path) else f"{there.system}/wsl.exe"


def running(there: interop.Windows) -> dict[str, Any]:
    """Names of the distros that run: what `wsl --shutdown` ends."""
    code, out, also = there.run(wsl_exe(there), "-l", "-q", "--running")  # with --verbose it has words in Windows' language
    if code:
        raise interop.NoInterop(f"wsl.exe does not say what runs: {' '.join(interop.decode(also or out).split())}")
    return {"running": [name.strip() for name in interop.decode(out).splitlines() if name.strip()]}


def restart(there: interop.Windows, distro: str) -> None:
    """End WSL, and start this distro again, from a console of Windows' own that outlives WSL; returns at once."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", distro):
        raise SystemExit(f"the distro's name {distro} can't be given to cmd.exe safely: run `wsl --shutdown` in Windows")
    again = f"wsl.exe --shutdown & wsl.exe -d {distro} -u root --exec /bin/true"
    there.run("cmd.exe", "/D", "/C", "start", "wsllama restart", "/MIN", "cmd.exe", "/D", "/C", again, timeout=20)


def main(argument: Mapping[str, Any]) -> None:
    try:
        if "record" in argument:
            record(PROFILE, argument["record"])
        if "files" in argument:
            change(argument["files"])
        there = interop.find()
        if there and argument.get("ask") == "machine":
            print(json.dumps(machine(there)))
        if there and argument.get("ask") == "running":
            print(json.dumps(running(there)))
        if there and argument.get("ask") == "restart":
            restart(there, argument["distro"])
    except interop.NoInterop as e:
        raise SystemExit(str(e)) from None
    except OSError as e:
        raise SystemExit(f"{e.filename or 'a file of WSL'} can't be written: {e.strerror}") from None
