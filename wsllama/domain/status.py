"""What a host serves, of what was seen there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wsllama.domain import models
from wsllama.domain.nvidia_smi import Reading

SERVES = "serves"


def status(seen: Mapping[str, Any], root: str, gpu: Reading | None, pending: Sequence[str]) -> dict[str, Any]:
    """One host for JSON and for a table.

    seen: of wsllama/host/status.py; root: of our folders; gpu: what nvidia-smi said, None where none is used; pending: what
    waits for `wsl --shutdown`. Bytes and Unix seconds; None where something isn't known.
    """
    now, record, unit = seen["now"], seen["release"] or {}, seen["unit"]
    releases, server = now["releases"][root], record.get("server") or {}
    model = record.get("model") or {}
    file = str(model.get("file", "")).rpartition("/")[2]
    return {
        "state": state(seen),
        "since": unit.get("ActiveEnterTimestamp") or None,
        "restarts": int(unit.get("NRestarts") or 0),
        "at_boot": unit.get("UnitFileState") == "enabled",
        "release": int(releases["current"]) if releases["current"] else None,
        "accepted": seen["accepted"],
        "result": result(releases),
        "build": record.get("build"),
        "commit": record.get("commit"),
        "model": model.get("alias"),
        "file": file or None,
        "quant": models.quant_of(file) if file else None,
        "ctx_size": server.get("ctx_size"),
        "address": f"{server['host']}:{server['port']}" if server else None,
        "gpu": [_gpu(one) for one in gpu.gpus] if gpu else [],
        "gpu_status": gpu.status if gpu else None,
        "memory_total": now["system"]["memory_total"],
        "memory_available": now["system"]["memory_available"],
        "server_rss": seen["rss"],
        "pending": list(pending),
    }


def state(seen: Mapping[str, Any]) -> str:
    """`serves`, or why it doesn't: loading, how the unit stands, or what comes instead of an answer."""
    if not seen["release"]:
        return "not deployed"
    active, health = seen["unit"].get("ActiveState"), seen["health"]
    if active != "active":
        return "failed: " + str(seen["unit"].get("Result")) if active == "failed" else str(active)
    if health["status"] == 200:
        return SERVES
    return {503: "loading", 0: f"no answer: {health['text']}"}.get(health["status"], f"/health says {health['status']}")


def result(releases: Mapping[str, Any]) -> str | None:
    """How the last deploy ended, as far as the releases tell; None where there was none. releases: facet of the probe."""
    current, numbers = releases["current"], releases["numbers"]
    if not current:
        return None
    newest = max(numbers, key=int, default=current)
    if int(newest) > int(current) and not numbers[newest]["accepted"]:
        return f"release {newest} was not accepted, {current} serves"
    if not numbers.get(current, {}).get("accepted"):
        return f"release {current} is not accepted"
    return "accepted" if releases["last-good"] == current else f"release {current} is not the last good one"


def _gpu(gpu: Any) -> dict[str, Any]:
    used = None if gpu.vram_used_mib is None else gpu.vram_used_mib << 20
    return {"name": gpu.name, "driver": gpu.driver, "vram_total": gpu.vram_total_mib << 20, "vram_used": used}
