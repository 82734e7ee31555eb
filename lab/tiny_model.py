"""A small GGUF of the architecture `qwen35moe`, the one of Qwen3.6-35B-A3B, with random weights: 7 MiB.

Every tensor that llama.cpp asks for is there, so the real hybrid graph runs (gated delta net, full attention, routed
and shared experts). For a script, what a layer adds to the residual stream is zero, the embedding is one-hot and the
output head is a table from token to next token: the model says its lines whatever the sampler does.

- answer: thinks "Let me think", then answers READY
- loop: thinks "Let hmm hmm ..." and never closes the thinking block
- senses: as answer, but one layer looks back: where a tool is offered it calls that, and where it is shown a red or a blue
  picture (lab/tiny_projector.py) it answers RED or BLUE
- random: all weights random

The bytes depend on the arguments only: the weights come from SHAKE-256, so no version of a library changes them.
"""

import argparse
import hashlib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ARCHITECTURE = "qwen35moe"
SCRIPTS = ("answer", "loop", "senses", "random")
NAME = "Tiny Qwen3.6 35B A3B test"
EXAMPLES = """examples:
  python -m lab.tiny_model tiny.gguf
  python -m lab.tiny_model loop.gguf --script loop --seed 7"""
TEMPLATE = Path(__file__).with_name("tiny_template.jinja")

# Sizes; behind each the value of the real model.
N_HEAD, N_HEAD_KV, HEAD, N_ROT = 4, 2, 64, 16  # 16, 2, 256, 64
ROPE_SECTIONS = [3, 3, 2, 0]  # 11, 11, 10, 0
N_EXPERT, N_EXPERT_USED, FF_EXPERT, FF_SHARED = 8, 2, 32, 32  # 256, 8, 512, 512
CONV, STATE, GROUPS, TIME_STEP_RANK = 4, 32, 2, 4  # 4, 128, 16, 32
KEY_DIM, INNER = STATE * GROUPS, STATE * TIME_STEP_RANK  # 2048, 4096
FULL_ATTENTION_INTERVAL = 4  # 4: every fourth layer has full attention

WORDS = ["\n\n", "Let", " me", " think", " hmm", "READY"]
CALL = '\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n'  # the one of wsllama/domain/acceptance.py
SENSES = [CALL, "RED", "BLUE"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
           "<|image_pad|>", "<|video_pad|>"]  # fmt: skip
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

Put = Callable[..., None]


def byte_letters() -> dict[int, str]:
    """The letter that GPT-2's vocabulary writes for each byte: itself when it prints, else one from 256 on."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in prints}
    for number, byte in enumerate(byte for byte in range(256) if byte not in letters):
        letters[byte] = chr(256 + number)
    return letters


def spelled(text: str) -> str:
    letters = byte_letters()
    return "".join(letters[byte] for byte in text.encode())


@dataclass
class Vocabulary:
    tokens: list[str]
    types: list[int]
    merges: list[str]

    def add(self, token: str, kind: gguf.TokenType) -> None:
        self.tokens.append(token)
        self.types.append(int(kind))

    def add_word(self, word: str) -> None:
        """The word, and the merges from left to right that build it out of letters."""
        letters = spelled(word)
        built = letters[0]
        for letter in letters[1:]:
            if f"{built} {letter}" not in self.merges:
                self.merges.append(f"{built} {letter}")
            built += letter
            if built not in self.tokens:
                self.add(built, gguf.TokenType.NORMAL)


def vocabulary(script: str = "answer") -> Vocabulary:
    vocab = Vocabulary([], [], [])
    letters = byte_letters()
    for byte in range(256):
        vocab.add(letters[byte], gguf.TokenType.NORMAL)
    for word in WORDS:
        vocab.add_word(word)
    for word in SENSES if script == "senses" else ():
        vocab.add(spelled(word), gguf.TokenType.NORMAL)  # only said, never read, so that no merge has to lead to it
    for token in CONTROL:
        vocab.add(token, gguf.TokenType.CONTROL)
    for token in MARKS:
        vocab.add(token, gguf.TokenType.USER_DEFINED)
    while len(vocab.tokens) % 32:
        vocab.add(f"[PAD{len(vocab.tokens)}]", gguf.TokenType.UNUSED)
    return vocab


def signals(vocab: Vocabulary) -> tuple[int, int, int]:
    """Places in the residual stream that no token has: a tool is offered, a picture is red, a picture is blue."""
    width = len(vocab.tokens)
    return width - 3, width - 2, width - 1


def put_keys(writer: gguf.GGUFWriter, width: int, layers: int, ctx: int, name: str) -> None:
    """The hyper-parameters, written by their raw names so that an older gguf library does as well."""
    writer.add_name(name)
    writer.add_string("general.basename", "Qwen3.6-35B-A3B")
    writer.add_string("general.size_label", "35B-A3B")
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_F16))
    whole = {
        "block_count": layers, "context_length": ctx, "embedding_length": width,
        "attention.head_count": N_HEAD, "attention.head_count_kv": N_HEAD_KV,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": N_ROT,
        "expert_count": N_EXPERT, "expert_used_count": N_EXPERT_USED,
        "expert_feed_forward_length": FF_EXPERT, "expert_shared_feed_forward_length": FF_SHARED,
        "ssm.conv_kernel": CONV, "ssm.state_size": STATE, "ssm.group_count": GROUPS,
        "ssm.time_step_rank": TIME_STEP_RANK, "ssm.inner_size": INNER,
        "full_attention_interval": FULL_ATTENTION_INTERVAL,
    }  # fmt: skip
    for key, value in whole.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    writer.add_float32(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{ARCHITECTURE}.rope.freq_base", 10_000_000.0)
    writer.add_array(f"{ARCHITECTURE}.rope.dimension_sections", ROPE_SECTIONS)


def put_tokenizer(writer: gguf.GGUFWriter, vocab: Vocabulary) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(vocab.tokens)
    writer.add_token_types(vocab.types)
    writer.add_token_merges(vocab.merges)
    end = vocab.tokens.index("<|endoftext|>")
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(vocab.tokens.index("<|im_end|>"))
    writer.add_pad_token_id(end)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))


def noise(seed: int, name: str, shape: tuple[int, ...], scale: float) -> Any:
    """Evenly spread weights of standard deviation `scale`, the same everywhere for a seed and a tensor's name."""
    drawn = hashlib.shake_256(f"{seed} {name}".encode()).digest(2 * math.prod(shape))
    steps = np.frombuffer(drawn, dtype="<u2").astype(np.float64) - 32767.5
    return (steps * (scale * math.sqrt(3) / 32767.5)).reshape(shape)


def next_tokens(vocab: Vocabulary, script: str) -> dict[int, int]:
    """What the script says after each token. The thinking block opens with one line end, an answer with two."""
    number = vocab.tokens.index
    first, answer, ready = number(spelled("\n")), number(spelled("\n\n")), number("READY")
    after = dict.fromkeys(range(len(vocab.tokens)), ready)
    after.update({ready: number("<|im_end|>"), answer: ready})
    if script in ("answer", "senses"):
        said = [number(spelled(word)) for word in ("Let", " me", " think")]
        line = [first, *said, number("</think>"), answer]
    else:
        hmm = number(spelled(" hmm"))
        line = [first, number("Let"), hmm, hmm]
    after.update(pairwise(line))
    if script == "senses":
        after.update(dict.fromkeys((number(word) for word in ("RED", "BLUE", "</tool_call>")), number("<|im_end|>")))
        after.update(pairwise([number("<tool_call>"), number(spelled(CALL)), number("</tool_call>")]))
    return after


def put_ends(put: Put, random: Callable[..., Any], vocab: Vocabulary, script: str) -> None:
    """Embedding and output head."""
    width = len(vocab.tokens)
    put("output_norm.weight", np.ones(width), exact=True)
    if script == "random":
        put("token_embd.weight", random("token_embd.weight", width, width, scale=1.0), exact=True)
        put("output.weight", random("output.weight", width, width), exact=True)
        return
    head = np.zeros((width, width))
    for token, following in next_tokens(vocab, script).items():
        head[following, token] = 3.0  # times sqrt(width) after the norm: far above every other logit
    if script == "senses":  # what was seen decides how an answer begins, and nothing after that
        number = vocab.tokens.index
        head[number("READY"), number(spelled("\n\n"))] = 1.0
        for word, signal in zip(("<tool_call>", "RED", "BLUE"), signals(vocab), strict=True):
            head[:, signal], head[number(word), signal] = 0.0, 2.0
    put("token_embd.weight", np.eye(width), exact=True)
    put("output.weight", head, exact=True)


class Layers:
    """The tensors of the layers, by the names that llama.cpp's src/models/qwen35moe.cpp asks for."""

    def __init__(self, put: Put, random: Callable[..., Any], width: int, script: str) -> None:
        self.put_tensor, self.random, self.width, self.script = put, random, width, script

    def put(self, layer: int, name: str, *shape: int, exact: bool = False, scale: float = 0.02) -> None:
        full = f"blk.{layer}.{name}"
        self.put_tensor(full, self.random(full, *shape, scale=scale), exact=exact)

    def put_ones(self, layer: int, name: str, length: int) -> None:
        self.put_tensor(f"blk.{layer}.{name}", np.ones(length), exact=True)

    def put_result(self, layer: int, name: str, *shape: int) -> None:
        """What a layer writes into the residual stream: nothing while a script is played."""
        if self.script == "random":
            self.put(layer, name, *shape)
        else:
            self.put_tensor(f"blk.{layer}.{name}", np.zeros(shape))

    def put_layer(self, layer: int, vocab: Vocabulary) -> None:
        self.put_ones(layer, "attn_norm.weight", self.width)
        self.put_ones(layer, "post_attention_norm.weight", self.width)
        if (layer + 1) % FULL_ATTENTION_INTERVAL:
            self.put_linear_attention(layer)
        elif self.script == "senses" and layer + 1 == FULL_ATTENTION_INTERVAL:
            self.put_looking_back(layer, vocab)
        else:
            self.put_full_attention(layer)
        self.put_experts(layer)

    def put_full_attention(self, layer: int) -> None:
        self.put(layer, "attn_q.weight", N_HEAD * HEAD * 2, self.width)  # query and gate
        self.put(layer, "attn_k.weight", N_HEAD_KV * HEAD, self.width)
        self.put(layer, "attn_v.weight", N_HEAD_KV * HEAD, self.width)
        self.put_result(layer, "attn_output.weight", self.width, N_HEAD * HEAD)
        self.put_ones(layer, "attn_q_norm.weight", HEAD)
        self.put_ones(layer, "attn_k_norm.weight", HEAD)

    def put_looking_back(self, layer: int, vocab: Vocabulary) -> None:
        """Full attention that finds, wherever it stands, the mark of tools (first head) and pictures (third head)."""
        tool, red, blue = signals(vocab)
        query, key = np.zeros((N_HEAD * 2 * HEAD, self.width)), np.zeros((N_HEAD_KV * HEAD, self.width))
        value, result = np.zeros((N_HEAD_KV * HEAD, self.width)), np.zeros((self.width, N_HEAD * HEAD))
        at = HEAD - 1  # beyond what is rotated with the position
        query[at, :] = query[2 * 2 * HEAD + at, :] = 1.0  # each head's query, then its gate, which stays half open
        key[at, vocab.tokens.index("<tool_call>")] = value[0, vocab.tokens.index("<tool_call>")] = 1.0
        key[HEAD + at, [red, blue]] = 1.0
        value[HEAD, red] = value[HEAD + 1, blue] = 1.0
        result[tool, 0] = result[red, 2 * HEAD] = result[blue, 2 * HEAD + 1] = 2 / math.sqrt(self.width)
        for name, weights in (("attn_q", query), ("attn_k", key), ("attn_v", value), ("attn_output", result)):
            self.put_tensor(f"blk.{layer}.{name}.weight", weights)
        for name in ("attn_q_norm", "attn_k_norm"):  # so that what is found outweighs a long prompt
            self.put_tensor(f"blk.{layer}.{name}.weight", np.full(HEAD, 3.0), exact=True)

    def put_linear_attention(self, layer: int) -> None:
        self.put(layer, "attn_qkv.weight", 2 * KEY_DIM + INNER, self.width)
        self.put(layer, "attn_gate.weight", INNER, self.width)
        self.put(layer, "ssm_conv1d.weight", 2 * KEY_DIM + INNER, CONV, exact=True, scale=0.2)
        self.put(layer, "ssm_dt.bias", TIME_STEP_RANK, exact=True)
        decay = -1 - self.random(f"blk.{layer}.ssm_a", TIME_STEP_RANK)  # has to be negative
        self.put_tensor(f"blk.{layer}.ssm_a", decay, exact=True)
        self.put(layer, "ssm_beta.weight", TIME_STEP_RANK, self.width)
        self.put(layer, "ssm_alpha.weight", TIME_STEP_RANK, self.width)
        self.put_ones(layer, "ssm_norm.weight", STATE)
        self.put_result(layer, "ssm_out.weight", self.width, INNER)

    def put_experts(self, layer: int) -> None:
        self.put(layer, "ffn_gate_inp.weight", N_EXPERT, self.width, exact=True)
        self.put(layer, "ffn_gate_exps.weight", N_EXPERT, FF_EXPERT, self.width)
        self.put(layer, "ffn_up_exps.weight", N_EXPERT, FF_EXPERT, self.width)
        self.put_result(layer, "ffn_down_exps.weight", N_EXPERT, self.width, FF_EXPERT)
        self.put(layer, "ffn_gate_inp_shexp.weight", self.width, exact=True)
        self.put(layer, "ffn_gate_shexp.weight", FF_SHARED, self.width)
        self.put(layer, "ffn_up_shexp.weight", FF_SHARED, self.width)
        self.put_result(layer, "ffn_down_shexp.weight", self.width, FF_SHARED)


def write(path: Path | str, script: str = "answer", seed: int = 1, layers: int = 8, ctx: int = 262144,
          name: str = NAME) -> Path:  # fmt: skip
    """Write the model to `path`, aside and then renamed; returns the path.

    - script: answer, loop, senses or random
    - seed: of the random weights
    - layers: 8 is two rounds of three layers with linear attention and one with full attention
    - ctx: the context length in tokens that the file claims to be trained for
    - name: general.name

    Raises ValueError for an unknown script.
    """
    if script not in SCRIPTS:
        raise ValueError(f"unknown script {script!r}: one of {', '.join(SCRIPTS)}")
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    vocab = vocabulary(script)
    writer = gguf.GGUFWriter(aside, ARCHITECTURE)

    def put(tensor: str, values: Any, exact: bool = False) -> None:
        writer.add_tensor(tensor, np.ascontiguousarray(values.astype("<f4" if exact else "<f2")))

    def random(tensor: str, *shape: int, scale: float = 0.02) -> Any:
        return noise(seed, tensor, shape, scale)

    put_keys(writer, len(vocab.tokens), layers, ctx, name)
    put_tokenizer(writer, vocab)
    put_ends(put, random, vocab, script)
    all_layers = Layers(put, random, len(vocab.tokens), script)
    for layer in range(layers):
        all_layers.put_layer(layer, vocab)
    return finished(writer, aside, path)


def finished(writer: Any, aside: Path, path: Path) -> Path:
    """Write what a GGUFWriter on `aside` was given, and only then give it its name; returns that."""
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.tiny_model",
        description=(__doc__ or "").split("\n\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="file to write; its folder has to be there")
    parser.add_argument("--script", choices=SCRIPTS, default="answer", help="what the model says (answer)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random weights (1)")
    parser.add_argument("--layers", type=int, default=8, help="layers, every fourth with full attention (8)")
    parser.add_argument("--ctx", type=int, default=262144, help="context in tokens that the file claims (262144)")
    parser.add_argument("--name", default=NAME, help=f"the model's name ({NAME})")
    chosen = parser.parse_args(arguments)
    try:
        path = write(chosen.out, chosen.script, chosen.seed, chosen.layers, chosen.ctx, chosen.name)
    except OSError as error:
        print(f"cannot write {chosen.out}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{path}: {path.stat().st_size} bytes, script {chosen.script}, seed {chosen.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
