"""What `wsllama status` makes of what was seen on a host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from wsllama.commands import status as command
from wsllama.domain import status
from wsllama.domain.nvidia_smi import Gpu, Reading
from wsllama.host import status as program

ROOT = "/opt/wsllama"
ACCEPTED, NOT = {"accepted": True}, {"accepted": False}


def seen(**more: Any) -> dict[str, Any]:
    releases = {"current": "3", "last-good": "3", "numbers": {"3": ACCEPTED}}
    system = {"memory_total": 32 << 30, "memory_available": 8 << 30}
    model = {"alias": "qwen", "file": "x-1/Qwen3.6-35B-A3B-UD-Q4_K_M.gguf"}
    server = {"ctx_size": 8192, "host": "127.0.0.1", "port": 8080}
    return {
        "now": {"releases": {ROOT: {**releases, **more.pop("releases", {})}}, "system": system},
        "release": {"model": model, "server": server, "build": "b1", "commit": "c" * 40},
        "accepted": 1.0,
        "unit": {"ActiveState": "active", "ActiveEnterTimestamp": "Mon", "UnitFileState": "enabled", "NRestarts": "2"},
        "rss": 20 << 30,
        "health": {"status": 200, "text": ""},
        **more,
    }


def test_a_host_that_serves() -> None:
    gpu = Reading("ok", (Gpu("RTX 4090", 24564, 20000, 1, "8.9", "581.42"),))
    found = status.status(seen(), ROOT, gpu, ["pending: x"])
    wanted = {
        "state": "serves",
        "since": "Mon",
        "restarts": 2,
        "at_boot": True,
        "release": 3,
        "result": "accepted",
        "quant": "UD-Q4_K_M",
    }
    assert {key: found[key] for key in wanted} == wanted
    assert found["gpu"] == [{"name": "RTX 4090", "driver": "581.42", "vram_total": 24564 << 20, "vram_used": 20000 << 20}]
    assert found["pending"] == ["pending: x"]
    row = dict(zip(command.HEAD, command.row("desk-1", found), strict=True))
    assert (row["MODEL"], row["GPU"], row["MEMORY"]) == ("qwen UD-Q4_K_M", "RTX 4090 581.42", "20.0 of 32.0 GiB")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"release": None}, "not deployed"),
        ({"unit": {"ActiveState": "failed", "Result": "oom-kill"}}, "failed: oom-kill"),
        ({"unit": {"ActiveState": "inactive"}}, "inactive"),
        ({"health": {"status": 503, "text": ""}}, "loading"),
        ({"health": {"status": 0, "text": "refused"}}, "no answer: refused"),
        ({"health": {"status": 500, "text": ""}}, "/health says 500"),
    ],
)
def test_why_a_host_does_not_serve(more: dict[str, Any], said: str) -> None:
    assert status.state(seen(**more)) == said
    assert status.status(seen(**more), ROOT, None, [])["state"] == said


@pytest.mark.parametrize(
    ("releases", "said"),
    [
        ({"current": None, "numbers": {}}, None),
        ({"numbers": {"3": ACCEPTED, "10": NOT}}, "release 10 was not accepted, 3 serves"),
        ({"numbers": {"3": NOT}}, "release 3 is not accepted"),
        ({"last-good": "2"}, "release 3 is not the last good one"),
        ({"numbers": {"3": ACCEPTED, "10": ACCEPTED}}, "accepted"),
    ],
)
def test_how_the_last_deploy_ended(releases: dict[str, Any], said: str | None) -> None:
    assert status.result({"current": "3", "last-good": "3", "numbers": {"3": ACCEPTED}, **releases}) == said


@pytest.fixture
def port() -> Iterator[int]:
    """A server that loads for ever."""

    class Loading(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Loading) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_health_is_asked_where_the_release_listens(port: int) -> None:
    assert program.health({"host": "0.0.0.0", "port": port})["status"] == 503
