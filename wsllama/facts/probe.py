"""What a host is: one question a phase and host, kept on our side until anything changes on the host."""

from __future__ import annotations

import json
import re
import traceback
from typing import Any

from pyinfra import host, state
from pyinfra.api import StringCommand
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS

from wsllama import engine, program

# facet -> key -> hint for the host's side: {"files": {"/etc/x": None}}
Looks = dict[str, dict[str, Any]]
_NO_PASSWORD = (
    "sudo asks for a password here, and there is no terminal to ask for it: run this in a terminal,"
    " log in as root, or let this user use sudo without a password"
)


class Memo:
    """What is known of one host."""

    def __init__(self) -> None:
        self.wanted: Looks = {}  # registered as deploy code calls operations, so that one question covers all of them
        self.known: Looks = {}
        self.executing = False
        self.own: set[str] = set()  # hashes of operations that drop by themselves


def memo(of: Any = None) -> Memo:
    """The memo of a host, by default of the current one."""
    found: Memo = (of or host).connector_data.setdefault("wsllama.memo", Memo())
    return found


def arguments() -> dict[str, Any]:
    """Connector arguments (sudo and the rest) of the operation that runs; outside of one, those of the host's data."""
    known = host.current_op_global_arguments or engine.global_arguments(state, host)
    return {k: known[k] for k in CONNECTOR_ARGUMENT_KEYS if k in known and k != "_stdin"}


def run(name: str, argument: Any, note: str = "", **more: Any) -> tuple[bool, Any]:
    """Run wsllama/host/<name>.py on the host, with sudo and the rest of the current operation.

    name: the program; argument: what its `main` gets, JSON-able; note: shown in logs behind the program's name. The program
    and its argument go on stdin, so nothing of them is in a process list, a shell or a log. Returns success and the output.
    """
    command = StringCommand(f"python3 -I -S - # {name} {note}".rstrip())
    try:
        ok, out = host.run_shell_command(command, **more, **arguments(), _stdin=program.call(name, argument))
    except EOFError as e:  # also how a connection ends
        if not any("getpass" in frame.filename for frame in traceback.extract_tb(e.__traceback__)):
            raise
        raise RuntimeError(_NO_PASSWORD) from e
    return bool(ok), out


def together(*several: Looks) -> Looks:
    """One Looks for all of these, facet by facet."""
    out: Looks = {}
    for looks in several:
        for facet, keys in looks.items():
            out.setdefault(facet, {}).update(keys)
    return out


def register(looks: Looks) -> None:
    """Say what will be looked at."""
    for facet, keys in looks.items():
        known = memo().wanted.setdefault(facet, {})
        known.update({key: hint for key, hint in keys.items() if hint is not None or key not in known})


def see(looks: Looks) -> Looks:
    """Look: from memory where nothing changed since, else by one question about all that was registered.

    Raises RuntimeError with one sentence when the host can't be looked at.
    """
    m = memo()
    if m.executing != state.is_executing:  # seen before the user pressed enter: too old to act on
        m.known, m.executing = {}, state.is_executing
    register(looks)
    if any(k not in m.known.get(f, {}) for f, keys in looks.items() for k in keys):
        missing = {f: {k: h for k, h in keys.items() if k not in m.known.get(f, {})} for f, keys in m.wanted.items()}
        ok, out = run("probe", missing)
        if not ok or not out.stdout_lines:
            raise RuntimeError(_unseen(out.stderr_lines[-3:]))
        for facet, found in json.loads(out.stdout_lines[-1]).items():
            m.known.setdefault(facet, {}).update(found)
    return {f: {k: m.known[f][k] for k in keys} for f, keys in looks.items()}


def _unseen(lines: list[str]) -> str:
    text = " | ".join(lines) or "no answer"
    if re.search(r"incorrect (password|authentication) attempt", text):  # sudo's words, and those of Ubuntu's sudo-rs
        return f"sudo did not take the password: give the right one of this user, by _sudo_password or when asked ({text})"
    if "sudo: " in text and "password" in text:
        return _NO_PASSWORD
    if any(said in text for said in ("is not allowed to", "not in the sudoers", "may not run sudo")):
        return f"this user may not use sudo here: log in as root or as a user with sudo rights ({text})"
    if "sudo: not found" in text or "sudo: command not found" in text:
        return "there is no sudo on the host: log in as root, with _sudo = False"
    if "python3" in text and "not found" in text:
        return "there is no python3 on the host: run `apt-get install python3` there"
    return f"the host can't be looked at: {text}"


def drop(of: Any = None) -> None:
    """Forget everything: a change reaches further than what its operation looks at (facts on the pattern, a package's user)."""
    memo(of).known = {}
