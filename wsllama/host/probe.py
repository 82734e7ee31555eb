"""Runs on the host: says what the host is, facet by facet, in one JSON line. Each function is one facet: keys in, keys out.

`models`, `builds` and `releases` judge by cheap looks (stat against a record that was made when the bytes were verified).
"""

import fcntl
import glob
import grp
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from wsllama.domain import spelling

Facet = dict[str, Any]

SMALL = 1 << 20  # configuration files are hashed; what is larger than this in bytes isn't one


def _name(table: Callable[[int], Sequence[Any]], number: int) -> str:
    try:
        return str(table(number)[0])
    except KeyError:
        return str(number)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def _json(path: str) -> Any:
    try:
        return json.loads(_text(path) or "null")
    except ValueError:
        return None


def files(paths: Mapping[str, str | None]) -> Facet:
    out: Facet = {}
    for path, known in paths.items():
        try:
            s = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            out[path] = None
            continue
        d: dict[str, Any] = {
            "mode": format(stat.S_IMODE(s.st_mode), "o"),
            "user": _name(pwd.getpwuid, s.st_uid),
            "group": _name(grp.getgrgid, s.st_gid),
            "size": s.st_size,
            "mtime_ns": s.st_mtime_ns,
        }
        if stat.S_ISLNK(s.st_mode):
            d.update(kind="link", target=os.readlink(path))
        elif stat.S_ISDIR(s.st_mode):
            d.update(kind="directory")
        elif stat.S_ISREG(s.st_mode):
            d.update(kind="file")
            if s.st_size <= SMALL:
                with open(path, "rb") as f:
                    data = f.read()
                d["sha256"] = hashlib.sha256(data).hexdigest()
                if known and known != d["sha256"] and len(data) < 65536:  # for --diff
                    d["text"] = data.decode("utf-8", "replace")
        else:
            d.update(kind="other")
        out[path] = d
    return out


def originals(paths: Iterable[str]) -> Facet:
    """Files that are copied from: what tells that one is the same still, links followed."""
    out: Facet = dict.fromkeys(paths)
    for path in paths:
        here, why = located(path)
        try:
            s = os.stat(here)
        except OSError:
            out[path] = {"why": why} if why else None
            continue
        if stat.S_ISREG(s.st_mode):
            out[path] = {"path": os.path.realpath(here), "size": s.st_size, "mtime_ns": s.st_mtime_ns, "inode": s.st_ino}
    return out


def located(path: str) -> tuple[str, str]:
    """Where a path that may be spelled as Windows does is here, and why it can't be read, if it can't."""
    if not spelling.is_windows(path):
        return path, ""
    from wsllama.host import interop  # compiled only where it is asked for

    here = interop.find()
    return spelling.linux(path, here.drives if here else {}, dict(_shares()))


def _shares() -> Iterator[tuple[str, str]]:
    for line in _text("/proc/mounts").splitlines():
        device, point = (re.sub(r"\\([0-7]{3})", lambda o: chr(int(o[1], 8)), word) for word in line.split()[:2])
        if device.startswith(("//", "\\\\")):
            yield device, point


def readable(path: str) -> str:
    """The same for a program that has to read it. Raises SystemExit."""
    here, why = located(path)
    if why:
        raise SystemExit(why)
    return here


def packages(names: Iterable[str]) -> Facet:
    """Version of each installed package, from dpkg's own table: starting dpkg-query costs more than reading it."""
    out: Facet = dict.fromkeys(names)
    out.update((name, version) for name, version in _installed() if name in out)
    return out


def _installed() -> Iterator[tuple[str, str]]:
    with open("/var/lib/dpkg/status", "rb") as f:
        status = f.read()
    for package in status.split(b"\n\n"):
        fields = dict(re.findall(rb"^(Package|Status|Version): (.*)$", package, re.M))
        if fields.get(b"Status", b"").endswith(b" installed"):
            yield fields[b"Package"].decode(), fields[b"Version"].decode()


def users(names: Iterable[str]) -> Facet:
    out: Facet = {}
    for name in names:
        try:
            p = pwd.getpwnam(name)
            out[name] = {"group": _name(grp.getgrgid, p.pw_gid), "home": p.pw_dir, "shell": p.pw_shell}
        except KeyError:
            out[name] = None
    return out


def units(names: Iterable[str]) -> Facet:
    wanted = "Id,LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,InvocationID,MainPID,Result,NRestarts"
    p = subprocess.run(["systemctl", "show", "-p", wanted, *names], stdout=subprocess.PIPE, text=True)
    blocks = [dict(line.split("=", 1) for line in b.splitlines() if line) for b in p.stdout.strip().split("\n\n")]
    return dict(zip(names, blocks, strict=False))


def stamps(paths: Iterable[str]) -> Facet:
    return {path: _text(path).strip() or None for path in paths}


def disk(paths: Iterable[str]) -> Facet:
    """Free bytes on the file system that each path is on, or will be."""
    out = {}
    for path in paths:
        there = path
        while not os.path.exists(there):
            there = os.path.dirname(there)
        out[path] = shutil.disk_usage(there).free
    return out


def _listeners() -> Iterator[tuple[int, str, str]]:
    """Inode and address of each listening TCP socket, from the kernel's own tables."""
    for table, any_address in (("/proc/net/tcp", "00000000"), ("/proc/net/tcp6", "0" * 32)):
        for line in _text(table).splitlines()[1:]:
            word = line.split()
            if word[3] == "0A":
                address, port = word[1].split(":")
                yield int(port, 16), "*" if address == any_address else address, word[9]


def ports(numbers: Iterable[str]) -> Facet:
    """Who listens on a port: the unit or the program's name; None when nobody does."""
    out: Facet = dict.fromkeys(numbers)
    for port, _, inode in _listeners():
        if str(port) in out and out[str(port)] is None:
            out[str(port)] = _owner(f"socket:[{inode}]") or "another program"
    return out


def _owner(socket: str) -> str | None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if any(os.readlink(f"/proc/{pid}/fd/{fd}") == socket for fd in os.listdir(f"/proc/{pid}/fd")):
                unit = re.search(r"/([^/]+\.service)$", _text(f"/proc/{pid}/cgroup"), re.M)
                return unit[1] if unit else "{} (pid {})".format(_text(f"/proc/{pid}/comm").strip(), pid)
        except OSError:  # it ended meanwhile
            continue
    return None


def system(keys: Iterable[str]) -> Facet:
    release = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', _text("/etc/os-release"), re.M))
    memory = dict(re.findall(r"^(\w+): +(\d+) kB", _text("/proc/meminfo"), re.M))
    cpu = re.search(r"^(?:flags|Features)\s*: (.*)$", _text("/proc/cpuinfo"), re.M)
    model = re.search(r"^model name\s*: (.*)$", _text("/proc/cpuinfo"), re.M)
    kernel = _text("/proc/sys/kernel/osrelease").strip()
    traces = [
        name
        for name, there in (
            (f"kernel release {kernel}", "microsoft" in kernel.lower() or "wsl" in kernel.lower()),
            ("/run/WSL", os.path.isdir("/run/WSL")),
            ("/dev/dxg", os.path.exists("/dev/dxg")),
        )
        if there
    ]
    found = {
        "systemd": os.path.isdir("/run/systemd/system"),
        "wsl": traces,
        "kernel": kernel,
        "distro": "{}-{}".format(release.get("ID", "unknown"), release.get("VERSION_ID", "unknown")),
        "codename": release.get("VERSION_CODENAME", ""),
        "arch": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": {"model": model[1] if model else "", "flags": sorted(cpu[1].split()) if cpu else []},
        "memory_total": int(memory.get("MemTotal", 0)) * 1024,
        "memory_available": int(memory.get("MemAvailable", 0)) * 1024,
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
    }
    return {key: found[key] for key in keys}


def _same(path: str, record: Mapping[str, int]) -> bool:
    """Whether the file is still the one that the record was made of: no byte of it is read."""
    try:
        s = os.stat(path)
    except OSError:
        return False
    return all(getattr(s, "st_" + name) == record[name] for name in ("size", "mtime_ns", "ino") if name in record)


def builds(roots: Iterable[str]) -> Facet:
    """Build id -> what its record says, when everything that was installed is still there in its size; else None."""
    return {root: {entry: _build(os.path.join(root, entry)) for entry in _folders(root, "build.json")} for root in roots}


def _folders(root: str, holds: str) -> list[str]:
    """Folders in `root` that hold such a file, but for the hidden ones, which are not finished."""
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    return [n for n in names if not n.startswith(".") and os.path.exists(os.path.join(root, n, holds))]


def _build(folder: str) -> dict[str, Any] | None:
    path = os.path.join(folder, "build.json")
    try:
        record, made = _json(path), os.stat(path)
        whole = all(_same(os.path.join(folder, name), {"size": f["size"]}) for name, f in record["files"].items())
        known = {"commit": record["commit"], "version": record["version"], "made": [made.st_ino, made.st_mtime_ns]}
    except (OSError, KeyError, TypeError, AttributeError):
        return None
    return known if whole else None


def models(roots: Iterable[str]) -> Facet:
    """Folder/file -> its stamp, and whether the file is still the one that was verified. Nothing without a whole stamp.

    awaited_s: seconds since a run installed it that has not switched to it yet; None when it has.
    """
    return {root: dict(_models(root)) for root in roots}


def incoming(roots: Iterable[str]) -> Facet:
    """Each file that wsllama/host/model.py has begun below a root, or that waits for the rest of its model."""
    out: Facet = {}
    for root in roots:
        folder = os.path.join(root, ".incoming")
        names = [n for n in os.listdir(folder) if n.endswith((".part", ".whole"))] if os.path.isdir(folder) else []
        seen = {name: _unfinished(folder, name) for name in sorted(names)}
        out[root] = {name: file for name, file in seen.items() if file}
    return out


def _unfinished(folder: str, name: str) -> dict[str, Any] | None:
    """Bytes of a file, seconds since it was written to, and whether a run is at it; None when one has just renamed it."""
    try:
        s = os.stat(os.path.join(folder, name))
    except OSError:
        return None
    return {"size": s.st_size, "age_s": _age(s), "busy": _locked(lock_of(os.path.join(folder, name)))}


def lock_of(path: str) -> str:
    """The lock that who writes an unfinished file holds (wsllama/host/receive.py)."""
    return re.sub(r"-(\d+\.part|[0-9a-f]{64}\.whole)$", "", path) + ".lock"


def _locked(path: str) -> bool:
    try:
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _age(s: os.stat_result) -> int:
    """Seconds since a file was written to."""
    return int(time.time() - s.st_mtime)


def _models(root: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for folder in _folders(root, ""):
        for name in sorted(os.listdir(os.path.join(root, folder))):
            path = os.path.join(root, folder, name)
            stamp = _json(path) if name.endswith(".stamp") else None
            if isinstance(stamp, dict) and {"size", "mtime_ns", "inode", "sha256", "source"} <= set(stamp):
                seen = {**stamp, **_as_stamped(path[: -len(".stamp")], stamp), "awaited_s": _awaited(os.path.join(root, folder))}
                yield f"{folder}/{name[: -len('.stamp')]}", seen


def _awaited(folder: str) -> int | None:
    try:
        return _age(os.stat(os.path.join(folder, ".awaited")))
    except FileNotFoundError:
        return None


def _as_stamped(path: str, stamp: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a file is still the one that was verified, and who may read it: one look, no byte of it."""
    try:
        s = os.stat(path)
    except OSError:
        return {"intact": False, "mode": None, "user": None, "group": None}
    return {
        "intact": (s.st_size, s.st_mtime_ns, s.st_ino) == (stamp["size"], stamp["mtime_ns"], stamp["inode"]),
        "mode": format(stat.S_IMODE(s.st_mode), "o"),
        "user": _name(pwd.getpwuid, s.st_uid),
        "group": _name(grp.getgrgid, s.st_gid),
    }


# What a release tells of itself.
RECORDED = ("digest", "model", "server", "gpu", "build")


def _number(name: str) -> bool:
    """Whether it is a number as releases have it: str.isdigit is also true of a superscript two, which int refuses."""
    return re.fullmatch(r"[1-9][0-9]*", name) is not None


def releases(roots: Iterable[str]) -> Facet:
    """Number -> digest of each whole release, and which number `current` and `last-good` name."""
    out = {}
    for root in roots:
        folder, found = os.path.join(root, "releases"), {}
        for entry in os.listdir(folder) if os.path.isdir(folder) else ():
            record = _json(os.path.join(folder, entry, "release.json")) if _number(entry) else None
            if record and _whole(os.path.join(folder, entry), record):
                accepted = os.path.exists(os.path.join(folder, entry, "baseline.json"))
                told = {**{key: record[key] for key in RECORDED}, "plan": record.get("plan"), "stage": record.get("stage")}
                found[entry] = {"accepted": accepted, **told, "final": record.get("final", True)}
        out[root] = {
            "numbers": found,
            "highest": max([int(e) for e in os.listdir(folder) if _number(e)] or [0]) if os.path.isdir(folder) else 0,
        }
        for link in ("current", "last-good"):
            try:
                target = os.readlink(os.path.join(root, link))
            except OSError:
                target = ""
            out[root][link] = target[len("releases/") :] if target.startswith("releases/") else None
    return out


def buffers(units: Iterable[str]) -> Facet:
    """Lines about buffers in the log of what a unit runs now: NVIDIA's tools tell no process's memory in WSL."""
    out: Facet = {}
    for unit, now in globals()["units"](list(units)).items():
        which = f"_SYSTEMD_INVOCATION_ID={now.get('InvocationID')}"
        text = _said(["journalctl", "-q", "-o", "cat", "--no-pager", which], 60)[1] if now.get("ActiveState") == "active" else ""
        out[unit] = "\n".join(line for line in text.splitlines() if " buffer size = " in line)
    return out


def toolkits(roots: Iterable[str]) -> Facet:
    """Folder -> the CUDA toolkit in it, for each folder below a root that has a compiler; links to others aren't followed."""
    out: Facet = {}
    for root in roots:
        folders = [os.path.join(root, name) for name in _folders(root, "bin/nvcc")]
        out[root] = {folder: _toolkit(folder) for folder in folders if not os.path.islink(folder)}
    return out


def _toolkit(folder: str) -> dict[str, Any]:
    """release and version of its nvcc, None when it says neither; libraries by the names that tell their versions."""
    nvcc, lib = os.path.join(folder, "bin", "nvcc"), os.path.join(folder, "lib64")
    ours, theirs = _json(os.path.join(folder, "toolkit.json")), _json(os.path.join(folder, "version.json"))
    try:
        version = ours["version"] if ours else theirs["cuda_nvcc"]["version"]
    except (KeyError, TypeError):
        _, said = _said([nvcc, "--version"], 20)
        found = re.search(r"release [\d.]+, V([\d.]+)", said)
        version = found[1] if found else ""
    release = re.match(r"V?((\d+\.\d+)\.[\d.]+)$", str(version))
    names = ("libcublas", "libcublasLt", "libcudart")
    libraries = {os.path.basename(os.path.realpath(os.path.join(lib, f"{name}.so"))) for name in names}
    parts = ["include/cuda_runtime.h", "include/cublas_v2.h", *(f"lib64/{name}.so" for name in names)]
    return {
        "release": release[2] if release else None,
        "version": release[1] if release else None,
        "libraries": sorted(libraries),
        "whole": os.access(nvcc, os.X_OK) and all(os.path.exists(os.path.join(folder, part)) for part in parts),
        "stub": os.path.exists(os.path.join(lib, "stubs", "libcuda.so")),
    }


def _said(command: Sequence[str], limit_s: float) -> tuple[int, str]:
    """Status and output, both streams, of a program that may hang or be anything."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        p = subprocess.run(command, env=environment, timeout=limit_s, **streams)
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} said nothing for {limit_s} s"
    except OSError as e:
        return 127, f"{command[0]}: {e.strerror}"
    return p.returncode, p.stdout.decode("utf-8", "replace")


def gpu(paths: Iterable[str]) -> Facet:
    """What nvidia-smi at a path says, and how it ended; None where there is none."""
    out: Facet = dict.fromkeys(paths)
    query = "--query-gpu=name,memory.total,memory.used,utilization.gpu,compute_cap,driver_version"
    for path in out:
        if os.path.exists(path):
            command = [path, query, "--format=csv"]
            returncode, text = _said(command, 30)
            out[path] = {"command": " ".join(command), "returncode": returncode, "text": text}
    return out


def guest(keys: Iterable[str]) -> Facet:
    """What may stand between programs and the GPU of a WSL machine."""
    configured = ["/etc/ld.so.conf", *sorted(glob.glob("/etc/ld.so.conf.d/*.conf"))]
    cached = _said(["ldconfig", "-p"], 30)[1]
    libraries = [line for line in cached.splitlines() if re.search(r"libcuda\.so|libnvidia-ml\.so|/stubs/", line)]
    enabled = re.search(r"^\s*\[gpu\][^\[]*?^\s*enabled\s*=\s*(true|false)\b", _text("/etc/wsl.conf"), re.M | re.I)
    theirs = re.compile(r"(lib)?nvidia-|libcuda|cuda-drivers|libnv(cuvid|optix)|xserver-xorg-video-nvidia|linux-.*-nvidia-")
    found = {
        "packages": [name for name, _ in _installed() if theirs.match(name)],
        "ldconfig": "\n".join(libraries),
        "real_paths": {path: os.path.realpath(path) for path in re.findall(r"=> (\S+)", "\n".join(libraries))},
        "ld_so_conf": {path: _text(path) for path in configured},
        "dxg": os.path.exists("/dev/dxg"),
        "gpu_enabled": enabled[1].lower() == "true" if enabled else None,
    }
    return {key: found[key] for key in keys}


def windows(keys: Mapping[str, Mapping[str, Any]]) -> Facet:
    """The Windows side of a WSL distro. What looks at it is only read where it is asked for (wsllama/program.py)."""
    from wsllama.host.windows import side

    return {key: side(hint) for key, hint in keys.items()}


def keep_alive(keys: Mapping[str, Mapping[str, Any]]) -> Facet:
    """What starts the distro with its Windows user's session."""
    from wsllama.host import keep_alive as kept

    return kept.facet(keys)


def exposure(keys: Mapping[str, Mapping[str, Any]]) -> Facet:
    """Rules of Windows that let other machines in."""
    from wsllama.host import windows_side

    return windows_side.facet(keys)


def _whole(folder: str, record: Mapping[str, Any]) -> bool:
    if not {"links", "sha256", *RECORDED} <= set(record):
        return False  # of an earlier version of ours, which recorded less
    try:
        links = all(os.readlink(os.path.join(folder, name)) == target for name, target in record["links"].items())
    except OSError:
        return False
    return links and all(
        hashlib.sha256(_text(os.path.join(folder, name)).encode()).hexdigest() == sha for name, sha in record["sha256"].items()
    )


def main(spec: Mapping[str, Mapping[str, Any]]) -> None:
    try:
        print(json.dumps({facet: globals()[facet](keys) for facet, keys in spec.items() if keys}))
    except PermissionError as e:
        raise SystemExit(f"{e.filename} needs root: log in as root, or set _sudo to True for this host") from None
