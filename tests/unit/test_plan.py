"""Plans: the one ladder, what is refused and what is offered in its place, and the planning."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from lab import ghost_model
from tests.unit import small_gguf
from wsllama import planning, plans_doc
from wsllama.cli import app
from wsllama.domain import memory, models, nvidia_smi, plan_report, planner
from wsllama.domain.memory import GIB, MIB
from wsllama.domain.plan_report import report
from wsllama.domain.planner import Gpu, Machine, Model, Projector, Wanted
from wsllama.domain.toolkit import NEAREST
from wsllama.settings import Settings

MODELS, ALL = planning.candidates_of("Qwen3.6-35B-A3B", None, False)
Q4 = MODELS[0]


def machine(*mib: int, guest: float = 24, host: float | None = 32, **more: Any) -> Machine:
    return Machine(
        tuple(Gpu(f"card {n}", size * MIB) for n, size in enumerate(mib)),
        int(guest * GIB),
        None if host is None else int(host * GIB),
        **more,
    )


def planned(of: Machine, wanted: Wanted = Wanted(), *candidates: Model) -> dict[str, Any]:  # noqa: B008
    return plan_report.document(report(of, wanted, candidates or [Q4], ALL))


# What a plan says


def test_the_largest_share_of_experts_that_fits_is_on_the_gpu() -> None:
    of = machine(12_282)
    plan = planner.fit(of, Wanted(), Q4)
    assert plan.fits
    assert 0 < plan.load.n_cpu_moe < 40
    one_more = planner.fit(of, Wanted(n_cpu_moe=plan.load.n_cpu_moe - 1, parallel=1), replace(Q4, projector=None))
    assert one_more.load.ubatch_size < 512  # only by giving more up


def test_figures_add_up_to_what_the_card_has() -> None:
    found = planned(machine(8_188, 12_282), Wanted(mmproj=True))["memory"]
    for card in (found["vram"], *found["gpus"]):
        assert card["total"] == sum(card[key] for key in ("weights", "kv", "recurrent", "compute", "mmproj", "reserve", "free"))
    for part in (*found["gpus"], found["ram"]):
        assert sum(part["weights_by_class"].values()) == part["weights"]
    assert found["gpus"][0]["weights_by_class"]["embedding"] == 0
    ram = found["ram"]
    parts = ("weights", "kv", "recurrent", "compute", "mmproj", "output", "cache_ram", "checkpoints", "system", "free")
    assert ram["total"] == sum(ram[key] for key in parts) == 24 * GIB
    assert found["marks"]["kv"] == "computed"
    assert found["marks"]["held_now"] == "measured"
    assert found["marks"]["weights"] == found["marks"]["compute"] == "estimated"


def test_explains_itself_in_five_lines() -> None:
    lines = planned(machine(12_282))["explanation"]
    assert len(lines) == 5
    assert "held now: not reported" in lines[1]
    assert "experts to RAM" in lines[3]


def test_public_report_of_a_16_gb_card() -> None:
    """A 5070 Ti ran this architecture with the experts of 14 layers in RAM (ollama#14579, a comment)."""
    assert abs(planner.fit(machine(16_303, guest=32, host=64), Wanted(), Q4).load.n_cpu_moe - 14) <= 2


def test_all_of_a_q4_is_on_a_24_gb_card() -> None:
    """24 GB: Q4 with all layers on the GPU is where guides and logs start."""
    assert (
        planner.fit(machine(24_564), Wanted(ctx_size=32768), Q4).load
        == planner.fit(machine(49_140), Wanted(ctx_size=32768), Q4).load
    )


def test_vram_that_others_hold_is_not_planned() -> None:
    idle, busy = (
        planner.fit(Machine((Gpu("card", 12_282 * MIB, used),), 32 * GIB), Wanted(), Q4) for used in (600 * MIB, 5000 * MIB)
    )
    assert busy.needs.vram.total + 5000 * MIB <= 12_282 * MIB
    assert busy.load.n_cpu_moe > idle.load.n_cpu_moe
    said = report(Machine((Gpu("card", 12_282 * MIB, 5000 * MIB, "game.exe"),), 32 * GIB), Wanted(), [Q4]).warnings
    assert any("4.9 GiB is in use now (game.exe)" in sentence for sentence in said)
    said = report(Machine((Gpu("card", 12_282 * MIB, 5000 * MIB),), 32 * GIB), Wanted(), [Q4]).warnings
    assert any("by whom is not reported" in sentence for sentence in said)


def test_a_headless_machine_has_more() -> None:
    exact = replace(Q4, exact=True)
    with_desktop, without = (planner.fit(machine(8_188, headless=headless), Wanted(), exact) for headless in (False, True))
    assert sum(with_desktop.reserves) - sum(without.reserves) == planner.DESKTOP - planner.CONTEXT
    assert without.load.n_cpu_moe < with_desktop.load.n_cpu_moe


def test_a_quantised_cache_costs_cuda_a_copy_of_one_layer() -> None:
    shape = memory.Shape.of(Q4.summary)
    assert memory.pool_bytes(shape, memory.Load(262_144, cache_type_k="q8_0", cache_type_v="q8_0")) == 512 * MIB
    assert memory.pool_bytes(shape, memory.Load(262_144)) == 0


def test_an_estimate_leaves_room_for_a_quant_with_wide_dense_layers() -> None:
    exact = planner.fit(machine(8_188), Wanted(), replace(Q4, exact=True))
    estimated = planner.fit(machine(8_188), Wanted(), Q4)
    assert estimated.load.n_cpu_moe > exact.load.n_cpu_moe


def test_two_cards_of_different_size_are_filled_by_what_they_have() -> None:
    of = machine(24_576, 12_288, guest=32, host=64)
    said = report(of, Wanted(), [Q4])
    assert said.plan
    first, second = said.plan.load.split
    assert first + second == 41
    assert first > 1.5 * second
    assert any("different size" in sentence for sentence in said.warnings)
    server = plan_report.server_settings(said.plan, of, Wanted())
    assert server["extra_args"] == ["--tensor-split", f"{first},{second}"]
    for part, held, card in zip(said.plan.needs.gpus, said.plan.reserves, of.gpus, strict=True):
        assert part.total + held <= (card.total or 0)


def test_three_cards_get_layers_by_what_they_have() -> None:
    plan = planner.fit(machine(24_576, 8_192, 8_192, guest=32, host=64), Wanted(), Q4)
    first, second, third = plan.load.split
    assert first > 2 * second
    assert abs(second - third) <= 1


def test_equal_cards_need_no_warning() -> None:
    assert not any("different size" in sentence for sentence in report(machine(12_288, 12_288), Wanted(), [Q4]).warnings)


# The ladder


def rungs(given_up: tuple[str, ...]) -> list[str]:
    return [sentence.partition(":")[0] for sentence in given_up]


def test_it_gives_up_in_one_order() -> None:
    wanted = Wanted(ctx_size=262_144, parallel=4)
    seen = []
    for mib in (40_960, 24_564, 16_380, 10_240, 8_188, 6_144, 4_600, 3_900, 3_500, 2_700):
        plan = planner.fit(machine(mib, guest=40, host=64), wanted, replace(Q4, exact=True))
        assert plan.fits, mib
        seen.append(rungs(plan.given_up))
    assert seen[0] == []
    assert seen[-1][-1] == "layers to RAM"
    assert seen[-1][-5:] == ["experts to RAM", "micro-batch", "KV cache", "context", "layers to RAM"]
    lengths = [len(given) for given in seen]
    assert lengths == sorted(lengths)


def test_slots_come_back_where_there_is_room_after_all() -> None:
    plan = planner.fit(machine(12_282), Wanted(parallel=2), replace(Q4, exact=True))
    assert plan.load.parallel == 2
    assert rungs(plan.given_up) == ["experts to RAM"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("parallel", 8), ("ubatch_size", 1024), ("cache_type_k", "f16"), ("cache_type_v", "f16"), ("n_cpu_moe", 30)],
)
def test_what_is_fixed_is_not_given_up(name: str, value: Any) -> None:
    of, exact = machine(4_600, guest=40, host=64), replace(Q4, exact=True)
    wanted = replace(Wanted(ctx_size=262_144, parallel=4), **{name: value})
    fixed = planner.fit(of, replace(wanted, fixed=frozenset({name})), exact)
    assert getattr(fixed.load, name) == value
    if name != "n_cpu_moe":  # which is fixed by being given
        assert getattr(planner.fit(of, wanted, exact).load, name) != value


@pytest.mark.parametrize(("name", "other"), [("cache_ram", "ctx_checkpoints"), ("ctx_checkpoints", "cache_ram")])
def test_of_host_caches_one_may_be_fixed(name: str, other: str) -> None:
    of, wanted = machine(8_188, guest=20, host=None), Wanted(cache_ram=8192, ctx_checkpoints=64)
    load = planner.fit(of, replace(wanted, fixed=frozenset({name})), Q4).load
    assert getattr(load, name) == getattr(wanted, name)
    assert getattr(load, other) < getattr(wanted, other)


def test_host_caches_are_given_up_for_ram_before_anything_else() -> None:
    whole = planner.fit(machine(8_188, guest=20, host=None), Wanted(cache_ram=8192, ctx_checkpoints=32), Q4)
    assert whole.fits
    assert rungs(whole.given_up) == ["host caches", "experts to RAM"]
    assert whole.load.cache_ram < 8192


def test_a_smaller_quant_is_the_last_rung_and_is_said() -> None:
    found = report(machine(8_188, guest=14, host=None), Wanted(), MODELS, ALL)
    assert found.ok
    assert found.plan
    assert found.plan.model.bytes < Q4.bytes
    assert any(f"UD-Q4_K_M doesn't fit, so {found.plan.model.quant} is planned" in sentence for sentence in found.warnings)
    larger = [model for model in MODELS if model.bytes > found.plan.model.bytes]
    assert not any(planner.fit(machine(8_188, guest=14, host=None), Wanted(), model).fits for model in larger)


wishes = st.builds(
    Wanted,
    ctx_size=st.integers(256, 262_144),
    parallel=st.integers(1, 8),
    cache_type_k=st.sampled_from(["f16", "q8_0", "q4_0"]),
    cache_type_v=st.sampled_from(["f16", "q8_0", "q4_0"]),
    mmproj=st.booleans(),
)


@given(wishes, st.integers(2_000, 48_000), st.integers(0, 16_000), st.sampled_from(ALL))
@settings(max_examples=60)
def test_more_vram_never_raises_n_cpu_moe(wanted: Wanted, mib: int, more: int, model: Model) -> None:
    less, larger = (planner.fit(machine(size, guest=64, host=None), wanted, model).load for size in (mib, mib + more))
    assert larger.n_cpu_moe <= less.n_cpu_moe


cards = st.lists(st.integers(500, 26_000), min_size=2, max_size=3)


@given(wishes, cards, st.integers(0, 2), st.integers(0, 8_000))
@settings(max_examples=20)
def test_more_vram_on_one_of_several_cards_never_raises_n_cpu_moe(wanted: Wanted, mib: list[int], which: int, more: int) -> None:
    larger = [size + more * (number == which) for number, size in enumerate(mib)]
    few, many = (planner.fit(machine(*sizes, guest=64, host=None), wanted, Q4) for sizes in (mib, larger))
    assert many.fits >= few.fits
    assert many.load.n_cpu_moe <= few.load.n_cpu_moe


@given(wishes.map(lambda wanted: replace(wanted, mmproj=False)), cards)
@settings(max_examples=20)
def test_another_card_never_makes_a_plan_worse(wanted: Wanted, mib: list[int]) -> None:
    alone, together = (planner.fit(machine(*sizes, guest=64, host=None), wanted, Q4) for sizes in ([max(mib)], mib))
    assert together.fits >= alone.fits
    assert together.load.n_cpu_moe <= alone.load.n_cpu_moe
    assert not alone.fits or together.load.ctx_size >= alone.load.ctx_size


@pytest.mark.parametrize("mib", [(24_564, 1_024), (1_024, 24_564)])
def test_a_card_too_small_for_a_layer_is_left_alone(mib: tuple[int, ...]) -> None:
    found = planned(machine(*mib))
    assert found["ok"]
    assert found["server"]["n_cpu_moe"] == 0
    assert found["server"]["extra_args"][1] == ("41,0" if mib[0] > mib[1] else "0,41")
    small = found["memory"]["gpus"][mib.index(1_024)]
    assert (small["weights"], small["compute"], small["reserve"], small["free"]) == (0, 0, 1_024 * MIB, 0)


def test_of_several_cards_the_one_that_is_too_small_is_named() -> None:
    wanted = Wanted(mmproj=True)
    assert "and card 0 has too little for its part: the first GPU has the projector" in refused(machine(1_024, 24_564), wanted)
    assert report(machine(24_564, 1_024), wanted, [Q4]).ok


@given(wishes, st.integers(2_000, 48_000), st.integers(4, 64), st.sampled_from(ALL))
@settings(max_examples=60)
def test_a_plan_that_fits_is_within_what_there_is(wanted: Wanted, mib: int, guest: int, model: Model) -> None:
    of = machine(mib, guest=guest, host=None)
    plan = planner.fit(of, wanted, model)
    enough = plan.needs.vram.total + sum(plan.reserves) <= mib * MIB and plan.ram <= guest * GIB
    assert plan.fits == enough
    assert plan.load.ctx_size >= min(wanted.ctx_size, 8192)


# What is refused, and what works


def refused(of: Machine, wanted: Wanted, *candidates: Model) -> str:
    found = report(of, wanted, candidates or [Q4], ALL)
    assert not found.ok
    return "\n".join(found.refusals)


def test_context_above_the_models() -> None:
    assert "300000 is above the model's: nearest that works: 262144" in refused(machine(24_564), Wanted(ctx_size=300_000))
    near = report(machine(24_564), Wanted(ctx_size=300_000), [Q4]).nearest
    assert near
    assert near.fits


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [
        (Wanted(ctx_size=0), "256"),
        (Wanted(ctx_size=-3), "256"),
        (Wanted(parallel=0), "1"),
        (Wanted(parallel=65), "64"),  # the settings' limit
    ],
)
def test_a_context_and_slots_that_no_server_has(wanted: Wanted, nearest: str) -> None:
    assert f"{NEAREST} {nearest}" in refused(machine(24_564), wanted)
    near = report(machine(24_564), wanted, [Q4]).nearest
    assert near
    assert near.fits


def test_quantised_v_without_flash_attention() -> None:
    wanted = Wanted(cache_type_k="q8_0", cache_type_v="q8_0", flash_attn=False)
    assert "needs flash attention, which is off" in refused(machine(24_564), wanted)
    assert report(machine(24_564), replace(wanted, cache_type_v="f16"), [Q4]).ok


@pytest.mark.parametrize("pair", [("q8_0", "q4_0"), ("q5_1", "q5_1"), ("f16", "q8_0")])
def test_a_pair_of_types_that_the_build_lacks(pair: tuple[str, str]) -> None:
    wanted = Wanted(cache_type_k=pair[0], cache_type_v=pair[1])
    assert f"no flash attention for K {pair[0]} with V {pair[1]}" in refused(machine(24_564), wanted)
    assert report(machine(guest=40, host=None), replace(wanted, backend="cpu"), [Q4]).ok


def test_an_unknown_type() -> None:
    assert "q3_0 is no type of a KV cache" in refused(machine(24_564), Wanted(cache_type_k="q3_0", cache_type_v="q3_0"))


def test_a_host_part_that_exceeds_the_guest() -> None:
    said = refused(machine(8_188, guest=8, host=16), Wanted())
    assert "but the guest can have 10.0 GiB at most" in said
    near = report(machine(8_188, guest=8, host=16), Wanted(), [Q4], ALL).nearest
    assert near
    assert f"{NEAREST} {near.model.quant} with a context of {near.load.ctx_size}, --n-cpu-moe {near.load.n_cpu_moe}" in said
    assert planner.fit(machine(8_188, guest=8, host=16), Wanted(), near.model).fits


def test_more_ram_for_the_guest_is_asked_for_where_the_host_has_it() -> None:
    found = report(machine(8_188, guest=16, host=64), Wanted(), [Q4])
    assert found.ok
    document = plan_report.document(found)
    assert document["wsl"] == {"memory": "29GB", "swap": "8GB"}  # four compilers of 2.5 GB beside 18.7 GiB
    assert any("memory=29GB in .wslconfig, then wsl --shutdown" in sentence for sentence in found.warnings)


def test_nothing_fits_at_all() -> None:
    assert f"{NEAREST} none of the known quants" in refused(machine(2_048, guest=4, host=None), Wanted())


def test_a_card_that_is_too_small_for_anything_leaves_the_processor() -> None:
    assert "16384, all in RAM without the GPU (llama_cpp.backend cpu)" in refused(machine(1_024, guest=24, host=None), Wanted())
    near = report(machine(1_024, guest=24, host=None), Wanted(), [Q4]).nearest
    assert near
    assert (near.fits, near.load.n_gpu_layers, near.needs.gpus) == (True, 0, ())


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        (Gpu("card", None), "isn't reported ([N/A])"),
        (Gpu("card", 0), "reports 0 MiB"),
        (Gpu("card", 24_575 * MIB, -6_215 * MIB), "more memory free than it has"),
        (Gpu("card", 8_188 * MIB, 9_000 * MIB), "more memory in use than it has"),
    ],
)
def test_a_gpu_that_reports_nonsense(gpu: Gpu, says: str) -> None:
    assert says in refused(Machine((gpu,), 32 * GIB), Wanted())


def test_a_guest_with_more_than_its_host() -> None:
    assert "more RAM (24.0 GiB) than its host (16.0 GiB)" in refused(machine(8_188, guest=24, host=16), Wanted())


def test_prediction_and_its_file() -> None:
    predicting = planning.candidates_of("Qwen3.6-35B-A3B-MTP-UD-Q4_K_M", None, False)[0][0]
    assert any("stays unused" in said for said in report(machine(24_564), Wanted(), [predicting]).warnings)
    assert not any("stays unused" in said for said in report(machine(24_564), Wanted(mtp=True), [predicting]).warnings)
    assert "has no layer for multi-token prediction" in refused(machine(24_564), Wanted(mtp=True))


def test_a_projector_that_does_not_match() -> None:
    wanted = Wanted(mmproj=True)
    assert "vectors of 1024 values where" in refused(machine(24_564), wanted, replace(Q4, projector=Projector(900 * MIB, 1024)))
    assert "no projector with" in refused(machine(24_564), wanted, replace(Q4, projector=None))
    assert report(machine(24_564), wanted, [replace(Q4, projector=Projector(900 * MIB, 2048))]).ok


def test_another_architecture() -> None:
    summary = models.Summary("qwen3moe", Q4.summary.keys, Q4.summary.tensors)
    assert "of architecture 'qwen3moe'" in refused(machine(24_564), Wanted(), replace(Q4, summary=summary))


def test_a_plan_near_the_cards_size_warns_of_windows() -> None:
    """Field case 95: what is too much spills without an error."""
    assert any("a tenth of the speed" in said for said in report(machine(16_384, headless=True), Wanted(), [Q4]).warnings)
    assert not any("a tenth of the speed" in said for said in report(machine(16_384), Wanted(), [Q4]).warnings)


# What follows


def test_threads_are_those_of_cores() -> None:
    assert [plan_report.threads(cores) for cores in (None, 2, 4, 16, 20)] == [None, 2, 4, 8, 10]


def test_weights_are_mapped_where_ram_is_tight() -> None:
    roomy, tight = (machine(8_188, guest=guest, host=None) for guest in (32, 20))
    assert planned(roomy)["server"]["load_mode"] == "none"
    assert planned(tight)["server"]["load_mode"] == "mmap"


def test_download_and_build() -> None:
    found = planned(machine(12_282, cores=16), Wanted(mmproj=True))
    assert found["download"]["model"] == 22_134_528_992
    assert found["download"]["mmproj"] == 901_939_200
    assert found["download"]["total"] == sum(size for part, size in found["download"].items() if part != "total")
    assert found["build"] == {"minutes": 14, "jobs": 9, "core_minutes": 120, "mark": "estimated"}
    assert planned(machine(12_282))["build"]["minutes"] is None


def test_settings_are_asked_for_as_they_stand() -> None:
    asked = Settings.model_validate(
        {
            "model": {"path": "/m.gguf"},
            "server": {
                "ctx_size": 65536,
                "parallel": 2,
                "ubatch_size": 256,
                "n_cpu_moe": 7,
                "extra_args": ["--spec-type", "draft-mtp"],
            },
        }
    )
    wanted = planning.wanted_of(asked)
    assert (wanted.ctx_size, wanted.parallel, wanted.ubatch_size, wanted.n_cpu_moe, wanted.mtp) == (65536, 2, 256, 7, True)
    assert (wanted.batch_size, wanted.mmproj, wanted.backend) == (2048, False, "cuda")
    assert planner.fit(machine(49_140), wanted, Q4).load.n_cpu_moe == 7
    assert wanted.fixed == {"parallel", "ubatch_size", "n_cpu_moe", "extra_args"}
    assert wanted.least_ctx_size == 65536  # it is set, so it stays


def test_what_the_settings_do_not_say_is_open() -> None:
    def of(**given: Any) -> Wanted:
        return planning.wanted_of(Settings.model_validate({"model": {"path": "/m.gguf"}, **given}))

    assert (of().fixed, of().ctx_size, of().least_ctx_size) == (frozenset(), 16384, 8192)
    assert of(plan={"least_ctx_size": 4096}, server={"ctx_size": 65536}).least_ctx_size == 4096
    assert of(server={"batch_size": 256}).ubatch_size == 256  # llama-server takes no more of them either
    assert of(cuda={"flash_attention": False}).flash_attn is False
    assert of(cuda={"flash_attention": False}, llama_cpp={"backend": "cpu"}).flash_attn is True
    assert of(model={"path": "/m.gguf", "mmproj": "/p.gguf"}).mmproj is True


def test_what_is_planned_is_a_server_of_the_settings() -> None:
    of = machine(12_282, cores=8)
    found = report(of, Wanted(), [Q4])
    assert found.plan
    server = plan_report.server_settings(found.plan, of, Wanted())
    assert Settings.model_validate({"model": {"path": "/m.gguf"}, "server": server}).server.n_cpu_moe == found.plan.load.n_cpu_moe


def test_our_own_server_is_not_held_against_a_new_plan() -> None:
    log = (
        "load_tensors:        CUDA0 model buffer size =  1000.00 MiB\n"
        "load_tensors:   CPU_Mapped model buffer size =  9000.00 MiB\n"
        "llama_kv_cache:      CUDA0 KV buffer size =   320.50 MiB\nsched_reserve:      CUDA1 compute buffer size =    80.00 MiB\n"
    )
    assert planning.buffers(log) == [int(1320.5 * MIB), 80 * MIB]
    assert planning.buffers("listening") == []
    read = nvidia_smi.Reading("ok", (nvidia_smi.Gpu("a", 12_282, 2_000), nvidia_smi.Gpu("b", 12_282)))
    assert [gpu.used for gpu in planning.cards_of(read, [1320 * MIB])] == [120 * MIB, None]


# The command


def wsllama(*words: str | Path) -> Result:
    """The command, in this process: starting one takes longer than a plan."""
    done = CliRunner().invoke(app, ["plan", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


CARD = ("--gpu", "RTX 4070:12282", "--guest-ram-mib", "24576", "--host-ram-mib", "32768")


def test_a_machine_is_planned() -> None:
    p = wsllama(*CARD, "--model", "Qwen3.6-35B-A3B", "--quant", "UD-IQ4_XS", "--ctx-size", "65536", "--cache-type", "q8_0",
                "--parallel", "2", "--mmproj", "--headless", "--json")  # fmt: skip
    assert p.exit_code == 0, p.stderr
    found = json.loads(p.stdout)
    assert found["ok"]
    assert found["model"] == {"name": "Qwen3.6-35B-A3B-UD-IQ4_XS", "quant": "UD-IQ4_XS", "bytes": 17_730_509_792}
    server = {key: found["server"][key] for key in ("ctx_size", "parallel", "cache_type_k", "cache_type_v", "n_gpu_layers")}
    assert found["given_up"][0] == "slots: 1 instead of 2"
    assert server == {"ctx_size": 65536, "parallel": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "n_gpu_layers": 41}
    assert found["memory"]["vram"]["kv"] == 680 * MIB
    assert found["memory"]["vram"]["mmproj"] == 901_939_200 + memory.PICTURE
    assert found["hosts"][""]["server"] == found["server"]
    assert len(found["quants"]) == len(ALL)


def test_people_get_lines_and_a_table() -> None:
    p = wsllama(*CARD)
    assert p.exit_code == 0, p.stderr
    lines = p.stdout.splitlines()
    assert lines[0].startswith("Qwen3.6-35B-A3B-UD-Q4_K_M on RTX 4070 (12282 MiB): a context of 16384 for one request")
    assert any(line.startswith("UD-IQ2_XXS ") and line.endswith("yes") for line in lines)
    assert any(line.startswith("Q8_0 ") and line.endswith("no") for line in lines)


def test_a_file_is_planned_by_its_header(tmp_path: Path) -> None:
    file = ghost_model.write(tmp_path / "Qwen3.6-35B-A3B-Q4_K_M.gguf", tokens=8)[0]
    p = wsllama(*CARD, "--model", file, "--json")
    assert p.exit_code == 0, p.stderr
    found = json.loads(p.stdout)
    assert found["memory"]["marks"]["weights"] == "computed"
    assert found["model"] == {"name": file.name, "quant": "Q4_K_M", "bytes": file.stat().st_size}
    weights = found["memory"]["vram"]["weights"] + found["memory"]["ram"]["weights"]
    assert 0 < file.stat().st_size - weights < 2 * MIB  # its header
    small_gguf.projector(tmp_path / "mmproj-BF16.gguf")
    p = wsllama(*CARD, "--model", file, "--mmproj")
    assert p.exit_code == 2
    assert f"vectors of {small_gguf.WIDTH} values where" in p.stderr


def test_a_file_that_can_not_be_served_is_not_planned(tmp_path: Path) -> None:
    file = ghost_model.write(tmp_path / "cut.gguf", tokens=8)[0]
    os.truncate(file, file.stat().st_size - MIB)
    p = wsllama(*CARD, "--model", file)
    assert p.exit_code == 2
    assert "cut.gguf: it is cut off" in p.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "the RAM of the guest is needed"),
        (("--gpu", "RTX 4070", "--guest-ram-mib", "8192"), "isn't NAME:MIB"),
        (("--gpu", "RTX 4070:12GB", "--guest-ram-mib", "8192"), "'12GB' is no number of MiB"),
        (("--gpu", "RTX 4070:[N/A]", "--guest-ram-mib", "8192"), "isn't reported ([N/A])"),
        (("--gpu", "RTX 4070:0", "--guest-ram-mib", "8192"), "reports 0 MiB"),
        (("--guest-ram-mib", "8192", "--ctx-size", "0"), "a context of 0 holds no conversation: nearest that works: 256"),
        (("--guest-ram-mib", "8192", "--model", "Llama"), "wsllama.lock has no model Llama"),
        (("--guest-ram-mib", "8192", "--quant", "Q9"), "wsllama.lock has no quant Q9 of Qwen3.6-35B-A3B: it has "),
        (("--guest-ram-mib", "8192", "--model", "/nowhere/a.gguf"), "a.gguf: it is not there"),
        (("--guest-ram-mib", "8192", "--model", "Qwen/Qwen3.6-35B-A3B"), "has no model Qwen/Qwen3.6-35B-A3B: it has"),
        (("inventory", "--gpu", "a:1"), "leave the options that describe a machine or a model out"),
    ],
)
def test_wrong_input_is_said(words: tuple[str, ...], says: str) -> None:
    p = wsllama(*words)
    assert p.exit_code == 2
    assert says in p.stderr
    if words[:1] != ("inventory",):
        assert says in json.loads(wsllama(*words, "--json").stdout)["refusals"][0]


def test_a_refusal_is_a_document_too() -> None:
    p = wsllama("--gpu", "RTX 4060:8188", "--guest-ram-mib", "8192", "--host-ram-mib", "16384", "--quant", "UD-Q4_K_M", "--json")
    assert p.exit_code == 2
    found = json.loads(p.stdout)
    assert (found["ok"], found["server"]) == (False, None)
    assert found["nearest"]["model"]["bytes"] < Q4.bytes
    assert found["nearest"]["server"]["n_cpu_moe"] > 0


def test_the_page_of_plans_is_what_the_planner_says() -> None:
    assert plans_doc.PAGE.read_text(encoding="utf-8") == plans_doc.page(), "run .venv/bin/python -m wsllama.plans_doc"


# What a deploy asks for


CSV = "name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], compute_cap, driver_version\n"


def probed(row: str, returncode: int = 0) -> dict[str, Any]:
    said = {"command": "/usr/lib/wsl/lib/nvidia-smi --format=csv", "returncode": returncode, "text": CSV + row}
    return {"system": {"cores": 16, "memory_total": 24 * GIB}, "gpu": {"/usr/lib/wsl/lib/nvidia-smi": said}}


def test_settings_and_a_host_become_a_server() -> None:
    asked = Settings.model_validate(
        {"model": {"path": "/m.gguf"}, "server": {"ctx_size": 32768, "extra_args": ["--top-k", "20"]}}
    )
    assert set(planning.looks(asked)) == {"system", "gpu"}
    now = probed("NVIDIA GeForce RTX 4070, 12282 MiB, 900 MiB, [N/A], 8.9, 581.42\n")
    of, problems = planning.machine_of(asked, now, 32 * GIB)
    assert problems == []
    assert of == Machine((Gpu("NVIDIA GeForce RTX 4070", 12_282 * MIB, 900 * MIB),), 24 * GIB, 32 * GIB, False, 16, True)
    server, said = planning.server_for(asked, of, Q4)
    assert said.ok
    assert server
    assert 0 < (server.n_cpu_moe or 0) < 40
    assert (server.ctx_size, server.threads, server.n_gpu_layers, server.extra_args) == (32768, 8, 41, ("--top-k", "20"))
    assert server.port == asked.server.port


def test_a_host_without_a_readable_gpu_or_room_gets_no_server() -> None:
    asked = Settings.model_validate({"model": {"path": "/m.gguf"}})
    of, problems = planning.machine_of(asked, probed("NVIDIA GeForce RTX 4070, [N/A], [N/A], [N/A], 8.9, 581.42\n"))
    assert of.gpus == ()
    assert "reports no GPU with its memory ([N/A])" in problems[0]
    server, said = planning.server_for(asked, machine(8_188, guest=8, host=16), Q4)
    assert server is None
    assert "the host part" in said.refusals[0]


@pytest.mark.parametrize("cards", [(12_282,), (24_564, 8_188)])
def test_a_planned_server_asks_for_the_planned_memory(cards: tuple[int, ...]) -> None:
    asked = Settings.model_validate({"model": {"path": "/m.gguf", "mmproj": "/p.gguf"}, "server": {"ctx_size": 65536}})
    server, said = planning.server_for(asked, machine(*cards, guest=32, host=64), Q4)
    assert server
    assert said.plan
    assert Q4.projector
    assert planning.load_of(server, Q4.projector.bytes) == said.plan.load


def test_figures_of_less_on_the_same_machine() -> None:
    of = machine(24_564, guest=32, host=64)
    whole = plan_report.document(report(of, Wanted(ctx_size=32768), [Q4]))["memory"]
    load = planner.fit(of, Wanted(ctx_size=32768), Q4).load
    assert plan_report.figures(whole, Q4, load) == whole
    less = plan_report.figures(whole, Q4, replace(load, ctx_size=8192))
    assert (less["gpus"][0]["kv"], less["vram"]["kv"]) == (160 * MIB, 160 * MIB)  # the published figure
    assert less["gpus"][0]["reserve"] == whole["gpus"][0]["reserve"]
    assert less["ram"]["possible"] == 56 * GIB


@pytest.mark.parametrize("found", [None, {}, [], {"architecture": "a", "keys": {}, "tensors": {}}, {"keys": 1}])
def test_a_summary_that_is_none(found: Any) -> None:
    assert planning.summary_of(found) is None
    assert planning.summary_of(asdict(Q4.summary)) == Q4.summary
