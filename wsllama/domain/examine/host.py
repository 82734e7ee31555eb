"""What is wrong on a host, out of all that it showed: log, unit, GPU, WSL's files. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wsllama.domain import nvidia_smi, server_log
from wsllama.domain.examine import unit
from wsllama.domain.findings import CATALOGUE, Finding
from wsllama.domain.wslconfig import Kind, lint

_WSL_ONLY = {"no_wsl_lib_path", "devices_closed_without_dxg"}
# More than Windows itself takes of a card (0.2 to 1.3 GiB), and so little left that it begins to move memory to RAM.
_OTHERS_MIB, _LEFT_MIB = 1536, 1024


@dataclass(frozen=True)
class Seen:
    """What was collected; what could not be is None or empty."""

    journal: str = ""  # of the unit, with what systemd says of it
    unit: str | None = None  # as `systemctl cat` prints it
    environment: Mapping[str, str] = field(default_factory=dict)  # of its EnvironmentFile=
    smi: nvidia_smi.Reading | None = None
    files: Mapping[Kind, tuple[str, bytes]] = field(default_factory=dict)  # of WSL: path, bytes
    problems: tuple[str, ...] = ()  # sentences of domain/guest.py
    wsl: bool = True
    gpu: bool = True  # it was built for one
    running: Mapping[str, Any] = field(default_factory=dict)  # the topic server, of the release that was started last
    on_the_way: bool = False  # that release is a stage before the settings' last one


@dataclass(frozen=True)
class Judged:
    """One finding, and what of this host it is about: a line of the log, a file and line."""

    finding: Finding
    detail: str = ""


def judge(seen: Seen) -> list[Judged]:
    """All that is wrong, what a slow or failing server is asked first at the top: who else holds the card's memory."""
    log = server_log.read(seen.journal)
    return [*_others(seen, log), *_log(seen, log), *_gpu(seen), *_unit(seen), *_files(seen)]


def _others(seen: Seen, log: server_log.Reading) -> Iterator[Judged]:
    for index, gpu in enumerate(seen.smi.gpus if seen.smi else ()):
        if gpu.vram_used_mib is None:
            continue
        kinds = (log.model_mib, log.kv_mib, log.recurrent_mib, log.compute_mib)
        ours = sum(of.get(f"CUDA{index}", 0.0) for of in kinds) if log.verdict == "ok" else 0.0
        others, left = gpu.vram_used_mib - ours, gpu.vram_total_mib - gpu.vram_used_mib
        short = left < _LEFT_MIB or log.verdict == "oom_vram"
        if others > _OTHERS_MIB and short and (log.model_mib or log.verdict == "oom_vram"):
            text = f"{gpu.name}: others hold about {others:.0f} MiB of {gpu.vram_total_mib}, {left} MiB are free"
            yield Judged(CATALOGUE["use", "vram_taken_by_others"], text)


def _log(seen: Seen, log: server_log.Reading) -> Iterator[Judged]:
    verdict = log.verdict
    if verdict == "ok" and seen.gpu and log.model_mib and not log.on_gpu:
        verdict = "cpu_fallback"  # nothing was said, but a GPU was planned
    if verdict != "ok":
        yield Judged(CATALOGUE["log", verdict], log.line.strip())


def _gpu(seen: Seen) -> Iterator[Judged]:
    status = seen.smi.status if seen.smi else "ok"
    if status != "ok":
        yield Judged(CATALOGUE["nvidia-smi", status])
    for sentence in seen.problems:
        yield Judged(Finding("guest", "gpu_hidden", "error", "Programs in the distro do not get the GPU.", *_split(sentence)), "")


def _split(sentence: str) -> tuple[str, str, str]:
    cause, _, fix = sentence.partition(": ")
    return cause, fix or cause, "wsllama doctor INVENTORY"


def _unit(seen: Seen) -> Iterator[Judged]:
    if seen.unit is None:
        return
    for name in sorted(unit.findings(seen.unit, seen.environment)):
        if seen.wsl or name not in _WSL_ONLY:
            yield Judged(CATALOGUE["unit", name])


def _files(seen: Seen) -> Iterator[Judged]:
    for kind, (path, data) in seen.files.items():
        for found in lint(data, kind):
            place = f"{path}:{found.line}" if found.line else path
            yield Judged(CATALOGUE[kind, found.id], f"{place}: {found.text} {found.fix}")
