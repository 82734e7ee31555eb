"""Quoting of values for systemd. That systemd reads them back as they were: tests/lab/test_unit_on_systemd.py."""

from __future__ import annotations

import pytest

from wsllama.domain import systemd


@pytest.mark.parametrize("value", ["a\nb", "a\tb", "\x00", "\x1b[31m", "\x7f"])
def test_control_characters_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="a control character can't stand in an argument"):
        systemd.word(value)
    with pytest.raises(ValueError, match="a control character can't stand in an argument"):
        systemd.arguments("ARGS", ["fine", value])


def test_an_environment_file() -> None:
    # systemd.exec(5): within double quotes a backslash quotes ", \, ` and $
    assert systemd.environment_file({"A": "plain", "B": 'a"b\\c$d`e'}) == 'A="plain"\nB="a\\"b\\\\c\\$d\\`e"\n'
    assert systemd.environment_file({}) == ""


def test_plain_words_stay_readable() -> None:
    assert systemd.arguments("ARGS", ["--port", "8080"]) == 'ARGS="\\"--port\\" \\"8080\\""\n'


def test_an_empty_word_stays_a_word() -> None:
    assert systemd.word("") == '""'
