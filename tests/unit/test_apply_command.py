"""`wsllama apply` at hosts that nobody answers at: what it goes on with, and what it refuses before it begins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WSLLAMA = str(Path(sys.executable).parent / "wsllama")
AWAY = '"ssh_hostname": "127.0.0.1", "ssh_port": 9, "platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}'


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """Two hosts behind a port of this machine at which nothing listens."""
    path = tmp_path / "two desks"
    path.write_text(f'desks = [("desk-1", {{{AWAY}}}), ("desk-2", {{{AWAY}}})]\n')
    return path


def apply(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [WSLLAMA, "apply", *map(str, words), "--yes"]
    env = {**os.environ, "COLUMNS": "500", "HOME": "/nonexistent"}
    p = subprocess.run(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert "Traceback" not in p.stderr, p.stderr
    return p


def begun(inventory: Path, *words: str) -> tuple[Path, dict[str, Any]]:
    """The report of a rollout that found nobody."""
    path = inventory.with_name("r.json")
    p = apply(inventory, "--report", path, *words)
    assert p.returncode == 4, p.stderr
    return path, json.loads(path.read_text())


def test_it_goes_on_as_it_was_begun(inventory: Path) -> None:
    """What it was limited to and what it was asked for need not be said again; what is said now counts."""
    path, report = begun(inventory, "--limit", "desk-1", "--batch", "3", "--on-failure", "rollback", "--no-bench")
    assert {name: host["state"] for name, host in report["hosts"].items()} == {"desk-1": "offline"}
    p = apply(inventory, "--resume", path, "--batch", "2")
    assert p.returncode == 4, p.stderr
    assert p.stderr.splitlines()[-1] == f"report: {path}; go on with: wsllama apply '{inventory}' --resume {path}"
    wanted = {"limit": ["desk-1"], "batch": 2, "on_failure": "rollback", "bench": False, "max_failures": 0}
    again = json.loads(path.read_text())
    assert wanted.items() <= again["options"].items()
    assert list(again["hosts"]) == ["desk-1"]


def test_where_every_host_has_it_nothing_is_connected(inventory: Path) -> None:
    path, report = begun(inventory)
    report["hosts"] = {name: {"state": "done"} for name in report["hosts"]}
    path.write_text(json.dumps(report))
    p = apply(inventory, "--resume", path)
    assert (p.returncode, p.stdout) == (0, "desk-1: done\ndesk-2: done\n")
    assert p.stderr == f"have the release already: desk-1, desk-2\nreport: {path}\n"


def test_a_host_with_the_name_of_a_group_is_refused(inventory: Path) -> None:
    """pyinfra's --limit takes the group, so the canary would have been all of it."""
    inventory.write_text(f'desks = [("desks", {{{AWAY}}}), ("desk-2", {{{AWAY}}})]\n')
    p = apply(inventory, "--report", inventory.with_name("r.json"))
    assert p.returncode == 2
    assert p.stderr.startswith("refused: desks: --limit takes this for others, too")


def test_a_report_that_can_not_be_written_is_refused(inventory: Path) -> None:
    p = apply(inventory, "--report", inventory / "x" / "r.json", "--json")
    assert p.returncode == 2
    assert json.loads(p.stdout)["errors"] == [
        f"the report {inventory}/x/r.json can't be written: Not a directory: give --report another place"
    ]


BATCH = """
import sys
from wsllama.commands import apply, common
common.cooperative()
from wsllama import rollout
rollout.sys.executable = sys.argv[1]
batch = rollout.Batch("inventory", ["desk-1"], apply._say)
batch.run()
print(batch.reason("desk-1"))
"""
PYINFRA = """#!/bin/sh
i=0
while [ $i -lt 9000 ]; do echo "    [desk-1] line $i of many"; i=$((i+1)); done >&2
"""


def test_who_stops_reading_stops_no_batch(tmp_path: Path) -> None:
    """The words of pyinfra are read to the end, or it would wait for a reader, and the rollout for it."""
    (tmp_path / "pyinfra").write_text(PYINFRA)
    (tmp_path / "pyinfra").chmod(0o755)
    words = [sys.executable, "-c", BATCH, str(tmp_path / "python")]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout
        assert p.stderr
        p.stderr.readline()
        p.stderr.close()
        try:
            p.wait(900)
        finally:
            p.kill()
        said = p.stdout.read()
    assert said == "line 8999 of many\n"
