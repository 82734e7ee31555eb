"""Which release a rollback goes to, and what it needs; the command's refusals. Real hosts: tests/lab/test_rollback.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyinfra.api import Inventory
from typer.testing import CliRunner

from wsllama import cli, layout
from wsllama.releases import lacking, target
from wsllama.remote import Fleet, RemoteError


def seen(accepted: str, current: str | None, last_good: str | None = None, refused: str = "", stages: str = "") -> dict[str, Any]:
    """stages: accepted ones that were on the way to another."""
    numbers = {n: {"accepted": n not in refused.split(), "final": True} for n in (accepted + " " + refused).split()}
    numbers |= {n: {"accepted": True, "final": False} for n in stages.split()}
    return {"numbers": numbers, "current": current, "last-good": last_good or current}


@pytest.mark.parametrize(
    ("there", "to", "number"),
    [
        (seen("1 2 3", "3"), None, "2"),
        (seen("1 3", "3", refused="2"), None, "1"),
        (seen("2 9 10 11", "10"), None, "9"),
        (seen("2 9 10 11", "11"), None, "10"),
        (seen("1 2 3", "2"), 3, "3"),
        (seen("1 2 3", "2"), 2, "2"),
        (seen("1 2 3", None), None, "3"),
        # A rollback from 3 was killed after it had switched: the same command goes on with it.
        (seen("1 2 3", "2", last_good="3"), None, "2"),
        # A deploy was killed before release 4 was accepted.
        (seen("1 2 3", "4", last_good="3", refused="4"), None, "3"),
        # What served less, on the way to the current one, is gone back to by its number only.
        (seen("1 4", "4", stages="2 3"), None, "1"),
        (seen("1 4", "4", stages="2 3"), 3, "3"),
        # A deploy was killed between two stages.
        (seen("1", "2", last_good="1", stages="2"), None, "1"),
    ],
)
def test_where_to(there: dict[str, Any], to: int | None, number: str) -> None:
    assert target(there, to) == number


@pytest.mark.parametrize(
    ("there", "to", "said"),
    [
        (seen("1", "1"), None, "there is no earlier release to go back to: accepted are 1, current is 1"),
        (seen("", None), None, "there is no earlier release to go back to: accepted are none, current is none"),
        (seen("2 3", "2", refused="1"), None, "there is no earlier release to go back to: accepted are 2, 3, current is 2"),
        (seen("1 3", "3", refused="2"), 2, "release 2 is not there, or was never accepted: accepted are 1, 3, current is 3"),
        (
            seen("3", "3", stages="1 2"),
            None,
            "there is no earlier release to go back to: accepted are 1, 2, 3, current is 3; 1, 2 served less, as a stage on the"
            " way: --to takes its number",
        ),
        (seen("1 3", "3"), 7, "release 7 is not there, or was never accepted: accepted are 1, 3, current is 3"),
    ],
)
def test_nowhere_to_go(there: dict[str, Any], to: int | None, said: str) -> None:
    with pytest.raises(RemoteError) as e:
        target(there, to)
    assert str(e.value) == said


def test_what_a_release_lacks() -> None:
    made_of = {"build": "b", "model": {"file": "ab/a.gguf"}, "server": {"api_key": True}}
    now: dict[str, Any] = {
        "builds": {layout.BUILDS: {"b": {"version": "1"}}},
        "models": {layout.MODELS: {"ab/a.gguf": {"intact": True}}},
        "files": {layout.API_KEY: {"sha256": "0"}},
    }
    assert lacking(now, made_of) == []
    now["files"][layout.API_KEY] = None
    assert lacking(now, made_of) == ["/etc/wsllama/api-key"]
    assert lacking(now, {**made_of, "server": {"api_key": False}}) == []
    now["models"][layout.MODELS]["ab/a.gguf"]["intact"] = False
    now["builds"][layout.BUILDS]["b"] = None
    model = "the model /var/lib/wsllama/models/ab/a.gguf as it was"
    assert lacking(now, made_of) == ["build b", model, "/etc/wsllama/api-key"]
    now["models"][layout.MODELS].clear()
    now["builds"][layout.BUILDS].clear()
    assert lacking(now, made_of) == ["build b", model, "/etc/wsllama/api-key"]


def test_lines_of_a_host_are_shown_as_they_come(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(Inventory((["@local"], {}))).connect()
    argument = {"action": "start", "root": str(tmp_path), "stamp": str(tmp_path / "x"), "unit": "no-such.service", "digest": ""}
    (host,) = fleet.hosts
    fleet.watch(host, "release", argument)
    fleet.close()
    said = capfd.readouterr()
    assert "[@local] " in said.err
    assert "no-such.service did not start: " in said.err
    assert said.out == ""


def rollback(*words: str | Path) -> Any:
    result = CliRunner().invoke(cli.app, ["rollback", *map(str, words)], env={"COLUMNS": "500"})
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_a_number_that_none_has(tmp_path: Path) -> None:
    result = rollback(tmp_path / "inventory", "--to", "0")
    assert result.exit_code == 2
    assert "Invalid value for '--to'" in result.stderr


def test_help_tells_what_the_exit_codes_mean() -> None:
    text = rollback("--help").stdout
    assert "wsllama rollback inventory --limit desk-1 --to 3" in text
    assert "1 a host does not, 2 settings are wrong, 4 a host can't be reached" in " ".join(text.split())
