"""A lean distro: what of Ubuntu's background work a server doesn't need is masked, and unmasked when it is wanted back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyinfra import host

from wsllama import layout
from wsllama.operations.base import resource, tell
from wsllama.operations.keep_alive import perform

# snapd keeps itself and what it mounts in memory; apt's timers read all package lists twice a day.
UNITS = ("snapd.service", "snapd.socket", "snapd.seeded.service", "apt-daily.timer", "apt-daily-upgrade.timer")
RECORD = f"{layout.STATE}/lean.json"


@resource(lambda wanted: {"units": dict.fromkeys(UNITS), "stamps": {RECORD: None}})
def lean(now: Any, wanted: bool) -> Iterator[Any]:
    """snapd and apt's timers are masked, or those that we masked are as they were.

    + wanted: the setting distro.lean
    """
    ours = json.loads(now["stamps"][RECORD] or "{}")
    there = {name: now["units"][name].get("LoadState") for name in UNITS}
    todo = [n for n in UNITS if there[n] not in (None, "not-found", "masked")] if wanted else list(ours)
    if not todo:
        return
    tell(f"{'masked' if wanted else 'unmasked'}: {' '.join(todo)}", ", ".join(todo), "not masked" if wanted else "masked")
    argument = {"action": "mask" if wanted else "unmask", "units": todo, "record": RECORD}
    outcome = yield from perform("lean", argument)
    if outcome:
        before, after = (f"{outcome[key] / 2**20:.0f} MiB" for key in ("before", "after"))
        host.log(f"memory available before {before}, after {after}")
