"""The watchdog of the service: a program and a unit of ours, beside llama-server, which says nothing to systemd by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from wsllama import layout, program
from wsllama.facts import probe
from wsllama.operations.base import on_host, resource, tell
from wsllama.operations.files import File, changes, look_at, render
from wsllama.settings import Settings

STATE = ("active", "enabled", "loaded")


def files_of(settings: Settings) -> list[File]:
    """Its program, with what it is told, and its unit."""
    argument = {
        "root": layout.ROOT,
        "unit": layout.UNIT,
        "key_file": layout.API_KEY,
        "state": layout.WATCHDOG_STATE,
        "timeout_s": settings.server.watchdog_timeout_s,
    }
    unit = render(
        "llama-watchdog.service.j2",
        server=layout.UNIT,
        program=layout.WATCHDOG,
        state=PurePosixPath(layout.WATCHDOG_STATE).parent.name,
        wsl=settings.platform == "wsl",
    )
    whole = program.call("watchdog", argument)  # "secret": a thousand lines of our own would hide all else in a --diff
    return [File(layout.WATCHDOG, whole, secret=True), File(layout.WATCHDOG_UNIT_FILE, unit)]


@resource(lambda settings: probe.together(look_at(files_of(settings)), {"units": {layout.WATCHDOG_UNIT: None}}))
def watchdog(now: Any, settings: Settings) -> Iterator[Any]:
    """There, running and started at boot; or nothing of it, when server.watchdog is False.

    + settings: of the host
    """
    yield from own_service(now, layout.WATCHDOG_UNIT, files_of(settings), settings.server.watchdog)


def own_service(now: Any, name: str, wanted: list[File], on: bool) -> Iterator[Any]:
    """A program of ours that runs as a unit: there, running and started at boot, or nothing of it.

    name: of the unit; wanted: its files, which are looked at as the unit is; on: whether it is wanted
    """
    unit = now["units"][name]
    if not on:
        if there := [f.path for f in wanted if now["files"][f.path]]:
            tell(f"not wanted: {name}", name, "there", "absent")
            yield f"systemctl disable --quiet --now {name}"
            yield on_host("apply", [{"path": path, "kind": "absent"} for path in there], " ".join(there))
            yield "systemctl daemon-reload"
        return
    commands = list(changes(now, wanted))
    state = unit.get("ActiveState"), unit.get("UnitFileState"), "reload" if unit.get("NeedDaemonReload") == "yes" else "loaded"
    if commands or state != STATE:
        made_before = unit.get("LoadState") not in (None, "not-found")
        if not commands or (made_before and state[:2] != STATE[:2]):
            is_now, shall_be = (", ".join(map(str, words)) for words in (state, STATE))
            tell(f"{name}: {is_now} -> {shall_be}", name, is_now, shall_be)
        yield from commands
        yield "systemctl daemon-reload"
        yield f"systemctl enable --quiet {name}"
        yield f"systemctl restart {name}"
