"""Memory of a load: against published figures, and against what llama.cpp at the pin reserves for the real model's shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsllama.domain import memory, models
from wsllama.domain.memory import MIB, Load, Shape

MODEL = models.estimate(22_134_528_992)
SHAPE = Shape.of(MODEL)
ALL = 41  # layers with the output

# MiB of the KV cache; from logs of real servers where it isn't a round number
KV = [
    (4_096, "f16", 80), (4_096, "q8_0", 42.5), (4_096, "q4_0", 22.5),
    (8_192, "f16", 160), (8_192, "q8_0", 85), (8_192, "q4_0", 45),
    (32_768, "f16", 640), (32_768, "q8_0", 340), (32_768, "q4_0", 180),
    (54_784, "f16", 1_070), (65_536, "f16", 1_280), (65_536, "q8_0", 680), (65_536, "q4_0", 360),
    (131_072, "f16", 2_560), (131_072, "q8_0", 1_360), (131_072, "q4_0", 720),
    (132_352, "f16", 2_585), (132_352, "q8_0", 1_373.28125),
    (262_144, "f16", 5_120), (262_144, "q8_0", 2_720), (262_144, "q4_0", 1_440),
]  # fmt: skip


@pytest.mark.parametrize(("ctx_size", "kind", "mib"), KV)
def test_kv_cache_is_the_published_one_to_the_byte(ctx_size: int, kind: str, mib: float) -> None:
    load = Load(ctx_size, 4, kind, kind, n_gpu_layers=ALL)
    assert memory.needs(MODEL, load).gpus[0].kv == mib * MIB


@pytest.mark.parametrize(
    ("kind", "a_token"), [("q5_1", 7_680), ("q5_0", 7_040), ("bf16", 20_480), ("iq4_nl", 5_760), ("f32", 40_960)]
)
def test_kv_cache_of_other_types(kind: str, a_token: int) -> None:
    assert memory.kv_bytes(SHAPE, Load(4096, 1, kind, kind), 10) == 4096 * a_token


def test_layers_with_full_attention_are_the_published_ones() -> None:
    assert SHAPE.attention == (3, 7, 11, 15, 19, 23, 27, 31, 35, 39)


def test_a_divided_context_is_what_facts_say() -> None:
    """Each slot has its part, padded; a mask of that part only: llama-fit-params reserves 124 MiB here, unified it were more."""
    load = Load(262_144, 16, ubatch_size=128, unified=False)
    assert (load.slot_cells, load.cells) == (16_384, 262_144)
    assert Load(4096, 3, unified=False).cells == 3 * 1536
    assert memory.fit_rows(MODEL, replace(load, unified=True))[-1].compute == pytest.approx(124, abs=16)
    assert memory.needs(MODEL, replace(load, unified=True), 0).ram.compute > 140 * MIB


def test_context_is_padded_to_256_cells() -> None:
    assert memory.kv_bytes(SHAPE, Load(4097), 10) == 4352 * 20_480


@pytest.mark.parametrize(("slots", "mib"), [(1, 62.8125), (4, 251.25)])
def test_recurrent_state_is_the_published_one_and_knows_no_context(slots: int, mib: float) -> None:
    for ctx_size in (4096, 262_144):
        assert memory.needs(MODEL, Load(ctx_size, slots, n_gpu_layers=ALL)).gpus[0].recurrent == mib * MIB


def test_a_checkpoint_is_one_state_in_ram() -> None:
    ram = memory.needs(MODEL, Load(4096, 2, n_gpu_layers=ALL, ctx_checkpoints=8, cache_ram=512)).ram
    assert (ram.checkpoints, ram.cache_ram, ram.recurrent) == (16 * 62.8125 * MIB, 512 * MIB, 0)


def test_prediction_takes_a_layer_of_kv_and_four_states_a_slot() -> None:
    with_layer = models.estimate(22_660_000_000, mtp=True)
    off, on = (
        memory.needs(with_layer, Load(262_144, 4, "q4_0", "q4_0", n_gpu_layers=ALL, mtp=mtp)).gpus[0] for mtp in (False, True)
    )
    assert on.kv - off.kv == 262_144 * 2_048
    assert (off.recurrent, on.recurrent) == (251.25 * MIB, 1005 * MIB)
    assert on.weights - off.weights == with_layer.tensors.mtp


def test_prediction_as_a_real_server_logs_it() -> None:
    """A server at the pin on the real shapes with -c 8192 -np 2 -kvu -ctk q8_0 -ctv q8_0 --spec-type draft-mtp, both contexts."""
    with_layer = models.estimate(22_660_000_000, mtp=True)
    ram = memory.needs(with_layer, Load(8192, 2, "q8_0", "q8_0", mtp=True), 0).ram
    assert (ram.kv, ram.recurrent) == ((85 + 16) * MIB, 502.5 * MIB)
    assert_near(ram.compute, 92.66 + 68.02)
    assert ram.output == pytest.approx((1.89 + 1.89) * MIB, abs=MIB / 50)


# What llama_init_from_model reserves for compute at the pin, for all layers on a device and experts of n_cpu_moe of them in RAM:
# context, slots, micro-batch, n_cpu_moe, type of KV: MiB on the device, MiB in RAM. The device was ggml's RPC, the model a file
# with the shapes of Qwen3.6-35B-A3B.
RESERVED = [
    (256, 1, 512, 20, "f16", 38.14, 32.38), (1_024, 1, 512, 20, "f16", 77.03, 65.52),
    (8_192, 1, 512, 20, "f16", 84.03, 72.52), (32_768, 1, 512, 20, "f16", 108.03, 96.52),
    (131_072, 1, 512, 20, "f16", 204.03, 192.52), (262_144, 1, 512, 20, "f16", 332.03, 320.52),
    (4_096, 1, 2_048, 20, "f16", 320.13, 274.07), (131_072, 1, 2_048, 20, "f16", 816.13, 770.07),
    (8_192, 1, 64, 20, "f16", 13.1, 9.06), (8_192, 1, 4_096, 20, "f16", 336.13, 290.07),
    (4_096, 1, 512, 0, "f16", 72.02, 12.02), (32_768, 1, 512, 0, "f16", 100.02, 40.02),
    (262_144, 1, 512, 0, "f16", 324.02, 264.02), (8_192, 1, 2_048, 0, "f16", 304.06, 64.07),
    (8_192, 1, 512, 1, "f16", 84.03, 72.52), (8_192, 1, 512, 2, "f16", 88.02, 72.52),
    (8_192, 1, 512, 39, "f16", 75.19, 72.52), (8_192, 1, 512, 40, "f16", 64.13, 72.52),
    (8_192, 8, 512, 20, "f16", 104.78, 72.52), (8_192, 64, 512, 20, "f16", 338.03, 72.52),
    (8_192, 16, 128, 20, "f16", 84.51, 18.13), (8_192, 64, 2_048, 20, "f16", 550.13, 290.07),
    (8_192, 4, 512, 0, "f16", 76.02, 16.02), (8_192, 16, 512, 40, "f16", 124.03, 72.52),
    (131_072, 1, 512, 20, "q8_0", 204.3, 192.78), (131_072, 1, 512, 20, "f32", 428.03, 192.52),
]  # fmt: skip


@pytest.mark.parametrize(("ctx_size", "slots", "micro_batch", "moved", "kind", "device", "ram"), RESERVED)
def test_compute_is_what_llama_cpp_reserves(
    ctx_size: int, slots: int, micro_batch: int, moved: int, kind: str, device: float, ram: float
) -> None:
    load = Load(ctx_size, slots, kind, kind, ubatch_size=micro_batch, n_gpu_layers=ALL, n_cpu_moe=moved)
    has = memory.needs(MODEL, load)
    assert_near(has.gpus[0].compute, device)
    assert_near(has.ram.compute, ram)


@pytest.mark.parametrize(("ctx_size", "mib"), [(4_096, 182.03), (32_768, 1134.03), (131_072, 4398.03)])
def test_compute_without_flash_attention(ctx_size: int, mib: float) -> None:
    assert_near(memory.needs(MODEL, Load(ctx_size, flash_attn=False, n_gpu_layers=ALL, n_cpu_moe=20)).gpus[0].compute, mib)


@pytest.mark.parametrize(("slots", "mib"), [(1, 80.02), (8, 96.77), (64, 332.02)])
def test_compute_of_the_processor_alone(slots: int, mib: float) -> None:
    assert_near(memory.needs(MODEL, Load(8192, slots), 0).ram.compute, mib)


def assert_near(size: int, mib: float) -> None:
    assert abs(size - mib * MIB) <= max(16 * MIB, 0.05 * mib * MIB), f"{size / MIB:.2f} MiB, reserved are {mib} MiB"


def test_public_log_of_full_offload_at_54784() -> None:
    """61.5 MiB on the host, 515.31 MiB for the embedding when it is Q8_0: a public log of an older build (Vulkan)."""
    ram = memory.needs(MODEL, Load(54_784, n_gpu_layers=ALL)).ram
    assert ram.compute == 61.5 * MIB
    assert (ram.weights, ram.kv) == (MODEL.tensors.embedding, 0)
    assert pytest.approx(515.31 * MIB, abs=MIB / 100) == models.EMBEDDING * 34 // 32


def test_every_byte_of_the_weights_is_somewhere() -> None:
    for layers in (0, 1, 17, 40, 41):
        for moved in (0, 1, 20, 40):
            has = memory.needs(MODEL, Load(4096, n_gpu_layers=layers, n_cpu_moe=moved))
            assert has.gpus[0].weights + has.ram.weights == MODEL.tensors.total


def test_layers_go_to_gpus_from_the_back_as_split_says() -> None:
    assert memory.places(4, Load(256, n_gpu_layers=2), 1) == [-1, -1, -1, 0, 0]
    assert memory.places(4, Load(256, n_gpu_layers=99, split=(3, 2)), 2) == [0, 0, 0, 1, 1]
    assert memory.places(4, Load(256, n_gpu_layers=99), 0) == [-1] * 5


def test_a_projector_is_on_the_first_gpu_with_its_largest_picture() -> None:
    load = Load(4096, n_gpu_layers=ALL, mmproj=900 * MIB, split=(21, 20))
    first, second = memory.needs(MODEL, load, 2).gpus
    assert (first.mmproj, second.mmproj) == (900 * MIB + memory.PICTURE, 0)
    assert memory.needs(MODEL, load, 0).ram.mmproj == first.mmproj


sizes = st.integers(256, 262_144)
loads = st.builds(
    Load,
    ctx_size=sizes,
    parallel=st.integers(1, 16),
    cache_type_k=st.sampled_from(sorted(memory.CACHE_TYPES)),
    ubatch_size=st.sampled_from([64, 128, 512, 2048]),
    flash_attn=st.booleans(),
    n_gpu_layers=st.integers(0, 41),
    n_cpu_moe=st.integers(0, 40),
    mtp=st.booleans(),
)


@given(loads, sizes, st.integers(0, 1))
def test_more_context_never_lowers_memory(load: Load, other: int, gpus: int) -> None:
    less, more = sorted((load.ctx_size, other))
    small, large = (memory.needs(MODEL, replace(load, ctx_size=size), gpus) for size in (less, more))
    assert small.ram.total <= large.ram.total
    assert small.vram.total <= large.vram.total


@given(loads)
def test_what_is_not_on_the_gpu_is_in_ram(load: Load) -> None:
    apart, whole = memory.needs(MODEL, load, 1), memory.needs(MODEL, load, 0).ram
    assert apart.gpus[0].weights + apart.ram.weights == whole.weights
    assert apart.gpus[0].recurrent + apart.ram.recurrent == whole.recurrent


# llama-fit-params


FIT = """\
CUDA0 11190 331 497 \n\
Host 9552 0 65 \n"""


def test_rows_of_llama_fit_params_are_read() -> None:
    assert memory.read_fit(FIT) == [memory.FitRow("CUDA0", 11190, 331, 497), memory.FitRow("Host", 9552, 0, 65)]
    with pytest.raises(ValueError, match="no row of Host"):
        memory.read_fit("error: failed to load model\n")


def test_its_logits_for_every_token_are_compensated() -> None:
    """Facts: 502 MiB at -ub 512, 1988 MiB at -ub 2048, of which the server reserves a slot's share only."""
    for micro_batch, mib in ((512, 502), (2048, 1988)):
        row = memory.fit_rows(MODEL, Load(32_768, 4, ubatch_size=micro_batch))[-1]
        assert_near(row.compute * MIB, mib)


def test_a_disagreement_is_said_and_a_rounding_is_none() -> None:
    theirs = memory.read_fit(FIT)
    ours = [memory.FitRow("GPU0", 11191, 331, 480), memory.FitRow("Host", 9552, 0, 66)]
    assert memory.disagreements(ours, theirs) == []
    wrong = [memory.FitRow("GPU0", 11190, 291, 497), memory.FitRow("Host", 9552, 0, 95)]
    assert memory.disagreements(wrong, theirs) == [
        "CUDA0: llama-fit-params says 331 MiB for context, the plan 291 MiB",
        "Host: llama-fit-params says 65 MiB for compute, the plan 95 MiB",
    ]
    assert memory.disagreements(ours[1:], theirs) == ["llama-fit-params counts 1 GPUs, the plan 0"]


def test_arguments_of_llama_fit_params_leave_out_what_it_refuses() -> None:
    words = memory.fit_arguments(Load(8192, 2, "q8_0", "q8_0", n_gpu_layers=41, n_cpu_moe=7, split=(20, 21)))
    assert "--kv-unified" not in words
    assert words[words.index("-ts") + 1] == "20,21"
    assert words[words.index("-ncmoe") + 1] == "7"
