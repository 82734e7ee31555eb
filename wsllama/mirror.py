"""Serves models of this machine to a fleet, over HTTP with ranges: each was downloaded once and held against the lock.

    CACHE/   laid out as /var/lib/wsllama/models on a host, by the same program (wsllama/host/model.py)

CACHE is ${XDG_CACHE_HOME:-~/.cache}/wsllama/models. Files and ranges are WhiteNoise's affair, connections gevent's.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from wsllama import digest, index, lock
from wsllama.host import fetch
from wsllama.host.probe import models

Say = Callable[[str], None]


class MirrorError(Exception):
    """A model can't be served: one sentence."""


def bring(name: str, pin: lock.ModelPin, *, mmproj: bool, token: str | None = None, endpoint: str | None = None,
          cache: Path | None = None, allow_unofficial: bool = False) -> list[Path]:  # fmt: skip
    """The files of a pinned model on this machine, downloaded from the Hub where they aren't there yet.

    mmproj: with its projector, where the lock has one; endpoint: of the Hub, None for that of the environment. Raises
    MirrorError.
    """
    if refusal := pin.refusal(name, with_mmproj=mmproj):
        raise MirrorError(refusal)
    root = cache or index.cache_of("models")

    def entry(file: lock.ModelFile) -> dict[str, Any]:
        size = None if file.bytes_from == "estimated" else file.bytes
        return {"name": file.name, "size": size, "sha256": file.sha256, "place": file.path}

    projector = pin.mmproj if mmproj else None
    files = [*pin.files, *((projector,) if projector else ())]
    if absent := [file for file in files if str(file.sha256) not in _held(root)]:
        where = {"repo": pin.repo, "revision": pin.revision, "endpoint": endpoint, "token": token, "site": None}
        argument: dict[str, Any] = {"root": str(root), "files": [entry(file) for file in pin.files], "hub": where}
        argument["mmproj"] = entry(projector) if projector else None
        argument["allow_unofficial"] = allow_unofficial
        root.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # its lines of progress; ours has what was asked for
                fetch.bring(argument)
        except SystemExit as e:
            raise MirrorError(f"{absent[0].name}: {e.code}") from None
        except OSError as e:
            raise MirrorError(f"{e.filename or root}: {e.strerror}") from None
    held = _held(root)
    found = {str(file.sha256): held[str(file.sha256)] for file in files}
    for sha256, path in found.items():
        digest.remember(path, path.stat(), sha256)
    return list(found.values())


def _held(root: Path) -> dict[str, Path]:
    """sha256 -> file, of those that are as they were verified."""
    found = models([str(root)])[str(root)]
    return {stamp["sha256"]: root / place for place, stamp in found.items() if stamp["intact"]}


def reached(address: str) -> str:
    """The address by which other machines reach what listens on `address`: for all of them, that of the way to the world."""
    if address not in ("0.0.0.0", "::"):
        return address
    family, there = (socket.AF_INET6, "2001:db8::1") if ":" in address else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((there, 9))  # of a datagram socket: nothing is sent, only a way is chosen
            return str(asked.getsockname()[0])
        except OSError:  # no way leads out
            return socket.gethostname()


def verified(paths: Iterable[Path], held: Mapping[str, lock.ModelPin], say: Say) -> list[Path]:
    """The same paths, after each was held against the sums of the lock; read once, and not again while they are the same.

    Raises MirrorError.
    """
    files = [file for pin in held.values() for file in (*pin.files, *((pin.mmproj,) if pin.mmproj else ()))]
    sums = {str(file.sha256): file.name for file in files}
    out = []
    for path in paths:
        say(f"{path}: looked at")
        try:
            found = digest.sha256_of(path)
        except (OSError, RuntimeError) as e:
            raise MirrorError(f"{path} can't be read: {getattr(e, 'strerror', None) or e}") from e
        if found not in sums:
            raise MirrorError(f"{path} has sha256 {found}, which no model of the lock has: add it with `wsllama lock add`")
        if sums[found] != path.name:
            raise MirrorError(f"{path} is {sums[found]} of the lock: give it back that name")
        out.append(path)
    return out


def server(paths: Iterable[Path], address: str, port: int) -> Any:
    """A server of these files by their names, which listens; `serve_forever` serves until Ctrl-C or SIGTERM.

    port: 0 for any. Raises OSError.
    """
    from gevent import signal_handler
    from gevent.pywsgi import WSGIServer
    from whitenoise import WhiteNoise  # type: ignore[import-untyped]

    def absent(environ: Any, start_response: Any) -> list[bytes]:
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"the mirror has no such file\n"]

    files = WhiteNoise(absent, max_age=0)
    for path in paths:
        files.add_file_to_dictionary(f"/{path.name}", str(path))
    found = WSGIServer((address, port), files, log=None)
    found.start()
    for end in (signal.SIGINT, signal.SIGTERM):
        signal_handler(end, found.stop)
    return found
