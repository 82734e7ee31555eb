"""WSL's two files and their effect: what is compared, refused and sent; on @fake hosts with a canned Windows side."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from pyinfra import host

from tests.operations.fake_hosts import Converge, settings
from wsllama import guard
from wsllama.domain import windows as rules
from wsllama.domain.wslconfig import edit
from wsllama.operations import windows

GIB = 1 << 30
RECORD = {"profile": "/mnt/c/Users/Ada", "distro": "Ubuntu", "user": "PC\\ada"}
CONFIG = edit(None, "wslconfig", rules.wanted("wslconfig", {}))
CONF = edit(None, "wslconf", rules.wanted("wslconf", {}))
SEEN: dict[str, Any] = {
    "memory": 16 * GIB,
    "swap": 4 * GIB,
    "processors": 8,
    "networking_mode": "nat",
    "boot_id": "b1",
    "booted": 1000,
    "init": "77",
    "systemd": True,
}


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def file(path: str, data: bytes | None, **more: Any) -> dict[str, Any]:
    return {"path": path, "data": text(data), "problem": None, "mtime": 10, "look_alikes": [], **more}


def seen(config: bytes | None = CONFIG, conf: bytes | None = CONF, **more: Any) -> dict[str, Any]:
    side: dict[str, Any] = {
        **RECORD,
        "why": None,
        "candidates": [],
        "interop": None,
        "wslconfig": file("/w/.wslconfig", config),
        "wslconf": file("/etc/wsl.conf", conf),
        "seen": SEEN,
        "free_bytes": 9 * GIB,
        "journal": {},
        "recorded": RECORD,
    }
    return {"windows": {"side": {**side, **more}}}


def of(**wsl: Any) -> Any:
    return settings(platform="wsl", wsl=wsl)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said at the end of the run."""
    lines: list[str] = []
    monkeypatch.setattr(guard, "_last_words", lines)
    monkeypatch.setattr(guard, "_pending", {})
    return lines


def pending() -> list[str]:
    return [sentence for sentences in guard._pending.values() for sentence in sentences]


# The files


def test_files_that_say_it_all_are_left_alone(converge: Converge) -> None:
    got = converge(windows.config, of(), seen=seen())
    assert (got.commands, got.probes, got.changed, got.failed) == ([], 1, False, False)


def test_what_is_sent_is_the_edited_file_and_the_way_back(converge: Converge) -> None:
    theirs = b"# mine\n[wsl2]\nswap=0\n"
    got = converge(windows.config, of(), seen=seen(theirs))
    assert got.commands == ["python3 -I -S - # windows /w/.wslconfig"]
    (sent,) = got.sent
    (change,) = sent["files"]
    assert "record" not in sent
    ours = edit(theirs, "wslconfig", rules.wanted("wslconfig", {}))
    assert (change["path"], change["was"], change["data"]) == ("/w/.wslconfig", text(theirs), text(ours))
    assert change["entry"] == {
        "kind": "wslconfig",
        "before": text(theirs),
        "ours": text(ours),
        "changes": rules.wanted("wslconfig", {}),
        "waiting": ["experimental.autoMemoryReclaim", "general.instanceIdleTimeout", "wsl2.vmIdleTimeout"],
        "boot_id": "b1",
        "init": "77",
    }


def test_what_the_user_changed_since_is_a_part_of_what_comes_back(converge: Converge) -> None:
    theirs, earlier = b"[wsl2]\nswap=0\n", rules.wanted("wslconfig", {"wsl2.memory": "8GB"})
    ours = edit(theirs, "wslconfig", earlier)
    entry = {"before": text(theirs), "ours": text(ours), "changes": earlier, "boot_id": "b0", "init": "1"}
    now = b"# later\n" + ours
    got = converge(windows.config, of(wsl2={"processors": 3}), seen=seen(now, journal={"/w/.wslconfig": entry}))
    (change,) = got.sent[0]["files"]
    assert base64.b64decode(change["entry"]["before"]) == b"# later\n" + theirs
    assert change["entry"]["changes"] == {**earlier, "wsl2.processors": 3}, "memory is not asked for any more, but it is ours"
    assert change["entry"]["waiting"] == ["wsl2.processors"]


def test_both_files_at_once_and_interop_that_was_on_anyway_does_not_wait(converge: Converge) -> None:
    got = converge(windows.config, of(conf={"boot": {"command": "true"}}), seen=seen(None, None, recorded={}))
    (sent,) = got.sent
    assert [change["path"] for change in sent["files"]] == ["/w/.wslconfig", "/etc/wsl.conf"]
    assert sent["record"] == RECORD
    assert sent["files"][1]["entry"]["waiting"] == ["boot.command", "boot.systemd"]


def test_a_profile_that_was_found_is_kept(converge: Converge) -> None:
    got = converge(windows.config, of(), seen=seen(recorded={}))
    assert got.sent == [{"record": RECORD}]


def test_what_is_wrong_in_a_file_and_beside_it_is_said_when_it_is_changed(converge: Converge) -> None:
    config = file("/w/.wslconfig", b"memory=8GB\n[wsl2]\n", look_alikes=[".wslconfig", ".wslconfig.txt"])
    got = converge(windows.config, of(), seen=seen(wslconfig=config))
    assert ".wslconfig:1: " in got.log
    assert ".wslconfig.txt is not a name that WSL looks for" in got.log
    assert ".wslconfig is not a name" not in got.log


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"profile": None, "candidates": ["/a", "/b"], "interop": "off", "wslconfig": None}, ["there are /a, /b"]),
        ({"wslconfig": file("/w/.wslconfig", None, problem="/w/.wslconfig is a folder: move it away")}, ["is a folder"]),
        ({"free_bytes": 100, "wslconfig": file("/w/.wslconfig", b"")}, ["no disk space for /w/.wslconfig"]),
        (
            {
                "wslconfig": file("/w/.wslconfig", b"", problem="/w/.wslconfig is read-only"),
                "wslconf": file("/etc/wsl.conf", None, problem="/etc/wsl.conf is a folder: move it away"),
            },
            ["/w/.wslconfig is read-only", "/etc/wsl.conf is a folder"],
        ),
    ],
)
def test_every_reason_is_said_and_nothing_is_written(converge: Converge, more: dict[str, Any], said: list[str]) -> None:
    got = converge(windows.config, of(), seen=seen(**more))
    assert (got.failed, got.commands) == (True, [])
    assert all(words in got.log for words in said), got.log


def test_a_distro_whose_name_no_command_line_carries_is_refused_before_a_file_is_written(converge: Converge) -> None:
    odd = seen(b"", distro="Übuntu", recorded={**RECORD, "distro": "Übuntu"})
    got = converge(windows.config, of(), seen=odd)
    assert (got.failed, got.commands) == (True, [])
    assert "import it under another name" in got.log
    assert [change["path"] for change in converge(windows.config, of(keep_alive="off"), seen=odd).sent[0]["files"]] == [
        "/w/.wslconfig"
    ]


def test_two_distros_of_one_user_can_not_have_two_wishes(converge: Converge, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("@fake/a", "@fake/b")
    assert " .wslconfig: give them" not in converge(windows.config, of(), seen=seen(), hosts=both).log
    monkeypatch.setattr(windows, "wanted", lambda settings, kind: {"wsl2.swap": "1GB" if host.name == both[0] else "2GB"})
    log = converge(windows.config, of(), seen=seen(), hosts=both).log
    assert log.count("is a distro of the same Windows user, and both have one .wslconfig: give them the same wsl2.swap") == 1
    alone = converge(windows.config, of(), seen=seen(profile=None, interop="is off", wslconfig=None), hosts=both)
    assert "of the same Windows user" not in alone.log


def test_a_file_that_needs_no_change_may_be_read_only(converge: Converge) -> None:
    got = converge(windows.config, of(), seen=seen(wslconfig=file("/w/.wslconfig", CONFIG, problem="is read-only")))
    assert (got.failed, got.commands) == (False, [])


@pytest.mark.parametrize(("machine", "fails"), [(32 * GIB, True), (64 * GIB, False), (None, False)])
def test_windows_is_asked_for_its_memory_only_before_it_is_given_away(
    converge: Converge, machine: int | None, fails: bool
) -> None:
    answers = {"# windows": f'{{"memory": {machine or "null"}}}'}
    got = converge(windows.config, of(wsl2={"memory": "48GB"}), seen=seen(), answers=answers)
    assert got.sent[0] == {"ask": "machine"}
    assert (got.failed, len(got.sent)) == (fails, 1 if fails else 2)
    there = edit(CONFIG, "wslconfig", {"wsl2.memory": "48GB"})
    assert converge(windows.config, of(wsl2={"memory": "48GB"}), seen=seen(there)).commands == []
    assert [s.get("ask") for s in converge(windows.config, of(wsl2={"swap": "1GB"}), seen=seen()).sent] == [None]


def test_without_a_profile_wsl_conf_is_written_all_the_same(converge: Converge) -> None:
    got = converge(windows.config, of(), seen=seen(conf=None, profile=None, interop="is off", wslconfig=None))
    assert [change["path"] for change in got.sent[0]["files"]] == ["/etc/wsl.conf"]


# Their effect

WAITS: dict[str, Any] = {"journal": {"/w/.wslconfig": {"boot_id": "b1", "init": "77", "waiting": ["wsl2.vmIdleTimeout"]}}}


def test_all_in_effect(converge: Converge, told: list[str]) -> None:
    got = converge(windows.in_effect, of(wsl2={"memory": "16GB", "processors": 8}), seen=seen())
    assert (got.commands, got.changed, pending(), told) == ([], False, [], [])


def test_what_waits_is_pending_and_no_change(converge: Converge) -> None:
    answers = {"# windows": '{"running": ["Ubuntu", "docker-desktop"]}'}
    got = converge(windows.in_effect, of(), seen=seen(**WAITS), answers=answers)
    assert (got.sent, got.changed, got.failed) == ([{"ask": "running"}], False, False)
    assert pending() == ["pending: wsl --shutdown (in Windows; it ends Ubuntu, docker-desktop): wsl2.vmIdleTimeout"]


def test_what_waits_is_told_although_nobody_says_who_runs(converge: Converge) -> None:
    got = converge(windows.in_effect, of(), seen=seen(**WAITS))
    assert (got.changed, got.failed) == (False, False)
    assert pending() == ["pending: wsl --shutdown (in Windows; it ends every distro): wsl2.vmIdleTimeout"]


def test_what_a_start_did_not_bring_is_told_and_not_pending(converge: Converge, told: list[str]) -> None:
    got = converge(windows.in_effect, of(restart=True, wsl2={"processors": 4}), seen=seen())
    assert (got.commands, pending()) == ([], [])
    assert "not in effect although WSL was started since: wsl2.processors (wanted 4, seen 8)" in told[0]


def test_what_was_left_undone_is_told_each_run(converge: Converge, told: list[str]) -> None:
    got = converge(windows.in_effect, of(), seen=seen(profile=None, interop="it is off", wslconfig=None))
    assert (got.commands, got.changed, pending()) == ([], False, [])
    assert told[0] == "@fake/a: not done on Windows: .wslconfig was not looked at, because it is off"
    told.clear()
    converge(windows.in_effect, of(windows=False), seen=seen(profile=None, interop="it is off", wslconfig=None))
    assert told == []


def test_a_restart_from_inside_is_left_to_somebody(converge: Converge) -> None:
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    entry = {"boot_id": here, "init": "77", "waiting": ["wsl2.vmIdleTimeout"]}
    inside = seen(journal={"/w/.wslconfig": entry}, seen={**SEEN, "boot_id": here})
    got = converge(windows.in_effect, of(restart=True), seen=inside)
    assert got.sent == [{"ask": "running"}]
    assert pending()[0].endswith("this run is inside of WSL, so run that in Windows, and then this again")


@pytest.mark.parametrize("more", [{"interop": "is off"}, {"distro": None}])
def test_a_restart_that_can_not_be_asked_for_is_left_to_somebody(converge: Converge, more: dict[str, Any]) -> None:
    got = converge(windows.in_effect, of(restart=True), seen=seen(**WAITS, **more))
    assert ([sent["ask"] for sent in got.sent if sent["ask"] != "running"], got.failed, len(pending())) == ([], False, 1)


def test_a_restart_names_who_it_ends_and_waits_for_another_start(converge: Converge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "PAUSE", 0)
    answers = {"# windows": '{"running": ["Ubuntu", "docker-desktop"]}', "cat /proc/sys/kernel/random/boot_id": "b2"}
    got = converge(windows.in_effect, of(restart=True), seen=seen(**WAITS), answers=answers)
    assert got.sent[:2] == [{"ask": "running"}, {"ask": "restart", "distro": "Ubuntu"}]
    assert "it ends Ubuntu, docker-desktop" in got.log
    assert (got.failed, got.probes) == (False, 2)
    assert pending() != [], "the canned probe still shows the old start"


def test_a_distro_that_does_not_come_back_fails_its_host(converge: Converge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "PAUSE", 0.01)
    monkeypatch.setattr(windows, "RESTART_LIMIT", 0.1)
    answers = {"# windows": '{"running": []}', "cat /proc/sys/kernel/random/boot_id": "b1"}
    got = converge(windows.in_effect, of(restart=True), seen=seen(**WAITS), answers=answers)
    assert got.failed
    assert "the distro did not answer within 0.1 s after `wsl --shutdown`" in got.log
