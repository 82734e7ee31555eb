"""`wsllama report`: one page of all records, for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from wsllama import bench as work
from wsllama.commands.bench import Records
from wsllama.commands.common import ROOT, Json, Limit, connected, end, refuse
from wsllama.domain import report as page
from wsllama.remote import RemoteError
from wsllama.whole import text as put

EPILOG = """\b
Examples:
  wsllama report                                     all of records/ into report.html
  wsllama report --inventory inventory -o fleet.html   first copies here what the hosts have
  wsllama report records/desk-1 --markdown -o -        Markdown on stdout
  wsllama report --json                              the page, and on stdout all that it shows

Exit codes: 0 written, 1 a host's records can't be copied, 2 refused, 4 a host can't be reached. The page is written from what is
here all the same when a host fails, if anything is here."""


def report(
    records: Annotated[list[str] | None, typer.Argument(metavar="[RECORDS]...", help="Files or folders.")] = None,
    inventory: Annotated[
        str | None, typer.Option("--inventory", metavar="INVENTORY", help="Copy the records of its hosts here first.")
    ] = None,
    limit: Limit = None,
    out: Annotated[str, typer.Option("-o", "--out", metavar="FILE", help="What to write; - is stdout.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown instead of HTML.")] = False,
    folder: Records = Path(work.FOLDER),
    as_json: Json = False,
) -> None:
    """Write one page of all records: fleet, plan against measurement, speed by host and release, memory of each host.

    The HTML page is one file that loads nothing; it can be read on a phone and printed. --json has all that it shows, too.
    """
    target = out or ("report.md" if markdown else "report.html")
    if as_json and target == "-":
        refuse(["-o - puts the page on stdout, and --json its document: leave one of them out"], as_json)
    failed: dict[str, str] = {}
    unreachable: dict[str, str] = {}
    if inventory:
        failed, unreachable = _collect(inventory, limit, folder, as_json)
    try:
        whole = [work.read(path) for path in work.files(records or [], folder)]
    except RemoteError as e:
        if not (failed or unreachable):
            refuse([str(e)], as_json)
        if as_json:
            print(json.dumps({"ok": False, "errors": [str(e)], "failed": failed, "unreachable": unreachable}, ensure_ascii=False))
        typer.echo(f"nothing was written: {e}", err=True)
        end(failed, unreachable)
    view = page.view(whole)
    _write(target, page.markdown(view) if markdown else html(view), as_json)
    if as_json:
        document = {"file": target, **view, "failed": failed, "unreachable": unreachable}
        print(json.dumps(document, ensure_ascii=False))
    elif target != "-":
        typer.echo(f"{target}: {view['records']} records of {view['hosts']} hosts")
    end(failed, unreachable)


def _write(target: str, text: str, as_json: bool) -> None:
    if target == "-":
        typer.echo(text, nl=False)
        return
    try:
        put(Path(target), text)
    except OSError as e:
        refuse([f"{target} can't be written: {e.strerror}"], as_json)


def html(view: dict[str, Any]) -> str:
    """The page, with every value escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    jinja = Environment(
        loader=FileSystemLoader(ROOT / "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters["number"] = page.number
    return jinja.get_template("report.html.j2").render(**view, height=page.STACK_HEIGHT)


def _collect(inventory: str, limit: Sequence[str] | None, folder: Path, as_json: bool) -> tuple[dict[str, str], dict[str, str]]:
    failed = {}
    with connected(inventory, list(limit or []), as_json) as fleet:
        for host in fleet.hosts:
            try:
                work.collect(fleet, host, folder)
            except (RemoteError, OSError) as e:
                failed[host.name] = str(e)
    return failed, fleet.unreachable
