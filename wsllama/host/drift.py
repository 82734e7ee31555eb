"""Runs on the host: what is there of a release, its unit and its process, beside what the probe tells. It changes nothing.

The last line is {"now": what the probe says, "seen": the rest}; wsllama/domain/drift.py compares.
"""

import grp
import json
import os
import pwd
import re
import socket
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from wsllama.host import probe

SHOWN = "LoadState,ActiveState,UnitFileState,FragmentPath,DropInPaths,MainPID"


def text(path: str) -> str | None:
    """Of a file, None when it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return None


def link(path: str) -> str | None:
    """What a link leads to; None when it is none."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def unit(name: str) -> dict[str, str]:
    p = subprocess.run(["systemctl", "show", "-p", SHOWN, name], stdout=subprocess.PIPE, text=True)
    return dict(line.split("=", 1) for line in p.stdout.splitlines() if "=" in line)


def release(folder: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """What is in a release's folder: sums of the files and targets of the links that its record names, and texts."""
    return {
        "record": known or None,
        "accepted": os.path.exists(os.path.join(folder, "baseline.json")),
        "files": {name: sum_of_small(os.path.join(folder, name)) for name in known.get("sha256", {})},
        "links": {name: link(os.path.join(folder, name)) for name in known.get("links", {})},
        "texts": {name: text(os.path.join(folder, name)) for name in ("args", "env", "unit")},
    }


def sum_of_small(path: str) -> str | None:
    seen = probe.files({path: None})[path] or {}
    return seen.get("sha256")


def process(pid: int) -> dict[str, Any] | None:
    """What runs under a process id: program, arguments, environment, user, and the addresses that it listens on."""
    folder = f"/proc/{pid}"
    exe, words, environment = (link(f"{folder}/exe"), text(f"{folder}/cmdline"), text(f"{folder}/environ"))
    if not pid or exe is None or not words:
        return None
    return {
        "pid": pid,
        "exe": exe,
        "argv": words.rstrip("\0").split("\0"),
        "environment": dict(entry.split("=", 1) for entry in (environment or "").split("\0") if "=" in entry),
        "listens": sorted(listens(pid)),
    }


def listens(pid: int) -> Iterator[tuple[str, int]]:
    """Address and port of each listening socket of a process."""
    mine = {link(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    for port, address, inode in probe._listeners():
        if f"socket:[{inode}]" in mine:
            yield readable(address), port


def readable(address: str) -> str:
    """An address as the kernel's tables have it (words in the machine's order) as people write it."""
    if address == "*":
        return address
    swapped = b"".join(bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8))
    return socket.inet_ntop(socket.AF_INET if len(swapped) == 4 else socket.AF_INET6, swapped)


def servers(own: str) -> list[dict[str, Any]]:
    """Processes that run a llama-server outside of our unit."""
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        exe = link(f"/proc/{pid}/exe") or ""
        if os.path.basename(exe).split(" ")[0] == "llama-server" and f"/{own}" not in (text(f"/proc/{pid}/cgroup") or ""):
            out.append({"pid": int(pid), "exe": exe})
    return sorted(out, key=lambda one: one["pid"])


def user(name: str) -> dict[str, Any] | None:
    """Groups beside the user's own, and whether a password lets it in."""
    try:
        own = pwd.getpwnam(name)
    except KeyError:
        return None
    shadow = re.search(rf"^{re.escape(name)}:([^:]*):", text("/etc/shadow") or "", re.M)
    groups = [g.gr_name for g in grp.getgrall() if name in g.gr_mem and g.gr_gid != own.pw_gid]
    return {"groups": sorted(groups), "password": bool(shadow and not shadow[1].startswith(("!", "*")))}


def held(names: Iterable[str]) -> list[str]:
    """Those of the packages that apt may not change."""
    status = text("/var/lib/dpkg/status") or ""
    return sorted(set(re.findall(r"^Package: (\S+)\nStatus: hold ", status, re.M)) & set(names))


def build(folder: str, deep: bool) -> dict[str, Any]:
    """How a build's folder differs from its record; deep: also every file's bytes."""
    record = probe._json(os.path.join(folder, "build.json"))
    files = record.get("files") if isinstance(record, dict) else None
    if not isinstance(files, dict):
        return {"recorded": False, "differs": {}, "versions": {}, "sums": {}}
    differs: dict[str, str] = {}
    for name, made in files.items():
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            differs[name] = "is gone"
        elif os.path.getsize(path) != made["size"]:
            differs[name] = f"has {os.path.getsize(path)} bytes, not {made['size']}"
        elif deep and sum_of(path) != made["sha256"]:
            differs[name] = "has other bytes"
    there = {os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names}
    differs.update(dict.fromkeys(there - {"build.json", *files}, "is not of the build"))
    sums = {name: made["sha256"] for name, made in files.items()}
    return {"recorded": True, "differs": differs, "versions": record.get("inputs", {}).get("versions", {}), "sums": sums}


def sum_of(path: str) -> str:
    from wsllama.host import deep  # compiled only where bytes are to be read

    return deep.sha256(path, os.path.basename(path))


def writable(folders: Iterable[str]) -> dict[str, str]:
    """Path -> mode and owner, below the folders, of what somebody else than root may write."""
    out = {}
    for folder in folders:
        for where, _, names in os.walk(folder):
            for path in (where, *(os.path.join(where, name) for name in names)):
                s = os.lstat(path)
                if not stat.S_ISLNK(s.st_mode) and (s.st_uid != 0 or s.st_mode & 0o022):
                    out[path] = f"mode {stat.S_IMODE(s.st_mode):o}, owner {probe._name(pwd.getpwuid, s.st_uid)}"
    return out


def models(root: str, files: Iterable[str], deep: bool) -> dict[str, dict[str, Any]]:
    """File -> its stamp with whether it is as it was verified, by a look; deep: `sha256_now`, of its bytes."""
    stamps, out = probe.models([root])[root], {}
    for file in files:
        path = os.path.join(root, file)
        out[file] = {**stamps.get(file, {}), "stamp": file in stamps, "there": os.path.exists(path)}
        if deep and out[file]["there"] and file in stamps:
            out[file]["sha256_now"] = sum_of(path)
    return out


def look(a: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but the probe's part."""
    current = os.path.join(a["root"], "current")
    folder = os.path.realpath(current)
    record = probe._json(os.path.join(folder, "release.json")) or {}
    of, shown = record.get("model", {}), unit(a["unit"])
    built = os.path.join(a["builds"], record["build"]) if record.get("build") else ""
    drop_ins = [path for path in shown.get("DropInPaths", "").split() if not path.startswith(("/usr/lib/", "/lib/"))]
    return {
        "links": {name: link(os.path.join(a["root"], name)) for name in ("current", "last-good")},
        "release": release(folder, record),
        "unit": shown,
        "unit_text": text(a["unit_file"]),
        "drop_ins": {path: text(path) for path in drop_ins},
        "process": process(int(shown.get("MainPID") or 0)),
        "program": os.path.realpath(os.path.join(current, "build", "bin", "llama-server")),
        "others": servers(a["unit"]),
        "user": user(a["user"]),
        "held": held(a["looks"].get("packages", ())),
        "build": build(built, a["deep"]) if built else None,
        "models": models(a["models"], [of["file"], *of.get("others", ())], a["deep"]) if of else {},
        "writable": writable([f for f in (folder, built) if f and os.path.isdir(f)]) if record else {},
    }


def main(a: dict[str, Any]) -> None:
    """looks (the probe's); root, builds, models, unit, unit_file, user (where things are); deep (read every byte)."""
    try:
        now = {facet: getattr(probe, facet)(keys) for facet, keys in a["looks"].items() if keys}
        print(json.dumps({"now": now, "seen": look(a)}))
    except PermissionError as e:
        raise SystemExit(f"{e.filename} needs root: log in as root, or set _sudo to True for this host") from None
    except OSError as e:
        raise SystemExit(f"{e.filename or 'the host'} can't be read: {e.strerror}") from None
