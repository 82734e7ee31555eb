"""What `wsllama watch` makes of samples, and the program that gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
from pyinfra.api import Inventory
from pyinfra.api.exceptions import ConnectError

from wsllama.commands import watch as command
from wsllama.domain.watch import state_of
from wsllama.host import uninstall, watched
from wsllama.remote import Fleet

GPU = {
    "name": "NVIDIA GeForce RTX 4070", "total": 12 << 30, "used": 11 << 30, "utilization_percent": 97, "power_w": 180.4,
    "temperature_c": 66,
}  # fmt: skip
LOW = {"kind": "utilisation", "since": 1790000000, "sentence": "the GPU was used 0% at most"}


def found(now: int = 1000, **more: Any) -> dict[str, Any]:
    sample = {
        "at": 1000, "interval_s": 5, "source": "nvml", "why": "", "gpus": [GPU], "server": {"state": "ok", "busy": 1},
        "working": True, "tokens_per_second": 31.25, "warnings": [], **more,
    }  # fmt: skip
    return {"sample": sample, "now": now, "unit": "active"}


@pytest.mark.parametrize(
    ("of", "state"),
    [
        (found(), "works"),
        (found(working=False), "idle"),
        (found(1025), "works"),
        (found(1026), "stale"),
        (found(warnings=[LOW]), "warns"),
        (found(server={"state": "/metrics: 503"}), "no server"),
        ({"sample": None, "now": 1, "unit": "inactive"}, "not watched"),
    ],
)
def test_a_word_for_each_host(of: dict[str, Any], state: str) -> None:
    assert state_of(of) == state


def shown(of: dict[str, Any], **more: dict[str, str]) -> list[str]:
    lines = command.shown({"desk-1": {"state": state_of(of), **of}}, more.get("failed", {}), more.get("unreachable", {}))
    return [" ".join(line.split()) for line in lines][1:]


def test_a_row_for_each_gpu_and_a_line_for_each_warning() -> None:
    other = {**GPU, "utilization_percent": None, "power_w": None, "used": None, "temperature_c": None}
    lines = shown(
        found(gpus=[GPU, other], warnings=[LOW]), failed={"desk-2": "no answer within 20 s"}, unreachable={"desk-3": "x"}
    )
    assert lines[:4] == [
        "desk-1 warns NVIDIA GeForce RTX 4070 97% 11.0 of 12.0 GiB 180 W 66 °C 1 31.2",
        "NVIDIA GeForce RTX 4070 not reported not reported not reported not reported",
        "desk-2 no answer - - - - - - -",
        "desk-3 unreachable - - - - - - -",
    ]
    assert lines[4].startswith("desk-1: since ")
    assert lines[4].endswith(": the GPU was used 0% at most")


def test_what_is_not_reported_is_said_so() -> None:
    why = "NVML: NVML Shared Library Not Found; nvidia-smi: no driver"
    lines = shown(found(gpus=[], why=why, working=False, tokens_per_second=None, server={"state": "no release"}))
    assert lines == ["desk-1 no server not reported - - - - - -", f"desk-1: {why}"]
    lines = shown({"sample": None, "now": 1, "unit": "inactive"})
    assert lines == [
        "desk-1 not watched - - - - - - -",
        "desk-1: llama-watch.service is inactive: watch.enabled decides (docs/settings.md)",
    ]


@pytest.fixture
def fleet() -> Fleet:
    quick = {"fake_delay": 0, "fake_delay_jitter": 0, "fake_responses": {"# watched": json.dumps(found())}}
    return Fleet(Inventory((["@fake/gone", "@fake/here"], quick))).connect()


def fails(error: Exception) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def test_a_host_that_goes_away_is_connected_again_and_the_other_one_is_shown(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, tried = fleet.wanted[0], dict[str, float]()
    with monkeypatch.context() as patched:
        patched.setattr(gone, "run_shell_command", fails(EOFError()))
        patched.setattr(gone, "disconnect", fails(EOFError()))  # as where sudo's password was given: a file is there to remove
        hosts, failed = command.looked(fleet)
        assert (list(hosts), hosts["@fake/here"]["state"], list(failed)) == (["@fake/here"], "works", ["@fake/gone"])
        patched.setattr(type(gone.connector), "connect", fails(ConnectError("no route to it")))
        command.reconnect(fleet, failed, tried)
        gevent.sleep(0)
        assert [host.name for host in fleet.hosts] == ["@fake/here"]
        assert fleet.unreachable == {"@fake/gone": "no route to it"}
        assert command.looked(fleet) == (hosts, {})
    command.reconnect(fleet, fleet.unreachable, tried)
    gevent.sleep(0)
    assert fleet.unreachable, "it was tried just now"
    command.reconnect(fleet, fleet.unreachable, {"@fake/gone": tried["@fake/gone"] - command.AGAIN_S})
    gevent.sleep(0)
    assert fleet.unreachable == {}
    assert sorted(command.looked(fleet)[0]) == ["@fake/gone", "@fake/here"]


def test_the_program_gives_the_newest_sample_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argument = {"folder": str(tmp_path), "unit": "of-no-such-name.service"}
    watched.main(argument)
    assert json.loads(capsys.readouterr().out)["sample"] is None
    (tmp_path / "sample.json").write_text(json.dumps(found()["sample"]))
    watched.main(argument)
    assert json.loads(capsys.readouterr().out)["sample"]["gpus"] == [GPU]


def test_the_link_is_taken_back_while_it_is_the_one_that_was_made(tmp_path: Path) -> None:
    record, link = tmp_path / "record", tmp_path / "a b.prom"
    assert uninstall.link(str(record), "/run/x", look=False)["state"] == "unchanged"
    record.write_text(f"{link}\n")
    for target, state, stays in (("/elsewhere", "unchanged", True), ("/run/x", "changed", False)):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert uninstall.link(str(record), "/run/x", look=True)["state"] == state
        assert link.is_symlink(), "only looked at"
        assert uninstall.link(str(record), "/run/x", look=False)["state"] == state
        assert link.is_symlink() is stays
