"""The end state of a host as names and values: what is in it, what is left out, what differs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from wsllama import cli
from wsllama.commands import rebuild_check
from wsllama.domain import manifest

KEY = "/etc/wsllama/api-key"
FILE = {"kind": "file", "mode": "644", "user": "root", "group": "root", "size": 3, "mtime_ns": 5, "sha256": "ab"}
NOW: dict[str, Any] = {
    "packages": {"cmake": "3.25.1-1", "curl": None},
    "files": {
        "/etc/apt/apt.conf.d/80wsllama": FILE,
        KEY: {**FILE, "mode": "640", "group": "llama", "sha256": "cd"},
        "/opt/wsllama/current": {**FILE, "kind": "link", "mode": "777", "target": "releases/3", "sha256": None},
        "/gone": None,
    },
    "users": {"llama": {"group": "llama", "home": "/var/lib/llama", "shell": "/usr/sbin/nologin"}, "nobody-else": None},
    "units": {
        "llama-server.service": {"LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active", "MainPID": "7"},
        "no.service": {"LoadState": "not-found", "UnitFileState": "", "ActiveState": "inactive"},
    },
}
SEEN: dict[str, Any] = {
    "drop_ins": {},
    "release": {
        "record": {"commit": "0c1e", "stage": "context", "created": 12.5, "plan": {"key": "k"}},
        "accepted": True,
        "links": {"build": "/opt/wsllama/builds/b1"},
        "texts": {
            "args": 'LLAMA_SERVER_ARGS="--ctx-size 8192 --port 8080 --metrics"\n',
            "env": "LD_LIBRARY_PATH=/usr/lib/wsl/lib\n",
        },
    },
    "build": {"differs": {}, "versions": {"g++": "12.2.0"}, "sums": {"bin/llama-server": "ef", "lib/a.so": "01"}},
    "models": {"m/a.gguf": {"sha256": "23", "intact": True}},
}


def made(now: Any = NOW, seen: Any = SEEN) -> manifest.Manifest:
    return manifest.made(now, seen, {KEY})


def test_what_is_in_it() -> None:
    assert made() == {
        "package cmake": "3.25.1-1",
        "file /etc/apt/apt.conf.d/80wsllama": "file 644 root:root ab",
        f"file {KEY}": "file 640 root:llama",
        "user llama": "group llama, home /var/lib/llama, shell /usr/sbin/nologin",
        "unit llama-server.service": "loaded, enabled, active",
        "release commit": "0c1e",
        "release stage": "context",
        "release accepted": "yes",
        "release link build": "/opt/wsllama/builds/b1",
        "argument --ctx-size": "8192",
        "argument --port": "8080",
        "argument --metrics": "given",
        "variable LD_LIBRARY_PATH": "/usr/lib/wsl/lib",
        "build bin/llama-server": "ef",
        "build lib/a.so": "01",
        "made with g++": "12.2.0",
        "model m/a.gguf": "23",
    }


def test_what_is_left_out_is_said() -> None:
    text = (Path(__file__).parents[2] / "docs/fleet.md").read_text()
    assert all(f"| {what} | {why} |" in text for what, why in manifest.LEFT_OUT.items())


OF_EACH_MACHINE = [
    ("files", KEY, "sha256", "another key"),
    ("files", "/etc/apt/apt.conf.d/80wsllama", "mtime_ns", 6),
    ("files", "/opt/wsllama/current", "target", "releases/9"),
    ("units", "llama-server.service", "MainPID", "8"),
]


@pytest.mark.parametrize(("facet", "name", "key", "value"), OF_EACH_MACHINE)
def test_what_each_machine_has_of_its_own_is_left_out(facet: str, name: str, key: str, value: Any) -> None:
    now = copy.deepcopy(NOW)
    now[facet][name][key] = value
    assert manifest.differences(made(), made(now)) == []


def test_differences_are_named_both_ways() -> None:
    now, seen = copy.deepcopy(NOW), copy.deepcopy(SEEN)
    now["packages"] = {"cmake": "4.0", "ninja-build": "1"}
    now["files"][KEY]["mode"] = "644"
    seen["build"]["differs"] = {"lib/a.so": "is gone", "x": "is not of the build"}
    seen["models"]["m/a.gguf"]["intact"] = False
    seen["drop_ins"] = {"/etc/systemd/system/llama-server.service.d/a.conf": "[Service]"}
    assert manifest.differences(made(), made(now, seen)) == [
        ("build lib/a.so", "01", "is gone"),
        ("build x", None, "is not of the build"),
        ("drop-in /etc/systemd/system/llama-server.service.d/a.conf", None, "there"),
        (f"file {KEY}", "file 640 root:llama", "file 644 root:llama"),
        ("model m/a.gguf", "23", "not as it was verified"),
        ("package cmake", "3.25.1-1", "4.0"),
        ("package ninja-build", None, "1"),
    ]


def test_bytes_count_before_a_stamp() -> None:
    seen = copy.deepcopy(SEEN)
    seen["models"]["m/a.gguf"]["sha256_now"] = "45"
    assert manifest.differences(made(), made(seen=seen)) == [("model m/a.gguf", "23", "45")]


@pytest.mark.parametrize(
    ("text", "like", "said"),
    [
        ("", None, "holds no end state"),
        ("[]", None, "holds no end state"),
        ('{"format": 1}', None, "holds no end state"),
        ('{"format": 9, "hosts": {}}', None, "another version"),
        ('{"format": 1, "hosts": {"a": {}}}', "b", "--like b: "),
    ],
)
def test_a_file_that_is_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, like: str | None, said: str
) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(typer.Exit) as ended:
        rebuild_check._read(tmp_path / "m.json", like, as_json=False)
    assert ended.value.exit_code == 2
    assert said in capsys.readouterr().err


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rebuild_check._write(tmp_path / "m.json", {"a": made()}, as_json=False)
    assert rebuild_check._read(tmp_path / "m.json", "a", as_json=False) == {"a": made()}
    assert json.loads((tmp_path / "m.json").read_text())["format"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


def command(*words: str | Path, home: Path) -> Any:
    """`wsllama rebuild-check` of hosts that nobody answers at, or of this machine, which has nothing of ours."""
    result = CliRunner().invoke(cli.app, ["rebuild-check", *map(str, words)], env={"COLUMNS": "500", "HOME": str(home)})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


AWAY = '"ssh_hostname": "127.0.0.1", "ssh_port": 9, "platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}'


def test_a_host_that_is_away_keeps_its_record(tmp_path: Path) -> None:
    (tmp_path / "inventory").write_text(f'desks = [("desk-1", {{{AWAY}}})]\n')
    before = json.dumps({"format": 1, "hosts": {"desk-1": made()}})
    (tmp_path / "m.json").write_text(before)
    assert command(tmp_path / "inventory", "--record", tmp_path / "m.json", home=tmp_path).exit_code == 4
    assert (tmp_path / "m.json").read_text() == before


def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "inventory").write_text(f'desks = [("desk-1", {{{AWAY}}})]\n')
    (tmp_path / "mine.json").write_text('{"a": 1}')
    result = command(tmp_path / "inventory", "--record", tmp_path / "mine.json", home=tmp_path)
    assert (result.exit_code, (tmp_path / "mine.json").read_text()) == (2, '{"a": 1}')


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        rebuild_check._write(tmp_path / "none" / "m.json", {}, as_json=False)
    assert (ended.value.exit_code, capsys.readouterr().err) == (
        2,
        f"refused: {tmp_path}/none/m.json can't be written: No such file or directory\n",
    )
