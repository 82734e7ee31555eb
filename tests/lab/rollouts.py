"""`wsllama apply` for tests: run, watched, and its report read."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.lab import Host
from tests.lab.deployed import BIN, LIMIT_S, ROOT, Deployed

DROP_IN = "etc/systemd/system/llama-server.service.d/test.conf"


@dataclass(frozen=True)
class Applied:
    returncode: int
    stderr: str
    report: dict[str, Any]

    @property
    def states(self) -> dict[str, str]:
        return {name: host["state"] for name, host in self.report["hosts"].items()}


def apply(
    deployed: Deployed,
    inventory: Path,
    report: Path,
    *words: str,
    on_line: Callable[[str], None] | None = None,
    interrupted_by: str = "",
) -> Applied:
    """Run it to its end; how fast a busy machine was just then counts for nothing.

    report: to be gone on with where it is there; on_line: gets each line as it is said; interrupted_by: it gets Ctrl-C, alone,
    when it says a line with this in it
    """
    which = ["--resume" if report.exists() else "--report", str(report)]
    with subprocess.Popen(
        [str(BIN / "wsllama"), "apply", str(inventory), "--yes", *which, *words, "--max-slower", "1000000"],
        cwd=ROOT,
        env=deployed.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said = []
        for line in process.stderr or ():
            said.append(line)
            if on_line:
                on_line(line)
            if interrupted_by and interrupted_by in line:
                process.send_signal(signal.SIGINT)
        process.wait(timeout=LIMIT_S)
    assert "Traceback" not in "".join(said), "".join(said)
    return Applied(process.returncode, "".join(said), json.loads(report.read_text()))


def before_each_start(host: Host, command: str) -> None:
    """From now on the service runs this shell line as root before it starts, and does not start when it fails."""
    path = host.root / DROP_IN
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[Service]\nExecStartPre=+/bin/sh -c '{command}'\n")
    host.run(["systemctl", "daemon-reload"])


def slow_to_start(host: Host) -> None:
    """The service does not get ready, so that something may happen meanwhile."""
    before_each_start(host, "sleep 1000")


def cannot_start_with(host: Host, word: str) -> None:
    """The service ends while it is started, when a release has this word among its arguments; others it serves."""
    before_each_start(host, f"! grep -q -e {word} /opt/wsllama/current/args")


def as_before(host: Host) -> None:
    """The service starts as it did, and so does the host, if its power was lost."""
    (host.root / DROP_IN).unlink()
    host.start()
    host.run(["systemctl", "daemon-reload"])


def lose(host: Host) -> Callable[[str], None]:
    """For `on_line`: the host loses its power as soon as its service is being started."""

    def on_line(line: str) -> None:
        if f"[{host.name}] llama-server.service: " in line and "-> started" in line and host.running:
            host.stop(kill=True)

    return on_line


def with_an_absent_host(inventory: Path) -> Path:
    """The inventory, and one host more that nobody answers at."""
    absent = '("gone", {"ssh_hostname": "127.0.0.1", "ssh_port": 9, "platform": "linux", "model": {"path": "MODEL"}})'
    text = inventory.read_text()
    model = text.split("'model': {'path': '")[1].split("'")[0]
    path = inventory.with_name("with-an-absent-host")
    path.write_text(f"{text}\naway = [{absent.replace('MODEL', model)}]\n")
    return path
