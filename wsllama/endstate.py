"""Asserts the end state of hosts: testinfra's checks, over whatever connector pyinfra has for each host."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
import testinfra.host
from testinfra.backend.base import BaseBackend

from wsllama.guard import settings_of
from wsllama.remote import Fleet


class Backend(BaseBackend):  # type: ignore[misc]
    """testinfra's commands through a connected host of pyinfra."""

    NAME = "wsllama"

    def __init__(self, fleet: Fleet, host: Any) -> None:
        super().__init__(host.name)
        self.fleet, self.of = fleet, host
        self.settings = settings_of(host)

    def run(self, command: str, *args: str, **_: Any) -> Any:
        text = self.get_command(command, *args)
        rc, out, err = self.fleet.shell(self.of, text)
        return self.result(rc, text.encode(), out.encode(), err.encode())


class Plugin:
    """Gives each test `host`, which is testinfra's, for every connected host, and counts what came of them."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.known: dict[str, Any] = {}
        self.passed, self.failures = 0, list[dict[str, str]]()

    def pytest_generate_tests(self, metafunc: Any) -> None:
        if "host" in metafunc.fixturenames:
            hosts = self.fleet.hosts
            metafunc.parametrize("host", [self._testinfra(h) for h in hosts], ids=[h.name for h in hosts], scope="session")

    def _testinfra(self, of: Any) -> Any:
        if of.name not in self.known:
            backend = Backend(self.fleet, of)
            self.known[of.name] = testinfra.host.Host(backend)
            backend.set_host(self.known[of.name])
        return self.known[of.name]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.passed += 1
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message if crash else str(report.longrepr)
            self.failures.append({"check": report.nodeid.rsplit("::", 1)[-1], "reason": reason})


def check(folder: Path, fleet: Fleet, quiet: bool = False) -> dict[str, Any]:
    """Run the checks of `folder` on the connected hosts.

    quiet: print nothing. Returns {"hosts", "unreachable": {name: reason}, "passed", "failed", "failures": [{"check", "reason"}]}.
    """
    plugin, hosts = Plugin(fleet), [h.name for h in fleet.hosts]
    options = [str(folder), "-q", "--no-header", "--tb=short", "--rootdir", str(folder), "-c", "/dev/null"]
    options += ["-p", "no:cacheprovider", "-p", "no:pytest11.testinfra"]  # its `host` fixture would stand before ours
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    if hosts:
        with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
            pytest.main(options, plugins=[plugin])
    return {
        "hosts": hosts,
        "unreachable": fleet.unreachable,
        "passed": plugin.passed,
        "failed": len(plugin.failures),
        "failures": plugin.failures,
    }


def hashed_again(fleet: Fleet) -> list[tuple[str, str]]:
    """Hash the models of all connected hosts, at once; (host, sentence) for each file that isn't what was installed."""
    import gevent

    from wsllama import layout
    from wsllama.remote import RemoteError

    out: list[tuple[str, str]] = []

    def one(host: Any) -> None:
        try:
            out.extend((host.name, sentence) for sentence in fleet.run(host, "deep", {"root": layout.MODELS})["wrong"])
        except RemoteError as e:
            out.append((host.name, str(e)))

    gevent.joinall([gevent.spawn(one, host) for host in fleet.hosts], raise_error=True)
    return out
