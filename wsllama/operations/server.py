"""The service: its unit, the release that it runs, and what makes a release accepted."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyinfra import host, state

from wsllama import layout
from wsllama.domain import client
from wsllama.facts import probe
from wsllama.guard import at_the_end, settings_of
from wsllama.operations.base import Later, Refused, ask_host, fail, on_host, resource, tell
from wsllama.operations.files import File, changes, look_at
from wsllama.settings import Settings

# In a host's connector_data: this run has started the service, so acceptance waits with progress and asks everything.
STARTED = "wsllama.started"
# What wsllama/host/release.py has to know of the host, whatever it does.
PLACES = {"root": layout.ROOT, "unit": layout.UNIT, "unit_file": layout.UNIT_FILE, "stamp": layout.STARTED_WITH}


@dataclass(frozen=True)
class Release:
    """What a release is made of: links, files, llama-server's arguments, and what is told about it."""

    links: dict[str, str]
    files: dict[str, str]
    record: dict[str, Any]
    words: list[str]  # as the settings spell them; the host translates them for its build

    @property
    def digest(self) -> str:
        whole = {"links": self.links, "files": self.files, "record": self.record, "words": self.words}
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


@resource(lambda path, group: {"files": {path: None}})
def secret(now: Any, path: str, group: str) -> Iterator[Any]:
    """A file with a random key, made on the host once; it never leaves the host.

    + path: the file, 0640 root:group
    + group: who may read it
    """
    want = {"path": path, "kind": "file", "mode": "640", "user": "root", "group": group}
    there = now["files"][path]
    if not there or any(there.get(k) != want[k] for k in ("kind", "mode", "user", "group")) or not there.get("size"):
        tell(f"{path}: {'made' if not there else 'mode or owner set'}")
        yield on_host("apply", [{**want, "secret": not there or not there.get("size")}], path)


@resource(lambda file: {**look_at([file]), "units": {file.path.rsplit("/", 1)[1]: None}})
def unit(now: Any, file: File) -> Iterator[Any]:
    """A unit file; systemd is told when it changed, or when an earlier run was killed before it was told.

    + file: the unit
    """
    commands = list(changes(now, [file]))
    there = now["units"][file.path.rsplit("/", 1)[1]]
    if commands or there.get("NeedDaemonReload") == "yes" or there.get("LoadState") != "loaded":
        yield from commands
        yield "systemctl daemon-reload"


def number_of(now: Any, digest: str) -> int | None:
    """The number of the whole release with this digest; the current one first."""
    there = now["releases"][layout.ROOT]
    order = sorted(there["numbers"], key=lambda n: (n == there["current"], int(n)), reverse=True)
    return next((int(n) for n in order if there["numbers"][n]["digest"] == digest), None)


@resource(lambda looks, wanted: probe.together(looks, {"releases": {layout.ROOT: None}}))
def release(now: Any, looks: Any, wanted: Any) -> Iterator[Any]:
    """The wanted release exists and `current` names it.

    + looks: what `wanted` looks at
    + wanted: a function of what was seen that returns a Release, or raises Later
    """
    new: Release = wanted(now)
    there = now["releases"][layout.ROOT]
    number = number_of(now, new.digest)
    if number is None:
        number = there["highest"] + 1
        tell(f"release {number} is made")
        argument = {"links": new.links, "files": new.files, "record": new.record, "digest": new.digest, "words": new.words}
        argument["allow_tools"] = new.record["server"]["allow_tools"]
        yield on_host("release", {"action": "make", "number": number, **argument, **PLACES}, "make")
    if there["current"] != str(number):
        tell(f"current: {there['current']} -> {number}")
        yield on_host("release", {"action": "switch", "number": number, **PLACES}, "switch")


def started_with(now: Any, inputs: list[str]) -> str | None:
    """What the service would be started with; None while something of it is missing. What was repaired in place counts as
    another one: the server still has the old build or model open, or somebody restarted it with the unit or link as it was."""
    there = now["releases"][layout.ROOT]
    current = there["numbers"].get(there["current"] or "")
    read = {p: now["files"][p] for p in (*inputs, layout.CURRENT)}
    if current is None or None in read.values():
        return None
    made = {p: [f.get("sha256"), f["mtime_ns"]] for p, f in read.items()}
    model = now["models"][layout.MODELS].get(current["model"]["file"])
    build = now["builds"][layout.BUILDS].get(current["build"])
    if not model or not build:
        return None
    whole = [current["digest"], made, model["inode"], model["mtime_ns"], build["made"]]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def service_looks(inputs: list[str]) -> probe.Looks:
    """What says whether the service runs with what is there now."""
    return {
        "units": {layout.UNIT: None},
        "files": dict.fromkeys([*inputs, layout.CURRENT]),
        "stamps": {layout.STARTED_WITH: None},
        "releases": {layout.ROOT: None},
        "models": {layout.MODELS: None},
        "builds": {layout.BUILDS: None},
    }


@resource(lambda inputs, looks, wanted: probe.together(looks, service_looks(inputs)))
def service(now: Any, inputs: list[str], looks: Any, wanted: Any) -> Iterator[Any]:
    """Running, and started with the current release and these files as they are now; otherwise it is started again.

    + inputs: files beside the release that the service reads when it starts
    + looks, wanted: as for `release`: before that ran, a look ahead must count what it will switch to
    """
    if not state.is_executing and str(number_of(now, wanted(now).digest)) != now["releases"][layout.ROOT]["current"]:
        raise Later("another release is to be served")
    digest = started_with(now, inputs)
    if digest is None:
        raise Later("the release or a file of the service is not there yet")
    active = now["units"][layout.UNIT].get("ActiveState")
    if active != "active" or now["stamps"][layout.STARTED_WITH] != digest:
        tell(f"{layout.UNIT}: {active} -> started" + ("" if active != "active" else ", what it runs with changed"))
        host.connector_data[STARTED] = True
        yield on_host("release", {"action": "start", "digest": digest, **PLACES}, "start")


def wants_gpu(settings: Settings) -> bool:
    """Whether a server that does not use the GPU is no good."""
    return settings.backend == "cuda" and settings.cuda.require_gpu


def acceptance(of: Any, number: str | None, wanted: Any, whole: bool) -> dict[str, Any]:
    """The argument of wsllama/host/accept.py.

    of: server, model and gpu as a release records them; number: of the release; wanted: the settings' topic `acceptance` as
    a dictionary; whole: ask everything, and not only what tells that it still answers.
    """
    return {
        "url": client.base_url(of["server"]["host"], of["server"]["port"]),
        "alias": of["model"]["alias"],
        "key_file": layout.API_KEY if of["server"]["api_key"] else None,
        "gpu": of["gpu"],
        "unit": layout.UNIT,
        "release": f"{layout.RELEASES}/{number}",
        "program": f"{layout.CURRENT}/build/bin/llama-server",
        "whole": whole,
        **wanted,
    }


@resource(lambda: {"releases": {layout.ROOT: None}, "units": {layout.UNIT: None}})
def accepted(now: Any) -> Iterator[Any]:
    """The server answers as wanted; then its release is the one to go back to, and is started at boot.

    Everything is asked when the release is new or the service was started by this run; otherwise health, name and one short
    reply. A server that isn't accepted gives way to the last good release.
    """
    if not state.is_executing:
        return
    there, settings = now["releases"][layout.ROOT], settings_of(host)
    number = there["current"]
    before = bool(there["numbers"].get(number or "", {}).get("accepted")) and there["last-good"] == number
    whole = not before or bool(host.connector_data.get(STARTED))
    server = settings.server
    of = {"server": server.model_dump(), "model": {"alias": settings.model.alias}, "gpu": wants_gpu(settings)}
    argument = acceptance(of, number, settings.acceptance.model_dump(), whole)
    if host.connector_data.get(STARTED):
        yield on_host("accept", {**argument, "only": "wait"}, "wait", show=True)
    began = time.monotonic()
    found = ask_host("accept", argument)
    if not found["ok"]:
        yield from _not_accepted(found, number)
        return
    asked = "health, model, replies with thinking off and on" if whole else "health, model, a reply"
    host.log(f"accepted in {time.monotonic() - began:.1f} s: {asked}")
    if not before or now["units"][layout.UNIT].get("UnitFileState") != "enabled":
        baseline = None if before else found["baseline"]
        argument = {"action": "accept", "number": number, "baseline": baseline, "keep": settings.keep_releases, **PLACES}
        yield on_host("release", argument, "accept")
    key_file = layout.API_KEY if server.api_key else None
    at_the_end(["", *client.lines(host.name, server.host, server.port, settings.model.alias, key_file)])


def came_back(number: str | None, serves: str | None) -> str:
    """What is to be said when this release was not accepted, and `back` said that that one serves."""
    if serves is None:
        return "the service is stopped, there is no earlier release"
    return "it was accepted before and is left as it is" if serves == number else f"release {serves} serves again"


def _not_accepted(found: dict[str, Any], number: str | None) -> Iterator[Any]:
    try:
        then = came_back(number, ask_host("release", {"action": "back", "number": number, **PLACES}, "back")["serves"])
    except Refused as e:
        then = f"and the last good release could not be started: {e}"
    log = "".join(f"\n    {line}" for line in found.get("log", []))
    yield fail(f"release {number} is not accepted: {found['error']}; {then}{log}")
