"""The service: its unit, the release that it runs, and what makes a release accepted."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyinfra import host, logger, state

from wsllama import layout
from wsllama.domain import client, limits
from wsllama.facts import probe
from wsllama.guard import at_the_end, settings_of
from wsllama.operations.base import Later, Refused, ask_host, fail, on_host, resource, tell
from wsllama.operations.files import File, changes
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
        """Stands for what is served; of a plan, its inputs: its figures have what was free at that moment."""
        plan = self.record.get("plan")
        record = {**self.record, "plan": plan["made"]} if plan else self.record
        whole = {"links": self.links, "files": self.files, "record": record, "words": self.words}
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
        words = ", ".join(f"{k} {there.get(k)}" for k in want if k != "path") if there else "absent"
        words += ", empty" if there and not there.get("size") else ""
        wanted = ", ".join(f"{k} {v}" for k, v in want.items() if k != "path")
        tell(f"{path}: {'made' if not there else 'mode or owner set'}", path, words, wanted)
        yield on_host("apply", [{**want, "secret": not there or not there.get("size")}], path)


UNIT_LOOKS: probe.Looks = {"files": {layout.UNIT_FILE: "its text"}, "units": {layout.UNIT: None}}


@resource(lambda looks, wanted: probe.together(looks, UNIT_LOOKS))
def unit(now: Any, looks: Any, wanted: Any) -> Iterator[Any]:
    """The release's unit; systemd is told when it changed, or when an earlier run was killed before it was told.

    + looks, wanted: as for `release`: its limits are from its plan
    """
    file = File(layout.UNIT_FILE, wanted(now).files["unit"])
    commands = list(changes(now, [file]))
    there = now["units"][layout.UNIT]
    if commands or there.get("NeedDaemonReload") == "yes" or there.get("LoadState") != "loaded":
        if not commands:
            tell(f"{file.path}: systemd has read another one", file.path, "not as systemd has read it", "read by systemd")
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
        tell(f"release {number} is made", "release", f"release {there['current']}", f"a new one, {number}")
        argument = {"links": new.links, "files": new.files, "record": new.record, "digest": new.digest, "words": new.words}
        argument["allow_tools"] = new.record["server"]["allow_tools"]
        yield on_host("release", {"action": "make", "number": number, **argument, **PLACES}, "make")
    if there["current"] != str(number):
        tell(f"current: {there['current']} -> {number}", layout.CURRENT, f"release {there['current']}", f"release {number}")
        yield on_host("release", {"action": "switch", "number": number, **PLACES}, "switch")


def read_at_start(api_key: bool) -> list[str]:
    """Files beside the release that the service reads when it starts; api_key: of the settings of that release."""
    return [layout.UNIT_FILE, *([layout.API_KEY] if api_key else [])]


def started_with(now: Any, inputs: list[str]) -> str | None:
    """What the service would be started with; None while something of it is missing. What was repaired in place counts as
    another one: the server still has the old build or model open, or somebody restarted it with the unit or link as it was."""
    there = now["releases"][layout.ROOT]
    current = there["numbers"].get(there["current"] or "")
    read = {p: now["files"][p] for p in (*inputs, layout.CURRENT)}
    if current is None or None in read.values():
        return None
    made = {p: [f.get("sha256"), f["mtime_ns"]] for p, f in read.items()}
    model = [now["models"][layout.MODELS].get(file) for file in files_of(current["model"])]
    build = now["builds"][layout.BUILDS].get(current["build"])
    if not all(model) or not build:
        return None
    whole = [current["digest"], made, *(found[key] for found in model for key in ("inode", "mtime_ns")), build["made"]]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def files_of(model: dict[str, Any]) -> list[str]:
    """All files of the model of a release, as it records them."""
    return [model["file"], *model.get("others", ())]


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
        why = "" if active != "active" else ", what it runs with changed"
        tell(f"{layout.UNIT}: {active} -> started{why}", layout.UNIT, f"{active}{why}", "started with what is there")
        host.connector_data[STARTED] = True
        yield on_host("release", {"action": "start", "digest": digest, **PLACES}, "start")


def wants_gpu(settings: Settings) -> bool:
    """Whether a server that does not use the GPU is no good."""
    return settings.backend == "cuda" and settings.cuda.require_gpu


def acceptance(of: Any, number: str | None, settings: Settings, whole: bool) -> dict[str, Any]:
    """The argument of wsllama/host/accept.py.

    of: server, model, gpu and stage as a release records them; number: of the release; whole: ask everything, and not only
    what tells that it still answers.
    """
    server = of["server"]
    return {
        "url": client.base_url(server["host"], server["port"]),
        "host": server["host"],
        "alias": of["model"]["alias"],
        "key_file": layout.API_KEY if server["api_key"] else None,
        "gpu": of["gpu"],
        "vision": bool(of["model"].get("mmproj")),
        "wsl": settings.platform == "wsl",
        "ctx_size": server["ctx_size"],
        # releases of before these settings don't name them
        "reasoning": server.get("reasoning") != "off" and server.get("reasoning_budget") != 0,
        "reasoning_apart": server.get("reasoning_format", "auto") in ("auto", "deepseek"),
        "stage": of.get("stage"),
        "unit": layout.UNIT,
        "release": f"{layout.RELEASES}/{number}",
        "program": f"{layout.CURRENT}/build/bin/llama-server",
        "whole": whole,
        **settings.acceptance.model_dump(),
        "plan": settings.plan.model_dump(include={"drift", "margin_percent"}),
        "start_timeout_s": settings.acceptance.start_timeout_s or limits.start_timeout_s(of["model"].get("bytes", 0)),
    }


@resource(lambda: {"releases": {layout.ROOT: None}, "units": {layout.UNIT: None}})
def accepted(now: Any) -> Iterator[Any]:
    """The server answers as wanted; then its release is the one to go back to, and is started at boot.

    Everything is asked when the release is new or the service was started by this run; otherwise health, name and one short
    reply. A server that isn't accepted gives way to the last good release. A stage on the way is not gone back to while there
    is a release that was the last stage of its settings.
    """
    if not state.is_executing:
        return
    there, settings = now["releases"][layout.ROOT], settings_of(host)
    number = there["current"]
    of = there["numbers"].get(number or "")
    if of is None:
        raise Refused("the current release is not whole any more, another run or somebody took of it: run again")
    before = of["accepted"] and there["last-good"] == number
    whole = not before or bool(host.connector_data.get(STARTED))
    argument = acceptance(of, number, settings, whole)
    began = time.monotonic()
    if host.connector_data.get(STARTED):
        yield on_host("accept", {**argument, "only": "wait"}, "wait", show=True)
        argument["waited_s"] = time.monotonic() - began
    found = ask_host("accept", argument)
    if not found["ok"]:
        yield from _not_accepted(found, number, of["stage"])
        return
    asked = ", ".join(check["check"] for check in found["checks"] if check["result"] != "skipped")
    host.log(f"stage {of['stage']} accepted in {time.monotonic() - began:.1f} s: {asked}")
    for check in found["checks"]:
        if check["result"] == "warning":
            host.log_styled(f"{check['check']}: {check['says']}", fg="yellow", log_func=logger.warning)
    if not before or now["units"][layout.UNIT].get("UnitFileState") != "enabled":
        baseline = None if before else found["baseline"]
        argument = {"action": "accept", "number": number, "baseline": baseline, "keep": settings.keep_releases, **PLACES}
        yield on_host("release", {**argument, "on_the_way": not of["final"]}, "accept")
    if of["final"]:
        server, key_file = of["server"], layout.API_KEY if of["server"]["api_key"] else None
        at_the_end(["", *client.lines(host.name, server["host"], server["port"], of["model"]["alias"], key_file)])


def go_back(run: Callable[..., dict[str, Any]], number: str | None, settings: Settings) -> str:
    """Serve the last good release instead of this one, which was not accepted; returns what is to be said of it.

    It is said to serve once it has answered: systemd calls a server started that is still loading its model.

    run: takes the name of a program in wsllama/host, its argument and a note, and gives what it answers; what it raises is
    raised.
    """
    done = run("release", {"action": "back", "number": number, **PLACES}, "back")
    serves = done["serves"]
    if serves is None:
        return "the service is stopped, there is no earlier release"
    if serves == number:
        return (
            f"it was accepted before, so it stays and nothing was switched: look at the settings of acceptance, if what they ask"
            f" is new, else at the log of {layout.UNIT}"
        )
    if not done["switched"]:
        return f"release {serves}, which another run made meanwhile, is current"
    now = run("probe", service_looks([layout.UNIT_FILE, layout.API_KEY]), "")
    made_of = now["releases"][layout.ROOT]["numbers"].get(serves)
    digest = started_with(now, read_at_start(made_of["server"]["api_key"])) if made_of else None
    run("release", {"action": "resume", "number": serves, "digest": digest, **PLACES}, "resume")
    if made_of is None:
        return f"release {serves} was started again, but it is not whole any more: run again"
    found = run("accept", acceptance(made_of, serves, settings, whole=False), "")
    if not found["ok"]:
        return f"release {serves} was started again, but does not serve either: {found['error']}"
    return f"release {serves} serves again"


def _not_accepted(found: dict[str, Any], number: str, stage: str) -> Iterator[Any]:
    try:
        then = go_back(ask_host, number, settings_of(host))
    except Refused as e:
        then = f"and the last good release could not be started: {e}"
    log = "".join(f"\n    {line}" for line in found.get("log", []))
    yield fail(f"stage {stage}: release {number} is not accepted: {found['error']}; {then}{log}")
