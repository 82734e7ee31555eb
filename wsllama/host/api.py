"""A client of llama-server for programs that run on its host: standard library only, loopback, never through a proxy.

No request takes longer than its time, whatever the server does meanwhile: a stream is kept alive by lines that say nothing
(--sse-ping-interval), so the time counts to the last byte and not between two of them.
"""

import contextlib
import http.client
import json
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

# What is to be done about a status, by what llama-server means with it (server-http.cpp, server-context.cpp at the pin).
HINTS = {
    404: "this build does not have the route, or another program has the port: `ss -ltnp` names it",
    501: "the server was started without it: look at its arguments in `systemctl cat llama-server`",
    503: "the model is still being loaded: ask again, or raise acceptance.start_timeout_s",
}
CUT = "the server ended while it answered, or closed the connection: its log says why (`wsllama doctor`)"
HANGS = "it hangs, or is slower than acceptance.request_timeout_s allows: see `wsllama doctor`, or raise that"
OTHERS = "another program has the port: `ss -ltnp` names it"
MOST = 64 << 20  # bytes of an answer; the longest ones are streams, of some hundred bytes a token
REFUSED = "nobody listens there: see `systemctl status llama-server`"


class NotAccepted(Exception):
    """One sentence."""


class Endless(Exception):
    """More came than any answer of llama-server is long."""


class Silent(NotAccepted):
    """Nobody answers any more, so there is no use in asking more."""


class Got(NamedTuple):
    """What came of a request. status is 0 when there was no whole answer; then `why` says so, and `hint` what to do."""

    status: int
    body: bytes
    why: str = ""
    hint: str = ""


class Server:
    """argument: url; alias, the model's id; key_file or None; request_timeout_s."""

    def __init__(self, a: dict[str, Any]) -> None:
        self.a = a
        self.key: str | None = None
        if a.get("key_file"):
            with open(a["key_file"], encoding="utf-8") as f:
                self.key = next(iter(f.read().split()), None)
            if not self.key:
                raise NotAccepted(f"{a['key_file']} holds no key: deploy again, which makes one where the file is gone")

    def fetch(self, path: str, body: Any = None, timeout: float = 10, url: str = "") -> Got:
        """Ask, for `timeout` seconds at most. url: another address of the server; then no key is sent."""
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self.key and not url:
            headers["Authorization"] = "Bearer " + self.key
        data = None if body is None else json.dumps(body).encode()
        end = time.monotonic() + timeout
        came: list[bytes] = []
        at = urlsplit(url or self.a["url"])  # urllib would ask somebody's proxy, and takes twice as long to be imported
        with contextlib.closing(http.client.HTTPConnection(at.hostname or "", at.port, timeout=timeout)) as connection:
            try:
                connection.request("GET" if data is None else "POST", path, data, headers)
                answer = connection.getresponse()
                whole = _read(answer, came, end)
            except TimeoutError:
                whole = None
            except Endless:
                return Got(0, b"", f"more than {MOST >> 20} MiB came", OTHERS)
            except (OSError, http.client.HTTPException) as e:  # the latter when it ends in the middle of an answer
                return _broken(e, b"".join(came))
        data = b"".join(came)
        if whole is None:
            return Got(0, data, f"timed out after {timeout:g} s", HANGS)
        return Got(answer.status, data) if whole else Got(0, data, "the answer was cut", CUT)

    def ask(self, path: str, body: Any = None, timeout: float = 10) -> tuple[int, Any]:
        """Status and JSON (or text) of one request; status 0 and the reason when there was no whole answer."""
        got = self.fetch(path, body, timeout)
        if not got.status:
            return 0, got.why
        text = got.body.decode("utf-8", "replace")
        try:
            return got.status, json.loads(text)
        except ValueError:
            return got.status, text

    def wanted(self, what: str, path: str, body: Any = None, timeout: float = 60) -> dict[str, Any]:
        """The JSON object of an answer with status 200. what: how the request is called. Raises NotAccepted, Silent."""
        got = self.fetch(path, body, timeout)
        found = parsed(got.body)
        if got.status != 200 or not isinstance(found, dict):
            raise self.trouble(what, got)
        return found

    def chat(self, question: Any, **more: Any) -> dict[str, Any]:
        """A whole reply. question: text, or the parts of one. Raises NotAccepted, Silent."""
        path = "/v1/chat/completions"
        return self.wanted("a chat request", path, self.conversation(question, **more), self.a["request_timeout_s"])

    def stream(self, question: Any, **more: Any) -> str:
        """The events of a streamed reply as they came. Raises NotAccepted, Silent, also when it ends in the middle."""
        body = self.conversation(question, stream=True, stream_options={"include_usage": True}, **more)
        got = self.fetch("/v1/chat/completions", body, self.a["request_timeout_s"])
        if got.status != 200:
            raise self.trouble("a streamed chat request", got)
        return got.body.decode("utf-8", "replace")

    def conversation(self, question: Any, **more: Any) -> dict[str, Any]:
        return {"model": self.a["alias"], "messages": [{"role": "user", "content": question}], **more}

    def trouble(self, what: str, got: Got) -> NotAccepted:
        """The sentence for an answer that is no good, with what to do."""
        if not got.status:
            return Silent(f"{what} got status 0: {got.why}: {got.hint}")
        found = parsed(got.body)
        if got.status == 200:
            shown = got.body.decode("utf-8", "replace").strip()[:200]
            said = f"{json.dumps(shown)}, which is no answer of llama-server: another program has the port (`ss -ltnp`)"
            return NotAccepted(f"{what} got status 200: {said}")
        error = found.get("error", found) if isinstance(found, dict) else got.body.decode("utf-8", "replace")
        hint = HINTS.get(got.status, "")
        if got.status in (401, 403):
            hint = f"the key in {self.a['key_file']} is not the one that it was started with: `systemctl restart llama-server`"
            if not self.key:
                hint = "it wants a key and server.api_key is False: another server has the port (`ss -ltnp`)"
        if isinstance(error, dict) and error.get("type") == "exceed_context_size_error":
            hint = "the prompt is longer than the context of a slot: raise server.ctx_size, or lower server.parallel"
        said = json.dumps(error)[:500]
        return NotAccepted(f"{what} got status {got.status}: {said}{': ' + hint if hint else ''}")


def _read(answer: Any, came: list[bytes], end: float) -> bool | None:
    """Read to the end, into `came`. Whether all of it came; None when `end`, on the monotonic clock, was first.

    Raises Endless.
    """
    size = 0
    while chunk := answer.read1(65536):
        came.append(chunk)
        size += len(chunk)
        if size > MOST:
            raise Endless
        if time.monotonic() > end:
            return None
    return not getattr(answer, "length", 0)  # bytes that were promised and did not come


def _broken(e: Exception, came: bytes) -> Got:
    if isinstance(e, ConnectionRefusedError):
        return Got(0, came, str(e), REFUSED)
    return Got(0, came, str(e) or "the connection was closed without an answer", CUT)


def parsed(body: bytes) -> Any:
    """The JSON of a body; None for anything else."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def message(reply: dict[str, Any]) -> tuple[str, str, str | None]:
    """Content, reasoning and finish reason. Raises NotAccepted when the reply holds no assistant message."""
    try:
        choice = reply["choices"][0]
        found = choice["message"]
        content, reasoning = (found.get(name) or "" for name in ("content", "reasoning_content"))
        of_us = found["role"] == "assistant" and isinstance(content, str) and isinstance(reasoning, str)
    except (AttributeError, IndexError, KeyError, TypeError):
        of_us = False
    if not of_us:
        raise NotAccepted(f"the reply holds no assistant message: {json.dumps(reply)[:300]}")
    return content, reasoning, choice.get("finish_reason")
