"""How long the service may take to load, and how much RAM it may take: from the model's size and from the plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping

MIB = 1 << 20
STEP = 256 * MIB
SLOW_DISK = 50_000_000
"""Bytes a second that a model is read with at least: half of what an old hard disk gives, for a virtual one on it."""
BEFORE_LOADING_S = 300
"""For all that doesn't grow with the model: CUDA compiles its kernels at the first start of a build for other cards."""
LONGEST_S = 7200
NEEDS = ("weights", "kv", "recurrent", "compute", "mmproj", "output", "cache_ram", "checkpoints")
PROGRAM = 1024 * MIB
"""llama-server itself and what CUDA keeps of its own in the host's memory, beside what a plan names."""


def start_timeout_s(model_bytes: int) -> int:
    """Seconds for loading a model with this many bytes in all of its files."""
    return min(LONGEST_S, BEFORE_LOADING_S + model_bytes // SLOW_DISK)


def memory_max(setting: str | None, ram: Mapping[str, int] | None) -> str | None:
    """Value of MemoryMax=, None for no limit.

    setting: server.memory_max; ram: the part of a plan in RAM, bytes by class as in `memory.ram` of wsllama.domain.plan_report.
    What a plan needs gets a tenth and a constant on top. Pages of a mapped model count while they are resident and are taken
    back before anything is ended, so a limit below the file's size only costs reading again. Rounded up, so that a few tokens
    more of context are no other unit.
    """
    if setting or not ram:
        return None if setting == "infinity" else setting
    need = sum(ram[name] for name in NEEDS)
    return f"{-(-(need + need // 10 + PROGRAM) // STEP) * STEP // MIB}M"
