"""Keep-alive, rules for the LAN and the lean distro through pyinfra's API: what is asked of a host, and what is told."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.operations.fake_hosts import Converge, settings
from wsllama.domain.keep_alive import task_name
from wsllama.operations import exposure, keep_alive, lean

DISTRO = "Ubuntu-24.04"
NAME = task_name(DISTRO)
OFF = "Windows programs can't be started from this distro"


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


TASK, STARTUP = text(keep_alive.task_bytes(DISTRO, "PC\\Ada")), text(keep_alive.startup_bytes(DISTRO))


def side(**more: Any) -> dict[str, Any]:
    """What the facet `windows` says of a healthy machine."""
    profile = {"profile": "/mnt/c/Users/Ada", "profile_windows": "C:\\Users\\Ada", "why": None, "user": "PC\\Ada"}
    rest = {"distro": DISTRO, "interop": None, "wslconfig": None, "journal": {}, "seen": {"networking_mode": "nat"}}
    return {"side": {**profile, **rest, **more}}


def kept(**more: Any) -> dict[str, Any]:
    return {"side": {"task": None, "startup": None, "file": None, "why": None, "distro": DISTRO, **more}}


def ports(**more: Any) -> dict[str, Any]:
    return {"side": {"journal": [], "portproxy": "", "firewall": {}, "result": None, "why": None, **more}}


def test_what_is_there_is_left_alone(converge: Converge) -> None:
    for wish, found in (
        ("auto", {"task": TASK}),
        ("auto", {"startup": STARTUP}),
        ("task", {"task": TASK}),
        ("startup", {"startup": STARTUP}),
    ):
        done = converge(
            keep_alive.kept, settings(wsl={"keep_alive": wish}), seen={"windows": side(), "keep_alive": kept(**found)}
        )
        assert (done.changed, done.failed, done.sent) == (False, False, []), wish


@pytest.mark.parametrize(
    ("wish", "windows", "found", "ways"),
    [
        ("auto", {}, {}, ["task", "startup"]),
        ("task", {}, {"startup": STARTUP}, ["task"]),
        ("startup", {}, {"task": TASK}, ["startup"]),
        ("auto", {"interop": OFF, "user": None}, {"why": OFF}, ["file"]),
        ("task", {"interop": OFF, "user": None}, {"why": OFF}, ["file"]),
        ("startup", {"interop": OFF, "user": None}, {"why": OFF}, ["startup"]),
        ("auto", {"profile": None, "why": "no folder"}, {}, ["file"]),
    ],
)
def test_the_ways_that_are_tried(converge: Converge, wish: str, windows: Any, found: Any, ways: list[str]) -> None:
    answer = json.dumps(
        {"mechanism": ways[-1], "changed": True, "refused": None, "xml": None, "left": [], "task": TASK, "startup": None}
    )
    shown = json.dumps({"power": {"powercfg": None, "registry": None, "clock_ahead_s": None}, "distros": None})
    seen = {"windows": side(**windows), "keep_alive": kept(**found)}
    answers = {"# keep_alive": answer, "# windows_side": shown}
    done = converge(keep_alive.kept, settings(wsl={"keep_alive": wish}), seen=seen, answers=answers)
    assert (done.changed, done.failed) == (True, False), done.log
    assert (done.sent[0]["action"], done.sent[0]["ways"], done.sent[0]["name"]) == ("make", ways, NAME)
    assert done.sent[0]["startup"] == STARTUP
    shows = "as Windows shows it now: a task starts the distro when its user logs on; WSL may end it when idle"
    assert (shows in done.log) == (ways[-1] != "file")


def test_off_takes_back_what_is_there_and_asks_for_nothing_else(converge: Converge, monkeypatch: pytest.MonkeyPatch) -> None:
    off = settings(wsl={"keep_alive": "off"})
    done = converge(keep_alive.kept, off, seen={"windows": side(), "keep_alive": kept()})
    assert (done.changed, done.sent) == (False, [])
    answers = {"# keep_alive": json.dumps({"changed": True, "left": []})}
    done = converge(keep_alive.kept, off, seen={"windows": side(), "keep_alive": kept(task=TASK)}, answers=answers)
    assert (done.changed, done.sent[0]["action"]) == (True, "remove")
    left = [{"command": f"schtasks /Delete /TN {NAME} /F", "why": "Access is denied."}]
    answers = {"# keep_alive": json.dumps({"changed": False, "left": left})}
    told: list[str] = []
    monkeypatch.setattr(keep_alive, "at_the_end", told.extend)
    done = converge(keep_alive.kept, off, seen={"windows": side(), "keep_alive": kept(task=TASK)}, answers=answers)
    assert (done.changed, done.failed) == (False, False)
    assert told == [f"@fake/a: not taken back (Access is denied.): run as an administrator on Windows: {left[0]['command']}"]
    known = {"keep_alive": {"name": NAME, "mechanism": "task"}}
    off_line = {"windows": side(interop=OFF, journal=known), "keep_alive": kept(why=OFF)}
    assert converge(keep_alive.kept, off, seen=off_line, answers=answers).sent[0]["action"] == "remove"
    assert len(told) == 2, "what can't be seen now is not forgotten"


def test_a_distro_that_has_another_name_now_says_which_it_had(converge: Converge) -> None:
    known = {"keep_alive": {"name": task_name("Old"), "mechanism": "task"}}
    done = converge(keep_alive.kept, settings(), seen={"windows": side(journal=known), "keep_alive": kept()})
    assert done.sent[0]["before"] == {"distro": "Old", "name": task_name("Old")}
    known["keep_alive"]["name"] = NAME
    done = converge(keep_alive.kept, settings(), seen={"windows": side(journal=known), "keep_alive": kept()})
    assert done.sent[0]["before"] is None


def test_a_distro_whose_name_no_command_line_carries_is_refused(converge: Converge) -> None:
    seen = {"windows": side(distro="Übuntu"), "keep_alive": kept(distro="Übuntu")}
    done = converge(keep_alive.kept, settings(), seen=seen)
    assert done.failed
    assert "import it under another name" in done.log


LAN = settings(server={"expose": "lan", "api_key": True})
PROXY = {"kind": "portproxy", "port": 18080, "to": 8080}
FIREWALL = {"kind": "firewall", "port": 18080, "to": 0}
SHOWN = "0.0.0.0 18080 127.0.0.1 8080\n"
THERE = {"portproxy": SHOWN, "firewall": {"wsllama-lan-18080": True}}


def steps(done: Any) -> list[tuple[str, bool]]:
    (argument,) = done.sent
    return [(step["id"], step["present"]) for step in argument["steps"]]


@pytest.mark.parametrize(
    ("given", "found", "want"),
    [
        (LAN, {}, [("portproxy 0.0.0.0:18080", True), ("firewall wsllama-lan-18080", True)]),
        (LAN, {"portproxy": SHOWN}, [("firewall wsllama-lan-18080", True)]),
        (
            settings(),
            {"journal": [PROXY, FIREWALL], **THERE},
            [("portproxy 0.0.0.0:18080", False), ("firewall wsllama-lan-18080", False)],
        ),
        (settings(), {"journal": [PROXY, FIREWALL], "portproxy": SHOWN}, [("portproxy 0.0.0.0:18080", False)]),
        (
            settings(server={"expose": "lan", "api_key": True, "lan_port": 18090}),
            {"journal": [FIREWALL], "firewall": {"wsllama-lan-18080": True}},
            [("firewall wsllama-lan-18080", False), ("portproxy 0.0.0.0:18090", True), ("firewall wsllama-lan-18090", True)],
        ),
    ],
)
def test_only_what_differs_is_asked_of_an_administrator(converge: Converge, given: Any, found: Any, want: Any) -> None:
    did = [{"id": name, "state": "changed", "why": ""} for name, _ in want]
    answer = {"state": "done", "why": "", "steps": did, "command": None, "changed": True}
    seen = {"windows": side(), "exposure": ports(**found)}
    lets_in = any(present for _, present in want)
    assert not converge(exposure.administrator, given, not lets_in, seen=seen).sent, (
        "only before, or only after, the server is accepted"
    )
    done = converge(exposure.administrator, given, lets_in, seen=seen, answers={"# windows_side": json.dumps(answer)})
    assert (done.changed, done.failed) == (True, False), done.log
    assert steps(done) == want


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (settings(), {}),
        (LAN, THERE),
        (LAN, {**THERE, "journal": [PROXY, FIREWALL]}),
        (settings(), {"journal": [PROXY, FIREWALL]}),
    ],
)
def test_nobody_is_asked_when_nothing_differs(converge: Converge, given: Any, found: Any) -> None:
    for accepted in (False, True):
        done = converge(exposure.administrator, given, accepted, seen={"windows": side(), "exposure": ports(**found)})
        assert (done.changed, done.failed, done.sent) == (False, False, [])


def test_who_does_not_confirm_changes_nothing_and_a_step_that_fails_is_an_error(converge: Converge) -> None:
    seen = {"windows": side(), "exposure": ports()}
    answer = {"state": "cancelled", "why": "x", "steps": [], "command": "powershell", "changed": False}
    done = converge(exposure.administrator, LAN, True, seen=seen, answers={"# windows_side": json.dumps(answer)})
    assert (done.changed, done.failed) == (False, False), done.log
    failed = [{"id": "firewall wsllama-lan-18080", "state": "failed", "why": "exit code 1: no"}]
    answer = {"state": "done", "why": "", "steps": failed, "command": None, "changed": False}
    done = converge(exposure.administrator, LAN, True, seen=seen, answers={"# windows_side": json.dumps(answer)})
    assert done.failed
    assert "failed on Windows: exit code 1: no" in done.log
    assert "failed on Windows: the script did not come to it" in done.log


def test_a_mode_without_a_way_in_is_refused(converge: Converge) -> None:
    done = converge(
        exposure.administrator, LAN, False, seen={"windows": side(seen={"networking_mode": "bridged"}), "exposure": ports()}
    )
    assert done.failed
    assert "this machine's is bridged" in done.log


def test_without_interop_the_mode_is_not_known_and_that_is_told(converge: Converge, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(exposure, "at_the_end", told.extend)
    seen = {"windows": side(interop=OFF, seen={"networking_mode": None}), "exposure": ports(why=OFF)}
    done = converge(exposure.administrator, LAN, False, seen=seen)
    assert (done.sent, told) == ([], [])
    done = converge(exposure.administrator, LAN, True, seen=seen)
    assert (done.changed, done.failed, done.sent) == (False, False, [])
    assert told[0] == f"@fake/a: not done on Windows: other machines don't get in, because {OFF}"
    assert "set wsl.wsl2.networkingMode" in told[1]


def test_a_mirrored_machine_whose_server_would_not_listen_is_refused(converge: Converge) -> None:
    seen = {"windows": side(seen={"networking_mode": "mirrored"}), "exposure": ports()}
    done = converge(exposure.administrator, LAN, False, seen=seen)
    assert done.failed, "before anything is changed"
    assert "set wsl.wsl2.networkingMode to mirrored" in done.log
    lan = {"expose": "lan", "api_key": True}
    said = settings(platform="wsl", server=lan, wsl={"wsl2": {"networkingMode": "mirrored"}})
    assert said.server.host == "0.0.0.0"
    assert settings(platform="wsl", server=lan).server.host == "127.0.0.1"
    did = [{"id": "hyperv wsllama-lan-8080", "state": "changed", "why": ""}]
    answer = {"state": "done", "why": "", "steps": did, "command": None, "changed": True}
    done = converge(exposure.administrator, said, True, seen=seen, answers={"# windows_side": json.dumps(answer)})
    assert steps(done) == [("hyperv wsllama-lan-8080", True)]


def units(**states: str) -> dict[str, Any]:
    return {name: {"LoadState": states.get(name.partition(".")[0].replace("-", "_"), "not-found")} for name in lean.UNITS}


@pytest.mark.parametrize(
    ("wanted", "now", "record", "action", "todo"),
    [
        (True, units(apt_daily="loaded"), None, "mask", ["apt-daily.timer"]),
        (True, units(apt_daily="masked"), '{"apt-daily.timer": true}', None, []),
        (False, units(apt_daily="masked"), None, None, []),
        (False, units(apt_daily="masked"), '{"apt-daily.timer": true}', "unmask", ["apt-daily.timer"]),
    ],
)
def test_only_what_we_masked_is_unmasked(
    converge: Converge, wanted: bool, now: Any, record: str | None, action: str | None, todo: list[str]
) -> None:
    answers = {"# lean": json.dumps({"changed": True, "before": 2**30, "after": 2**30 + 2**27})}
    done = converge(lean.lean, wanted, seen={"units": now, "stamps": {lean.RECORD: record}}, answers=answers)
    assert done.changed == bool(action)
    assert [(s["action"], s["units"]) for s in done.sent] == ([(action, todo)] if action else [])
    assert ("memory available before 1024 MiB, after 1152 MiB" in done.log) == bool(action)
