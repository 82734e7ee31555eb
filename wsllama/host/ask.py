"""Runs on the host: puts one question to the server, or shows what the model would be given for it; one JSON document."""

import json
import time
from typing import Any

from wsllama.domain.acceptance import cut
from wsllama.host.api import NotAccepted, Server, message


def main(a: dict[str, Any]) -> None:
    """argument: url, alias, key_file or None, request_timeout_s, question, thinking, show_prompt (bools), max_tokens or None."""
    more = {"chat_template_kwargs": {"enable_thinking": a["thinking"]}}
    if a["max_tokens"]:
        more["max_tokens"] = a["max_tokens"]
    began = time.monotonic()
    try:
        server = Server(a)
        if a.get("show_prompt"):
            print(json.dumps(server.wanted("/apply-template", "/apply-template", server.conversation(a["question"], **more))))
            return
        reply = server.chat(a["question"], **more)
        content, reasoning, finish = message(reply)
    except (NotAccepted, OSError) as e:
        raise SystemExit(str(e)) from None
    seconds = round(time.monotonic() - began, 2)
    found = {"content": content, "reasoning": reasoning, "finish_reason": finish, "usage": reply.get("usage"), "seconds": seconds}
    print(json.dumps({**found, "cut": cut(json.dumps(reply), a["max_tokens"])}))
