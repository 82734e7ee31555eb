"""Runs on the host: masks units and remembers which ran, or unmasks those and starts what ran. Says the available memory."""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

SETTLE_S = 1.0  # what was stopped gives its memory back


def _systemctl(*words: str) -> None:
    p = subprocess.run(
        ["systemctl", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if p.returncode:
        raise SystemExit(f"systemctl {' '.join(words)} failed: {' '.join(p.stdout.split())}")


def _active(unit: str) -> bool:
    return subprocess.run(["systemctl", "is-active", "--quiet", unit], stdin=subprocess.DEVNULL).returncode == 0


def _available() -> int:
    """Memory in bytes that programs can have."""
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable:"))


def _load(path: str) -> dict[str, bool]:
    try:
        with open(path) as f:
            known: dict[str, bool] = json.load(f)
    except FileNotFoundError:
        return {}
    return known


def _save(path: str, known: Mapping[str, bool]) -> None:
    if not known:
        os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "w") as f:
        json.dump(known, f, sort_keys=True)
        f.flush()
        os.fsync(f.fileno())
    os.replace(f"{path}.new", path)


def mask(units: Sequence[str], record: str) -> None:
    """Remembered before they are masked: a run that is killed in between leaves no mask that nobody knows of."""
    _save(record, {**{unit: _active(unit) for unit in units}, **_load(record)})
    _systemctl("mask", "--now", *units)


def unmask(record: str) -> None:
    """Those that `mask` masked; what ran then is started."""
    known = _load(record)
    _systemctl("unmask", *known)
    if started := [unit for unit, ran in known.items() if ran]:
        _systemctl("start", *started)
    _save(record, {})


def main(argument: Mapping[str, Any]) -> None:
    before = _available()
    if argument["action"] == "mask":
        mask(argument["units"], argument["record"])
    else:
        unmask(argument["record"])
    time.sleep(SETTLE_S)
    print(json.dumps({"changed": True, "before": before, "after": _available()}))
