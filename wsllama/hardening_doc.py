"""Writes docs/hardening.md from the unit's template and what is said here: `python -m wsllama.hardening_doc`.

Tests keep the two equal, let a real llama-server serve under every directive that is kept, and try the others on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from wsllama import layout
from wsllama.operations.files import render

PAGE = Path(__file__).resolve().parents[1] / "docs" / "hardening.md"
EXPOSURE = 1.5
"""What `systemd-analyze security` may say at most of the unit, from 0 (closed) to 10."""


class Kept(NamedTuple):
    gives: str
    costs: str = "nothing that was seen"


# Name of a directive -> why it stands in templates/llama-server.service.j2.
KEPT = {
    "LogRateLimitIntervalSec": Kept("with the burst: no line of a start is dropped, by which acceptance and doctor judge"),
    "LogRateLimitBurst": Kept("50000 lines in 30 s instead of journald's 10000", "a server that loops in errors writes more"),
    "OOMScoreAdjust": Kept(
        "where memory runs out, the server goes before ssh, WSL's init or a shell, and comes back by itself",
        "it also goes before a compiler that took the memory",
    ),
    "OOMPolicy": Kept("all of it is ended at once, whatever the distro's default is"),
    "LimitCORE": Kept("a crash leaves no file as large as the model, with prompts in it", "no core dump to look at"),
    "MemoryMax": Kept(
        "more than the plan needs, a tenth of it and 1 GiB ends the server by name (`oom-kill`) before the whole guest swaps",
        "a plan that is wrong by more needs server.memory_max",
    ),
    "MemorySwapMax": Kept(
        "no experts in swap, which would answer a hundred times slower without an error", "idle, it keeps its RAM"
    ),
    "LimitMEMLOCK": Kept("only with load_mode mlock, which needs it"),
    "CapabilityBoundingSet": Kept("root's powers are out of reach for good"),
    "NoNewPrivileges": Kept("no setuid program helps"),
    "DevicePolicy": Kept("no device but null, zero, random and the like"),
    "DeviceAllow": Kept("on WSL: /dev/dxg, which is the GPU; there are no /dev/nvidia* in WSL"),
    "PrivateTmp": Kept("a /tmp of its own", "files for it can't be handed over there"),
    "PrivateUsers": Kept("other users' files and processes belong to nobody"),
    "ProtectClock": Kept("the clock can't be set"),
    "ProtectControlGroups": Kept("its limits can't be lifted from inside"),
    "ProtectHome": Kept("/home and /root are empty", "no model or template below /home by extra_args"),
    "ProtectHostname": Kept("the name can't be changed"),
    "ProtectKernelLogs": Kept("the kernel's log can't be read"),
    "ProtectKernelModules": Kept("no module can be loaded"),
    "ProtectKernelTunables": Kept("/proc/sys and /sys are read-only"),
    "ProtectProc": Kept("other users' processes and their arguments are hidden"),
    "ProtectSystem": Kept("every file system is read-only", "no --slot-save-path but in /tmp"),
    "RemoveIPC": Kept("shared memory ends with it"),
    "RestrictAddressFamilies": Kept("no netlink, packet and vsock sockets; the latter is how WSL talks to Windows"),
    "RestrictNamespaces": Kept("no containers of its own, through which kernels were broken into"),
    "RestrictRealtime": Kept("it can't take a processor for itself"),
    "RestrictSUIDSGID": Kept("no setuid file can be made"),
    "LockPersonality": Kept("no other execution domain"),
    "SystemCallArchitectures": Kept("no 32-bit system calls"),
    "SystemCallFilter": Kept("of system calls, those of services", "mount, reboot, debug, module, swap and the like say EPERM"),
    "SystemCallErrorNumber": Kept("a refused call is an error that is logged, not a kill"),
    "UMask": Kept("what it writes is its own"),
    "InaccessiblePaths": Kept(
        "on WSL: Windows' drives, which come with the Windows user's rights, and the sockets through which programs of Windows"
        " are started",
        "extra_args can't name a file below /mnt",
    ),
    "IPAddressAllow": Kept("on loopback: with the next line, no packet to or from another machine"),
    "IPAddressDeny": Kept("on loopback: not even an answer leaves this machine", "none for a server that others shall reach"),
}

Outcome = Literal["serves", "does not start", "is not reached"]


class Tried(NamedTuple):
    lines: str
    outcome: Outcome
    why: str


# What was tried on a real llama-server (CPU, Debian 12) and left out.
TRIED = (
    Tried(
        "PrivateDevices=yes",
        "serves",
        "without the GPU: it hides /dev/dxg, and DeviceAllow= does not bring it back (WSL 2.7: no combination works)",
    ),
    Tried(
        "MemoryDenyWriteExecute=yes",
        "serves",
        "CUDA compiles kernels at run time for a card that the build has none for (where it has, it is said to load)",
    ),
    Tried("ProcSubset=pid", "serves", "without /proc/meminfo, by which it and CUDA know the free memory"),
    Tried(
        "SystemCallFilter=~@resources",
        "serves",
        "0.2 less exposure, but no --prio, --cpu-mask or --numa, and CUDA binds memory to nodes; nixpkgs took it back, too",
    ),
    Tried(
        "RestrictAddressFamilies=\nRestrictAddressFamilies=AF_INET AF_INET6",
        "serves",
        "without local sockets; nobody has said that CUDA does without them, and nixpkgs' unit for GPUs has them",
    ),
    Tried(
        "NoExecPaths=/\nExecPaths=/opt/wsllama/builds /usr/lib /usr/lib64 /lib /lib64",
        "serves",
        "no shell could be started; CUDA's libraries are in /usr/lib/wsl, mounts of their own: to be tried on WSL first",
    ),
    Tried(
        "DynamicUser=yes", "serves", "as the user that is there, so it gives nothing; models and key belong to a group that stays"
    ),
    Tried("DevicePolicy=strict", "does not start", "not even /dev/null is left for its standard input"),
    Tried("PrivateNetwork=yes", "is not reached", "loopback of its own; IPAddressDeny= gives what it is wanted for"),
)

HEAD = f"""\
# Hardening of the service

Generated from `templates/llama-server.service.j2` and `wsllama/hardening_doc.py` by `.venv/bin/python -m
wsllama.hardening_doc`; do not edit it by hand.

`systemd-analyze security {layout.UNIT}` says at most {EXPOSURE} for every form of the unit (0 is closed, 10 open; 1.2 on
loopback with systemd 252); a test asserts that on a real host. What is left: it listens on the network, sees the GPU's
device, writes executable memory (CUDA) and reads /proc/meminfo. Every kept directive runs under a real llama-server in the
tests, and what was left out is tried on one (`scripts/test --full`). What only a WSL machine shows: that the GPU is seen
under them (`wsllama verify`; acceptance fails without).

Your own directives go into a drop-in, which deploys leave alone: `systemctl edit {layout.UNIT}`.

"""
MORE = f"""
## The GPU

WSL's GPU is `/dev/dxg` (`crw-rw-rw-`), so the user needs no group. `DevicePolicy=closed` with `DeviceAllow=/dev/dxg rw`
leaves exactly that. CUDA's libraries are WSL's own in `/usr/lib/wsl/lib`: `LD_LIBRARY_PATH` in the release's `env` names that
folder, because systemd starts services without the path that `wsl.exe` gives to shells. A `stubs` folder there is refused by
the build.

## Start, hang, crash

- `Type=exec`: started is what runs; llama-server says nothing to systemd, so loading is no part of systemd's start and
  `TimeoutStartSec` doesn't end it. Acceptance waits, 300 s and one for each 50 MB of the model
  (`acceptance.start_timeout_s`).
- It dies: `Restart=on-failure` after 5 s, at most 5 starts in 10 minutes.
- It hangs: `{layout.WATCHDOG_UNIT}` asks every 30 s. `/health` alone proves nothing (it says 200 while completions hang,
  llama.cpp#13085), so `/metrics` is asked, too: it goes through the main loop and counts what was computed. Restarted is a
  server of which, for `server.watchdog_timeout_s`, /health or the main loop gave no answer, or which computed nothing while
  requests wait. A server that loads (503), one that works on a long prompt, one that is being tried by a deploy and a stopped
  one are left alone. After a restart the next one needs something computed in between; otherwise it is left to you, and the
  journal says so. Each look starts a new window for the averages in /metrics: make rates of its counters.
- It comes up without the GPU at boot, before Windows' driver is there (llama.cpp#27923): restarted once a boot, and the
  journal says so.

`journalctl -u {layout.WATCHDOG_UNIT}` has what it did. It runs as root without any capability, because systemd takes a
restart from root only. `{layout.WATCH_UNIT}` (docs/fleet.md, `wsllama watch`) asks nothing of systemd: it runs as the
server's user, with the server's devices, one folder in /run to write to, and 128 MiB at most.
"""


def directives() -> list[str]:
    """Names of the sandbox's directives and limits, in the template's order, of all forms of the unit together."""
    forms = {"wsl": True, "loopback": True, "lock_memory": True, "memory_max": "1G"}
    text = render("llama-server.service.j2", current=layout.CURRENT, unit=layout.UNIT, user=layout.USER, **forms)
    after = text.split("TimeoutStopSec=", 1)[1]
    return list(dict.fromkeys(re.findall(r"^(\w+)=", after.split("[Install]")[0], re.M)))


def page() -> str:
    """The whole page, as it has to stand in docs/hardening.md."""
    return HEAD + "".join(_parts()) + MORE


def _parts() -> Iterator[str]:
    yield "## Kept\n\n| directive | gives | costs |\n|---|---|---|\n"
    yield from (f"| `{name}=` | {KEPT[name].gives} | {KEPT[name].costs} |\n" for name in directives())
    yield "\n## Tried and left out\n\n| directive | the server | why |\n|---|---|---|\n"
    for tried in TRIED:
        lines = " ".join(f"`{line}`" for line in tried.lines.splitlines() if not line.endswith("="))
        yield f"| {lines} | {tried.outcome} | {tried.why} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} written")
