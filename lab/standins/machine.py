"""What every stand-in shares: the Windows machine's state in one folder of the host, paths, texts, and one logged call.

/run/lab-windows/
  config.json    what the test asked for (language, user, who may elevate, …)
  state.json     what the Windows side holds: tasks, port proxies, rules, distros
  calls.jsonl    every program that was started, one JSON line each
  proc/          files that are mounted over /proc/meminfo, swaps, cpuinfo, …
  lab/standins/  these programs
"""

import base64
import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path("/run/lab-windows")
CODE_PAGES = {"en": "cp437", "de": "cp850", "zh": "cp936"}


PROGRAMS: dict[str, Callable[["Call"], int]] = {}
"""File name, lower case -> what plays it; programs.py fills it."""


def insensitive(path: str) -> str | None:
    """A Linux path in whatever case NTFS would take it; None when there is none."""
    found = "/"
    for part in path.strip("/").split("/"):
        exact = os.path.join(found, part)
        if not os.path.lexists(exact):
            names = [name for name in os.listdir(found) if name.lower() == part.lower()] if os.path.isdir(found) else []
            if not names:
                return None
            exact = os.path.join(found, names[0])
        found = exact
    return found


class Machine:
    """The Windows machine: its configuration (fixed) and its state (a file that programs change under a lock)."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.drive: str = self.config["drive"]

    @property
    def state(self) -> dict[str, Any]:
        """The state as it is now; to change it use `change`."""
        found: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return found

    @contextlib.contextmanager
    def change(self) -> Iterator[dict[str, Any]]:
        """The state under a lock; what was changed in it is written when the block ends well."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.state
            yield state
            new = self.folder / "state.json.new"
            new.write_text(json.dumps(state))
            new.chmod(0o666)
            new.rename(self.folder / "state.json")

    @property
    def profile(self) -> str:
        """Windows path of the user's folder."""
        return f"C:\\Users\\{self.config['folder']}"

    def windows_path(self, path: str) -> str:
        """A Linux path as Windows names it: C:\\… below the drive, \\\\wsl.localhost\\<distro>\\… elsewhere."""
        if path == self.drive or path.startswith(self.drive + "/"):
            return "C:" + (path[len(self.drive) :].replace("/", "\\") or "\\")
        return f"\\\\wsl.localhost\\{self.config['distro']}" + path.replace("/", "\\")

    def linux_path(self, path: str) -> str | None:
        """A Windows path as the distro sees it; None when it has no such drive or share."""
        path = path.replace("/", "\\")
        if re.match(r"[Cc]:(\\|$)", path):
            return self.drive + path[2:].replace("\\", "/")
        share = re.match(r"\\\\wsl(?:\.localhost|\$)\\([^\\]+)(\\.*)?$", path, re.IGNORECASE)
        if share and share[1].lower() == self.config["distro"].lower():
            return (share[2] or "\\").replace("\\", "/")
        return None

    def environment(self) -> dict[str, str]:
        """The variables that a program of the Windows user starts with."""
        profile = self.profile
        return {
            "APPDATA": profile + "\\AppData\\Roaming",
            "COMPUTERNAME": "LABPC",
            "ComSpec": "C:\\Windows\\System32\\cmd.exe",
            "LOCALAPPDATA": profile + "\\AppData\\Local",
            "OS": "Windows_NT",
            "Path": "C:\\Windows\\System32;C:\\Windows;C:\\Windows\\System32\\WindowsPowerShell\\v1.0",
            "ProgramFiles": "C:\\Program Files",
            "SystemDrive": "C:",
            "SystemRoot": "C:\\Windows",
            "TEMP": profile + "\\AppData\\Local\\Temp",
            "USERDOMAIN": self.config["domain"],
            "USERNAME": self.config["user"],
            "USERPROFILE": profile,
            "windir": "C:\\Windows",
        }

    def text(self, texts: dict[str, str]) -> str:
        """A message in the machine's language."""
        return texts[self.config["language"]]


class Call:
    """One program that was started, with what a Windows program finds: command line, folder, variables, rights.

    + path: Windows path of the program
    + words: command line as words, the program's own name first
    + cwd: Windows path of the current folder
    + environment: its variables
    + elevated: runs with an administrator's rights
    """

    def __init__(
        self, machine: Machine, path: str, words: list[str], cwd: str, environment: dict[str, str], elevated: bool = False
    ) -> None:
        self.machine = machine
        self.path = path
        self.program = path.rpartition("\\")[2].lower()
        self.words = words
        self.cwd = cwd
        self.environment = environment
        self.elevated = elevated
        self.unicode = False

    @property
    def args(self) -> list[str]:
        """The words behind the program's name."""
        return self.words[1:]

    def encode(self, text: str) -> bytes:
        """Text as a program of the console writes it into a pipe: CRLF, OEM code page (UTF-16LE after cmd's /U)."""
        lines = text.replace("\n", "\r\n")
        return lines.encode("utf-16-le") if self.unicode else lines.encode(self.code_page, "replace")

    @property
    def code_page(self) -> str:
        return CODE_PAGES[self.machine.config["language"]]

    def write(self, text: str) -> None:
        """Text on stdout."""
        os.write(1, self.encode(text))

    def complain(self, text: str) -> None:
        """Text on stderr."""
        os.write(2, self.encode(text))

    def run(self) -> int:
        """Let the stand-in play it. Returns Windows' exit code (32 bits)."""
        return PROGRAMS[self.program](self)

    def child(self, path: str, words: list[str], *, elevated: bool = False) -> "Call":
        """A program that this one starts: same folder and variables, at least its rights."""
        return Call(self.machine, path, words, self.cwd, dict(self.environment), elevated or self.elevated)

    def find(self, name: str) -> str | None:
        """Windows path of a program, by path or by name along Path; None when there is none."""
        names = [name] if "." in name.rpartition("\\")[2] else [name + ".exe", name]
        absolute = re.match(r"[A-Za-z]:|\\\\", name)
        folders = [self.cwd] if "\\" in name else [self.cwd, *self.environment["Path"].split(";")]
        for candidate in names if absolute else (f"{folder}\\{each}" for folder in folders for each in names):
            path = self.machine.linux_path(candidate)
            if path and (real := insensitive(path)) and Path(real).is_file():
                return self.machine.windows_path(real)
        return None

    def read(self, windows_path: str) -> bytes | None:
        """A file that an argument names, relative to the current folder; None when it isn't there."""
        absolute = windows_path if re.match(r"[A-Za-z]:|\\\\|//", windows_path) else f"{self.cwd}\\{windows_path}"
        path = self.machine.linux_path(absolute)
        real = insensitive(path) if path else None
        return Path(real).read_bytes() if real and Path(real).is_file() else None

    def log(self, *, stdin: bytes = b"", files: dict[str, bytes] | None = None) -> None:
        """Write the call down, so that a test sees what ran, and what did not."""
        entry = {
            "program": self.program,
            "argv": self.words,
            "cwd": self.cwd,
            "elevated": self.elevated,
            "time": time.time(),
            "stdin": base64.b64encode(stdin).decode(),
            "files": {name: base64.b64encode(data).decode() for name, data in (files or {}).items()},
        }
        descriptor = os.open(self.machine.folder / "calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
        os.close(descriptor)
