"""The wsllama command: exit codes, sentences, JSON; `ask` really asks, on this machine, a server that answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from wsllama.cli import app

ROOT = Path(__file__).parents[2]
WSLLAMA = str(Path(sys.executable).parent / "wsllama")
GOOD = '"platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}'


def wsllama(*words: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "500"}
    p = subprocess.run([WSLLAMA, *map(str, words)], cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert "Traceback" not in p.stderr, p.stderr
    return p


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good"
    path.write_text(f'desks = [("desk-1", {{{GOOD}}}), ("desk-2", {{{GOOD}}})]\n')
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad"
    path.write_text(f'desks = [("desk-1", {{{GOOD}, "port": 1}}), ("desk-2", {{{GOOD}, "server": {{"port": 0}}}})]\n')
    return path


BAD = [
    "desk-1: unknown setting port: did you mean server.port?",
    "desk-2: server.port = 0: Input should be greater than or equal to 1",
]


def test_check_finds_nothing(good: Path) -> None:
    p = wsllama("check", good)
    assert (p.returncode, p.stdout) == (0, "2 hosts, nothing wrong: desk-1, desk-2\n")


def test_check_of_one_host_in_json(good: Path) -> None:
    p = wsllama("check", good, "--limit", "desk-2", "--json")
    assert json.loads(p.stdout) == {"ok": True, "errors": [], "hosts": ["desk-2"]}


def test_check_says_all_that_is_wrong(bad: Path) -> None:
    p = wsllama("check", bad)
    assert p.returncode == 2
    assert p.stderr.splitlines() == [f"refused: {sentence}" for sentence in BAD]
    p = wsllama("check", bad, "--json")
    assert p.returncode == 2
    assert json.loads(p.stdout) == {"ok": False, "errors": BAD}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no inventory {path}: give a file that is there, or hosts with commas between them"),
        ("desks = []\n", "the inventory {path} holds no host: give a file that lists some, or hosts with commas between them"),
        ("desks = [\n", "the inventory {path} can't be read: SyntaxError: "),
        ("import no_such_module\n", "the inventory {path} can't be read: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_inventories_that_are_none(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "inventory"
    if text is not None:
        path.write_text(text)
    p = wsllama("check", path)
    assert p.returncode == 2
    assert p.stderr.startswith(f"refused: {said.format(path=path)}")
    assert p.stderr.count("\n") == 1


def test_a_limit_without_match(good: Path) -> None:
    p = wsllama("check", good, "--limit", "nobody")
    assert (p.returncode, p.stderr) == (2, "refused: --limit nobody matches no host and no group of the inventory\n")


@pytest.mark.parametrize("command", ["verify", "rollback"])
def test_others_refuse_the_same_way(bad: Path, command: str) -> None:
    p = wsllama(command, bad)
    assert p.returncode == 2
    assert [line.removeprefix("refused: ") for line in p.stderr.splitlines()] == BAD


@pytest.mark.parametrize("command", [("verify",), ("ask", "?"), ("rollback", "--to", "3")])
def test_a_host_that_cannot_be_reached(tmp_path: Path, command: tuple[str, ...]) -> None:
    ssh = '"ssh_hostname": "127.0.0.1", "ssh_port": 9, "ssh_user": "nobody"'
    (tmp_path / "far").write_text(f'desks = [("desk-1", {{{GOOD}, {ssh}}})]\n')
    p = wsllama(command[0], tmp_path / "far", *command[1:])
    assert p.returncode == 4
    assert "desk-1" in p.stderr
    assert "127.0.0.1" in p.stderr


@pytest.fixture
def server() -> Iterator[tuple[int, list[Any]]]:
    """Port of a server that answers as llama-server does, and what it was asked."""
    asked: list[Any] = []
    answer = json.loads((ROOT / "tests/data/fixtures/response/answer-thinking-off.json").read_text())
    answer["choices"][0]["message"].update(content="\nREADY\n", reasoning_content="One word.\n")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: http.serve_forever(0.02))
    thread.start()
    yield http.server_port, asked
    http.shutdown()
    thread.join()
    http.server_close()


def here(tmp_path: Path, port: int) -> Path:
    path = tmp_path / "here"
    path.write_text(f'here = [("@local", {{{GOOD}, "server": {{"port": {port}}}}})]\n')
    return path


def test_ask(tmp_path: Path, server: tuple[int, list[Any]]) -> None:
    port, asked = server
    p = wsllama("ask", here(tmp_path, port), "Are you ready?", "--max-tokens", "9")
    assert (p.returncode, p.stdout) == (0, "@local (thinks): One word.\n@local: READY\n")
    assert asked[0]["messages"] == [{"role": "user", "content": "Are you ready?"}]
    assert (asked[0]["max_tokens"], asked[0]["chat_template_kwargs"]) == (9, {"enable_thinking": True})

    p = wsllama("ask", here(tmp_path, port), "?", "--no-thinking", "--json")
    found = json.loads(p.stdout)
    assert found["replies"]["@local"]["content"] == "\nREADY\n"
    assert (found["failed"], found["unreachable"]) == ({}, {})
    assert asked[1]["chat_template_kwargs"] == {"enable_thinking": False}


def test_ask_gets_no_answer(tmp_path: Path) -> None:
    p = wsllama("ask", here(tmp_path, 9), "?")
    assert p.returncode == 1
    assert p.stderr.startswith("@local: a chat request got status 0")


@pytest.mark.parametrize("command", ["status", "drift", "diff", "watch"])
def test_a_host_that_cant_be_reached_is_named(tmp_path: Path, command: str) -> None:
    gone = tmp_path / "gone"
    gone.write_text(f'gone = [("desk-1", {{{GOOD}, "ssh_hostname": "127.0.0.1", "ssh_port": 9}})]\n')
    p = wsllama(command, gone, "--json")
    assert p.returncode == 4
    found = json.loads(p.stdout)
    assert (found["hosts"], found["failed"], list(found["unreachable"])) == ({}, {}, ["desk-1"])
    assert "desk-1 can't be reached: " in p.stderr


@pytest.mark.parametrize("command", ["check", "verify", "ask", "bench", "bundle", "status", "drift", "diff", "watch"])
def test_help_says_what_the_exit_codes_mean(command: str) -> None:
    text = " ".join(CliRunner(env={"COLUMNS": "500"}).invoke(app, [command, "--help"], prog_name="wsllama").stdout.split())
    assert f"wsllama {command} inventory" in text
    assert "Exit codes: 0 " in text


def test_patches_are_made_without_a_search_through_all_packages() -> None:
    code = "import importlib.metadata; from wsllama.commands import common; importlib.metadata.entry_points = None;"
    code += "common.cooperative(); import gevent.monkey; print(gevent.monkey.is_module_patched('socket'))"
    p = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (p.stdout, p.stderr) == ("True\n", "")


def test_the_command_line_is_read_without_pyinfra() -> None:
    """It takes half a second to import, and has to come behind gevent's patches, which `connected` makes."""
    code = "import sys, wsllama.cli; print(sorted(name for name in sys.modules if name.split('.')[0] in ('pyinfra', 'gevent')))"
    p = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (p.stdout, p.stderr) == ("[]\n", "")


class NoSsh(BaseHTTPRequestHandler):
    """Something else that listens where a host's sshd was looked for."""

    def log_message(self, *_: Any) -> None:
        pass


def test_a_port_that_has_no_ssh_is_a_sentence_and_no_traceback(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), NoSsh) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        away = f'"ssh_hostname": "127.0.0.1", "ssh_port": {server.server_port}, {GOOD}'
        (tmp_path / "inventory").write_text(f'desks = [("desk-1", {{{away}}})]\n')
        p = wsllama("status", tmp_path / "inventory")
        deploy = [str(Path(WSLLAMA).with_name("pyinfra")), str(tmp_path / "inventory"), "deploy.py", "-y"]
        deployed = subprocess.run(deploy, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        server.shutdown()
    assert p.returncode == 4
    assert p.stderr.splitlines()[-1].startswith("desk-1 can't be reached: SSH error (Error reading SSH protocol banner")
    assert deployed.returncode == 1
    assert "[desk-1] SSH error (Error reading SSH protocol banner" in deployed.stderr
    assert "Traceback" not in deployed.stderr


INTERRUPTED = """
import os, signal
from wsllama.commands.common import cooperative
cooperative()
import gevent

def works():
    os.kill(os.getpid(), signal.SIGINT)
    print("goes on until it waits", flush=True)
    gevent.sleep(600)

try:
    gevent.spawn(works).join()
except KeyboardInterrupt:
    print("ended")
"""


def test_ctrl_c_ends_the_command_and_not_the_greenlet_that_happens_to_run() -> None:
    p = subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True)
    assert (p.returncode, p.stdout, p.stderr) == (0, "goes on until it waits\nended\n", "")


@pytest.mark.parametrize("command", [["status"], ["bench"], ["apply", "--yes"], ["rebuild-check", "--record", "none.json"]])
def test_ctrl_c_while_a_host_is_waited_for(tmp_path: Path, command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = f'"ssh_hostname": "127.0.0.1", "ssh_port": {silent.getsockname()[1]}, {GOOD}'
        (tmp_path / "inventory").write_text(f'desks = [("desk-1", {{{away}}})]\n')
        words = [WSLLAMA, *command, str(tmp_path / "inventory")]
        with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as p:
            connection, _ = silent.accept()
            p.send_signal(signal.SIGINT)
            _, said = p.communicate()
            connection.close()
    assert p.returncode == 130, said
    assert "Traceback" not in said
    assert not (tmp_path / "rollouts").exists()
