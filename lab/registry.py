"""What labs there are, who owns them, and how one is removed whole.

    /var/lib/wsllama-lab
    ├── lock                 held while a lab is registered or removed
    ├── ip_forward.json      what it was before a lab turned it on; gone when the last lab is gone
    └── <id>/
        ├── lab.json         the record: written before anything else is made
        ├── key, key.pub, known_hosts, inventory.py
        └── hosts/<name>/    upper, work (overlay), root (where it is mounted), console.log

A lab of the context manager belongs to a process (its id and its start time, so that a reused id isn't taken for it);
one of `up` belongs to the user until `down`. After a restart of this machine every lab is dead.
"""

import contextlib
import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lab import base, cgroup, network
from lab.tools import LabError, run, say, write

STATE = Path("/var/lib/wsllama-lab")
LOCK = STATE / "lock"  # of this machine: labs with a state of their own choose among the same subnets


@dataclass
class Record:
    """A lab as it is kept on disk."""

    id: str
    name: str
    suite: str
    base: str  # folders of the image with colons between, the uppermost first, as overlayfs takes them
    subnet: str
    internet: bool
    memory_bytes: int | None
    dxg: bool
    binds: dict[str, str]
    owner_pid: int
    owner_start: str
    boot_id: str
    keep: bool = False
    hosts: dict[str, str] = field(default_factory=dict)  # name -> address

    @property
    def folder(self) -> Path:
        return STATE / self.id

    @property
    def alive(self) -> bool:
        """True when its owner lives, or when it belongs to the user and this machine wasn't restarted since."""
        if self.boot_id != boot_id():
            return False
        return self.keep or start_time(self.owner_pid) == self.owner_start

    def machine(self, host: str) -> str:
        """The name of a host that is unique on this machine."""
        return f"{self.id}-{host}"

    def save(self) -> None:
        write(self.folder / "lab.json", json.dumps(asdict(self), indent=1) + "\n", 0o600)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> str:
    """When a process started, in ticks since boot; empty when there is none (or only its zombie)."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if words[0] == "Z" else words[19]
    return ""


def records() -> list[Record]:
    """Every lab on this machine, in the order of their ids."""
    found = []
    for path in sorted(STATE.glob("*/lab.json")):
        with contextlib.suppress(FileNotFoundError):  # removed in between
            found.append(Record(**json.loads(path.read_text())))
    return found


def register(
    name: str, suite: str, *, prepared: bool, internet: bool, memory_bytes: int | None, dxg: bool, binds: dict[str, str]
) -> Record:
    """Sweep what dead labs left, then register a new lab of this process and make its network."""
    layers = [base.ensure(suite, frozenset(Path(layer).name for other in records() for layer in other.base.split(":")))]
    if prepared:
        layers.insert(0, base.prepare(layers[0]))
    with base.locked(LOCK):
        _sweep()
        lab = secrets.token_hex(3)
        record = Record(
            id=lab,
            name=name,
            suite=suite,
            base=":".join(map(str, layers)),
            subnet=network.free_subnet([other.subnet for other in records()]),
            internet=internet,
            memory_bytes=memory_bytes,
            dxg=dxg,
            binds=binds,
            owner_pid=os.getpid(),
            owner_start=start_time(os.getpid()),
            boot_id=boot_id(),
        )
        record.folder.mkdir(mode=0o700, parents=True)
        record.save()
        try:
            _forward_on()
            network.create(lab, record.subnet, internet)
        except BaseException:
            _remove(record)
            _forward_off()
            raise
        return record


def sweep() -> list[str]:
    """Remove everything of labs whose owner is dead; returns their ids."""
    with base.locked(LOCK):
        return _sweep()


def _sweep() -> list[str]:
    dead = [record for record in records() if not record.alive]
    for record in dead:
        say(f"removing what lab {record.id} left behind (its owner is gone)")
        _remove(record)
    for folder in STATE.glob("[0-9a-f]" * 6):  # killed between mkdir and the record, or in the middle of the removal
        if not (folder / "lab.json").exists():
            _remove_folder(folder)
    _forward_off()
    return [record.id for record in dead]


def remove(record: Record) -> None:
    """Remove a lab: processes, mounts, network, groups, folders. Raises LabError when something of it stays."""
    with base.locked(LOCK):
        _remove(record)
        _forward_off()


def _remove(record: Record) -> None:
    cgroup.remove(record.id)
    network.remove(record.id)
    for name in record.hosts:
        base.harvest_archives(record.suite, record.machine(name))
    _remove_folder(record.folder)


def _remove_folder(folder: Path) -> None:
    """Unmount what is mounted below a lab's folder, then remove it."""
    for where in mounts_below(folder):
        run(["umount", where])
    if left := mounts_below(folder):
        raise LabError(f"{left[0]} is still mounted: unmount it and run `python -m lab down` again.")
    shutil.rmtree(folder)


def mounts_below(folder: Path) -> list[str]:
    """Mount points below a folder, the innermost first."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((p for p in points if p.startswith(f"{folder}/")), key=len, reverse=True)


def _forward_on() -> None:
    """Turn ip_forward on, and remember it when it was a lab that did."""
    if network.IP_FORWARD.read_text().strip() == "0":
        write(STATE / "ip_forward.json", json.dumps({"boot_id": boot_id()}), 0o600)
        network.IP_FORWARD.write_text("1")


def _forward_off() -> None:
    """Put ip_forward back when the last lab is gone and a lab had turned it on since this machine started."""
    note = STATE / "ip_forward.json"
    if not note.exists() or records():
        return
    if json.loads(note.read_text())["boot_id"] == boot_id():
        network.IP_FORWARD.write_text("0")
    note.unlink()
