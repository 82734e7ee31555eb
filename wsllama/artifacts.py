"""Builds that were made on some host, kept on the controller for the others: named by what they were made from.

    CACHE/<build id>.tar.gz   the build, as wsllama/host/artifact.py packs it
    CACHE/<build id>.json     sha256 and size of that, and the build's own record, which has those of every file

CACHE is ${XDG_CACHE_HOME:-~/.cache}/wsllama/artifacts. Those that were used last stay.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from wsllama import index, whole

MOST = 16  # artifacts that are kept; one with CUDA has about half a gigabyte
ABANDONED_S = 24 * 3600  # what a run that was killed has left is removed after that


class ArtifactError(Exception):
    """An artifact can't be kept or isn't what was kept: one sentence."""


@dataclass(frozen=True)
class Artifact:
    """A build in the cache. record: its build.json; size: of the archive, bytes."""

    build_id: str
    path: Path
    sha256: str
    size: int
    record: dict[str, Any]

    @property
    def unpacked(self) -> int:
        """Bytes that the build takes on a host; a link is listed with what it leads to."""
        return sum({of["sha256"]: of["size"] for of in self.record["files"].values()}.values())


def default_cache() -> Path:
    """The folder of this user where builds are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wsllama" / "artifacts"


def known(build_id: str, cache: Path | None = None) -> Artifact | None:
    """What the cache says that it has of a build, by its size only."""
    path = (cache or default_cache()) / f"{build_id}.tar.gz"
    try:
        found = json.loads(path.with_name(f"{build_id}.json").read_bytes())
        artifact = Artifact(build_id, path, found["sha256"], found["size"], found["record"])
        whole = artifact.unpacked and artifact.record["build_id"] == build_id and path.stat().st_size == artifact.size
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return artifact if whole else None


def verified(build_id: str, cache: Path | None = None) -> Artifact | None:
    """The artifact of a build after all its bytes were read and found right, or None when there is none.

    Raises ArtifactError when they are wrong, after it was removed, or when it can't be read.
    """
    artifact = known(build_id, cache)
    if artifact is None:
        return None
    try:
        if (found := index.sha256_of(artifact.path)) == artifact.sha256:
            os.utime(artifact.path)
            return artifact
        artifact.path.unlink()
    except OSError as e:
        raise ArtifactError(f"{artifact.path} can't be used: {e.strerror}") from e
    raise ArtifactError(f"{artifact.path} has sha256 {found} instead of {artifact.sha256}, so it was removed")


def keep(
    build_id: str, bring: Callable[[BinaryIO], dict[str, Any]], *, cache: Path | None = None, needed: Collection[str] = ()
) -> Artifact:
    """Put a build into the cache, which has all of it or nothing.

    bring: writes the archive and returns its "sha256", "size" and "record", verified.
    needed: ids of others that this run needs; they stay, however old they are.
    Raises ArtifactError when the cache can't be written, and what `bring` raises.
    """
    cache = cache or default_cache()
    path = cache / f"{build_id}.tar.gz"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _prune(cache, {build_id, *needed})
        found = whole.write(path, bring)
        manifest = {"build_id": build_id, **{key: found[key] for key in ("sha256", "size", "record")}}
        whole.write(path.with_name(f"{build_id}.json"), lambda out: out.write(json.dumps(manifest, indent=1).encode()))
    except OSError as e:
        raise ArtifactError(f"build {build_id} can't be kept in {cache}: {e.strerror or e}") from e
    return Artifact(build_id, path, found["sha256"], found["size"], found["record"])


def _prune(cache: Path, needed: Collection[str]) -> None:
    """Make room for one more: remove those that were not used for the longest time, and what nobody will finish."""
    for aside in cache.glob(".partial-*"):
        if time.time() - aside.stat().st_mtime > ABANDONED_S:
            aside.unlink(missing_ok=True)
    by_age = sorted(cache.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in by_age[MOST - 1 :]:
        if (build_id := path.name.removesuffix(".tar.gz")) not in needed:
            path.unlink(missing_ok=True)
            path.with_name(f"{build_id}.json").unlink(missing_ok=True)
