"""Checks of the chain that need a Windows below the host, or an address of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_accept import Host, host
from tests.unit.test_interop import listener, machine
from wsllama.host import checks, interop
from wsllama.host.api import NotAccepted, Server
from wsllama.host.checks import Chain, Odd, Skipped

__all__ = ["host", "machine"]  # fixtures


def chain(**more: Any) -> Chain:
    a = {"url": "http://127.0.0.1:8080", "alias": "a", "key_file": None, "request_timeout_s": 5, "whole": True, **more}
    return Chain(Server(a), a)


@pytest.fixture
def windows(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """A Windows with curl.exe, and a function that says what that prints, on stdout and on stderr."""
    (machine / "c/Windows/System32/curl.exe").write_bytes(b"MZ")
    monkeypatch.setattr(interop, "find", lambda: interop.Windows(str(machine / "c"), {"C": str(machine / "c")}))

    def prints(out: str, err: str = "") -> None:
        (machine / "out").write_text(out)
        (machine / "err").write_text(err)
        said = f'echo "$@" >{machine}/words; cat {machine}/out; cat {machine}/err >&2'
        (machine / "init").write_text(f"#!/bin/sh\n{said}\n")

    with listener(machine, "1_interop"):
        yield prints


def test_windows_asks_as_a_program_of_its_own(windows: Callable[[str, str], None], machine: Path) -> None:
    windows("200", "")
    assert chain(wsl=True).windows() == "Windows reaches http://localhost:8080/health"
    words = (machine / "words").read_text().split()
    assert words[0].endswith("/Windows/System32/curl.exe")
    assert (words[-1], words[words.index("--noproxy") + 1]) == ("http://localhost:8080/health", "*")


def test_windows_that_does_not_reach_the_port_is_odd_and_with_strict_a_failure(windows: Callable[[str, str], None]) -> None:
    windows("000", "curl: (7) Failed to connect to localhost port 8080\r\n")
    said = r"Windows does not reach http://localhost:8080/health \(curl: \(7\) Failed to connect to localhost port 8080\): see"
    with pytest.raises(Odd, match=said):
        chain(wsl=True).windows()
    with pytest.raises(NotAccepted, match=said):
        chain(wsl=True, strict=True).windows()


def test_windows_that_can_not_be_asked_is_skipped(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "find", lambda: interop.Windows(str(machine / "c"), {"C": str(machine / "c")}))
    with pytest.raises(Skipped, match="nobody listens on a socket"):
        chain(wsl=True).windows()
    with listener(machine, "1_interop"), pytest.raises(Skipped, match=r"Windows has no .*/curl\.exe"):
        chain(wsl=True).windows()
    with pytest.raises(Skipped, match="no Windows below this host"):
        chain(wsl=False).windows()


def test_others_need_the_key(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "own_address", lambda: "127.0.0.1")
    (tmp_path / "key").write_text("the-key\n")
    url = f"http://127.0.0.1:{host.port}"
    asked = chain(url=url, host="0.0.0.0", key_file=str(tmp_path / "key"))
    with pytest.raises(NotAccepted, match="was answered with status 200 without the key: it has to ask for it"):
        asked.lan()
    host.models = 401, b'{"error": {"code": 401}}'
    assert asked.lan() == f"{url} answers, with the key only"
    assert {key for _, _, key in host.asked} == {None}, "the key itself is not sent there"


def test_an_address_of_its_own_is_found_without_sending() -> None:
    assert checks.own_address().count(".") == 3
