"""What of Windows' power settings ends a server, or lets its clock jump: findings, each with the one command. Pure.

Sleep, hibernation and fast startup break the distro's network or hang its virtual machine (WSL#8696, #12747, #8825, #5317).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STANDBY = "29f6c1db-86da-48c5-9fdb-f2b67b1f44da"
HIBERNATE = "9d7815a6-7ee4-497e-8888-515a05f02364"
LID = "5ca83367-6e45-459f-a27b-476b1d01c936"
FAST_STARTUP = r"HKLM\SYSTEM\CurrentControlSet\Control\Session Manager\Power"
FAST_STARTUP_VALUE = "HiberbootEnabled"
JUMPED_S = 5.0
_GUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@dataclass(frozen=True)
class Finding:
    """id: a short name; says: one sentence; command: what to run on Windows, in cmd.exe; admin: as an administrator."""

    id: str
    says: str
    command: str
    admin: bool = False


def plugged(text: str) -> dict[str, int]:
    """GUID of each setting -> its value while plugged in, from `powercfg /q`.

    The words are in Windows' language; the GUIDs and the numbers aren't: the last two numbers with 0x of a setting are those for
    plugged in and for batteries.
    """
    out: dict[str, int] = {}
    # a scheme, a group and a setting all begin with a line that has a GUID; only a setting has values
    parts = re.split(rf"^.*?\b({_GUID})\b.*$", text, flags=re.M | re.I)
    for guid, body in zip(parts[1::2], parts[2::2], strict=True):
        numbers = re.findall(r"\b0x([0-9a-f]{8})\b", body, re.I)
        if len(numbers) >= 2:
            out[guid.lower()] = int(numbers[-2], 16)
    return out


def registry_number(text: str, name: str) -> int | None:
    """A REG_DWORD from `reg query`; None when it isn't told."""
    found = re.search(rf"^\s*{re.escape(name)}\s+REG_DWORD\s+0x([0-9a-f]+)\s*$", text, re.M | re.I)
    return int(found[1], 16) if found else None


def findings(powercfg: str | None, registry: str | None, clock_ahead_s: float | None, distro: str | None = None) -> list[Finding]:
    """What should be changed on this machine.

    powercfg: text of `powercfg /q`; registry: of `reg query` for fast startup; clock_ahead_s: seconds by which the distro's clock
    is ahead of Windows'; None for what could not be asked; distro: its name.
    """
    out = []
    values = plugged(powercfg or "")
    for guid, what, word in ((STANDBY, "goes to sleep", "standby"), (HIBERNATE, "hibernates", "hibernate")):
        if seconds := values.get(guid):
            says = f"Windows {what} after {seconds // 60} minutes without input, and the server with it"
            out.append(Finding(word, says, f"powercfg /change {word}-timeout-ac 0"))
    if action := values.get(LID):
        does = {1: "sends Windows to sleep", 2: "hibernates Windows", 3: "shuts Windows down"}.get(action, "ends the session")
        command = "powercfg /setacvalueindex scheme_current sub_buttons lidaction 0 && powercfg /setactive scheme_current"
        out.append(Finding("lid", f"closing the lid {does}", command))
    if registry is not None and registry_number(registry, FAST_STARTUP_VALUE):
        says = "fast startup is on, after which WSL's network may be dead: what looks like a start is the end of a hibernation"
        command = f'reg add "{FAST_STARTUP}" /v {FAST_STARTUP_VALUE} /t REG_DWORD /d 0 /f'
        out.append(Finding("fast-startup", says, command, admin=True))
    if clock_ahead_s is not None and abs(clock_ahead_s) > JUMPED_S:
        way = "ahead of" if clock_ahead_s > 0 else "behind"
        says = f"the distro's clock is {abs(clock_ahead_s):.0f} s {way} Windows', as after a sleep"
        out.append(Finding("clock", says, f"wsl -d {distro or 'DISTRO'} -u root --exec hwclock --hctosys"))
    return out
