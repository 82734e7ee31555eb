"""Going back to an earlier release of a host: switched, started and asked, as a deploy does it."""

from __future__ import annotations

from typing import Any

from wsllama import layout
from wsllama.guard import settings_of
from wsllama.operations.server import PLACES, acceptance, came_back, service_looks, started_with
from wsllama.remote import Fleet, RemoteError


def target(there: dict[str, Any], to: int | None) -> str:
    """The number to go back to: `to`, or the newest accepted release before the current one.

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
    if not before:
        raise RemoteError(f"there is no earlier release to go back to: {listed}")
    return str(before[-1])


def lacking(now: dict[str, Any], made_of: dict[str, Any]) -> list[str]:
    """What a release needs and the host has no longer. now: of the probe; made_of: what it says of the release."""
    file = made_of["model"]["file"]
    model = now["models"][layout.MODELS].get(file)
    there = {
        f"build {made_of['build']}": now["builds"][layout.BUILDS].get(made_of["build"]),
        f"the model {layout.MODELS}/{file} as it was": model and model["intact"],
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
            then = came_back(number, fleet.run(host, "release", {"action": "back", "number": number, **PLACES})["serves"])
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
    inputs = [layout.UNIT_FILE, *([layout.API_KEY] if made_of["server"]["api_key"] else [])]
    digest = started_with(fleet.run(host, "probe", service_looks(inputs)), inputs)
    if not digest:
        return "another run took away what it needs meanwhile"
    fleet.run(host, "release", {"action": "start", "digest": digest, **PLACES})
    wanted = settings_of(host).acceptance.model_dump()
    found = fleet.run(host, "accept", acceptance(made_of, number, wanted, whole=True))
    return found.get("error")
