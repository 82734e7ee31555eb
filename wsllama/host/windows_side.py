"""Runs on the host: what our programs for the Windows side share (place, journal, files), the probe's facet `exposure`, what
needs an administrator, and what `wsllama windows` shows.

    /var/lib/wsllama/windows/journal.json      what was changed on the Windows side
    <profile>/AppData/Local/wsllama/           elevated.ps1, elevated.json, elevated.result.json; keep-alive's XML
"""

import base64
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wsllama.host import interop, windows
from wsllama.host.interop import NoInterop, Windows, decode
from wsllama.host.windows import JOURNAL

POWERSHELL = "WindowsPowerShell/v1.0/powershell.exe"
CONFIRM_S = 300.0  # Windows itself ends its question after two minutes
POWER = (("SUB_SLEEP", "STANDBYIDLE"), ("SUB_SLEEP", "HIBERNATEIDLE"), ("SUB_BUTTONS", "LIDACTION"))


@dataclass(frozen=True)
class Place:
    """Where Windows is. why: why no program of it can be started; no_profile: why there is no profile; None where there is."""

    windows: Windows | None
    profile: str | None
    distro: str | None
    why: str | None
    no_profile: str | None


def place_of(side: Mapping[str, Any], distro: str | None = None) -> Place:
    """The place that the probe's facet `windows` found. distro: its name by the settings."""
    return Place(interop.find(), side["profile"], distro or side["distro"], side["interop"], side["why"])


@lru_cache
def _looked(profile: str | None) -> Mapping[str, Any]:
    return windows.side({"profile": profile, "windows": True})


def place(hint: Mapping[str, Any]) -> Place:
    """The same, looked for: for the probe's other facets. hint: profile and distro of the settings, or None."""
    return place_of(_looked(hint["profile"]), hint["distro"])


def local_folder(there: Place) -> str | None:
    """Our folder in the Windows profile, which `wrote` makes; None without a profile."""
    return f"{there.profile}/AppData/Local/wsllama" if there.profile else None


def tidied(there: Place) -> bool:
    """Take our folder away when nothing is left in it; returns whether it did."""
    try:
        os.rmdir(local_folder(there) or "")
    except OSError:
        return False
    return True


def journal() -> dict[str, Any]:
    """What was changed on the Windows side, by topic; wsllama/host/windows.py has its own topics there."""
    found = _json(JOURNAL)
    return found if isinstance(found, dict) else {}


def record(topic: str, what: Any) -> None:
    """Set a topic of the journal; None takes it out."""
    before = journal()
    after = {name: value for name, value in {**before, topic: what}.items() if value is not None}
    if before != after:
        windows.record(JOURNAL, after)


def wrote(path: str, data: bytes) -> bool:
    """Write a file atomically, when it holds something else, and make its folder. Returns whether it did."""
    try:
        with open(path, "rb") as f:
            if f.read() == data:
                return False
    except OSError:
        pass
    os.makedirs(os.path.dirname(path), exist_ok=True)
    windows.write(path, data)
    return True


def _json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8-sig") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


# Ports


def facet(keys: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The probe's `exposure`: "side" -> what `exposure` says."""
    return {key: exposure(place(hint), hint["names"], hint["ask"]) for key, hint in keys.items()}


def exposure(there: Place, names: Sequence[str], ask: bool) -> dict[str, Any]:
    """What there is of rules: journal (ours), portproxy (text of netsh), firewall (name -> whether there is such a rule), result
    (of what an administrator did last), why (Windows can't be asked).

    names: of firewall rules; ask: also when the journal has none, which spares a run without rules two programs.
    """
    ours = journal().get("exposure", [])
    result = _result(there)
    out: dict[str, Any] = {"journal": ours, "portproxy": None, "firewall": {}, "result": result, "why": there.why}
    if there.why or not there.windows or not (ask or ours or result):
        return out
    every = dict.fromkeys([*names, *(f"wsllama-lan-{rule['port']}" for rule in ours if rule["kind"] == "firewall")])
    try:
        out["portproxy"] = decode(there.windows.run("netsh.exe", "interface", "portproxy", "show", "v4tov4")[1])
        for name in every:
            code, _, _ = there.windows.run("netsh.exe", "advfirewall", "firewall", "show", "rule", f"name={name}")
            out["firewall"][name] = code == 0
    except NoInterop as e:
        out["why"] = str(e)
    return out


def _result(there: Place) -> dict[str, Any] | None:
    """What an administrator did with the steps that lie there now; None when nobody did, or when the journal has it."""
    folder = local_folder(there)
    if folder is None:
        return None
    result, order = _json(f"{folder}/elevated.result.json"), _json(f"{folder}/elevated.json")
    if not isinstance(result, dict) or not isinstance(order, dict) or result.get("state") != "done":
        return None
    if result.get("run") != order.get("run") or journal().get("elevated") == result["run"]:
        return None
    if order.get("distro") != there.distro:  # the folder is that of a Windows user, who may have several distros
        return None
    return {**result, "order": order["steps"]}


def settle(there: Place) -> bool:
    """Put into the journal what an administrator did; returns whether there was anything."""
    result = _result(there)
    if result is None:
        return False
    states = {step.get("id"): step.get("state") for step in result["steps"]}
    rules = journal().get("exposure", [])
    for step in result["order"]:
        rule, state = step.get("rule"), states.get(step["id"])
        if rule and state in ("changed", "unchanged"):
            # a rule that was there before is somebody else's, and stays when ours are taken back
            added = [rule] if step["present"] and (state == "changed" or rule in rules) else []
            rules = [r for r in rules if r != rule] + added
    record("exposure", rules or None)
    record("elevated", result["run"])
    return True


# What needs an administrator


def elevate(there: Place, steps: Sequence[Mapping[str, Any]], run: str, script: str) -> dict[str, Any]:
    """Write the steps and the script, and start it, which asks the user for one confirmation.

    run: the same for the same steps; script: text of elevated.ps1. Returns state (done, cancelled, nobody, failed, unreachable),
    why, steps (id, state, why), command (to do it by hand; None when the files could not be written), changed.
    """
    out: dict[str, Any] = {
        "state": "unreachable",
        "why": there.why or there.no_profile,
        "steps": [],
        "command": None,
        "changed": False,
    }
    folder = local_folder(there)
    if folder is None or there.windows is None:
        return out
    settle(there)  # of the steps before these, which somebody may have done by hand
    order = json.dumps({"run": run, "distro": there.distro, "steps": steps}, indent=1, sort_keys=True).encode()
    new = [wrote(f"{folder}/elevated.ps1", script.replace("\n", "\r\n").encode("ascii")), wrote(f"{folder}/elevated.json", order)]
    shown = there.windows.windows(f"{folder}/elevated.ps1")
    out.update(changed=any(new), command=f'powershell -NoProfile -ExecutionPolicy Bypass -File "{shown}"')
    if there.why:
        return out
    answer = f"{folder}/elevated.result.json"
    if os.path.lexists(answer):
        os.unlink(answer)
    words = ("-NoProfile", "-ExecutionPolicy", "Bypass", "-File", str(shown))
    try:
        code, said, also = there.windows.run(POWERSHELL, *words, timeout=CONFIRM_S)
    except NoInterop as e:
        return {**out, "why": str(e)}
    result = _json(answer)
    if not isinstance(result, dict) or result.get("run") != run:
        why = " ".join(decode(also or said).split()) or f"PowerShell ended with status {code} and left no result"
        return {**out, "state": "failed", "why": why}
    changed = out["changed"] or any(step.get("state") == "changed" for step in result["steps"])
    settle(there)
    return {**out, "state": result["state"], "why": result.get("why"), "steps": result["steps"], "changed": changed}


# What is shown


def power(there: Place) -> dict[str, Any]:
    """What the rules of power look at: texts of powercfg and reg, and by how many seconds the distro's clock is ahead."""
    out: dict[str, Any] = {"powercfg": None, "registry": None, "clock_ahead_s": None}
    if there.windows and not there.why:
        key = r"HKLM\SYSTEM\CurrentControlSet\Control\Session Manager\Power"
        try:
            asked = [there.windows.run("powercfg.exe", "/q", "SCHEME_CURRENT", *setting)[1] for setting in POWER]
            out["powercfg"] = "".join(map(decode, asked))
            out["registry"] = decode(there.windows.run("reg.exe", "query", key, "/v", "HiberbootEnabled")[1])
        except NoInterop:
            pass  # what could not be asked stays None
    if there.profile:
        out["clock_ahead_s"] = _clock_ahead(f"{there.profile}/AppData/Local")
    return out


def _clock_ahead(folder: str) -> float | None:
    """Windows gives a file on its drive the time of its own clock."""
    path = f"{folder}/wsllama.clock.{os.getpid()}"
    try:
        with open(path, "xb") as f:
            f.write(b"wsllama")
        now = time.time()
        written = os.stat(path).st_mtime
        os.unlink(path)
    except OSError:
        return None
    return now - written


def running(there: Place) -> list[dict[str, Any]] | None:
    """Distros of this Windows user: name, running; None when they can't be asked."""
    if there.windows is None or there.why:
        return None
    try:
        code, said, _ = there.windows.run(windows.wsl_exe(there.windows), "-l", "-q")
        if code:
            return None
        every = decode(said).split("\n")
        _, said, _ = there.windows.run(
            windows.wsl_exe(there.windows), "-l", "-q", "--running"
        )  # what --verbose says is in Windows' language
    except NoInterop:
        return None
    on = {name.strip() for name in decode(said).split("\n")}
    return [{"name": name.strip(), "running": name.strip() in on} for name in every if name.strip()]


def main(argument: Mapping[str, Any]) -> None:
    there = place_of(argument["side"])
    try:
        if argument["action"] == "elevate":
            script = base64.b64decode(argument["script"]).decode()
            out = elevate(there, argument["steps"], argument["run"], script)
        elif argument["action"] == "settle":
            out = {"changed": settle(there)}
        else:
            out = {"power": power(there), "distros": running(there)}
    except OSError as e:
        raise SystemExit(f"{e.filename} can't be written: {e.strerror}") from None
    print(json.dumps(out))
