"""Runs on the host: makes the host's own venv of an archive of packages that the controller sent.

/opt/wsllama/venv/<key>/        made by the distro's own Python; nothing of the system is changed
/opt/wsllama/venv/<key>/whole   there when it is whole: its Python's version
"""

import fcntl
import os
import platform
import shutil
import subprocess
import tarfile
from typing import Any

KEPT = 2  # other venvs; one has about 20 MB


def main(argument: dict[str, Any]) -> None:
    """Make it, unless it is there, and remove old ones and the archive.

    - root: folder of the venvs; key: name of this one; python: its version, like 3.11
    - archive: path of the tar of its packages

    Raises SystemExit with a sentence.
    """
    root, key = argument["root"], argument["key"]
    try:
        os.makedirs(root, mode=0o755, exist_ok=True)
        with open(os.path.join(root, ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            folder = os.path.join(root, key)
            if not os.path.exists(os.path.join(folder, "whole")):
                make(folder, argument)
            remove_old(root, key)
        if os.path.exists(argument["archive"]):
            os.unlink(argument["archive"])
    except OSError as e:
        raise SystemExit(f"{e.filename or root}: {e.strerror or e}: mend that and run again") from None


def remove_old(root: str, key: str) -> None:
    """Remove all but this one and the newest others, which runs with another requirements.lock may use just now."""
    made = {other: made_at(os.path.join(root, other)) for other in os.listdir(root) if other not in (key, ".lock")}
    newest = sorted((other for other in made if made[other]), key=lambda other: -made[other])
    for other in set(made) - set(newest[:KEPT]):
        shutil.rmtree(os.path.join(root, other))


def made_at(folder: str) -> int:
    """When a venv was made, in nanoseconds; 0 for what isn't whole, which a run that was killed has left."""
    try:
        return os.stat(os.path.join(folder, "whole")).st_mtime_ns
    except FileNotFoundError:
        return 0


def make(folder: str, argument: dict[str, Any]) -> None:
    here = ".".join(platform.python_version_tuple()[:2])
    if here != argument["python"]:
        raise SystemExit(f"python3 is {here} now, and was {argument['python']} when this run looked: run again")
    shutil.rmtree(folder, ignore_errors=True)
    made = subprocess.run(
        ["/usr/bin/python3", "-I", "-m", "venv", "--without-pip", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if made.returncode:
        raise SystemExit(f"a venv can't be made with the distro's python3: {' '.join(made.stdout.split())[-300:]}")
    with tarfile.open(argument["archive"]) as tar:
        tar.extractall(site(folder, here))
    aside = os.path.join(folder, ".whole")
    with open(aside, "w", encoding="utf-8") as file:
        file.write(platform.python_version() + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, os.path.join(folder, "whole"))


def site(folder: str, python: str) -> str:
    """Where a venv's packages are."""
    return os.path.join(folder, "lib", f"python{python}", "site-packages")
