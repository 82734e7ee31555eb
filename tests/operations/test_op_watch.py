"""The GPU watch's files, unit and link: what a canned host makes of them."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import re
from typing import Any

import pytest

from tests.operations.fake_hosts import Converge, settings
from tests.operations.test_op_watchdog import RUNS
from wsllama.operations import watch

UNIT, PROGRAM, MODULE = "llama-watch.service", "/opt/wsllama/watch.py", "/opt/wsllama/pynvml.py"
UNIT_FILE, LINK, RECORD = f"/etc/systemd/system/{UNIT}", "/var/lib/node exporter/wsllama.prom", "/var/lib/wsllama/watch.textfile"
STARTED = ["systemctl daemon-reload", f"systemctl enable --quiet {UNIT}", f"systemctl restart {UNIT}"]
ON: dict[str, Any] = {"watch": {"enabled": True}}
LINKED: dict[str, Any] = {"watch": {"enabled": True, "textfile": LINK}}


def seen(of: dict[str, Any], unit: dict[str, str] | None = None, there: bool = True, **more: Any) -> dict[str, Any]:
    """A host that has all of it, as these settings want it. more: link, record."""
    root = {"kind": "file", "mode": "644", "user": "root", "group": "root"}
    files = {f.path: {**root, "sha256": f.sha256} if there else None for f in watch.files_of(settings(**of))}
    files[LINK] = more.get("link")
    return {"files": files, "units": {UNIT: RUNS if unit is None else unit}, "stamps": {RECORD: more.get("record")}}


def test_it_holds(converge: Converge) -> None:
    got = converge(watch.watch, settings(**ON), seen=seen(ON))
    assert (got.commands, got.probes, got.changed) == ([], 1, False)


@pytest.mark.parametrize(
    ("of", "on"),
    [
        ({}, False),
        ({"llama_cpp": {"backend": "cuda"}}, True),
        ({"llama_cpp": {"backend": "cuda"}, "watch": {"enabled": False}}, False),
        (ON, True),
    ],
)
def test_it_is_on_where_there_is_a_gpu_or_where_that_is_said(of: dict[str, Any], on: bool) -> None:
    assert settings(platform="linux", **of).watched is on


def test_it_is_installed_with_nvidia_s_module_and_started(converge: Converge) -> None:
    got = converge(watch.watch, settings(**ON), seen=seen(ON, {"LoadState": "not-found", "ActiveState": "inactive"}, there=False))
    assert got.commands == [f"python3 -I -S - # apply {PROGRAM} {MODULE} {UNIT_FILE}", *STARTED]
    texts = {want["path"]: base64.b64decode(want["data"]) for want in got.sent[0]}
    record = next(f for f in importlib.metadata.files("nvidia-ml-py") or () if str(f) == "pynvml.py")
    assert record.hash
    assert base64.urlsafe_b64encode(hashlib.sha256(texts[MODULE]).digest()).decode().rstrip("=") == record.hash.value
    assert re.search(rf"^ExecStart=/usr/bin/python3 -I -S {PROGRAM}$", texts[UNIT_FILE].decode(), re.M)
    told = re.search(r"^main\(json\.loads\((.*)\)\)$", texts[PROGRAM].decode(), re.M)
    assert told
    assert json.loads(json.loads(told[1])) == {
        "root": "/opt/wsllama", "key_file": "/etc/wsllama/api-key", "folder": "/run/llama-watch", "nvml": MODULE, "interval_s": 5,
        "limits": {
            "low_utilization_percent": 10, "low_utilization_s": 30, "vram_full_percent": 95, "collapse_percent": 40,
            "temperature_c": 87,
        },
    }  # fmt: skip


@pytest.mark.parametrize("wsl", [False, True])
def test_the_unit_lets_it_see_the_gpu_alone(wsl: bool) -> None:
    of = settings(platform="wsl" if wsl else "linux", **ON)
    text = watch.files_of(of)[2].text
    assert {"DevicePolicy=closed", "User=llama", "CapabilityBoundingSet=", "ProtectSystem=strict"} <= set(text.splitlines())
    assert "PrivateDevices" not in text
    assert ("DeviceAllow=/dev/dxg rw" in text, "LD_LIBRARY_PATH=/usr/lib/wsl/lib" in text) == (wsl, wsl)


def test_it_is_taken_away(converge: Converge) -> None:
    off = {"watch": {"enabled": False, "textfile": LINK}}
    got = converge(watch.watch, settings(**off), seen=seen(off, link={"kind": "link", "target": watch.TARGET}, record=LINK))
    assert got.commands == [
        f"systemctl disable --quiet --now {UNIT}", f"python3 -I -S - # apply {PROGRAM} {MODULE} {UNIT_FILE}",
        "systemctl daemon-reload", f"python3 -I -S - # apply {LINK}",
    ]  # fmt: skip
    assert got.sent[1] == [{"path": path, "kind": "absent"} for path in (LINK, RECORD)]
    assert converge(watch.watch, settings(**off), seen=seen(off, there=False)).commands == []


LINKS = f"mkdir -p '/var/lib/node exporter' && ln -sfn /run/llama-watch/watch.prom '{LINK}'"


def test_the_link_is_recorded_before_it_is_made(converge: Converge) -> None:
    got = converge(watch.watch, settings(**LINKED), seen=seen(LINKED))
    assert got.commands == [f"python3 -I -S - # apply {RECORD}", LINKS]
    assert base64.b64decode(got.sent[0][0]["data"]).decode() == f"{LINK}\n"
    assert converge(watch.watch, settings(**LINKED), seen=seen(LINKED, record=LINK)).commands[-1] == LINKS, (
        "a run that was killed"
    )
    link = {"kind": "link", "target": watch.TARGET}
    assert converge(watch.watch, settings(**LINKED), seen=seen(LINKED, link=link, record=LINK)).commands == []


def test_a_link_at_another_place_goes(converge: Converge) -> None:
    got = converge(watch.watch, settings(**LINKED), seen=seen(LINKED, record="/old/a.prom"))
    assert got.sent[0] == [{"path": "/old/a.prom", "kind": "absent"}]
    assert got.commands[-1] == LINKS


@pytest.mark.parametrize("there", [{"kind": "file"}, {"kind": "link", "target": "/elsewhere"}])
def test_what_is_not_ours_is_left(converge: Converge, there: dict[str, str]) -> None:
    got = converge(watch.watch, settings(**LINKED), seen=seen(LINKED, link=there, record=LINK))
    assert (got.commands, got.failed) == ([], True)


@pytest.mark.parametrize("path", ["metrics.prom", "/x/metrics.txt", "/x/.prom\n.prom", "/"])
def test_a_place_for_the_link_is_a_path_that_prometheus_reads(path: str) -> None:
    with pytest.raises(AssertionError):
        settings(watch={"textfile": path})
