"""What we write for systemd, read by a real systemd: words of arguments, environments, and the unit's exposure."""

from __future__ import annotations

import itertools
import json
import re
import string

import pytest

from lab import Lab
from lab.lab import Host
from tests.lab.deployed import UNIT, Data, Deployed, answers, main_pid, started, wait_for
from tests.unit.test_unit_file import NAMES, VARIANTS, unit
from wsllama.domain import systemd
from wsllama.hardening_doc import EXPOSURE, TRIED, Tried

SPECIAL = [
    " ",
    '"',
    "'",
    "\\",
    "$",
    "%",
    "`",
    "#",
    ";",
    "&",
    "|",
    "*",
    "?",
    "~",
    "!",
    "=",
    "{",
    "}",
    "(",
    ")",
    "<",
    ">",
    "-",
    "\u00e9",
]
WORDS = [
    "",
    " ",
    *string.printable[:95],
    *("".join(pair) for pair in itertools.product(SPECIAL, repeat=2)),
    *(f"a{c}" for c in SPECIAL),
    *(f"{c}a" for c in SPECIAL),
    "$HOME",
    "${HOME}",
    "$LLAMA_SERVER_ARGS",
    "$$",
    "%i",
    "%%",
    "%h/x",
    "\\n",
    "\\x41",
    "\\u00e9",
    '{"enable_thinking": false, "k": "it\'s \\"quoted\\""}',
    "-leading-dash",
    "--flag=a b  c",
    " blanks around ",
    "ends with a backslash \\",
    "gr\u00fcn \u6f22\u5b57 \U0001f600 \u2028",
    "# no comment",
    "; no comment",
    "x" * 5000,
]
PROGRAM = """
import json, os, sys
print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith("W_")}]))
"""
# ExecStart= and EnvironmentFile= as in templates/llama-server.service.j2
WORDS_UNIT = """
[Service]
Type=oneshot
EnvironmentFile=/run/words/env
EnvironmentFile=/run/words/args
ExecStart=/run/words/program $LLAMA_SERVER_ARGS
StandardOutput=file:/run/words/out
"""


def put(host: Host, path: str, text: str, mode: str = "0644") -> None:
    host.run(["install", "-D", "-m", mode, "/dev/stdin", path], input=text)


def test_words_and_variables_arrive_as_they_were(lab: Lab) -> None:
    host = lab.hosts[0]
    values = {f"W_{n}": word for n, word in enumerate(WORDS)}
    put(host, "/run/words/program", f"#!/usr/bin/python3 -I{PROGRAM}", "0755")
    put(host, "/run/words/args", systemd.arguments("LLAMA_SERVER_ARGS", WORDS))
    put(host, "/run/words/env", systemd.environment_file(values))
    put(host, "/run/systemd/system/wsllama-words.service", WORDS_UNIT)
    host.run(["systemctl", "daemon-reload"])
    host.run(["systemctl", "start", "wsllama-words.service"])
    words, environment = json.loads(host.run(["cat", "/run/words/out"]).stdout)
    assert words == WORDS
    assert environment == values


@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_exposure_and_what_systemd_says_of_the_unit(lab: Lab, variant: tuple[bool, bool, bool]) -> None:
    host, path = lab.hosts[0], "/run/words/llama-server.service"
    put(host, path, unit(*variant))
    tenths = f"--threshold={EXPOSURE * 10:.0f}"
    p = host.run(["systemd-analyze", "security", "--offline=true", tenths, path], check=False)
    assert p.returncode == 0, p.stdout[-300:]


def journal(host: Host, unit: str) -> str:
    host.run(["journalctl", "--sync"])
    return host.run(["journalctl", "-q", "-o", "cat", "-u", unit]).stdout


def test_a_server_that_hangs_is_restarted_and_one_over_its_limit_is_told_from_others(deployed: Deployed) -> None:
    """Of two hosts, the first one's watchdog is impatient, and the second one's server gets too little memory."""
    one, two = deployed.lab.hosts
    data: Data = {one.name: {"server": {"watchdog_timeout_s": 20}}, two.name: {"server": {"memory_max": "40M"}}}
    before = main_pid(one)
    run = deployed.run(data)
    assert run.results["failed_hosts"] == [two.name]
    assert "its limit of memory is 40 MiB: raise server.memory_max" in run.stderr
    assert answers(two), "the release before serves again"
    assert (run.changed(one.name), main_pid(one)) == (["watchdog"], before), "the server goes on"
    again = deployed.run({one.name: data[one.name]}, hosts=[one], counted=True).unchanged()
    assert len(again.commands[one.name]) == 2

    one.run(["kill", "-STOP", str(before)])
    wait_for(lambda: main_pid(one) not in (0, before) and answers(one))
    told = journal(one, "llama-watchdog")
    assert re.search(r"^llama-server\.service: /health has not answered for \d+ s; it is restarted$", told, re.M), told


def test_under_every_directive_of_wsl_it_serves_and_sees_the_gpu(deployed: Deployed) -> None:
    host = deployed.lab.hosts[0]
    host.run("mkdir -p /run/WSL && touch /run/WSL/1_interop && mknod -m 666 /dev/dxg c 1 3")
    try:
        data = {"platform": "wsl", "llama_cpp": {"backend": "cpu"}, "server": {"memory_max": "2G"}, "wsl": {"windows": False}}
        deployed.run({host.name: data}, hosts=[host]).green()
        assert answers(host)
        p = host.run(["systemd-analyze", "security", f"--threshold={EXPOSURE * 10:.0f}", UNIT], check=False)
        assert p.returncode == 0, p.stdout[-300:]
        inside = ["nsenter", "-t", str(main_pid(host)), "-m"]
        host.run([*inside, "test", "-c", "/dev/dxg"])
        for hidden in ("/mnt", "/run/WSL"):
            assert host.run([*inside, "setpriv", "--reuid=llama", "--clear-groups", "ls", hidden], check=False).returncode
        shown = host.run(
            ["systemctl", "show", UNIT, "-p", "OOMPolicy,OOMScoreAdjust,LimitCORE,LogRateLimitBurst,MemoryMax"]
        ).stdout
        assert sorted(shown.split()) == [
            "LimitCORE=0", "LogRateLimitBurst=50000", f"MemoryMax={2 << 30}", "OOMPolicy=kill", "OOMScoreAdjust=100",
        ]  # fmt: skip
    finally:
        host.run("rm -rf /run/WSL /dev/dxg /etc/wsl.conf")


@pytest.mark.full
@pytest.mark.parametrize("tried", TRIED, ids=[tried.lines.split()[-1] for tried in TRIED])
def test_what_was_left_out_does_what_is_said_of_it(deployed: Deployed, tried: Tried) -> None:
    host, dropin = deployed.lab.hosts[0], f"/run/systemd/system/{UNIT}.d/tried.conf"
    put(host, dropin, f"[Service]\nRestart=no\n{tried.lines}\n")
    try:
        host.run(["systemctl", "daemon-reload"])
        starts = host.run(["systemctl", "restart", UNIT], check=False).returncode == 0
        listens = ["journalctl", "-q", "-o", "cat", f"_SYSTEMD_INVOCATION_ID={invocation(host)}", "--grep", " listening on http"]
        if starts:
            wait_for(lambda: host.run(listens, check=False).returncode == 0)
        found = "does not start" if not starts else "serves" if answers(host) else "is not reached"
        assert found == tried.outcome
    finally:
        host.run(f"rm {dropin}; systemctl daemon-reload")
        started(host)


def invocation(host: Host) -> str:
    return host.run(["systemctl", "show", "--value", "-p", "InvocationID", UNIT]).stdout.strip()
