"""Runs on the host: what is asked of a server that is ready, one function a check, in the order of the chain.

A check returns what is to be told of it. It raises NotAccepted when the server is no good, Odd for what is not right and yet no
reason to go back, Skipped for what does not apply.
"""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from wsllama.domain import acceptance
from wsllama.domain.acceptance import Asked
from wsllama.host.api import NotAccepted, Server, Silent, message

Check = tuple[str, Callable[[], str]]
LOOPBACK = ("127.", "::1", "localhost")


class Odd(Exception):
    """Not right, and yet no reason to go back: one sentence with what to try."""


class Skipped(Exception):
    """Not asked, and why."""


class Chain:
    """The checks of one server. a: the argument of wsllama/host/accept.py."""

    def __init__(self, server: Server, a: dict[str, Any]) -> None:
        self.server, self.a = server, a
        self.props_seen: dict[str, Any] = {}
        self.answer = ""
        self.reply: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}

    @property
    def n_ctx(self) -> int | None:
        """Tokens of a slot, when /props was asked and said so."""
        found = self.props_seen.get("default_generation_settings", {}).get("n_ctx")
        return found if isinstance(found, int) and found > 0 else None

    def checks(self) -> list[Check]:
        """Names and functions of what applies, in order. Without a stage all of it does."""
        a, stage = self.a, self.a.get("stage")
        if not a["whole"]:
            return [("model", self.model), ("thinking off", self.thinking_off)]
        found: list[Check] = [
            ("model", self.model),
            ("properties", self.props),
            ("warm-up", self.warm_up),
            ("thinking off", self.thinking_off),
            ("thinking on", self.thinking_on),
            ("stream", self.stream),
            ("tool call", self.tool_call),
        ]
        found += [("sum", self.sum)] if a.get("strict") else []
        found += [("long prompt", self.long_prompt)] if stage != "text" else []
        found += [("pictures", self.pictures)] if stage in (None, "vision", "lan") else []
        found += [("Responses API", self.responses)]
        found += [("LAN", self.lan)] if stage in (None, "lan") else []
        return [*found, ("Windows", self.windows)]

    def model(self) -> str:
        got = self.server.wanted("/v1/models", "/v1/models")
        ids = [m.get("id") for m in got.get("data", []) if isinstance(m, dict)]
        if self.a["alias"] not in ids:
            raise NotAccepted("/v1/models names {}, not {}".format(", ".join(map(str, ids)) or "no model", self.a["alias"]))
        return f"/v1/models names {self.a['alias']}"

    def props(self) -> str:
        self.props_seen = self.server.wanted("/props", "/props")
        if not self.n_ctx:
            raise NotAccepted("/props tells no context (default_generation_settings.n_ctx): another program has the port")
        wanted = self.a.get("ctx_size")
        if wanted and self.n_ctx < wanted:
            raise Odd(
                f"a request may have {self.n_ctx} tokens and not the {wanted} of server.ctx_size: the build divides the context"
                " by the slots, or the model was trained for less"
            )
        return f"{self.n_ctx} tokens a slot, {self.props_seen.get('total_slots', '?')} slots"

    def warm_up(self) -> str:
        """The first request after a load is slower: kernels are compiled and graphs captured with it."""
        began = time.monotonic()
        self.server.chat(self.a["prompt"], max_tokens=1, chat_template_kwargs={"enable_thinking": False})
        self.seconds["first"] = round(time.monotonic() - began, 3)
        return f"first token after {self.seconds['first']:.2f} s"

    def judged(self, asked: Asked, question: Any, **more: Any) -> tuple[str, dict[str, Any]]:
        """Ask for a whole reply and judge it; content and reply."""
        reply = self.server.chat(question, max_tokens=asked.max_tokens, **more)
        content, _, _ = message(reply)
        if wrong := acceptance.problem(json.dumps(reply), asked):
            raise NotAccepted(wrong)
        return content, reply

    def plain(self, what: str, question: Any, max_tokens: int, **more: Any) -> tuple[str, dict[str, Any]]:
        """The same with thinking off."""
        asked = Asked(what, max_tokens, self.n_ctx)
        return self.judged(asked, question, chat_template_kwargs={"enable_thinking": False}, **more)

    def thinking_off(self) -> str:
        began = time.monotonic()
        self.answer, reply = self.plain("with thinking off", self.a["prompt"], self.a["answer_tokens"])
        self.seconds["next"] = round(time.monotonic() - began, 3)
        if message(reply)[1].strip() and self.apart:
            raise Odd("with thinking off the model thought all the same: its chat template does not heed enable_thinking")
        return json.dumps(self.answer[:60], ensure_ascii=False)

    @property
    def apart(self) -> bool:
        """Whether reasoning has a field of its own, by server.reasoning_format."""
        return bool(self.a.get("reasoning_apart", True))

    def thinks(self) -> dict[str, Any]:
        """What makes a request think, within acceptance.thinking_tokens."""
        budget = self.a["thinking_tokens"]
        more: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
        return {**more, "reasoning_budget_tokens": budget} if budget >= 0 else more

    @property
    def most(self) -> int:
        """Tokens of thinking and answer."""
        most: int = self.a["answer_tokens"] + max(self.a["thinking_tokens"], 0)
        return most

    def thinking_on(self) -> str:
        if not self.a.get("reasoning", True):
            raise Skipped("server.reasoning is off, or server.reasoning_budget 0")
        asked = Asked("with thinking on", self.most, self.n_ctx, True, self.apart)
        _, reply = self.judged(asked, self.a["prompt"], **self.thinks())
        content, reasoning, finish = message(reply)
        self.reply = {"content": content, "reasoning": reasoning, "finish_reason": finish}
        return f"{len(reasoning)} characters of reasoning and an answer"

    def stream(self) -> str:
        thinking = bool(self.a.get("reasoning", True))
        more = self.thinks() if thinking else {"chat_template_kwargs": {"enable_thinking": False}}
        asked = Asked("streamed,", self.most, self.n_ctx, thinking, self.apart)
        events = self.server.stream(self.a["prompt"], max_tokens=self.most, **more)
        if not events.lstrip().startswith(("data:", ":", "event:")):
            raise NotAccepted("a stream was asked for and one whole answer came: something between does not pass streams on")
        if wrong := acceptance.problem(events, asked):
            raise NotAccepted(wrong)
        return f"{events.count('data: ')} events, the last one [DONE]"

    def tool_call(self) -> str:
        more = {"tools": [acceptance.TOOL], "chat_template_kwargs": {"enable_thinking": False}}
        reply = self.server.chat(acceptance.WEATHER, max_tokens=self.a["answer_tokens"], **more)
        content, _, finish = message(reply)
        if reply["choices"][0]["message"].get("tool_calls"):
            if wrong := acceptance.call_problem(reply):
                raise NotAccepted(wrong)
            return "the model called a tool"
        if tag := acceptance.TAGS.search(content):
            raise NotAccepted(f"a tool's call was left in the answer as text ({tag[0]}): the build does not parse this template")
        said = f"offered a tool, the model answered in words (finish reason {finish}): its chat template may not show tools"
        raise (NotAccepted if self.a.get("strict") else Odd)(f"{said}; see `wsllama ask --show-prompt`")

    def sum(self) -> str:
        question, right = acceptance.SUM
        content, _ = self.plain("asked for a sum,", question, self.a["answer_tokens"], temperature=0)
        if right not in content:
            wrong = json.dumps(content[:80])
            raise NotAccepted(f"17 + 25 was answered with {wrong}: a damaged or too small quantisation, or wrong kernels")
        return f"17 + 25 is {right}"

    def long_prompt(self) -> str:
        """Prompts that get longer until one nearly fills the context, counted by the server's own tokenizer.

        The next one is as long as the time that is left for it allows, by what the last one took.
        """
        seconds = self.a["long_prompt_s"]
        if not seconds or not self.n_ctx:
            raise Skipped("the context is not known" if seconds else "acceptance.long_prompt_s is 0")
        answer = min(self.a["answer_tokens"], self.n_ctx // 8)
        room = self.n_ctx - answer - 64 - self.n_ctx // 64  # 64: what the template puts around it
        target, tokens, end = min(room, 1024), 0, time.monotonic() + seconds
        while True:
            prompt, counted = self.of_length(target)
            if not prompt:
                raise Skipped(f"a context of {self.n_ctx} tokens has no room for one")
            began, tokens = time.monotonic(), counted
            self.remembers(prompt, tokens, answer)
            # attention makes a token dearer the more stand before it
            grow = min((end - time.monotonic()) / max(time.monotonic() - began, 0.001) / 1.5, 8)
            if target >= room or grow < 1.25:
                break
            target = min(room, int(target * grow))
        short = "" if target >= room else ", as many as acceptance.long_prompt_s allows"
        return f"{tokens} of {self.n_ctx} tokens{short}"

    def remembers(self, prompt: str, tokens: int, answer: int) -> None:
        """The server takes a prompt of so many tokens whole, and answers it. answer: most tokens of that."""
        content, reply = self.plain(f"with a prompt of {tokens} tokens", prompt, answer, temperature=0)
        seen = (reply.get("usage") or {}).get("prompt_tokens")
        if isinstance(seen, int) and not tokens <= seen <= (self.n_ctx or seen):
            raise NotAccepted(f"of a prompt of {tokens} tokens the server saw {seen}: it cuts prompts; see `--context-shift`")
        if acceptance.NUMBER not in content and self.a.get("strict"):
            raise NotAccepted(
                f"the number at the start of a prompt of {tokens} tokens was not remembered ({json.dumps(content[:80])}): another"
                " type for the KV cache (server.cache_type_k, cache_type_v) or a larger quantisation may help"
            )

    def of_length(self, target: int) -> tuple[str, int]:
        """A prompt of at most `target` tokens and how many it has; an empty one when there is no room."""
        few, many = (self.tokens(acceptance.long_prompt(n)) for n in (0, 64))
        lines = int((target - few) * 64 / max(many - few, 1))
        while lines > 0:
            prompt = acceptance.long_prompt(lines)
            tokens = self.tokens(prompt)
            if tokens <= target:
                return prompt, tokens
            lines = min(lines - 1, int(lines * target / tokens))  # line numbers get longer
        return "", 0

    def tokens(self, text: str) -> int:
        return len(self.server.wanted("/tokenize", "/tokenize", {"content": text}, 60).get("tokens", []))

    def pictures(self) -> str:
        if not (self.props_seen.get("modalities") or {}).get("vision"):
            if self.a.get("vision"):
                raise NotAccepted("a projector is served and /props has no vision among the modalities: see the server's log")
            raise Skipped("no projector is served (model.mmproj)")
        said, tokens = {}, {}
        for colour in ("", *acceptance.COLOURS):
            parts: list[dict[str, Any]] = [{"type": "text", "text": acceptance.COLOUR}]
            if colour:
                url = acceptance.picture(acceptance.COLOURS[colour])
                parts.insert(0, {"type": "image_url", "image_url": {"url": url}})
            what = f"asked about a {colour} picture," if colour else "asked about a picture without one,"
            content, reply = self.plain(what, parts, self.a["answer_tokens"], temperature=0)
            tokens[colour] = (reply.get("usage") or {}).get("prompt_tokens") or 0
            if colour:
                said[colour] = content
        wrong, odd = acceptance.pictures_problem(said, tokens, bool(self.a.get("strict")))
        if wrong:
            raise NotAccepted(wrong)
        if odd:
            raise Odd(odd)
        return ", ".join(f"{colour}: {json.dumps(text.strip()[:20], ensure_ascii=False)}" for colour, text in said.items())

    def responses(self) -> str:
        path = "/v1/responses"
        body = {"model": self.a["alias"], "input": self.a["prompt"], "max_output_tokens": self.a["answer_tokens"]}
        body["chat_template_kwargs"] = {"enable_thinking": False}
        got = self.server.fetch(path, body, self.a["request_timeout_s"])
        if got.status in (404, 405, 501):
            return f"this build has no {path} ({got.status}): clients use /v1/chat/completions"
        if got.status != 200:
            trouble = self.server.trouble(path, got)
            raise trouble if not got.status else Odd(f"{trouble} (clients may use /v1/chat/completions)")
        return f"{path} answers"

    def lan(self) -> str:
        """As another machine would ask: at the address that is listened on, and without the key."""
        host = self.a.get("host") or "127.0.0.1"
        if host.startswith(LOOPBACK):
            raise Skipped(f"{host} is reached from this machine only")
        address = own_address() if host in ("0.0.0.0", "::") else host
        port = self.a["url"].rpartition(":")[2]
        url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
        got = self.server.fetch("/health", timeout=10, url=url)
        if got.status != 200:
            raise self.server.trouble(f"{url}/health", got)
        if self.server.key and (got := self.server.fetch("/v1/models", timeout=10, url=url)).status != 401:
            raise NotAccepted(f"{url}/v1/models was answered with status {got.status} without the key: it has to ask for it")
        return f"{url} answers" + (", with the key only" if self.server.key else "")

    def windows(self) -> str:
        """As a program on Windows asks; only where one can be started from here."""
        if not self.a.get("wsl"):
            raise Skipped("no Windows below this host")
        from wsllama.host import interop

        there, why = interop.find(), interop.blocked()
        if not there or why:
            raise Skipped(why or "no drive of Windows is mounted here")
        url = f"http://localhost:{self.a['url'].rpartition(':')[2]}/health"
        # WSL's relay takes a moment to learn of a new port
        words = ("-s", "-S", "--noproxy", "*", "-m", "20", "--retry", "3", "--retry-connrefused", "--retry-delay", "1")
        try:
            _, out, err = there.run("curl.exe", *words, "-o", "NUL", "-w", "%{http_code}", url, timeout=60)
        except interop.NoInterop as e:
            raise Skipped(str(e)) from None
        if interop.decode(out).strip() == "200":
            return f"Windows reaches {url}"
        said = " ".join(interop.decode(err).split()) or f"status {interop.decode(out).strip()}"
        raise (NotAccepted if self.a.get("strict") else Odd)(
            f"Windows does not reach {url} ({said}): see localhostForwarding and networkingMode in .wslconfig, and whether a"
            " program on Windows has the port"
        )


def own_address() -> str:
    """The address of this machine towards others; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(s.getsockname()[0])


def run(checks: list[Check], go_on: bool, out: list[dict[str, Any]]) -> str | None:
    """Run checks, put down in `out` what came of each, and return the first failure's sentence.

    go_on: ask the rest after a failure too, as long as anybody answers.
    """
    first: str | None = None
    for name, check in checks:
        began, silent = time.monotonic(), False
        try:
            result, says = "ok", check()
        except Skipped as e:
            result, says = "skipped", str(e)
        except Odd as e:
            result, says = "warning", str(e)
        except NotAccepted as e:
            result, says, silent = "failed", str(e), isinstance(e, Silent)
            first = first or says
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
            result = "failed"
            says = f"the answer has another form than llama-server's ({type(e).__name__}: {e}): another program has the port"
            first = first or says
        out.append({"check": name, "result": result, "says": says, "seconds": round(time.monotonic() - began, 3)})
        if result == "failed" and (silent or not go_on):
            break
    return first
