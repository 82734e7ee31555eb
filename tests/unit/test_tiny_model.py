"""The small model: its bytes, its template, its command line."""

import hashlib
import re
from pathlib import Path
from typing import Any

import gguf
import jinja2
import numpy as np
import pytest

from lab import tiny_model

QUESTION = {"role": "user", "content": "Are you ready?"}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rendered(messages: list[dict[str, Any]], **more: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.ChainableUndefined)
    return environment.from_string(tiny_model.TEMPLATE.read_text()).render(messages=messages, **more)


# The bytes themselves, so that a change of them, by us or by a library, is a decision and not an accident.
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("answer", "6e120b5bac32e8f94871c4869cd56741589b24b53671144c486a0a49ac353b13"),
        ("loop", "ec20509fd73af4e21d6e0c3ad67a4ba2b40964476dc93fba1b7187a353736663"),
        ("random", "24e128645b30c7ad0a7ba9641e18ea2b1cdc88f347493289cc31b51f95bab29c"),
    ],
)
def test_bytes(tmp_path: Path, script: str, expected: str) -> None:
    assert sha256(tiny_model.write(tmp_path / "a.gguf", script)) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_another_seed_gives_other_bytes_of_the_same_length(tmp_path: Path) -> None:
    first, second = (tiny_model.write(tmp_path / f"{seed}.gguf", seed=seed) for seed in (1, 2))
    assert first.stat().st_size == second.stat().st_size
    assert sha256(first) != sha256(second)


def test_unknown_script(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown script 'sing': one of answer, loop, random"):
        tiny_model.write(tmp_path / "a.gguf", "sing")
    assert not list(tmp_path.iterdir())


def said(path: Path, token: str, most: int = 20) -> list[str]:
    """What follows `token`, by the rule of the graph: the layers add nothing, so the head decides."""
    reader = gguf.GGUFReader(path)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    weights = {tensor.name: tensor.data for tensor in reader.tensors}
    at = tokens.index(token)
    words: list[str] = []
    while len(words) < most:
        at = int(np.argmax(weights["output.weight"] @ weights["token_embd.weight"][at]))
        words.append(tokens[at])
        if tokens[at] == "<|im_end|>":
            break
    return words


def test_answer_thinks_then_answers(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "a.gguf")
    assert said(path, "Ċ") == ["Let", "Ġme", "Ġthink", "</think>", "ĊĊ", "READY", "<|im_end|>"]
    assert said(path, "ĊĊ") == ["READY", "<|im_end|>"]


def test_loop_never_closes_the_block(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "a.gguf", "loop")
    assert said(path, "Ċ") == ["Let", *["Ġhmm"] * 19]
    assert said(path, "ĊĊ") == ["READY", "<|im_end|>"]


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ({}, "<think>\n"),
        ({"enable_thinking": True}, "<think>\n"),
        ({"enable_thinking": False}, "<think>\n\n</think>\n\n"),
    ],
)
def test_how_a_reply_begins(more: dict[str, bool], end: str) -> None:
    messages = [{"role": "system", "content": "Be short."}, QUESTION]
    assert rendered(messages, add_generation_prompt=True, **more) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nAre you ready?<|im_end|>\n<|im_start|>assistant\n" + end
    )


@pytest.mark.parametrize(
    "reply",
    [
        {"role": "assistant", "content": "READY", "reasoning_content": "Let me think"},
        {"role": "assistant", "content": "<think>\nLet me think\n</think>\n\nREADY"},
    ],
)
def test_thinking_of_earlier_turns_is_left_out(reply: dict[str, str]) -> None:
    assert rendered([QUESTION, reply, QUESTION]) == (
        "<|im_start|>user\nAre you ready?<|im_end|>\n<|im_start|>assistant\nREADY<|im_end|>\n"
        "<|im_start|>user\nAre you ready?<|im_end|>\n"
    )
    assert rendered([QUESTION, reply]).endswith("assistant\n<think>\nLet me think\n</think>\n\nREADY<|im_end|>\n")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.gguf"
    assert tiny_model.main([str(out), "--script", "loop", "--seed", "3", "--ctx", "4096"]) == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size} bytes, script loop, seed 3\n"
    assert sha256(out) == sha256(tiny_model.write(tmp_path / "b.gguf", "loop", seed=3, ctx=4096))
    assert tiny_model.main([str(tmp_path / "no" / "a.gguf")]) == 1
    assert re.fullmatch(r"cannot write \S+a.gguf: No such file or directory\n", capsys.readouterr().err)
