"""A start's log held against the plan that its release records."""

from __future__ import annotations

from typing import Any

import pytest

from wsllama import planning
from wsllama.domain import plan_drift, plan_report, server_log
from wsllama.domain.memory import GIB, MIB
from wsllama.domain.planner import Gpu, Machine, Wanted

Q4 = planning.candidates_of("Qwen3.6-35B-A3B", None, False)[0][0]
LOG = """\
0.00.100.000 I load_tensors: offloaded 41/41 layers to GPU
0.00.100.001 I load_tensors:        CUDA0 model buffer size = {weights:.2f} MiB
0.00.100.001 I load_tensors:    CUDA_Host model buffer size = {host:.2f} MiB
0.00.100.002 I llama_context:      n_ctx         = 32768
0.00.100.003 I llama_kv_cache:      CUDA0 KV buffer size = {kv:.2f} MiB
0.00.100.004 I llama_memory_recurrent:      CUDA0 RS buffer size = 62.81 MiB
0.00.100.005 I sched_reserve:      CUDA0 compute buffer size = {compute:.2f} MiB
0.00.100.006 I sched_reserve:  CUDA_Host compute buffer size = {host_compute:.2f} MiB
0.02.242.676 I srv  llama_server: model loaded
0.02.255.016 I srv  llama_server: listening on http://127.0.0.1:8080
"""
CPU = """\
0.00.000.001 W common_init: no usable GPU found, --gpu-layers option will be ignored
0.00.100.001 I load_tensors:          CPU model buffer size = 21000.00 MiB
0.00.100.003 I llama_kv_cache:        CPU KV buffer size = 640.00 MiB
0.02.242.676 I srv  llama_server: model loaded
0.02.255.016 I srv  llama_server: listening on http://127.0.0.1:8080
"""


def planned(*mib: int, mmproj: bool = False) -> dict[str, Any]:
    """A plan of a 32K context: 640 MiB of KV cache and 62.81 of state, by the published figures."""
    of = Machine(tuple(Gpu(f"card {n}", size * MIB) for n, size in enumerate(mib)), 40 * GIB, None)
    found = plan_report.report(of, Wanted(ctx_size=32768, mmproj=mmproj, backend="cuda" if mib else "cpu"), [Q4])
    return {"memory": plan_report.document(found)["memory"]}


def log(plan: dict[str, Any], **more: float) -> server_log.Reading:
    """Of a server that took what was planned, and this much more of a figure in MiB."""
    (card,), ram = plan["memory"]["gpus"], plan["memory"]["ram"]
    sizes = {
        "weights": card["weights"] / MIB,
        "host": ram["weights"] / MIB,
        "kv": 640.0,
        "compute": card["compute"] / MIB,
        "host_compute": ram["compute"] / MIB,
    }
    return server_log.read(LOG.format(**{key: size + more.get(key, 0) for key, size in sizes.items()}))


def test_a_server_as_planned() -> None:
    plan = planned(24_564)
    assert plan_drift.drift(log(plan), plan, 5) == []
    assert plan_drift.fallen_back(log(plan), plan) is None


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"kv": 33}, "card 0 (CUDA0): 673 MiB of kv where 640 MiB is planned"),
        ({"kv": -33}, "card 0 (CUDA0): 607 MiB of kv where 640 MiB is planned"),
        ({"weights": 1200}, "of weights where"),
        ({"host": 60}, "RAM: "),
        ({"compute": 300}, "of compute where"),
    ],
)
def test_more_than_the_margin_is_said(more: dict[str, float], says: str) -> None:
    plan = planned(24_564)
    (sentence,) = plan_drift.drift(log(plan, **more), plan, 5)
    assert says in sentence


@pytest.mark.parametrize("more", [{"kv": 31}, {"compute": 15}, {"compute": -300}])
def test_within_the_margin_nothing_is_said(more: dict[str, float]) -> None:
    plan = planned(24_564)
    assert plan_drift.drift(log(plan, **more), plan, 5) == []


def test_the_margin_is_the_settings() -> None:
    plan = planned(24_564)
    assert plan_drift.drift(log(plan, kv=33), plan, 6) == []
    assert plan_drift.drift(log(plan, kv=2), plan, 0) != []
    assert plan_drift.drift(log(plan, kv=1), plan, 0) == []  # what the log rounds


def test_a_projectors_graph_is_a_compute_buffer_in_the_log() -> None:
    plan = planned(24_564, mmproj=True)
    assert plan_drift.drift(log(plan, compute=248.10), plan, 5) == []


def test_mapped_weights_are_not_compared() -> None:
    plan = planned(24_564)
    read = log(plan)
    read.model_mib["CPU_Mapped"] = read.model_mib.pop("CUDA_Host") + 9000
    assert plan_drift.drift(read, plan, 5) == []


def test_the_cpu_in_the_place_of_a_gpu() -> None:
    read = server_log.read(CPU)
    said = plan_drift.fallen_back(read, planned(24_564))
    assert said
    assert said.startswith("the server runs on the CPU where card 0 was planned (")
    assert "no usable GPU found" in said
    assert plan_drift.fallen_back(read, planned()) is None


def test_a_log_without_buffers_says_that_it_can_not_be_compared() -> None:
    (sentence,) = plan_drift.drift(server_log.read("listening on http://127.0.0.1:8080"), planned(24_564), 5)
    assert "shows no buffers" in sentence


def test_two_cards_are_each_compared() -> None:
    plan = planned(12_282, 12_282)
    first, second = plan["memory"]["gpus"]
    names = (("weights", "model"), ("kv", "KV"), ("recurrent", "RS"), ("compute", "compute"))
    second["weights"] -= 900 * MIB
    lines = [
        f"x: {device} {name} buffer size = {part[kind] / MIB + (900 if part is second and kind == 'weights' else 0):.2f} MiB"
        for device, part in (("CUDA0", first), ("CUDA1", second), ("CPU", plan["memory"]["ram"]))
        for kind, name in names
    ]
    (sentence,) = plan_drift.drift(server_log.read("\n".join(lines)), plan, 5)
    assert sentence.startswith("card 1 (CUDA1): ")
