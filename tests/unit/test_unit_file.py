"""The rendered unit: read by systemd-analyze, and judged by a list of what has gone wrong with such units in the field."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from wsllama import layout
from wsllama.domain import server_flags, systemd
from wsllama.operations.files import render
from wsllama.settings import Server

VARIANTS = list(itertools.product([True, False], repeat=3))
NAMES = [f"{'wsl' if w else 'linux'}-{'loopback' if lo else 'open'}-{'locked' if m else 'free'}" for w, lo, m in VARIANTS]


def unit(wsl: bool, loopback: bool, lock_memory: bool, current: str = layout.CURRENT) -> str:
    given = {"wsl": wsl, "loopback": loopback, "lock_memory": lock_memory, "memory_max": "9G" if lock_memory else None}
    return render("llama-server.service.j2", current=current, unit=layout.UNIT, user=layout.USER, **given)


def values(text: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text, re.M)


def findings(text: str, environment: str, words: list[str], wsl: bool) -> list[str]:
    """What is wrong with a unit, each mistake by a name; written from reports of such mistakes, not from the template."""
    value = dict(itertools.pairwise(words))
    allowed = " ".join(values(text, "DeviceAllow"))
    closed = bool(values(text, "DevicePolicy")) or bool(allowed)
    library_path = "".join(re.findall(r'^LD_LIBRARY_PATH="?([^"\n]*)', environment, re.M))
    before_service = text.split("[Service]")[0]
    restart = (values(text, "Restart") or ["no"])[-1]
    wildcard = value.get("--host") in ("0.0.0.0", "::")
    locks = {"--mlock"} & set(words) or "mlock" in value.get("--load-mode", "")
    program = values(text, "ExecStart")[-1].split()[0]
    wrong = {
        "private_devices": values(text, "PrivateDevices")[-1:] in (["yes"], ["true"], ["on"], ["1"]),
        "devices_closed_without_dxg": wsl and closed and "/dev/dxg" not in allowed,
        "no_wsl_lib_path": wsl and "/usr/lib/wsl/lib" not in library_path.split(":"),
        "stub_library_path": "/stubs" in library_path,
        "listens_everywhere": wildcard and bool({"--api-key", "--api-key-file"} & set(words)),
        "listens_everywhere_without_key": wildcard and not {"--api-key", "--api-key-file"} & set(words),
        "secret_in_argv": "--api-key" in words,
        "model_on_drvfs": bool(re.match(r"/mnt/[a-z]/", value.get("--model", ""))),
        "no_restart": restart == "no",
        "restart_without_limit": restart != "no" and not re.search(r"^StartLimitIntervalSec=[1-9]", before_service, re.M),
        "broken_continuation": bool(re.search(r"\\[ \t]+$", text, re.M)),
        "removed_flag": bool({"--no-mmap", "--mmap", "--mlock", "-dio"} & set(words)),
        "tools_exposed": bool({"--tools", "--agent", "--ui-mcp-proxy"} & set(words)),
        "root_user": (values(text, "User") or ["root"])[-1] == "root",
        "relative_path": not (program.startswith("/") and value.get("--model", "/").startswith("/")),
        "no_port": "--port" not in words and "LLAMA_ARG_PORT" not in environment,
        "mlock_without_limit": bool(locks) and not values(text, "LimitMEMLOCK"),
        "start_timeout_too_short": any(int(s) < 60 for s in values(text, "TimeoutStartSec")),
    }
    return sorted(name for name, found in wrong.items() if found)


def rendered(wsl: bool, loopback: bool, lock_memory: bool) -> tuple[str, str, list[str], bool]:
    server = Server(
        host="127.0.0.1" if loopback else "192.0.2.1", api_key=not loopback, load_mode="mmap+mlock" if lock_memory else "auto"
    )
    words = server_flags.arguments(server, "qwen", f"{layout.CURRENT}/model/a.gguf", layout.API_KEY)
    return (
        unit(wsl, loopback, lock_memory),
        systemd.environment_file({"LD_LIBRARY_PATH": "/usr/lib/wsl/lib"} if wsl else {}),
        words,
        wsl,
    )


@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_nothing_is_wrong_with_it(variant: tuple[bool, bool, bool]) -> None:
    assert findings(*rendered(*variant)) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("PrivateTmp=yes", "PrivateDevices=yes", "private_devices"),
        ("DeviceAllow=/dev/dxg rw", "", "devices_closed_without_dxg"),
        ("Restart=on-failure", "Restart=no", "no_restart"),
        ("Restart=on-failure", "", "no_restart"),
        ("StartLimitIntervalSec=600", "", "restart_without_limit"),
        ("StartLimitIntervalSec=600", "StartLimitIntervalSec=0", "restart_without_limit"),
        ("User=llama", "", "root_user"),
        ("User=llama", "User=root", "root_user"),
        ("ExecStart=/opt", "ExecStart=opt", "relative_path"),
        ("LimitMEMLOCK=infinity", "", "mlock_without_limit"),
        ("RestartSec=5", "TimeoutStartSec=30", "start_timeout_too_short"),
        ("WorkingDirectory=/", "ExecStartPre=/bin/true \\ ", "broken_continuation"),
    ],
)
def test_each_mistake_would_be_seen(old: str, new: str, finding: str) -> None:
    text, environment, words, wsl = rendered(True, True, True)
    assert old in text
    assert findings(text.replace(old, new), environment, words, wsl) == [finding]


def test_mistakes_outside_of_the_unit_would_be_seen() -> None:
    text, environment, words, wsl = rendered(True, True, False)
    assert findings(text, "", words, wsl) == ["no_wsl_lib_path"]
    assert findings(text, environment, [*words, "--api-key", "x", "--tools", "all"], wsl) == ["secret_in_argv", "tools_exposed"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_systemd_has_nothing_to_say_against_it(variant: tuple[bool, bool, bool], tmp_path: Path) -> None:
    program = tmp_path / "build/bin/llama-server"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name in ("args", "env"):
        (tmp_path / name).write_text("")
    path = tmp_path / layout.UNIT
    path.write_text(unit(*variant, current=str(tmp_path)))
    p = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    said = [line for line in p.stderr.splitlines() if layout.UNIT in line]
    assert said == []
    assert p.returncode == 0, p.stderr


def test_the_argument_words_go_through_one_variable() -> None:
    (command,) = values(unit(True, True, False), "ExecStart")
    assert shlex.split(command) == [f"{layout.CURRENT}/build/bin/llama-server", "$LLAMA_SERVER_ARGS"]


def test_a_server_for_others_is_not_cut_off_from_them() -> None:
    assert values(unit(True, True, False), "IPAddressDeny") == ["any"]
    assert values(unit(True, False, False), "IPAddressDeny") == []
