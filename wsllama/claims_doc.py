"""Writes docs/claims.md from docs/claims.json: `python -m wsllama.claims_doc`. A test keeps the two equal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "docs" / "claims.json"
PAGE = DATA.with_suffix(".md")
HEAD = """\
# What two guides claim, and what is true

Generated from `docs/claims.json` by `.venv/bin/python -m wsllama.claims_doc`; do not edit it by hand.

Two public guides describe how Qwen3.6-35B-A3B is served with llama.cpp. Each of their claims stands here once: whether it is
true, how we know, and what wsllama does. "Run" means that it was tried with llama.cpp at the commit of `wsllama.lock`; a file
name is one of its source; `name#number` is an issue of that project; "given" is a matter of judgement. "Not yet" is said where
wsllama does not do it.
"""
GUIDES = {
    "1": "Guide 1: a full guide to WSL2 and llama.cpp, with build, patches and tuning",
    "2": "Guide 2: GGUF, llama.cpp, VRAM and checks of the API",
}
FIELDS = ("number", "claim", "verdict", "truth", "how", "product")
VERDICTS = ("true", "partly", "false")


def rows() -> list[dict[str, str]]:
    """Every claim; the fields are FIELDS."""
    found: list[dict[str, str]] = json.loads(DATA.read_text(encoding="utf-8"))
    return found


def page() -> str:
    """The whole page, as it has to stand in docs/claims.md."""
    return "\n".join([HEAD, *_guides()]) + "\n"


def _guides() -> Iterator[str]:
    every = rows()
    for guide, title in GUIDES.items():
        mine = [row for row in every if row["number"].startswith(f"{guide}.")]
        count = Counter(row["verdict"] for row in mine)
        yield f"## {title}\n"
        yield f"{len(mine)} claims: {', '.join(f'{count[verdict]} {verdict}' for verdict in VERDICTS)}.\n"
        yield "| | claim | | what is true | how we know | what wsllama does |\n|---|---|---|---|---|---|"
        for row in mine:
            yield "| " + " | ".join(row[field].replace("|", "\\|").replace("<", "&lt;") for field in FIELDS) + " |"
        yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
