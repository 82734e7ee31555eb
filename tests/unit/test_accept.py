"""Acceptance and `ask`, run as on a host, against a server that answers byte for byte as llama-server does.

tests/data/response holds its answers. systemctl and journalctl are small scripts that print what a test put down for them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from wsllama import program

DATA = Path(__file__).parents[1] / "data" / "response"
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


HEALTHY, LOADING = (200, b'{"status":"ok"}'), (503, body("error-503-loading.json"))
MODELS = (200, json.dumps({"object": "list", "data": [{"id": ALIAS, "object": "model"}]}).encode())
PROPS = (200, json.dumps({"default_generation_settings": {"n_ctx": 16384}}).encode())


class Host:
    """A server and a service manager, and what they were asked."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.health: list[Answer] = [HEALTHY]
        self.models, self.without, self.thinking = MODELS, reply("READY"), reply("READY", "The word is READY.")
        self.asked: list[tuple[str, Any, str | None]] = []
        self.cut = False  # end in the middle of a reply
        self.key_file: str | None = None
        (folder / "release").mkdir()
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

    def log(self, text: str) -> None:
        (self.folder / "journalctl.out").write_text(text)

    def answer(self, path: str, given: Any) -> Answer:
        if path == "/health":
            return self.health.pop(0) if len(self.health) > 1 else self.health[0]
        if path == "/v1/chat/completions":
            return self.thinking if given["chat_template_kwargs"]["enable_thinking"] else self.without
        return {"/v1/models": self.models, "/props": PROPS}.get(path, (404, body("error-404-route.json")))

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
            "start_timeout_s": 5,
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
    without, thinking = host.chats()
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


def test_accepted_before_is_asked_less(host: Host) -> None:
    found = host.accept(whole=False)
    assert found["ok"] is True
    assert "baseline" not in found
    assert len(host.chats()) == 1


def test_without_a_budget_thinking_is_bounded_by_the_answer_only(host: Host) -> None:
    host.accept(thinking_tokens=-1)
    assert host.chats()[1]["max_tokens"] == 32
    assert "reasoning_budget_tokens" not in host.chats()[1]


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
        (put("cut", True), "a chat request got status 0: "),
        (put("health", [LOADING]), "/health was not ready after"),
        (
            state(ActiveState="failed", Result="exit-code", ExecMainStatus="1"),
            "ended while it was starting (exit-code, status 1)",
        ),
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


def test_a_server_that_starts_again_and_again(host: Host) -> None:
    host.health = [LOADING]
    count = host.folder / "n"
    host.script("systemctl", f'echo x >>{count}; cat {host.folder}/systemctl.out; echo "NRestarts=$(wc -l <{count})"')
    assert host.accept(start_timeout_s=60)["error"] == "llama-server.service starts again and again"


def test_only_waiting_says_nothing_of_failures(host: Host) -> None:
    host.health = [LOADING]
    p = host.run("accept", {"unit": "u", "only": "wait", "start_timeout_s": 0})
    assert (p.returncode, p.stdout) == (0, ""), "the question that follows says what is wrong"


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


ON_GPU = "load_tensors: offloaded 41/41 layers to GPU\nload_tensors:        CUDA0 model buffer size =  7650.31 MiB\n"


def test_a_server_on_its_gpu(host: Host) -> None:
    host.log(ON_GPU)
    assert host.accept(gpu=True)["ok"] is True


@pytest.mark.parametrize(
    "log",
    [
        ON_GPU + "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n",
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
