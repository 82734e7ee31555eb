"""What a host's program takes back, and what it leaves: in a folder of this machine."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from wsllama.commands.uninstall import configuration
from wsllama.domain.wslconfig import edit
from wsllama.host import interop, keep_alive, uninstall, windows, windows_side


def state(found: uninstall.Item) -> str:
    return str(found["state"])


def tree(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*"))


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    for name in ("builds/1/a", "models/m/x.gguf", "run/log"):
        (tmp_path / "ours" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ours" / name).write_text("x")
    (tmp_path / "user").write_text("not ours")
    (tmp_path / "ours/link").symlink_to(tmp_path / "user")
    return tmp_path / "ours"


def test_a_folder_goes_whole_and_what_links_lead_to_stays(ours: Path, tmp_path: Path) -> None:
    assert state(uninstall.folder(str(ours), look=True)) == "changed"
    assert ours.exists(), "only looked at"
    assert state(uninstall.folder(str(ours), look=False)) == "changed"
    assert tree(tmp_path) == ["user"]
    assert state(uninstall.folder(str(ours), look=False)) == "unchanged"


def test_what_is_kept_stays_and_then_nothing_is_to_do(ours: Path) -> None:
    keep = (str(ours / "models"),)
    assert state(uninstall.folder(str(ours), look=False, keep=keep)) == "changed"
    assert tree(ours) == ["models", "models/m", "models/m/x.gguf"]
    found = uninstall.folder(str(ours), look=False, keep=keep)
    assert (state(found), found["note"]) == ("unchanged", f"{ours}/models stays")


def test_a_disk_that_is_mounted_in_a_folder_is_left(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uninstall, "_mounts", lambda: ["/", str(ours / "models/m")])
    found = uninstall.folder(str(ours), look=False)
    assert tree(ours) == ["models", "models/m", "models/m/x.gguf"]
    assert "models/m stays" in found["note"]


def test_mounts_of_this_machine_are_read() -> None:
    assert "/proc" in uninstall._mounts()


def test_a_unit_that_is_not_ours_and_a_user_with_another_home_stay(tmp_path: Path) -> None:
    unit = tmp_path / "llama-server.service"
    unit.write_text("[Unit]\nDescription=mine\n")
    assert state(uninstall.service(str(unit), look=False)) == "unchanged"
    assert unit.exists()
    found = uninstall.user("root", "/var/lib/wsllama", look=False)
    assert (state(found), "somebody else's" in found["note"]) == ("unchanged", True)
    assert state(uninstall.user("nobody-of-this-name", "/x", look=False)) == "unchanged"


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state/journal.json"
    monkeypatch.setattr(windows, "STATE", str(path.parent))
    monkeypatch.setattr(windows_side, "JOURNAL", str(path))
    path.parent.mkdir()
    return path


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


BEFORE = b"[wsl2]\r\nmemory=8GB\r\n"
SET = {"wsl2.vmIdleTimeout": -1, "general.instanceIdleTimeout": -1}


def side(file: Path, before: bytes | None, backups: list[str]) -> dict[str, Any]:
    ours = edit(before, "wslconfig", SET)
    entry = {"kind": "wslconfig", "before": text(before), "ours": text(ours), "changes": SET, "backups": backups}
    there = {"path": str(file), "data": text(file.read_bytes()) if file.exists() else None, "problem": None}
    return {
        "wslconfig": there,
        "wslconf": None,
        "interop": None,
        "why": None,
        "journal": {str(file): entry, "keep_alive": {"name": "x"}},
    }


@pytest.mark.parametrize(
    ("before", "since", "left"),
    [(BEFORE, b"", BEFORE), (None, b"", None), (BEFORE, b"[wsl2]\r\nswap=0\r\n", BEFORE + b"[wsl2]\r\nswap=0\r\n")],
    ids=["as it was", "only ours", "changed since"],
)
def test_wsls_file_is_given_back(tmp_path: Path, journal: Path, before: bytes | None, since: bytes, left: bytes | None) -> None:
    file, backup = tmp_path / ".wslconfig", tmp_path / ".wslconfig.2026.bak"
    file.write_bytes(edit(before, "wslconfig", SET) + since)
    backup.write_bytes(before or b"")
    found = side(file, before, [str(backup)])
    journal.write_text(json.dumps(found["journal"]))
    wanted = configuration(found)
    assert [state(i) for i in uninstall.configuration(wanted, look=True)] == ["changed"]
    assert [state(i) for i in uninstall.configuration(wanted, look=False)] == ["changed"]
    assert (file.read_bytes() if file.exists() else None) == left
    assert backup.exists() == (left != before), "a copy is of use only where the file isn't as it was"
    assert json.loads(journal.read_text()) == {"keep_alive": {"name": "x"}}


def test_a_file_that_changed_meanwhile_or_is_out_of_reach_is_left(tmp_path: Path, journal: Path) -> None:
    file = tmp_path / ".wslconfig"
    file.write_bytes(edit(BEFORE, "wslconfig", SET))
    found = side(file, BEFORE, [])
    wanted = configuration(found)
    file.write_bytes(b"# in this moment\n")
    assert [state(i) for i in uninstall.configuration(wanted, look=False)] == ["left"]
    assert file.read_bytes() == b"# in this moment\n"
    (gone,) = uninstall.configuration(configuration({**found, "wslconfig": None, "interop": "interop is off"}), look=False)
    assert (gone["state"], gone["note"]) == ("left", "interop is off")


def test_a_file_that_can_not_be_read_or_written_is_left_and_known_the_next_time(tmp_path: Path, journal: Path) -> None:
    file = tmp_path / ".wslconfig"
    file.write_bytes(edit(BEFORE, "wslconfig", SET))
    found = side(file, BEFORE, [])
    journal.write_text(json.dumps(found["journal"]))
    for stuck in ({"problem": "it is locked"}, {"problem": "it is locked", "data": None}):
        wanted = configuration({**found, "wslconfig": {**found["wslconfig"], **stuck}})
        (item,) = uninstall.configuration(wanted, look=False)
        assert (item["state"], item["note"]) == ("left", "it is locked")
        assert json.loads(journal.read_text()) == found["journal"]
    file.write_bytes(BEFORE)
    again = side(file, BEFORE, [])
    again["wslconfig"]["problem"] = "it is read-only"
    again["journal"] = found["journal"]
    assert [state(i) for i in uninstall.configuration(configuration(again), look=False)] == ["unchanged"]


class Windows(interop.Windows):
    """A Task Scheduler and a list of distros; tasks: names that are registered."""

    def __init__(self, drive: Path, tasks: set[str], distros: tuple[str, ...] = ()) -> None:
        super().__init__(str(drive), {"C": str(drive)})
        self.tasks, self.distros, self.refuses = tasks, distros, False

    def run(self, program: str, *args: str, timeout: float = 30, cwd: str | None = None) -> tuple[int, bytes, bytes]:
        if program.endswith("wsl.exe"):
            return 0, "\r\n".join([*self.distros, ""]).encode("utf-16-le"), b""
        if self.refuses:
            raise interop.NoInterop("it did not end")
        name = args[2]
        if args[0] in ("/Query", "/Delete") and name not in self.tasks:
            return 1, b"", b"there is none"
        self.tasks = {"/Create": self.tasks | {name}, "/Delete": self.tasks - {name}}.get(args[0], self.tasks)
        return 0, b"<Task/>", b""


def place(tmp_path: Path, tasks: Iterable[str] = (), distros: tuple[str, ...] = (), **more: Any) -> windows_side.Place:
    profile = tmp_path / "c/Users/Ada"
    (profile / "AppData/Local").mkdir(parents=True, exist_ok=True)
    known = {"windows": Windows(tmp_path / "c", set(tasks), distros), "profile": str(profile), "distro": "D", "why": None}
    return windows_side.Place(**{**known, "no_profile": None, **more})


def made(there: windows_side.Place, name: str = "k-D", before: Any = None, ways: tuple[str, ...] = ("task", "startup")) -> Any:
    data = {"task": text(b"task"), "startup": text(b"startup")}
    return keep_alive.make(there, {"name": name, "before": before, "ways": list(ways), **data})


def test_what_keeps_a_distro_is_in_the_journal_before_it_is_made(tmp_path: Path, journal: Path) -> None:
    there = place(tmp_path)
    there.windows.refuses = True  # type: ignore[union-attr]
    with pytest.raises(interop.NoInterop):
        made(there)
    assert windows_side.journal()["keep_alive"]["name"] == "k-D"


def test_our_folder_on_windows_goes_with_the_last_thing_in_it(tmp_path: Path, journal: Path) -> None:
    there = place(tmp_path)
    folder = Path(str(windows_side.local_folder(there)))
    windows_side.power(there)
    assert not folder.exists(), "to look makes none"
    made(there)
    assert tree(folder) == ["k-D.xml"]
    assert keep_alive.remove(there, ["k-D"]) == {"changed": True, "left": []}
    assert keep_alive.remove(there, ["k-D"]) == {"changed": False, "left": []}
    assert not folder.exists()
    folder.mkdir()
    assert [state(uninstall.local_files(there, look, False)) for look in (True, False, True)] == [
        "changed",
        "changed",
        "unchanged",
    ]
    assert not folder.exists()


def test_what_is_out_of_reach_is_left_with_its_command_and_not_forgotten(tmp_path: Path, journal: Path) -> None:
    made(place(tmp_path), ways=("startup",))
    (left,) = keep_alive.remove(place(tmp_path, profile=None, why="no drive"), ["k-D"])["left"]
    assert left == {"command": f'del "{keep_alive.STARTUP_FOLDER}\\k-D.cmd"', "why": "no drive"}
    made(place(tmp_path), ways=("task",))
    (left,) = keep_alive.remove(place(tmp_path, why="it is off"), ["k-D"])["left"]
    assert left == {"command": "schtasks /Delete /TN k-D /F", "why": "it is off"}
    there = place(tmp_path, {"k-D"})
    there.windows.refuses = True  # type: ignore[union-attr]
    (left,) = keep_alive.remove(there, ["k-D"])["left"]
    assert left["why"] == "it did not end"
    assert windows_side.journal()["keep_alive"]["name"] == "k-D"


@pytest.mark.parametrize(("distros", "tasks"), [(("D",), {"k-D"}), (("D", "Old"), {"k-D", "k-Old"})], ids=["renamed", "copied"])
def test_a_distro_that_was_renamed_is_not_started_by_its_old_name(
    tmp_path: Path, journal: Path, distros: tuple[str, ...], tasks: set[str]
) -> None:
    there = place(tmp_path, {"k-Old"}, distros)
    made(there, before={"distro": "Old", "name": "k-Old"}, ways=("task",))
    assert there.windows.tasks == tasks  # type: ignore[union-attr]
    assert windows_side.journal()["keep_alive"]["name"] == "k-D"


def test_what_the_user_removed_is_no_work(tmp_path: Path, journal: Path) -> None:
    found = side(tmp_path / ".wslconfig", BEFORE, [])
    assert [state(i) for i in uninstall.configuration(configuration(found), look=False)] == ["unchanged"]


def test_the_journal_takes_topics_one_by_one_and_a_rule_of_somebody_else_is_none_of_ours(tmp_path: Path, journal: Path) -> None:
    windows_side.record("/x/.wslconfig", {"ours": "y"})
    windows_side.record("exposure", [{"kind": "hyperv", "port": 1, "to": 0}])
    there = windows_side.Place(None, str(tmp_path), "D", None, None)
    folder = tmp_path / "AppData/Local/wsllama"
    folder.mkdir(parents=True)
    rules = [
        {"kind": "portproxy", "port": 2, "to": 3},
        {"kind": "firewall", "port": 2, "to": 0},
        {"kind": "hyperv", "port": 1, "to": 0},
    ]
    steps = [{"id": str(n), "rule": rule, "present": n < 2} for n, rule in enumerate(rules)]
    order = {"run": "r", "distro": "D", "steps": steps}
    (folder / "elevated.json").write_text(json.dumps({**order, "distro": "another of this user"}))
    states = ["changed", "unchanged", "changed"]
    done = {"run": "r", "state": "done", "steps": [{"id": str(n), "state": s} for n, s in enumerate(states)]}
    (folder / "elevated.result.json").write_text(json.dumps(done), encoding="utf-8-sig")
    assert not windows_side.settle(there), "another distro's rules are none of ours"
    (folder / "elevated.json").write_text(json.dumps(order))
    assert windows_side.settle(there)
    assert windows_side.journal() == {"/x/.wslconfig": {"ours": "y"}, "exposure": [rules[0]], "elevated": "r"}
    assert not windows_side.settle(there)


def test_what_was_done_by_hand_is_known_although_other_steps_follow_and_nobody_confirms(tmp_path: Path, journal: Path) -> None:
    there = place(tmp_path, why="it is off")
    rule = {"kind": "portproxy", "port": 2, "to": 3}
    windows_side.elevate(there, [{"id": "1", "rule": rule, "present": True}], "r", "script")
    done = {"run": "r", "state": "done", "steps": [{"id": "1", "state": "changed"}]}
    (Path(str(windows_side.local_folder(there))) / "elevated.result.json").write_text(json.dumps(done))
    assert windows_side.elevate(there, [{"id": "1", "rule": rule, "present": False}], "s", "script")["state"] == "unreachable"
    assert windows_side.journal()["exposure"] == [rule]
