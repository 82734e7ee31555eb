"""`.wslconfig` and `wsl.conf`, exactly as WSL reads them: what it takes, a careful change, and what is wrong. Pure."""

from __future__ import annotations

from wsllama.domain.wslconfig.findings import UNSOUND, Finding, advise, lint, look_alikes
from wsllama.domain.wslconfig.keys import FILES, Key, Kind, find
from wsllama.domain.wslconfig.reader import Parsed, Warned, decode, read
from wsllama.domain.wslconfig.writer import edit

__all__ = [
    "FILES",
    "UNSOUND",
    "Finding",
    "Key",
    "Kind",
    "Parsed",
    "Warned",
    "advise",
    "edit",
    "find",
    "lint",
    "look_alikes",
    "parse",
]


def parse(data: bytes, kind: Kind) -> Parsed:
    """What WSL takes from a file's bytes: its values, its warnings in their order, and how it ended. Raises nothing."""
    return read(decode(data, kind), kind).parsed
