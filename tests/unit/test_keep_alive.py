"""The logon task and the Startup folder's file: what they say, what is wrong with others, which is in effect."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from wsllama.domain import keep_alive
from wsllama.domain.keep_alive import IDLE_KEYS, PROGRAM, differences, in_effect, lint_task
from wsllama.operations.keep_alive import startup_bytes, task_bytes

DISTRO, USER = "Ubuntu-24.04", "PC\\Zoë & 用户 <x>"
NAMESPACE = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"


def changed(old: str, new: str) -> bytes:
    """Our task with another text in it."""
    text = task_bytes(DISTRO, "PC\\Ada").decode("utf-16")
    assert old in text
    return b"\xff\xfe" + text.replace(old, new).encode("utf-16-le")


def test_the_task_is_utf_16_with_its_mark_and_parses_with_any_user_name() -> None:
    data = task_bytes(DISTRO, USER)
    assert data.startswith(b"\xff\xfe<\0?\0")
    text = data.decode("utf-16")
    assert "\n" not in text.replace("\r\n", "")
    task = ElementTree.fromstring(data)
    users = [e.text for e in task.iter(f"{NAMESPACE}UserId")]
    assert users == [USER, USER]
    assert task.findtext(f".//{NAMESPACE}Command") == r"C:\Program Files\WSL\wslg.exe"
    assert task.findtext(f".//{NAMESPACE}Arguments") == "-d Ubuntu-24.04 -u root --shell-type none -- /bin/sleep infinity"
    assert lint_task(data) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<ExecutionTimeLimit>PT0S</ExecutionTimeLimit>", "", "3 days"),
        ("PT0S", "PT72H", "PT72H"),
        ("<DisallowStartIfOnBatteries>false", "<DisallowStartIfOnBatteries>true", "isn't started on batteries"),
        ("<DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>", "", "isn't started on batteries"),
        ("<StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>", "", "stopped on batteries"),
        ("IgnoreNew", "StopExisting", "StopExisting"),
        ("<Enabled>true</Enabled>\r\n    <Hidden>", "<Enabled>false</Enabled>\r\n    <Hidden>", "disabled"),
        ("<Enabled>true</Enabled>\r\n      <UserId>", "<Enabled>false</Enabled>\r\n      <UserId>", "LogonTrigger is disabled"),
        ("<UserId>PC\\Ada</UserId>\r\n    </LogonTrigger>", "</LogonTrigger>", "every user"),
        ("LogonTrigger", "BootTrigger", "no LogonTrigger"),
        (
            "<UserId>PC\\Ada</UserId>\r\n      <LogonType>",
            "<UserId>S-1-5-18</UserId>\r\n      <LogonType>",
            "S-1-5-18, who has no distros",
        ),
        (
            "<UserId>PC\\Ada</UserId>\r\n      <LogonType>",
            "<UserId>NT AUTHORITY\\SYSTEM</UserId>\r\n      <LogonType>",
            "no distros",
        ),
        ("InteractiveToken", "S4U", "S4U"),
        ("LeastPrivilege", "HighestAvailable", "administrator"),
        ("<RunOnlyIfIdle>false", "<RunOnlyIfIdle>true", "idle"),
        ("<RunOnlyIfNetworkAvailable>false", "<RunOnlyIfNetworkAvailable>true", "network"),
        (PROGRAM, r"C:\Users\Ada\AppData\Local\Microsoft\WindowsApps\wsl.exe", "Store's alias"),
        (PROGRAM, r"C:\Program Files\WSL\wsl.exe", "console window"),
        (PROGRAM, r"C:\Windows\System32\wsl.exe", "it starts C:\\Windows\\System32\\wsl.exe"),
    ],
)
def test_what_keeps_a_task_from_holding_a_distro_is_found(old: str, new: str, said: str) -> None:
    found = lint_task(changed(old, new))
    assert len(found) == 1, found
    assert said in found[0]


@pytest.mark.parametrize("junk", [b"", b"\xff\xfe", b"<x/>", b"<!DOCTYPE a [<!ENTITY b 'c'>]><a/>", b"ERROR: The system cannot"])
def test_what_is_no_task_is_said_to_be_none(junk: bytes) -> None:
    assert len(lint_task(junk)) == 1
    assert differences(junk, DISTRO, None) == lint_task(junk)


def test_what_schtasks_prints_says_utf_16_and_is_not() -> None:
    text = task_bytes(DISTRO, "PC\\Zoë").decode("utf-16")
    printed = re.sub(r"<UserId>PC.Zoë(</UserId>\s+<LogonType>)", r"<UserId>S-1-5-21-1-2-3-1001\1", text)
    data = printed.encode("cp850")
    assert b'encoding="UTF-16"' in data
    assert differences(data, DISTRO, "PC\\Zoë") == []


def test_a_task_of_another_distro_or_user_is_not_ours() -> None:
    ours = task_bytes(DISTRO, "PC\\Ada")
    assert differences(ours, DISTRO, "pc\\ada") == []
    assert "instead of '-d Debian" in differences(ours, "Debian", "PC\\Ada")[0]
    assert differences(ours, DISTRO, "PC\\Bob") == ["it is of PC\\Ada, but the distro is PC\\Bob's"]


def test_the_startup_file_is_ascii_with_windows_line_ends_and_starts_it_without_a_window() -> None:
    lines = startup_bytes(DISTRO).decode("ascii").split("\r\n")
    assert lines[1] == f'@start "" "{PROGRAM}" -d Ubuntu-24.04 -u root --shell-type none -- /bin/sleep infinity'
    assert lines[2:] == [""]


@pytest.mark.parametrize("name", ["", "-x", "Ubuntu & calc", 'a"b', "Übuntu", "a\nb", "%PATH%"])
def test_a_name_that_a_command_line_cannot_carry_is_refused(name: str) -> None:
    for render in (startup_bytes, lambda distro: task_bytes(distro, "PC\\Ada")):
        with pytest.raises(ValueError, match="import it under another name"):
            render(name)


IDLE: dict[str, Any] = dict.fromkeys(IDLE_KEYS, -1)
OURS: dict[str, Any] = {"distro": DISTRO, "user": "PC\\Ada", "wanted": startup_bytes(DISTRO)}


@pytest.mark.parametrize(
    ("task", "startup", "values", "mechanism", "idle", "problem"),
    [
        (task_bytes(DISTRO, "PC\\Ada"), None, IDLE, "task", True, ""),
        (task_bytes(DISTRO, "PC\\Ada"), startup_bytes(DISTRO), {}, "task", False, ""),
        (changed("PT0S", "PT72H"), startup_bytes(DISTRO), IDLE, "startup", True, "PT72H"),
        (changed("PT0S", "PT72H"), None, IDLE, "none", True, "PT72H"),
        (None, startup_bytes(DISTRO), {**IDLE, "wsl2.vmIdleTimeout": 60000}, "startup", False, ""),
        (None, b"@rem mine\r\n", IDLE, "none", True, "not as wsllama wrote it"),
        (None, None, {"wsl2.vmIdleTimeout": -1}, "none", False, ""),
    ],
)
def test_which_mechanism_is_in_effect(
    task: bytes | None, startup: bytes | None, values: dict[str, Any], mechanism: str, idle: bool, problem: str
) -> None:
    found = in_effect(task, startup, values=values, **OURS)
    assert (found.mechanism, found.idle) == (mechanism, idle)
    assert problem in " ".join(found.problems)
    assert bool(problem) == bool(found.problems)
    assert found.sentence.startswith({"task": "a task", "startup": "a file", "none": "nothing"}[mechanism])
    assert keep_alive.startup_name(DISTRO) == "wsllama-keep-alive-Ubuntu-24.04.cmd"
