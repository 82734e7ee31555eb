"""The watchdog: when a server hangs, by what it answers; its program against a server and a service manager that are scripts."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wsllama import program
from wsllama.domain.watchdog import Seen, Watch, counters
from wsllama.host import watchdog

METRICS = Path(__file__).parents[1] / "data/metrics/after-one-reply.txt"
LOST = "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n"
SERVES = "srv    load_model: loading model '/m/a.gguf'\nmain: model loaded\nmain: server is listening on http://127.0.0.1:8080\n"


def said(*looks: dict[str, Any], watch: Watch | None = None) -> list[str | None]:
    """What comes of these looks, 4 s apart, with a timeout of 10 s."""
    watch = watch or Watch(10)
    return [watch.look(Seen(4.0 * n, **{"invocation": "a", **look})) for n, look in enumerate(looks)]


@pytest.mark.parametrize(
    ("look", "sentence"),
    [
        ({"health": "silent", "metrics": "silent"}, "/health has not answered for 12 s"),
        ({"metrics": "silent"}, "/health says ok, but the main loop has not answered for 12 s"),
        ({"busy": 2}, "/health says ok, but nothing was computed for 12 s while 2 requests wait"),
    ],
)
def test_a_server_that_shows_no_sign_of_life_hangs(look: dict[str, Any], sentence: str) -> None:
    assert said({}, look, look, look) == [None, None, None, sentence]


@pytest.mark.parametrize(
    "look",
    [
        {},
        {"health": "other", "metrics": "other"},  # 503 while it loads, or refused
        {"invocation": ""},
        {"metrics": "other", "busy": 0},  # switched off, or the key is another
        {"steady": False, "health": "silent", "metrics": "silent"},
    ],
)
def test_what_is_idle_loading_stopped_or_being_tried_is_left_alone(look: dict[str, Any]) -> None:
    assert said(*[look] * 99) == [None] * 99


def test_a_long_prompt_is_no_hang() -> None:
    assert said(*({"busy": 3, "computed": n} for n in range(99))) == [None] * 99


def test_the_time_begins_anew_with_another_start_and_after_a_deploy() -> None:
    silent = {"health": "silent", "metrics": "silent"}
    assert said(silent, silent, {**silent, "invocation": "b"}, {**silent, "invocation": "b"}) == [None] * 4
    assert said(silent, silent, {**silent, "steady": False}, silent, silent) == [None] * 5


def test_a_second_restart_needs_something_computed_in_between() -> None:
    stuck = {"busy": 1, "invocation": "b"}
    watch = Watch(10, restarted="a")
    assert said(stuck, stuck, stuck, stuck, watch=watch)[3]
    assert not watch.may_restart()
    watch = Watch(10, restarted="a")
    assert said({"busy": 1}, {"busy": 1, "computed": 5}, watch=watch) == [None, None]
    assert not watch.may_restart(), "that was the start that hung, on its way down"
    worked = {**stuck, "computed": 1}
    assert said(worked, worked, worked, worked, worked, watch=watch)[4]
    assert watch.may_restart(), "also when it was computed before the first look"


def test_counters_of_a_real_server() -> None:
    text = METRICS.read_text()
    computed, busy = counters(text)
    assert (computed > 0, busy) == (True, 0)
    assert counters(text.replace("requests_processing 0", "requests_processing 1")) == (computed, 1)
    assert counters(text.replace("requests_deferred 0", "requests_deferred 4")) == (computed, 4)
    assert counters("<html>") == (0, 0)


class Host:
    """A host with an accepted release, whose server and service manager answer what a test puts down."""

    def __init__(self, folder: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now = folder, 0.0
        self.answers: dict[str, int] = {"/health": 200, "/metrics": 200}
        self.metrics, self.asked = METRICS.read_text(), list[tuple[str, str | None]]()
        self.release = folder / "releases/1"
        self.release.mkdir(parents=True)
        self.record(gpu=False, server={"host": "127.0.0.1", "port": port, "api_key": True})
        (self.release / "baseline.json").write_text("{}")
        (folder / "current").symlink_to("releases/1")
        (folder / "key").write_text("secret\n")
        (folder / ".lock").touch()
        (folder / "bin").mkdir()
        for name, text in (
            ("systemctl", f'echo "$*" >>{folder}/called; [ "$1" != show ] || cat {folder}/shown'),
            ("journalctl", f"cat {folder}/log"),
        ):
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / "bin" / name).chmod(0o755)
        self.runs("a")
        monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
        monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: self.now))

    def record(self, **more: Any) -> None:
        path = self.release / "release.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, **more}))

    def runs(self, invocation: str, log: str = SERVES) -> None:
        (self.folder / "shown").write_text(f"ActiveState=active\nInvocationID={invocation}\n")
        (self.folder / "log").write_text(log)

    @property
    def argument(self) -> dict[str, Any]:
        paths = {name: str(self.folder / name) for name in ("key", "state")}
        return {
            "root": str(self.folder), "unit": "llama.service", "key_file": paths["key"], "state": paths["state"], "timeout_s": 30,
        }  # fmt: skip

    def restarts(self) -> int:
        path = self.folder / "called"
        return path.read_text().count("restart --no-block llama.service\n") if path.exists() else 0

    def stuck(self) -> None:
        self.metrics = METRICS.read_text().replace("requests_processing 0", "requests_processing 1")

    def rounds(self, of: watchdog.Watchdog, count: int = 4) -> None:
        for _ in range(count):
            self.now += 20
            of.round()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append((self.path, self.headers["Authorization"]))
            self.send_response(made.answers[self.path])
            self.end_headers()
            self.wfile.write(made.metrics.encode() if self.path == "/metrics" else b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = Host(tmp_path, server.server_address[1], monkeypatch)
    yield made
    server.shutdown()
    server.server_close()


def test_a_hanging_completion_is_restarted_once_then_left_alone(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.stuck()
    of = watchdog.Watchdog(host.argument)
    host.rounds(of)
    assert host.restarts() == 1
    assert ("/metrics", "Bearer secret") in host.asked
    host.runs("b")
    host.metrics = host.metrics.replace("_total", "_none")  # as after a start: nothing was computed
    host.rounds(of)
    host.rounds(watchdog.Watchdog(host.argument))  # also when the watchdog itself is started again
    assert host.restarts() == 1
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "llama.service: /health says ok, but nothing was computed for 40 s while 1 requests wait; it is restarted"
    assert second.endswith("; it was restarted and has computed nothing since, so it is left alone")
    assert third == second.replace("120 s", "40 s")


def test_after_work_it_is_restarted_again(host: Host) -> None:
    host.stuck()
    of = watchdog.Watchdog(host.argument)
    host.rounds(of)
    host.runs("b")  # whose counters are those of work that was done
    host.rounds(of, 6)
    assert host.restarts() == 2


def test_what_was_started_again_meanwhile_is_left_alone(host: Host) -> None:
    of = watchdog.Watchdog(host.argument)
    assert not of.restart("before", restarted="before")
    assert (host.restarts(), of.restart("a", restarted="a"), host.restarts()) == (0, True, 1)


@pytest.mark.parametrize("why", ["not accepted yet", "a deploy holds the lock", "no release"])
def test_nothing_is_done_while_a_deploy_is_at_work(host: Host, why: str) -> None:
    host.stuck()
    of = watchdog.Watchdog(host.argument)
    with open(host.folder / ".lock") as lock:
        if why == "not accepted yet":
            (host.release / "baseline.json").unlink()
        elif why == "a deploy holds the lock":
            fcntl.flock(lock, fcntl.LOCK_EX)
        else:
            (host.folder / "current").unlink()
        host.rounds(of, 8)
    assert host.restarts() == 0


def test_a_loading_server_is_left_alone(host: Host) -> None:
    host.answers["/health"] = 503
    host.rounds(watchdog.Watchdog(host.argument), 8)
    assert host.restarts() == 0


def test_a_server_that_answers_nothing_is_restarted(host: Host) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        host.record(server={"host": "127.0.0.1", "port": listening.getsockname()[1], "api_key": False})
        host.rounds(watchdog.Watchdog({**host.argument, "timeout_s": 3}), 3)  # of which it waits a third for an answer
    assert host.restarts() == 1


def test_one_that_came_up_without_its_gpu_is_restarted_once_a_boot(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.record(gpu=True)
    host.runs("a", LOST + SERVES)
    of = watchdog.Watchdog(host.argument)
    host.rounds(of)
    assert host.restarts() == 1
    host.runs("b", LOST + SERVES)
    host.rounds(of)
    host.rounds(watchdog.Watchdog(host.argument))
    assert host.restarts() == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"llama.service: it serves on the CPU although a GPU is planned ({LOST.strip()}); it is restarted once"
    assert second.endswith("also after a restart: run `wsllama doctor`")


@pytest.mark.parametrize(("gpu", "log"), [(False, LOST + SERVES), (True, SERVES)])
def test_one_that_is_as_planned_is_not(host: Host, gpu: bool, log: str) -> None:
    host.record(gpu=gpu)
    host.runs("a", log)
    host.rounds(watchdog.Watchdog(host.argument))
    assert host.restarts() == 0


def test_the_program_goes_on_until_another_one_stands_in_its_place(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "watchdog.py"
    path.write_text(program.call("watchdog", {**host.argument, "timeout_s": 2}))
    with subprocess.Popen([sys.executable, "-I", "-S", path], stderr=subprocess.PIPE, text=True) as p:
        deadline = time.monotonic() + 600
        while len(host.asked) < 5 and time.monotonic() < deadline:
            assert p.poll() is None, p.stderr and p.stderr.read()
            time.sleep(0.05)
        (tmp_path / "new").write_text("")
        (tmp_path / "new").rename(path)
        assert p.wait(900) == 0
        assert p.stderr
        assert p.stderr.read() == ""
    assert len(host.asked) >= 5


def test_what_it_can_not_do_is_one_sentence(host: Host, tmp_path: Path) -> None:
    (host.folder / "key").unlink()
    path = tmp_path / "watchdog.py"
    path.write_text(program.call("watchdog", host.argument))
    p = subprocess.run([sys.executable, "-I", "-S", path], capture_output=True, text=True, timeout=900)
    assert p.returncode == 1
    assert p.stderr.startswith("the watchdog ends, systemd starts it again: FileNotFoundError")
    assert p.stderr.count("\n") == 1
