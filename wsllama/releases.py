"""Going back to an earlier release of a host: switched, started and asked, as a deploy does it."""

from __future__ import annotations

from typing import Any

from wsllama import layout
from wsllama.guard import settings_of
from wsllama.operations.server import PLACES, acceptance, service_looks, started_with
from wsllama.remote import Fleet, RemoteError


def target(there: dict[str, Any], to: int | None) -> str:
    """The number to go back to: `to`, or the newest accepted release before the current one.

    there: facet `releases` of the probe. Raises RemoteError when there is none, or when it was never accepted.
    """
    current, accepted = there["current"], sorted(int(n) for n, r in there["numbers"].items() if r["accepted"])
    listed = f"accepted are {', '.join(map(str, accepted)) or 'none'}, current is {current or 'none'}"
    if to is not None:
        if to not in accepted:
            raise RemoteError(f"release {to} is not there, or was never accepted: {listed}")
        return str(to)
    before = [n for n in accepted if current is None or n < int(current)]
    if not before:
        raise RemoteError(f"there is no earlier release to go back to: {listed}")
    return str(before[-1])


def roll_back(fleet: Fleet, host: Any, to: int | None = None) -> dict[str, Any]:
    """Serve an earlier release and ask it everything; what served before comes back when it isn't accepted.

    Returns {"from", "to", "changed"}. Raises RemoteError with one sentence.
    """
    there = fleet.run(host, "probe", {"releases": {layout.ROOT: None}})["releases"][layout.ROOT]
    number, before = target(there, to), there["current"]
    if number == before:
        return {"from": before, "to": number, "changed": False}
    of = there["numbers"][number]
    fleet.run(host, "release", {"action": "switch", "number": number, **PLACES})
    inputs = [layout.UNIT_FILE, *([layout.API_KEY] if of["server"]["api_key"] else [])]
    digest = started_with(fleet.run(host, "probe", service_looks(inputs)), inputs)
    problem = None if digest else f"its build, its model or {' or '.join(inputs)} is not there any more"
    try:
        if digest:
            fleet.run(host, "release", {"action": "start", "digest": digest, **PLACES})
            wanted = settings_of(host).acceptance.model_dump()
            found = fleet.run(host, "accept", acceptance(of["server"], of["model"]["alias"], number, wanted, whole=True))
            problem = found.get("error")
    except RemoteError as e:
        problem = str(e)
    if problem:
        serves = fleet.run(host, "release", {"action": "back", "number": number, **PLACES})["serves"]
        raise RemoteError(f"release {number} is not accepted: {problem}; release {serves} serves again")
    keep = settings_of(host).keep_releases
    fleet.run(host, "release", {"action": "accept", "number": number, "baseline": None, "keep": keep, **PLACES})
    return {"from": before, "to": number, "changed": True}
