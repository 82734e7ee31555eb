"""A control group of its own for every machine: limits bind inside, and every process of it can be found and ended.

cgroup v1 (also hybrid): the machine's process starts in `<hierarchy>/wsllama-lab/<lab>/<host>` of every hierarchy.
systemd-nspawn mounts the controllers read-only inside; `delegate` mounts memory and devices again, read-write, after
boot. Without that MemoryMax= and DeviceAllow= of units inside are silently ignored.
cgroup v2 only: one group; nspawn gives its payload a writable subtree, so that nothing has to be mounted again. Units
filter devices there with BPF, which nspawn has to allow (`nspawn_options`).
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from lab.tools import LabError, run

PARENT = "wsllama-lab"


def hierarchies() -> list[tuple[Path, tuple[str, ...]]]:
    """Mounted cgroup hierarchies and their mount options; cpuset is left out (v1: a new group there starts empty)."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options = line.split()[:4]
        names = tuple(options.split(","))
        if kind in ("cgroup", "cgroup2") and "cpuset" not in names:
            found.append((Path(where), names))
    return found


def unified() -> bool:
    """True when this machine has cgroup v2 only."""
    return all("memory" not in names for _, names in hierarchies())


def nspawn_options() -> list[str]:
    """Options of systemd-nspawn that limits inside need."""
    return ["--system-call-filter=bpf"] if unified() else []


def groups(lab: str, host: str = "") -> list[Path]:
    """The folders of a machine's groups (or of a whole lab's), one a hierarchy, whether they are there or not."""
    return [where / PARENT / lab / host for where, _ in hierarchies()]


def create(lab: str, host: str, memory_bytes: int | None) -> list[Path]:
    """Make a machine's groups and set its memory limit in bytes. Returns them."""
    made = groups(lab, host)
    for path in made:
        if unified():
            for above in (path.parents[2], path.parents[1], path.parents[0]):
                above.mkdir(exist_ok=True)
                (above / "cgroup.subtree_control").write_text("+memory +pids +cpu")
        path.mkdir(parents=True, exist_ok=True)
    if memory_bytes is not None:
        limits = [p / name for p in made for name in ("memory.limit_in_bytes", "memory.max") if (p / name).exists()]
        if not limits:
            raise LabError("This kernel has no memory controller for control groups: leave memory_bytes out.")
        for path in limits:
            path.write_text(str(memory_bytes))
    return made


def delegate(leader: int) -> None:
    """cgroup v1: let the systemd of a booted machine set memory and device limits. v2: nothing to do."""
    if unified():
        return
    enter = ["nsenter", "-t", str(leader), "-a"]
    for controller in ("memory", "devices"):
        where = f"/sys/fs/cgroup/{controller}"
        run([*enter, "umount", where])
        run([*enter, "mount", "-t", "cgroup", "-o", controller, "cgroup", where])
    run([*enter, "systemctl", "daemon-reexec"])


def processes(lab: str, host: str = "") -> set[int]:
    """Process ids in a lab's or machine's groups, in every hierarchy and at every depth."""
    found: set[int] = set()
    for top in groups(lab, host):
        for path, _, _ in os.walk(top):  # says nothing about folders that go away meanwhile
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in Path(path, "cgroup.procs").read_text().split())
    return found - {0}


def leader(lab: str, host: str) -> int | None:
    """Process id, seen from outside, of a machine's systemd; None when it doesn't run.

    It is the process that is PID 1 one namespace below ours; nspawn's own child has that number before it becomes
    systemd, when it isn't in its root yet.
    """
    for pid in sorted(processes(lab, host)):
        with contextlib.suppress(OSError):
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            if status["NSpid"].split() == [str(pid), "1"] and status["Name"].strip() == "systemd":
                return pid
    return None


def remove(lab: str, host: str = "", timeout: float = 300) -> None:
    """Kill everything in a lab's or machine's groups and remove them; none of it is an error when it is gone already.

    + timeout: seconds until a process that can't be killed is reported

    Raises LabError when processes stay.
    """
    deadline = time.monotonic() + timeout
    while alive := processes(lab, host):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise LabError(f"Processes {sorted(alive)} of lab {lab} can't be killed: look at them with ps.")
        time.sleep(0.02)
    for top in groups(lab, host):
        for path, _, _ in os.walk(top, topdown=False):
            _rmdir(Path(path), deadline)
        for above in (p for p in (top.parent, top.parent.parent) if PARENT in p.parts):
            with contextlib.suppress(OSError):  # other machines or labs are still in it
                above.rmdir()


def _rmdir(path: Path, deadline: float) -> None:
    """Remove one group; the kernel says "busy" for a moment after the last process of it died."""
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise LabError(f"The control group {path} can't be removed: {error.strerror}.") from error
            time.sleep(0.02)
        else:
            return
