"""Values in systemd's files, quoted as systemd reads them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def word(value: str) -> str:
    """Quote one word for a `$VARIABLE` of ExecStart: split at blanks, quotes and backslashes taken as in ExecStart itself.

    Raises ValueError for a control character, which a unit's environment can't carry (systemd.exec(5), EnvironmentFile=).
    """
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError(f"a control character can't stand in an argument: {value!r}")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def environment_file(values: Mapping[str, str]) -> str:
    """Text of an EnvironmentFile=: inside double quotes a backslash quotes `"`, `\\`, `$` and a backtick (systemd.exec(5))."""
    lines = []
    for name, value in values.items():
        quoted = value
        for special in ("\\", '"', "$", "`"):
            quoted = quoted.replace(special, "\\" + special)
        lines.append(f'{name}="{quoted}"\n')
    return "".join(lines)


def arguments(name: str, words: Sequence[str]) -> str:
    """Text of an EnvironmentFile= with one variable that holds all `words`, to be used as `$name` in ExecStart."""
    return environment_file({name: " ".join(word(w) for w in words)})
