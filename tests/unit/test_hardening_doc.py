"""docs/hardening.md says what the unit's template has, and all of it."""

from __future__ import annotations

from pathlib import Path

from wsllama import hardening_doc

PAGE = Path(__file__).parents[2] / "docs" / "hardening.md"


def test_page_is_what_template_and_module_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == hardening_doc.page(), "run .venv/bin/python -m wsllama.hardening_doc"


def test_every_directive_of_the_template_has_its_reason_and_no_reason_is_left_over() -> None:
    assert sorted(hardening_doc.directives()) == sorted(hardening_doc.KEPT)
    assert {"DeviceAllow", "MemoryMax", "LimitMEMLOCK", "IPAddressDeny"} <= set(hardening_doc.directives())


def test_nothing_is_kept_and_left_out_at_once() -> None:
    text = (PAGE.parents[1] / "templates/llama-server.service.j2").read_text(encoding="utf-8")
    lines = {line for tried in hardening_doc.TRIED for line in tried.lines.splitlines() if not line.endswith("=")}
    assert lines.isdisjoint(text.splitlines())
