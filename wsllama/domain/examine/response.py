"""The body of an answer of llama-server: what it says, and what is wrong with it. Pure.

Chat completions, the legacy /completion, streams of both, errors in every form that the server had, and what comes from others
in between (a proxy's page). A reply can be right by its status and still hold no answer: thinking has used up the limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from wsllama.domain.text import decode

Kind = Literal["chat", "completion", "stream", "error"]
_THINK_TAG = re.compile(r"</?think(?:ing)?>")
_END_OF_TURN = re.compile(r"<\|im_end\|>|<\|endoftext\|>")
_NESTED_ROLE = re.compile(
    r"<\|im_start\|>(?:(?!<\|im_end\|>)[\s\S])*?<\|im_start\|>|<start_of_turn>\w*\s*<start_of_turn>|\[INST\]\s*\[INST\]"
    r"|<\|start_header_id\|>\w+<\|end_header_id\|>\s*<\|start_header_id\|>"
)
_TEMPLATE = re.compile(
    r"jinja|template|at row \d+, column \d+|roles must alternate|\{%|Value is not callable|raise_exception|minja", re.I
)


@dataclass
class Answer:
    """What a body holds. `text`: of the answer; `tokens`: of thinking and answer together; `total`: with the prompt."""

    kind: Kind
    text: str = ""
    reasoning: str = ""
    tool_call: bool = False
    finish_reason: str | None = None
    tokens: int | None = None
    total: int | None = None
    prompt: str = ""  # as the server echoes it
    done: bool = True  # a stream said its last word
    error: Mapping[str, Any] | None = None


def examine(
    data: bytes | str, max_tokens: int | None = None, n_ctx: int | None = None, http_status: int | None = None
) -> dict[str, Any]:
    """What a body says, for JSON.

    max_tokens: of the request, -1 or None for no limit; n_ctx: tokens of the slot's context; http_status: of the reply, used
    where the body has none.
    """
    text = decode(data)
    answer = read(text)
    out: dict[str, Any] = {
        "kind": "error" if answer is None else answer.kind,
        "answer": (answer.text if answer and answer.text.strip() else None),
        "reasoning": bool(answer and answer.reasoning.strip()),
        "finish_reason": answer.finish_reason if answer else None,
    }
    if answer is None:
        found = {"not_json"}
    else:
        found = set(_of_error(answer.error)) if answer.error is not None else set()
        if answer.kind != "error":
            found |= set(_of_answer(answer, max_tokens, n_ctx))
    out["findings"] = sorted(found)
    if out["kind"] == "error":
        code = answer.error.get("code") if answer and answer.error else None
        out["http_status"] = code if isinstance(code, int) else http_status
    return out


def read(text: str) -> Answer | None:
    """Read a body; None for what is no JSON, nor a stream of it."""
    if re.match(r"\s*(?:(?:data|event|id|retry|error)\s*:|:)", text):
        return _stream(text)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return Answer("error", error={})
    if error := _error(body):
        return Answer("error", error=error)
    return (
        _chat(body)
        or _messages(body)
        or _responses(body)
        or _completion(body)
        or Answer("error", error={"message": json.dumps(body)})
    )


def _error(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The error in a body, in whatever form: an object, a text, a status, a framework's detail."""
    given = body.get("error")
    if isinstance(given, dict):
        return given
    if given:
        return {"message": str(given)}
    if "choices" in body or "content" in body or "output" in body:
        return None
    for name in ("detail", "status", "message"):
        if isinstance(body.get(name), str) and body[name] != "ok":
            return {"message": body[name], "code": body.get("code")}
    return None


def _chat(body: Mapping[str, Any]) -> Answer | None:
    if not (choices := _list(body.get("choices"))):
        return None
    first, usage = _object(choices[0]), _object(body.get("usage"))
    if first.get("message") is None:
        answer = Answer("completion", str(first.get("text") or ""))
    else:
        message = _object(first["message"])
        answer = Answer("chat", _text(message.get("content")), _reasoning(message), _calls(message))
    answer.finish_reason = first.get("finish_reason")
    answer.tokens, answer.total = _number(usage, "completion_tokens"), _number(usage, "total_tokens")
    answer.prompt = str(_object(body.get("__verbose")).get("prompt") or body.get("prompt") or "")
    return answer


def _completion(body: Mapping[str, Any]) -> Answer | None:
    if not isinstance(body.get("content"), str):
        return None
    tokens, before = _number(body, "tokens_predicted"), _number(body, "tokens_evaluated")
    total = tokens + before if tokens is not None and before is not None else None
    return Answer("completion", body["content"], tokens=tokens, total=total, prompt=str(body.get("prompt") or ""))


def _messages(body: Mapping[str, Any]) -> Answer | None:
    """Anthropic's form, /v1/messages."""
    if not isinstance(body.get("content"), list):
        return None
    parts = [_object(part) for part in body["content"]]
    text = "".join(p.get("text") or "" for p in parts if p.get("type") == "text")
    thought = "".join(p.get("thinking") or "" for p in parts if p.get("type") == "thinking")
    usage = _object(body.get("usage"))
    tokens, before = _number(usage, "output_tokens"), _number(usage, "input_tokens")
    total = tokens + before if tokens is not None and before is not None else None
    reason = body.get("stop_reason")
    return Answer("chat", text, thought, any(p.get("type") == "tool_use" for p in parts), reason, tokens, total)


def _responses(body: Mapping[str, Any]) -> Answer | None:
    """The form of /v1/responses."""
    if not isinstance(body.get("output"), list):
        return None
    parts = [_object(part) for part in body["output"]]
    text = "".join(_text(part.get("content")) for part in parts if part.get("type") == "message")
    thought = "".join(_text(part.get("content")) for part in parts if part.get("type") == "reasoning")
    usage = _object(body.get("usage"))
    calls = any(part.get("type") == "function_call" for part in parts)
    return Answer("chat", text, thought, calls, None, _number(usage, "output_tokens"), _number(usage, "total_tokens"))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(of: Mapping[str, Any], name: str, otherwise: int | None = None) -> int | None:
    """A count of tokens, whatever else may stand there."""
    found = of.get(name)
    return found if isinstance(found, int) else otherwise


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")


def _reasoning(message: Mapping[str, Any]) -> str:
    return str(message.get("reasoning_content") or message.get("reasoning") or message.get("thinking") or "")


def _calls(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls") or message.get("function_call"))


def _stream(text: str) -> Answer:
    """Server-sent events; an event that was cut is none."""
    answer, done, any_chunk = Answer("stream"), False, False
    for payload in _events(text):
        if payload == "[DONE]":
            done = True
            continue
        try:
            chunk = json.loads(payload)
        except (ValueError, RecursionError):
            continue
        if not isinstance(chunk, dict):
            continue
        if error := _error(chunk):
            answer.error = error
        elif "choices" in chunk:
            any_chunk = True
            _add_chunk(answer, chunk)
        elif isinstance(chunk.get("content"), str):  # of /completion, which ends with stop instead of [DONE]
            any_chunk = True
            answer.text += chunk["content"]
            done = done or chunk.get("stop") is True
        elif isinstance(chunk.get("type"), str):
            any_chunk = True
            done = _add_event(answer, chunk) or done
    answer.done = done
    if answer.error is not None and not any_chunk:
        answer.kind = "error"
    return answer


def _events(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        lines = [m[1] for m in re.finditer(r"^(?:data|error): ?(.*)$", block, re.M)]
        if len(lines) > 1 and all(line.lstrip().startswith(("{", "[DONE]")) for line in lines):
            yield from (line.strip() for line in lines)  # written without the empty lines between
        elif lines:
            yield "\n".join(lines).strip()


def _add_chunk(answer: Answer, chunk: Mapping[str, Any]) -> None:
    usage = _object(chunk.get("usage"))
    answer.tokens = _number(usage, "completion_tokens", answer.tokens)
    answer.total = _number(usage, "total_tokens", answer.total)
    for choice in map(_object, _list(chunk.get("choices"))[:1]):
        delta = _object(choice.get("delta"))
        answer.text += _text(delta.get("content")) or str(choice.get("text") or "")
        answer.reasoning += _reasoning(delta)
        answer.tool_call = answer.tool_call or _calls(delta)
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def _add_event(answer: Answer, chunk: Mapping[str, Any]) -> bool:
    """An event of /v1/responses or of /v1/messages; True for the last one."""
    kind, delta = chunk["type"], chunk.get("delta")
    if kind == "response.output_text.delta":
        answer.text += str(delta or "")
    elif kind == "response.reasoning_text.delta":
        answer.reasoning += str(delta or "")
    elif kind == "content_block_delta":
        answer.text += str(_object(delta).get("text") or "")
        answer.reasoning += str(_object(delta).get("thinking") or "")
    elif kind == "message_delta":
        answer.finish_reason = _object(delta).get("stop_reason") or answer.finish_reason
    item = _object(chunk.get("item") or chunk.get("content_block"))
    answer.tool_call = answer.tool_call or item.get("type") in ("function_call", "tool_use")
    usage = _object(_object(chunk.get("response")).get("usage") or chunk.get("usage"))
    answer.tokens = _number(usage, "output_tokens", answer.tokens)
    answer.total = _number(usage, "total_tokens", answer.total)
    return kind in ("response.completed", "response.incomplete", "message_stop")


def _of_error(error: Mapping[str, Any]) -> Iterator[str]:
    kind, code = str(error.get("type") or ""), error.get("code")
    message = str(error.get("message") or "")
    if kind == "exceed_context_size_error" or re.search(
        r"exceeds? the available context|context_length_exceeded|maximum context length", f"{message} {code}", re.I
    ):
        yield "context_exceeded"
    elif re.search(r"loading", message, re.I) and (kind in ("", "unavailable_error") or code == 503):
        yield "loading"
    elif (
        kind in ("authentication_error", "invalid_api_key")
        or code in (401, 403)
        or re.search(r"api[ _]key|^unauthorized", message, re.I)
    ):
        yield "unauthorized"
    elif _TEMPLATE.search(message):
        yield "template_error"
    elif (kind == "not_found_error" or code == 404 or re.search(r"^(file )?not found", message, re.I)) and not re.search(
        r"\bmodel\b", message, re.I
    ):
        yield "not_found_endpoint"


def _of_answer(answer: Answer, max_tokens: int | None, n_ctx: int | None) -> Iterator[str]:
    said, thought = bool(answer.text.strip()), bool(answer.reasoning.strip())
    if answer.tool_call:
        yield "tool_call"
    elif not said and not thought:
        yield "empty_answer"
    elif not said:
        yield from _limit(answer, max_tokens, n_ctx)
    if _THINK_TAG.search(answer.text):
        yield "leaked_think_tag"
    if _END_OF_TURN.search(answer.text):
        yield "leaked_eog"
    if _NESTED_ROLE.search(answer.prompt):
        yield "double_template"
    if not answer.done:
        yield "truncated_stream"


def _limit(answer: Answer, max_tokens: int | None, n_ctx: int | None) -> Iterator[str]:
    """Which limit ended the thinking before an answer."""
    budget = bool(max_tokens and max_tokens > 0 and answer.tokens is not None and answer.tokens >= max_tokens)
    cut = answer.finish_reason in ("length", "max_tokens")
    last = 1 if cut and not budget else 0  # older builds stopped one token before the slot was full
    context = bool(n_ctx and answer.total is not None and answer.total >= n_ctx - last)
    if context:
        yield "only_reasoning_context"
    if budget or (cut and not context):
        yield "only_reasoning_budget"
