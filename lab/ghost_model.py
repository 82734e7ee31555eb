"""A GGUF with all keys and tensor shapes of Qwen3.6-35B-A3B and holes in place of weights: some MiB on disk.

Its header is as long and its size as large as a real quant's, so headers, sizes, plans and placements can be tried; llama.cpp's
llama-fit-params reads it. It can't be served, because all weights are zeros.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ARCHITECTURE = "qwen35moe"
TEMPLATE = Path(__file__).with_name("tiny_template.jinja")
LAYERS, WIDTH, VOCABULARY = 40, 2048, 248_320
HEADS, HEADS_KV, HEAD = 16, 2, 256
EXPERTS, EXPERTS_USED, FF_EXPERT, FF_SHARED = 256, 8, 512, 512
CONV, STATE, GROUPS, TIME_STEP_RANK = 4, 128, 16, 32
KEY_DIM, INNER = STATE * GROUPS, STATE * TIME_STEP_RANK
INTERVAL = 4

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Types:
    """Names of ggml's types for each kind of tensor, as a quant mixes them."""

    gate_up: str = "Q4_K"
    down: str = "Q5_K"
    dense: str = "Q8_0"
    embedding: str = "Q4_K"
    output: str = "Q6_K"


def keys(mtp: bool, layers: int = LAYERS) -> dict[str, int]:
    """The hyper-parameters after `qwen35moe.`."""
    return {
        "block_count": layers + mtp, "context_length": 262_144, "embedding_length": WIDTH,
        "attention.head_count": HEADS, "attention.head_count_kv": HEADS_KV,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": 64,
        "expert_count": EXPERTS, "expert_used_count": EXPERTS_USED,
        "expert_feed_forward_length": FF_EXPERT, "expert_shared_feed_forward_length": FF_SHARED,
        "ssm.conv_kernel": CONV, "ssm.state_size": STATE, "ssm.group_count": GROUPS,
        "ssm.time_step_rank": TIME_STEP_RANK, "ssm.inner_size": INNER, "full_attention_interval": INTERVAL,
        **({"nextn_predict_layers": 1} if mtp else {}),
    }  # fmt: skip


def tensors(types: Types, mtp: bool, layers: int = LAYERS) -> Iterator[tuple[str, Shape, str]]:
    """Name, shape (the length of a row last) and type of every tensor, in the file's order."""
    yield "token_embd.weight", (VOCABULARY, WIDTH), types.embedding
    yield "output_norm.weight", (WIDTH,), "F32"
    yield "output.weight", (VOCABULARY, WIDTH), types.output
    for layer in range(layers + mtp):
        full = layer >= layers or (layer + 1) % INTERVAL == 0
        parts = [*_attention(full, types), *_experts(types), *(_prediction(types) if layer >= layers else ())]
        for name, shape, kind in parts:
            yield f"blk.{layer}.{name}", shape, kind


def _attention(full: bool, types: Types) -> Iterator[tuple[str, Shape, str]]:
    yield from ((f"{name}.weight", (WIDTH,), "F32") for name in ("attn_norm", "post_attention_norm"))
    if full:
        yield "attn_q.weight", (2 * HEADS * HEAD, WIDTH), types.dense
        yield from ((f"{name}.weight", (HEADS_KV * HEAD, WIDTH), types.dense) for name in ("attn_k", "attn_v"))
        yield "attn_output.weight", (WIDTH, HEADS * HEAD), types.dense
        yield from ((f"{name}.weight", (HEAD,), "F32") for name in ("attn_q_norm", "attn_k_norm"))
        return
    yield "attn_qkv.weight", (2 * KEY_DIM + INNER, WIDTH), types.dense
    yield "attn_gate.weight", (INNER, WIDTH), types.dense
    yield "ssm_conv1d.weight", (2 * KEY_DIM + INNER, CONV), "F32"
    yield from ((name, (TIME_STEP_RANK,), "F32") for name in ("ssm_dt.bias", "ssm_a"))
    yield from ((f"{name}.weight", (TIME_STEP_RANK, WIDTH), types.dense) for name in ("ssm_beta", "ssm_alpha"))
    yield "ssm_norm.weight", (STATE,), "F32"
    yield "ssm_out.weight", (WIDTH, INNER), types.dense


def _experts(types: Types) -> Iterator[tuple[str, Shape, str]]:
    yield "ffn_gate_inp.weight", (EXPERTS, WIDTH), "F32"
    yield from ((f"ffn_{name}_exps.weight", (EXPERTS, FF_EXPERT, WIDTH), types.gate_up) for name in ("gate", "up"))
    yield "ffn_down_exps.weight", (EXPERTS, WIDTH, FF_EXPERT), types.down
    yield "ffn_gate_inp_shexp.weight", (WIDTH,), "F32"
    yield from ((f"ffn_{name}_shexp.weight", (FF_SHARED, WIDTH), types.dense) for name in ("gate", "up"))
    yield "ffn_down_shexp.weight", (WIDTH, FF_SHARED), types.dense


def _prediction(types: Types) -> Iterator[tuple[str, Shape, str]]:
    yield "nextn.eh_proj.weight", (WIDTH, 2 * WIDTH), types.dense
    yield from ((f"nextn.{name}.weight", (WIDTH,), "F32") for name in ("enorm", "hnorm", "shared_head_norm"))


def write(path: Path | str, types: Types | None = None, *, mtp: bool = False, shard_tensors: int = 0, template: bool = True,
          tokens: int = VOCABULARY, layers: int = LAYERS,
          change: Mapping[str, int] | None = None, names: Mapping[str, str] | None = None) -> list[Path]:  # fmt: skip
    """Write the model to `path` and return its files.

    - types: of the tensors
    - mtp: with a layer for multi-token prediction
    - shard_tensors: tensors a file, of which the names then end in -00001-of-0000N.gguf; 0: one file
    - template: with a chat template
    - tokens: that are listed in the header; fewer than the vocabulary's make a quick small header
    - layers: of the model; each takes as much as one of the real model
    - change: other hyper-parameters than the model's, by their name after `qwen35moe.`
    - names: more keys with text, as in {"general.base_model.0.repo_url": ...}
    """
    path = Path(path)
    writer = gguf.GGUFWriter(path, ARCHITECTURE, split_max_tensors=shard_tensors)
    for name, text in {"general.name": "Qwen3.6-35B-A3B", **(names or {})}.items():
        writer.add_string(name, text)
    for name, value in {**keys(mtp, layers), **(change or {})}.items():
        writer.add_uint32(f"{ARCHITECTURE}.{name}", value)
    _put_the_rest(writer, template, tokens)
    ends: list[int] = [0]
    for number, (name, shape, kind) in enumerate(tensors(types or Types(), mtp, layers)):
        if shard_tensors and number and number % shard_tensors == 0:
            ends.append(0)
        ends[-1] = -(-ends[-1] // 32) * 32 + _announce(writer, name, shape, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    files = [Path(file.name) for file in writer.fout or []]
    starts = [-(-file.tell() // 32) * 32 for file in writer.fout or []]
    writer.close()
    for file, start, end in zip(files, starts, ends, strict=True):
        os.truncate(file, start + end)
    return files


def _put_the_rest(writer: gguf.GGUFWriter, template: bool, tokens: int) -> None:
    writer.add_array(f"{ARCHITECTURE}.rope.dimension_sections", [11, 11, 10, 0])
    writer.add_float32(f"{ARCHITECTURE}.rope.freq_base", 1e7)
    writer.add_float32(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list([f"t{number}" for number in range(tokens)])
    writer.add_token_types([1] * tokens)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(248_046)
    writer.add_pad_token_id(248_055)
    if template:
        writer.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))


def _announce(writer: gguf.GGUFWriter, name: str, shape: Shape, kind: str) -> int:
    """Put a tensor into the header; returns its bytes."""
    number = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[number]
    size: int = math.prod(shape) // block * block_bytes
    plain: dict[str, Any] = {"F32": np.float32, "F16": np.float16}
    in_bytes = shape if kind in plain else (*shape[:-1], shape[-1] // block * block_bytes)
    writer.add_tensor_info(name, in_bytes, np.dtype(plain.get(kind, np.uint8)), size, raw_dtype=number)
    return size
