"""`wsllama bootstrap`: bootstrap.ps1 for other settings than the one in the project's folder has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wsllama import whole
from wsllama.commands.common import ROOT, refuse
from wsllama.domain.bootstrap import IMAGES, Settings, render

TEMPLATES = ROOT / "templates" / "bootstrap"
EPILOG = (
    "Example: wsllama bootstrap --out /mnt/c/Users/ada/bootstrap.ps1 --distro 22.04 --location 'D:\\wsl\\llama'."
    " Exit codes: 0 written, 2 refused, and nothing was written."
)
_DEFAULT = Settings()


def bootstrap(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write it.")],
    distro: Annotated[str, typer.Option(metavar="RELEASE", help=f"Ubuntu's release: {', '.join(IMAGES)}.")] = _DEFAULT.distro,
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the distro in WSL, in ASCII.")] = _DEFAULT.name,
    user: Annotated[str, typer.Option(metavar="NAME", help="Who is made in the distro, and owns the project.")] = _DEFAULT.user,
    location: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Windows folder of the virtual disk; else below %LOCALAPPDATA%.")
    ] = None,
    git_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Clone the project from here; else the script's folder is copied.")
    ] = None,
    mirrored: Annotated[bool, typer.Option("--mirrored", help="Refuse a Windows without mirrored networking.")] = False,
) -> None:
    """Write bootstrap.ps1, which takes a Windows machine from nothing to a distro with this project in it."""
    try:
        text = script(Settings(distro, name, user, location, git_url, mirrored))
        whole.text(out, text)
    except ValueError as e:
        refuse([str(e)])
    except OSError as e:
        refuse([f"{out} can't be written: {e.strerror}; nothing was changed"])
    typer.echo(f"{out}: run it on Windows with powershell -NoProfile -ExecutionPolicy Bypass -File {out.name} -WhatIf")


def script(settings: Settings) -> str:
    """bootstrap.ps1 for these settings, of the project's templates."""
    return render((TEMPLATES / "bootstrap.ps1").read_text("ascii"), (TEMPLATES / "inside.sh").read_text("ascii"), settings)
