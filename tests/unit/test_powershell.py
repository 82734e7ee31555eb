"""PowerShell and cmd files for Windows: no PowerShell can be had here, so they are parsed by tree-sitter's grammar of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_powershell

WINDOWS = Path(__file__).parents[2] / "templates" / "windows"
PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))


def wrong(data: bytes) -> list[str]:
    """Places that are no PowerShell."""
    out, nodes = [], [PARSER.parse(data).root_node]
    while nodes:
        node = nodes.pop()
        if node.type == "ERROR" or node.is_missing:
            out.append(f"line {node.start_point[0] + 1}: {data[node.start_byte : node.end_byte][:60]!r}")
        nodes += node.children
    return out


@pytest.mark.parametrize("path", sorted(WINDOWS.glob("*.ps1")), ids=lambda p: p.name)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_scripts_parse_and_are_ascii_with_straight_quotes(path: Path, newline: bytes) -> None:
    data = path.read_bytes()
    assert data.isascii()
    assert data.endswith(b"\n")
    assert wrong(data.replace(b"\n", newline)) == []


def test_the_parser_finds_what_is_broken() -> None:
    assert wrong(b"if ($a -eq 1) { 'x'\n")
    assert wrong(b"$a = @{ b = \n")


def test_the_elevated_script_runs_on_powershell_5_and_pastes_no_value() -> None:
    text = (WINDOWS / "elevated.ps1").read_text(encoding="ascii")
    code = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    for newer in (
        "??",
        "?.",
        " ? ",
        "&&",
        "||",
        "-Parallel",
        "ForEach-Object -P",
        "ConvertFrom-Json -AsHashtable",
        "Join-String",
    ):
        assert newer not in code, newer
    assert not re.search(r"\{\{|Invoke-Expression|\biex\b", code)
    assert "-Verb RunAs -Wait" in code
