"""What we write for systemd, read by a real systemd: words of arguments, environments, and the unit's exposure."""

from __future__ import annotations

import itertools
import json
import string

import pytest

from lab import Lab
from lab.lab import Host
from tests.unit.test_unit_file import NAMES, VARIANTS, unit
from wsllama.domain import systemd

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
UNIT = """
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
    put(host, "/run/systemd/system/wsllama-words.service", UNIT)
    host.run(["systemctl", "daemon-reload"])
    host.run(["systemctl", "start", "wsllama-words.service"])
    words, environment = json.loads(host.run(["cat", "/run/words/out"]).stdout)
    assert words == WORDS
    assert environment == values


@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_exposure_and_what_systemd_says_of_the_unit(lab: Lab, variant: tuple[bool, bool, bool]) -> None:
    host, path = lab.hosts[0], "/run/words/llama-server.service"
    put(host, path, unit(*variant))
    p = host.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", path], check=False)  # tenths: 2.0
    assert p.returncode == 0, p.stdout[-300:]
