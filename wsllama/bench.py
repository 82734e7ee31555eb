"""Benchmarks of the served model: taken on a host, kept there, collected into a folder of this machine."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wsllama import layout, whole
from wsllama.domain import record, scenarios
from wsllama.host.records import NAME
from wsllama.remote import Fleet, RemoteError

FOLDER = "records"
"""Where records are collected, in the folder that a command is started in."""

SWEEP_TOKENS = 256  # prompt of the threads sweep; it generates a quarter of that


def argument(fleet: Fleet, host: Any, names: Sequence[str], runs: int, label: str = "", **more: Any) -> dict[str, Any]:
    """The argument of wsllama/host/bench.py for the release that a host serves.

    names: of scenarios; runs: of each with one turn; more: keys that differ from a plain measurement. Raises RemoteError when
    no release is there.
    """
    # Late: these bring pyinfra, which has to come behind gevent's patches.
    from wsllama.guard import settings_of
    from wsllama.operations.server import acceptance

    there = fleet.run(host, "probe", {"releases": {layout.ROOT: None}})["releases"][layout.ROOT]
    if there["current"] not in there["numbers"]:
        raise RemoteError("no release is there yet: deploy first")
    settings = settings_of(host)
    return {
        **acceptance(there["numbers"][there["current"]], there["current"], settings, whole=True),
        "root": layout.ROOT,
        "models": layout.MODELS,
        "records": layout.RECORDS,
        "user": layout.USER,
        "name": host.name,
        "label": label,
        "scenarios": list(names),
        "runs": runs,
        "budgets": [],
        "threads": [],
        "sweep_tokens": SWEEP_TOKENS,
        "restart": False,
        "graphs": "never",
        **more,
    }


def measure(fleet: Fleet, host: Any, wanted: dict[str, Any], show: bool = True) -> dict[str, Any]:
    """Measure a host and return the record, which it keeps.

    wanted: of `argument`; show: print its progress on stderr as it comes. Raises RemoteError with one sentence.
    """
    name = fleet.run(host, "bench", wanted, show=show)["record"]
    known = fleet.run(host, "records", {"folder": layout.RECORDS, "known": [], "only": name})["records"]
    return parsed(known[name], name)


def short_benchmark(fleet: Fleet, host: Any) -> dict[str, Any]:
    """The record of a few seconds of one host: the scenario `short`, three times, without starting the service again.

    For a rollout, before and after a change: `domain.record.regression` says what got worse. Raises RemoteError.
    """
    return measure(fleet, host, argument(fleet, host, ["short"], 3, "short benchmark"), show=False)


def parsed(text: str, name: str) -> dict[str, Any]:
    """A record from its text. name: of its file, without suffix. Raises RemoteError when it is none, or was changed."""
    matched = NAME.fullmatch(name)
    if matched and hashlib.sha256(text.encode()).hexdigest()[:8] != matched[1]:
        raise RemoteError(f"record {name} was changed after it was taken: its sum is another one")
    try:
        document = json.loads(text)
    except ValueError as e:
        raise RemoteError(f"record {name} is no JSON: {e}") from None
    if wrong := record.problems(document):
        more = f" (and {len(wrong) - 5} more)" if len(wrong) > 5 else ""
        raise RemoteError(f"record {name} is incomplete: {'; '.join(wrong[:5])}{more}")
    found: dict[str, Any] = document
    return found


def read(path: Path) -> dict[str, Any]:
    """A record from a file; it also gets the key `id`, the file's name. Raises RemoteError, with the path, when it is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise RemoteError(f"{path} can't be read: {getattr(e, 'strerror', None) or e}") from None
    try:
        return {**parsed(text, path.stem), "id": path.stem}
    except RemoteError as e:
        raise RemoteError(f"{path}: {e}") from None


def collect(fleet: Fleet, host: Any, folder: Path) -> list[Path]:
    """Copy the records that a host has and `folder`/<host> lacks; returns the new files. Raises RemoteError."""
    mine = folder / host.name
    known = [path.stem for path in mine.glob("*.json")]
    found = fleet.run(host, "records", {"folder": layout.RECORDS, "known": known})["records"]
    new = []
    for name, text in sorted(found.items()):
        mine.mkdir(parents=True, exist_ok=True)
        path = mine / f"{name}.json"
        whole.text(path, text)
        new.append(path)
    return new


def files(words: Sequence[str], folder: Path) -> list[Path]:
    """The files that are meant by paths of records or of folders with some; all of `folder` when none is named.

    Raises RemoteError for a path where nothing is.
    """
    out: list[Path] = []
    for path in [Path(word) for word in words] or [folder]:
        found = sorted(path.rglob("[!.]*.json")) if path.is_dir() else [path] if path.is_file() else []
        if not found:
            raise RemoteError(f"there is no record in {path}: `wsllama bench` takes one, or name a file or folder")
        out += found
    return out


def one(word: str, folder: Path) -> Path:
    """The file that a word means: a path, the beginning of a record's name, or a host for its newest record.

    Raises RemoteError when it means none, or several.
    """
    if os.sep in word or word.endswith(".json") or Path(word).is_file():
        return files([word], folder)[0]
    of_host = sorted((folder / word).glob("[!.]*.json"))
    if of_host:
        return of_host[-1]
    begins = sorted(folder.glob(f"*/{word}*.json")) if not set(word) & set("*?[") else []
    if len(begins) != 1:
        what = f"{len(begins)} records begin so" if begins else "no host and no record is called so"
        raise RemoteError(f"{word}: {what} in {folder}: give a path, a host, or more of the name")
    return begins[0]


def scenario_names(given: Sequence[str] | None) -> list[str]:
    """The scenarios that are meant; the usual three when none is named. Raises ValueError for one that is not known."""
    names = list(dict.fromkeys(given or scenarios.USUAL))
    for name in names:
        if name not in scenarios.SCENARIOS:
            raise ValueError(f"there is no scenario {name!r}: {', '.join(scenarios.SCENARIOS)}")
    return names
