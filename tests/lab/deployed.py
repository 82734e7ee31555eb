"""What tests of deploys share: the lab's hosts as they are after a deploy, `pyinfra … deploy.py` run on them, and its counts."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from lab import Lab
from lab.base import cache_dir
from lab.lab import Host
from wsllama import lock, sources
from wsllama.settings import merge

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
UNIT = "llama-server.service"
LIMIT_S = 3600.0
"""Seconds after which nothing comes any more: compiling llama.cpp on two cores that others use too is within it."""
WAIT_S = 1200.0
"""The same for what only has to start, to answer or to be told."""
Data = Mapping[str, Mapping[str, Any]]  # name of a host -> what its inventory says more
Found = TypeVar("Found")

# The pyinfra command, with each SSH channel that it opens (a command, a file transfer) written down: {address: [what, …]}.
COUNTING = """
import json, sys
import pyinfra_cli.main
import paramiko

seen = {}
stock_open, stock_exec = paramiko.Transport.open_channel, paramiko.Channel.exec_command

def open_channel(self, *args, **kwargs):
    seen.setdefault(self.getpeername()[0], []).append("a channel")
    return stock_open(self, *args, **kwargs)

def exec_command(self, command):
    seen[self.transport.getpeername()[0]][-1] = str(command)
    return stock_exec(self, command)

paramiko.Transport.open_channel, paramiko.Channel.exec_command = open_channel, exec_command
out = sys.argv.pop(1)
sys.argv[0] = "pyinfra"
try:
    pyinfra_cli.main.main()
finally:
    with open(out, "w") as f:
        json.dump(seen, f)
"""


@dataclass(frozen=True)
class Run:
    """One run of pyinfra with --json: exit status, both outputs, seconds, and with `counted` the channels by host name."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    commands: Mapping[str, Sequence[str]]

    @cached_property
    def results(self) -> dict[str, Any]:
        """`results` of the document on stdout."""
        try:
            found: dict[str, Any] = json.loads(self.stdout)["results"]
        except ValueError:
            raise AssertionError(f"pyinfra ended with status {self.returncode} and no JSON:\n{self.stderr}") from None
        return found

    def operations(self, kind: str, host: str | None = None) -> list[str]:
        """Names of operations, in order, that ended with `kind` (success: changed; error; no_change) on a host, or on any."""
        return [o["name"] for o in self.results["operations"] if (host in o[kind] if host else o[kind])]

    def changed(self, host: str | None = None) -> list[str]:
        """Names of the operations that changed something, without the name of their stage."""
        return [name.rpartition(" | ")[2] for name in self.operations("success", host)]

    def green(self) -> Run:
        """Itself, or AssertionError when anything failed on any host."""
        wrong = self.returncode or self.results["failed_hosts"] or self.results["totals"]["error"]
        assert not wrong, f"exit code {self.returncode}, failed: {self.operations('error')}\n{self.stderr}"
        return self

    def unchanged(self) -> Run:
        """Itself, or AssertionError when anything failed or changed on any host."""
        self.green()
        assert self.results["totals"]["success"] == 0, f"changed: {self.operations('success')}\n{self.stderr}"
        assert self.results["totals"]["no_change"] > 0
        return self


@contextmanager
def compiled_once() -> Iterator[Callable[[], None]]:
    """As long as nobody has compiled llama.cpp on this machine, one run at a time: the next ones find it in the compiler's cache.

    Yields what to call when it was compiled. Several sessions run beside each other, each with hosts of its own (scripts/test).
    """
    done = cache_dir() / "ccache" / f"compiled-{lock.load(ROOT / 'wsllama.lock').llama_cpp.commit}"
    done.parent.mkdir(parents=True, exist_ok=True)
    with open(cache_dir() / "compile.lock", "w") as turn:
        if not done.exists():
            fcntl.flock(turn, fcntl.LOCK_EX)
        if done.exists():
            fcntl.flock(turn, fcntl.LOCK_UN)
        yield done.touch


class Deployed:
    """Both hosts of the session's lab, converged once with the small model.

    + lab, model: the hosts; the GGUF on this machine (it thinks, then answers READY)
    + base: settings that both were converged with, as an inventory gives them
    + first: the run that did it
    + cache: this user's cache as runs see it: builds are of this session only, sources are those that were fetched before
    """

    first: Run

    def __init__(self, lab: Lab, folder: Path, model: Path) -> None:
        self.lab, self.folder, self.model, self.cache = lab, folder, model, folder / "cache"
        sources.default_cache().mkdir(parents=True, exist_ok=True)
        (self.cache / "wsllama").mkdir(parents=True)
        (self.cache / "wsllama/sources").symlink_to(sources.default_cache())
        # One thread: several wait for each other by spinning, which takes minutes for a reply where cores are few and busy.
        # A context that is one stage: a deploy starts the server once.
        self.base: dict[str, Any] = {
            "platform": "linux",
            "model": {"path": str(model)},
            "server": {"threads": 1, "ctx_size": 8192},
            "acceptance": {"long_prompt_s": 0},  # a whole context takes half a minute on a busy core
        }

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.lab.hosts]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a run."""
        return {**os.environ, "XDG_CACHE_HOME": str(self.cache)}

    def inventory(self, data: Data | None = None, hosts: Iterable[Host] | None = None, name: str = "inventory") -> Path:
        """Write an inventory: base, with this data of hosts over it key by key; of these hosts only, if given."""
        chosen = list(self.lab.hosts if hosts is None else hosts)
        whole = {h.name: merge([self.base, (data or {}).get(h.name, {})]) for h in chosen}
        return self.lab.inventory(self.folder / name, whole, chosen)

    def command(self, inventory: Path, *options: str) -> list[str]:
        """The words of a deploy, to be run in ROOT."""
        return [str(BIN / "pyinfra"), str(inventory), "deploy.py", "-y", *options]

    def run(self, data: Data | None = None, *options: str, hosts: Iterable[Host] | None = None, counted: bool = False) -> Run:
        """Deploy the hosts that `inventory` would write with this data; as `pyinfra` otherwise."""
        return self.pyinfra(self.inventory(data, hosts), *options, counted=counted)

    def pyinfra(self, inventory: Path, *options: str, counted: bool = False, timeout: float = LIMIT_S) -> Run:
        """Deploy with --json and wait. Nothing is asserted: see Run.green and Run.unchanged.

        + options: more of pyinfra's
        + counted: write down what goes over SSH
        + timeout: seconds
        """
        words, counts = self.command(inventory, "--json", *options), self.folder / "counts.json"
        if counted:
            counts.unlink(missing_ok=True)
            words = [sys.executable, "-c", COUNTING, str(counts), *words[1:]]
        with compiled_once() as compiled:
            began = time.monotonic()
            p = subprocess.run(
                words,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
            )
            if p.returncode == 0:
                compiled()
        seen = json.loads(counts.read_text()) if counted else {}
        named = {h.name: seen.get(h.address, []) for h in self.lab.hosts} if counted else {}
        return Run(p.returncode, p.stdout, p.stderr, time.monotonic() - began, named)

    def restore(self) -> Run:
        """Converge both hosts with the base settings again, whatever was done to them; returns that run."""
        run = self.run().green()
        for host in self.lab.hosts:
            assert answers(host), f"{host.name} does not answer after it was restored:\n{run.stderr}"
        return run


def wsllama(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the wsllama command in the project's folder."""
    return subprocess.run(
        [str(BIN / "wsllama"), *words], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )


ASK = """
import os, urllib.request
key = open("/etc/wsllama/api-key").read().strip() if os.path.exists("/etc/wsllama/api-key") else ""
asked = urllib.request.Request("http://127.0.0.1:{port}/v1/models", headers={{"Authorization": "Bearer " + key}})
print(urllib.request.urlopen(asked, timeout=300).read().decode())
"""


def answers(host: Host, port: int = 8080) -> bool:
    """Whether the service on a host names its model to a client, who gives the key where there is one."""
    p = host.run(["python3", "-c", ASK.format(port=port)], check=False)
    return p.returncode == 0 and '"qwen' in p.stdout


def wait_for(what: Callable[[], Found], name: str = "") -> Found:
    """Ask until the answer is one, and return it; AssertionError with this name after WAIT_S.

    What a test needs is waited for in this way, never for a time that it usually takes.
    """
    deadline = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < deadline, f"{name or what.__doc__ or what} did not come"
        time.sleep(0.1)
    return found


def started(host: Host) -> None:
    """Start the service by hand, and wait until it answers: systemd's own word is that its program runs, not that it listens."""
    host.run(f"systemctl reset-failed {UNIT}; systemctl restart {UNIT}")
    wait_for(lambda: answers(host), f"an answer of {host.name}")


def main_pid(host: Host) -> int:
    """Process id of the service on a host; 0 when it doesn't run."""
    return int(host.run(["systemctl", "show", "--value", "-p", "MainPID", UNIT]).stdout)


def arguments_of(host: Host) -> list[str]:
    """What the running server was started with, from the host's kernel."""
    return host.run(["cat", f"/proc/{main_pid(host)}/cmdline"]).stdout.rstrip("\0").split("\0")
