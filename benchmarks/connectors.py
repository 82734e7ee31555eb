"""How fast files pass through @wslssh, beside scp to the same host in the same run: both by turns, up and down.

JSON goes to stdout; progress, and at the end the ratios, to stderr. Needs root, as the lab does: a throw-away host plays the
distro and the Windows machine in front of it, so what is compared are the two ways of sending, not Windows.
"""
# ruff: noqa: E402

from __future__ import annotations

import gevent.monkey

gevent.monkey.patch_all()  # before anything else is imported, as pyinfra's own command line does

import argparse
import filecmp
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyinfra.api import Config, Inventory, State
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.context import ctx_state

from lab import Lab, LabError
from lab.base import cache_dir
from lab.lab import Host
from lab.windows import WindowsMachine

EXAMPLES = """\
examples:
  python -m benchmarks.connectors >connectors.json
  python -m benchmarks.connectors --sizes 8 --rounds 1
"""
MIB = 1024**2
THERE = "/root/bench.bin"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def scp(host: Host, folder: Path, source: str, target: str) -> None:
    """Copy with scp over the host's own sshd, on one connection for all copies, as pyinfra has one; raises LabError."""
    shared = ["-o", "ControlMaster=auto", "-o", f"ControlPath={folder}/scp", "-o", "ControlPersist=30"]
    options = host.ssh_argv()[1 : -len(["-l", "root", host.address])]
    # what it says is not captured: the connection that stays would hold the pipe
    if subprocess.run(["scp", "-q", *options, *shared, source, target], check=False).returncode:
        raise LabError("scp failed; the reason stands above")


def checked(ok: bool) -> None:
    if not ok:
        raise LabError("a file did not pass through the connector; the reason stands above")


def rate(size: int, action: Callable[[], None]) -> float:
    """MiB a second that an action takes for so many bytes."""
    began = time.monotonic()
    action()
    return size / MIB / (time.monotonic() - began)


def measured(host: Host, distro: Any, file: Path, turn: int) -> dict[str, dict[str, float]]:
    """MiB a second of one round: each way up, then down; what came back is compared with what was sent."""
    back, size = file.with_suffix(".back"), file.stat().st_size
    ways: dict[str, dict[str, Callable[[], None]]] = {
        "wslssh": {
            "up": lambda: checked(distro.put_file(str(file), THERE)),
            "down": lambda: checked(distro.get_file(THERE, str(back))),
        },
        "scp": {
            "up": lambda: scp(host, file.parent, str(file), f"root@{host.address}:{THERE}"),
            "down": lambda: scp(host, file.parent, f"root@{host.address}:{THERE}", str(back)),
        },
    }
    found: dict[str, dict[str, float]] = {}
    for name in list(ways) if turn % 2 else list(reversed(ways)):  # what the machine does meanwhile hits both alike
        host.run(["rm", "-f", THERE])
        found[name] = {what: round(rate(size, action), 1) for what, action in ways[name].items()}
        if not filecmp.cmp(file, back, shallow=False):
            raise LabError(f"{name} brought back other bytes than were sent")
        back.unlink()
    return found


def compared(rounds: list[dict[str, dict[str, float]]], what: str) -> dict[str, float]:
    """Of each way the median in MiB/s; of the rounds' ratios wslssh/scp the median, the least and the most."""
    ratios = [one["wslssh"][what] / one["scp"][what] for one in rounds]
    return {
        **{name: round(statistics.median(one[name][what] for one in rounds), 1) for name in ("wslssh", "scp")},
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole benchmark; returns the document: for each size in MiB the rounds, and both directions compared."""
    document: dict[str, Any] = {}
    with Lab(hosts=1, name="bench") as lab, WindowsMachine(lab.hosts[0]) as machine:
        name = f"@wslssh/{machine.address}:Ubuntu-24.04"
        state = State(Inventory(([(name, machine.connection_data())], {})), Config())
        with ctx_state.use(state):
            connect_all(state)
            scp(machine.host, folder, __file__, f"root@{machine.address}:{THERE}")
            for size in options.sizes:
                file = folder / f"{size}.bin"
                file.write_bytes(os.urandom(size * MIB))
                rounds = []
                for number in range(options.rounds):
                    rounds.append(measured(machine.host, state.inventory.get_host(name), file, number))
                    say(f"{size} MiB, round {number + 1} of {options.rounds}: {json.dumps(rounds[-1])}")
                file.unlink()
                document[str(size)] = {"rounds": rounds, **{what: compared(rounds, what) for what in ("up", "down")}}
            disconnect_all(state)
    return document


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.connectors",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256], metavar="MIB", help="sizes of files in MiB (64 256)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each is sent each way (5)")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="bench-") as folder:
            document = run(options, Path(folder))
    except LabError as error:
        say(f"connectors: {error}")
        return 1
    json.dump(document, sys.stdout, indent=1)
    print()
    for size, found in document.items():
        for what in ("up", "down"):
            say("{} MiB {}: {wslssh} MiB/s, scp {scp} MiB/s, ratio {ratio} ({least} to {most})".format(size, what, **found[what]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
