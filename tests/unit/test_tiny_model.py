"""The small model: its bytes, its template, its command line."""

import hashlib
import re
from pathlib import Path
from typing import Any

import gguf
import jinja2
import numpy as np
import pytest

from lab import tiny_model, tiny_projector

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
        ("answer", "586e62eaa23ebe17f055a9e02e367b9c741ec562de447d93e826b3a005721183"),
        ("loop", "1dc8d440a407eab2bf4b0475f353b0c46c5218b5e9f8b6a5588d3e6f095357e6"),
        ("senses", "076fce797ce86daac8c6f0a08e74b3c6f4f7ec88ed999983a115d687654948d1"),
        ("random", "5902c9c85391ffe76ed391e67aa85a4cd1683da72f22ce87f5892cba0cf4da0d"),
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
    with pytest.raises(ValueError, match="unknown script 'sing': one of answer, loop, senses, random"):
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


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
CALL = {"type": "function", "function": {"name": "clock", "arguments": {"zone": "UTC"}}}


def test_tools_are_shown_and_calls_and_their_answers_are_written() -> None:
    turns: list[dict[str, Any]] = [
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "12:00"},
    ]
    assert rendered(turns, tools=[TOOL]) == (
        '<|im_start|>system\nThere are these tools:\n{"function": {"name": "clock"}, "type": "function"}\n'
        'To call one, answer\n<tool_call>\n{"name": its name, "arguments": its arguments}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nAre you ready?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n"
    )
    assert "tool" not in rendered([QUESTION])


def test_senses_says_what_answer_says_while_it_sees_nothing(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "a.gguf", "senses")
    assert said(path, "Ċ") == ["Let", "Ġme", "Ġthink", "</think>", "ĊĊ", "READY", "<|im_end|>"]
    assert said(path, "<tool_call>")[1:] == ["</tool_call>", "<|im_end|>"]
    assert said(path, "RED") == said(path, "BLUE") == ["<|im_end|>"]


@pytest.mark.parametrize(
    ("blind", "expected"),
    [
        (False, "9a519387a10282d09440c70bd1049ea30520d0165a2b355dec1bd4551283f1c7"),
        (True, "560b72b44bfcdfb704f14c6cbe02e17e34652c3a36c944dc3bfa2191dd9c9812"),
    ],
)
def test_bytes_of_the_projector(tmp_path: Path, blind: bool, expected: str) -> None:
    assert sha256(tiny_projector.write(tmp_path / "a.gguf", blind)) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_command_line_of_the_projector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_projector.main([str(tmp_path / "a.gguf"), "--blind"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/a.gguf: 1223936 bytes\n"
    assert tiny_projector.main([str(tmp_path / "no" / "a.gguf")]) == 1
    assert re.fullmatch(r"cannot write \S+a.gguf: No such file or directory\n", capsys.readouterr().err)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.gguf"
    assert tiny_model.main([str(out), "--script", "loop", "--seed", "3", "--ctx", "4096"]) == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size} bytes, script loop, seed 3\n"
    assert sha256(out) == sha256(tiny_model.write(tmp_path / "b.gguf", "loop", seed=3, ctx=4096))
    assert tiny_model.main([str(tmp_path / "no" / "a.gguf")]) == 1
    assert re.fullmatch(r"cannot write \S+a.gguf: No such file or directory\n", capsys.readouterr().err)
