"""What is said of a host's findings: flags, variables, settings, secrets. tests/lab/test_drift.py finds each kind for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wsllama.domain import drift
from wsllama.domain.drift import Finding
from wsllama.host import drift as program

PLACES = {
    "root": "/opt/wsllama",
    "builds": "/opt/wsllama/builds",
    "models": "/var/lib/wsllama/models",
    "unit": "llama-server.service",
    "unit_file": "/etc/systemd/system/llama-server.service",
    "user": "llama",
}
ARGS = r"""LLAMA_SERVER_ARGS="\"--host\" \"127.0.0.1\" \"--port\" \"8080\" \"--temp\" \"-1\" \"--metrics\""
"""
WORDS = ["--host", "127.0.0.1", "--port", "8080", "--temp", "-1", "--metrics"]
SHA = "ab" * 32


def seen(**more: Any) -> dict[str, Any]:
    """A host on which all is as it was deployed, with these differences."""
    server = {"host": "127.0.0.1", "port": 8080}
    record = {"sha256": {"args": SHA, "env": SHA, "unit": SHA}, "links": {"build": "/b"}, "server": server, "build": "b1"}
    texts = {"args": ARGS, "env": 'LD_LIBRARY_PATH="/usr/lib/wsl/lib"\n', "unit": "[Service]\nEnvironment=A=1\n"}
    environment = {"LD_LIBRARY_PATH": "/usr/lib/wsl/lib", "A": "1", "PATH": "/usr/bin", "LLAMA_SERVER_ARGS": "x", "LANG": "C"}
    out: dict[str, Any] = {
        "links": {"current": "releases/3", "last-good": "releases/3"},
        "release": {"record": record, "accepted": True, "files": record["sha256"], "links": record["links"], "texts": texts},
        "unit": {"FragmentPath": PLACES["unit_file"], "LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active"},
        "unit_text": texts["unit"],
        "drop_ins": {},
        "process": {"exe": "/b/s", "argv": ["/b/s", *WORDS], "environment": environment, "listens": [["127.0.0.1", 8080]]},
        "program": "/b/s",
        "others": [],
        "user": {"groups": [], "password": False},
        "held": [],
        "packages": {"g++": "1"},
        "build": {"recorded": True, "differs": {}, "versions": {"g++": "1"}},
        "models": {"m/a.gguf": {"there": True, "stamp": True, "intact": True, "sha256": SHA}},
        "writable": {},
    }
    for key, value in more.items():
        out[key] = {**out[key], **value} if isinstance(value, dict) and isinstance(out[key], dict) else value
    return out


def found(**more: Any) -> list[tuple[str, str, str, str]]:
    return [(f.kind, f.what, f.now, f.wins) for f in drift.findings(seen(**more), [], PLACES)]


def test_a_host_as_it_was_deployed() -> None:
    assert found() == []


def test_a_host_without_a_release() -> None:
    none = {"record": None}
    links: dict[str, str | None] = {"current": None, "last-good": None}
    assert found(release=none, links=links) == [("release", "/opt/wsllama/current", "absent", "deploy")]
    links = {"current": "releases/9", "last-good": None}
    said = ("link", "/opt/wsllama/current", "leads to releases/9, which is no release", "deploy")
    assert found(release=none, links=links) == [said]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["--host", "127.0.0.1", "--port", "8080", "--temp", "0", "--metrics"],
            ("flag", "--temp", "runs with --temp 0", "nobody"),
        ),
        (WORDS[:-1], ("flag", "--metrics", "runs without it", "nobody")),
        ([*WORDS, "--api-key", "hush"], ("flag", "--api-key", "runs with --api-key ***", "nobody")),
        ([*WORDS, "--port", "8081"], ("flag", "--port", "runs with --port 8080 8081", "nobody")),
    ],
)
def test_flags_of_the_process(argv: list[str], said: tuple[str, ...]) -> None:
    process = {**seen()["process"], "argv": ["/b/s", *argv]}
    assert found(process=process) == [said]
    drop_in = {"/d/x.conf": "[Service]\nExecStart=\nExecStart=/b/s\n"}
    assert {f[-1] for f in found(process=process, drop_ins=drop_in)} == {"user"}


def test_variables_of_the_process_are_named_and_their_values_kept() -> None:
    environment = {**seen()["process"]["environment"], "HF_TOKEN": "hush", "LD_LIBRARY_PATH": "/mine"}
    process = {**seen()["process"], "environment": environment}
    named = [
        ("environment", "HF_TOKEN", "set", "nobody"),
        ("environment", "LD_LIBRARY_PATH", "another value", "nobody"),
    ]
    assert sorted(found(process=process)) == sorted(named)
    del environment["LD_LIBRARY_PATH"], environment["HF_TOKEN"]
    assert found(process=process) == [("environment", "LD_LIBRARY_PATH", "not set", "nobody")]


def test_who_wins_over_the_running_process_depends_on_whether_a_deploy_starts_it_again() -> None:
    service = {
        "operation": "server | service",
        "told": [{"text": "x", "of": "s", "now": "", "wanted": ""}],
        "refused": [],
        "later": [],
    }
    stopped = seen(process={"exe": "/b/s (deleted)"})
    assert [f.wins for f in drift.findings(stopped, [], PLACES)] == ["nobody"]
    assert [f.wins for f in drift.findings(stopped, [service], PLACES)] == ["deploy", "deploy"]


def test_a_package_that_the_build_was_made_with_in_another_version() -> None:
    assert found(packages={"g++": "2"}) == [("package", "g++", "2", "nobody")]
    build = {"operation": "llama.cpp | build", "told": [], "refused": [], "later": ["a build is to be made"]}
    assert [f.wins for f in drift.findings(seen(packages={"g++": "2"}), [build], PLACES)] == ["deploy"]


def test_settings_one_by_one() -> None:
    record = {"digest": "1", "commit": "c", "model": {"alias": "a", "others": ["x"]}, "server": {"ctx_size": 1, "metrics": True}}
    new = {"digest": "2", "commit": "c", "model": {"alias": "a"}, "server": {"ctx_size": 2, "metrics": False}}
    assert [(f.kind, f.what, f.now, f.should, f.wins) for f in drift.settings(record, new, "3")] == [
        ("setting", "model.others", "['x']", "not set", "deploy"),
        ("setting", "server.ctx_size", "1", "2", "deploy"),
        ("setting", "server.metrics", "true", "false", "deploy"),
    ]
    edited = drift.settings({**record, "digest": "2"}, new, "3")[1]
    assert (edited.kind, edited.what, edited.wins) == ("release", "releases/3/release.json: server.ctx_size", "nobody")


def test_a_plan_that_was_edited_on_the_host() -> None:
    """Its figures are in no digest, so the release is the same, or another one whose settings are."""
    plan = {"made": "k", "memory": {"ram": {"total": 3, 2: [1.5]}}}
    record = {"digest": "1", "plan": json.loads(json.dumps(drift.sealed(plan)))}
    assert drift.settings(record, {"digest": "1", "plan": plan}, "3") == []
    changes: list[dict[str, Any]] = [{"ram": 5}, {"memory": {}}]
    for change in changes:
        edited = {**record, "plan": {**record["plan"], **change}}
        for digest in ("1", "2"):
            (finding,) = drift.settings(edited, {"digest": digest, "plan": plan}, "3")
            assert (finding.kind, finding.what, finding.wins) == ("release", "releases/3/release.json: plan", "nobody")
    (other,) = drift.settings(record, {"digest": "2", "plan": {"made": "l"}}, "3")
    assert (other.kind, other.what, other.wins) == ("setting", "plan", "deploy")
    assert drift.intact({"made": "of an earlier version"})


def test_what_a_deploy_would_do_is_a_finding_unless_the_records_say_it_better() -> None:
    told = [{"text": "/etc/a: mode 1 -> 2", "of": "/etc/a", "now": "mode 1", "wanted": "mode 2"}]
    step = {"operation": "distro | folders", "told": told, "refused": [], "later": ["x"]}
    refused = {"operation": "preflight | host is ready", "told": [], "refused": ["port 8080 is taken"], "later": []}
    assert drift.wanted([step, refused]) == [
        Finding("file", "/etc/a", "mode 1", "mode 2", "deploy", drift.DEPLOY),
        Finding(
            "refused",
            "host is ready",
            "port 8080 is taken",
            "a deploy can work with it",
            "nobody",
            "mend what is named, then deploy",
        ),
    ]
    unit = [{"text": "x", "of": PLACES["unit_file"], "now": "other content", "wanted": "y"}]
    edited = seen(unit_text="[Service]\n")
    assert [f.now for f in drift.findings(edited, [{**step, "told": unit}], PLACES)] == ["edited"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--api-key hush --port 1", "--api-key *** --port 1"),
        (r"\"--api-key\" \"hush\" \"--port\"", r"\"--api-key\" \"***\" \"--port\""),
        ("--api-key-file /etc/k", "--api-key-file /etc/k"),
        ("Environment=LLAMA_API_KEY=hush", "Environment=LLAMA_API_KEY=***"),
        ('HF_TOKEN="hush"', 'HF_TOKEN="***"'),
        ("http://me:hush@proxy:3128/", "http://***@proxy:3128/"),
        ("hf_abcdefghijkl is one", "*** is one"),
        ("Authorization: Bearer hush", "Authorization: Bearer ***"),
        ("--cache-type-k f16", "--cache-type-k f16"),
    ],
)
def test_secrets_are_not_shown(text: str, shown: str) -> None:
    assert drift.masked(text) == shown


def test_a_listening_process_of_this_machine() -> None:
    """The kernel's tables, read for a process that was started for it."""
    code = (
        "import socket, time; s = [socket.create_server((a, 0), family=f) for a, f in (('127.0.0.1', 2), ('::1', 10), ('', 2))]"
    )
    code += "; print(*(x.getsockname()[1] for x in s), flush=True); time.sleep(600)"
    environment = {**os.environ, "ODD": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as p:
        try:
            assert p.stdout
            ports = [int(word) for word in p.stdout.readline().split()]
            found = program.process(p.pid)
        finally:
            p.kill()
    assert found
    assert found["listens"] == sorted(zip(("127.0.0.1", "::1", "*"), ports, strict=True))
    assert found["argv"][1:] == ["-c", code]
    assert found["exe"] == os.path.realpath(sys.executable)
    assert found["environment"]["ODD"] == "1"


def test_files_of_a_build(tmp_path: Path) -> None:
    for name, data in {"bin/a": b"one", "bin/b": b"two", "lib/odd": b""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    one = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"  # printf one | sha256sum
    files = {"bin/a": {"size": 3, "sha256": one}, "bin/b": {"size": 3, "sha256": one}, "bin/c": {"size": 1, "sha256": one}}
    assert program.build(str(tmp_path), deep=False)["recorded"] is False
    (tmp_path / "build.json").write_text(json.dumps({"files": files, "inputs": {"versions": {"g++": "1"}}}))
    gone = {"bin/c": "is gone", "lib/odd": "is not of the build"}
    found = program.build(str(tmp_path), deep=False)
    assert (found["recorded"], found["differs"], found["versions"]) == (True, gone, {"g++": "1"})
    assert program.build(str(tmp_path), deep=True)["differs"] == {**gone, "bin/b": "has other bytes"}
    os.chmod(tmp_path / "bin/a", 0o646)
    assert program.writable([str(tmp_path / "bin")])[str(tmp_path / "bin/a")].startswith("mode 646, owner ")
