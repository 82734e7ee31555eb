"""A pasted output of nvidia-smi, whose exit status nobody wrote down. Pure."""

from __future__ import annotations

import re
from typing import Any

from wsllama.domain import nvidia_smi
from wsllama.domain.text import plain

# Exit status by what is said; nvidia-smi's manual, a shell's 126 to 128 + signal.
_STATUS = (
    (r"Segmentation fault", 139),
    (r"Bus error", 135),
    (r"^Aborted", 134),
    (r"Illegal instruction", 132),
    (r"^Killed", 137),
    (r"GPU access blocked by the operating system", 17),
    (r"version mismatch", 18),
    (r"couldn.t communicate with the NVIDIA driver|Driver Not Loaded", 9),
    (r"couldn.t find libnvidia-ml|libnvidia-ml\S*: cannot open shared object|NVML Shared Library Not Found", 12),
    (r"No devices (?:were )?found|device handle for GPU[^\n]*: Not Found", 6),
    (r"GPU is lost|fallen off the bus", 15),
    (r"Insufficient Permissions$|Failed to initialize NVML: Insufficient", 4),
    (r"is not a valid field to query|Invalid combination of input arguments|Option \S+ is not recogni[sz]ed", 2),
    (r"^sudo: \S+: command not found|is not recogni[sz]ed as", 1),
    (
        r"command not found|nvidia-smi\S*: (?:not found|No such file or directory)|Command '\S+' not found"
        r"|^zsh:(?:\d+:)? no such file or directory: "
        r"|required file not found",
        127,
    ),
    (r"Permission denied|[Ee]xec format error|cannot execute binary file", 126),
    (r"Failed to initialize NVML|Unknown Error", 255),
)


_FIELDS = ("name", "vram_total_mib", "vram_used_mib", "utilization_pct", "compute_cap", "driver")


def examine(data: bytes | str, command: str | None = None, returncode: int | None = None) -> dict[str, Any]:
    """What a run of nvidia-smi says, for JSON. returncode: None to take it from what was printed."""
    text = plain(data)
    code = _returncode(text) if returncode is None else returncode
    reading = nvidia_smi.read(text, code, command)
    return {
        "returncode": code,
        "status": reading.status,
        "gpus": [{name: getattr(gpu, name) for name in _FIELDS} for gpu in reading.gpus],
        "driver_windows": reading.driver_windows,
        "cuda_version": reading.cuda_version,
    }


def _returncode(text: str) -> int:
    return next((code for pattern, code in _STATUS if re.search(pattern, text, re.M | re.I)), 0)
