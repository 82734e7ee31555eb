"""What a start of the virtual machine makes of .wslconfig, and where the distro sees it: /proc/meminfo, swaps, cpuinfo.

The reader is a small one of its own (sections, keys, # comments, first one wins, lines that WSL skips are skipped), so that a
test's expectation doesn't come from the program under test.
"""

import re
import uuid
from pathlib import Path
from typing import Any

from lab.standins.machine import Machine

GIB = 1024**3
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UNITS = {"": 1, "B": 1, "K": 2**10, "KB": 2**10, "M": 2**20, "MB": 2**20, "G": 2**30, "GB": 2**30, "T": 2**40, "TB": 2**40}


def read(data: bytes) -> dict[str, str]:
    """Values of a .wslconfig by "section.key", lower case."""
    text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "replace")
    values: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        header = re.match(r"\s*\[([A-Za-z][A-Za-z0-9]*)\]\s*$", line)
        pair = re.match(r"\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*([^#]*)", line)
        if line.lstrip().startswith("["):
            section = header[1].lower() if header else ""
        elif pair and section:
            values.setdefault(f"{section}.{pair[1].lower()}", pair[2].strip().strip('"'))
    return values


def size(text: str | None, default: int) -> int:
    """Bytes of a size as WSL writes it; the default for what it doesn't take."""
    found = re.fullmatch(r"(0|[1-9][0-9]*)([KMGT]?B?)", text or "")
    return int(found[1]) * UNITS[found[2]] if found else default


def of_file(machine: Machine) -> dict[str, Any]:
    """What the user's .wslconfig asks for, and WSL's defaults for the rest."""
    path = Path(machine.drive) / "Users" / machine.config["folder"] / ".wslconfig"
    values = read(path.read_bytes()) if path.is_file() else {}
    memory = min(size(values.get("wsl2.memory"), 0) or machine.config["memory_bytes"] // 2, machine.config["memory_bytes"])
    default_swap = -(-memory // 4 // GIB) * GIB
    processors = values.get("wsl2.processors", "")
    wanted = int(processors) if processors.isdigit() else 0
    mode = values.get("wsl2.networkingmode", values.get("experimental.networkingmode", machine.config["networking_mode"])).lower()
    return {
        "memory": memory,
        "swap": size(values.get("wsl2.swap"), default_swap),
        "processors": min(wanted or machine.config["processors"], machine.config["processors"]),
        "networking_mode": "consomme" if mode == "virtioproxy" else mode,
    }


def apply(machine: Machine, state: dict[str, Any], values: dict[str, Any] | None = None) -> None:
    """Make the settings of a start visible; the caller holds the state.

    + values: memory and swap in bytes, processors, networking_mode; those left out come from .wslconfig
    """
    folder = machine.folder / "proc"
    if state["vm"]:  # not the first start: the kernel that comes up now has an id of its own
        _rewrite(BOOT_ID, f"{uuid.uuid4()}\n")
    state["vm"] = vm = of_file(machine) | (values or {})
    real = (folder / "meminfo.real").read_text()
    # The kernel keeps some 2.4 % for itself: MemTotal is never the whole of `memory`.
    total = vm["memory"] * 976 // 1000 // 1024
    known = {"MemTotal": total, "MemFree": total * 8 // 10, "MemAvailable": total * 9 // 10}
    known |= {"SwapTotal": vm["swap"] // 1024, "SwapFree": vm["swap"] // 1024, "SwapCached": 0}

    def line(found: re.Match[str]) -> str:
        return f"{found[1]}:{known.get(found[1], int(found[2])):>{24 - len(found[1]) - 1}} kB"

    _rewrite(folder / "meminfo", re.sub(r"^(\w+):\s+(\d+) kB", line, real, flags=re.MULTILINE))
    swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    if vm["swap"]:
        swaps += f"/dev/sdb                                partition\t{vm['swap'] // 1024 - 4}\t\t0\t\t-2\n"
    _rewrite(folder / "swaps", swaps)
    block = (folder / "cpuinfo.real").read_text().split("\n\n")[0]
    blocks = (re.sub(r"^(processor\s*: )\d+", rf"\g<1>{number}", block) for number in range(vm["processors"]))
    _rewrite(folder / "cpuinfo", "".join(f"{one}\n\n" for one in blocks))


def _rewrite(path: Path, text: str) -> None:
    """In place: the file is mounted elsewhere, and a mount keeps to the file it was made from."""
    with path.open("w") as stream:
        stream.write(text)
