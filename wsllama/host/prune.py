"""Runs on the host: removes folders of models that nothing needs, and what was left of copies and downloads."""

import fcntl
import os
import re
import shutil
from typing import Any

from wsllama.host import probe


def main(argument: dict[str, Any]) -> None:
    """Remove `folders` below `models`, but for those that `current`, `last-good` or the newest release below `root` name now.

    incoming: names of unfinished files that go, unless a run has begun to work on them.
    """
    root, models = argument["root"], argument["models"]
    try:
        with open(os.path.join(root, ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # no run switches meanwhile
            needed = {
                os.path.realpath(os.path.join(root, link, name))
                for link in ("current", "last-good", *newest(os.path.join(root, "releases")))
                for name in ("model", "mmproj")
            }
            for folder in argument["folders"]:
                path = os.path.realpath(os.path.join(models, folder))
                # another run may have removed it since this one looked
                if path not in needed and os.path.dirname(path) == os.path.realpath(models) and os.path.isdir(path):
                    shutil.rmtree(path)
        for name in argument["incoming"]:
            remove_unfinished(os.path.join(models, ".incoming", os.path.basename(name)))
    except OSError as e:
        raise SystemExit(f"{e.filename or models}: {e.strerror or e}; mend that and run again") from None


def newest(releases: str) -> list[str]:
    """The release that another run may be about to switch to, below the root: the last one, if it was never accepted."""
    names = os.listdir(releases) if os.path.isdir(releases) else []
    numbers = sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]*", name))
    coming = [n for n in numbers[-1:] if not os.path.exists(os.path.join(releases, str(n), "baseline.json"))]
    return [f"releases/{number}" for number in coming]


def remove_unfinished(path: str) -> None:
    """Remove a file that nobody writes to."""
    try:
        with open(probe.lock_of(path), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    except (BlockingIOError, FileNotFoundError):  # a run is at it, or has just renamed it
        return
