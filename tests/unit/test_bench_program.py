"""The benchmark's program for hosts: replies that don't count, and what nvidia-smi tells. A real server stands in tests/lab."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from wsllama import program
from wsllama.domain import scenarios
from wsllama.host import bench
from wsllama.host import smi as asked
from wsllama.host.api import NotAccepted, Server

# What llama-server at the pin sent for a prompt of 1028 tokens and 16 tokens of reply, shortened to two deltas.
DELTAS = [
    {"choices": [{"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}]},
    {"choices": [{"finish_reason": None, "index": 0, "delta": {"reasoning_content": "Let"}}]},
    {"choices": [{"finish_reason": None, "index": 0, "delta": {"content": "READY"}}]},
    {"choices": [{"finish_reason": "length", "index": 0, "delta": {}}]},
]
TIMINGS = {"cache_n": 0, "prompt_n": 1028, "prompt_ms": 307.535, "predicted_n": 16, "predicted_ms": 13.812}
SIXTEEN = scenarios.SHORT._replace(cap=16)


@pytest.fixture
def server() -> Iterator[Any]:
    """A server that sends what `say` holds, for whatever is asked; `asked` has the bodies."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            httpd.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            httpd.key = self.headers["Authorization"]
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(httpd.status)
            self.end_headers()
            self.wfile.write(httpd.say)

        def log_message(self, *_: Any) -> None:
            pass

    httpd: Any = HTTPServer(("127.0.0.1", 0), Handler)
    httpd.status, httpd.say, httpd.asked = 200, stream(), []
    threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
    httpd.client = Server({"url": f"http://127.0.0.1:{httpd.server_port}", "alias": "m", "request_timeout_s": 600})
    yield httpd
    httpd.shutdown()
    httpd.server_close()


def stream(timings: dict[str, Any] | None = None, end: bool = True) -> bytes:
    events = [*DELTAS, *([{"choices": [], "timings": timings or TIMINGS}] if end else [])]
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + (b"data: [DONE]\n\n" if end else b"")


def test_a_reply_of_fixed_length_computed_from_nothing_is_asked_for(server: Any) -> None:
    run = bench.measured(server.client, [{"role": "user", "content": "x"}], SIXTEEN, cache=False)
    assert {
        key: run[key] for key in ("prompt_tokens", "cached_tokens", "generated_tokens", "prompt_s", "generation_s", "text")
    } == {
        "prompt_tokens": 1028,
        "cached_tokens": 0,
        "generated_tokens": 16,
        "prompt_s": 0.307535,
        "generation_s": 0.013812,
        "text": "READY",
    }
    assert 0 < run["first_token_s"] < 20
    (asked,) = server.asked
    assert (asked["max_tokens"], asked["ignore_eos"], asked["cache_prompt"]) == (16, True, False)
    assert asked["chat_template_kwargs"] == {"enable_thinking": False}


def test_the_key_goes_along(server: Any, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    bench.measured(Server({**server.client.a, "key_file": str(tmp_path / "key")}), [], SIXTEEN, cache=False)
    assert server.key == "Bearer secret"


def test_a_prompt_from_the_cache_does_not_count(server: Any) -> None:
    server.say = stream({**TIMINGS, "cache_n": 1024, "prompt_n": 4})
    with pytest.raises(NotAccepted, match="scenario short: the server took 1024 tokens of the prompt from its cache"):
        bench.measured(server.client, [], SIXTEEN, cache=False)
    assert bench.measured(server.client, [], SIXTEEN, cache=True)["cached_tokens"] == 1024


def test_a_reply_of_another_length_does_not_count(server: Any) -> None:
    server.say = stream({**TIMINGS, "predicted_n": 9})
    with pytest.raises(NotAccepted, match="scenario short: a reply has 9 tokens, not 16: its context is too small"):
        bench.measured(server.client, [], SIXTEEN, cache=False)


def test_a_reply_that_breaks_off_does_not_count(server: Any) -> None:
    server.say = stream(end=False)
    with pytest.raises(NotAccepted, match=r"a reply of the benchmark broke off: the last that came is .*length"):
        bench.measured(server.client, [], SIXTEEN, cache=False)


def test_the_servers_own_words_are_passed_on(server: Any) -> None:
    server.status, server.say = 400, b'{"error":{"code":400,"message":"the request exceeds the available context size"}}'
    with pytest.raises(NotAccepted, match=r"a request of the benchmark failed: .*exceeds the available context size"):
        bench.measured(server.client, [], SIXTEEN, cache=False)


def test_right_answers_are_told_from_answers(server: Any) -> None:
    """The server says 59 to everything: one question of eight has that answer, and all are answered."""

    def whole(content: str, finish: str) -> bytes:
        message = {"role": "assistant", "content": content}
        return json.dumps({"choices": [{"message": message, "finish_reason": finish}]}).encode()

    server.say = whole("It is 59.", "stop")
    assert bench.answered(server.client, 128) == {"budget": 128, "answered": 8, "correct": 1, "of": 8}
    assert {(a["reasoning_budget_tokens"], a["max_tokens"]) for a in server.asked} == {(128, 192)}
    server.say = whole("", "length")
    assert bench.answered(server.client, 0) == {"budget": 0, "answered": 0, "correct": 0, "of": 8}
    server.say = whole("The number is 1590, 590 or 159", "length")  # cut off, and no number of its own
    assert bench.answered(server.client, 0) == {"budget": 0, "answered": 0, "correct": 0, "of": 8}


def test_figures_of_metrics(server: Any) -> None:
    server.say = b"# HELP llamacpp:requests_processing n\nllamacpp:requests_processing 1\nllamacpp:tokens_predicted_total 38\n"
    assert bench.counter(server.client, "requests_processing") == 1
    assert bench.counter(server.client, "tokens_predicted_total") == 38
    server.status = 501
    assert bench.counter(server.client, "tokens_predicted_total") is None


def test_tokens_of_others_are_told(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "show", lambda unit: {"InvocationID": "a"})  # there is no systemd here
    server.say = b"llamacpp:tokens_predicted_total 138\n"
    assert bench.disturbed({"unit": "u"}, server.client, "a", 38, 100) == ""
    assert bench.disturbed({"unit": "u"}, server.client, "a", 38, 60) == "the server generated 40 tokens for others meanwhile"
    with pytest.raises(NotAccepted, match="somebody started the service again meanwhile, so nothing of this counts"):
        bench.disturbed({"unit": "u"}, server.client, "b", 38, 100)


# GPUs, by a program that prints what nvidia-smi printed


def smi(folder: Path, *lines: str, status: int = 0) -> str:
    path = folder / "nvidia-smi"
    path.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + f"exit {status}\n")
    path.chmod(0o755)
    return str(path)


def sampled(monkeypatch: pytest.MonkeyPatch, tool: str, times: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    monkeypatch.setattr(asked, "TOOLS", (tool,))
    monkeypatch.setattr(bench, "show", lambda unit: {"MainPID": "1"})
    sampler = bench.Sampler("u")
    samples = [sampler.take() for _ in range(times)]
    return samples[-1], sampler.load()


def test_what_a_card_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = smi(tmp_path, "NVIDIA GeForce RTX 3090, 24576 MiB, 20011 MiB, 7 %, 136.80 W, 61, 610.51")
    sample, load = sampled(monkeypatch, tool, 2)
    assert sample["vram_bytes"] == 20011 * 2**20
    assert load == {"power_mean_w": 136.8, "power_peak_w": 136.8, "utilization_mean_pct": 7.0, "temperature_peak_c": 61}


def test_what_a_card_in_wsl_does_not_tell_is_not_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = smi(tmp_path, "NVIDIA GeForce MX450, 2048 MiB, [N/A], [N/A], [N/A], [Not Supported], 512.78")
    sample, load = sampled(monkeypatch, tool)
    assert sample["vram_bytes"] == "not reported"
    assert set(load.values()) == {"not reported"}


def test_two_cards_count_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = ("A, 24576 MiB, 20000 MiB, 80 %, 200.00 W, 60, 610.51", "B, 12288 MiB, 10000 MiB, 40 %, 100.50 W, 70, 610.51")
    sample, load = sampled(monkeypatch, smi(tmp_path, *lines))
    assert sample["vram_bytes"] == 30000 * 2**20
    assert load == {"power_mean_w": 300.5, "power_peak_w": 300.5, "utilization_mean_pct": 60.0, "temperature_peak_c": 70}
    half = (lines[0], lines[1].replace("10000 MiB", "[N/A]"))
    assert sampled(monkeypatch, smi(tmp_path, *half))[0]["vram_bytes"] == "not reported"  # half of a sum is no sum


def test_no_card_and_no_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = smi(tmp_path, "Failed to initialize NVML: GPU access blocked by the operating system", status=17)
    assert sampled(monkeypatch, blocked)[0]["vram_bytes"] == "not reported"
    assert sampled(monkeypatch, str(tmp_path / "absent"))[0]["vram_bytes"] == "not reported"


def test_memory_of_a_process_is_the_kernels_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.resident("4194305") == 0  # above the kernel's largest
    assert bench.resident("self") > 2**20


def test_the_program_for_hosts_holds_all_that_it_imports() -> None:
    assert "wsllama.domain.record" in program.text("bench")
    compile(program.call("bench", {}), "bench", "exec")
