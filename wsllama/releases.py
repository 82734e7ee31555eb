"""Going back to an earlier release of a host: switched, started and asked, as a deploy does it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from wsllama import layout
from wsllama.guard import settings_of
from wsllama.operations.server import PLACES, acceptance, files_of, go_back, read_at_start, service_looks, started_with
from wsllama.remote import Fleet, RemoteError


def target(there: dict[str, Any], to: int | None) -> str:
    """The number to go back to: `to`, or the newest accepted release before the current one that was no stage on the way.

    A current one that isn't the last good one is what a killed run left in the middle: it is gone on with when it was
    accepted once. there: facet `releases` of the probe. Raises RemoteError when there is none, or when it was never accepted.
    """
    current, accepted = there["current"], sorted(int(n) for n, r in there["numbers"].items() if r["accepted"])
    listed = f"accepted are {', '.join(map(str, accepted)) or 'none'}, current is {current or 'none'}"
    if to is not None:
        if to not in accepted:
            raise RemoteError(f"release {to} is not there, or was never accepted: {listed}")
        return str(to)
    last = int(current) - (current == there["last-good"]) if current else max(accepted, default=0)
    before = [n for n in accepted if n <= last]
    whole = [n for n in before if there["numbers"][str(n)]["final"]]
    if not whole:
        hint = f"; {', '.join(map(str, before))} served less, as a stage on the way: --to takes its number" if before else ""
        raise RemoteError(f"there is no earlier release to go back to: {listed}{hint}")
    return str(whole[-1])


def lacking(now: dict[str, Any], made_of: dict[str, Any]) -> list[str]:
    """What a release needs and the host has no longer. now: of the probe; made_of: what it says of the release."""
    models = now["models"][layout.MODELS]
    there = {
        f"build {made_of['build']}": now["builds"][layout.BUILDS].get(made_of["build"]),
        **{
            f"the model {layout.MODELS}/{file} as it was": file in models and models[file]["intact"]
            for file in files_of(made_of["model"])
        },
        layout.API_KEY: now["files"][layout.API_KEY] or not made_of["server"]["api_key"],
    }
    return [what for what, found in there.items() if not found]


def roll_back(fleet: Fleet, host: Any, to: int | None = None) -> dict[str, Any]:
    """Serve an earlier release and ask it everything; the last good one comes back when it isn't accepted.

    Returns {"from", "to", "changed"}. Raises RemoteError with one sentence.
    """
    now = fleet.run(host, "probe", service_looks([layout.API_KEY]))
    there = now["releases"][layout.ROOT]
    number = target(there, to)
    made_of = there["numbers"][number]
    if gone := lacking(now, made_of):
        raise RemoteError(f"release {number} can't be served, it needs {' and '.join(gone)}; nothing was touched")
    try:
        problem = serve(fleet, host, number, made_of)
    except RemoteError as e:
        problem = str(e)
    if problem:
        try:
            then = go_back(partial(fleet.run, host), number, settings_of(host))
        except RemoteError as e:
            then = f"and the last good release could not be started: {e}"
        raise RemoteError(f"release {number} is not accepted: {problem}; {then}")
    keep = settings_of(host).keep_releases
    fleet.run(host, "release", {"action": "accept", "number": number, "baseline": None, "keep": keep, **PLACES})
    changed = not there["current"] == there["last-good"] == number
    return {"from": there["current"], "to": number, "changed": changed}


def serve(fleet: Fleet, host: Any, number: str, made_of: dict[str, Any]) -> str | None:
    """Switch to a release, start it and ask it; what is wrong with it, if anything. made_of: what the probe says of it."""
    fleet.run(host, "release", {"action": "switch", "number": number, **PLACES})
    inputs = read_at_start(made_of["server"]["api_key"])
    digest = started_with(fleet.run(host, "probe", service_looks(inputs)), inputs)
    if not digest:
        return "another run took away what it needs meanwhile"
    fleet.run(host, "release", {"action": "start", "digest": digest, **PLACES})
    argument = acceptance(made_of, number, settings_of(host), whole=True)
    began = time.monotonic()
    fleet.watch(host, "accept", {**argument, "only": "wait"}, "wait")
    argument["waited_s"] = time.monotonic() - began
    return fleet.run(host, "accept", argument).get("error")


def ask_current(fleet: Fleet, host: Any, strict: bool = False) -> dict[str, Any]:
    """Ask all that applies of the release that is current, and after a failure the rest, too; changes nothing.

    strict: as acceptance.strict, whatever the settings say. Returns what wsllama/host/accept.py finds, and `release`. Raises
    RemoteError when no release is there.
    """
    there = fleet.run(host, "probe", {"releases": {layout.ROOT: None}})["releases"][layout.ROOT]
    number = there["current"]
    if number not in there["numbers"]:
        raise RemoteError("no release is there yet: deploy first")
    argument = acceptance(there["numbers"][number], number, settings_of(host), whole=True)
    argument |= {"go_on": True, "stage": None, "strict": strict or argument["strict"]}
    return {"release": number, **fleet.run(host, "accept", argument)}
