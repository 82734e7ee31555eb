"""bootstrap.ps1: what a Windows machine needs before there is a distro, as data that the script carries along. Pure.

The script is rendered from templates/bootstrap: its code is the same whatever the settings, and they travel in it as one JSON
document. What another module rules (drivers for CUDA) is asked there, so that the script can't say something else.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NamedTuple

from wsllama.domain import toolkit


class Image(NamedTuple):
    url: str
    sha256: str


# Microsoft's list of distributions, microsoft/WSL distributions/DistributionInfo.json of 2026-08-06. A point release's address
# is gone when the next one is out (microsoft/WSL issue 13358).
IMAGES = {
    "22.04": Image(
        "https://releases.ubuntu.com/jammy/ubuntu-22.04.5-wsl-amd64.wsl",
        "4499c4fe257f2fc83145b429ce211a0a43fd590e70d6261ede616210947d9f8f",
    ),
    "24.04": Image(
        "https://releases.ubuntu.com/24.04.4/ubuntu-24.04.4-wsl-amd64.wsl",
        "9b2f7730dc68227dd04a9f3e5eab86ad85caf556b8606ad94f1f29ff5c4fd3f5",
    ),
    "26.04": Image(
        "https://releases.ubuntu.com/26.04/ubuntu-26.04-wsl-amd64.wsl",
        "96c7f5fb28a7fe28245331f9bfbe4375f18dd29a4850116ad3c4f60f6700c55c",
    ),
}

FEATURES = ("Microsoft-Windows-Subsystem-Linux", "VirtualMachinePlatform")
WINDOWS_BUILD = 19041  # of WSL 2; Microsoft's documentation of wsl --install
WINDOWS_BUILD_MIRRORED = 22621  # 22H2 of Windows 11; Microsoft's documentation of networkingMode
WSL_FLOOR = "2.4.4"  # the first that takes .wsl files; Microsoft's documentation of custom distributions
WSL_IDLE = "2.5.8"  # the first release with general.instanceIdleTimeout, which keeps a distro alive
FREE_BYTES = 16 << 30  # the distro's disk with compiler, toolkit and build
# What the deploy sets in .wslconfig when nobody asks for something else.
WSLCONFIG = {"general.instanceIdleTimeout": "-1", "wsl2.vmIdleTimeout": "-1", "experimental.autoMemoryReclaim": "disabled"}

# Programs get it as an argument, which anybody on the machine may read: no password, and in https no token before an @.
_GIT_URL = r"^(https://(?![^/]*@)|ssh://(?![^/@]*:[^/]*@))[\x21\x23-\x7e]*[\x21\x23-\x5b\x5d-\x7e]$"
_PARAMETERS, _INSIDE = "@PARAMETERS@", "@INSIDE@"


@dataclass(frozen=True)
class Settings:
    """What can be chosen. distro: Ubuntu's release. name: of the distro in WSL. user: who is made in it, and owns the project.
    location: Windows folder of its virtual disk; None: below %LOCALAPPDATA%. git_url: where the project is cloned from; None:
    the folder of the script is copied. mirrored: refuse a Windows that has no mirrored networking. Raises ValueError with one
    sentence for each value that can't be."""

    distro: str = "24.04"
    name: str = "wsllama"
    user: str = "wsllama"
    location: str | None = None
    git_url: str | None = None
    mirrored: bool = False

    def __post_init__(self) -> None:
        wrong = []
        if self.distro not in IMAGES:
            wrong.append(f"distro {self.distro!r} is none of {', '.join(IMAGES)}")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.name):  # microsoft/WSL issue 14039
            wrong.append(f"name {self.name!r}: WSL takes ASCII letters, digits, dot, underscore and hyphen, 64 at most")
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", self.user) or self.user == "root":
            wrong.append(f"user {self.user!r}: a small letter, then small letters, digits, underscore, hyphen; not root")
        if self.location is not None and not _folder(self.location):
            wrong.append(f"location {self.location!r} is no folder on a drive of Windows, as C:\\wsl\\wsllama is")
        if self.git_url is not None and not re.fullmatch(_GIT_URL, self.git_url):
            like = "https://... or ssh://..., in ASCII without quotes, a password or a token"
            wrong.append(f"git-url {self.git_url!r} has to look like {like}")
        if wrong:
            raise ValueError("; ".join(wrong))


def render(template: str, inside: str, settings: Settings) -> str:
    """bootstrap.ps1 for these settings.

    template: templates/bootstrap/bootstrap.ps1; inside: inside.sh beside it, which is carried out in the distro. Both are text
    in ASCII with LF, and so is what is returned: git gives every checkout LF here, and PowerShell takes it as well as CR LF.
    """
    for mark in (_PARAMETERS, _INSIDE):
        assert template.count(mark) == 1, mark
    # The two stand in single-quoted here-strings, which end at '@ at the start of a line and nowhere else.
    assert not re.search(r"^'@", inside, re.M)
    return template.replace(_INSIDE, inside.rstrip("\n")).replace(_PARAMETERS, _json(parameters(settings)))


def parameters(settings: Settings) -> dict[str, object]:
    """What the script is given."""
    return {
        "distro": settings.distro,
        "name": settings.name,
        "user": settings.user,
        "location": settings.location or "",
        "git_url": settings.git_url or "",
        "git_url_pattern": _GIT_URL,
        "mirrored": settings.mirrored,
        "image": IMAGES[settings.distro]._asdict(),
        "features": FEATURES,
        "windows_build": WINDOWS_BUILD,
        "windows_build_mirrored": WINDOWS_BUILD_MIRRORED,
        "wsl_floor": WSL_FLOOR,
        "wsl_idle": WSL_IDLE,
        "driver_floor": driver_floor(settings.distro),
        "driver_cuda13": _number(toolkit.DRIVER_FLOOR[13]),
        "free_bytes": FREE_BYTES,
        "wslconfig": WSLCONFIG,
    }


def driver_floor(distro: str) -> str:
    """Oldest Windows driver with which some CUDA compiles for this Ubuntu, NNN.NN."""
    numbers = [_number(floor) for floor in sorted(toolkit.DRIVER_FLOOR.values())]
    return next(number for number in numbers if toolkit.choose(f"ubuntu-{distro}", number, ["8.9"]).ok)


def _number(driver: tuple[int, int]) -> str:
    return f"{driver[0]}.{driver[1]:02d}"


def _json(values: dict[str, object]) -> str:
    """JSON in ASCII, without the quote of the here-string that it is put into."""
    return json.dumps(values, indent=2).replace("'", "\\u0027")


def _folder(path: str) -> bool:
    """Whether it is an absolute folder below a drive that Windows and a program's argument can hold."""
    return bool(re.fullmatch(r'[A-Za-z]:(\\[^\\/:*?"<>|\x00-\x1f]*[^\\/:*?"<>|\x00-\x1f .])+\\?', path))
