"""A client of llama-server for programs that run on its host: standard library only, loopback, never through a proxy."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any


class NotAccepted(Exception):
    """One sentence."""


class Server:
    def __init__(self, a: dict[str, Any]) -> None:
        self.a = a
        self.key: str | None = None
        if a.get("key_file"):
            with open(a["key_file"], encoding="utf-8") as f:
                self.key = f.read().split()[0]

    def ask(self, path: str, body: Any = None, timeout: float = 10) -> tuple[int, Any]:
        """Status and JSON (or text) of one request; status 0 when nobody answered."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = "Bearer " + self.key
        data = None if body is None else json.dumps(body).encode()
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through somebody's proxy
            with opener.open(urllib.request.Request(self.a["url"] + path, data, headers), timeout=timeout) as r:
                status, text = r.status, r.read().decode("utf-8", "replace")
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as e:  # the latter when it ends in the middle of an answer
            return 0, str(getattr(e, "reason", e))
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def chat(self, question: str, **more: Any) -> dict[str, Any]:
        body = {"model": self.a["alias"], "messages": [{"role": "user", "content": question}], **more}
        status, got = self.ask("/v1/chat/completions", body, self.a["request_timeout_s"])
        if status != 200 or not isinstance(got, dict):
            error = got.get("error", got) if isinstance(got, dict) else got
            raise NotAccepted(f"a chat request got status {status}: {json.dumps(error)[:500]}")
        return got


def message(reply: dict[str, Any]) -> tuple[str, str, str | None]:
    """Content, reasoning and finish reason. Raises NotAccepted when the reply holds no assistant message."""
    choice = (reply.get("choices") or [{}])[0]
    found = choice.get("message") or {}
    if found.get("role") != "assistant":
        raise NotAccepted(f"the reply holds no assistant message: {json.dumps(reply)[:300]}")
    return found.get("content") or "", found.get("reasoning_content") or "", choice.get("finish_reason")
