"""A GGUF with random weights for benchmarks, of the architecture of Qwen3.6-35B-A3B: layers as wide as its own and quantised as
in a Q4_K_M, but few of them and with fewer experts. 0.4 GB; a token passes through about 0.25 billion weights.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from lab.tiny_model import ARCHITECTURE, put_tokenizer, vocabulary

LAYERS, EXPERTS = 4, 32  # 40 and 256 in the real model; the other sizes are its own
WIDTH, HEADS, HEADS_KV, HEAD = 2048, 16, 2, 256
EXPERTS_USED, FF = 8, 512
CONV, STATE, GROUPS, TIME_STEP_RANK, INTERVAL = 4, 128, 16, 32, 4
KEY_DIM, INNER = STATE * GROUPS, STATE * TIME_STEP_RANK
SCALE = 2e-4  # of a quantised block: weights of about 0.01

Shape = tuple[int, ...]


def tensors(vocabulary_size: int) -> Iterator[tuple[str, Shape, str]]:
    """Name, shape (the length of a row last) and type of every tensor that src/models/qwen35moe.cpp asks for."""
    yield "token_embd.weight", (vocabulary_size, WIDTH), "Q8_0"
    yield "output_norm.weight", (WIDTH,), "F32"
    yield "output.weight", (vocabulary_size, WIDTH), "Q8_0"
    for layer in range(LAYERS):
        attention = _linear() if (layer + 1) % INTERVAL else _full()
        for name, shape, kind in (*attention, *_experts()):
            yield f"blk.{layer}.{name}", shape, kind


def _full() -> Iterator[tuple[str, Shape, str]]:
    yield "attn_q.weight", (2 * HEADS * HEAD, WIDTH), "Q8_0"
    yield from ((f"attn_{name}.weight", (HEADS_KV * HEAD, WIDTH), "Q8_0") for name in "kv")
    yield "attn_output.weight", (WIDTH, HEADS * HEAD), "Q8_0"
    yield from ((f"attn_{name}_norm.weight", (HEAD,), "F32") for name in "qk")


def _linear() -> Iterator[tuple[str, Shape, str]]:
    yield "attn_qkv.weight", (2 * KEY_DIM + INNER, WIDTH), "Q8_0"
    yield "attn_gate.weight", (INNER, WIDTH), "Q8_0"
    yield "ssm_conv1d.weight", (2 * KEY_DIM + INNER, CONV), "F32"
    yield from ((name, (TIME_STEP_RANK,), "F32") for name in ("ssm_dt.bias", "ssm_a"))
    yield from ((f"ssm_{name}.weight", (TIME_STEP_RANK, WIDTH), "Q8_0") for name in ("beta", "alpha"))
    yield "ssm_norm.weight", (STATE,), "F32"
    yield "ssm_out.weight", (WIDTH, INNER), "Q8_0"


def _experts() -> Iterator[tuple[str, Shape, str]]:
    yield from ((f"{name}.weight", (WIDTH,), "F32") for name in ("attn_norm", "post_attention_norm", "ffn_gate_inp_shexp"))
    yield "ffn_gate_inp.weight", (EXPERTS, WIDTH), "F32"
    yield from ((f"ffn_{name}_exps.weight", (EXPERTS, FF, WIDTH), "Q4_K") for name in ("gate", "up"))
    yield "ffn_down_exps.weight", (EXPERTS, WIDTH, FF), "Q4_K"
    yield from ((f"ffn_{name}_shexp.weight", (FF, WIDTH), "Q8_0") for name in ("gate", "up"))
    yield "ffn_down_shexp.weight", (WIDTH, FF), "Q8_0"


def drawn(random: np.random.Generator, name: str, shape: Shape, kind: str) -> Any:
    """Weights: of a quantised type the bytes of its blocks, random but for the scales at their start."""
    if kind == "F32":
        if "norm" in name:
            return np.ones(shape, "<f4")
        values = random.normal(0, 0.02, shape).astype("<f4")
        return -1 - np.abs(values) if name.endswith("ssm_a") else values  # a decay has to be negative
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = random.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    scales = np.array([SCALE] if kind == "Q8_0" else [SCALE / 8, SCALE], "<f2").view(np.uint8)  # of Q4_K also the least value
    blocks[..., : len(scales)] = scales
    return blocks.reshape(*shape[:-1], -1)


def write(path: Path, seed: int = 1) -> Path:
    """Write the model to `path` and return that; seed: of the weights."""
    vocab, random = vocabulary(), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_name("Random weights, as wide as Qwen3.6-35B-A3B")
    whole = {
        "block_count": LAYERS, "context_length": 262_144, "embedding_length": WIDTH,
        "attention.head_count": HEADS, "attention.head_count_kv": HEADS_KV,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": 64,
        "expert_count": EXPERTS, "expert_used_count": EXPERTS_USED,
        "expert_feed_forward_length": FF, "expert_shared_feed_forward_length": FF,
        "ssm.conv_kernel": CONV, "ssm.state_size": STATE, "ssm.group_count": GROUPS,
        "ssm.time_step_rank": TIME_STEP_RANK, "ssm.inner_size": INNER, "full_attention_interval": INTERVAL,
    }  # fmt: skip
    for key, value in whole.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    writer.add_float32(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{ARCHITECTURE}.rope.freq_base", 1e7)
    writer.add_array(f"{ARCHITECTURE}.rope.dimension_sections", [11, 11, 10, 0])
    put_tokenizer(writer, vocab)
    for name, shape, kind in tensors(len(vocab.tokens)):
        raw = None if kind == "F32" else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, drawn(random, name, shape, kind), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
