"""A start of llama-server held against its plan: what takes more than planned, and a GPU that isn't used. Pure.

`plan` is what a release records of its plan: its figures are those of plan_report.document, under `memory`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wsllama.domain.server_log import Reading, is_gpu

MIB = 1 << 20


def fallen_back(log: Reading, plan: Mapping[str, Any]) -> str | None:
    """The sentence that says that the plan is on a GPU and the server isn't; None when that is not so."""
    if not any(card["weights"] for card in plan["memory"]["gpus"]) or log.on_gpu:
        return None
    cards = " and ".join(card["name"] for card in plan["memory"]["gpus"])
    return f"the server runs on the CPU where {cards} was planned ({log.line or 'its log shows no buffer on a GPU'})"


def drift(log: Reading, plan: Mapping[str, Any], margin_percent: int) -> list[str]:
    """What differs from the plan by more than the margin, one sentence each; of compute buffers only what is more counts.

    log: of the start, at verbosity 4. Weights, KV cache and state follow rules, so less of them is wrong too, with 1 MiB for
    what the log rounds. Weights that are mapped are left out: the log has the file's whole stretch that holds them.
    """
    if not log.kv_mib:
        return ["the log shows no buffers, so they can't be held against the plan: look at the journal's rate limit"]
    out = []
    for name, part, seen in _devices(log, plan["memory"]):
        for kind, planned in part.items():
            found = seen[kind]
            if found is None:
                continue
            allowed = max(plan["memory"]["margins"]["compute"] if kind == "compute" else MIB, planned * margin_percent // 100)
            if found - planned > allowed or (kind != "compute" and planned - found > allowed):
                out.append(f"{name}: {found / MIB:.0f} MiB of {kind} where {planned / MIB:.0f} MiB is planned")
    return out


_KINDS = {"weights": "model_mib", "kv": "kv_mib", "recurrent": "recurrent_mib", "compute": "compute_mib"}


def _devices(log: Reading, memory: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, int], dict[str, int | None]]]:
    """Name, planned bytes and seen bytes of each GPU and of RAM; None for what the log doesn't tell."""
    for number, card in enumerate(memory["gpus"]):
        yield f"{card['name']} (CUDA{number})", _planned(card), _seen(log, f"CUDA{number}".__eq__)
    ram = _seen(log, lambda device: not is_gpu(device))
    if any("Mapped" in device for device in log.model_mib):
        ram["weights"] = None
    yield "RAM", _planned(memory["ram"]), ram


def _planned(part: Mapping[str, Any]) -> dict[str, int]:
    """A projector's graph is logged as a compute buffer, and its file isn't logged."""
    return {kind: part[kind] + (part["mmproj"] if kind == "compute" else 0) for kind in _KINDS}


def _seen(log: Reading, here: Callable[[str], bool]) -> dict[str, int | None]:
    sizes: dict[str, Mapping[str, float]] = {kind: getattr(log, field) for kind, field in _KINDS.items()}
    return {kind: round(sum(size for device, size in of.items() if here(device)) * MIB) for kind, of in sizes.items()}
