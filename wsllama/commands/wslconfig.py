"""`wsllama wslconfig`: what WSL reads in a .wslconfig or wsl.conf, what is wrong with it, and a careful change."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from wsllama.commands.common import FAILED, Json, refuse
from wsllama.domain.wslconfig import FILES, UNSOUND, Finding, Key, Kind, advise, edit, find, lint, look_alikes, parse

app = typer.Typer(no_args_is_help=True, short_help="Read, check and change .wslconfig and wsl.conf.", rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="FILE", help=".wslconfig of a Windows user, or wsl.conf of a distro.")]
Named = Annotated[
    str | None, typer.Option("--kind", help="wslconfig or wslconf; without it, what is called wsl.conf is a wslconf.")
]


@app.callback()
def _about() -> None:
    """Read, check and change .wslconfig and wsl.conf as WSL itself reads them. Asks no host, and doesn't restart WSL."""


@app.command(
    "read",
    short_help="Say what WSL takes from a file.",
    epilog="Example: wsllama wslconfig read /etc/wsl.conf. Exit codes: 0 read, 2 there is no such file.",
)
def read_command(file: File, kind: Named = None, as_json: Json = False) -> None:
    """Say what WSL takes from a file: every value that it accepts, every warning that it gives."""
    with _refusals(as_json):
        of = _kind(file, kind)
        parsed = parse(_bytes(file, of), of)
    if as_json:
        warnings = [warning._asdict() for warning in parsed.warnings]
        typer.echo(json.dumps({"values": parsed.values, "warnings": warnings, "rc": parsed.rc}))
        return
    for name, value in parsed.values.items():
        typer.echo(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    for warning in parsed.warnings:
        typer.echo(f"line {warning.line}: {warning.kind}", err=True)
    if parsed.rc:
        stops = "WSL stops reading at the last of these lines" if parsed.rc == -1 else "WSL does not start with this file"
        typer.echo(f"{stops}; `wsllama wslconfig lint` says what to do", err=True)


@app.command(
    "lint",
    short_help="Say what is wrong in a file.",
    epilog="Example: wsllama wslconfig lint /mnt/c/Users/ada/.wslconfig. Exit codes: 0 nothing is wrong, 1 something is,"
    " 2 there is no such file.",
)
def lint_command(file: File, kind: Named = None, as_json: Json = False) -> None:
    """Say what keeps WSL from doing what a file says, what a server in WSL can't live with, and what to do about it."""
    with _refusals(as_json):
        of = _kind(file, kind)
        data = _bytes(file, of)
    beside = _beside(file, of) if file.name.lower() == FILES[of] else []
    found, minded = lint(data, of, file.name) + beside, advise(data, of)
    if as_json:
        typer.echo(
            json.dumps({name: [dataclasses.asdict(f) for f in of] for name, of in (("findings", found), ("advice", minded))})
        )
    else:
        for finding in found + minded:
            place = f"{file}:{finding.line}" if finding.line else str(file)
            typer.echo(f"{place}: {finding.id}: {finding.text} {finding.fix}")
    raise typer.Exit(FAILED if found else 0)


@app.command(
    "edit",
    short_help="Change settings in a file.",
    epilog="Example: wsllama wslconfig edit .wslconfig --set wsl2.memory=48GB --set wsl2.vmIdleTimeout=-1 --unset wsl2.swap."
    " Exit codes: 0 the file says so (also when it did before), 2 refused, and nothing was written.",
)
def edit_command(
    file: File,
    wanted: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set it; may be repeated.")] = None,
    unwanted: Annotated[list[str] | None, typer.Option("--unset", metavar="NAME", help="Take it out; may be repeated.")] = None,
    kind: Named = None,
    as_json: Json = False,
) -> None:
    """Change settings in a file, so that WSL reads them, and leave everything else in it as it is. WSL has to be restarted."""
    with _refusals(as_json):
        of = _kind(file, kind)
        before = _bytes(file, of) if os.path.exists(file) else None
        changes = {**dict(_pair(of, text) for text in wanted or []), **dict.fromkeys(unwanted or [])}
        after = edit(before, of, changes)
        if changed := after != (before or b""):
            _write(file, after)
    if as_json:
        typer.echo(json.dumps({"changed": changed, "values": parse(after, of).values}))
    else:
        typer.echo(f"{file}: {'changed' if changed else 'unchanged'}")


@contextmanager
def _refusals(as_json: bool) -> Iterator[None]:
    try:
        yield
    except ValueError as e:
        refuse([str(e)], as_json)


def _pair(kind: Kind, text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"--set {text}: NAME=VALUE is wanted, as in wsl2.memory=48GB")
    key = find(kind, name.strip())
    wanted = _value(key, value) if key else value
    if key and wanted is True and key.name in UNSOUND:
        raise ValueError(f"--set {text}: {UNSOUND[key.name]}")
    return name.strip(), wanted


def _value(key: Key, text: str) -> Any:
    """A value as its type; text that is none is left to be refused."""
    if key.type in ("size", "path", "file", "string") or not text.isascii():
        return text
    meant = key.meaning(text)
    return text if meant.warnings else meant.value


def _kind(file: Path, given: str | None) -> Kind:
    if given == "wslconf" or (given is None and file.name.lower().endswith("wsl.conf")):
        return "wslconf"
    if given not in (None, "wslconfig"):
        raise ValueError(f"--kind {given}: wslconfig or wslconf is wanted")
    return "wslconfig"


def _beside(file: Path, kind: Kind) -> list[Finding]:
    """Names in the file's folder that look like the one that WSL reads."""
    return look_alikes(sorted(path.name for path in file.absolute().parent.glob("*")), kind)


def _bytes(file: Path, kind: Kind) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        there = _beside(file, kind) if isinstance(e, FileNotFoundError) else []
        raise ValueError(" ".join([f"{file} can't be read: {e.strerror}.", *(f"{f.text} {f.fix}" for f in there)])) from None


def _write(file: Path, data: bytes) -> None:
    """Put the bytes in place at once or not at all; what a link points to is written, not the link."""
    target, aside = file.resolve(), None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as out:
            aside = Path(out.name)
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if aside.read_bytes() != data:
            raise OSError(None, "what was written reads back differently")
        aside.chmod(target.stat().st_mode & 0o7777 if target.exists() else 0o644)
        aside.replace(target)
    except OSError as e:
        if aside:
            aside.unlink(missing_ok=True)
        raise ValueError(f"{file} can't be written: {e.strerror}; nothing was changed") from None
