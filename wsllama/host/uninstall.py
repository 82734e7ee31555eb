"""Runs on the host: takes back what a deploy added, item by item, and only that. Packages stay.

The Windows side goes first, while what is known of it is still there; the state folder goes last. What can't be taken back now is
"left" with the command that does it, and what is known of it stays for the next time.
"""

import base64
import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from wsllama.host import keep_alive, lean, windows_side
from wsllama.host.windows import STATE
from wsllama.host.windows_side import Place, place_of

OURS = b"# Written by wsllama"
Item = dict[str, Any]


def _systemctl(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["systemctl", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)


def item(what: str, state: str, note: str = "", command: str = "") -> Item:
    """state: changed, unchanged, or left, with the reason in note and the command that does it."""
    return {"what": what, "state": state, "note": note, "command": command}


def did(what: str, changed: bool, note: str = "") -> Item:
    return item(what, "changed" if changed else "unchanged", note)


# Linux


def long_work(look: bool) -> Item:
    """Builds and copies that run as units of their own."""
    listed = _systemctl("list-units", "--plain", "--no-legend", "--all", "wsllama-*").stdout.split("\n")
    names = [line.split()[0] for line in listed if line.split()]
    if names and not look:
        _systemctl("stop", *names)
        _systemctl("reset-failed", *names)
    return did("builds and copies that run", bool(names))


def service(path: str, look: bool) -> Item:
    """The unit: stopped, not started at boot any more, gone; drop-ins beside it are the user's."""
    name = os.path.basename(path)
    what, text = f"service {name}", _bytes(path)
    if text is None:
        return did(what, False)
    if not text.startswith(OURS):
        return item(what, "unchanged", f"{path} is not as wsllama wrote it, so it is somebody else's: it stays")
    if not look:
        stopped = _systemctl("disable", "--now", name)
        if stopped.returncode:
            return item(what, "left", " ".join(stopped.stderr.split()), f"systemctl disable --now {name}")
        os.unlink(path)
        _systemctl("daemon-reload")
        _systemctl("reset-failed", name)
    return did(what, True, f"{path}.d stays, it is yours" if os.path.isdir(f"{path}.d") else "")


def file(path: str, look: bool) -> Item:
    there = os.path.lexists(path)
    if there and not look:
        os.unlink(path)
    return did(path, there)


def link(record: str, target: str, look: bool) -> Item:
    """The link whose place a record of ours names, as long as it is the one that we made."""
    path = (_bytes(record) or b"").decode("utf-8", "surrogateescape").strip()
    there = os.path.islink(path) and os.readlink(path) == target
    if there and not look:
        os.unlink(path)
    return did(path or "link for Prometheus", there)


def folder(path: str, look: bool, keep: tuple[str, ...] = ()) -> Item:
    """A folder of ours with all that is in it, but for what is kept, and for disks that are mounted in it."""
    if not os.path.isdir(path) or os.path.islink(path):
        return did(path, False)
    mounted = [point for point in _mounts() if point == path or point.startswith(f"{path}/")]
    stays = {*keep, *mounted}
    goes = list(_doomed(path, stays))
    if not look:
        for one in goes:
            shutil.rmtree(one) if os.path.isdir(one) and not os.path.islink(one) else os.unlink(one)
    kept = [one for one in (*mounted, *keep) if os.path.isdir(one)]
    return did(path, bool(goes), f"{' and '.join(kept)} stays" if kept else "")


def _doomed(path: str, stays: set[str]) -> Iterator[str]:
    """What can go whole: the path itself when nothing in it stays, else what in it doesn't."""
    if path in stays:
        return
    if not any(one.startswith(f"{path}/") for one in stays):
        yield path
        return
    for name in sorted(os.listdir(path)):
        yield from _doomed(f"{path}/{name}", stays)


def _mounts() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        return [line.split()[4].replace("\\040", " ") for line in f]


def user(name: str, home: str, look: bool) -> Item:
    what = f"user {name}"
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return did(what, False)
    if found.pw_dir != home:
        return item(what, "unchanged", f"its home is {found.pw_dir}, so it is somebody else's: it stays")
    if not look:
        p = subprocess.run(["userdel", name], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if p.returncode:
            return item(what, "left", " ".join(p.stderr.split()), f"userdel {name}")
    return did(what, True)


def masks(record: str, look: bool) -> Item:
    there = os.path.exists(record)
    if there and not look:
        lean.unmask(record)
    return did("units that distro.lean masked", there)


# Windows


def keeping(there: Place, names: list[str], look: bool) -> list[Item]:
    """The task or the file that starts the distro at logon."""
    what = "what starts the distro at logon"
    recorded = windows_side.journal().get("keep_alive")
    if look:
        files = [keep_alive.startup_path(there, name) for name in names]
        return [did(what, bool(recorded) or any(path and os.path.exists(path) for path in files))]
    if not names:
        return [did(what, False)]
    out = keep_alive.remove(there, names)
    return [did(what, out["changed"]), *(item(what, "left", left["why"] or "", left["command"]) for left in out["left"])]


def ports(there: Place, argument: Mapping[str, Any], look: bool) -> list[Item]:
    """Rules for other machines: steps that need an administrator, made on the controller from the journal."""
    steps = argument["steps"]
    if look or not steps:
        return [did("rules for other machines", bool(steps))]
    script = base64.b64decode(argument["script"]).decode()
    outcome = windows_side.elevate(there, steps, argument["run"], script)
    states = {step["id"]: step for step in outcome["steps"]}
    out = []
    for step in steps:
        state = states.get(step["id"], {"state": outcome["state"], "why": outcome["why"]})
        done = state["state"] in ("changed", "unchanged")
        by_hand = outcome["command"] or argument["by_hand"][step["id"]]
        out.append(
            did(step["what"], state["state"] == "changed") if done else item(step["what"], "left", str(state["why"]), by_hand)
        )
    return out


def configuration(files: Mapping[str, Mapping[str, Any]], look: bool) -> list[Item]:
    """.wslconfig and wsl.conf as they would be without us; the bytes were made on the controller."""
    out = []
    for path, want in files.items():
        backups = [one for one in want["backups"] if os.path.exists(one)]
        if want["why"]:
            out.append(item(path, "left", want["why"], "wsllama uninstall, once more, when it can be reached"))
            continue
        changed = want["now"] != want["undone"]
        if changed and not look:
            if _base64(path) != want["now"]:
                out.append(item(path, "left", "it was changed in this moment", "wsllama uninstall, once more"))
                continue
            if want["undone"] is None:
                os.unlink(path)
            else:
                windows_side.wrote(path, base64.b64decode(want["undone"]))
        if not look:
            for one in backups:
                os.unlink(one)
            windows_side.record(path, None)
        out.append(did(path, changed or bool(backups), "WSL reads it at its next start" if changed else ""))
    return out


def local_files(there: Place, look: bool, left: bool) -> Item:
    """Our folder in the Windows profile; an administrator's script stays while it is needed."""
    path = windows_side.local_folder(there) or ""
    what = "wsllama's folder in the Windows profile"
    ours = ("elevated.ps1", "elevated.json", "elevated.result.json")
    found = [f"{path}/{name}" for name in ours if path and os.path.exists(f"{path}/{name}")]
    if look or not found:
        return did(what, bool(found) or (os.path.isdir(path) and not os.listdir(path) if look else windows_side.tidied(there)))
    if left:
        return item(what, "unchanged", "it is needed for what is left")
    for one in found:
        os.unlink(one)
    windows_side.tidied(there)
    return did(what, True)


def _bytes(path: str) -> Any:
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return None


def _base64(path: str) -> Any:
    data = _bytes(path)
    return None if data is None else base64.b64encode(data).decode()


def run(argument: Mapping[str, Any]) -> Iterator[Item]:
    """All items in order; argument["look"]: only say what would be changed."""
    look, state = argument["look"], argument["state"]
    left = False
    if argument["side"] is not None:
        there = place_of(argument["side"])
        windows = [
            *keeping(there, argument["names"], look),
            *ports(there, argument, look),
            *configuration(argument["configuration"], look),
        ]
        left = any(one["state"] == "left" for one in windows)
        yield from windows
        yield local_files(there, look, left)
    yield long_work(look)
    for path in argument["unit_files"]:
        yield service(path, look)
    yield masks(argument["lean"], look)
    for path in argument["files"]:
        yield file(path, look)
    record, target = argument["link"]
    yield link(record, target, look)
    for path in argument["folders"]:
        yield folder(path, look)
    yield user(argument["user"], state, look)
    kept = (*argument["keep"], *([STATE] if left else []))
    yield folder(state, look, kept)


def main(argument: Mapping[str, Any]) -> None:
    try:
        items = list(run(argument))
    except OSError as e:
        raise SystemExit(f"{e.filename} can't be taken back: {e.strerror}") from None
    print(json.dumps({"items": items}))
