"""What starts the distro with its Windows user's session: a task, or a file in the Startup folder; and what of it is told."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator
from typing import Any

from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand

from wsllama.domain import keep_alive as rules
from wsllama.domain import power, wslconfig
from wsllama.domain.windows import held
from wsllama.facts import probe
from wsllama.guard import at_the_end
from wsllama.host.keep_alive import STARTUP_FOLDER
from wsllama.operations.base import Refused, ask_host, on_host, resource, tell
from wsllama.operations.files import render
from wsllama.settings import Settings

# In a host's connector_data: steps of this run that need an administrator, for operations/exposure.py to take up.
ELEVATED = "wsllama.elevated"
KEEP = r"\var\lib\wsllama\windows"


def looks(settings: Settings) -> probe.Looks:
    """What `kept` looks at."""
    where = {"profile": settings.wsl.profile, "distro": settings.wsl.distro}
    side = {"profile": settings.wsl.profile, "windows": settings.wsl.windows}
    return {"windows": {"side": side}, "keep_alive": {"side": {**where, "prefix": rules.task_name("")}}}


def task_bytes(distro: str, user: str) -> bytes:
    """The task's XML. Raises ValueError for a distro's name that can't stand in it."""
    return rules.task_file(render("windows/keep-alive.xml", **rules.task_values(distro, user)).rstrip("\n") + "\n")


def startup_bytes(distro: str) -> bytes:
    """The Startup folder's file. Raises ValueError as `task_bytes`."""
    return rules.startup_file(render("windows/keep-alive.cmd", **rules.startup_values(distro)))


def effect(side: Any, found: Any) -> rules.InEffect:
    """What is in effect, of what the facets `windows` and `keep_alive` found. The distro's name is known."""
    distro = found["distro"]
    values = wslconfig.parse(held(side["wslconfig"]) or b"", "wslconfig").values
    known = {key: base64.b64decode(found[key]) if found[key] else None for key in ("task", "startup")}
    return rules.in_effect(**known, distro=distro, user=side["user"], wanted=startup_bytes(distro), values=values)


def perform(name: str, argument: Any, note: str = "") -> Generator[Any, None, dict[str, Any] | None]:
    """Run wsllama/host/<name>.py; it counts as a change only when its document says "changed". None in a look ahead.

    For programs of which only a try tells whether they can do anything: Windows may refuse, or nobody may be there.
    """
    if not state.is_executing:
        yield on_host(name, argument, note)
        return None
    outcome = ask_host(name, argument, note)
    if outcome["changed"]:
        yield FunctionCommand(lambda state, host: True, (), {})
    return outcome


@resource(looks)
def kept(now: Any, settings: Settings) -> Iterator[Any]:
    """The distro is started when its Windows user logs on, by what wsl.keep_alive says and Windows lets us make.

    + settings: of the host
    """
    side, found, wish = now["windows"]["side"], now["keep_alive"]["side"], settings.wsl.keep_alive
    host.connector_data[ELEVATED] = []
    if found["distro"] is None:
        if wish != "off":
            _told("the distro's name is not known, so nothing starts it at logon: set wsl.distro")
        return
    distro, name = found["distro"], rules.task_name(found["distro"])
    recorded = side["journal"].get("keep_alive", {})
    argument = {"side": {**side, "distro": distro}, "name": name, "before": _renamed(recorded.get("name"), distro)}
    if wish == "off":
        if recorded or any(found[kind] for kind in ("task", "startup", "file")):
            tell(f"keep-alive: {name} is taken back", name, "there", "absent")
            outcome = yield from perform("keep_alive", {**argument, "action": "remove"}, "remove")
            _left(outcome)
        return
    try:
        holds = effect(side, found)
        ways = _ways(wish, side, found)
        files = {"startup": _text(startup_bytes(distro)), "task": _text(task_bytes(distro, side["user"] or ""))}
    except ValueError as e:
        raise Refused(str(e)) from e
    if holds.mechanism == wish or (wish == "auto" and holds.mechanism != "none"):
        return
    if ways == ["file"] and found["file"] == files["startup"]:
        _by_hand(distro, name, found["why"])
        return
    for problem in holds.problems:
        tell(f"keep-alive: {problem}", name, problem)
    outcome = yield from perform("keep_alive", {**argument, **files, "action": "make", "ways": ways}, ways[0])
    if outcome:
        _left(outcome)
        _report(side, distro, name, found, outcome)


def _renamed(name: str | None, distro: str) -> dict[str, str] | None:
    """The distro and the name of what was made when the distro had another name; name: as the journal has it."""
    if name is None or name == rules.task_name(distro):
        return None
    return {"distro": name.removeprefix(rules.task_name("")), "name": name}


def _left(outcome: dict[str, Any] | None) -> None:
    for left in outcome["left"] if outcome else ():
        _told(f"not taken back ({left['why']}): run as an administrator on Windows: {left['command']}")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _ways(wish: str, side: Any, found: Any) -> list[str]:
    """What is tried, in this order. A task names its user, whom only Windows tells; a file waits for nobody."""
    reached = found["why"] is None and side["profile"] and side["user"]
    if wish == "startup" and side["profile"]:
        return ["startup"]
    if not reached:
        return ["file"]
    return ["task", "startup"] if wish == "auto" else ["task"]


def _report(side: Any, distro: str, name: str, found: Any, outcome: dict[str, Any]) -> None:
    said = {
        "task": f"keep-alive: the task {name} starts {distro} when its user logs on, and holds it from now on",
        "startup": f"keep-alive: {name}.cmd in the Startup folder starts {distro} when its user logs on",
    }
    if outcome["mechanism"] == "file":
        _by_hand(distro, name, found["why"])
    elif outcome["mechanism"]:
        because = f" (a task was refused: {outcome['refused']})" if outcome["refused"] else ""
        if outcome["changed"]:
            host.log(said[outcome["mechanism"]] + because)
            host.log(f"keep-alive, as Windows shows it now: {effect(side, {**found, **outcome}).sentence}")
            _power(side, distro)
    elif outcome["refused"]:
        words = ["/Create", "/TN", name, "/XML", outcome["xml"], "/F"]
        what = f"task {name} registered, which Windows refused ({outcome['refused']})"
        host.connector_data[ELEVATED].append({"id": f"task {name}", "kind": "schtasks", "words": words, "what": what})


def _power(side: Any, distro: str) -> None:
    """Say what ends the server although its distro is kept."""
    for finding in power.findings(**ask_host("windows_side", {"side": side, "action": "show"})["power"], distro=distro):
        who = ", as an administrator" if finding.admin else ""
        host.log_styled(f"{finding.says}; on Windows{who}: {finding.command}", fg="yellow", log_func=logger.warning)


def _by_hand(distro: str, name: str, why: str | None) -> None:
    source = rf"\\wsl.localhost\{distro}{KEEP}\{name}.cmd"
    because = why or "its Windows user is not known"
    _told(
        f"nothing starts {distro} when its user logs on: {because}; run this in cmd.exe on Windows:"
        f' copy /Y "{source}" "{STARTUP_FOLDER}"'
    )


def _told(text: str) -> None:
    """Say it in every run, behind the results."""
    if state.is_executing:
        at_the_end([f"{host.name}: {text}"])
