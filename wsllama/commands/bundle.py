"""`wsllama bundle`: everything that hosts without a network need, in one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from wsllama.commands.common import FAILED, Inventory, Json, Limit, connected, end

EPILOG = """\b
Examples:
  wsllama bundle inventory /media/usb/bundle
  wsllama bundle inventory /media/usb/bundle --limit desk-1 --with-model

The hosts of the inventory stand for those without a network: of each distro one that reaches its sources, with the same
settings. Where there is no network, the settings are llama_cpp = {"source": "bundle"}, bundle = {"path": "/media/usb/bundle"}.

Exit codes: 0 the bundle is whole, 1 it could not be made, 2 settings are wrong, 4 a host can't be reached."""


def bundle(
    inventory: Inventory,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the bundle: new, empty, or an earlier bundle.")],
    with_model: Annotated[
        bool, typer.Option("--with-model", help="With the model that the settings name; one of the lock is downloaded.")
    ] = False,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Collect what hosts without a network need.

    Source, CUDA toolkit, Debian packages, builds that are here already; with sums, sizes and a bill of materials. What is
    in OUT already and right is not fetched again.
    """
    with connected(inventory, limit, as_json) as fleet:
        if fleet.unreachable:
            end({}, fleet.unreachable)
        from wsllama import bundle_maker
        from wsllama.artifacts import ArtifactError
        from wsllama.bundle import BundleError
        from wsllama.index import SourceError
        from wsllama.lock import LockError

        def say(text: str) -> None:
            typer.echo(text, err=True)

        try:
            report = bundle_maker.make(fleet, out.absolute(), with_model=with_model, say=say)
        except (BundleError, SourceError, ArtifactError, LockError, OSError) as e:
            if as_json:
                print(json.dumps({"ok": False, "errors": [str(e)]}))
            typer.echo(str(e), err=True)
            raise typer.Exit(FAILED) from e
    if as_json:
        print(json.dumps({"ok": True, **report}))
        return
    kinds = ", ".join(f"{kind} {of['files']} ({_mb(of['bytes'])})" for kind, of in report["kinds"].items())
    typer.echo(f"{report['path']}: {_mb(report['bytes'])}, of which {_mb(report['fetched'])} are new: {kinds}")


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
