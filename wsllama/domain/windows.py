"""The Windows side of a WSL distro: what is wanted in WSL's two files, what is refused, what is in effect, the way back. Pure.

`side` is the probe's facet `windows` (wsllama/host/windows.py).
"""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Mapping
from typing import Any

from wsllama.domain.wslconfig import Key, Kind, edit, find, parse

GIB, MIB = 1 << 30, 1 << 20
# The idle keys keep distro and VM running when the last window is closed: one without the other doesn't (WSL#8654, #13014).
# Reclaim throws a mapped model out of the page cache while nobody asks.
WANTED: dict[Kind, dict[str, Any]] = {
    "wslconfig": {
        "general.instanceIdleTimeout": -1,
        "wsl2.vmIdleTimeout": -1,
        "experimental.autoMemoryReclaim": "disabled",
    },
    "wslconf": {"boot.systemd": True, "interop.enabled": True},
}
SHUTDOWN = "wsl --shutdown"


def wanted(kind: Kind, explicit: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a file by full name: ours, and what the settings say over them."""
    return {**WANTED[kind], **explicit}


def held(file: Mapping[str, Any] | None) -> bytes | None:
    """Bytes of a file of the facet; None when it isn't there."""
    return None if file is None or file["data"] is None else base64.b64decode(file["data"])


def differing(data: bytes | None, kind: Kind, values: Mapping[str, Any]) -> list[str]:
    """Names of the values that WSL doesn't read in a file's bytes."""
    return [name for name, value in values.items() if edit(data, kind, {name: value}) != (data or b"")]


# What is refused, and what is left undone


def profile_problem(side: Mapping[str, Any], given: str | None) -> str | None:
    """Why the Windows user's folder isn't known although it could be: one sentence. given: wsl.profile of the settings."""
    if side["profile"]:
        return None
    if given:
        return f"wsl.profile: {side['why']}; give the folder of the Windows user, as in C:\\Users\\Ada"
    if len(side["candidates"]) > 1:
        return (
            f"which Windows user's .wslconfig counts can't be told, there are {', '.join(side['candidates'])}: set wsl.profile to"
            f" one of them ({side['interop']})"
        )
    return None if side["interop"] else f"{side['why']}: set wsl.profile to the folder of the Windows user"


def file_problem(file: Mapping[str, Any], size: int, free: int | None) -> str | None:
    """Why a file that has to be changed can't be: one sentence. size: bytes to be written in all; free: bytes on its drive."""
    if file["problem"]:
        return str(file["problem"])
    if free is not None and free < size + MIB:
        return f"no disk space for {file['path']}: the drive of Windows has {free / 1e6:.1f} MB free, so make room on it"
    return None


def memory_problem(asked: int, machine: int | None) -> str | None:
    """Why the VM can't get this memory; both in bytes. A machine's memory is a bit less than what was bought."""
    if machine is None or asked <= -(-machine // GIB) * GIB:
        return None
    return (
        f"wsl.wsl2.memory is {asked / GIB:.0f} GiB, but the machine has {machine / GIB:.1f} GiB: leave some 6 GiB of that to"
        " Windows"
    )


def undone(side: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """What has to be done on Windows by hand, and why; nothing when .wslconfig is within reach. values: wanted in .wslconfig."""
    if side["profile"]:
        return []
    lines = edit(None, "wslconfig", values).decode().splitlines()
    return [
        f"not done on Windows: .wslconfig was not looked at, because {side['interop']}",
        "  set wsl.profile, or do it by hand: put this into %USERPROFILE%\\.wslconfig, and run `wsl --shutdown`:",
        *(f"    {line}" for line in lines if line),
    ]


# What is in effect


def to_restart(kind: Kind, names: list[str], entry: Mapping[str, Any], seen: Mapping[str, Any]) -> list[str]:
    """Names that the journal holds as waiting for a new start of WSL, when these are changed now. entry: of the run before."""
    before = entry.get("waiting", []) if _same_start(kind, entry, seen) else []
    return sorted({*before, *names})


def _same_start(kind: Kind, entry: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
    """Whether WSL runs since before the file was written: the VM for .wslconfig, the distro for wsl.conf."""
    marks = ("boot_id",) if kind == "wslconfig" else ("boot_id", "init")
    return bool(entry) and all(entry.get(mark) == seen[mark] for mark in marks)


def effect(side: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What of .wslconfig and wsl.conf is not in effect: what a new start of WSL will change, and what one didn't change.

    values: wanted in .wslconfig. Each is a phrase such as "wsl2.memory (wanted 48 GiB, seen 15.6 GiB)".
    """
    seen, journal = side["seen"], side["journal"]
    waiting, failed = list[str](), list[str]()
    if side["wslconfig"]:
        file = side["wslconfig"]
        entry = journal.get(file["path"], {})
        fresh = entry["waiting"] if _same_start("wslconfig", entry, seen) else []
        later = (file["mtime"] or 0) > seen["booted"]
        for name, value in values.items():
            shown = _shown(name, value, seen)
            if shown and shown != "?":
                (waiting if name in fresh or later else failed).append(f"{name} ({shown})")
            elif shown == "?" and (name in fresh if entry else later):
                waiting.append(name)
    entry = journal.get(side["wslconf"]["path"], {})
    if _same_start("wslconf", entry, seen):
        waiting += [name for name in entry["waiting"] if not _conf_shown(name, side)]
    return waiting, failed


def _conf_shown(name: str, side: Mapping[str, Any]) -> bool:
    """Settings of wsl.conf that are seen at work, whatever the file says."""
    return (name == "boot.systemd" and side["seen"]["systemd"]) or (name == "interop.enabled" and not side["interop"])


def _shown(name: str, value: Any, seen: Mapping[str, Any]) -> str:
    """How the VM differs from a value, in words; empty when it doesn't, "?" when nothing shows it."""
    key = find("wslconfig", name)
    assert key, name
    want = key.normal(value)
    if name == "wsl2.memory" and want:
        # The kernel keeps a part for itself: 2 to 4 % and some fixed tables.
        good = want * 0.95 - 64 * MIB <= seen["memory"] <= want + 2 * MIB
        return "" if good else f"wanted {want / GIB:.1f} GiB, seen {seen['memory'] / GIB:.1f} GiB"
    if name == "wsl2.swap":
        # The disk is rounded to whole MiB, and its first page is not swapped to.
        good = abs(seen["swap"] - want) <= max(2 * MIB, want // 100) if want else seen["swap"] == 0
        return "" if good else f"wanted {want / GIB:.1f} GiB, seen {seen['swap'] / GIB:.1f} GiB"
    if name == "wsl2.processors" and want > 0:
        return "" if seen["processors"] == want else f"wanted {want}, seen {seen['processors']}"
    if name == "wsl2.networkingMode" and seen["networking_mode"]:
        now = key.meaning(seen["networking_mode"]).value  # consomme was called virtioproxy until June 2026
        return "" if now == want else f"wanted {want.lower()}, seen {seen['networking_mode']}"
    return "?"


def pending(waiting: list[str], running: list[str] | None = None) -> list[str]:
    """The sentence for what waits for a new start of WSL. running: distros that it ends; None when they aren't known."""
    who = ", ".join(running or ()) or "every distro"
    return [f"pending: {SHUTDOWN} (in Windows; it ends {who}): {', '.join(waiting)}"] if waiting else []


# The way back


def undo(before: bytes | None, ours: bytes, now: bytes, kind: Kind, changes: Mapping[str, Any]) -> bytes | None:
    """A file as it would be without us: what the user changed since stays.

    before: what it was, None when there was none; ours: what we made of that; now: what it is; changes: what we set, as given to
    `wslconfig.edit`. Returns the bytes to write, or None for a file that only we needed. Raises nothing.
    """
    if now == ours:
        return before
    values, of_ours, were = (parse(data, kind).values for data in (now, ours, before or b""))
    keys = {found.name: found for name in changes if (found := find(kind, name))}
    back = {n: were.get(n) for n in keys if n in values and n in of_ours and keys[n].same(values[n], of_ours[n])}
    expected = {n: v for n, v in {**values, **back}.items() if v is not None}
    wide = (before or b"").startswith(b"\xff\xfe")  # UTF-16 as `ours` is not: lines of both can't stand in one file
    merged = None if wide else _merged(before or b"", ours, now)
    if merged is None or parse(merged, kind).values != expected:
        merged = _edited(now, kind, back, keys)
    return None if before is None and _empty(merged) else merged


def _edited(now: bytes, kind: Kind, back: Mapping[str, Any], keys: Mapping[str, Key]) -> bytes:
    """Setting by setting; one whose old value can't be written (no ASCII) is taken out."""
    for name, value in back.items():
        try:
            keys[name].normal(value)
        except ValueError:
            value = None
        now = edit(now, kind, {name: value})
    return now


def _empty(data: bytes) -> bool:
    return not re.sub(rb"(?m)^[ \t]*(\[\w+\][ \t]*)?\r?$", b"", data).strip()


def _merged(before: bytes, ours: bytes, now: bytes) -> bytes | None:
    """Both changes to `ours`, line by line: back to `before`, and the user's to `now`; None where they meet."""
    base = ours.splitlines(keepends=True)
    changes = []
    for other in (before.splitlines(keepends=True), now.splitlines(keepends=True)):
        found = difflib.SequenceMatcher(None, base, other, autojunk=False).get_opcodes()
        changes.append([(i1, i2, other[j1:j2]) for tag, i1, i2, j1, j2 in found if tag != "equal"])
    for i1, i2, _ in changes[0]:
        if any((i1 < k2 and k1 < i2) or i1 == k1 for k1, k2, _ in changes[1]):
            return None
    for i1, i2, lines in sorted(changes[0] + changes[1], key=lambda c: c[:2], reverse=True):
        base[i1:i2] = lines
    return b"".join(base)
