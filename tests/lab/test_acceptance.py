"""Acceptance against real servers: one that passes everything, and one for each way of not passing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import tiny_model, tiny_projector
from lab.lab import Host
from tests.lab.deployed import UNIT, Deployed, answers, main_pid, started, wsllama
from wsllama import program

SIZE = 2048  # a long prompt fills it in two seconds


@pytest.fixture(scope="module")
def seeing(deployed: Deployed) -> dict[str, Any]:
    """Settings that the first host was deployed with: a model that sees and calls tools, its projector, all checks."""
    folder = deployed.folder
    model = tiny_model.write(folder / "senses.gguf", "senses")
    projector = tiny_projector.write(folder / "mmproj-senses.gguf")
    found = {
        "model": {"path": str(model), "mmproj": str(projector)},
        "server": {"ctx_size": SIZE},
        "acceptance": {"long_prompt_s": 7200},
    }
    host = deployed.lab.hosts[0]
    run = deployed.run({host.name: found}, hosts=[host]).green()
    assert "accepted" in run.changed(host.name)
    return found


def accepted(deployed: Deployed, data: dict[str, Any], *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code of `wsllama accept` on the first host, and what it says of it."""
    host = deployed.lab.hosts[0]
    p = wsllama("accept", str(deployed.inventory({host.name: data}, [host])), "--json", *words)
    return p.returncode, json.loads(p.stdout)["hosts"][host.name]


def results(found: dict[str, Any], *which: str) -> dict[str, str]:
    return {check["check"]: check["says"] for check in found["checks"] if check["result"] in which}


def test_a_server_that_passes_everything(deployed: Deployed, seeing: dict[str, Any]) -> None:
    code, found = accepted(deployed, seeing)
    assert (code, found["ok"]) == (0, True), found
    assert results(found, "warning", "failed") == {}
    assert set(results(found, "skipped")) <= {"plan", "LAN", "Windows"}
    said = results(found, "ok")
    assert said["pictures"] == 'red: "RED", blue: "BLUE"'
    assert said["tool call"] == "the model called a tool"
    assert said["Responses API"] == "/v1/responses answers"
    tokens, of = said["long prompt"].removesuffix(" tokens").split(" of ")
    assert (int(of), 0.75 * SIZE < int(tokens) < SIZE) == (SIZE, True), "the rest is for the answer"


def test_strict_names_what_the_small_model_can_not_do(deployed: Deployed, seeing: dict[str, Any]) -> None:
    code, found = accepted(deployed, seeing, "--strict")
    assert code == 1
    assert set(results(found, "failed")) == {"sum", "long prompt"}, "it sees and calls, and neither reckons nor remembers"
    assert found["error"].startswith('17 + 25 was answered with "READY"')


def test_the_prompt_is_shown_as_the_model_gets_it(deployed: Deployed, seeing: dict[str, Any]) -> None:
    host = deployed.lab.hosts[0]
    inventory = str(deployed.inventory({host.name: seeing}, [host]))
    p = wsllama("ask", inventory, "Why?", "--no-thinking", "--show-prompt")
    asked = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert (p.returncode, p.stdout) == (0, f"{host.name}:\n{asked}\n"), p.stderr
    p = wsllama("ask", inventory, "Why?", "--max-tokens", "2", "--json")
    assert p.returncode == 1
    assert json.loads(p.stdout)["failed"][host.name].startswith(
        "thinking was cut before there was an answer after --max-tokens 2"
    )


def asked(host: Host, **more: Any) -> dict[str, Any]:
    """What wsllama/host/accept.py finds on a host, asked there with our own argument."""
    argument = {
        "url": "http://127.0.0.1:8080",
        "alias": "qwen3.6-35b-a3b",
        "key_file": None,
        "gpu": False,
        "unit": UNIT,
        "release": "/opt/wsllama/current",
        "program": "/opt/wsllama/current/build/bin/llama-server",
        "whole": True,
        "prompt": "Reply with the single word READY.",
        "thinking_tokens": 64,
        "answer_tokens": 32,
        "start_timeout_s": 900,
        "request_timeout_s": 900,
        "long_prompt_s": 0,
        "plan": {"drift": "warn", "margin_percent": 100},
        **more,
    }
    p = host.run(["python3", "-I", "-S", "-"], input=program.call("accept", argument))
    found: dict[str, Any] = json.loads(p.stdout.splitlines()[-1])
    return found


def test_a_server_on_the_cpu_where_a_gpu_is_wanted(deployed: Deployed, seeing: dict[str, Any]) -> None:
    found = asked(deployed.lab.hosts[0], gpu=True)
    assert found["ok"] is False
    assert found["error"].startswith("the server fell back to the CPU (its log shows no buffer on a GPU)")
    assert [check["check"] for check in found["checks"]][-1] == "GPU", "nothing is computed first"


# The server is killed by who has just read the beginning of its answer.
KILL = """
import os, signal
from wsllama.host import api
from wsllama.host.api import NotAccepted, Server
stock = api._read
def killing(answer, came, end):
    came.append(answer.read1(65536))
    os.kill({pid}, signal.SIGKILL)
    return stock(answer, came, end)
api._read = killing
a = dict(url="http://127.0.0.1:8080", alias="x", key_file=None, request_timeout_s=900)
try:
    print(Server(a).stream("Go on.", max_tokens=1000000, chat_template_kwargs={{"enable_thinking": True}})[-200:])
except NotAccepted as e:
    print(type(e).__name__, e)
"""


def test_thinking_that_uses_up_the_limit_and_a_picture_that_is_ignored(deployed: Deployed, seeing: dict[str, Any]) -> None:
    """Both are not accepted by the deploy, and what served before serves again."""
    one, two = deployed.lab.hosts
    blind = tiny_projector.write(deployed.folder / "mmproj-blind.gguf", blind=True)
    loop = tiny_model.write(deployed.folder / "loop.gguf", "loop")
    data = {
        one.name: {**seeing, "model": {**seeing["model"], "mmproj": str(blind)}},
        two.name: {"model": {"path": str(loop)}, "acceptance": {"thinking_tokens": -1, "answer_tokens": 32}},
    }
    run = deployed.run(data)
    assert run.returncode == 1  # and no JSON, because no host is left
    for host, said in (
        (one, 'is not accepted: a red and a blue picture got the same answer, "READY": the picture is ignored'),
        (two, "is not accepted: with thinking on there was no answer, only "),
    ):
        (line,) = [line for line in run.stderr.splitlines() if said in line and f"[{host.name}]" in line]
        assert "serves again" in line
        assert answers(host)
    assert "thinking used up all 32 tokens; give acceptance.thinking_tokens a limit or raise answer_tokens" in run.stderr


def test_a_server_that_is_killed_in_the_middle_of_a_stream(deployed: Deployed, seeing: dict[str, Any]) -> None:
    host = deployed.lab.hosts[1]
    loop: dict[str, Any] = {"model": {"path": str(tiny_model.write(deployed.folder / "loop.gguf", "loop"))}}
    loop["acceptance"] = {"thinking_tokens": 16}  # a budget makes even this model answer
    deployed.run({host.name: loop}, hosts=[host]).green()
    words = program.text("accept") + KILL.format(pid=main_pid(host))
    said = host.run(["python3", "-I", "-S", "-"], input=words).stdout
    assert said.startswith("Silent a streamed chat request got status 0: "), said
    assert "the server ended while it answered, or closed the connection" in said
    assert asked(host, thinking_tokens=16)["ok"] is True, "systemd started it again, and that is waited for"


@pytest.fixture
def stopped(deployed: Deployed) -> Iterator[Host]:
    """The first host with its server stopped; started again afterwards, whatever happened to it."""
    host = deployed.lab.hosts[0]
    host.run(["systemctl", "stop", UNIT])
    yield host
    started(host)
    assert asked(host)["ok"] is True


def test_a_file_that_went_bad(deployed: Deployed, seeing: dict[str, Any], stopped: Host) -> None:
    file = stopped.run(["readlink", "-f", f"/opt/wsllama/current/model/{Path(seeing['model']['path']).name}"]).stdout.strip()
    stopped.run(["mv", file, f"{file}.aside"])
    try:
        stopped.run(f"head -c 3000000 {file}.aside > {file}; chmod 644 {file}; systemctl start {UNIT}")
        error = asked(stopped)["error"]
    finally:
        stopped.run(["mv", f"{file}.aside", file])
    assert ": bad_file: " in error
    assert "data is not within the file bounds" in error


LISTEN = "import socket, time; s = socket.create_server(('127.0.0.1', 8080)); print('ready', flush=True); time.sleep(999)"


@pytest.mark.full  # systemd waits before each try
def test_a_port_that_another_program_has(seeing: dict[str, Any], stopped: Host) -> None:
    stopped.run(["systemd-run", "-q", "--unit", "taker", "--service-type=exec", "python3", "-c", LISTEN])
    try:
        stopped.run("until journalctl -q -u taker -o cat | grep -q ready; do sleep 0.1; done")
        stopped.run(f"systemctl start {UNIT}")
        error = asked(stopped)["error"]
    finally:
        stopped.run(["systemctl", "stop", "taker"])
    assert "; another program in this distro has port 8080: `ss -ltnp` names it" in error


@pytest.mark.full  # systemd waits before each try
def test_a_server_that_has_too_little_memory(seeing: dict[str, Any], stopped: Host) -> None:
    folder = stopped.root / f"etc/systemd/system/{UNIT}.d"
    folder.mkdir(exist_ok=True)
    (folder / "small.conf").write_text("[Service]\nMemoryMax=8M\nMemorySwapMax=0\n")
    try:
        stopped.run(f"systemctl daemon-reload; systemctl start {UNIT}")
        error = asked(stopped)["error"]
    finally:
        stopped.run(f"rm /etc/systemd/system/{UNIT}.d/small.conf; systemctl daemon-reload")
    # cgroup v1, as here, calls it a signal; v2, as in WSL, oom-kill
    assert f"{UNIT} starts again and again: " in error
    assert ": killed: " in error or ": oom_host: " in error
