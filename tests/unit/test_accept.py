"""Acceptance and `ask`, run as on a host, against a server that answers byte for byte as llama-server does.

tests/data/fixtures/response holds its answers. systemctl and journalctl are small scripts that print what a test put down
for them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from wsllama import program

DATA = Path(__file__).parents[1] / "data" / "fixtures" / "response"
ALIAS = "qwen3.6-35b-a3b"
Answer = tuple[int, bytes]


def body(name: str) -> bytes:
    return (DATA / name).read_bytes()


def reply(content: str, reasoning: str | None = None, **more: Any) -> Answer:
    """The recorded answer with another text."""
    whole = json.loads(body("answer-thinking-off.json"))
    whole["choices"][0]["message"] = {
        "role": "assistant",
        "content": content,
        **({"reasoning_content": reasoning} if reasoning else {}),
    }
    whole["choices"][0].update(more)
    return 200, json.dumps(whole).encode()


def with_tokens(answer: Answer, prompt: int) -> Answer:
    whole = json.loads(answer[1])
    whole["usage"]["prompt_tokens"] = prompt
    return answer[0], json.dumps(whole).encode()


HEALTHY, LOADING = (200, b'{"status":"ok"}'), (503, body("error-503-loading.json"))
MODELS = (200, json.dumps({"object": "list", "data": [{"id": ALIAS, "object": "model"}]}).encode())
SYSTEM_INFO = (  # of a start on a processor that has all of it
    "0.00.002.781 I cmn  common_param: system_info: n_threads = 1 (n_threads_batch = 1) / 2 | CPU : SSE3 = 1 | SSSE3 = 1"
    " | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | BMI2 = 1 | AVX512 = 1 | LLAMAFILE = 1 | OPENMP = 1 | REPACK = 1 | \n"
)
CPUINFO = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse sse2 avx f16c{} bmi2\nbugs\t\t: sysret_ss_attrs\n"


def props(n_ctx: int = 16384, vision: bool = False) -> Answer:
    whole = {"default_generation_settings": {"n_ctx": n_ctx}, "total_slots": 1, "modalities": {"vision": vision}}
    return 200, json.dumps(whole).encode()


def streamed(*deltas: dict[str, Any], finish: str | None = "stop", usage: bool = True, done: bool = True) -> Answer:
    """Server-sent events as the pin writes them: a ping, deltas, the finish reason, usage, [DONE]."""
    head: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": ALIAS}
    chunks: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    chunks += [{"index": 0, "delta": {}, "finish_reason": finish}] if finish else []
    events = [{**head, "choices": [chunk]} for chunk in chunks]
    told: Any = {"completion_tokens": 9, "prompt_tokens": 24, "total_tokens": 33}
    events += [{**head, "choices": [], "usage": told}] if usage else []
    lines = [": ping", *("data: " + json.dumps(event) for event in events), *(["data: [DONE]"] if done else [])]
    return 200, "".join(f"{line}\n\n" for line in lines).encode()


DELTAS = (
    {"role": "assistant", "content": None},
    {"reasoning_content": "The word"},
    {"reasoning_content": " is"},
    {"content": "READY"},
)


def called(name: str = "get_weather", arguments: str = '{"city": "Paris"}') -> Answer:
    """A reply with a tool's call."""
    status, whole = reply("")
    document = json.loads(whole)
    call = {"type": "function", "id": "1", "function": {"name": name, "arguments": arguments}}
    document["choices"][0].update(
        finish_reason="tool_calls", message={"role": "assistant", "content": None, "tool_calls": [call]}
    )
    return status, json.dumps(document).encode()


class Host:
    """A server and a service manager, and what they were asked."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.health: list[Answer] = [HEALTHY]
        self.models, self.without, self.thinking = MODELS, reply("READY"), reply("READY", "The word is READY.")
        self.asked: list[tuple[str, Any, str | None]] = []
        self.props, self.streamed, self.call, self.responses = props(), streamed(*DELTAS), called(), (200, b'{"output": []}')
        self.colours = {"red": "Red.", "blue": "It is blue"}
        self.picture_tokens = 70
        self.knows = {"17 + 25": "42", "number to remember": "7391"}
        self.cut = False  # end in the middle of a reply
        self.raw: Callable[[Any], None] | None = None  # what is written for a stream, instead of an answer
        self.key_file: str | None = None
        (folder / "release").mkdir()
        (folder / "cpuinfo").write_text(CPUINFO.format(" avx2"))
        (folder / "release/release.json").write_text(json.dumps({"model": {"file": "m/a.gguf"}, "build": "b"}))
        self.state(ActiveState="active", MainPID=str(os.getpid()), InvocationID="0123")
        self.log("srv  llama_server: listening\n")
        for name in ("systemctl", "journalctl"):
            self.script(name, f"cat {folder}/{name}.out")
        self.script("llama-server", '[ "$*" = --version ] && echo "version: 11434 (0c1e57098)" >&2')

    def script(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def state(self, **known: str) -> None:
        stock = {"ActiveState": "active", "SubState": "running", "Result": "success", "NRestarts": "0", "ExecMainStatus": "0"}
        (self.folder / "systemctl.out").write_text("".join(f"{k}={v}\n" for k, v in {**stock, **known}.items()))

    def log(self, text: str, system_info: str = SYSTEM_INFO) -> None:
        (self.folder / "journalctl.out").write_text(system_info + text)

    def answer(self, path: str, given: Any) -> Answer:
        if path == "/health":
            return self.health.pop(0) if len(self.health) > 1 else self.health[0]
        if path == "/tokenize":  # a word a token
            return 200, json.dumps({"tokens": given["content"].split()}).encode()
        if path == "/v1/chat/completions":
            return self.chat(given)
        there = {"/v1/models": self.models, "/props": self.props, "/v1/responses": self.responses}
        there["/apply-template"] = (200, json.dumps({"prompt": f"<|im_start|>{given}"}).encode())
        return there.get(path, (404, body("error-404-route.json")))

    def chat(self, given: Any) -> Answer:
        question = given["messages"][0]["content"]
        if given.get("stream"):
            return self.streamed
        if "tools" in given:
            return self.call
        if isinstance(question, list):
            return self.see(question)
        for part, known in self.knows.items():
            if part in question:
                return with_tokens(reply(known), len(question.split()) + 10)
        return self.thinking if given["chat_template_kwargs"]["enable_thinking"] else self.without

    def see(self, parts: list[Any]) -> Answer:
        """A picture costs tokens and is told by its colour, which stands in the first bytes of its pixels."""
        if len(parts) == 1:
            return with_tokens(reply("There is none."), 20)
        data = base64.b64decode(parts[0]["image_url"]["url"].partition(",")[2])
        pixel = zlib.decompress(data[data.index(b"IDAT") + 4 : -16])[1:4]
        colour = {b"\xff\0\0": "red", b"\0\0\xff": "blue"}[pixel]
        return with_tokens(reply(self.colours[colour]), 20 + self.picture_tokens)

    def run(self, name: str, argument: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        common = {"url": f"http://127.0.0.1:{self.port}", "alias": ALIAS, "key_file": self.key_file, "request_timeout_s": 5}
        # a proxy that nobody answers at: the programs may not use it
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "http_proxy": "http://127.0.0.1:9"}
        p = subprocess.run(
            [sys.executable, "-I", "-S", "-"],
            input=program.call(name, {**common, **argument}),
            env=environment,
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in p.stderr, p.stderr
        return p

    def accept(self, **more: Any) -> dict[str, Any]:
        argument = {
            "unit": "llama-server.service",
            "release": f"{self.folder}/release",
            "program": f"{self.folder}/bin/llama-server",
            "whole": True,
            "gpu": False,
            "prompt": "Reply with the single word READY.",
            "thinking_tokens": 64,
            "answer_tokens": 32,
            "start_timeout_s": 600,
            "ctx_size": 16384,
            "long_prompt_s": 60,
            "cpuinfo": f"{self.folder}/cpuinfo",
            **more,
        }
        p = self.run("accept", argument)
        assert p.returncode == 0, p.stderr
        found: dict[str, Any] = json.loads(p.stdout.splitlines()[-1])
        return found

    def chats(self) -> list[Any]:
        return [given for path, given, _ in self.asked if path == "/v1/chat/completions"]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            given = json.loads(self.rfile.read(length)) if length else None
            known.asked.append((self.path, given, self.headers.get("Authorization")))
            if known.raw and given and given.get("stream"):
                known.raw(self.wfile)
                return
            status, data = known.answer(self.path, given)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:20] if known.cut and given else data)

        do_GET = do_POST = respond

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known = Host(tmp_path, server.server_port)
    thread = threading.Thread(target=lambda: server.serve_forever(0.02))
    thread.start()
    yield known
    server.shutdown()
    thread.join()
    server.server_close()


def test_accepted_with_everything_asked(host: Host) -> None:
    host.log("llama_kv_cache: size = 320.00 MiB ( 16384 cells), K (f16): 160.00 MiB, V (q8_0): 160.00 MiB\n")
    found = host.accept()
    assert found["ok"] is True
    assert found["reply"] == {"content": "READY", "reasoning": "The word is READY.", "finish_reason": "stop"}
    warm_up, without, thinking, *_ = host.chats()
    assert warm_up["max_tokens"] == 1
    assert without["max_tokens"] == 32
    assert without["chat_template_kwargs"] == {"enable_thinking": False}
    assert (thinking["max_tokens"], thinking["reasoning_budget_tokens"]) == (96, 64)
    assert thinking["model"] == ALIAS
    baseline = found["baseline"]
    assert baseline["version"] == "version: 11434 (0c1e57098)", "llama-server prints it to stderr"
    assert (baseline["n_ctx"], baseline["kv_type"]) == (16384, {"k": "f16", "v": "q8_0"})
    assert (baseline["model"], baseline["build"]) == ({"file": "m/a.gguf"}, "b")
    assert baseline["memory"]["MemTotal"] > 0
    assert baseline["server_rss"] > 0


ALL = ["health", "plan", "processor", "model", "properties", "warm-up", "thinking off", "thinking on", "stream", "tool call"]
ALL += ["long prompt", "pictures", "Responses API", "LAN", "Windows", "log"]


def results(found: dict[str, Any]) -> dict[str, str]:
    return {check["check"]: check["result"] for check in found["checks"]}


def says(found: dict[str, Any], check: str) -> str:
    return next(str(c["says"]) for c in found["checks"] if c["check"] == check)


def test_every_check_is_told_in_order(host: Host) -> None:
    host.props = props(vision=True)
    found = host.accept(strict=True)
    assert found["ok"] is True
    assert [c["check"] for c in found["checks"]] == [*ALL[:10], "sum", *ALL[10:]]
    skipped = {name for name, result in results(found).items() if result != "ok"}
    assert skipped == {"plan", "LAN", "Windows"}, "no plan, loopback only, and no Windows"
    assert {c["result"] for c in found["checks"] if c["check"] in skipped} == {"skipped"}


def killed(limit: str) -> Change:
    """Ended by the kernel, with this MemoryMax."""

    def change(host: Host) -> None:
        state(ActiveState="failed", Result="signal", ExecMainStatus="9", MemoryMax=limit)(host)
        host.log("srv load_model: loading\nllama-server.service: Main process exited, code=killed, status=9/KILL\n")

    return change


@pytest.mark.parametrize(
    ("stage", "left_out"),
    [
        ("text", {"long prompt", "pictures", "LAN"}),
        ("context", {"pictures", "LAN"}),
        ("vision", {"LAN"}),
        ("lan", set()),
    ],
)
def test_a_stage_asks_what_is_new_in_it_and_all_before(host: Host, stage: str, left_out: set[str]) -> None:
    host.props = props(vision=True)
    found = host.accept(stage=stage)
    assert found["ok"] is True
    assert list(results(found)) == [name for name in ALL if name not in left_out]


def lengths(host: Host) -> list[int]:
    """Of the long prompts that were asked, in words, each of which is a token here."""
    asked = [given["messages"][0]["content"] for given in host.chats()]
    return [len(text.split()) for text in asked if "number to remember" in text]


@pytest.mark.parametrize(("n_ctx", "least"), [(16384, 15800), (2048, 1800), (256, 100)])
def test_the_long_prompt_nearly_fills_the_context_and_stays_in_it(host: Host, n_ctx: int, least: int) -> None:
    host.props = props(n_ctx)
    found = host.accept(ctx_size=n_ctx, long_prompt_s=7200)
    assert found["ok"] is True
    asked = lengths(host)
    assert asked == sorted(asked)
    assert least <= asked[-1] <= n_ctx - host.chats()[-1]["max_tokens"]
    assert says(found, "long prompt") == f"{asked[-1]} of {n_ctx} tokens"


def test_a_long_prompt_is_no_longer_than_its_time_allows(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = host.answer

    def slow(path: str, given: Any) -> Answer:
        time.sleep(2 if "number to remember" in str(given and given.get("messages")) else 0)
        return stock(path, given)

    monkeypatch.setattr(host, "answer", slow)
    found = host.accept(long_prompt_s=1)
    (length,) = lengths(host)
    assert says(found, "long prompt") == f"{length} of 16384 tokens, as many as acceptance.long_prompt_s allows"
    assert results(host.accept(long_prompt_s=0))["long prompt"] == "skipped"
    host.props = props(80)
    assert results(host.accept(ctx_size=80))["long prompt"] == "skipped", "there is no room for one"


def test_pictures_are_not_asked_about_without_a_projector(host: Host) -> None:
    assert results(host.accept(long_prompt_s=0))["pictures"] == "skipped"
    found = host.accept(vision=True)
    assert found["error"].startswith("a projector is served and /props has no vision among the modalities")


def test_without_reasoning_nothing_is_asked_for_it(host: Host) -> None:
    host.streamed = streamed({"content": "READY"})
    found = host.accept(reasoning=False)
    assert (found["ok"], results(found)["thinking on"]) == (True, "skipped")
    assert {g["chat_template_kwargs"]["enable_thinking"] for g in host.chats()} == {False}


def test_reasoning_may_stay_in_the_answer_where_the_settings_say_so(host: Host) -> None:
    host.thinking = reply("<think>\nThe word is READY.\n</think>\n\nREADY")
    host.streamed = streamed({"content": "<think>\nhm\n</think>\n\nREADY"})
    assert host.accept(reasoning_apart=False)["ok"] is True
    assert host.accept()["error"].startswith("with thinking on <think> stands in the answer: server.reasoning_format is none")


def test_the_responses_api_may_be_missing_and_that_is_explained(host: Host) -> None:
    host.responses = 404, body("error-404-route.json")
    found = host.accept()
    assert (found["ok"], results(found)["Responses API"]) == (True, "ok")
    assert says(found, "Responses API") == "this build has no /v1/responses (404): clients use /v1/chat/completions"


def test_what_is_odd_is_told_and_fails_only_where_it_is_asked_for(host: Host) -> None:
    host.call, host.props = reply("It rains."), props(8192, vision=True)
    host.colours = {"red": "round", "blue": "square"}
    found = host.accept()
    assert found["ok"] is True
    assert [name for name, result in results(found).items() if result == "warning"] == ["properties", "tool call", "pictures"]
    assert says(found, "properties").startswith("a request may have 8192 tokens and not the 16384 of server.ctx_size")
    assert says(found, "tool call").startswith("offered a tool, the model answered in words")
    assert says(found, "pictures").startswith('the red picture was answered with "round": the projector does not belong')
    found = host.accept(strict=True, go_on=True)
    assert found["ok"] is False
    assert [name for name, result in results(found).items() if result == "failed"] == ["tool call", "pictures"]
    assert found["error"] == says(found, "tool call")


def test_strict_asks_for_right_answers(host: Host) -> None:
    host.knows = {"17 + 25": "41", "number to remember": "I forgot"}
    assert host.accept()["ok"] is True
    found = host.accept(strict=True, go_on=True)
    assert says(found, "sum").startswith('17 + 25 was answered with "41"')
    assert "was not remembered" in says(found, "long prompt")


def test_another_machine_s_way_in_is_asked_without_the_key(host: Host, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the-key\n")
    host.key_file = str(tmp_path / "key")
    found = host.accept(host="127.0.0.1")
    assert results(found)["LAN"] == "skipped"
    found = host.accept(host="0.0.0.0")
    assert "nobody listens there" in found["error"], "the stand-in listens on loopback only"


@pytest.fixture
def slow() -> Iterator[threading.Event]:
    """Set when the test is over, so that a server that keeps somebody waiting lets go."""
    over = threading.Event()
    yield over
    over.set()


def test_a_stream_that_is_only_kept_alive_ends_in_time(host: Host, slow: threading.Event) -> None:
    def pings(out: Any) -> None:
        out.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        while not slow.wait(0.1):
            out.write(b": ping\n\n")
            out.flush()

    host.raw = pings
    found = host.accept(request_timeout_s=10, go_on=True)
    assert found["checks"][-1]["check"] == "stream", "nobody answers any more, so nothing is asked behind it"
    assert found["error"].startswith("a streamed chat request got status 0: timed out after 10 s: it hangs, or is slower than")


def test_an_answer_without_end_ends_by_its_size(host: Host) -> None:
    def zeros(out: Any) -> None:
        out.write(b"HTTP/1.0 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                out.write(bytes(1 << 20))

    host.raw = zeros
    error = host.accept(request_timeout_s=600)["error"]
    assert error == (
        "a streamed chat request got status 0: more than 64 MiB came: another program has the port: `ss -ltnp` names it"
    )


CHUNK = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "RE"}, "finish_reason": None}]}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(CHUNK), CHUNK), "got status 0: "),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + CHUNK, "the stream ended without [DONE]"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + CHUNK, "got status 0: the answer was cut"),
        (b"\x16\x03\x01 what is this\r\n\r\n", "got status 0: "),
        (b"", "got status 0: "),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + reply("READY", "hm")[1], "one whole answer came"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: \xff\xfe{\n\ndata: [DONE]\n\n", "streamed, there was no answer"),
    ],
    ids=["chunked", "closed", "length", "garbage", "nothing", "whole", "no JSON"],
)
def test_a_stream_that_breaks_is_named(host: Host, head: bytes, said: str) -> None:
    host.raw = lambda out: out.write(head) and None
    found = host.accept()
    assert found["checks"][-1]["check"] == "stream"
    assert said in found["error"]
    assert "the server ended while it answered" in found["error"] or "got status 0" not in found["error"]


def test_waiting_goes_on_where_an_earlier_wait_ended(host: Host) -> None:
    host.health = [LOADING]
    found = host.accept(start_timeout_s=900, waited_s=900.1)
    assert "/health was not ready after 900 s (last answer: status 503, the model is still being loaded" in found["error"]
    host.state(NRestarts="2", ActiveState="activating")
    assert "starts again and again" in host.accept(start_timeout_s=900, waited_s=1)["error"], "counted since the start by hand"


def test_the_reason_of_a_server_that_died_while_loading_is_named(host: Host) -> None:
    host.health = [LOADING]
    host.state(ActiveState="failed", Result="exit-code", ExecMainStatus="1")
    line = "0.01.2 E llama_model_load: error loading model: tensor 'blk.7.a' data is not within the file bounds"
    host.log(f"srv load_model: loading model '/m/a.gguf'\n{line}, model is corrupted or incomplete\n")
    error = host.accept()["error"]
    assert f"ended while it was starting (exit-code, status 1): bad_file: {line}" in error
    # systemd has started it again: the log ends with a start on its way
    host.script("systemctl", f"cat {host.folder}/systemctl.out; echo NRestarts=$(cat {host.folder}/n); echo 1 >{host.folder}/n")
    (host.folder / "n").write_text("0")
    host.state(ActiveState="activating")
    began = (host.folder / "journalctl.out").read_text()
    host.log(f"{began}llama-server.service: Scheduled restart job, restart counter is at 1.\nsrv load_model: loading model 'a'\n")
    assert f"llama-server.service can't be started: bad_file: {line}" in host.accept()["error"], "no second try is waited for"


def test_accepted_before_is_asked_less(host: Host) -> None:
    found = host.accept(whole=False)
    assert found["ok"] is True
    assert "baseline" not in found
    assert len(host.chats()) == 1


def test_without_a_budget_thinking_is_bounded_by_the_answer_only(host: Host) -> None:
    host.accept(thinking_tokens=-1)
    assert host.chats()[2]["max_tokens"] == 32
    assert "reasoning_budget_tokens" not in host.chats()[2]


def test_loading_is_waiting_and_not_failure(host: Host) -> None:
    host.health = [LOADING, LOADING, HEALTHY]
    assert host.accept(whole=False)["ok"] is True
    assert [path for path, _, _ in host.asked].count("/health") == 3


def test_the_key_is_sent_from_its_file(host: Host, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the-key\n")
    host.key_file = str(tmp_path / "key")
    assert host.accept(whole=False)["ok"] is True
    assert {key for path, _, key in host.asked} == {"Bearer the-key"}


Change = Callable[[Host], None]
CONTEXT = json.dumps(
    {
        "error": {
            "code": 400,
            "type": "exceed_context_size_error",
            "message": "the request exceeds",
            "n_prompt_tokens": 99,
            "n_ctx": 64,
        }
    }
).encode()


def put(name: str, value: Any) -> Change:
    return lambda host: setattr(host, name, value)


def state(**known: str) -> Change:
    def change(host: Host) -> None:
        host.health = [LOADING]
        host.state(**known)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("models", (200, b'{"object":"list","data":[]}')), f"/v1/models names no model, not {ALIAS}"),
        (put("models", (200, b'{"data":[{"id":"gpt"},{"id":"b"}]}')), f"/v1/models names gpt, b, not {ALIAS}"),
        (put("models", (401, body("error-401-pretty.json"))), "/v1/models got status 401"),
        (put("models", (200, body("html-from-proxy.html"))), "/v1/models got status 200: "),
        (put("without", (200, body("empty-no-reasoning.json"))), "with thinking off the reply was empty (finish reason stop)"),
        (put("without", (200, body("html-from-proxy.html"))), "a chat request got status 200: "),
        (put("without", (200, b'{"choices":[]}')), "the reply holds no assistant message"),
        (put("without", (401, body("error-401-pretty.json"))), "a chat request got status 401: "),
        (put("without", (500, body("error-template-500-jinja.json"))), "a chat request got status 500: "),
        (put("without", (502, body("html-from-proxy.html"))), "a chat request got status 502: "),
        (
            put("thinking", (200, body("context-spent-thinking-8k.json"))),
            "with thinking on there was no answer, only 36 characters of reasoning: thinking used up all 96 tokens;"
            " give acceptance.thinking_tokens a limit or raise answer_tokens",
        ),
        (put("thinking", (200, body("budget-one-token.json"))), "only 3 characters of reasoning: thinking used up all 96 tokens"),
        (put("thinking", (200, body("tool-call-empty-string.json"))), "with thinking on there was no answer"),
        (put("cut", True), "a chat request got status 0: the answer was cut: the server ended while it answered"),
        (put("models", (404, body("error-404-route.json"))), ": this build does not have the route, or another program has"),
        (put("models", (401, body("error-401-pretty.json"))), "it wants a key and server.api_key is False: another server"),
        (put("models", (200, b"\xff\x00garbage")), "which is no answer of llama-server: another program has the port"),
        (put("without", (503, body("error-503-loading.json"))), ": the model is still being loaded: ask again, or raise"),
        (put("without", (400, CONTEXT)), "the prompt is longer than the context of a slot: raise server.ctx_size"),
        (put("without", reply("READY", finish_reason="length")), "with thinking off the answer was cut after all 32 tokens"),
        (put("without", reply("READY<|im_end|>")), "with thinking off <|im_end|> stands in the answer: the end of the turn"),
        (put("thinking", reply("READY")), "with thinking on there was an answer and no reasoning beside it"),
        (put("thinking", reply("hm</think>READY", "hm")), "with thinking on </think> stands in the answer"),
        (put("streamed", streamed(*DELTAS, finish="length")), "streamed, the answer was cut after all 96 tokens"),
        (put("streamed", streamed(*DELTAS, usage=False)), "streamed, the stream told no usage"),
        (put("streamed", streamed(*DELTAS, done=False)), "streamed, the stream ended without [DONE]"),
        (put("streamed", (500, body("error-template-500-jinja.json"))), "a streamed chat request got status 500: "),
        (put("call", reply("<tool_call>\n{}")), "a tool's call was left in the answer as text (<tool_call>)"),
        (put("call", called("other")), "the tool other was called, which nobody offered"),
        (put("call", called(arguments='{"city": ')), 'a tool was called with "{\\"city\\": ", which is no JSON'),
        (put("props", (200, b"{}")), "/props tells no context"),
        (put("health", [LOADING]), "/health was not ready after"),
        (
            state(ActiveState="failed", Result="exit-code", ExecMainStatus="1"),
            "ended while it was starting (exit-code, status 1)",
        ),
        (killed(str(9 << 30)), "(`wsllama doctor` says what to do); its limit of memory is 9216 MiB: raise server.memory_max"),
        (killed("infinity"), "status=9/KILL (`wsllama doctor` says what to do)"),
        (
            lambda host: host.log("srv operator(): got exception: Jinja Exception: boom\nand more\n"),
            "the log speaks of a template error: srv operator(): got exception: Jinja Exception: boom",
        ),
        (
            lambda host: host.log("the chat template that comes with this model is not yet supported, falling back to chatml\n"),
            "the log speaks of a template error: the chat template that comes with this model",
        ),
    ],
)
def test_not_accepted(host: Host, change: Change, said: str) -> None:
    change(host)
    found = host.accept(start_timeout_s=1)
    assert found["ok"] is False
    assert said in found["error"]
    assert "\n" not in found["error"]
    assert isinstance(found["log"], list)


MESSAGE = b'{"choices":[{"message":%s,"finish_reason":"stop"}]}'


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("models", b'{"data":null}', "model"),
        ("props", b'{"default_generation_settings":null}', "properties"),
        ("without", b'{"choices":"abc"}', "thinking off"),
        ("without", MESSAGE % b'"READY"', "thinking off"),
        ("without", MESSAGE % b'{"role":"assistant","content":5}', "thinking off"),
        (
            "thinking",
            b'{"choices":[{"message":{"role":"assistant","reasoning_content":"hm"}}],"usage":{"completion_tokens":"many"}}',
            "thinking on",
        ),
        ("call", MESSAGE % b'{"role":"assistant","tool_calls":[{"function":"f"}]}', "tool call"),
        ("models", b"[" * 100_000, "model"),
    ],
)
def test_json_of_any_other_form_is_named_and_no_traceback(host: Host, name: str, value: bytes, check: str) -> None:
    setattr(host, name, (200, value))
    found = host.accept(long_prompt_s=0)
    assert (found["ok"], found["checks"][-1]["check"], found["checks"][-1]["result"]) == (False, check, "failed")
    assert "\n" not in found["error"]


def test_a_key_file_without_a_key_is_named(host: Host, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n")
    host.key_file = str(tmp_path / "key")
    assert "key holds no key: deploy again" in host.accept(whole=False)["error"]


def test_a_server_that_starts_again_and_again(host: Host) -> None:
    host.health = [LOADING]
    count = host.folder / "n"
    host.script("systemctl", f'echo x >>{count}; cat {host.folder}/systemctl.out; echo "NRestarts=$(wc -l <{count})"')
    assert host.accept(start_timeout_s=900)["error"] == "llama-server.service starts again and again"


def test_only_waiting_says_nothing_of_failures(host: Host) -> None:
    host.health = [LOADING]
    p = host.run("accept", {"unit": "u", "only": "wait", "start_timeout_s": 0})
    assert (p.returncode, p.stdout) == (0, ""), "the question that follows says what is wrong"


def test_long_waiting_is_told(host: Host) -> None:
    """Ready once something was said, so that no machine is too fast or too slow for it."""
    words = {"url": f"http://127.0.0.1:{host.port}", "unit": "u", "only": "wait", "start_timeout_s": 900}
    host.health = [LOADING]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program.call("accept", words)],
        env={**os.environ, "PATH": f"{host.folder}/bin:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("the model is being loaded, ")
        host.health = [HEALTHY]
        assert process.wait(timeout=600) == 0


def test_a_journal_without_template_trouble(host: Host) -> None:
    host.log(
        "common_chat_templates_init: chat template, example_format: '<|im_start|>system'\nsrv  load_model: thinking = 1\n"
        "init: chat template, thinking = 1\n"
    )
    assert host.accept()["ok"] is True


# ask


def test_ask(host: Host) -> None:
    p = host.run("ask", {"question": "Are you ready?", "thinking": True, "max_tokens": 7})
    found = json.loads(p.stdout)
    assert (found["content"], found["reasoning"], found["finish_reason"]) == ("READY", "The word is READY.", "stop")
    assert found["usage"]["total_tokens"] == 34
    (asked,) = host.chats()
    assert asked["messages"] == [{"role": "user", "content": "Are you ready?"}]
    assert asked["max_tokens"] == 7


def test_ask_without_thinking_and_limit(host: Host) -> None:
    host.run("ask", {"question": "?", "thinking": False, "max_tokens": None})
    (asked,) = host.chats()
    assert asked["chat_template_kwargs"] == {"enable_thinking": False}
    assert "max_tokens" not in asked


def test_ask_shows_what_the_model_is_given_and_computes_nothing(host: Host) -> None:
    p = host.run("ask", {"question": "Why?", "thinking": False, "max_tokens": None, "show_prompt": True})
    assert json.loads(p.stdout)["prompt"].startswith("<|im_start|>")
    ((path, given, _),) = host.asked
    assert (path, given["messages"]) == ("/apply-template", [{"role": "user", "content": "Why?"}])
    assert given["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("without", (503, body("error-503-loading.json"))), 'status 503: {"message": "Loading model"'),
        (put("without", (401, body("error-401-pretty.json"))), "status 401"),
        (put("cut", True), "status 0"),
        (put("port", 9), "status 0"),
    ],
)
def test_ask_gets_no_answer(host: Host, change: Change, said: str) -> None:
    change(host)
    p = host.run("ask", {"question": "?", "thinking": False, "max_tokens": None})
    assert p.returncode == 1
    assert said in p.stderr
    assert p.stderr.count("\n") == 1


def test_cuda_graphs_are_seen_in_the_log(host: Host) -> None:
    used = SYSTEM_INFO.replace("| CPU :", "| CUDA : ARCHS = 890 | USE_GRAPHS = 1 | PEER_MAX_BATCH_SIZE = 128 | CPU :")
    device = "  Device 0: NVIDIA GeForce RTX 4070, compute capability 8.9, VMM: yes, VRAM: 8187 MiB\n"
    host.log(device + ON_GPU, used)
    assert results(host.accept(gpu=True))["CUDA graphs"] == "ok"
    host.log(device + ON_GPU)
    assert "the build uses no CUDA graphs" in says(host.accept(gpu=True), "CUDA graphs")
    host.log(device.replace("8.9", "6.1") + ON_GPU, used)
    assert "older than Volta (Device 0: NVIDIA GeForce RTX 4070, compute capability 6.1)" in says(
        host.accept(gpu=True), "CUDA graphs"
    )
    host.log(device + ON_GPU, used)
    with subprocess.Popen(["sleep", "3600"], env={"GGML_CUDA_DISABLE_GRAPHS": "0"}) as other:
        try:
            host.state(MainPID=str(other.pid), InvocationID="0123")
            found = host.accept(gpu=True)
        finally:
            other.kill()
    assert (found["ok"], results(found)["CUDA graphs"]) == (True, "warning")
    assert "GGML_CUDA_DISABLE_GRAPHS is set" in says(found, "CUDA graphs")


ON_GPU = "load_tensors: offloaded 41/41 layers to GPU\nload_tensors:        CUDA0 model buffer size =  7650.31 MiB\n"


def test_a_server_on_its_gpu(host: Host) -> None:
    host.log(ON_GPU)
    assert host.accept(gpu=True)["ok"] is True


@pytest.mark.parametrize(
    "log",
    [
        "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n",
        "warning: no usable GPU found, --gpu-layers option will be ignored\n",
        "load_tensors:   CPU_Mapped model buffer size = 20743.00 MiB\n",
    ],
)
def test_a_server_that_fell_back_to_the_cpu(host: Host, log: str) -> None:
    host.log(log)
    found = host.accept(gpu=True)
    assert found["ok"] is False
    assert "fell back to the CPU" in found["error"]
    assert host.accept(gpu=False)["ok"] is True


def test_a_processor_with_avx2_is_used_with_it(host: Host) -> None:
    # of a portable build that has lost the code for this processor
    without = SYSTEM_INFO.partition("CPU : ")[0] + "CPU : SSE3 = 1 | SSSE3 = 1 | LLAMAFILE = 1 | OPENMP = 1 | REPACK = 1 | \n"
    for said, shown in (
        (without, without.partition("cmn  common_param: ")[2].rstrip(" |\n")),
        ("", "its log has no system_info"),
    ):
        host.log("", system_info=said)
        found = host.accept()
        assert found["ok"] is False
        assert found["error"] == (
            f"the processor has AVX2 and the server computes without it ({shown}):"
            " set llama_cpp.native or llama_cpp.portable to True, so that it is built for this processor"
        )
    assert host.accept(whole=False)["ok"] is True, "it is of a start, and that was looked at"


def test_a_processor_without_avx2_needs_none(host: Host) -> None:
    host.log("", system_info=SYSTEM_INFO.replace(" | AVX2 = 1", ""))
    (host.folder / "cpuinfo").write_text(CPUINFO.format(" avx2_but_another_word"))
    assert host.accept()["ok"] is True
    (host.folder / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert host.accept()["ok"] is True
