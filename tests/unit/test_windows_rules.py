"""What is wanted on the Windows side, what is refused, what is in effect, and the way back, as pure rules."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsllama.domain import windows as rules
from wsllama.domain.wslconfig import Kind, edit, parse

GIB, MIB = 1 << 30, 1 << 20
SEEN: dict[str, Any] = {
    "memory": 16038 * MIB,
    "swap": 4 * GIB - 4096,
    "processors": 8,
    "networking_mode": "nat",
    "boot_id": "b1",
    "booted": 1000,
    "init": "77",
    "systemd": True,
}


def side(**more: Any) -> dict[str, Any]:
    """A machine whose .wslconfig was written by nobody, long before WSL started."""
    found: dict[str, Any] = {
        "profile": "/mnt/c/Users/Ada",
        "why": None,
        "candidates": [],
        "interop": None,
        "journal": {},
        "seen": SEEN,
        "wslconfig": {"path": "/w", "data": None, "problem": None, "mtime": 10, "look_alikes": []},
        "wslconf": {"path": "/c", "data": None, "problem": None, "mtime": None, "look_alikes": []},
    }
    return {**found, **more}


# What is wanted


def test_both_idle_keys_stand_in_their_sections_and_the_settings_win() -> None:
    values = rules.wanted("wslconfig", {"wsl2.memory": "8GB", "wsl2.vmIdleTimeout": 5})
    parsed = parse(edit(None, "wslconfig", values), "wslconfig")
    assert parsed.warnings == []
    assert parsed.values == {
        "general.instanceIdleTimeout": -1,
        "wsl2.vmIdleTimeout": 5,
        "wsl2.memory": 8 * GIB,
        "experimental.autoMemoryReclaim": "Disabled",
    }


def test_systemd_is_on_and_interop_kept() -> None:
    parsed = parse(edit(b"[boot]\nsystemd=false\n", "wslconf", rules.wanted("wslconf", {})), "wslconf")
    assert (parsed.values, parsed.rc) == ({"boot.systemd": True, "interop.enabled": True}, 0)


def test_only_what_wsl_does_not_read_differs() -> None:
    data = b"[wsl2]\nmemory=16GB\nswapFile=C:/a/b\n"
    values = {"wsl2.memory": 16 * GIB, "wsl2.swapFile": "C:\\a\\b", "wsl2.processors": 2}
    assert rules.differing(data, "wslconfig", values) == ["wsl2.processors"]
    assert rules.differing(None, "wslconfig", values) == list(values)


# What is refused


@pytest.mark.parametrize(
    ("more", "given", "said"),
    [
        ({}, None, None),
        ({"profile": None, "why": "there is no folder /x"}, "/x", "wsl.profile: there is no folder /x; give the folder"),
        ({"profile": None, "candidates": ["/a", "/b"], "interop": "is off"}, None, "there are /a, /b: set wsl.profile"),
        ({"profile": None, "why": "Windows names C:\\U"}, None, "Windows names C:\\U: set wsl.profile"),
        ({"profile": None, "interop": "is off"}, None, None),
    ],
)
def test_a_profile_that_could_be_known(more: dict[str, Any], given: str | None, said: str | None) -> None:
    found = rules.profile_problem(side(**more), given)
    assert (found is None) if said is None else (found and said in found)


@pytest.mark.parametrize(
    ("asked", "machine", "refused"),
    [
        (32 * GIB, 32 * GIB - 300 * MIB, False),  # bought as 32 GiB
        (33 * GIB, 32 * GIB - 300 * MIB, True),
        (16 * GIB, 32 * GIB, False),
        (99 * GIB, None, False),
    ],
)
def test_more_memory_than_the_machine_has(asked: int, machine: int | None, refused: bool) -> None:
    assert bool(rules.memory_problem(asked, machine)) is refused


def test_a_full_drive_and_a_file_that_can_not_be_written() -> None:
    file = side()["wslconfig"]
    assert rules.file_problem(file, 1000, 2 * MIB) is None
    assert rules.file_problem(file, 1000, None) is None
    assert "no disk space for /w" in str(rules.file_problem(file, 1000, MIB))
    assert rules.file_problem({**file, "problem": "/w is a folder"}, 1, 9 * MIB) == "/w is a folder"


def test_what_was_not_done_is_said_with_the_lines_to_write() -> None:
    assert rules.undone(side(), {"wsl2.vmIdleTimeout": -1}) == []
    first, *lines = rules.undone(side(profile=None, interop="it is off"), {"wsl2.vmIdleTimeout": -1})
    assert "it is off" in first
    assert [line.strip() for line in lines[1:]] == ["[wsl2]", "vmIdleTimeout=-1"]


# What is in effect


def effect(values: dict[str, Any], **more: Any) -> tuple[list[str], list[str]]:
    waiting, in_vain = rules.effect(side(**more), values)
    return [name.partition(" ")[0] for name in waiting], [name.partition(" ")[0] for name in in_vain]


@pytest.mark.parametrize(
    ("name", "value", "seen", "same"),
    [
        ("wsl2.memory", "16GB", {}, True),  # 15.66 GiB: the kernel keeps its part
        ("wsl2.memory", "16GB", {"memory": 16 * GIB}, True),
        ("wsl2.memory", "15GB", {}, False),
        ("wsl2.memory", "17GB", {}, False),
        ("wsl2.memory", "4GB", {"memory": 3920 * MIB}, True),
        ("wsl2.memory", "1GB", {"memory": 950 * MIB}, True),
        ("wsl2.memory", "48GB", {"memory": 48273936 * 1024}, True),
        ("wsl2.swap", "4GB", {}, True),
        ("wsl2.swap", 4 * GIB - 1000, {}, True),
        ("wsl2.swap", "5GB", {}, False),
        ("wsl2.swap", "0", {}, False),
        ("wsl2.swap", "0", {"swap": 0}, True),
        ("wsl2.swap", "1MB", {"swap": 0}, True),
        ("wsl2.processors", 8, {}, True),
        ("wsl2.processors", 4, {}, False),
        ("wsl2.networkingMode", "nat", {}, True),
        ("wsl2.networkingMode", "mirrored", {}, False),
        ("wsl2.networkingMode", "consomme", {"networking_mode": "virtioproxy"}, True),
        ("wsl2.networkingMode", "virtioproxy", {"networking_mode": "consomme"}, True),
        ("wsl2.networkingMode", "consomme", {"networking_mode": "nat"}, False),
    ],
)
def test_what_the_vm_shows(name: str, value: Any, seen: dict[str, Any], same: bool) -> None:
    assert effect({name: value}, seen={**SEEN, **seen}) == ([], [] if same else [name])


def test_what_was_written_since_wsl_started_waits_and_what_was_there_before_is_in_vain() -> None:
    later = {"path": "/w", "mtime": 2000}
    assert effect({"wsl2.processors": 4}, wslconfig=later) == (["wsl2.processors"], [])
    assert effect({"wsl2.processors": 4}) == ([], ["wsl2.processors"])


@pytest.mark.parametrize("value", ["wsl2.vmIdleTimeout", "general.instanceIdleTimeout"])
def test_what_the_vm_does_not_show_waits_until_another_start(value: str) -> None:
    entry = {"boot_id": "b1", "init": "77", "waiting": [value]}
    assert effect({value: -1}, journal={"/w": entry}) == ([value], [])
    assert effect({value: -1}, journal={"/w": {**entry, "boot_id": "b0"}}) == ([], [])
    assert effect({value: -1}, journal={"/w": {**entry, "waiting": []}}) == ([], [])
    assert effect({value: -1}, journal={}) == ([], [])
    assert effect({value: -1}, journal={}, wslconfig={"path": "/w", "mtime": 2000}) == ([value], [])


def test_settings_of_wsl_conf_wait_for_a_start_of_the_distro() -> None:
    names = ["boot.systemd", "interop.enabled", "boot.command"]
    entry = {"boot_id": "b1", "init": "77", "waiting": names}
    assert effect({}, journal={"/c": entry}) == (["boot.command"], [])
    assert effect({}, journal={"/c": entry}, interop="is off") == (["interop.enabled", "boot.command"], [])
    assert effect({}, journal={"/c": {**entry, "init": "76"}}) == ([], [])
    assert effect({}, journal={"/c": {**entry, "boot_id": "b0"}}) == ([], [])


def test_what_waited_goes_on_waiting_when_more_is_changed() -> None:
    entry = {"boot_id": "b1", "init": "77", "waiting": ["wsl2.memory"]}
    assert rules.to_restart("wslconfig", ["wsl2.swap"], entry, SEEN) == ["wsl2.memory", "wsl2.swap"]
    assert rules.to_restart("wslconfig", ["wsl2.swap"], {**entry, "boot_id": "b0"}, SEEN) == ["wsl2.swap"]
    assert rules.to_restart("wslconfig", ["wsl2.swap"], {**entry, "init": "1"}, SEEN) == ["wsl2.memory", "wsl2.swap"]
    assert rules.to_restart("wslconf", ["boot.systemd"], {**entry, "init": "1"}, SEEN) == ["boot.systemd"]
    assert rules.to_restart("wslconfig", ["wsl2.swap"], {}, SEEN) == ["wsl2.swap"]


def test_one_sentence_for_all_that_waits() -> None:
    assert rules.pending([]) == []
    (sentence,) = rules.pending(["a", "b"])
    assert sentence.startswith("pending: wsl --shutdown")
    assert sentence.endswith("a, b")
    assert "it ends every distro" in sentence
    assert "it ends Ubuntu, docker-desktop)" in rules.pending(["a"], ["Ubuntu", "docker-desktop"])[0]


def test_bytes_of_a_file() -> None:
    assert rules.held(None) is None
    assert rules.held({"data": None}) is None
    assert rules.held({"data": base64.b64encode(b"\xff\0").decode()}) == b"\xff\0"


# The way back

CHANGES = rules.wanted("wslconfig", {"wsl2.memory": "24GB"})
THEIRS = b"# mine\r\n[wsl2]\r\nmemory=8GB  # enough\r\nswap=0\r\n[experimental]\r\nautoMemoryReclaim=gradual\r\n"


@pytest.mark.parametrize("before", [None, b"", THEIRS, THEIRS.rstrip(), b"\xff\xfe" + "[wsl2]\nmemory=1GB\n".encode("utf-16-le")])
def test_a_file_that_nobody_touched_since_comes_back_byte_for_byte(before: bytes | None) -> None:
    ours = edit(before, "wslconfig", CHANGES)
    assert rules.undo(before, ours, ours, "wslconfig", CHANGES) == before


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        (lambda d: d + b"# later\r\n", THEIRS + b"# later\r\n"),
        (lambda d: d.replace(b"swap=0", b"swap=1GB"), THEIRS.replace(b"swap=0", b"swap=1GB")),
        (lambda d: b"# top\r\n" + d, b"# top\r\n" + THEIRS),
        (lambda d: d.replace(b"# mine\r\n", b""), THEIRS.replace(b"# mine\r\n", b"")),
    ],
)
def test_later_edits_survive_and_all_else_is_theirs_again(edited: Any, expected: bytes) -> None:
    ours = edit(THEIRS, "wslconfig", CHANGES)
    assert rules.undo(THEIRS, ours, edited(ours), "wslconfig", CHANGES) == expected


def test_a_value_that_the_user_changed_since_is_theirs() -> None:
    ours = edit(THEIRS, "wslconfig", CHANGES)
    now = ours.replace(b"memory=24GB", b"memory=12GB")
    back = rules.undo(THEIRS, ours, now, "wslconfig", CHANGES)
    assert back is not None
    assert parse(back, "wslconfig").values == {
        "wsl2.memory": 12 * GIB,
        "wsl2.swap": 0,
        "experimental.autoMemoryReclaim": "Gradual",
    }


def test_a_setting_that_the_user_put_into_our_section_stays() -> None:
    ours = edit(None, "wslconfig", CHANGES)
    for place in (b"[wsl2]\n", b"vmIdleTimeout=-1\n", b"memory=24GB\n"):
        now = ours.replace(place, place + b"processors=3\n") if place != b"[wsl2]\n" else ours + b"[wsl2]\nprocessors=3\n"
        back = rules.undo(None, ours, now, "wslconfig", CHANGES)
        assert back is not None
        assert parse(back, "wslconfig").values == {"wsl2.processors": 3}, place


def test_what_was_ours_alone_goes_when_only_blanks_were_added() -> None:
    ours = edit(None, "wslconfig", CHANGES)
    assert rules.undo(None, ours, ours + b"\r\n \r\n", "wslconfig", CHANGES) is None
    assert rules.undo(None, ours, ours + b"# hello\n", "wslconfig", CHANGES) == b"# hello\n"


def test_a_run_that_ended_before_the_file_was_written_leaves_theirs() -> None:
    assert rules.undo(THEIRS, edit(THEIRS, "wslconfig", CHANGES), THEIRS, "wslconfig", CHANGES) == THEIRS


def test_wsl_conf_comes_back_too() -> None:
    theirs = b"[user]\ndefault=ada\n\n[boot]\n# systemd, some day\n"
    changes = rules.wanted("wslconf", {})
    ours = edit(theirs, "wslconf", changes)
    assert rules.undo(theirs, ours, ours + b"[time]\nuseWindowsTimezone=false\n", "wslconf", changes) == (
        theirs + b"[time]\nuseWindowsTimezone=false\n"
    )


LINES = ["[wsl2]", "[general]", "[experimental]", "memory=4GB", "memory=5GB", "swap=0", "vmIdleTimeout=7", "# note", "", "junk"]
TEXTS = st.lists(st.sampled_from(LINES), max_size=9).map(lambda lines: "".join(f"{line}\n" for line in lines).encode())


@settings(max_examples=300, deadline=None)
@given(before=st.none() | TEXTS, more=TEXTS, kind=st.just("wslconfig"), at=st.integers(0, 12))
def test_our_values_go_and_all_others_stay(before: bytes | None, more: bytes, kind: Kind, at: int) -> None:
    ours = edit(before, kind, CHANGES)
    lines = ours.splitlines(keepends=True)
    now = b"".join([*lines[:at], *more.splitlines(keepends=True), *lines[at:]])
    back = rules.undo(before, ours, now, kind, CHANGES)
    were, was_ours, are = (parse(data, kind).values for data in (before or b"", ours, now))
    left = parse(back or b"", kind).values
    for name in {*were, *are, *left}:
        if name in CHANGES and are.get(name) == was_ours.get(name):
            assert left.get(name) == were.get(name), name
        else:
            assert left.get(name) == are.get(name), name


def test_a_comment_behind_a_file_that_was_utf_16_is_not_put_into_it_as_bytes() -> None:
    before = b"\xff\xfe" + "# mine\r\n[wsl2]\r\nmemory=8GB\r\n".encode("utf-16-le")
    ours = edit(before, "wslconfig", rules.wanted("wslconfig", {}))
    back = rules.undo(before, ours, ours + b"# later\r\n", "wslconfig", rules.wanted("wslconfig", {}))
    assert back is not None
    assert parse(back, "wslconfig").values == parse(before, "wslconfig").values
    assert [line for line in back.splitlines() if line.startswith(b"#")] == [b"# mine", b"# later"]
