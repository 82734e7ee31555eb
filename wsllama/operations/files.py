"""Files, directories and links of a host, and the packages and users that they need."""

from __future__ import annotations

import base64
import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pyinfra import host, state
from pyinfra.operations import apt, server

from wsllama.operations.base import Refused, notes, on_host, resource, tell

ROOT = Path(__file__).resolve().parents[2]
_jinja = Environment(loader=FileSystemLoader(ROOT / "templates"), undefined=StrictUndefined, keep_trailing_newline=True)


def render(name: str, **values: Any) -> str:
    """Text of templates/<name> with these values; every value that it names must be given."""
    return _jinja.get_template(name).render(**values)


@dataclass(frozen=True)
class File:
    """A file as it shall be; mode in octal digits. A secret is never shown by --diff and never read back."""

    path: str
    text: str
    mode: str = "644"
    user: str = "root"
    group: str = "root"
    secret: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def install(now: Any, names: Sequence[str]) -> Iterator[Any]:
    """Commands that install those of these Debian packages that are missing; `now` holds the facet packages."""
    if missing := [p for p in names if not now["packages"][p]]:
        tell(f"packages missing: {' '.join(missing)}", " ".join(missing), "not installed", "installed")
        if notes():
            return  # stock operations would ask the host what is known enough
        yield from apt.update._inner(cache_time=3600)
        yield from apt.packages._inner(packages=missing, no_recommends=True)


@resource(lambda name, home: {"users": {name: None}})
def user(now: Any, name: str, home: str) -> Iterator[Any]:
    """A system user with a group of its own name and no shell.

    + name: user and group
    + home: its home folder, not made here
    """
    want = {"group": name, "home": home, "shell": "/usr/sbin/nologin"}
    there = now["users"][name]
    if there and there["home"] != home:
        raise Refused(
            f"there is a user {name} whose home is {there['home']}, so it is somebody else's: rename it with usermod --login"
            f" and groupmod --new-name, or give it to the service with usermod --home {home} {name}"
        )
    if there != want:
        tell(f"user {name}: {there or 'absent'}", f"user {name}", _words(there) if there else "absent", _words(want))
        if notes():
            return
        yield from server.group._inner(group=name, system=True)
        without = {"create_home": False, "ensure_home": False}
        yield from server.user._inner(user=name, group=name, system=True, home=home, shell=want["shell"], **without)


@resource(lambda paths, **_: {"files": dict.fromkeys(paths)})
def directories(now: Any, paths: Mapping[str, Mapping[str, str]]) -> Iterator[Any]:
    """Directories with mode, user and group.

    + paths: path -> {"mode", "user", "group"}; root:root 755 where nothing is said
    """
    default = {"kind": "directory", "mode": "755", "user": "root", "group": "root"}
    todo = []
    for path, given in paths.items():
        want, there = {**default, **given}, now["files"][path]
        if there and there["kind"] != "directory":
            what = f"a link to {there['target']}" if there["kind"] == "link" else f"a {there['kind']}"
            raise Refused(f"{path} is {what}, not a folder: move it away; for another disk mount that there (mount --bind)")
        if differs := _differs(there, want):
            _tell(path, differs)
            todo.append({"path": path, **want})
    if todo:
        yield on_host("apply", todo, " ".join(w["path"] for w in todo))


def look_at(wanted: Sequence[File]) -> dict[str, Any]:
    return {"files": {f.path: None if f.secret else f.sha256 for f in wanted}}


def changes(now: Any, wanted: Sequence[File]) -> Iterator[Any]:
    """The one command that makes the files as wanted, if they differ."""
    todo: list[dict[str, Any]] = []
    for f in wanted:
        there = now["files"][f.path]
        want = {"path": f.path, "kind": "file", "mode": f.mode, "user": f.user, "group": f.group}
        if differs := _differs(there, {**want, "sha256": f.sha256}):
            _tell(f.path, differs)
            if (there or {}).get("sha256") != f.sha256:
                show_diff(f.path, (there or {}).get("text", None if there or f.secret else ""), f.text)
                want["data"] = base64.b64encode(f.text.encode()).decode()
            todo.append(want)
    if todo:
        yield on_host("apply", todo, " ".join(w["path"] for w in todo))


@resource(lambda wanted, absent=(): {"files": {**look_at(wanted)["files"], **dict.fromkeys(absent)}})
def files(now: Any, wanted: Sequence[File], absent: Sequence[str] = ()) -> Iterator[Any]:
    """Files with this content, mode and owner, and paths at which nothing may be.

    + wanted: files as they shall be
    + absent: paths that are removed
    """
    there = [p for p in absent if now["files"][p]]
    for path in there:
        tell(f"not wanted: {path}", path, "there", "absent")
    yield from changes(now, wanted)
    if there:
        yield on_host("apply", [{"path": p, "kind": "absent"} for p in there], " ".join(there))


def _differs(now: Mapping[str, Any] | None, want: Mapping[str, str]) -> list[str]:
    """The names of what differs, each with what it is and should be but for content."""
    if now is None:
        return ["absent"]
    differ = [k for k in ("kind", "mode", "user", "group", "sha256") if k in want and now.get(k) != want[k]]
    return ["content" if k == "sha256" else f"{k} {now.get(k)} -> {want[k]}" for k in differ]


def _tell(path: str, differs: Sequence[str]) -> None:
    pairs = [part.split(" -> ") if " -> " in part else [part, ""] for part in differs]
    is_now = ["other content" if now == "content" else now for now, _ in pairs]
    wanted = [f"{now.split()[0]} {want}" if want else "as the settings make it" for now, want in pairs]
    tell(f"{path}: {', '.join(differs)}", path, ", ".join(is_now), ", ".join(wanted))


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def show_diff(path: str, old: str | None, new: str) -> None:
    """Show with --diff, or note in a look ahead, how a file will change; old is None where it is secret or wasn't read."""
    ahead = notes()
    if (state.config.DIFF or ahead) and old is not None:
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), path, f"{path} (wanted)", lineterm="")
        if ahead:
            ahead.diffs.append(list(lines))
            return
        for line in lines:
            host.log_styled(line, fg={"+": "green", "-": "red"}.get(line[:1]))
