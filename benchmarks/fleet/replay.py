"""Many hosts that are not there: what a real host answered in a no-op, pyinfra's @fake hosts answer to the whole deploy.

What it costs on this machine, a host, is then the deploy's own: nothing else runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet.sides import LIMIT_S, ROOT

# The pyinfra command. At its end it writes down what real hosts answered our programs, how many commands each @fake host got, and
# what the process took.
WATCHED = """
import json, resource, sys
import pyinfra_cli.main
from pyinfra.connectors.fake import FakeConnector
from pyinfra.connectors.ssh import SSHConnector

answers, commands = {}, {}
real, fake = SSHConnector.run_shell_command, FakeConnector.run_shell_command

def of_real(self, command, *args, **more):
    ok, out = real(self, command, *args, **more)
    answers[str(command)] = out.stdout_lines
    return ok, out

def of_fake(self, command, *args, **more):
    commands[self.host.name] = commands.get(self.host.name, 0) + 1
    return fake(self, command, *args, **more)

SSHConnector.run_shell_command, FakeConnector.run_shell_command = of_real, of_fake
out = sys.argv.pop(1)
sys.argv[0] = "pyinfra"
try:
    pyinfra_cli.main.main()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    took = {"cpu_s": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss * 1024}
    with open(out, "w") as f:
        json.dump({"answers": answers, "commands": commands, **took}, f)
"""


@dataclass(frozen=True)
class Watched:
    """A deploy: what pyinfra says of it, and what was written down. memory: the most that was resident, in bytes."""

    results: dict[str, Any]
    answers: dict[str, list[str]]
    commands: dict[str, int]
    cpu_s: float
    memory: int

    @property
    def unchanged(self) -> int:
        """Hosts on which every operation found nothing to do; 0 when any failed."""
        operations, totals = self.results["operations"], self.results["totals"]
        if totals["success"] or totals["error"] or self.results["failed_hosts"]:
            return 0
        return min(len(o["no_change"]) for o in operations)


def watched(inventory: Path, folder: Path, environment: dict[str, str] | None = None) -> Watched:
    """Deploy and watch. Raises subprocess.CalledProcessError when it fails, with what it said as stderr.

    inventory: what is deployed; folder: where it is written down; environment: of the run, by default this one's
    """
    out = folder / "watched.json"
    words = [sys.executable, "-c", WATCHED, str(out), str(inventory), "deploy.py", "-y", "--json"]
    given = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": LIMIT_S}
    done = subprocess.run(words, check=True, env=environment or dict(os.environ), **given)  # type: ignore[call-overload]
    return Watched(results=json.loads(done.stdout)["results"], **json.loads(out.read_text()))


def fakes(count: int, answers: dict[str, list[str]], data: dict[str, Any], folder: Path) -> Path:
    """Write an inventory of so many @fake hosts that answer as a host has done.

    answers: command -> its lines; data: settings of each
    """
    path = folder / f"fakes_{count}.py"
    of_each = {"fake_delay": 0, "fake_delay_jitter": 0, "fake_responses": answers, **data}
    path.write_text(f"_data = {of_each!r}\nfakes = [(f'@fake/{{n}}', dict(_data)) for n in range({count})]\n")
    return path
