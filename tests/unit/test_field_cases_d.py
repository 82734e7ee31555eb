"""Field cases, section D: what starts the distro, and keeps it running. The rows: tests/data/field_cases.json."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.operations.fake_hosts import Converge, converge, settings
from tests.operations.test_op_windows import file
from tests.operations.test_op_windows_side import DISTRO, STARTUP, TASK, kept, side
from tests.unit.test_connectors import refusal, run
from tests.unit.test_keep_alive import NAMESPACE, changed
from tests.unit.test_transfer import connected
from wsllama.commands.bootstrap import script
from wsllama.connectors import shell
from wsllama.connectors.wsl import PLACES
from wsllama.domain import bootstrap
from wsllama.domain import windows as rules
from wsllama.domain.keep_alive import IDLE_KEYS, in_effect, lint_task
from wsllama.domain.wslconfig import edit, lint, parse
from wsllama.host import interop, windows
from wsllama.operations import keep_alive

__all__ = ["converge"]  # a fixture

STORE = r"C:\Users\Ada\AppData\Local\Microsoft\WindowsApps\wsl.exe"
INSTALLED = r"C:\Program Files\WSL\wsl.exe"
OURS: dict[str, Any] = {"distro": DISTRO, "user": "PC\\Ada", "wanted": keep_alive.startup_bytes(DISTRO)}
BOTH = edit(None, "wslconfig", dict.fromkeys(IDLE_KEYS, -1))


def task() -> bytes:
    return keep_alive.task_bytes(DISTRO, "PC\\Ada")


def deployed(converge: Converge, wslconfig: bytes, **found: Any) -> Any:
    """Keep-alive with the default settings on a host whose .wslconfig says this."""
    shown = json.dumps({"power": {"powercfg": None, "registry": None, "clock_ahead_s": None}, "distros": None})
    made = json.dumps({"mechanism": "task", "changed": True, "refused": None, "xml": None, "left": []})
    seen = {"windows": side(wslconfig=file("/w/.wslconfig", wslconfig)), "keep_alive": kept(**found)}
    return converge(keep_alive.kept, settings(), seen=seen, answers={"# keep_alive": made, "# windows_side": shown})


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        (b"[wsl2]\nvmIdleTimeout=-1\n", "general.instanceIdleTimeout"),
        (b"[general]\ninstanceIdleTimeout=-1\n", "wsl2.vmIdleTimeout"),
    ],
)
def test_37_one_idle_key_alone_is_not_enough(data: bytes, missing: str) -> None:
    (found,) = lint(data, "wslconfig")
    assert found.id == "idle_keys_missing_for_service"
    assert "vmIdleTimeout=-1 below [wsl2] and instanceIdleTimeout=-1 below [general]" in found.fix
    assert not in_effect(task(), None, values=parse(data, "wslconfig").values, **OURS).idle
    wanted = rules.wanted("wslconfig", {})
    assert missing in rules.differing(data, "wslconfig", wanted)
    after = edit(data, "wslconfig", wanted)
    assert lint(after, "wslconfig") == []
    assert in_effect(task(), None, values=parse(after, "wslconfig").values, **OURS).idle


@pytest.mark.parametrize("wslconfig", [b"", BOTH])
def test_38_without_a_client_on_windows_one_is_made(converge: Converge, wslconfig: bytes) -> None:
    """Services don't hold a distro, whatever .wslconfig says: what starts it at logon is made by default."""
    done = deployed(converge, wslconfig)
    (sent,) = [argument for argument in done.sent if argument["action"] == "make"]
    assert (sent["ways"], sent["task"], sent["startup"]) == (["task", "startup"], TASK, STARTUP)
    assert f"starts {DISTRO} when its user logs on, and holds it from now on" in done.log
    assert deployed(converge, wslconfig, task=TASK).sent == []


def test_38_what_runs_on_windows_is_a_client_that_never_ends() -> None:
    words = f"-d {DISTRO} -u root --shell-type none -- /bin/sleep infinity"
    assert ElementTree.fromstring(task()).findtext(f".//{NAMESPACE}Arguments") == words
    assert words.encode() in keep_alive.startup_bytes(DISTRO)


@pytest.mark.parametrize(
    "limit", ["", "<ExecutionTimeLimit>PT72H</ExecutionTimeLimit>", "<ExecutionTimeLimit>P3D</ExecutionTimeLimit>"]
)
def test_40_a_task_with_a_time_limit(converge: Converge, limit: str) -> None:
    ours = "<ExecutionTimeLimit>PT0S</ExecutionTimeLimit>"
    assert ours in task().decode("utf-16")
    assert lint_task(task()) == []
    limited = changed(ours, limit)
    (said,) = lint_task(limited)
    after = re.sub("<.*?>", "", limit) or "3 days"
    assert said == f"it is ended after {after}: ExecutionTimeLimit has to be PT0S"
    assert in_effect(limited, None, values={}, **OURS).mechanism == "none"
    done = deployed(converge, BOTH, task=base64.b64encode(limited).decode())
    assert (done.sent[0]["task"], f"keep-alive: {said}" in done.log) == (TASK, True)


def test_41_programs_are_started_where_wsl_is_installed(tmp_path: Path) -> None:
    """The task's wslg.exe lies beside wsl.exe; the connectors and bootstrap.ps1 take wsl.exe of the same folder."""
    folder = INSTALLED.removesuffix("wsl.exe")
    assert ElementTree.fromstring(task()).findtext(f".//{NAMESPACE}Command") == f"{folder}wslg.exe"
    assert f'"{folder}wslg.exe"' in keep_alive.startup_bytes(DISTRO).decode()
    assert (shell.INSTALLED, PLACES[0]) == (INSTALLED, INSTALLED)
    assert r"$Wsl = Join-Path $env:ProgramFiles 'WSL\wsl.exe'" in script(bootstrap.Settings())
    assert "WindowsApps" not in script(bootstrap.Settings())
    there = interop.Windows(str(tmp_path), {"C": str(tmp_path)})
    assert windows.wsl_exe(there) == f"{tmp_path}/Windows/System32/wsl.exe"
    (tmp_path / "Program Files/WSL").mkdir(parents=True)
    (tmp_path / "Program Files/WSL/wsl.exe").touch()
    assert windows.wsl_exe(there) == f"{tmp_path}/Program Files/WSL/wsl.exe"


def test_41_a_task_with_the_store_s_alias() -> None:
    (said,) = lint_task(changed(r"C:\Program Files\WSL\wslg.exe", STORE))
    assert "it starts the Store's alias, which fails in other sessions" in said


@pytest.mark.parametrize("text", ["The file cannot be accessed by the system.\r\n", "系统无法访问此文件。\r\n"])
def test_41_the_store_s_alias_in_session_0_is_told(tmp_path: Path, text: str) -> None:
    """A wsl.exe that says so, as a connector meets it."""
    (tmp_path / "said").write_bytes(text.encode("utf-16-le"))
    alias = tmp_path / "wsl.exe"
    alias.write_text(f"#!/bin/sh\ncat '{tmp_path}/said'\nexit 1\n")
    alias.chmod(0o755)
    said = refusal("@wsl/Ubuntu", {"wsl_exe": str(alias)})
    assert said.endswith(f"does not start programs without a desktop (session 0): set wsl_exe to {INSTALLED}")


def test_43_the_distro_is_started_at_logon_in_the_user_s_own_session() -> None:
    root = ElementTree.fromstring(task())
    (triggers,) = root.findall(f"{NAMESPACE}Triggers")
    assert [child.tag for child in triggers] == [f"{NAMESPACE}LogonTrigger"]
    assert triggers.findtext(f".//{NAMESPACE}UserId") == "PC\\Ada"
    assert root.findtext(f".//{NAMESPACE}LogonType") == "InteractiveToken"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("LogonTrigger", "BootTrigger", "it isn't started when the user logs on: it has no LogonTrigger"),
        ("InteractiveToken", "S4U", "it logs on by S4U instead of in the user's own session"),
        ("InteractiveToken", "Password", "it logs on by Password instead of in the user's own session"),
    ],
)
def test_43_a_task_that_starts_before_logon_is_made_anew(converge: Converge, old: str, new: str, said: str) -> None:
    early = changed(old, new)
    assert said in lint_task(early)[0]
    done = deployed(converge, BOTH, task=base64.b64encode(early).decode())
    assert (done.sent[0]["action"], done.sent[0]["task"]) == ("make", TASK)


def test_44_idle_keys_do_not_replace_a_keep_alive(converge: Converge) -> None:
    """2.6 ended distros in spite of them: a client is made though both are set, and both though there is one."""
    assert in_effect(None, None, values=parse(BOTH, "wslconfig").values, **OURS).mechanism == "none"
    assert deployed(converge, BOTH).sent[0]["action"] == "make"
    held = in_effect(task(), None, values={}, **OURS)
    assert (held.mechanism, held.idle) == ("task", False)
    assert held.sentence.endswith("WSL may end it when idle")
    assert set(IDLE_KEYS) <= set(rules.wanted("wslconfig", {}))


def test_44_an_old_wsl_is_updated_first() -> None:
    """By bootstrap.ps1, up to the release that has both keys."""
    text = script(bootstrap.Settings())
    body = re.split(r"^function ", text, flags=re.M)
    (update,) = [part for part in body if part.startswith("Update-Wsl")]
    assert "if ($version -ge [version]$Settings.wsl_idle) { Write-Step 'unchanged'" in update
    assert "Invoke-Native $program @('--update') -Show" in update
    assert bootstrap.parameters(bootstrap.Settings())["wsl_idle"] == "2.5.8"


SESSION = "wsl: Failed to start the systemd user session for 'root'. See journalctl for more details.\r\n"


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("coding", ["utf-16-le", "utf-8"])
def test_46_a_user_session_that_did_not_start_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: int, coding: str
) -> None:
    (tmp_path / "said").write_bytes(SESSION.encode(coding))
    wsl = tmp_path / "wsl.exe"
    wsl.write_text(f"#!/bin/sh\ncat '{tmp_path}/said' >&{stream}\nshift 5\nexec \"$@\"\n")
    wsl.chmod(0o755)
    with connected("@wsl/Ubuntu", {"wsl_exe": str(wsl)}) as host:
        assert run(host, "echo ok") == (True, "ok", "")
        assert run(host, "cat; exit 3", _stdin="a") == (False, "a", "")
    assert [SESSION.strip() in record.getMessage() for record in caplog.records].count(True) == 1
