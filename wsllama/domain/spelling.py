"""Paths as Windows spells them, and what they are inside of a distro. Pure; runs on hosts too, so standard library only."""

import re
from collections.abc import Mapping

DRIVE = re.compile(r"([A-Za-z]):[\\/]+(.*)", re.S)
UNC = re.compile(r"[\\/]{2}([^\\/]+)[\\/]+([^\\/]+)[\\/]*(.*)", re.S)
OF_WSL = ("wsl.localhost", "wsl$")


def is_windows(path: str) -> bool:
    r"""Whether a path is one of Windows: C:\models\a.gguf, C:/models/a.gguf, \\server\share\a.gguf."""
    return bool(DRIVE.fullmatch(path)) or (path.startswith("\\\\") and bool(UNC.fullmatch(path)))


def on_windows(path: str) -> bool:
    """Whether a path lies on a drive of Windows, by Windows' spelling or by where WSL mounts drives if nobody says otherwise."""
    return is_windows(path) or re.match(r"/mnt/[a-z]/", path) is not None


def name(path: str) -> str:
    """The file's name in a path of either kind."""
    return re.split(r"[\\/]", path)[-1] if is_windows(path) else path.rpartition("/")[2]


def beside(path: str, other: str) -> str:
    """The path of the file named `other` in the folder of `path`."""
    return path[: len(path) - len(name(path))] + other


def linux(path: str, drives: Mapping[str, str], shares: Mapping[str, str]) -> tuple[str, str]:
    r"""Where a path is inside of the distro, and "" ; or the path and why it can't be read there, one sentence.

    drives: letter -> where it is mounted; shares: \\server\share -> where it is mounted. Paths under wsl.localhost are of the
    distro itself.
    """
    if found := DRIVE.fullmatch(path):
        root = drives.get(found[1].upper())
        if root is None:
            return path, f"{path}: the drive {found[1].upper()}: is not mounted here: mount it, or copy the file to one that is"
        return f"{root.rstrip('/')}/{_slashes(found[2])}", ""
    if not is_windows(path) or not (found := UNC.fullmatch(path)):
        return path, ""
    server, share, rest = found[1], found[2], _slashes(found[3])
    if server.lower() in OF_WSL:
        return f"/{rest}", ""
    share = rf"\\{server}\{share}"
    for known, root in shares.items():
        if known.replace("/", "\\").rstrip("\\").lower() == share.lower():
            return f"{root.rstrip('/')}/{rest}", ""
    return path, f"{path}: the share is not mounted here: run `mount -t drvfs '{share}' /mnt/share` there, or copy the file"


def _slashes(rest: str) -> str:
    return re.sub(r"[\\/]+", "/", rest)
