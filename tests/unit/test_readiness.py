"""Which hosts are refused before the first change, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from wsllama.domain import readiness

GOOD = {"systemd": True, "wsl": ["/run/WSL"], "root": True}


def problems(system: dict[str, Any] | None = None, **more: Any) -> list[str]:
    rest = {"platform": "wsl", "port": 8080, "port_owner": None, "own_unit": "llama-server.service", **more}
    return readiness.problems({**GOOD, **(system or {})}, **rest)


def test_a_good_host() -> None:
    assert problems() == []
    assert problems({"wsl": []}, platform="linux") == []
    assert problems(port_owner="llama-server.service") == [], "our own service holds the port while it runs"


@pytest.mark.parametrize("platform", ["wsl", "linux"])
def test_without_systemd_always_refused(platform: str) -> None:
    (sentence,) = problems({"systemd": False}, platform=platform)
    assert "systemd=true below [boot] in /etc/wsl.conf" in sentence
    assert "scripts/demo" in sentence


def test_wsl_without_its_traces_is_refused() -> None:
    (sentence,) = problems({"wsl": []})
    assert "no WSL machine" in sentence
    assert "set platform to linux" in sentence
    assert "scripts/demo" in sentence


def test_not_root() -> None:
    (sentence,) = problems({"root": False})
    assert "_sudo" in sentence


def test_a_port_of_others() -> None:
    assert problems(port_owner="nginx (pid 7)") == ["port 8080 is taken by nginx (pid 7): stop that, or set server.port"]


def test_everything_at_once() -> None:
    assert len(problems({"systemd": False, "wsl": [], "root": False}, port_owner="x")) == 4


@pytest.mark.parametrize(
    ("need", "free", "refused"),
    [(10**9, 1_500_000_000, False), (10**9, 1_499_999_999, True), (0, 0, False)],
)
def test_room_stays_free_beside_what_is_written(need: int, free: int, refused: bool) -> None:
    found = readiness.space({"/opt": need, "/var": 0}, {"/opt": free, "/var": 0})
    assert bool(found) == refused
    assert not refused or "no disk space for /opt: 1.0 GB and 0.5 GB of room are needed, 1.5 GB are free" in found[0]
