"""A small projector of the type that Qwen3.6-35B-A3B has (`qwen3vl_merger`), 1 MiB, which sees one thing: red or blue.

It belongs to the small model with the script `senses` (lab/tiny_model.py). The first two values of a patch are how much redder
than blue it is, and the other way round; nothing in the layers changes them; the merger hands them to the model where it looks
for them. A blind one gives the same vector for every picture: it is loaded and served, and what it shows is nothing.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from lab import tiny_model

EXAMPLES = """examples:
  python -m lab.tiny_projector mmproj-tiny.gguf
  python -m lab.tiny_projector mmproj-blind.gguf --blind"""

# Sizes; behind each the value of the real projector.
WIDTH, HEADS, FEED_FORWARD, LAYERS, PATCH, IMAGE = 64, 4, 128, 2, 16, 768  # 1152, 16, 4304, 27, 16, 768

Put = Callable[..., None]


def put_keys(writer: gguf.GGUFWriter, width: int) -> None:
    writer.add_type("mmproj")
    writer.add_name("Tiny Qwen3.6 35B A3B test projector")
    writer.add_string("general.basename", "Qwen3.6-35B-A3B")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "qwen3vl_merger")
    writer.add_bool("clip.use_gelu", True)
    whole = {
        "image_size": IMAGE, "patch_size": PATCH, "embedding_length": WIDTH, "feed_forward_length": FEED_FORWARD,
        "projection_dim": width, "block_count": LAYERS, "attention.head_count": HEADS, "spatial_merge_size": 2,
    }  # fmt: skip
    for key, value in whole.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.is_deepstack_layers", [False] * LAYERS)
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_F16))


def put_layers(put: Put) -> None:
    """Layers that add nothing to what comes in."""
    for layer in range(LAYERS):
        for name in ("ln1", "ln2"):
            put(f"v.blk.{layer}.{name}.weight", np.ones(WIDTH), exact=True)
            put(f"v.blk.{layer}.{name}.bias", np.zeros(WIDTH), exact=True)
        for name, out, into in (
            ("attn_qkv", 3 * WIDTH, WIDTH),
            ("attn_out", WIDTH, WIDTH),
            ("ffn_up", FEED_FORWARD, WIDTH),
            ("ffn_down", WIDTH, FEED_FORWARD),
        ):
            put(f"v.blk.{layer}.{name}.weight", np.zeros((out, into)))
            put(f"v.blk.{layer}.{name}.bias", np.zeros(out), exact=True)


def put_sight(put: Put, width: int, red: int, blue: int, blind: bool) -> None:
    """What comes in and what goes out: two values, redder and bluer."""
    patch = np.zeros((WIDTH, 3, PATCH, PATCH))  # colours are red, green, blue, each from -1 to 1
    patch[0, 0] = patch[1, 2] = 1 / (4 * PATCH * PATCH)
    patch[0, 2] = patch[1, 0] = -1 / (4 * PATCH * PATCH)
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):  # of two frames, which are the same picture
        put(name, patch)
    put("v.patch_embd.bias", np.zeros(WIDTH), exact=True)
    put("v.position_embd.weight", np.zeros(((IMAGE // PATCH) ** 2, WIDTH)), exact=True)
    put("v.post_ln.weight", np.ones(WIDTH), exact=True)
    put("v.post_ln.bias", np.zeros(WIDTH), exact=True)
    merge = np.zeros((4 * WIDTH, 4 * WIDTH))  # four patches side by side
    for of in range(4):
        merge[0, of * WIDTH] = merge[1, of * WIDTH + 1] = 1 / 4
    put("mm.0.weight", merge)
    put("mm.0.bias", np.zeros(4 * WIDTH), exact=True)
    out = np.zeros((width, 4 * WIDTH))
    if not blind:
        out[red, 0] = out[blue, 1] = 1.0
    put("mm.2.weight", out)
    put("mm.2.bias", np.full(width, 0.01), exact=True)


def write(path: Path | str, blind: bool = False) -> Path:
    """Write the projector to `path`, aside and then renamed; returns the path. blind: it sees no colour."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    vocab = tiny_model.vocabulary("senses")
    _, red, blue = tiny_model.signals(vocab)
    width = len(vocab.tokens)
    writer = gguf.GGUFWriter(aside, "clip")

    def put(tensor: str, values: Any, exact: bool = False) -> None:
        writer.add_tensor(tensor, np.ascontiguousarray(values.astype("<f4" if exact else "<f2")))

    put_keys(writer, width)
    put_layers(put)
    put_sight(put, width, red, blue, blind)
    return tiny_model.finished(writer, aside, path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.tiny_projector",
        description=(__doc__ or "").split("\n\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="file to write; its folder has to be there")
    parser.add_argument("--blind", action="store_true", help="every picture looks the same")
    chosen = parser.parse_args(arguments)
    try:
        path = write(chosen.out, chosen.blind)
    except OSError as error:
        print(f"cannot write {chosen.out}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
