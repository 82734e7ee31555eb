"""What nvidia-smi said about a GPU: tables, CSV queries, -q listings, and its ways to fail. Pure.

In WSL the library is NVIDIA's for Linux and the driver is Windows': the header shows two numbers, and the one after "Driver
Version" ("KMD Version" since branch 610) is Windows'. NVML answers [N/A] for much there. Return codes: nvidia-smi's manual.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Status = Literal["ok", "no_driver", "blocked", "crashed", "no_device", "unknown"]


class Gpu(NamedTuple):
    name: str  # as printed; a table shortens long ones
    vram_total_mib: int
    vram_used_mib: int | None = None
    utilization_pct: int | None = None
    compute_cap: str | None = None  # "8.9"; only a query tells
    driver: str | None = None
    power_w: float | None = None  # only a query for power.draw tells
    temperature_c: int | None = None  # only a query for temperature.gpu


class Reading(NamedTuple):
    """ok: the memory of a GPU was read; no_driver: tool, library or driver absent; unknown: the text doesn't tell."""

    status: Status
    gpus: tuple[Gpu, ...] = ()
    driver_windows: str | None = None  # NNN.NN; None for a number of another form
    cuda_version: str | None = None  # newest CUDA that the driver knows, as the header says


_BLOCKED = re.compile(r"GPU access blocked by the operating system", re.I)
_NO_DRIVER = re.compile(
    r"couldn.t communicate with the NVIDIA driver|Driver Not Loaded|couldn.t find libnvidia-ml|version mismatch"
    r"|libnvidia-ml\S*: cannot open shared object|NVML Shared Library Not Found",
    re.I,
)
_NO_DEVICE = re.compile(r"No devices (were )?found", re.I)
_MISSING = re.compile(r"not found|No such file or directory", re.I)
_AT_A_PATH = re.compile(r"/[^\s:'\"]*nvidia-smi(\.exe)?\b")
_BY_RETURN_CODE: dict[int, Status] = {6: "no_device", 9: "no_driver", 12: "no_driver", 17: "blocked"}
_SIGNALS = range(129, 160)  # a shell's 128 + signal; 139 is a segmentation fault


def read(text: bytes | str, returncode: int, command: str | None = None) -> Reading:
    """Read one run of nvidia-smi.

    text: what it printed, stdout and stderr together. returncode: as a shell or Python's subprocess gives it.
    command: how it was called; it names the columns of a CSV answer without a header line.
    """
    text = _decoded(text)
    if re.search(r"^=+\s*NVSMI LOG", text, re.M):
        gpus, driver, cuda = _listing(text)
    elif re.search(r"--query-gpu[= ]", command or "") or _columns(text.lstrip().partition("\n")[0]):
        gpus, driver, cuda = _csv(text, command or "")
    else:
        gpus, driver, cuda = _table(text)
    windows = driver if driver and re.fullmatch(r"\d{3}\.\d\d", driver) else None
    return Reading(_status(text, returncode, command or "", bool(gpus)), tuple(gpus), windows, cuda)


def _decoded(text: bytes | str) -> str:
    if isinstance(text, bytes):
        text = text.decode("utf-16" if text[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")
    return text.lstrip("\ufeff").replace("\r\n", "\n")


def _status(text: str, returncode: int, command: str, read: bool) -> Status:
    if returncode < 0 or returncode in _SIGNALS or (not read and re.search(r"^Segmentation fault", text, re.M)):
        return "crashed"
    if read:
        return "ok"
    found: tuple[tuple[re.Pattern[str], Status], ...] = (
        (_BLOCKED, "blocked"),
        (_NO_DRIVER, "no_driver"),
        (_NO_DEVICE, "no_device"),
    )
    for pattern, status in found:
        if pattern.search(text):
            return status
    if returncode == 127 or _MISSING.search(text):
        # A bare name that isn't on PATH tells nothing: ssh and units don't have WSL's folder there.
        return "no_driver" if _AT_A_PATH.search(f"{command}\n{text}") else "unknown"
    return "unknown" if text.strip() else _BY_RETURN_CODE.get(returncode, "unknown")


def _number(value: str) -> int | None:
    """The number before a unit; None for [N/A], [Not Supported], ERR! and the like."""
    m = re.fullmatch(r"(\d+)\s*(MiB|%)?", value.strip())
    return int(m[1]) if m else None


def _version(value: str | None) -> str | None:
    return value if value and re.fullmatch(r"\d+(\.\d+)+", value) else None


def _table(text: str) -> tuple[list[Gpu], str | None, str | None]:
    header = re.search(r"(?:Driver|KMD) Version:\s*(\S+)", text)
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*(\S+)", text)
    driver = _version(header[1]) if header else None
    gpus, name = [], ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) > 1 and re.search(r"[0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F]", cells[1], re.I):
            # Number, name, and the persistence or driver mode, whatever NVIDIA calls it by now.
            first = re.match(r"\d+\s+(.*?)(\s+(On|Off|N/A|\[N/A\]|ERR!|WDDM|TCC|MCDM|Enabled|Disabled))?$", cells[0])
            name = first[1] if first else ""
        elif name and len(cells) > 1 and (memory := re.fullmatch(r"(\S+)\s*/\s*(\d+)\s*MiB", cells[1])):
            used = _number(cells[2].split()[0]) if len(cells) > 2 and cells[2].split() else None
            gpus.append(Gpu(name, int(memory[2]), _number(memory[1]), used, None, driver))
            name = ""
    return gpus, driver, _version(cuda[1]) if cuda else None


def _listing(text: str) -> tuple[list[Gpu], str | None, str | None]:
    """`nvidia-smi -q`: names and values by indentation; a heading has no value."""
    top: dict[str, str] = {}
    cards: list[dict[str, str]] = []
    section = ""
    for line in text.splitlines():
        key, colon, value = (part.strip() for part in line.partition(" : "))
        if not line.startswith(" "):
            if m := re.match(r"GPU (\S+:\S+)$", line.strip()):
                cards.append({"name": m[0]})
                section = ""
            elif not cards and colon:
                top[key] = value
        elif cards:
            if len(line) - len(line.lstrip()) <= 4:
                section = "" if colon else line.strip()
            if colon:
                cards[-1].setdefault(f"{section}/{key}", value)
    driver = _version(top.get("Driver Version", top.get("KMD Version")))
    gpus = []
    for card in cards:
        total = _number(card.get("FB Memory Usage/Total", ""))
        if total is not None:
            used = _number(card.get("FB Memory Usage/Used", ""))
            busy = _number(card.get("Utilization/Gpu", card.get("Utilization/GPU", "")))
            gpus.append(Gpu(card.get("/Product Name", card["name"]), total, used, busy, None, driver))
    return gpus, driver, _version(top.get("CUDA Version", top.get("CUDA UMD Version")))


_ALIASES = {"gpu_name": "name", "driver": "driver_version"}
_KNOWN = {
    "name",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "compute_cap",
    "driver_version",
    "power.draw",
    "temperature.gpu",
}


def _columns(line: str) -> list[str]:
    """The fields that a header line of CSV names; empty when it is none."""
    fields = [re.sub(r"\s*\[.*\]$", "", part.strip()) for part in line.split(",")]
    fields = [_ALIASES.get(field, field) for field in fields]
    return fields if all(re.fullmatch(r"[a-z][a-z0-9_.]*", f) for f in fields) and _KNOWN & set(fields) else []


def _csv(text: str, command: str) -> tuple[list[Gpu], str | None, str | None]:
    asked = re.search(r"--query-gpu[= ]['\"]?([\w.,]+)", command)
    columns = [_ALIASES.get(field, field) for field in asked[1].split(",")] if asked else []
    gpus, driver = [], None
    for line in text.splitlines():
        if header := _columns(line):
            columns = header
            continue
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(columns):
            continue
        row = dict(zip(columns, values, strict=True))
        own = _version(row.get("driver_version"))
        driver = driver or own
        total = _number(row.get("memory.total", ""))
        if total is not None:
            used, busy = _number(row.get("memory.used", "")), _number(row.get("utilization.gpu", ""))
            watts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*W?", row.get("power.draw", ""))
            power, heat = float(watts[1]) if watts else None, _number(row.get("temperature.gpu", ""))
            gpus.append(Gpu(row.get("name", ""), total, used, busy, _version(row.get("compute_cap")), own, power, heat))
    return gpus, driver, None
