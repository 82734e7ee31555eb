"""docs/troubleshooting.md and docs/claims.md say what their data say, and say enough."""

from __future__ import annotations

import re

from wsllama import claims_doc, troubleshooting_doc
from wsllama.domain.catalogue import GUIDES
from wsllama.domain.findings import CATALOGUE


def test_troubleshooting_is_what_the_catalogue_says() -> None:
    page = troubleshooting_doc.PAGE.read_text(encoding="utf-8")
    assert page == troubleshooting_doc.page(), "run .venv/bin/python -m wsllama.troubleshooting_doc"


def test_everything_that_is_wrong_is_in_troubleshooting() -> None:
    page = troubleshooting_doc.page()
    named = {match[1] for match in re.finditer(r"</a>`([\w-]+)` \|", page)}
    assert named == {entry.id for entry in CATALOGUE.values() if entry.severity != "good"}
    links = set(re.findall(r"\]\(#([\w-]+)\)", page))
    assert links
    assert links <= set(re.findall(r'id="([\w-]+)"', page))


def test_the_guides_symptoms_lead_to_entries_that_there_are() -> None:
    assert [key for _, _, keys in GUIDES for key in keys if key not in CATALOGUE] == []
    assert all(keys for _, _, keys in GUIDES)


def test_claims_are_what_the_data_say() -> None:
    page = claims_doc.PAGE.read_text(encoding="utf-8")
    assert page == claims_doc.page(), "run .venv/bin/python -m wsllama.claims_doc"


def test_every_claim_of_both_guides_is_judged() -> None:
    rows = claims_doc.rows()
    wanted = [f"1.{n:02d}" for n in range(1, 96)] + [f"2.{n:02d}" for n in range(1, 63)]
    assert [row["number"] for row in rows] == wanted
    for row in rows:
        assert tuple(row) == claims_doc.FIELDS, row["number"]
        assert all(row.values()), row["number"]
        assert row["verdict"] in claims_doc.VERDICTS, row["number"]


def test_entries_that_claims_point_to_are_there() -> None:
    ids = {name for _, name in CATALOGUE}
    for row in claims_doc.rows():
        pointed = re.findall(r"`doctor [\w-]+` says (\w+)|troubleshooting\.md, (\w+)", row["product"])
        assert {one or other for one, other in pointed} <= ids, row["number"]
