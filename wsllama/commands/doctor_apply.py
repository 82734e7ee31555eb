"""`wsllama doctor --apply`: a host whose server died of memory is deployed with less and less, until it serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from wsllama import recovery
from wsllama.commands.common import PENDING
from wsllama.domain.ladder import Rung


@dataclass(frozen=True)
class Applied:
    """What was tried on one host, in order, whether the last of it serves, and why it ended where it doesn't."""

    tried: list[Rung]
    served: bool
    ended: str = ""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"tried": [rung._asdict() for rung in self.tried], "served": self.served, "ended": self.ended}

    def lines(self, name: str) -> Iterator[str]:
        """For people."""
        yield from (f"{name}: tried {number}: {rung.why}" for number, rung in enumerate(self.tried, 1))
        yield f"{name}: it serves with {json.dumps(self.tried[-1].server)}" if self.served else f"{name}: {self.ended}"


def cannot_apply(inventory: str) -> str | None:
    """Why nothing could be applied to the hosts of an inventory and kept: one sentence."""
    kept = recovery.file_of(inventory)
    if kept is None:
        return f"--apply writes what it gives up beside the inventory, but {inventory} is no file: write the hosts into one"
    if not os.access(kept.parent, os.W_OK):
        return f"--apply writes {kept}, but {kept.parent} can't be written to: let it, or copy the inventory elsewhere"
    if not os.path.exists("deploy.py"):
        return "--apply deploys, but there is no deploy.py here: run it in the project's folder"
    return None


def climb_down(
    rungs: Sequence[Rung], seen: tuple[str, str], deploy: Callable[[Rung], bool], look: Callable[[], tuple[str, str]]
) -> Applied:
    """Try one rung after the other until one serves, or the trouble is another one.

    rungs: those that are tried at most. seen: verdict on the last start, and the last line of the journal. deploy: True when
    the host's server was accepted. look: what is seen now.
    """
    tried: list[Rung] = []
    verdict, line = seen
    for rung in rungs:
        tried.append(rung)
        if deploy(rung):
            look()
            return Applied(tried, True)
        now, last = look()
        if last == line:
            return Applied(tried, False, "the deploy failed before the server was started: its own words say why")
        if now == "ok":
            return Applied(tried, False, "nothing was given up: what was accepted before serves again")
        if now not in (verdict, "loading"):  # what was accepted before may still be loading, or is a stage on the way
            return Applied(tried, False, f"nothing was given up: now the last start says {now}")
        line = last
    return Applied(
        tried, False, "nothing was given up, because none of it served: what is left is a smaller quant, or more memory"
    )


def deployed(inventory: str, name: str, server: Mapping[str, Any], quiet: bool) -> bool:
    """Deploy one host as an operator would, with these settings over its own; True when its server was accepted.

    quiet: leave out what the deploy prints, which goes to stderr otherwise.
    """
    program = str(Path(sys.executable).parent / "pyinfra")
    words = [program, inventory, "deploy.py", "-y", "--limit", name, "--data", f"server={json.dumps(dict(server))}"]
    typer.echo(f"{name}: deployed with {json.dumps(dict(server))}", err=True)
    out = subprocess.DEVNULL if quiet else 2
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
    return done.returncode in (0, PENDING)
