"""Writes docs/troubleshooting.md from the catalogue: `python -m wsllama.troubleshooting_doc`. A test keeps the two equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wsllama.domain import ladder
from wsllama.domain.catalogue import GUIDES
from wsllama.domain.findings import CATALOGUE, Finding

PAGE = Path(__file__).resolve().parents[1] / "docs" / "troubleshooting.md"
HEAD = """\
# Troubleshooting

Generated from `wsllama/domain/catalogue.py` by `.venv/bin/python -m wsllama.troubleshooting_doc`; do not edit it by hand.

`wsllama doctor INVENTORY` looks at hosts. `wsllama doctor KIND FILE` reads what somebody pasted; `-` is standard input:

```
journalctl -u llama-server --no-pager | wsllama doctor log -
wsllama doctor unit /etc/systemd/system/llama-server.service
wsllama doctor --json response reply.json --max-tokens 64 --n-ctx 8192
```
"""
SECTIONS = {
    "use": "In use",
    "log": "In the server's log",
    "response": "In a reply",
    "unit": "In the unit",
    "nvidia-smi": "From nvidia-smi",
    "build-log": "In a build's log",
    "wslconfig": "In .wslconfig",
    "wslconf": "In wsl.conf",
    "wsl-output": "From wsl.exe and cmd.exe",
}


def page() -> str:
    """The whole page, as it has to stand in docs/troubleshooting.md."""
    return "\n".join([HEAD, *_guides(), *_ladders(), *_sections()]) + "\n"


def _guides() -> Iterator[str]:
    yield "## Symptoms that guides list, and their true causes\n"
    yield "| symptom | the guide's cause | look at |\n|---|---|---|"
    for symptom, said, entries in GUIDES:
        links = ", ".join(f"[{name}](#{_anchor(kind, name)})" for kind, name in entries)
        yield f"| {_cell(symptom)} | {_cell(said)} | {links} |"


def _ladders() -> Iterator[str]:
    yield "\n## The recovery ladder\n"
    yield "From the top, until it loads. `wsllama doctor` prints it from a host's own settings; this one begins at four slots.\n"
    yield "The card's memory is too small:\n\n```"
    yield from ladder.commands(ladder.rungs("vram", {"parallel": 4, "ctx_size": 16384}))
    yield "```\n\nThe distro's memory is too small:\n\n```"
    yield from ladder.commands(ladder.rungs("ram", {"parallel": 4, "ctx_size": 16384}))
    yield "```"


def _sections() -> Iterator[str]:
    for kind, title in SECTIONS.items():
        yield f"\n## {title}\n"
        yield "| id | what you see | cause | fix | how to check |\n|---|---|---|---|---|"
        for entry in CATALOGUE.values():
            if entry.kind == kind and entry.severity != "good" and not _known_from_elsewhere(entry):
                anchor = f'<a id="{_anchor(entry.kind, entry.id)}"></a>'
                cells = (entry.symptom, entry.cause, entry.fix, entry.check)
                yield f"| {anchor}`{entry.id}` | {' | '.join(map(_cell, cells))} |"
        if kind == "wslconf":
            yield "\nAnd all of .wslconfig's but the idle keys."


def _known_from_elsewhere(entry: Finding) -> bool:
    """Entries of wsl.conf that .wslconfig has in the same words."""
    other = CATALOGUE.get(("wslconfig", entry.id))
    return entry.kind == "wslconf" and other is not None and other[2:] == entry[2:]


def _anchor(kind: str, name: str) -> str:
    return f"{kind}-{name}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
