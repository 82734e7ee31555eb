"""The end state of a host as names and values, so that two hosts, or one host and its record, can be told apart. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from wsllama.domain import drift

FORMAT = 1
Manifest = dict[str, str]
"""'kind name' -> value, as in "package cmake" -> "3.25.1-1"."""

LEFT_OUT = {
    "times and inodes": "each machine has its own",
    "numbers of releases": "they count what a machine had before",
    "the API key": "it is made on each machine and never leaves it; its mode and owner are compared",
    "plan and baseline of a release": "they hold measurements of the machine; what follows from them is compared as arguments",
}
"""What a manifest does not say, and why."""


class Difference(NamedTuple):
    what: str
    recorded: str | None  # None: there was none
    here: str | None


def made(now: Mapping[str, Any], seen: Mapping[str, Any], secrets: Collection[str]) -> Manifest:
    """The manifest of a host.

    now: what the probe says of what a deploy looks at; seen: what wsllama/host/drift.py found beside it; secrets: files whose
    content is left out.
    """
    return {what: value for what, value in _entries(now, seen, secrets) if value is not None}


def differences(recorded: Mapping[str, str], here: Mapping[str, str]) -> list[Difference]:
    """What is not the same, by name."""
    every = sorted({*recorded, *here})
    return [Difference(name, recorded.get(name), here.get(name)) for name in every if recorded.get(name) != here.get(name)]


def _entries(now: Mapping[str, Any], seen: Mapping[str, Any], secrets: Collection[str]) -> Iterator[tuple[str, str | None]]:
    for name, version in now.get("packages", {}).items():
        yield f"package {name}", version
    for path, file in now.get("files", {}).items():
        yield f"file {path}", _file(file, path in secrets)
    for name, user in now.get("users", {}).items():
        yield f"user {name}", ", ".join(f"{key} {value}" for key, value in sorted(user.items())) if user else None
    for name, unit in now.get("units", {}).items():
        if unit.get("LoadState") != "not-found":
            yield f"unit {name}", f"{unit.get('LoadState')}, {unit.get('UnitFileState')}, {unit.get('ActiveState')}"
    for path in seen["drop_ins"]:
        yield f"drop-in {path}", "there"
    yield from _release(seen["release"])
    yield from _build(seen["build"] or {})
    for name, model in seen["models"].items():
        yield (
            f"model {name}",
            model.get("sha256_now") or (model.get("sha256") if model.get("intact") else "not as it was verified"),
        )


def _file(file: Mapping[str, Any] | None, secret: bool) -> str | None:
    if file is None or (file["kind"] == "link" and file["target"].startswith("releases/")):
        return None  # which release is current: its number is no part of the state
    content = file.get("target") or (None if secret else file.get("sha256"))
    return " ".join(str(part) for part in (file["kind"], file["mode"], f"{file['user']}:{file['group']}", content) if part)


def _release(release: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    record = release["record"] or {}
    yield "release commit", record.get("commit")
    yield "release stage", record.get("stage")
    yield "release accepted", "yes" if release["accepted"] else "no"
    for name, target in release["links"].items():
        yield f"release link {name}", target
    for line in drift.flag_lines(release["texts"]["args"]):
        flag, _, value = line.partition(" ")
        yield f"argument {flag}", value or "given"
    for line in (release["texts"]["env"] or "").splitlines():
        name, _, value = line.partition("=")
        yield f"variable {name}", drift.masked(value)


def _build(build: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for name, sha256 in build.get("sums", {}).items():
        yield f"build {name}", build["differs"].get(name) or sha256
    for name, why in build.get("differs", {}).items():
        if name not in build["sums"]:
            yield f"build {name}", why
    for name, version in build.get("versions", {}).items():
        yield f"made with {name}", str(version)
