"""Whether a host can take the deploy at all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEMO = "to see wsllama on any Debian or Ubuntu machine, run scripts/demo"
# Room that must stay free beside what is written, in bytes: a full root file system stops more than our service.
MARGIN = 500_000_000


def problems(system: Mapping[str, Any], *, platform: str, port: int, port_owner: str | None, own_unit: str) -> list[str]:
    """Every reason why this host can't be provisioned as it is, each one sentence.

    system: facet `system` of the probe; platform: of the settings; port_owner: who listens on `port` now, or None.
    """
    out = []
    if not system["systemd"]:
        out.append(
            "systemd does not run here: put systemd=true below [boot] in /etc/wsl.conf, run `wsl --shutdown` in Windows"
            f" and start the distro again; {DEMO}"
        )
    if platform == "wsl" and not system["wsl"]:
        out.append(
            "this is no WSL machine (kernel release, /run/WSL and /dev/dxg show no trace of it): set platform to linux"
            f" if that is meant; {DEMO}"
        )
    if not system["root"]:
        out.append("the deploy needs root here: log in as root, or set _sudo to True for this host")
    if port_owner and port_owner != own_unit:
        out.append(f"port {port} is taken by {port_owner}: stop that, or set server.port")
    return out


def space(need: Mapping[str, int], free: Mapping[str, int]) -> list[str]:
    """What doesn't fit: bytes to be written below each path against the bytes that are free there."""
    return [
        f"no disk space for {path}: {amount / 1e9:.1f} GB and {MARGIN / 1e9:.1f} GB of room are needed,"
        f" {free[path] / 1e9:.1f} GB are free"
        for path, amount in need.items()
        if amount and amount + MARGIN > free[path]
    ]


def windows_space(need: int, free: int | None) -> list[str]:
    """What doesn't fit on the drive of Windows on which the distro's virtual disk grows: it has less than the guest believes.

    need: bytes to be written in the guest; free: bytes that are free on the drive, None while that isn't known.
    """
    if free is None or not need or need + MARGIN <= free:
        return []
    return [
        f"no disk space on the drive of Windows that holds the distro's disk: {need / 1e9:.1f} GB and {MARGIN / 1e9:.1f} GB of"
        f" room are needed, {free / 1e9:.1f} GB are free; a full one makes the distro's disk read-only"
    ]
