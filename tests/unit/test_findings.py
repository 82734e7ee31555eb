"""Files as the field has them (tests/data/fixtures), each with its right reading; and the catalogue that explains them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wsllama.domain.findings import CATALOGUE, KINDS, examine, named

FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"
INDEX: list[dict[str, Any]] = json.loads((FIXTURES / "index.json").read_text(encoding="utf-8"))
VARIATIONS: list[dict[str, Any]] = json.loads((FIXTURES.parent / "variations.json").read_text(encoding="utf-8"))
INPUTS = ("command", "returncode", "codepage", "path", "http_status")


def inputs(entry: dict[str, Any]) -> dict[str, Any]:
    return {**{key: entry[key] for key in INPUTS if key in entry}, **entry.get("request", {})}


@pytest.mark.parametrize("entry", INDEX, ids=lambda entry: str(entry["file"]))
def test_each_file_gets_its_right_reading(entry: dict[str, Any]) -> None:
    data = (FIXTURES / entry["file"]).read_bytes()
    assert examine(entry["kind"], data, **inputs(entry)) == entry["expect"]


@pytest.mark.parametrize("entry", VARIATIONS, ids=lambda entry: f"{entry['kind']}: {entry['note']}")
def test_other_builds_drivers_languages_and_shells_say_it_in_their_words(entry: dict[str, Any]) -> None:
    """tests/data/variations.json: written after the same sources as the files, each with its right reading."""
    assert examine(entry["kind"], entry["text"].encode(entry["encoding"]), **entry.get("inputs", {})) == entry["expect"]


@pytest.mark.parametrize("word", ["a", "/mnt/c/", "error ", "exception "])
@pytest.mark.parametrize("kind", ["log", "build-log"])
def test_a_line_of_a_megabyte_takes_no_hours(kind: str, word: str) -> None:
    assert examine(kind, word.encode() * (1_000_000 // len(word)))


@pytest.mark.parametrize("entry", [e for e in INDEX if e["kind"] in ("log", "unit", "build-log")], ids=lambda e: str(e["file"]))
@pytest.mark.parametrize("how", ["crlf", "utf-16", "utf-16-le", "bom", "coloured"])
def test_saved_another_way_a_file_says_the_same(entry: dict[str, Any], how: str) -> None:
    text = (FIXTURES / entry["file"]).read_bytes().decode().replace("\r\n", "\n")
    if how == "coloured" and entry["kind"] != "unit":
        text = "".join(f"\x1b[32m{line}\x1b[0m\n" for line in text.split("\n"))
    data = {
        "crlf": text.replace("\n", "\r\n").encode(),
        "bom": text.encode("utf-8-sig"),
        "coloured": text.encode(),
    }.get(how) or text.replace("\n", "\r\n").encode(how)
    assert examine(entry["kind"], data, **inputs(entry)) == entry["expect"]


def test_every_file_is_named_by_the_index() -> None:
    files = {path.relative_to(FIXTURES).as_posix() for path in FIXTURES.rglob("*") if path.is_file()}
    assert files == {entry["file"] for entry in INDEX} | {"index.json"}


def test_the_catalogue_has_whatever_is_found() -> None:
    for entry in INDEX:
        said = entry["expect"]
        ids = [*said.get("findings", ()), *(said[k] for k in ("verdict", "status", "error_id") if said.get(k))]
        if entry["kind"] == "wsl-output":  # of these only errors are findings
            ids = [said["error_id"]] if "error_id" in said else []
        assert [(entry["kind"], one) for one in ids if (entry["kind"], one) not in CATALOGUE] == [], entry["file"]


def test_what_is_wrong_is_named_first() -> None:
    found = named("build-log", {"findings": ["ok", "missing_openssl", "disk_full"]})
    assert [entry.id for entry in found] == ["disk_full", "missing_openssl", "ok"]


def test_every_entry_says_all_that_a_person_needs() -> None:
    assert {kind for kind, _ in CATALOGUE} == {*KINDS, "use"}
    for entry in CATALOGUE.values():
        assert all(text.strip() and "\n" not in text for text in entry[3:]), entry.id


def test_another_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"^dmesg is no kind .* log, unit, wslconfig"):
        examine("dmesg", b"")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\xff\xfe", bytes(range(256)) * 3, b"[" * 999, b'{"choices": [null]}', b"data: {\n"]
)
def test_garbage_raises_nothing(kind: str, data: bytes) -> None:
    assert isinstance(examine(kind, data), dict)
