"""Field cases, section C: Windows programs out of a distro, and the Windows user's folder. The rows:
tests/data/field_cases.json. Windows' programs are small ones that answer as theirs do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_connectors import behind_ssh, run, server
from tests.unit.test_interop import listener, machine
from tests.unit.test_transfer import needs_sshd
from wsllama.domain import build, toolkit
from wsllama.host import interop, windows, windows_side
from wsllama.operations import files

__all__ = ["behind_ssh", "machine", "server"]  # fixtures

HINT = {"profile": None, "windows": True}
NAME = "K\u00f6ln"
UNC = (
    "'\\\\wsl.localhost\\Ubuntu\\root'\r\nCMD.EXE was started with the above path as the current directory.\r\n"
    "UNC paths are not supported.  Defaulting to Windows directory.\r\n"
)
# What /init starts here: cmd.exe that answers in code page 850 unless /U asks for UTF-16, with the banner of a folder that is
# not on a drive; each call is logged. Anything else it says is said by a file beside the program.
INIT = f"""#!/usr/bin/env python3
import os, pathlib, sys
program, arguments = pathlib.Path(sys.argv[1]), sys.argv[3:]
here = pathlib.Path(__file__).parent
with open(here / "log", "a") as log:
    print(program.name, *arguments, file=log)
if program.name == "cmd.exe":
    text = arguments[-1].removeprefix("echo.").replace("%USERPROFILE%", "C:\\\\Users\\\\{NAME}")
    text = text.replace("%USERDOMAIN%", "PC").replace("%USERNAME%", "{NAME}") + "\\r\\n"
    if not os.getcwd().startswith(str(here / "c")) or (here / "always").exists():
        text = {UNC!r} + text * (not (here / "nothing").exists())
    sys.stdout.buffer.write(text.encode("utf-16-le" if "/U" in arguments else "cp850"))
else:
    sys.stdout.buffer.write(program.with_name(program.name + "-".join(["", *arguments])).read_bytes())
"""


@pytest.fixture
def ada(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The machine of test_interop.py with that /init, and a user whose name is not ASCII."""
    (machine / "init").write_text(INIT)
    profile = machine / "c/Users" / NAME
    (profile / "AppData").mkdir(parents=True)
    (profile.parent / "Eve/AppData").mkdir(parents=True)
    there = interop.Windows(str(machine / "c"), {"C": str(machine / "c")})
    monkeypatch.setattr(interop, "find", lambda: there)
    for name, path in {"STATE": "s", "JOURNAL": "s/journal.json", "PROFILE": "s/profile.json", "WSLCONF": "wsl.conf"}.items():
        monkeypatch.setattr(windows, name, str(machine / path))
    monkeypatch.setenv("WSL_DISTRO_NAME", "Ubuntu")
    with listener(machine, "1_interop"):
        yield machine


def log(machine: Path) -> list[str]:
    return (machine / "log").read_text().splitlines()


def test_28_a_name_comes_as_utf_16(ada: Path) -> None:
    side = windows.side(HINT)
    assert (side["profile"], side["user"], side["interop"]) == (f"{ada}/c/Users/{NAME}", f"PC\\{NAME}", None)
    assert side["profile_windows"] == f"C:\\Users\\{NAME}"
    assert log(ada) == ["cmd.exe /U /D /C echo.%USERPROFILE%", "cmd.exe /U /D /C echo.%USERDOMAIN%\\%USERNAME%"]


def test_28_a_name_in_a_code_page_is_no_folder_and_no_crash(ada: Path) -> None:
    said = b"C:\\Users\\K\x94ln\r\n"
    assert interop.decode(said) == "C:\\Users\\K\ufffdln\n"
    (ada / "said").write_bytes(said)
    (ada / "init").write_text(f"#!/bin/sh\nexec cat '{ada}/said'\n")
    side = windows.side(HINT)
    assert side["profile"] is None
    assert side["why"] == f"there is no folder {ada}/c/Users/K\ufffdln"


def test_29_without_an_entry_in_binfmt_misc_init_starts_programs(ada: Path) -> None:
    """The file is a Windows program, of which nothing but /init makes anything here."""
    program = ada / "c/Windows/System32/cmd.exe"
    assert (program.read_bytes(), program.stat().st_mode & 0o111) == (b"MZ", 0)
    assert interop.blocked() is None
    assert windows.side(HINT)["profile"] == f"{ada}/c/Users/{NAME}"
    assert len(log(ada)) == 2


def test_29_what_init_itself_can_not_start_is_told(ada: Path) -> None:
    (ada / "init").write_bytes(b"\x7fELF")
    side = windows.side(HINT)
    assert "Exec format error" in side["interop"]
    assert side["candidates"] == [f"{ada}/c/Users/Eve", f"{ada}/c/Users/{NAME}"]


def test_31_no_plan_has_wslu(ada: Path) -> None:
    """Neither in the packages of any distro, nor in what is carried out; the folder is found without its programs."""
    names = set(build.every_package())
    for distro in toolkit.GLIBC:
        names |= set(toolkit.choose(distro, "610.74", ["8.9"]).build_packages)
    assert {"cmake", "ninja-build"} & names
    assert not {name for name in names if "wslu" in name}
    carried_out = [
        path for folder in ("templates", "wsllama/host", "tasks", "scripts") for path in (files.ROOT / folder).rglob("*")
    ]
    texts = {
        path: path.read_text()
        for path in [*carried_out, files.ROOT / "bootstrap.ps1"]
        if path.is_file() and path.suffix != ".pyc"
    }
    assert any("packages=(python3 python3-venv git sudo)" in text for text in texts.values())
    wslu = re.compile(r"\b(wslu|wslvar|wslview|wslfetch|wslsys|wslusc|wslupath)\b")
    assert [str(path) for path, text in texts.items() if wslu.search(text)] == []
    assert windows.side(HINT)["profile"]
    assert {line.split()[0] for line in log(ada)} == {"cmd.exe"}


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_32_names_of_distros_are_utf_16(ada: Path, mark: str) -> None:
    program = ada / "c/Program Files/WSL/wsl.exe"
    program.parent.mkdir(parents=True)
    program.touch()
    answers = {"-l--q": "Ubuntu\r\nDebian\r\ndocker-desktop\r\n", "-l--q---running": "Ubuntu\r\ndocker-desktop\r\n"}
    for words, text in answers.items():
        program.with_name(f"wsl.exe-{words}").write_bytes((mark + text).encode("utf-16-le"))
    assert program.with_name("wsl.exe--l--q").read_bytes().removeprefix(b"\xff\xfe")[:6] == b"U\0b\0u\0"
    there = interop.find()
    assert there
    assert windows.running(there) == {"running": ["Ubuntu", "docker-desktop"]}
    place = windows_side.Place(there, None, "Ubuntu", None, None)
    assert windows_side.running(place) == [
        {"name": "Ubuntu", "running": True},
        {"name": "Debian", "running": False},
        {"name": "docker-desktop", "running": True},
    ]


@pytest.mark.parametrize("always", [False, True])
def test_34_a_banner_about_the_folder_is_not_the_profile(ada: Path, monkeypatch: pytest.MonkeyPatch, always: bool) -> None:
    """Programs are started in a folder of Windows, so that it does not come; when it comes, it is passed over."""
    monkeypatch.chdir("/")
    if always:
        (ada / "always").touch()
    side = windows.side(HINT)
    assert (side["profile"], side["user"]) == (f"{ada}/c/Users/{NAME}", f"PC\\{NAME}")
    there = interop.find()
    assert there
    said = interop.decode(there.run("cmd.exe", "/U", "/D", "/C", "echo.x")[1])
    assert ("UNC paths are not supported" in said) == always


def test_34_the_banner_alone_is_no_profile_either(ada: Path) -> None:
    (ada / "always").touch()
    (ada / "nothing").touch()
    side = windows.side(HINT)
    assert side["profile"] is None
    assert "UNC paths are not supported.  Defaulting to Windows directory. as its user's, which is not here" in side["why"]


@needs_sshd
@pytest.mark.parametrize("text", ['echo "a b"', "echo 'a b'", "printf '%s %s\\n' a b", 'x="a b"; echo "$x"', "echo a\\ b"])
def test_35_quotes_pass_the_server_of_windows(behind_ssh: Any, text: str) -> None:
    """The server there takes one command line only, without any of these."""
    assert run(behind_ssh, text) == (True, "a b", "")
