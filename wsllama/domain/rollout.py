"""A fleet's rollout: who comes when, what became of each host, and the exit code that says so. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

State = Literal["waiting", "running", "done", "unchanged", "failed", "vanished", "rolled_back", "offline"]
"""waiting: never begun, since the rollout stopped before; running: begun by an apply that was ended in the middle; vanished: the
connection was lost and did not come back; rolled_back: it had succeeded, and serves again what it served before."""

FINISHED: tuple[State, ...] = ("done", "unchanged")
"""What a later run of the same rollout leaves alone."""
DEFAULT_BATCH = 8
"""Hosts at a time: few enough that a bad release reaches a part of a fleet only."""
CANARY = "canary"
"""Title of the first step, in the report."""

OK, FAILED, OFFLINE = 0, 1, 4


def batches(hosts: Sequence[str], canary: str | None, batch: int) -> tuple[list[str], list[list[str]]]:
    """The canaries, and behind them the others in the order in which they are deployed.

    hosts: names, without those that are offline; canary: the name of one, or how many of the first (0: none), or None for one;
    batch: most hosts at a time behind the canaries, at least 1. Raises ValueError with one sentence.
    """
    if batch < 1:
        raise ValueError(f"--batch {batch}: at least one host at a time is needed")
    first = _canaries(hosts, canary)
    rest = [name for name in hosts if name not in first]
    return first, [rest[at : at + batch] for at in range(0, len(rest), batch)]


def _canaries(hosts: Sequence[str], canary: str | None) -> list[str]:
    if canary is None:
        return list(hosts[:1])
    if canary in hosts:
        return [canary]
    if canary.isdecimal():
        return list(hosts[: int(canary)])
    raise ValueError(f"--canary {canary}: no host that can be reached has this name; give one of them, or a number")


def canary_of_the_rest(canary: str | None, began: Mapping[str, str], states: Mapping[str, State]) -> str | None:
    """What to give `batches` for a rollout that is gone on with: once a canary has the release, the others need none.

    canary: as of the whole rollout; began: host -> the batch that it was in, of those that were begun
    """
    passed = any(title == CANARY and states[name] in FINISHED for name, title in began.items())
    return "0" if passed else canary


def outcome(ok: bool, changes: int, there: bool) -> State:
    """What became of a host. ok: its deploy succeeded; changes: operations that changed something; there: it answers after it."""
    if not there:
        return "vanished"
    if not ok:
        return "failed"
    return "done" if changes else "unchanged"


def failures(states: Iterable[State]) -> int:
    """How many of these count against --max-failures."""
    return sum(state in ("failed", "vanished") for state in states)


def left(states: Mapping[str, State]) -> list[str]:
    """Hosts that a later run of this rollout has to take, in their order."""
    return [name for name, state in states.items() if state not in FINISHED]


def exit_code(states: Iterable[State]) -> int:
    """0: every host has it; 1: a host failed, was rolled back or was not begun; 4: nothing failed, but a host was offline."""
    missing = {state for state in states if state not in FINISHED}
    return OK if not missing else OFFLINE if missing == {"offline"} else FAILED
