"""What starts the distro with the Windows user's session and keeps it running: a logon task, or a file in the Startup folder.
Pure: what they say, what is wrong with one, which of them is in effect.

Services don't keep a distro running, a client on Windows does (microsoft/WSL: the timer of an instance starts when its last
client leaves). The client is wslg.exe, which stands beside wsl.exe, takes the same options and waits for its process in the same
way, but belongs to Windows' graphical subsystem, so there is no console window that shows, and that ends the distro when it is
closed (microsoft/WSL: src/windows/wslg/main.cpp, WslgMain and SvcComm::LaunchProcess). It knows no --exec; `--shell-type none --`
is that. What else hides a window is worse: `conhost --headless` has failed at logon (0x80070003) though it works by hand,
VBScript is being taken out of Windows, and PowerShell's -WindowStyle Hidden shows the window before it hides it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree
from xml.sax.saxutils import escape

PROGRAM = r"C:\Program Files\WSL\wslg.exe"
_NAMESPACE = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"
_DISTRO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Accounts of Windows itself, by SID and by the last part of a name that languages write differently.
_SYSTEM = re.compile(r"S-1-5-(18|19|20)|(.*\\)?(SYSTEM|LOCAL ?SERVICE|NETWORK ?SERVICE)", re.I)
_SID = re.compile(r"S-1-[0-9-]+", re.I)
IDLE_KEYS = ("general.instanceIdleTimeout", "wsl2.vmIdleTimeout")


@dataclass(frozen=True)
class InEffect:
    """mechanism: what starts the distro at logon; idle: both idle keys are set; problems: why a mechanism that is there doesn't
    count, one sentence each."""

    mechanism: Literal["task", "startup", "none"]
    idle: bool
    problems: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """For people."""
        starts = {
            "task": "a task starts the distro when its user logs on",
            "startup": "a file in the Startup folder starts the distro when its user logs on",
            "none": "nothing starts the distro when its user logs on",
        }[self.mechanism]
        return f"{starts}; " + ("it isn't ended when idle" if self.idle else "WSL may end it when idle")


def checked(distro: str) -> str:
    """The distro's name, when it can stand in command lines of Windows. Raises ValueError with one sentence."""
    if not _DISTRO.fullmatch(distro):
        raise ValueError(
            f"the distro's name {distro!r} has more than letters, digits, dot, - and _, which Windows' command lines can't carry"
            " safely: import it under another name, or set wsl.keep_alive to off"
        )
    return distro


def task_name(distro: str) -> str:
    """Of the task in the Task Scheduler."""
    return f"wsllama-keep-alive-{distro}"


def startup_name(distro: str) -> str:
    """Of the file in the Startup folder."""
    return f"{task_name(distro)}.cmd"


def arguments(distro: str) -> str:
    """Command line behind PROGRAM. Raises ValueError for a name that can't stand there."""
    return f"-d {checked(distro)} -u root --shell-type none -- /bin/sleep infinity"


def task_values(distro: str, user: str) -> dict[str, str]:
    """Values for templates/windows/keep-alive.xml, as XML writes them. user: as Windows has it, PC\\name; any letters."""
    values = {"distro": distro, "user": user, "program": PROGRAM, "arguments": arguments(distro)}
    return {name: escape(value) for name, value in values.items()}


def startup_values(distro: str) -> dict[str, str]:
    """Values for templates/windows/keep-alive.cmd."""
    return {"distro": distro, "program": PROGRAM, "arguments": arguments(distro)}


def task_file(text: str) -> bytes:
    """A task's XML as the Task Scheduler reads it: UTF-16LE with its mark, lines that end as Windows' do."""
    return b"\xff\xfe" + text.replace("\n", "\r\n").encode("utf-16-le")


def startup_file(text: str) -> bytes:
    """The same for the Startup folder's file; ASCII, because cmd.exe reads it in the machine's code page."""
    return text.replace("\n", "\r\n").encode("ascii")


def lint_task(xml: bytes) -> list[str]:
    """What keeps this task from holding a distro, one sentence each; an empty list when nothing does.

    xml: as a file has it, or as `schtasks /Query /XML` prints it: that says UTF-16 but is not always. What a task doesn't say
    counts with the Task Scheduler's defaults ([MS-TSCH] 2.5: 72 hours, no start on batteries, a stop on them).
    """
    text = _text(xml)
    if "<!DOCTYPE" in text:
        return ["it is no task: a task has no DOCTYPE"]
    try:
        task = ElementTree.fromstring(re.sub(r"^\s*<\?xml[^>]*\?>", "", text))
    except ElementTree.ParseError as e:
        return [f"it is no XML: {e}"]
    if task.tag != f"{_NAMESPACE}Task":
        return ["it is no task of the Task Scheduler"]
    return [*_settings(task), *_user(task), *_trigger(task), *_action(task)]


def differences(xml: bytes, distro: str, user: str | None) -> list[str]:
    """What `lint_task` finds, or that the task is of another distro or user. user: None when it isn't known."""
    if found := lint_task(xml):
        return found
    task = ElementTree.fromstring(re.sub(r"^\s*<\?xml[^>]*\?>", "", _text(xml)))
    if _said(task, "Actions/Exec/Arguments") != arguments(distro):
        return [f"it runs {_said(task, 'Actions/Exec/Arguments')!r} instead of {arguments(distro)!r}"]
    of = _said(task, "Principals/Principal/UserId")
    # schtasks prints a SID, and other letters than ASCII's in some code page: nothing can be said of these
    if user and of.isascii() and user.isascii() and not _SID.fullmatch(of) and of.lower() != user.lower():
        return [f"it is of {of}, but the distro is {user}'s"]
    return []


def in_effect(
    task: bytes | None, startup: bytes | None, *, distro: str, user: str | None, wanted: bytes, values: Mapping[str, object]
) -> InEffect:
    """Which mechanism holds.

    task: XML of the registered task; startup: bytes of the Startup folder's file; None where there is none; wanted: what that
    file has to hold; values: of .wslconfig as WSL reads it, by full name.
    """
    idle = all(isinstance(value := values.get(key), int) and value < 0 for key in IDLE_KEYS)
    problems = differences(task, distro, user) if task is not None else []
    if task is not None and not problems:
        return InEffect("task", idle)
    if startup == wanted:
        return InEffect("startup", idle, tuple(problems))
    if startup is not None:
        problems.append(f"{startup_name(distro)} in the Startup folder is not as wsllama wrote it")
    return InEffect("none", idle, tuple(problems))


def _text(data: bytes) -> str:
    if data.startswith(b"\xff\xfe") or b"<\0" in data[:4]:
        return data.decode("utf-16-le", "replace").lstrip("\ufeff")
    return data.decode("utf-8-sig", "replace")


def _said(task: ElementTree.Element, path: str) -> str:
    found = task.find("/".join(_NAMESPACE + part for part in path.split("/")))
    return (found.text or "").strip() if found is not None else ""


def _true(task: ElementTree.Element, name: str, default: bool) -> bool:
    said = _said(task, f"Settings/{name}").lower()
    return default if not said else said in ("true", "1")


def _settings(task: ElementTree.Element) -> Iterator[str]:
    if (limit := _said(task, "Settings/ExecutionTimeLimit")) not in ("PT0S", "P0D"):
        yield f"it is ended after {limit or '3 days'}: ExecutionTimeLimit has to be PT0S"
    if _true(task, "DisallowStartIfOnBatteries", True):
        yield "it isn't started on batteries: DisallowStartIfOnBatteries has to be false"
    if _true(task, "StopIfGoingOnBatteries", True):
        yield "it is stopped on batteries: StopIfGoingOnBatteries has to be false"
    if (policy := _said(task, "Settings/MultipleInstancesPolicy")) not in ("", "IgnoreNew"):
        yield f"a second logon ends or doubles it: MultipleInstancesPolicy is {policy} instead of IgnoreNew"
    if not _true(task, "Enabled", True):
        yield "it is disabled"
    if _true(task, "RunOnlyIfIdle", False):
        yield "it runs only while the machine is idle: RunOnlyIfIdle has to be false"
    if _true(task, "RunOnlyIfNetworkAvailable", False):
        yield "it waits for a network: RunOnlyIfNetworkAvailable has to be false"


def _user(task: ElementTree.Element) -> Iterator[str]:
    user = _said(task, "Principals/Principal/UserId")
    if _SYSTEM.fullmatch(user):
        yield f"it runs as {user}, who has no distros: distros belong to a Windows user"
    elif not user:
        yield "it names no user: distros belong to a Windows user"
    if (logon := _said(task, "Principals/Principal/LogonType")) != "InteractiveToken":
        yield f"it logs on by {logon or 'nothing'} instead of in the user's own session: LogonType has to be InteractiveToken"
    if _said(task, "Principals/Principal/RunLevel") == "HighestAvailable":
        yield "it runs as an administrator, which it needn't: RunLevel has to be LeastPrivilege"


def _trigger(task: ElementTree.Element) -> Iterator[str]:
    trigger = task.find(f"{_NAMESPACE}Triggers/{_NAMESPACE}LogonTrigger")
    if trigger is None:
        yield "it isn't started when the user logs on: it has no LogonTrigger"
    elif _said(trigger, "Enabled").lower() in ("false", "0"):
        yield "it isn't started when the user logs on: its LogonTrigger is disabled"
    elif not _said(trigger, "UserId"):
        yield "every user who logs on starts it: its LogonTrigger has no UserId"


def _action(task: ElementTree.Element) -> Iterator[str]:
    command = _said(task, "Actions/Exec/Command").strip('"')
    line = f"{command} {_said(task, 'Actions/Exec/Arguments')}".lower()
    if "windowsapps" in line:
        yield rf"it starts the Store's alias, which fails in other sessions (WSL#9231): the program is {PROGRAM}"
    elif command.lower() == PROGRAM.lower().replace("wslg.exe", "wsl.exe"):
        yield f"its console window shows, and ends it when it is closed: the program is {PROGRAM}"
    elif command.lower() != PROGRAM.lower():
        yield f"it starts {command or 'nothing'}: the program is {PROGRAM}"
