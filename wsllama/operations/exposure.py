"""What needs an administrator of Windows: rules that let other machines in, and a task that Windows refused; in one question."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pyinfra import host, state

from wsllama.domain import exposure as rules
from wsllama.domain import server_flags
from wsllama.domain.exposure import Rule
from wsllama.facts import probe
from wsllama.guard import at_the_end
from wsllama.operations.base import Refused, fail, on_host, resource, tell
from wsllama.operations.files import ROOT
from wsllama.operations.keep_alive import ELEVATED, perform
from wsllama.settings import Settings

SCRIPT = ROOT / "templates" / "windows" / "elevated.ps1"


def looks(settings: Settings) -> probe.Looks:
    """What `administrator` looks at."""
    where = {"profile": settings.wsl.profile, "distro": settings.wsl.distro}
    side = {"profile": settings.wsl.profile, "windows": settings.wsl.windows}
    lan = settings.server.expose == "lan"
    names = [Rule("firewall", settings.server.port_on_lan).name] if lan else []
    return {"windows": {"side": side}, "exposure": {"side": {**where, "names": names, "ask": lan}}}


def wanted(settings: Settings, side: Any) -> list[Rule]:
    """The rules that the settings ask for on this machine. Raises Refused."""
    server = settings.server
    mode = settings.wsl.wsl2.networkingMode or side["seen"]["networking_mode"]
    if server.expose == "lan" and mode == "mirrored" and server_flags.is_loopback(server.host):
        raise Refused(
            "WSL's networking mode is mirrored here, where the server itself has to listen for other machines: set"
            " wsl.wsl2.networkingMode to mirrored, so that it does"
        )
    try:
        return rules.wanted(server.expose, mode, server.port, server.port_on_lan)
    except ValueError as e:
        raise Refused(str(e)) from e


def recorded(found: Any) -> list[Rule]:
    """Rules that are ours, by the journal and what an administrator did since."""
    ours = [Rule(**rule) for rule in found["journal"]]
    states = {step["id"]: step["state"] for step in (found["result"] or {}).get("steps", [])}
    for step in (found["result"] or {}).get("order", []):
        if step.get("rule") and states.get(step["id"]) == "changed":
            rule = Rule(**step["rule"])
            ours = [r for r in ours if r != rule] + ([rule] if step["present"] else [])
    return ours


def present(found: Any, candidates: list[Rule]) -> list[Rule]:
    """Those of the candidates that are there. Hyper-V's rules are known from our record: only PowerShell can list them."""
    forwarded, ours = rules.forwarded(found["portproxy"] or ""), recorded(found)
    is_there = {
        "portproxy": lambda rule: forwarded.get(rule.port) == f"127.0.0.1:{rule.to}",
        "firewall": lambda rule: bool(found["firewall"].get(rule.name)),
        "hyperv": lambda rule: rule in ours,
    }
    return [rule for rule in candidates if is_there[rule.kind](rule)]


def steps_for(found: Any, want: list[Rule]) -> list[dict[str, Any]]:
    """What has to be done so that these rules are there, and those of ours that aren't wanted any more are gone.

    Raises Refused when Windows forwards the port to something else.
    """
    ours = recorded(found)
    forwarded = rules.forwarded(found["portproxy"] or "")
    for rule in want:
        to = forwarded.get(rule.port, f"127.0.0.1:{rule.to}")
        mine = any(r.kind == "portproxy" and r.port == rule.port for r in ours)
        if rule.kind == "portproxy" and to != f"127.0.0.1:{rule.to}" and not mine:
            raise Refused(f"Windows forwards its port {rule.port} to {to} already: set server.lan_port to another port")
    there = present(found, [*ours, *want]) if found["why"] is None else ours
    gone = [rule for rule in ours if rule not in want and rule in there]
    changes = [(rule, False) for rule in gone] + [(rule, True) for rule in rules.lacking(want, there)]
    return [{**rules.step(rule, on), "rule": rule.record, "present": on} for rule, on in changes]


@resource(lambda settings, accepted: looks(settings))
def administrator(now: Any, settings: Settings, accepted: bool) -> Iterator[Any]:
    """Ports are open to other machines as server.expose says, and what else needs an administrator is done, or told.

    Who lets other machines in is asked when the server was accepted, and for all the rest at once; a run in which nobody is to be
    let in asks at once. What is wrong is refused before anything is changed in any case.

    + settings: of the host
    + accepted: whether the server is, as what the settings want
    """
    side, found = now["windows"]["side"], now["exposure"]["side"]
    side = {**side, "distro": settings.wsl.distro or side["distro"]}
    mode = settings.wsl.wsl2.networkingMode or side["seen"]["networking_mode"]
    if settings.server.expose == "lan" and side["interop"] and not mode:
        if accepted:
            _told(
                [
                    f"not done on Windows: other machines don't get in, because {side['interop']}",
                    "set wsl.wsl2.networkingMode to what WSL has, nat or mirrored: then the commands for it are said",
                ]
            )
        return
    if found["result"]:
        yield on_host("windows_side", {"side": side, "action": "settle"}, "settle")
    want = wanted(settings, side)
    steps = [*host.connector_data.get(ELEVATED, []), *steps_for(found, want)]
    lets_in = any(step.get("rule") and step["present"] for step in steps)
    if not steps or lets_in != accepted:
        return
    for step in steps:
        tell(f"an administrator is needed: {step['what']}")
    run = hashlib.sha256(json.dumps(steps, sort_keys=True).encode()).hexdigest()[:16]
    script = base64.b64encode(SCRIPT.read_bytes()).decode()
    argument = {"side": side, "action": "elevate", "steps": steps, "run": run, "script": script}
    outcome = yield from perform("windows_side", argument, "elevate")
    if outcome:
        yield from _report(steps, outcome)


def _report(steps: list[dict[str, Any]], outcome: dict[str, Any]) -> Iterator[Any]:
    if outcome["state"] != "done":
        by_hand = outcome["command"] and [f"run this on Windows, and confirm: {outcome['command']}"]
        lines = by_hand or ["run as an administrator on Windows:", *(f"  {command(step)}" for step in steps)]
        what = "; ".join(step["what"] for step in steps)
        _told([f"not done, an administrator is needed ({outcome['state']}: {outcome['why']}): {what}", *lines])
        return
    said = {step["id"]: step for step in outcome["steps"]}
    failures = []
    for step in steps:
        did = said.get(step["id"], {"state": "failed", "why": "the script did not come to it"})
        host.log(f"{step['what']}: {did['state']}")
        if did["state"] == "failed":
            failures.append(f"{step['what']}: failed on Windows: {did['why']}")
    if failures:
        yield fail("\n".join(failures))


def command(step: dict[str, Any]) -> str:
    """A step as a command for a person who is an administrator."""
    if step.get("rule"):
        return rules.command(Rule(**step["rule"]), step["present"])
    return " ".join([step["kind"], *step["words"]])


def _told(lines: list[str]) -> None:
    if state.is_executing:
        at_the_end([f"{host.name}: {lines[0]}", *(f"  {line}" for line in lines[1:])])
