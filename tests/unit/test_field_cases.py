"""Cases from public bug reports, in tests/data/field_cases.json: what failed, and what has to come of it here.

A section of them has files of its own, test_field_cases_<section>.py or test_field_cases_<section>_<part>.py. A test in them is
named test_<number>_<what>, runs the product's code on the input of that row and asserts its outcome; a row may have several.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROWS = json.loads((HERE.parent / "data" / "field_cases.json").read_text(encoding="utf-8"))
DONE = ("A", "B", "C", "D", "E", "F", "G", "H", "I", "J")
"""Sections of which every row has a test."""


def numbers(section: str) -> list[int]:
    return [row["number"] for row in ROWS if row["section"] == section]


def test_each_row_says_what_fails_and_what_is_right() -> None:
    assert [row["section"] for row in ROWS] == sorted(row["section"] for row in ROWS)
    every = [row["number"] for row in ROWS]
    assert every == sorted(set(every))
    for row in ROWS:
        assert set(row) == {"section", "number", "symptom", "input", "outcome"}, row["number"]
        assert all(row.values()), row["number"]


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> dict[str, set[int]]:
    """Section -> numbers of the tests that pytest itself finds in its file: those of this session, if it has all the files."""
    files = {str(path) for path in HERE.glob("test_field_cases_*.py")}
    listed = "\n".join(item.nodeid for item in request.session.items)
    if not files <= {str(item.path) for item in request.session.items}:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *sorted(files)]
        said = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, timeout=900)
        assert said.returncode == 0, said.stdout + said.stderr
        listed = said.stdout
    found: dict[str, set[int]] = {}
    for section, name in re.findall(r"/test_field_cases_([a-z])\w*\.py::(\w+)", listed):
        number = re.match(r"test_(\d+)_", name)
        assert number, f"{name} of section {section.upper()} does not begin with the number of a row"
        found.setdefault(section.upper(), set()).add(int(number[1]))
    return found


def test_every_row_of_what_is_done_has_a_test(collected: dict[str, set[int]]) -> None:
    assert {section: sorted(collected.get(section, ())) for section in DONE} == {s: numbers(s) for s in DONE}


def test_no_test_stands_in_the_file_of_another_section(collected: dict[str, set[int]]) -> None:
    assert {s: sorted(found - set(numbers(s))) for s, found in collected.items()} == {s: [] for s in collected}
