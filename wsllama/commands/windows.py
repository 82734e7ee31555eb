"""`wsllama windows`: what of the Windows side is set, in effect, pending and in the way, on each host. Changes nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from wsllama.commands.common import Inventory, Json, Limit, connected, end

if TYPE_CHECKING:
    from wsllama.remote import Fleet

EPILOG = """\b
Examples:
  wsllama windows inventory
  wsllama windows inventory --limit desk-1 --json

Exit codes: 0 every host was asked, 1 a host could not be asked, 2 settings are wrong, 4 a host can't be reached."""


def windows(inventory: Inventory, limit: Limit = None, as_json: Json = False) -> None:
    """Show the Windows side of hosts.

    The Windows user's folder, what .wslconfig and wsl.conf say and what waits for wsl --shutdown, what starts the distro at
    logon, rules for other machines, power settings that end a server, and the distros that run.
    """
    shown: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with connected(inventory, limit, as_json) as fleet:
        import gevent

        from wsllama.remote import RemoteError

        def one(host: Any) -> None:
            try:
                shown[host.name] = document(fleet, host)
            except RemoteError as e:
                failed[host.name] = str(e)

        gevent.joinall([gevent.spawn(one, host) for host in fleet.hosts], raise_error=True)
    if as_json:
        typer.echo(json.dumps({"hosts": shown, "failed": failed, "unreachable": fleet.unreachable}, ensure_ascii=False))
    else:
        for name, of in sorted(shown.items()):
            typer.echo(f"{name}:")
            last = ""
            for label, text in rows(of):
                typer.echo(f"  {label if label != last else '':<14} {text}")
                last = label
    end(failed, fleet.unreachable)


def document(fleet: Fleet, host: Any) -> dict[str, Any]:
    """What there is on one host. Raises RemoteError."""
    from wsllama.domain import power, wslconfig
    from wsllama.domain import windows as files
    from wsllama.facts import probe
    from wsllama.guard import settings_of
    from wsllama.operations import exposure, keep_alive
    from wsllama.operations import windows as operations

    settings = settings_of(host)
    if settings.platform != "wsl":
        return {"wsl": False}
    now = fleet.run(host, "probe", probe.together(keep_alive.looks(settings), exposure.looks(settings)))
    side, kept, ports = (now[facet]["side"] for facet in ("windows", "keep_alive", "exposure"))
    more = fleet.run(host, "windows_side", {"action": "show", "side": side})
    waiting, in_vain = files.effect(side, operations.in_file(side, settings) if settings.wsl.windows else {})
    values = {kind: wslconfig.parse(files.held(side[kind]) or b"", kind).values for kind in wslconfig.FILES if side[kind]}
    kept_by = dataclasses.asdict(keep_alive.effect(side, kept)) if kept["distro"] else None
    found = power.findings(**more["power"], distro=kept["distro"])
    return {
        "wsl": side["wsl"],
        **{key: side[key] for key in ("profile", "profile_windows", "user", "interop", "candidates")},
        "profile_missing": side["why"],
        "distro": kept["distro"],
        "values": values,
        "pending": waiting,
        "not_in_effect": in_vain,
        "keep_alive": kept_by,
        "ports": {
            "expose": settings.server.expose,
            "port": settings.server.port,
            "rules": [{**rule.record, "name": rule.name} for rule in exposure.recorded(ports)],
            "asked": ports["why"] is None,
        },
        "power": [dataclasses.asdict(finding) for finding in found],
        "distros": more["distros"],
    }


def rows(of: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A document as rows for people: what it is about, and the text."""
    if not of["wsl"]:
        yield "platform", "this is no WSL distro"
        return
    yield "distro", of["distro"] or "its name is not known: set wsl.distro"
    yield (
        "Windows user",
        f"{of['user'] or 'not known'}, {of['profile'] or of['profile_missing'] or ' or '.join(of['candidates'])}",
    )
    if of["interop"]:
        yield "interop", of["interop"]
    for kind, values in of["values"].items():
        for name, value in values.items():
            yield {"wslconfig": ".wslconfig", "wslconf": "wsl.conf"}[kind], f"{name} = {value}"
    for sentence in of["pending"]:
        yield "pending", f"{sentence}: run wsl --shutdown on Windows, which ends every distro"
    for sentence in of["not_in_effect"]:
        yield "not in effect", sentence
    if of["keep_alive"]:
        from wsllama.domain.keep_alive import InEffect

        yield "keep-alive", InEffect(**of["keep_alive"]).sentence
        for problem in of["keep_alive"]["problems"]:
            yield "keep-alive", problem
    yield from _port_rows(of["ports"])
    for finding in of["power"]:
        who = ", as an administrator" if finding["admin"] else ""
        yield "power", f"{finding['says']}; on Windows{who}: {finding['command']}"
    for distro in of["distros"] or []:
        yield "distros", f"{distro['name']} {'runs' if distro['running'] else 'is stopped'}"


def _port_rows(ports: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from wsllama.domain.exposure import WHY_NO_RULE

    if ports["expose"] == "loopback":
        yield "ports", WHY_NO_RULE.format(port=ports["port"])
    elif not ports["rules"]:
        yield "ports", "other machines don't get in yet: no rule of wsllama's is there"
    for rule in ports["rules"]:
        to = f" to 127.0.0.1:{rule['to']}" if rule["to"] else " from the local subnet"
        yield "ports", f"{rule['kind']} {rule['name']}: TCP {rule['port']}{to}"
