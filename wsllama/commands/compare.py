"""`wsllama compare`: two records of benchmarks side by side, with a gate for what got worse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from wsllama import bench as work
from wsllama.commands.bench import Records, size
from wsllama.commands.common import Json, refuse
from wsllama.domain import record
from wsllama.remote import RemoteError

WORSE = 3
EPILOG = """\b
Examples:
  wsllama compare records/desk-1/20261130T190211Z-1f0c9a77.json records/desk-1/20261203T081000Z-77aa01cd.json
  wsllama compare 20261130T1902 desk-1 --gate 5       a record by the beginning of its name; the newest of a host

A figure is worse when its median is worse by more than the gate's percent, and than the worst run of the first record.

Exit codes: 0 compared, and nothing is worse than --gate allows; 2 refused; 3 something is worse."""


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="The record before: a file, a name's beginning, or a host.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The record after.")],
    gate: Annotated[
        float | None,
        typer.Option(min=0, metavar="PERCENT", help="Exit code 3 when a figure is worse by more than this."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also records of different models, prompts or lengths, or that were disturbed.")
    ] = False,
    records: Records = Path(work.FOLDER),
    as_json: Json = False,
) -> None:
    """Compare two records: conditions that differ, speeds, time to the first token and memory, each with its ratio."""
    try:
        before, after = (work.read(work.one(word, records)) for word in (first, second))
    except RemoteError as e:
        refuse([str(e)], as_json)
    reasons = record.incomparable(before, after)
    if reasons and not force:
        refuse([*reasons, "what such figures say of each other is nothing; --force shows them all the same"], as_json)
    worse = record.regression(before, after, gate) if gate is not None else []
    document = {
        "first": before["id"],
        "second": after["id"],
        "forced": reasons,
        "conditions": record.differences(before, after),
        "figures": record.ratios(before, after),
        "worse": worse,
    }
    if as_json:
        typer.echo(json.dumps(document, ensure_ascii=False))
    else:
        _show(document)
    raise typer.Exit(WORSE if worse else 0)


def _show(document: Mapping[str, Any]) -> None:
    for sentence in document["forced"]:
        typer.echo(f"mind: {sentence}", err=True)
    typer.echo(f"{'':<40} {document['first']:>26} {document['second']:>26}")
    for row in document["conditions"]:
        typer.echo(f"{row['what']:<40} {str(row['first'])[:26]:>26} {str(row['second'])[:26]:>26}")
    for row in document["figures"]:
        cells = [size(row[key]) if row["unit"] == "bytes" else _number(row[key]) for key in ("first", "second")]
        name = row["what"] if row["unit"] == "bytes" else f"{row['what']} ({row['unit']})"
        ratio = row["ratio"] if isinstance(row["ratio"], str) else f"x {row['ratio']:.3f}"
        typer.echo(f"{name:<40} {cells[0]:>26} {cells[1]:>26}  {ratio}")
    for sentence in document["worse"]:
        typer.echo(f"worse: {sentence}", err=True)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}"
