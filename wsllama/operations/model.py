"""The model's file on a host: installed whole and verified, never hashed again while nothing moved."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyinfra import host

from wsllama import digest, layout, transfer
from wsllama.facts import probe
from wsllama.operations import bundle
from wsllama.operations.base import follow, resource, send, tell
from wsllama.settings import Settings

# A copy of 100 GB from a slow disk takes hours; what hangs longer than this many seconds is ended.
TIME_LIMIT_S = 12 * 3600


def _on_host(settings: Settings) -> bool:
    """Whether the path is one of the host itself: said so, or the host is this machine."""
    return settings.model.on == "host" or host.connector_cls.__name__ == "LocalConnector"


def _path(settings: Settings) -> str:
    assert settings.model.path is not None  # Settings refuses it
    return settings.model.path


def looks(settings: Settings) -> probe.Looks:
    """What is installed, and the original when it lies on the host."""
    return {"models": {layout.MODELS: None}, **({"originals": {_path(settings): None}} if _on_host(settings) else {})}


def _original(now: Any, settings: Settings) -> dict[str, Any] | None:
    """What tells of the original that it is the same still; None when it isn't there."""
    path = _path(settings)
    if _on_host(settings):
        seen = now["originals"][path]
        return {"on": "host", **seen} if seen else None
    s = os.stat(path)
    return {"on": "controller", "path": os.path.realpath(path), "size": s.st_size, "mtime_ns": s.st_mtime_ns, "inode": s.st_ino}


def installed_file(now: Any, settings: Settings) -> str | None:
    """`folder/name` of the whole installed file that the settings mean, below the folder of models; None when it isn't there.

    With a sha256 that decides; else the stamp must say that it was made of the original as it is now. An original that is
    gone from the host leaves what was installed from it.
    """
    name, wanted = os.path.basename(_path(settings)), settings.model.sha256
    whole = {f: s for f, s in now["models"][layout.MODELS].items() if s["intact"] and f.rsplit("/", 1)[1] == name}
    if wanted:
        return next((f for f, s in whole.items() if s["sha256"] == wanted), None)
    original = _original(now, settings)
    if original is None:
        gone = [f for f, s in whole.items() if s["source"].get("path") == _path(settings)]
        return gone[-1] if len(gone) == 1 else None
    known = None if _on_host(settings) else digest.known(_path(settings))
    return next((f for f, s in whole.items() if s["source"] == original or (known and s["sha256"] == known)), None)


def to_bring(now: Any, settings: Settings) -> tuple[int, str | None]:
    """Bytes that the host has to take, and a sentence when they can't be had."""
    if installed_file(now, settings):
        return 0, None
    original = _original(now, settings)
    if original is None:
        return 0, f"model.path: there is no file {_path(settings)} on the host"
    return int(original["size"]), None


@resource(looks)
def installed(now: Any, settings: Settings) -> Iterator[Any]:
    """The GGUF that the settings name is installed.

    + settings: the host's
    """
    if installed_file(now, settings):
        return
    path, wanted = _path(settings), settings.model.sha256 or bundle.model_sha256(settings)
    tell(f"{os.path.basename(path)}: to be installed")
    if _on_host(settings):
        argument = {"path": path, "sha256": wanted, "root": layout.MODELS}
        key = hashlib.sha256(json.dumps([argument, _original(now, settings)], sort_keys=True).encode()).hexdigest()[:16]
        yield follow("model", argument, key=key, limit_s=TIME_LIMIT_S)
    else:
        yield send(transfer.send_model, Path(path), root=layout.MODELS, sha256=wanted)
