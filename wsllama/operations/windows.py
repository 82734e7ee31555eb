"""WSL's own settings: .wslconfig in the Windows user's folder and wsl.conf in the distro, and whether they are in effect."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand, StringCommand

from wsllama import guard
from wsllama.domain import keep_alive
from wsllama.domain import windows as rules
from wsllama.domain.text import decode
from wsllama.domain.wslconfig import FILES, Kind, edit, find, lint, look_alikes, parse
from wsllama.facts import probe
from wsllama.operations.base import Refused, ask_host, failed, on_host, resource, tell
from wsllama.operations.files import show_diff
from wsllama.settings import Settings

# Seconds from `wsl --shutdown` until the distro must answer again: Windows ends its distros, starts one, and that starts systemd.
RESTART_LIMIT = 300.0
PAUSE = 2.0
WISH = "wsllama.wish"  # in a host's connector_data: whose .wslconfig it shares, and what it wants there
BOOT_ID = StringCommand("cat", "/proc/sys/kernel/random/boot_id")


def look(settings: Settings) -> probe.Looks:
    """The facet of the Windows side; all operations that look at it must ask in these same words."""
    return {"windows": {"side": {"profile": settings.wsl.profile, "windows": settings.wsl.windows}}}


def wanted(settings: Settings, kind: Kind) -> dict[str, Any]:
    """What one of the two files has to say, by full name."""
    return rules.wanted(kind, settings.wsl.changes(kind))


def in_file(side: Any, settings: Settings) -> dict[str, Any]:
    """What .wslconfig has to say, with memory and swap that a plan put there as long as they stand there."""
    values, file = wanted(settings, "wslconfig"), side["wslconfig"]
    ours = side["journal"].get(file["path"], {}).get("changes", {}) if file else {}
    planned = {name: ours[name] for name in ("wsl2.memory", "wsl2.swap") if name in ours and name not in values}
    return {**values, **{n: v for n, v in planned.items() if not rules.differing(rules.held(file), "wslconfig", {n: v})}}


@resource(lambda settings, looks=None, planned=None: probe.together(look(settings), looks or {}))
def config(
    now: Any, settings: Settings, looks: probe.Looks | None = None, planned: Callable[[Any], dict[str, Any]] | None = None
) -> Iterator[Any]:
    """.wslconfig and wsl.conf say what is wanted; all else in them stays. Refused, with every reason, before either is written.

    + settings: the host's
    + looks: what `planned` looks at
    + planned: a function of what was seen that gives more settings of .wslconfig, by full names, or raises Refused
    """
    side = now["windows"]["side"]
    asked = settings.wsl.windows and (
        rules.profile_problem(side, settings.wsl.profile) or _name_problem(side, settings) or _other_wish(side, settings)
    )
    if asked:
        raise Refused(asked)
    files = {kind: side[kind] for kind in FILES if side[kind]}
    more = planned(now) if planned and side["wslconfig"] else {}
    values = {kind: {**wanted(settings, kind), **(more if kind == "wslconfig" else {})} for kind in files}
    todo = {kind: names for kind, file in files.items() if (names := _differing(file, kind, values[kind]))}
    changes = [_change(side, kind, names, values[kind]) for kind, names in todo.items()]
    if problems := _problems(side, todo, changes, settings):
        raise Refused("\n".join(problems))
    record = {"profile": side["profile"], "distro": side["distro"], "user": side["user"]}
    argument: dict[str, Any] = {"files": changes} if changes else {}
    if side["profile"] and record != side["recorded"]:
        argument["record"] = record
        tell(f"Windows user's folder: {side['profile']}")
    for kind, names in todo.items():
        tell(f"{files[kind]['path']}: {', '.join(names)}", files[kind]["path"], f"other {', '.join(names)}")
        _warn(files[kind], kind)
    for change in changes:
        show_diff(change["path"], decode(_bytes(change["was"]) or b""), decode(_bytes(change["data"]) or b""))
    if argument:
        yield on_host("windows", argument, " ".join(c["path"] for c in changes))


def _name_problem(side: Any, settings: Settings) -> str | None:
    """Why nothing could start the distro at logon: its name. Said before anything is written."""
    name = settings.wsl.distro or side["distro"]
    if name and settings.wsl.keep_alive != "off":
        try:
            keep_alive.checked(name)
        except ValueError as e:
            return str(e)
    return None


def _other_wish(side: Any, settings: Settings) -> str | None:
    """Which host of this run wants other values in the same .wslconfig: they would take turns, and never be done."""
    if not side["profile"]:
        return None
    values = wanted(settings, "wslconfig")
    mine = (side["profile"], side["seen"]["boot_id"])  # distros of one Windows user run in one virtual machine
    host.connector_data[WISH] = (mine, values)
    for other in state.inventory:
        where, theirs = other.connector_data.get(WISH, (None, {}))
        names = sorted(name for name in {**theirs, **values} if theirs.get(name) != values.get(name))
        if where == mine and names:
            return (
                f"{other.name} is a distro of the same Windows user, and both have one .wslconfig: give them the same"
                f" {', '.join(names)}"
            )
    return None


def _differing(file: Any, kind: Kind, values: Mapping[str, Any]) -> list[str]:
    if file["problem"] and file["data"] is None:  # what is in it can't be read, or it is a folder
        return list(values)
    return rules.differing(rules.held(file), kind, values)


def _change(side: Any, kind: Kind, names: list[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """One file's part of the argument of wsllama/host/windows.py. names: of those values that it doesn't have."""
    file = side[kind]
    is_now, entry = rules.held(file), side["journal"].get(file["path"], {})
    before = is_now
    if entry:  # what it would be without us, with all that the user did to it since
        before = rules.undo(_bytes(entry["before"]), _bytes(entry["ours"]) or b"", is_now or b"", kind, entry["changes"])
    ours = edit(is_now, kind, values)
    seen = side["seen"]
    known = {
        "kind": kind,
        "before": _text(before),
        "ours": _text(ours),
        "changes": {**entry.get("changes", {}), **values},
        "waiting": rules.to_restart(kind, _unset(names, kind, is_now), entry, seen),
        "boot_id": seen["boot_id"],
        "init": seen["init"],
    }
    return {"path": file["path"], "was": _text(is_now), "data": _text(ours), "entry": known}


def _unset(names: list[str], kind: Kind, data: bytes | None) -> list[str]:
    """Of these settings those whose meaning changes: interop is on where wsl.conf doesn't speak of it."""
    silent = "interop.enabled" not in parse(data or b"", kind).values
    return [name for name in names if not (silent and name == "interop.enabled")]


def _problems(side: Any, todo: dict[Kind, list[str]], changes: list[dict[str, Any]], settings: Settings) -> list[str]:
    """Why these changes can't be made. Windows is only asked for its memory when .wslconfig is to change."""
    out = []
    for kind, change in zip(todo, changes, strict=True):
        size = 2 * sum(len(change[part] or "") for part in ("was", "data"))
        problem = rules.file_problem(side[kind], size, side["free_bytes"] if kind == "wslconfig" else None)
        out += [problem] if problem else []
    memory = settings.wsl.wsl2.memory
    if memory and "wsl2.memory" in todo.get("wslconfig", ()) and not out and not side["interop"]:
        key = find("wslconfig", "wsl2.memory")
        problem = rules.memory_problem(key.normal(memory) if key else 0, ask_host("windows", {"ask": "machine"})["memory"])
        out += [problem] if problem else []
    return out


def _warn(file: Any, kind: Kind) -> None:
    """Say what is wrong in a file that is about to be changed, and what looks like it beside it."""
    data, name = rules.held(file), Path(file["path"]).name
    found = lint(data, kind) if data else []
    for finding in [*found, *look_alikes(file["look_alikes"], kind)]:
        place = f"{name}:{finding.line}" if finding.line else name
        host.log_styled(f"{place}: {finding.text} {finding.fix}", fg="yellow", log_func=logger.warning)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@resource(look)
def in_effect(now: Any, settings: Settings) -> Iterator[Any]:
    """WSL runs with what its files say. Otherwise it is said what waits for `wsl --shutdown`, or that is done with wsl.restart.

    + settings: the host's
    """
    side = now["windows"]["side"]
    if not state.is_executing:
        return
    if settings.wsl.windows:
        guard.at_the_end(_named(rules.undone(side, wanted(settings, "wslconfig"))))
    waiting, _ = _effect(side, settings)
    distro = settings.wsl.distro or side["distro"]
    if waiting and settings.wsl.restart and distro and not side["interop"] and not _inside(side):
        tell(f"wsl --shutdown for {', '.join(waiting)}: it ends {', '.join(_running(side) or ()) or 'every distro'}")
        yield on_host("windows", {"ask": "restart", "distro": distro}, "restart")
        yield FunctionCommand(_wait, (side["seen"]["boot_id"], settings), {})
    elif waiting:
        _say_pending(waiting, settings, side)


def _effect(side: Any, settings: Settings) -> tuple[list[str], list[str]]:
    """What waits for a new start, and what had one in vain; the latter is said."""
    waiting, in_vain = rules.effect(side, in_file(side, settings) if settings.wsl.windows else {})
    for what in in_vain:
        told = f"not in effect although WSL was started since: {what}; `wsl` in a window of Windows says why when it starts"
        guard.at_the_end(_named([told]))
    return waiting, in_vain


def _say_pending(waiting: list[str], settings: Settings, side: Any) -> None:
    sentences = rules.pending(waiting, _running(side))
    if settings.wsl.restart and _inside(side):
        sentences = [f"{s}; this run is inside of WSL, so run that in Windows, and then this again" for s in sentences]
    guard.pending(host.name, sentences)


def _running(side: Any) -> list[str] | None:
    """Distros that `wsl --shutdown` would end; None when Windows doesn't say."""
    try:
        return None if side["interop"] else list(ask_host("windows", {"ask": "running"})["running"])
    except Refused:
        return None


def _named(lines: list[str]) -> list[str]:
    return [f"{host.name}: {line}" for line in lines]


def _inside(side: Any) -> bool:
    """Whether this controller runs in the VM that would be ended: in this distro or in another one."""
    try:
        here = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # no Linux
        return False
    return bool(here == side["seen"]["boot_id"])


def _wait(state: Any, host: Any, boot_id: str, settings: Settings) -> bool:
    """Until the distro answers out of a new VM, and what waited is in effect: a command's function."""
    end = time.monotonic() + RESTART_LIMIT
    while time.monotonic() < end:
        time.sleep(PAUSE)
        if _boot_id(host) not in (None, boot_id):
            break
    else:
        return failed(
            state, host, f"the distro did not answer within {RESTART_LIMIT:g} s after `wsl --shutdown`: start it in Windows"
        )
    probe.drop(host)
    side = probe.see(look(settings))["windows"]["side"]
    waiting, _ = _effect(side, settings)
    if waiting:
        _say_pending(waiting, settings, side)
    return True


def _boot_id(host: Any) -> str | None:
    """The start that the host runs in; None while it doesn't answer. The connection is made anew."""
    try:
        host.disconnect()
        host.connect(show_errors=False)
        ok, out = host.run_shell_command(BOOT_ID, _timeout=20) if host.connected else (False, None)
    except Exception:  # whatever a connector raises while the other side goes away
        return None
    return str(out.stdout).strip() if ok and out else None
