"""What a reply of the server has to be before a release counts, and the questions that are asked for it. Pure."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from typing import Any, NamedTuple

from wsllama.domain.examine import response

# Marks of the template that no client may see: the parser of the server turns them into fields of the reply.
TAGS = re.compile(r"</?think(?:ing)?>|</?tool_call>|</?tool_response>|<function=|<\|im_(?:start|end)\|>|<\|endoftext\|>")

SUM = ("What is 17 + 25? Answer with the number only.", "42")
NUMBER = "7391"
CITY = "Paris"
WEATHER = f"What is the weather in {CITY}? Find out with the tool."
COLOUR = "Which colour has the picture? Answer with one word."
COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255)}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city as it is now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city."}},
            "required": ["city"],
        },
    },
}


class Asked(NamedTuple):
    """A request, as far as its reply is judged by it. apart: reasoning has a field of its own."""

    what: str  # "with thinking on"
    max_tokens: int
    n_ctx: int | None = None  # tokens of the slot's context
    thinking: bool = False
    apart: bool = True


def problem(body: str, asked: Asked) -> str | None:
    """What is wrong with a reply, or with the events of a streamed one: one sentence with what to try; None for nothing."""
    answer = response.read(body)
    if answer is None or answer.kind not in ("chat", "stream"):
        return f"{asked.what} the reply holds no assistant message: {json.dumps(body[:200])}"
    if answer.error:
        return f"{asked.what} the reply was ended by an error: {json.dumps(answer.error)[:300]}; see the server's log"
    found = response.examine(body, asked.max_tokens, asked.n_ctx)["findings"]
    if "truncated_stream" in found:
        return f"{asked.what} the stream ended without [DONE]: the server ended while it answered; see its log"
    if not answer.text.strip():
        return _no_answer(answer, asked, found)
    if tag := TAGS.search(answer.text if asked.apart else answer.text.rpartition("</think>")[2]):
        return f"{asked.what} {tag[0]} stands in the answer: {_leak(tag[0])}"
    if answer.finish_reason != "stop":
        return _cut(answer, asked)
    if asked.thinking and asked.apart and not answer.reasoning.strip():
        return (
            f"{asked.what} there was an answer and no reasoning beside it: the chat template opens no thinking, or"
            " server.reasoning is off (`wsllama ask --show-prompt` shows what the model is given)"
        )
    if answer.kind == "stream" and answer.tokens is None:
        return f"{asked.what} the stream told no usage, although it was asked for: this is no build that we know"
    return None


def cut(body: str, max_tokens: int | None) -> str | None:
    """Which limit cut a reply, before or in its answer: one sentence with what to try; None when none did."""
    answer = response.read(body)
    if answer is None or answer.finish_reason != "length":
        return None
    what = "the answer was cut" if answer.text.strip() else "thinking was cut before there was an answer"
    if max_tokens and (answer.tokens or 0) >= max_tokens:
        return f"{what} after --max-tokens {max_tokens}: raise it, or ask with --no-thinking"
    return f"{what}, because the context is full after {answer.total} tokens: raise server.ctx_size"


def _no_answer(answer: response.Answer, asked: Asked, found: list[str]) -> str:
    if not answer.reasoning.strip() and not asked.thinking:
        return (
            f"{asked.what} the reply was empty (finish reason {answer.finish_reason}): the chat template ends the turn at once,"
            " see `wsllama ask --show-prompt`"
        )
    if "only_reasoning_context" in found:
        why = f"the context of {asked.n_ctx} tokens is full; raise server.ctx_size, or give acceptance.thinking_tokens a limit"
    elif "only_reasoning_budget" in found or answer.finish_reason == "length":
        why = f"thinking used up all {asked.max_tokens} tokens; give acceptance.thinking_tokens a limit or raise answer_tokens"
    else:
        why = f"finish reason {answer.finish_reason}; see with `wsllama ask --show-prompt` whether the template closes thinking"
    return f"{asked.what} there was no answer, only {len(answer.reasoning)} characters of reasoning: {why}"


def _cut(answer: response.Answer, asked: Asked) -> str:
    if answer.finish_reason != "length":
        return f"{asked.what} the finish reason was {answer.finish_reason} and not stop"
    if asked.n_ctx and (answer.total or 0) >= asked.n_ctx:
        return f"{asked.what} the answer was cut: the context of {asked.n_ctx} tokens is full; raise server.ctx_size"
    return f"{asked.what} the answer was cut after all {asked.max_tokens} tokens; raise acceptance.answer_tokens"


def _leak(tag: str) -> str:
    if "think" in tag:
        return "server.reasoning_format is none, or the template and the build don't know each other; set it to auto"
    if "tool" in tag or "function" in tag:
        return "the build does not parse this template's calls; take a newer build, or the model's own template"
    return "the end of the turn was read as text: the tokenizer or the template is broken; take the model's own GGUF"


def call_problem(reply: dict[str, Any]) -> str | None:
    """What is wrong with the call of TOOL in a reply that has one; None for nothing."""
    calls = reply["choices"][0]["message"]["tool_calls"]
    for call in calls:
        function = call.get("function") or {}
        try:
            given = json.loads(function.get("arguments") or "")
        except ValueError:
            return f"a tool was called with {json.dumps(function.get('arguments'))}, which is no JSON: take a newer build"
        if function.get("name") != TOOL["function"]["name"]:  # type: ignore[index]
            return f"the tool {function.get('name')} was called, which nobody offered"
        if not isinstance(given, dict) or not isinstance(given.get("city"), str):
            return f"the tool was called with {json.dumps(given)}, which has no city: the template does not show its parameters"
    return None


def pictures_problem(said: dict[str, str], tokens: dict[str, int], strict: bool) -> tuple[str | None, str]:
    """What is wrong with the answers about the two pictures, and what is odd though not wrong; None and "" for nothing.

    said: answers by colour; tokens: of the prompts, by colour and "" for the same question without a picture.
    """
    hint = "the projector does not belong to the model, or the build does not know it; see model.mmproj"
    if small := [colour for colour in said if tokens[colour] <= tokens[""]]:
        return f"the {small[0]} picture adds nothing to the prompt ({tokens[small[0]]} tokens with and without it): {hint}", ""
    red, blue = said["red"].strip(), said["blue"].strip()
    if red == blue:
        return f"a red and a blue picture got the same answer, {json.dumps(red[:80])}: the picture is ignored; {hint}", ""
    wrong = [c for c, other in (("red", "blue"), ("blue", "red")) if c not in said[c].lower() or other in said[c].lower()]
    if not wrong:
        return None, ""
    told = f"the {wrong[0]} picture was answered with {json.dumps(said[wrong[0]].strip()[:80])}: {hint}"
    return (told, "") if strict else (None, told)


def picture(colour: tuple[int, int, int], side: int = 64) -> str:
    """A square PNG of one colour as a data URL. side: in pixels."""
    rows = (b"\0" + bytes(colour) * side) * side
    parts = ((b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in parts)
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


def long_prompt(lines: int) -> str:
    """A prompt of so many lines between a number and the question for it."""
    middle = "".join(f"Line {i}: nothing of interest stands here.\n" for i in range(lines))
    return f"The number to remember is {NUMBER}.\n{middle}Which number was to be remembered? Answer with the number only."
