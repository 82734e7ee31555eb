"""Runs on the host: looks for what starts the distro with its Windows user's session, and makes or removes it.

On Windows: the task, registered from <profile>/AppData/Local/wsllama/keep-alive-<distro>.xml, or a file in the Startup folder.
It stands in the journal, /var/lib/wsllama/windows/journal.json, below "keep_alive", before it is done.
"""

import base64
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from wsllama.host.interop import NoInterop, Windows, decode
from wsllama.host.windows import STATE
from wsllama.host.windows_side import Place, journal, local_folder, place, place_of, record, running, tidied, wrote

STARTUP = "AppData/Roaming/Microsoft/Windows/Start Menu/Programs/Startup"
STARTUP_FOLDER = r"%APPDATA%\Microsoft\Windows\Start Menu\Programs\Startup"  # the same for cmd.exe
TIMEOUT_S = 30.0


def facet(keys: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The probe's: "side" -> what holds the distro named in its hint, as `look` says it."""
    return {key: look(place(hint), hint) for key, hint in keys.items()}


def look(there: Place, hint: Mapping[str, Any]) -> dict[str, Any]:
    """task, startup: bytes of them in base64, None where there is none; why: why Windows can't be asked.

    hint: prefix, what names of tasks begin with.
    """
    out: dict[str, Any] = {"task": None, "startup": None, "why": there.why, "distro": there.distro, "file": None}
    if there.distro is None:
        return out
    name = f"{hint['prefix']}{there.distro}"
    out["startup"] = _base64(startup_path(there, name))
    out["file"] = _base64(f"{STATE}/{name}.cmd")
    if there.windows and not there.why:
        try:
            xml = registered(there.windows, name)
        except NoInterop as e:
            out["why"] = str(e)
        else:
            out["task"] = base64.b64encode(xml).decode() if xml else None
    return out


def registered(windows: Windows, name: str) -> bytes | None:
    """XML of the task of this name, None when there is none that this user sees. Raises NoInterop."""
    code, out, _ = windows.run("schtasks.exe", "/Query", "/TN", name, "/XML", timeout=TIMEOUT_S)
    return out if code == 0 and out.strip() else None


def startup_path(there: Place, name: str) -> str | None:
    """Where the Startup folder's file is, seen from the distro; None without a profile."""
    return f"{there.profile}/{STARTUP}/{name}.cmd" if there.profile else None


def _base64(path: str | None) -> str | None:
    try:
        with open(path or "", "rb") as f:
            return base64.b64encode(f.read(1 << 20)).decode()
    except OSError:
        return None


def make(there: Place, argument: Mapping[str, Any]) -> dict[str, Any]:
    """Make the first mechanism of argument["ways"] that Windows lets us make, and take back the other.

    ways: of "task", "startup", "file"; name; task, startup: base64 of their bytes; before: distro and name of an earlier one, or
    None. Returns mechanism, changed, refused: what Windows said to a task that it didn't take, left: as `remove`, and task and
    startup as they are there now.
    """
    name, before = argument["name"], argument["before"]
    out: dict[str, Any] = {"mechanism": None, "changed": False, "refused": None, "xml": None, "left": []}
    if before and before["distro"] not in [distro["name"] for distro in running(there) or [{"name": before["distro"]}]]:
        out.update(remove(there, [before["name"]]))  # the distro was renamed; else this one is a copy of that
    for way in argument["ways"]:
        if way != "file":
            record("keep_alive", {"name": name, "mechanism": way, "startup": startup_path(there, name)})
        if way == "task" and there.windows and not there.why:
            out["refused"] = _register(there, name, base64.b64decode(argument["task"]), out)
            if out["refused"]:
                continue
            out["changed"] = True
            _remove_file(startup_path(there, name))
        elif way == "startup" and (path := startup_path(there, name)):
            out["changed"] = wrote(path, base64.b64decode(argument["startup"])) or out["changed"]
            if argument["ways"] == ["startup"]:
                out["changed"] = _unregistered(there, name)[0] or out["changed"]
        elif way == "file":
            out["changed"] = wrote(f"{STATE}/{name}.cmd", base64.b64decode(argument["startup"])) or out["changed"]
        else:
            continue
        out["mechanism"] = way
        break
    if out["mechanism"] in ("task", "startup"):
        _remove_file(f"{STATE}/{name}.cmd")
    xml = registered(there.windows, name) if there.windows and not there.why else None
    return {**out, "task": xml and base64.b64encode(xml).decode(), "startup": _base64(startup_path(there, name))}


def _register(there: Place, name: str, xml: bytes, out: dict[str, Any]) -> str | None:
    """Register the task and start it; what Windows said when it didn't take it. The file stays: an administrator may need it."""
    assert there.windows
    folder = local_folder(there)
    if folder is None:
        return there.no_profile
    path = f"{folder}/{name}.xml"
    out["changed"] = wrote(path, xml)
    shown = there.windows.windows(path)
    out["xml"] = shown
    code, said, also = there.windows.run("schtasks.exe", "/Create", "/TN", name, "/XML", str(shown), "/F", timeout=TIMEOUT_S)
    if code:
        return " ".join(decode(also or said).split()) or f"schtasks.exe ended with status {code}"
    there.windows.run("schtasks.exe", "/Run", "/TN", name, timeout=TIMEOUT_S)  # from now on, and not only from the next logon
    return None


def remove(there: Place, names: Iterable[str]) -> dict[str, Any]:
    """Take back what keeps a distro running; one that runs goes on. Returns changed, and left: what stays, with its command."""
    changed, left = False, list[dict[str, str | None]]()
    recorded = journal().get("keep_alive", {})
    for name in names:
        ours = recorded.get("mechanism") if recorded.get("name") == name else None
        changed = _remove_file(f"{STATE}/{name}.cmd") or changed
        changed = _remove_file(startup_path(there, name)) or changed
        if ours == "startup" and not there.profile:
            left.append({"command": f'del "{STARTUP_FOLDER}\\{name}.cmd"', "why": there.no_profile or there.why})
        removed, why = _unregistered(there, name)
        changed = changed or removed
        if why and (ours == "task" or not there.why):
            left.append({"command": f"schtasks /Delete /TN {name} /F", "why": why})
        if folder := local_folder(there):
            changed = _remove_file(f"{folder}/{name}.xml") or changed
            tidied(there)
    if not left:
        record("keep_alive", None)
    return {"changed": changed, "left": left}


def _unregistered(there: Place, name: str) -> tuple[bool, str | None]:
    """Take the task away, if there is one; whether that was done, and why it could not be."""
    if not there.windows or there.why:
        return False, there.why
    try:
        if registered(there.windows, name) is None:
            return False, None
        code, said, also = there.windows.run("schtasks.exe", "/Delete", "/TN", name, "/F", timeout=TIMEOUT_S)
    except NoInterop as e:
        return False, str(e)
    return not code, " ".join(decode(also or said).split()) if code else None


def _remove_file(path: str | None) -> bool:
    if path is None or not os.path.lexists(path):
        return False
    os.unlink(path)
    return True


def main(argument: Mapping[str, Any]) -> None:
    there = place_of(argument["side"])
    try:
        out = make(there, argument) if argument["action"] == "make" else remove(there, [argument["name"]])
    except NoInterop as e:
        raise SystemExit(str(e)) from None
    except OSError as e:
        raise SystemExit(f"{e.filename} can't be written: {e.strerror}") from None
    print(json.dumps(out))
