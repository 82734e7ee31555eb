"""`wsllama gguf`: whether a GGUF is whole and fit to be served."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from wsllama.commands.common import FAILED, Json
from wsllama.domain.gguf import shard_names
from wsllama.domain.gguf_audit import Report, audit, printable
from wsllama.host.model import seen

EPILOG = """\b
Examples:
  wsllama gguf Qwen3.6-35B-A3B-UD-Q4_K_M.gguf
  wsllama gguf Qwen3.6-35B-A3B-BF16-00001-of-00002.gguf --mmproj mmproj-BF16.gguf --json

Reads headers only: that bytes in between were changed is told by a sha256, not by this.

Exit codes: 0 fit to be served, 1 not, and why."""


def gguf(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The GGUF; of a split model its first shard.")],
    mmproj: Annotated[Path | None, typer.Option(metavar="FILE", help="The projector that is to go with it.")] = None,
    any_size: Annotated[
        bool, typer.Option("--any-size", help="Take other sizes of the architecture, as small test models.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Audit a GGUF file.

    Whole, with all shards, of the architecture of Qwen3.6-35B-A3B, with its experts and its chat template; and whether a
    projector fits it.
    """
    files = [seen(str(file.with_name(name)), name) for name in shard_names(file.name)]
    report = audit(files, file.name, seen(str(mmproj), mmproj.name) if mmproj else None, any_size)
    if as_json:
        typer.echo(json.dumps({"ok": report.ok, **asdict(report)}))
    else:
        _show(file, report)
    raise typer.Exit(0 if report.ok else FAILED)


def _show(file: Path, report: Report) -> None:
    if report.architecture:
        shards = f", {report.shards} shards" if report.shards > 1 else ""
        typer.echo(
            printable(
                f"{file.name}: {report.architecture[:64]}, {report.block_count} blocks, {report.expert_count} experts,"
                f" {report.bytes_present} bytes{shards}"
            )
        )
    for sentence in report.problems:
        typer.echo(f"not fit: {printable(sentence)}", err=True)
    for sentence in report.warnings:
        typer.echo(f"mind: {printable(sentence)}", err=True)
    if report.ok:
        typer.echo("fit to be served")
