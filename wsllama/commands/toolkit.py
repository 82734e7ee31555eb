"""`wsllama toolkit`: which CUDA toolkit fits a machine, without touching one."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from wsllama import lock
from wsllama.domain.toolkit import NEAREST, Choice, choose
from wsllama.settings import LOCK

REFUSED = 2
EPILOG = """\b
Examples:
  wsllama toolkit --distro ubuntu-24.04 --driver 581.42 --compute 8.9
  wsllama toolkit --distro ubuntu-22.04 --driver 572.83 --compute 7.0,12.0 --json
  wsllama toolkit --distro debian-12 --compute 8.9 --provider wheels --cuda 13.0

Exit codes: 0 there is one, 2 there is none, and why."""


def toolkit(
    distro: Annotated[str, typer.Option(help="Distribution in WSL: ubuntu-22.04, -24.04, -26.04, debian-12 or -13.")],
    compute: Annotated[list[str], typer.Option(help="Compute capability of each GPU, as in 8.9; with commas, or repeated.")],
    driver: Annotated[str | None, typer.Option(help="Driver on Windows, as in 581.42; left out: it isn't checked.")] = None,
    cuda: Annotated[str | None, typer.Option(help="Ask for this release, as in 13.0.")] = None,
    provider: Annotated[str | None, typer.Option(help="apt (the default) or wheels.")] = None,
    allow_miscompiling: Annotated[bool, typer.Option("--allow-miscompiling", help="Let CUDA 13.2 pass.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Choose a CUDA toolkit for a machine.

    Says what to install and how llama.cpp is configured, or what conflicts and the nearest that works. Asks no host.
    """
    capabilities = [part.strip() for value in compute for part in value.split(",") if part.strip()]
    pinned = lock.load(LOCK).cuda.apt.packages
    choice = choose(distro, driver, capabilities, cuda, provider, allow_miscompiling=allow_miscompiling, pinned=pinned)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(choice)))
    else:
        _show(choice)
    raise typer.Exit(0 if choice.ok else REFUSED)


def _show(choice: Choice) -> None:
    for sentence in choice.refusals:
        typer.echo(sentence if sentence.startswith(NEAREST) else f"refused: {sentence}", err=True)
    rows = [
        ("CUDA", f"{choice.cuda} by {choice.provider}"),
        ("packages", " ".join(choice.packages)),
        ("to build", " ".join(choice.build_packages)),
        ("compiler", choice.host_compiler or ""),
        ("architectures", " ".join(choice.architectures)),
        *(("cmake", f"-D{name}={value}") for name, value in sorted(choice.cmake.items())),
        *(("because", sentence) for sentence in choice.reasons),
        *(("mind", sentence) for sentence in choice.warnings),
    ]
    last = ""
    for name, value in rows if choice.ok else []:
        typer.echo(f"{name if name != last else '':<14} {value}")
        last = name
