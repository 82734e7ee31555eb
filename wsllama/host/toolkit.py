"""Runs on the host: lays NVIDIA's wheels out as a CUDA toolkit, which appears whole or never.

TOOLKITS/lock                 one at a time
TOOLKITS/.partial-<name>/     what is being put together; removed at the end, whatever the end was
TOOLKITS/<name>/bin include lib nvvm
TOOLKITS/<name>/lib64         link to lib, where nvcc looks; lib/libX.so is a link to lib/libX.so.N, where linkers look
TOOLKITS/<name>/toolkit.json  what it was made from, and its files with their sizes; it says that the toolkit is whole
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from typing import Any

TOOLKITS = "/opt/wsllama/toolkits"
TOP = re.compile(r"nvidia/cu\d+/")  # where the wheels of every package of a release keep their files
SPARE = 200_000_000  # bytes that stay free


class ToolkitError(Exception):
    """One sentence: what failed, where, what to do."""


def main(argument: dict[str, Any]) -> None:
    """Make the toolkit `name` unless it is there; the last line is {"name", "root", "changed", "version", "bytes"}.

    argument: name (of its folder); release (like "13.0", which its nvcc has to name); wheels [{"path", "sha256"}] on this
    host. toolkits: another folder than the usual one, for tests.
    """
    try:
        print(json.dumps(make(argument)), flush=True)
    except (ToolkitError, OSError) as e:
        sys.exit(f"cannot lay out the CUDA toolkit: {e}")


def stage(text: str) -> None:
    print(f"==> {text}", flush=True)


def make(a: dict[str, Any]) -> dict[str, Any]:
    toolkits = a.get("toolkits", TOOLKITS)
    os.makedirs(toolkits, exist_ok=True)
    final, partial = os.path.join(toolkits, a["name"]), os.path.join(toolkits, ".partial-" + a["name"])
    with open(os.path.join(toolkits, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = whole(final, a)
        if record is None:
            remove(partial)  # what a run that was killed has left
            remove(final)  # not whole, or another one
            check_wheels(a["wheels"])
            check_space(toolkits, a["wheels"])
            try:
                record = lay_out(a, partial)
                os.sync()
                os.rename(partial, final)
            finally:
                remove(partial)
            changed = True
        else:
            changed = False
    size = sum(record["files"].values())
    return {"name": a["name"], "root": final, "changed": changed, "version": record["version"], "bytes": size}


def whole(folder: str, a: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a toolkit that was made from these wheels and is there with all its files, else None."""
    try:
        with open(os.path.join(folder, "toolkit.json"), encoding="utf-8") as f:
            record: dict[str, Any] = json.load(f)
        good = record["release"] == a["release"] and record["wheels"] == sha256s(a) and record["files"] == files_in(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if good else None


def sha256s(a: dict[str, Any]) -> list[str]:
    return sorted(w["sha256"] for w in a["wheels"])


def files_in(folder: str) -> dict[str, int]:
    """Path -> size in bytes of every file and link but the record."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            found[os.path.relpath(path, folder)] = os.lstat(path).st_size
    found.pop("toolkit.json", None)
    return found


def remove(folder: str) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder)


def check_wheels(wheels: list[dict[str, str]]) -> None:
    for wheel in wheels:
        digest = hashlib.sha256()
        with open(wheel["path"], "rb") as f:
            for block in iter(lambda: f.read(1 << 20), b""):
                digest.update(block)
        if digest.hexdigest() != wheel["sha256"]:
            found = f"{wheel['path']} has sha256 {digest.hexdigest()}"
            raise ToolkitError(f"{found} instead of {wheel['sha256']}; send it again")


def check_space(folder: str, wheels: list[dict[str, str]]) -> None:
    needed = SPARE
    for wheel in wheels:
        with opened(wheel["path"]) as archive:
            needed += sum(member.file_size for member in archive.infolist())
    free = shutil.disk_usage(folder).free
    if free < needed:
        have, need = f"{free / 1e9:.1f} GB", f"{needed / 1e9:.1f} GB"
        raise ToolkitError(f"{folder} has {have} of disk space left and the toolkit needs {need}; make room there")


def opened(path: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as e:
        raise ToolkitError(f"{path} cannot be read as a wheel ({e})") from e


def lay_out(a: dict[str, Any], partial: str) -> dict[str, Any]:
    for wheel in a["wheels"]:
        stage(f"unpack {os.path.basename(wheel['path'])}")
        with opened(wheel["path"]) as archive:
            for member in archive.infolist():
                unpack(archive, member, partial, wheel["path"])
    library = os.path.join(partial, "lib")
    if not os.path.isdir(library):
        raise ToolkitError(f"the wheels hold no lib, so {a['name']} would be no toolkit")
    for name in os.listdir(library):
        if found := re.match(r"(.+\.so)\.\d+$", name):
            os.symlink(name, os.path.join(library, found[1]))
    os.symlink("lib", os.path.join(partial, "lib64"))
    record = {
        "name": a["name"],
        "release": a["release"],
        "wheels": sha256s(a),
        "version": ask_version(os.path.join(partial, "bin", "nvcc"), a["release"]),
        "files": files_in(partial),
    }
    with open(os.path.join(partial, "toolkit.json"), "w", encoding="utf-8") as f:
        json.dump(record, f, indent=1, sort_keys=True)
        f.write("\n")
    return record


def unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, partial: str, wheel: str) -> None:
    """One file of a wheel; what describes the wheel itself is left out."""
    mode, parts = member.external_attr >> 16, member.filename.rstrip("/").split("/")
    if stat.S_ISLNK(mode) or any(part in ("", ".", "..") for part in parts):
        raise ToolkitError(f"{wheel} holds {member.filename!r}, which is no plain file inside it")
    top = TOP.match(member.filename)
    if not top or member.is_dir():
        return
    target = os.path.join(partial, *member.filename[top.end() :].split("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with archive.open(member) as source, open(target, "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    os.chmod(target, 0o755 if mode & 0o100 else 0o644)


def ask_version(nvcc: str, release: str) -> str:
    """What the compiler says of itself, without what the wheels' own folder could hide: it runs where it was put."""
    try:
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        p = subprocess.run([nvcc, "--version"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    except subprocess.TimeoutExpired as e:
        raise ToolkitError("its nvcc --version did not end within 60 s") from e
    text = p.stdout.decode("utf-8", "replace").strip()
    found = re.search(r"release (\d+\.\d+), (V[\d.]+)", text)
    if p.returncode or not found or found[1] != release:
        raise ToolkitError(f"its nvcc --version does not name release {release} (status {p.returncode}): {text[-300:]}")
    return found[2]
