"""What a reply has to be: rules alone, on bodies as llama-server writes them."""

from __future__ import annotations

import base64
import json
import struct
import zlib

import pytest

from wsllama.domain import acceptance
from wsllama.domain.acceptance import Asked, pictures_problem


def test_a_picture_is_a_png_of_one_colour() -> None:
    """Read by the format's own rules: signature, chunks with their sums, one filter byte a row."""
    kind, _, text = acceptance.picture((0, 0, 255), 8).partition(";base64,")
    data = base64.b64decode(text)
    assert (kind, data[:8]) == ("data:image/png", bytes.fromhex("89504e470d0a1a0a"))
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        name, inside = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(name + inside)
        chunks[name] = inside
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (8, 8, 8, 2, 0, 0, 0), "8 by 8, 8 bits, true colour"
    assert zlib.decompress(chunks[b"IDAT"]) == (b"\0" + b"\0\0\xff" * 8) * 8


TOKENS = {"": 20, "red": 90, "blue": 90}


@pytest.mark.parametrize(
    ("red", "blue", "tokens", "wrong", "odd"),
    [
        ("Red", "The colour is blue.", TOKENS, None, ""),
        ("READY", "READY", TOKENS, 'a red and a blue picture got the same answer, "READY": the picture is ignored', ""),
        ("red", "blue", {**TOKENS, "blue": 20}, "the blue picture adds nothing to the prompt (20 tokens with and without", ""),
        ("round", "blue", TOKENS, None, 'the red picture was answered with "round"'),
        ("red or blue", "blue", TOKENS, None, 'the red picture was answered with "red or blue"'),
    ],
)
def test_a_model_that_ignores_the_picture_fails(red: str, blue: str, tokens: dict[str, int], wrong: str | None, odd: str) -> None:
    said = {"red": red, "blue": blue}
    found, told = pictures_problem(said, tokens, strict=False)
    assert (found or "").startswith(wrong or "")
    assert bool(found) == bool(wrong)
    assert told.startswith(odd)
    assert bool(told) == bool(odd)
    strict, told = pictures_problem(said, tokens, strict=True)
    assert (bool(strict), told) == (bool(wrong or odd), ""), "where colours have to be named, what was odd is wrong"


def body(content: str, reasoning: str = "", finish: str = "stop", tokens: int = 9, total: int = 40) -> str:
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    usage = {"completion_tokens": tokens, "total_tokens": total}
    return json.dumps({"choices": [{"finish_reason": finish, "message": message}], "usage": usage})


ON = Asked("with thinking on", 96, 4096, thinking=True)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (body("READY", "hm"), None),
        (body("", "hm" * 40, "length", 96), "thinking used up all 96 tokens; give acceptance.thinking_tokens a limit"),
        (body("", "hm", "length", 80, 4096), "the context of 4096 tokens is full; raise server.ctx_size"),
        (body("", "hm", "stop"), "finish reason stop; see with `wsllama ask --show-prompt` whether the template closes thinking"),
        (body("READY", "hm", "length", 50, 4096), "the answer was cut: the context of 4096 tokens is full"),
        (body("READY", "hm", "content_filter"), "the finish reason was content_filter and not stop"),
        (body("READY </tool_call>", "hm"), "</tool_call> stands in the answer: the build does not parse"),
        ("<html>", "the reply holds no assistant message"),
        ('{"error": {"message": "boom"}}', "the reply holds no assistant message"),
        ('data: {"choices":[{"delta":{"content":"a"}}]}\n\nerror: {"message":"slot lost"}\n\n', "ended by an error"),
    ],
)
def test_only_reasoning_and_other_trouble_by_its_true_cause(reply: str, said: str | None) -> None:
    found = acceptance.problem(reply, ON)
    assert (found is None) == (said is None)
    assert (said or "") in (found or "")


@pytest.mark.parametrize(
    ("reply", "most", "said"),
    [
        (body("READY", "hm"), 9, None),
        (body("", "hm", "length", 9), 9, "thinking was cut before there was an answer after --max-tokens 9: raise it"),
        (body("REA", "hm", "length", 9), 9, "the answer was cut after --max-tokens 9"),
        (body("", "hm", "length", 50, 256), 96, "because the context is full after 256 tokens: raise server.ctx_size"),
        (body("", "hm", "length", 50, 256), None, "because the context is full after 256 tokens: raise server.ctx_size"),
    ],
)
def test_which_limit_cut_a_reply(reply: str, most: int | None, said: str | None) -> None:
    found = acceptance.cut(reply, most)
    assert (found is None) == (said is None)
    assert (said or "") in (found or "")
