"""The watchdog's files and unit: what a canned host makes of them."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from tests.operations.fake_hosts import Converge, settings
from wsllama.operations import release, watchdog

UNIT, PROGRAM = "llama-watchdog.service", "/opt/wsllama/watchdog.py"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
RUNS = {"LoadState": "loaded", "NeedDaemonReload": "no", "ActiveState": "active", "UnitFileState": "enabled"}
STARTED = [
    f"python3 -I -S - # apply {PROGRAM} {UNIT_FILE}", "systemctl daemon-reload",
    f"systemctl enable --quiet {UNIT}", f"systemctl restart {UNIT}",
]  # fmt: skip


def seen(unit: dict[str, str] | None = None, there: bool = True, **server: Any) -> dict[str, Any]:
    """A host that has all of it, as these settings of the server want it."""
    root = {"kind": "file", "mode": "644", "user": "root", "group": "root"}
    files = {f.path: {**root, "sha256": f.sha256} if there else None for f in watchdog.files_of(settings(server=server))}
    return {"files": files, "units": {UNIT: RUNS if unit is None else unit}}


def test_it_holds(converge: Converge) -> None:
    got = converge(watchdog.watchdog, settings(), seen=seen())
    assert (got.commands, got.probes, got.changed) == ([], 1, False)


def test_it_is_installed_and_started(converge: Converge) -> None:
    got = converge(watchdog.watchdog, settings(), seen=seen({"LoadState": "not-found", "ActiveState": "inactive"}, there=False))
    assert got.commands == STARTED
    texts = {want["path"]: base64.b64decode(want["data"]).decode() for want in got.sent[0]}
    assert re.search(rf"^ExecStart=/usr/bin/python3 -I -S {PROGRAM}$", texts[UNIT_FILE], re.M)
    told = re.search(r"^main\(json\.loads\((.*)\)\)$", texts[PROGRAM], re.M)
    assert told
    assert json.loads(json.loads(told[1])) == {
        "root": "/opt/wsllama", "unit": "llama-server.service", "key_file": "/etc/wsllama/api-key",
        "state": "/run/llama-watchdog/state.json", "timeout_s": 300,
    }  # fmt: skip


def test_another_timeout_is_another_program_and_the_server_goes_on(converge: Converge) -> None:
    got = converge(watchdog.watchdog, settings(server={"watchdog_timeout_s": 60}), seen=seen())
    assert got.commands == [f"python3 -I -S - # apply {PROGRAM}", *STARTED[1:]]
    assert {"watchdog", "watchdog_timeout_s"} == release.BESIDE


@pytest.mark.parametrize(
    ("key", "value"), [("ActiveState", "failed"), ("UnitFileState", "disabled"), ("NeedDaemonReload", "yes")]
)
def test_it_is_put_right(converge: Converge, key: str, value: str) -> None:
    assert converge(watchdog.watchdog, settings(), seen=seen({**RUNS, key: value})).commands == STARTED[1:]


def test_it_is_taken_away(converge: Converge) -> None:
    off = settings(server={"watchdog": False})
    got = converge(watchdog.watchdog, off, seen=seen())
    assert got.commands == [
        f"systemctl disable --quiet --now {UNIT}", f"python3 -I -S - # apply {PROGRAM} {UNIT_FILE}", "systemctl daemon-reload",
    ]  # fmt: skip
    assert got.sent == [[{"path": path, "kind": "absent"} for path in (PROGRAM, UNIT_FILE)]]
    assert converge(watchdog.watchdog, off, seen=seen(there=False)).commands == []
