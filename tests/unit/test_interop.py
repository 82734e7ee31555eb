"""Windows programs are started through /init, whatever interop's sockets and the drives' mounts look like."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from wsllama.host import interop

# A stand-in for /init: it says which socket it asks, or what the real one says when nobody answers.
INIT = """#!/usr/bin/env python3
import os, socket, sys
name = os.environ.get("WSL_INTEROP", "")
try:
    if not name: raise OSError
    socket.socket(socket.AF_UNIX).connect(name)
except OSError:
    print("<3>WSL (17 - ) ERROR: UtilConnectUnix:483: connect failed 111", file=sys.stderr)
    sys.exit(1)
print("|".join([os.path.basename(name), os.getcwd(), *sys.argv[1:]]))
sys.exit(3)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with init, a drive c, and a folder of sockets of which 7_interop is dead."""
    (tmp_path / "init").write_text(INIT)
    (tmp_path / "init").chmod(stat.S_IRWXU)
    (tmp_path / "c/Windows/System32").mkdir(parents=True)
    (tmp_path / "c/Windows/System32/cmd.exe").write_bytes(b"MZ")
    (tmp_path / "run").mkdir()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "run/7_interop"))
    dead.close()
    monkeypatch.setattr(interop, "INIT", str(tmp_path / "init"))
    monkeypatch.setattr(interop, "SOCKETS", str(tmp_path / "run"))
    monkeypatch.delenv("WSL_INTEROP", raising=False)
    return tmp_path


def listener(machine: Path, name: str, age: float = 0) -> socket.socket:
    s = socket.socket(socket.AF_UNIX)
    path = machine / "run" / name
    s.bind(str(path))
    s.listen()
    os.utime(path, (1e9 - age, 1e9 - age))
    return s


def windows(machine: Path) -> interop.Windows:
    return interop.Windows(str(machine / "c"), {"C": str(machine / "c")})


def asked(machine: Path) -> str:
    return windows(machine).run("cmd.exe")[1].decode().partition("|")[0]


def test_a_program_gets_its_arguments_as_they_are_in_a_folder_of_windows(machine: Path) -> None:
    with listener(machine, "1_interop"):
        status, out, err = windows(machine).run("cmd.exe", "/U", "a b", '"$x"')
    c = machine / "c"
    assert out.decode() == f'1_interop|{c}|{c}/Windows/System32/cmd.exe|{c}/Windows/System32/cmd.exe|/U|a b|"$x"\n'
    assert (status, err) == (3, b"")


def test_a_program_by_its_path(machine: Path) -> None:
    (machine / "wsl.exe").touch()
    with listener(machine, "1_interop"):
        assert (
            f"|{machine}/wsl.exe|{machine}/wsl.exe|--version"
            in windows(machine).run(f"{machine}/wsl.exe", "--version")[1].decode()
        )


def test_the_socket_that_is_asked(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listener(machine, "5_interop", age=9), listener(machine, "6_interop", age=5):
        monkeypatch.setenv("WSL_INTEROP", str(machine / "run/7_interop"))
        assert asked(machine) == "6_interop", "the newest that lives, when the named one is dead"
        with listener(machine, "1_interop", age=99):
            assert asked(machine) == "1_interop", "systemd's, whatever its age"
            monkeypatch.setenv("WSL_INTEROP", str(machine / "run/5_interop"))
            assert asked(machine) == "5_interop", "the session's own"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("sockets", "connect failed 111 (is interop off in /etc/wsl.conf"),
        ("silent", "nobody listens on a socket in "),
        ("init", "there is no "),
        ("program", "Windows has no "),
        ("slow", "did not end within 0.2 s"),
        ("format", "Exec format error"),
    ],
)
def test_why_a_program_does_not_start(machine: Path, broken: str, said: str) -> None:
    if broken == "init":
        (machine / "init").unlink()
    elif broken == "program":
        (machine / "c/Windows/System32/cmd.exe").unlink()
    elif broken == "silent":
        (machine / "init").write_text("#!/bin/sh\nexit 1\n")
    elif broken == "slow":
        (machine / "init").write_text("#!/bin/sh\nexec sleep 3600\n")
    elif broken == "format":
        (machine / "init").write_bytes(b"\x7fELF junk")
    with pytest.raises(interop.NoInterop) as raised:
        windows(machine).run("cmd.exe", timeout=0.2 if broken == "slow" else 600)
    assert said in str(raised.value)


def test_a_program_that_windows_refuses_is_no_answer_of_the_program(machine: Path) -> None:
    (machine / "init").write_text('#!/bin/sh\necho "$1: Permission denied" >&2; exit 1\n')
    with listener(machine, "1_interop"), pytest.raises(interop.NoInterop, match="Permission denied"):
        windows(machine).run("cmd.exe")


def test_a_program_that_fails_silently_is_an_answer_where_somebody_listens(machine: Path) -> None:
    (machine / "init").write_text("#!/bin/sh\nexit 1\n")
    with listener(machine, "1_interop"):
        assert windows(machine).run("cmd.exe") == (1, b"", b"")
        assert interop.blocked() is None
    assert "nobody listens" in str(interop.blocked())


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (r"C:\134 {c} 9p rw,noatime,aname=drvfs;path=C:\;uid=0;gid=0;symlinkroot=/mnt/,mmap,access=client 0 0", True),
        (r"drvfs {c} 9p rw,dirsync,aname=drvfs;path=C:\134;uid=1000 0 0", True),
        (r"drvfsC0 {c} virtiofs rw,relatime 0 0", True),
        (r"C: {c} drvfs rw,noatime 0 0", True),
        (r"tools {c} 9p ro,aname=tools;fmask=022 0 0", False),
        (r"/dev/sdc {c} ext4 rw 0 0", False),
    ],
)
def test_drives_are_known_by_their_mounts(machine: Path, line: str, found: bool) -> None:
    mounts = machine / "mounts"
    mounts.write_text(line.format(c=machine / "c") + "\n")
    seen = interop.find(str(mounts))
    assert (seen and (seen.drive, dict(seen.drives))) == ((str(machine / "c"), {"C": str(machine / "c")}) if found else None)


def test_windows_is_on_another_drive_below_a_folder_with_a_blank(machine: Path) -> None:
    (machine / "my d").mkdir()
    (machine / "c").rename(machine / "my d/w")
    mounts, d = machine / "mounts", str(machine / "my d").replace(" ", "\\040")
    mounts.write_text(f"D:\\134 {d} 9p rw,aname=drvfs;path=D:\\ 0 0\nE:\\134 {d}/w 9p rw,aname=drvfs;path=E:\\ 0 0\n")
    seen = interop.find(str(mounts))
    assert seen
    assert seen.system == f"{machine}/my d/w/Windows/System32"
    assert seen.linux("d:\\x\\y") == f"{machine}/my d/x/y"


@pytest.mark.parametrize(
    ("path", "linux"),
    [
        (r"C:\Users\José Ñ", "/mnt/c/Users/José Ñ"),
        ("c:/Users/x/", "/mnt/c/Users/x"),
        ("C:\\", "/mnt/c"),
        (r"D:\x", None),
        (r"\\server\share", None),
        ("", None),
    ],
)
def test_paths_of_windows(path: str, linux: str | None) -> None:
    assert interop.Windows("/mnt/c", {"C": "/mnt/c"}).linux(path) == linux


@pytest.mark.parametrize(
    ("path", "there"), [("/mnt/c/Users/x", "C:\\Users\\x"), ("/mnt/c", "C:\\"), ("/mnt/cd", None), ("/home/x", None)]
)
def test_what_windows_calls_a_path(path: str, there: str | None) -> None:
    assert interop.Windows("/mnt/c", {"C": "/mnt/c"}).windows(path) == there


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("C:\\Users\\Stephan Höchdörfer\r\n".encode("utf-16-le"), "C:\\Users\\Stephan Höchdörfer\n"),
        ("\ufeffx\r\n".encode("utf-16-le"), "x\n"),
        ("没有注册".encode("utf-16-le"), "没有注册"),
        ("没有具有所提供名称的分发。\r\n".encode("utf-16-le"), "没有具有所提供名称的分发。\n"),
        ("Größe".encode("utf-16-le"), "Größe"),
        (b"\xef\xbb\xbfplain\r\n", "plain\n"),
        ("Größe\r\n".encode(), "Größe\n"),
        (b"a\0b\r\n", "ab\n"),
        (b"Gr\x94\xe1e\r\n", "Gr\ufffd\ufffde\n"),
        ("abc\r\n".encode("utf-16-le") + b"\0", "abc\n"),
        (b"", ""),
    ],
)
def test_text_of_windows_programs(data: bytes, text: str) -> None:
    assert interop.decode(data) == text
