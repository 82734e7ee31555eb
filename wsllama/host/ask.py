"""Runs on the host: puts one question to the server; the last line is one JSON document with the reply."""

import json
import time
from typing import Any

from wsllama.host.api import NotAccepted, Server, message


def main(a: dict[str, Any]) -> None:
    """argument: url, alias, key_file or None, request_timeout_s, question, thinking (bool), max_tokens or None."""
    more = {"chat_template_kwargs": {"enable_thinking": a["thinking"]}}
    if a["max_tokens"]:
        more["max_tokens"] = a["max_tokens"]
    began = time.monotonic()
    try:
        reply = Server(a).chat(a["question"], **more)
        content, reasoning, finish = message(reply)
    except (NotAccepted, OSError) as e:
        raise SystemExit(str(e)) from None
    seconds = round(time.monotonic() - began, 2)
    found = {"content": content, "reasoning": reasoning, "finish_reason": finish, "usage": reply.get("usage"), "seconds": seconds}
    print(json.dumps(found))
