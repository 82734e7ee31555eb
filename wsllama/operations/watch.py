"""The GPU watch: a service of ours beside llama-server, NVIDIA's module for its library, and a link for Prometheus."""

from __future__ import annotations

import base64
import importlib.util
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from wsllama import layout, program
from wsllama.facts import probe
from wsllama.operations.base import Refused, on_host, resource, tell
from wsllama.operations.files import File, look_at, render
from wsllama.operations.watchdog import own_service
from wsllama.settings import Settings

TARGET = f"{layout.WATCH_FOLDER}/watch.prom"


@cache
def nvml() -> str:
    """NVIDIA's module as it is installed here, which requirements.lock vouches for: one file that needs nothing but Python."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("nvidia-ml-py is not installed on this machine, and hosts get it from here: run scripts/setup")
    return Path(spec.origin).read_text(encoding="utf-8")


def files_of(settings: Settings) -> list[File]:
    """Its program, with what it is told, NVIDIA's module, and its unit; without texts where they aren't wanted."""
    if not settings.watched:
        return [File(path, "", secret=True) for path in (layout.WATCH, layout.NVML, layout.WATCH_UNIT_FILE)]
    limits = settings.watch.model_dump(exclude={"enabled", "interval_s", "textfile"})
    argument = {
        "root": layout.ROOT,
        "key_file": layout.API_KEY,
        "folder": layout.WATCH_FOLDER,
        "nvml": layout.NVML,
        "interval_s": settings.watch.interval_s,
        "limits": limits,
    }
    unit = render(
        "llama-watch.service.j2",
        server=layout.UNIT,
        user=layout.USER,
        program=layout.WATCH,
        folder=PurePosixPath(layout.WATCH_FOLDER).name,
        wsl=settings.platform == "wsl",
    )
    # "secret": thousands of lines that nobody here wrote would hide all else in a --diff
    whole = program.call("watch", argument)
    return [
        File(layout.WATCH, whole, secret=True),
        File(layout.NVML, nvml(), secret=True),
        File(layout.WATCH_UNIT_FILE, unit),
    ]


def looks(settings: Settings) -> probe.Looks:
    """Files and unit, and where the link is and was."""
    link = {"files": {settings.watch.textfile: None}} if settings.watch.textfile else {}
    own: probe.Looks = {"units": {layout.WATCH_UNIT: None}, "stamps": {layout.WATCH_TEXTFILE: None}}
    return probe.together(look_at(files_of(settings)), own, link)


@resource(looks)
def watch(now: Any, settings: Settings) -> Iterator[Any]:
    """There, running and started at boot; or nothing of it, where it isn't wanted.

    + settings: of the host
    """
    # As a whole before the first command: a look ahead, which gets no further, names all that differs.
    yield from [
        *own_service(now, layout.WATCH_UNIT, files_of(settings), settings.watched),
        *_linked(now, settings.watch.textfile if settings.watched else None),
    ]


def _linked(now: Any, path: str | None) -> Iterator[Any]:
    """A link at the path, which a service that may write nothing else could not make; and none where it was before."""
    before = now["stamps"][layout.WATCH_TEXTFILE]
    there = now["files"][path] if path else None
    if there and (there["kind"], there.get("target")) != ("link", TARGET):
        raise Refused(f"watch.textfile: what is at {path} is not of ours: give another path, or move it away")
    if before and before != path:
        tell(f"not wanted: {before}", before, "there", "absent")
        gone = [before] if path else [before, layout.WATCH_TEXTFILE]
        yield on_host("apply", [{"path": place, "kind": "absent"} for place in gone], before)
    if path and (before != path or not there):
        tell(f"{path}: a link to {TARGET}", path, "a link" if there else "absent", f"a link to {TARGET}")
        data = base64.b64encode(f"{path}\n".encode()).decode()
        record = {"path": layout.WATCH_TEXTFILE, "kind": "file", "mode": "644", "user": "root", "group": "root", "data": data}
        yield on_host("apply", [record], layout.WATCH_TEXTFILE)  # before the link, so that none is forgotten
        yield f"mkdir -p {shlex.quote(str(PurePosixPath(path).parent))} && ln -sfn {TARGET} {shlex.quote(path)}"
