"""The program that looks at the Windows side and writes WSL's files, on folders that play a drive of Windows."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from wsllama.host import interop, windows

HINT = {"profile": None, "windows": True}


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


class Drive:
    """C: in a folder; said: what cmd.exe answers to each variable."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said, self.asked = folder, dict[str, bytes](), list[str]()
        (folder / "Users").mkdir(parents=True)

    def profile(self, name: str, holds: str = "NTUSER.DAT") -> Path:
        path = self.folder / "Users" / name
        path.mkdir()
        (path / holds).touch()
        return path

    def run(self, program: str, *args: str, timeout: float = 30, cwd: str | None = None) -> tuple[int, bytes, bytes]:
        self.asked.append(args[-1])
        if args[-1] not in self.said:
            raise interop.NoInterop("it is off")
        return int(b"0x8" in self.said[args[-1]]), self.said[args[-1]], b""


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drive:
    made = Drive(tmp_path / "c")
    there = interop.Windows(str(made.folder), {"C": str(made.folder)})
    there.run = made.run  # type: ignore[method-assign]
    monkeypatch.setattr(interop, "find", lambda: there)
    monkeypatch.setattr(interop, "blocked", lambda: None if made.said else "nobody listens")
    for name, path in {
        "STATE": "state",
        "JOURNAL": "state/journal.json",
        "PROFILE": "state/profile.json",
        "WSLCONF": "wsl.conf",
    }.items():
        monkeypatch.setattr(windows, name, str(tmp_path / path))
    monkeypatch.setenv("WSL_DISTRO_NAME", "Ubuntu-24.04")
    return made


def says(drive: Drive, profile: str, user: str = "PC\\ada") -> None:
    drive.said = {
        "echo.%USERPROFILE%": f"{profile}\r\n".encode("utf-16-le"),
        "echo.%USERDOMAIN%\\%USERNAME%": f"{user}\r\n".encode("utf-16-le"),
    }


# The profile


def test_windows_names_it(drive: Drive) -> None:
    path = drive.profile("Jörg.DOMAIN", "AppData")
    says(drive, "C:\\Users\\Jörg.DOMAIN")
    found = windows.side(HINT)
    assert (found["profile"], found["profile_windows"], found["user"]) == (str(path), "C:\\Users\\Jörg.DOMAIN", "PC\\ada")
    assert (found["interop"], found["why"], found["distro"]) == (None, None, "Ubuntu-24.04")


def test_the_banner_about_unc_paths_is_no_profile(drive: Drive) -> None:
    path = drive.profile("Ada")
    banner = "'\\\\wsl.localhost\\U\\root'\r\nCMD.EXE was started with the above path as the current directory.\r\n\r\n"
    says(drive, f"{banner}C:\\Users\\Ada")
    assert windows.side(HINT)["profile"] == str(path)


@pytest.mark.parametrize(
    "said",
    [b"C:\\Users\\StephanHochd\x94rfer\r\n", "%USERPROFILE%\r\n".encode("utf-16-le"), b"", "D:\\U\r\n".encode("utf-16-le")],
)
def test_an_answer_that_is_no_folder_here(drive: Drive, said: bytes) -> None:
    says(drive, "")
    drive.said["echo.%USERPROFILE%"] = said
    found = windows.side(HINT)
    assert found["profile"] is None
    assert found["why"]


def test_a_recorded_one_is_not_asked_for_again_while_it_is_there(drive: Drive) -> None:
    path = drive.profile("Ada")
    says(drive, "C:\\Users\\Ada")
    found = windows.side(HINT)
    windows.record(windows.PROFILE, {key: found[key] for key in ("profile", "distro", "user")})
    drive.asked.clear()
    again = windows.side(HINT)
    assert {key: again[key] for key in ("profile", "profile_windows", "distro", "user")} == {
        key: found[key] for key in ("profile", "profile_windows", "distro", "user")
    }
    assert again["recorded"] == {"profile": str(path), "distro": "Ubuntu-24.04", "user": "PC\\ada"}
    assert drive.asked == []
    path.rename(path.parent / "Eve")
    says(drive, "C:\\Users\\Eve")
    assert windows.side(HINT)["profile"] == str(path.parent / "Eve")


def test_a_copy_of_the_distro_under_another_name_asks_anew(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    ada, bob = drive.profile("Ada"), drive.profile("Bob")
    windows.record(windows.PROFILE, {"profile": str(ada), "distro": "Ubuntu-24.04", "user": "PC\\ada"})
    says(drive, "C:\\Users\\Bob", "PC\\bob")
    monkeypatch.setenv("WSL_DISTRO_NAME", "Copy")
    assert windows.side(HINT)["profile"] == str(bob)


def test_an_operator_s_path_wins_in_either_form(drive: Drive) -> None:
    drive.profile("Ada")
    bob = drive.profile("Bob")
    says(drive, "C:\\Users\\Ada")
    windows.record(windows.PROFILE, {"profile": str(bob.parent / "Ada"), "distro": "Ubuntu-24.04", "user": "PC\\ada"})
    for given in (str(bob), f"{bob}/", "C:\\Users\\Bob", "c:/Users/Bob"):
        assert windows.side({**HINT, "profile": given})["profile"] == str(bob)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("C:\\Users\\Eve", "there is no folder "),
        ("E:\\Users\\Ada", "is on a drive that is not mounted"),
        ("C:\\Users", "is no profile of a Windows user"),
        ("/", "is not on a drive of Windows"),
    ],
)
def test_an_operator_s_path_that_is_none(drive: Drive, given: str, said: str) -> None:
    drive.profile("Ada")
    found = windows.side({**HINT, "profile": given})
    assert found["profile"] is None
    assert said in found["why"]


def test_without_interop_the_only_person_s_folder_is_taken(drive: Drive) -> None:
    path = drive.profile("Ada")
    for nobody in ("Public", "Default", "WDAGUtilityAccount", "defaultuser0"):
        drive.profile(nobody)
    (drive.folder / "Users/tools").mkdir()
    (drive.folder / "Users/All Users").symlink_to(drive.folder)
    found = windows.side(HINT)
    assert (found["profile"], found["interop"]) == (str(path), "nobody listens")
    drive.profile("Bob")
    found = windows.side(HINT)
    assert found["profile"] is None
    assert [os.path.basename(path) for path in found["candidates"]] == ["Ada", "Bob"]


def test_a_call_that_fails_falls_back_too(drive: Drive) -> None:
    path = drive.profile("Ada")
    drive.said = {"something else": b""}
    found = windows.side(HINT)
    assert (found["profile"], found["interop"]) == (str(path), "it is off")


def test_windows_is_not_looked_at_when_it_is_to_be_left_alone(drive: Drive) -> None:
    drive.profile("Ada")
    says(drive, "C:\\Users\\Ada")
    found = windows.side({**HINT, "windows": False})
    assert (found["profile"], found["wslconfig"], drive.asked) == (None, None, [])


def test_a_user_s_name_that_is_not_told_is_none(drive: Drive) -> None:
    path = drive.profile("Ada")
    says(drive, "C:\\Users\\Ada")
    drive.said["echo.%USERDOMAIN%\\%USERNAME%"] = "%USERDOMAIN%\\%USERNAME%".encode("utf-16-le")
    assert windows.side(HINT)["user"] is None
    drive.said.popitem()
    found = windows.side(HINT)
    assert (found["profile"], found["user"], found["interop"]) == (str(path), None, None)


# The files


def test_what_is_said_of_a_file(drive: Drive) -> None:
    path = drive.profile("Ada")
    (path / ".wslconfig").write_bytes(b"\xff\n")
    (path / ".wslconfig.txt").touch()
    (path / ".wslconfig.2026-01-01T000000.bak").touch()
    file = windows.side(HINT)["wslconfig"]
    assert (base64.b64decode(file["data"]), file["problem"]) == (b"\xff\n", None)
    assert file["mtime"] == (path / ".wslconfig").stat().st_mtime
    assert file["look_alikes"] == [".wslconfig", ".wslconfig.txt"]
    (path / ".wslconfig").chmod(0o444)
    assert "is read-only" in windows.side(HINT)["wslconfig"]["problem"]
    (path / ".wslconfig").unlink()
    file = windows.side(HINT)["wslconfig"]
    assert (file["data"], file["problem"], file["mtime"]) == (None, None, None)
    (path / ".wslconfig").mkdir()
    assert "is a folder" in windows.side(HINT)["wslconfig"]["problem"]


def change(path: Path, was: bytes | None, data: bytes, **entry: Any) -> None:
    windows.main({"files": [{"path": str(path), "was": text(was), "data": text(data), "entry": {"kind": "wslconfig", **entry}}]})


def test_a_first_change_leaves_two_dated_backups_and_a_journal(drive: Drive, tmp_path: Path) -> None:
    path = drive.profile("Ada") / ".wslconfig"
    path.write_bytes(b"old")
    change(path, b"old", b"new", boot_id="b")
    assert path.read_bytes() == b"new"
    (entry,) = json.loads(Path(windows.JOURNAL).read_text()).values()
    assert (entry["kind"], entry["boot_id"]) == ("wslconfig", "b")
    assert [Path(p).read_bytes() for p in entry["backups"]] == [b"old", b"old"]
    assert [os.path.dirname(p) for p in entry["backups"]] == [str(path.parent), windows.STATE]
    change(path, b"new", b"newer", boot_id="c")
    (again,) = json.loads(Path(windows.JOURNAL).read_text()).values()
    assert (again["boot_id"], again["backups"]) == ("c", entry["backups"])
    assert [Path(p).read_bytes() for p in entry["backups"]] == [b"old", b"old"]
    assert len(list(path.parent.glob("*.bak"))) == 1


def test_a_new_file_has_no_backup(drive: Drive) -> None:
    path = drive.profile("Ada") / ".wslconfig"
    change(path, None, b"new")
    assert path.read_bytes() == b"new"
    assert sorted(p.name for p in path.parent.iterdir()) == [".wslconfig", "NTUSER.DAT"]


def test_a_file_that_changed_meanwhile_is_not_overwritten(drive: Drive) -> None:
    path = drive.profile("Ada") / ".wslconfig"
    path.write_bytes(b"theirs")
    with pytest.raises(SystemExit, match="changed by somebody else in this moment: run again"):
        change(path, b"old", b"new")
    assert path.read_bytes() == b"theirs"
    assert not Path(windows.JOURNAL).exists()


def test_another_distro_of_the_same_user_had_the_same_wish_and_was_faster(drive: Drive) -> None:
    path = drive.profile("Ada") / ".wslconfig"
    path.write_bytes(b"new")
    change(path, b"old", b"new")
    assert path.read_bytes() == b"new"
    assert not Path(windows.JOURNAL).exists(), "it is that one's to take back"


def test_the_journal_comes_before_the_file(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    path = drive.profile("Ada") / ".wslconfig"
    path.write_bytes(b"old")
    stock = os.replace

    def ends(source: str, target: str) -> None:
        if target == str(path):
            raise OSError(28, "No space left on device", target)
        stock(source, target)

    monkeypatch.setattr(os, "replace", ends)
    with pytest.raises(SystemExit, match=r"\.wslconfig can't be written: No space left on device"):
        change(path, b"old", b"new")
    assert path.read_bytes() == b"old"
    assert str(path) in json.loads(Path(windows.JOURNAL).read_text())
    assert not list(path.parent.glob("*.tmp"))


def test_what_a_killed_run_left_beside_a_file_goes_with_the_next_write(drive: Drive) -> None:
    path = drive.profile("Ada") / ".wslconfig"
    old, young = (path.with_name(f".wslconfig.{pid}.tmp") for pid in (1, 2))
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    change(path, None, b"new")
    assert sorted(p.name for p in path.parent.iterdir()) == [".wslconfig", ".wslconfig.2.tmp", "NTUSER.DAT"]


def test_a_link_stays_one(drive: Drive, tmp_path: Path) -> None:
    path, target = drive.profile("Ada") / ".wslconfig", tmp_path / "dotfiles"
    target.write_bytes(b"old")
    path.symlink_to(target)
    change(path, b"old", b"new")
    assert (path.is_symlink(), target.read_bytes()) == (True, b"new")


# What Windows is asked


def test_who_runs_and_how_much_memory_there_is(drive: Drive, capsys: pytest.CaptureFixture[str]) -> None:
    names = "Ubuntu-24.04\r\nMy Distro\r\n"
    drive.said = {"--running": names.encode("utf-16-le"), "(Get-CimInstance Win32_ComputerSystem).TotalPhysicalMemory": b"34\r\n"}
    windows.main({"ask": "running"})
    windows.main({"ask": "machine"})
    assert capsys.readouterr().out.splitlines() == ['{"running": ["Ubuntu-24.04", "My Distro"]}', '{"memory": 34}']
    drive.said = {"--running": b"Zugriff verweigert\r\n0x80070005\r\n"}
    with pytest.raises(SystemExit, match=r"wsl\.exe does not say what runs: Zugriff verweigert 0x80070005"):
        windows.main({"ask": "running"})
    windows.main({"ask": "machine"})
    assert capsys.readouterr().out == '{"memory": null}\n'


def test_a_restart_is_asked_of_a_console_of_windows(drive: Drive) -> None:
    again = "wsl.exe --shutdown & wsl.exe -d Ubuntu-24.04 -u root --exec /bin/true"
    drive.said = {again: b""}
    windows.main({"ask": "restart", "distro": "Ubuntu-24.04"})
    assert drive.asked == [again]
    with pytest.raises(SystemExit, match=r"can't be given to cmd\.exe safely"):
        windows.main({"ask": "restart", "distro": "a & b"})


def test_a_distro_without_a_drive_of_windows(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "find", lambda: None)
    found = windows.side(HINT)
    assert (found["profile"], found["wslconfig"], found["drive"], found["why"]) == (None, None, None, found["interop"])
    assert "no drive of Windows is mounted here" in found["interop"]
    assert "is not on a drive of Windows" in windows.side({**HINT, "profile": str(drive.profile("Ada"))})["why"]
