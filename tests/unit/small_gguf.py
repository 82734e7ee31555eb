"""GGUFs of a few kilobytes that pass the audit of any size: one block, two experts, a chat template."""

from collections.abc import Mapping
from pathlib import Path

import gguf as library
import numpy as np

WIDTH = 32
BASE = {"general.base_model.0.repo_url": "https://huggingface.co/Qwen/Qwen3.6-35B-A3B"}


def model(path: Path, names: Mapping[str, str] | None = None, *, architecture: str = "qwen35moe", rows: int = 8,
          template: str = "<think>{{ messages }}", seed: int = 0) -> Path:  # fmt: skip
    """Write a model; `rows` of its embedding decide how large it is, `seed` its bytes."""
    writer = library.GGUFWriter(path, architecture)
    for name, text in (BASE if names is None else names).items():
        writer.add_string(name, text)
    keys = {"block_count": 1, "embedding_length": WIDTH, "expert_count": 2, "expert_used_count": 1, "context_length": 262_144,
            "full_attention_interval": 4}  # fmt: skip
    for name, value in keys.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_chat_template(template)
    chance = np.random.default_rng(seed)
    writer.add_tensor("token_embd.weight", chance.random((rows, WIDTH), np.float32))
    for part in ("gate", "up", "down"):
        writer.add_tensor(f"blk.0.ffn_{part}_exps.weight", chance.random((2, 16, WIDTH), np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(WIDTH, np.float32))
    return _written(writer, path)


def projector(path: Path, width: int = WIDTH) -> Path:
    """Write a projector for it."""
    writer = library.GGUFWriter(path, "clip")
    writer.add_uint32("clip.vision.projection_dim", width)
    writer.add_tensor("mm.2.bias", np.zeros(width, np.float32))
    return _written(writer, path)


def _written(writer: library.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
