"""Runs on the host: makes directories, files and links as wanted; each file atomically (written aside, fsync, rename)."""

import base64
import grp
import os
import pwd
import secrets
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

Wanted = Mapping[str, Any]


def own(path: str, wanted: Wanted) -> None:
    os.chown(path, pwd.getpwnam(wanted["user"]).pw_uid, grp.getgrnam(wanted["group"]).gr_gid)
    os.chmod(path, int(wanted["mode"], 8))


def gone(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def directory(path: str, wanted: Wanted) -> None:
    os.makedirs(path, exist_ok=True)
    own(path, wanted)


def write(path: str, wanted: Wanted) -> None:
    aside = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{os.getpid()}.tmp"
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(base64.b64decode(wanted["data"]))
            f.flush()
            os.fsync(f.fileno())
        own(aside, wanted)
        if os.path.isdir(path) and not os.path.islink(path):
            gone(path)
        os.replace(aside, path)
    except BaseException:
        gone(aside)
        raise
    sync(os.path.dirname(path))


def main(wants: Iterable[Wanted]) -> None:
    for wanted in wants:
        path = wanted["path"]
        try:
            if wanted["kind"] == "absent":
                gone(path)
            elif wanted["kind"] == "directory":
                directory(path, wanted)
            elif wanted.get("secret"):
                write(path, dict(wanted, data=base64.b64encode(secrets.token_urlsafe(32).encode() + b"\n")))
            elif "data" in wanted:
                write(path, wanted)
            else:
                own(path, wanted)
        except OSError as e:
            raise SystemExit(f"{path} can't be written: {e.strerror}") from None
