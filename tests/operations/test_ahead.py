"""A look ahead on fake hosts: one question, no change, nothing printed; what a deploy would do, refuse and not know is noted."""

from __future__ import annotations

import json
from typing import Any

import gevent.event
import pytest
from paramiko.ssh_exception import SSHException
from pyinfra.api import Inventory

from tests.operations.test_op_release import BUILDS, MODELS, ROOT, host
from wsllama import ahead
from wsllama.commands.common import each
from wsllama.domain import drift
from wsllama.remote import Fleet, RemoteError

UNIT_FILE, KEY = "/etc/systemd/system/llama-server.service", "/etc/wsllama/api-key"
WATCHDOG = (f"{ROOT}/watchdog.py", "/etc/systemd/system/llama-watchdog.service")
WATCH = (f"{ROOT}/watch.py", f"{ROOT}/pynvml.py", "/etc/systemd/system/llama-watch.service")
UNITS = ("llama-server.service", "llama-watchdog.service", "llama-watch.service")
OURS = {"mode": "755", "user": "root", "group": "root", "kind": "directory"}
FOLDERS = ("/var/lib/wsllama", MODELS, "/var/cache/wsllama", "/var/cache/wsllama/sources", ROOT, BUILDS, f"{ROOT}/releases")
PATHS = (
    *FOLDERS,
    "/etc/wsllama",
    "/etc/wsllama/ca.pem",
    "/etc/apt/apt.conf.d/80wsllama",
    UNIT_FILE,
    KEY,
    f"{ROOT}/current",
    *WATCHDOG,
    *WATCH,
)
SEEN: dict[str, Any] = {"release": {"record": None}, "links": {"current": None, "last-good": None}}


def bare(**more: Any) -> dict[str, Any]:
    """What the probe says of a host that has packages, build and model, and nothing else of ours."""
    now = host(
        files=dict.fromkeys(PATHS),
        users={"llama": None},
        units={name: {"LoadState": "not-found", "ActiveState": "inactive"} for name in UNITS},
        stamps={"/var/lib/wsllama/llama-server.service.started-with": None, "/var/lib/wsllama/watch.textfile": None},
    )
    return {**now, **more}


def looked(capfd: pytest.CaptureFixture[str], now: dict[str, Any], **more: Any) -> tuple[ahead.Ahead, list[str]]:
    """A host of which this is seen, looked at, and the commands that it got. more: of its settings."""
    answer = json.dumps({"now": now, "seen": SEEN})
    quick = {"fake_delay": 0, "fake_delay_jitter": 0, "fake_responses": {"# drift": answer}}
    wanted = {"platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}, **more}
    fleet = Fleet(Inventory((["@fake/a"], {**quick, **wanted}))).connect()
    ahead.prepare(fleet)
    (only,) = fleet.hosts
    capfd.readouterr()
    found = ahead.look(fleet, only)
    assert capfd.readouterr() == ("", "")
    return found, only.connector.executed_commands


def test_one_question_says_all_that_a_deploy_would_do(capfd: pytest.CaptureFixture[str]) -> None:
    found, commands = looked(capfd, bare())
    assert commands == ["python3 -I -S - # drift"]
    would = {step["operation"]: [told["of"] for told in step["told"]] for step in found.steps if step["changes"]}
    assert would["distro | user of the service"] == ["user llama"]
    assert would["distro | folders"] == ["/etc/wsllama", *FOLDERS]
    assert would["server | unit"] == [UNIT_FILE]
    assert "distro | packages" not in would
    assert found.release
    assert found.number is None
    (service,) = (step for step in found.steps if step["operation"] == "server | service")
    assert service["later"] == ["another release is to be served"]
    unit = next(step["diffs"] for step in found.steps if step["operation"] == "server | unit")
    assert "+ExecStart=/opt/wsllama/current/build/bin/llama-server $LLAMA_SERVER_ARGS" in unit[0], "a new file is shown whole"


def test_all_that_differs_of_a_service_of_ours_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    """Of each operation a look ahead sees what comes before its first command."""
    link = "/srv/wsllama.prom"
    masked = {"LoadState": "masked", "ActiveState": "inactive", "UnitFileState": "masked"}
    now = bare()
    now["units"]["llama-watchdog.service"] = masked
    now["files"][link] = None
    found, _ = looked(capfd, now, watch={"enabled": True, "textfile": link})
    told = {step["operation"]: [one["of"] for one in step["told"]] for step in found.steps}
    assert told["server | watchdog"] == [*WATCHDOG, "llama-watchdog.service"]
    assert told["server | GPU watch"] == [*WATCH, link]


def test_a_host_that_says_nothing_holds_up_no_other() -> None:
    quick = {"fake_delay": 0, "fake_delay_jitter": 0}
    fleet = Fleet(Inventory((["@fake/a", "@fake/b"], quick))).connect()

    def ask(host: Any) -> str:
        if host.name == "@fake/a":
            gevent.event.Event().wait()
        return "answered"

    assert each(fleet, ask, 5) == ({"@fake/b": "answered"}, {"@fake/a": "no answer within 5 s"})


@pytest.mark.parametrize("error", [EOFError(), ConnectionResetError(104, "reset"), SSHException("SSH session not active")])
def test_a_connection_that_ends_fails_its_host_alone(error: Exception) -> None:
    """paramiko raises these when a host is gone that was connected; they ended the look at all hosts."""
    quick = {"fake_delay": 0, "fake_delay_jitter": 0, "fake_responses": {"# status": '{"state": 1}'}}
    fleet = Fleet(Inventory((["@fake/a", "@fake/b"], quick))).connect()

    def lost(*_: Any, **__: Any) -> Any:
        raise error

    fleet.hosts[0].run_shell_command = lost
    found, failed = each(fleet, lambda host: fleet.run(host, "status", {}))
    assert found == {"@fake/b": {"state": 1}}
    assert failed == {"@fake/a": f"the connection is lost: {str(error) or 'EOFError'}"}
    with pytest.raises(RemoteError, match="the connection is lost"):
        fleet.shell(fleet.hosts[0], "true")


def test_an_answer_that_is_none_is_said_so() -> None:
    quick = {"fake_delay": 0, "fake_delay_jitter": 0, "fake_responses": {"# status": "Welcome!"}}
    fleet = Fleet(Inventory((["@fake/a"], quick))).connect()
    with pytest.raises(RemoteError, match="the host's answer can't be read: it ends with 'Welcome!'"):
        fleet.run(fleet.hosts[0], "status", {})


def test_a_secret_is_named_and_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    found, _ = looked(capfd, bare(files={**dict.fromkeys(PATHS), KEY: {**OURS, "kind": "file", "size": 44}}))
    assert not any(KEY in line for step in found.steps for lines in step["diffs"] for line in lines)


def test_what_is_refused_is_noted_and_the_rest_looked_at(capfd: pytest.CaptureFixture[str]) -> None:
    ours = {**OURS, "kind": "link", "target": "/srv"}
    found, _ = looked(capfd, bare(ports={"8080": "nginx (pid 3)"}, files={**dict.fromkeys(PATHS), ROOT: ours}))
    refused = {step["operation"]: step["refused"] for step in found.steps if step["refused"]}
    assert set(refused) == {"preflight | host is ready", "distro | folders"}
    assert refused["preflight | host is ready"] == ["port 8080 is taken by nginx (pid 3): stop that, or set server.port"]
    assert refused["distro | folders"][0].startswith(f"{ROOT} is a link to /srv, not a folder")
    assert any(step["operation"] == "server | unit" and step["told"] for step in found.steps)


def test_what_is_not_known_before_an_earlier_stage(capfd: pytest.CaptureFixture[str]) -> None:
    found, commands = looked(capfd, bare(builds={BUILDS: {}}))
    assert commands == ["python3 -I -S - # drift"]
    assert found.release is None
    (said,) = (step["later"] for step in found.steps if step["operation"] == "server | release")
    assert said[0].endswith("is not there yet")
    assert f"what the release would hold, because {said[0]}" in drift.unknown(found.steps)
