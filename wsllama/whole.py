"""Files of this machine that are written whole or not at all."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def write(path: Path, fill: Callable[[io.BufferedWriter], T]) -> T:
    """Write a file aside and rename it, so that its name never stands for half of it.

    fill: writes the bytes; what it returns is returned. Raises OSError.
    """
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with open(descriptor, "wb") as out:
            result = fill(out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
    return result


def text(path: Path, content: str) -> None:
    """Write a text file that others may read, in place of the one that is there. Raises OSError."""

    def fill(out: io.BufferedWriter) -> None:
        os.fchmod(out.fileno(), 0o644)
        out.write(content.encode())

    write(path, fill)
