"""`wsllama diff`: what a deploy would do on hosts, in words and as file diffs, and what can't be known before."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from wsllama import layout
from wsllama.commands.common import DRIFT, FAILED, UNREACHABLE, Inventory, Json, Limit, connected, each, unlooked
from wsllama.domain import drift as rules

if TYPE_CHECKING:
    from wsllama.ahead import Ahead
    from wsllama.remote import Fleet

LIMIT_S = 300.0  # the controller may have to fetch a source first
EPILOG = """\b
Examples:
  wsllama diff inventory
  wsllama diff inventory --limit desk-1 --json

Exit codes: 0 a deploy would change nothing, 3 it would change something, 1 it would refuse a host or a host could not be looked
at, 2 settings are wrong, 4 a host can't be reached."""


def diff(inventory: Inventory, limit: Limit = None, as_json: Json = False) -> None:
    """Show what a deploy would do: its steps in words, settings, files as unified diffs, and what it can't know yet.

    The deploy's own operations compare, and nothing is changed. Secrets are not shown.
    """
    with connected(inventory, limit, as_json) as fleet:
        from wsllama import ahead

        ahead.prepare(fleet)
        hosts, failed = each(fleet, lambda host: document(fleet, host, ahead.look(fleet, host)), LIMIT_S)
    if as_json:
        typer.echo(json.dumps({"hosts": hosts, "failed": failed, "unreachable": fleet.unreachable}, ensure_ascii=False))
    else:
        for name, of in hosts.items():
            for line in lines(name, of):
                typer.secho(line, fg=_colour(line) if sys.stdout.isatty() else None)
    unlooked(failed, fleet.unreachable)
    refused = failed or any(of["refused"] for of in hosts.values())
    changes = any(of["changes"] for of in hosts.values())
    raise typer.Exit(UNREACHABLE if fleet.unreachable else FAILED if refused else DRIFT if changes else 0)


def document(fleet: Fleet, host: Any, ahead: Ahead) -> dict[str, Any]:
    """What a deploy would do on one host, for JSON. Raises RemoteError."""
    files = [lines_of for step in ahead.steps for lines_of in step["diffs"]]
    refused = [sentence for step in ahead.steps for sentence in step["refused"]]
    current = str(ahead.seen["links"]["current"] or "").rpartition("/")[2]
    if ahead.release and str(ahead.number) != current:
        texts = ahead.seen["release"]["texts"]
        argument = {
            "build": ahead.release.links["build"],
            "words": ahead.release.words,
            "allow_tools": ahead.release.record["server"]["allow_tools"],
        }
        spelled = fleet.run(host, "spell", argument)
        refused += [f"llama-server refuses the arguments of the settings: {problem}" for problem in spelled["problems"]]
        files.append(unified("args", rules.flag_lines(texts["args"]), rules.flag_lines(spelled["args"])))
        files.append(unified("env", (texts["env"] or "").splitlines(), ahead.release.files["env"].splitlines()))
    steps = [
        {"operation": step["operation"], "would": [rules.masked(text) for text in said] or ["change something"]}
        for step in ahead.steps
        for said in [[told["text"] for told in step["told"]] or step["later"]]
        if step["changes"] or said
    ]
    return {
        "changes": bool(steps),
        "steps": steps,
        "settings": [{"setting": f.what, "is": f.now, "should": f.should} for f in ahead.settings if f.kind == "setting"],
        "files": [[rules.masked(line) for line in file] for file in files if file],
        "refused": [rules.masked(sentence) for sentence in dict.fromkeys(refused)],
        "unknown": rules.unknown(ahead.steps),
    }


def unified(name: str, old: list[str], new: list[str]) -> list[str]:
    """A file of the release as a unified diff."""
    return list(difflib.unified_diff(old, new, f"{layout.CURRENT}/{name}", f"{layout.CURRENT}/{name} (wanted)", lineterm=""))


def lines(name: str, of: Mapping[str, Any]) -> Iterator[str]:
    """A document for people."""
    if not of["changes"] and not of["refused"]:
        yield f"{name}: a deploy would change nothing"
        return
    yield f"{name}: " + ("a deploy would refuse this host:" if of["refused"] else "a deploy would change this:")
    for sentence in of["refused"]:
        yield f"  refused: {sentence}"
    for step in of["steps"]:
        for text in step["would"]:
            yield f"  {step['operation']}: {text}"
    for one in of["settings"]:
        yield f"  setting {one['setting']}: {one['is']} -> {one['should']}"
    for one in of["files"]:
        yield from one
    for sentence in of["unknown"]:
        yield f"  not known before: {sentence}"


def _colour(line: str) -> str | None:
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
