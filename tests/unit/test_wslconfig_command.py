"""`wsllama wslconfig`: exit codes, sentences, JSON, and that a file is changed at once or not at all."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from wsllama import cli
from wsllama.domain.wslconfig import lint, parse

ROOT = Path(__file__).parents[2]
GOOD = b"[wsl2]\r\nmemory=48GB\r\nvmIdleTimeout=-1\r\n[general]\r\ninstanceIdleTimeout=-1\r\n"


def wslconfig(*words: str | Path) -> Result:
    result = CliRunner().invoke(cli.app, ["wslconfig", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / ".wslconfig"
    path.write_bytes(GOOD)
    return path


def test_read_says_values_and_warnings(file: Path) -> None:
    file.write_bytes(GOOD + b"kernel=C:/k\n[wsl2]\nkernel=C:\\k\n")
    result = wslconfig("read", file)
    assert "wsl2.memory = 51539607552\n" in result.stdout
    assert result.stderr.splitlines() == ["line 6: ConfigUnknownKey", "line 8: ConfigInvalidEscape"]
    told = json.loads(wslconfig("read", file, "--json").stdout)
    parsed = parse(file.read_bytes(), "wslconfig")
    assert told == {"values": parsed.values, "warnings": [w._asdict() for w in parsed.warnings], "rc": 0}


def test_the_name_tells_the_kind_and_an_option_overrules_it(tmp_path: Path) -> None:
    conf = tmp_path / "wsl.conf"
    conf.write_bytes(b"[boot]\nsystemd=true\n;\n[gpu]\nenabled=false\n")
    result = wslconfig("read", conf)
    assert result.stdout == "boot.systemd = true\n"
    assert "WSL stops reading" in result.stderr
    assert wslconfig("read", conf, "--kind", "wslconfig").stdout == ""
    assert wslconfig("read", conf, "--kind", "ini").exit_code == 2


def test_lint_says_what_to_do_and_looks_beside_the_file(file: Path) -> None:
    assert (wslconfig("lint", file).stdout, wslconfig("lint", file).exit_code) == ("", 0)
    (file.parent / ".wslconfig.txt").touch()
    file.write_bytes(GOOD + b"[wsl2]\nswap=8gb\nprocessors=1.5\n")
    result = wslconfig("lint", file)
    assert result.exit_code == 1
    assert f"{file}:7: bad_size: wsl2.swap: WSL does not take '8gb'" in result.stdout
    told = json.loads(wslconfig("lint", file, "--json").stdout)
    assert [f["id"] for f in told["findings"]] == ["bad_size", "wrong_file"]
    assert [(f["id"], f["line"]) for f in told["advice"]] == [("refused_value", 8)]


def test_advice_alone_is_no_failure(file: Path) -> None:
    file.write_bytes(GOOD + b"[wsl2]\nnetworkingMode=mirrored\n")
    result = wslconfig("lint", file)
    assert "mirrored: " in result.stdout
    assert result.exit_code == 0


def test_edit_changes_what_is_asked_and_keeps_mode_and_link(file: Path, tmp_path: Path) -> None:
    file.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(file)
    words = [
        "--set",
        "wsl2.swap=0",
        "--set",
        "wsl2.firewall=FALSE",
        "--set",
        "experimental.ignoredPorts=80, 22",
        "--unset",
        "wsl2.memory",
    ]
    result = wslconfig("edit", link, *words, "--json")
    values = {"wsl2.vmIdleTimeout": -1, "general.instanceIdleTimeout": -1, "wsl2.swap": 0, "wsl2.firewall": False}
    assert json.loads(result.stdout) == {"changed": True, "values": {**values, "experimental.ignoredPorts": [22, 80]}}
    assert parse(file.read_bytes(), "wslconfig").values == json.loads(result.stdout)["values"]
    assert (link.is_symlink(), file.stat().st_mode & 0o777) == (True, 0o640)
    before = file.stat().st_ino
    assert wslconfig("edit", link, *words).stdout == f"{link}: unchanged\n"
    assert file.stat().st_ino == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".wslconfig", "link"]


def test_edit_makes_a_file_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "wsl.conf"
    assert wslconfig("edit", path, "--set", "boot.systemd=true", "--set", "filesystem.umask=022").exit_code == 0
    assert path.read_bytes() == b"[boot]\nsystemd=true\n\n[filesystem]\numask=022\n"
    assert lint(path.read_bytes(), "wslconf") == []
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_write_that_fails_half_way_changes_nothing_and_leaves_nothing(file: Path) -> None:
    def few_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))

    words = [sys.executable, "-B", "-m", "wsllama.cli", "wslconfig", "edit", str(file), "--set", "wsl2.swap=0"]
    p = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, preexec_fn=few_bytes)
    assert (p.returncode, p.stderr) == (2, f"refused: {file} can't be written: File too large; nothing was changed\n")
    assert ([path.name for path in file.parent.iterdir()], file.read_bytes()) == ([".wslconfig"], GOOD)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "wsl2.memory=16gb"], "upper-case unit"),
        (["--set", "wsl2.processors=8.0"], "whole number"),
        (["--set", "wsl2.firewall=yes"], "true or false"),
        (["--set", "experimental.ignoredPorts=80,x"], "list of ports"),
        (["--set", "wsl2.swapFile=C:/José"], "only ASCII"),
        (["--set", "wsl2.foo=1"], "no such setting"),
        (["--set", "wsl2.memory"], "NAME=VALUE"),
        (["--unset", "memory"], "no such setting"),
    ],
)
def test_edit_refuses_in_one_sentence_before_it_writes(file: Path, words: list[str], said: str) -> None:
    result = wslconfig("edit", file, *words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr
    assert result.stderr == f"refused: {json.loads(wslconfig('edit', file, *words, '--json').stdout)['errors'][0]}\n"
    assert file.read_bytes() == GOOD


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".wslconf").touch()
    missing = wslconfig("lint", tmp_path / ".wslconfig")
    assert (missing.exit_code, ".wslconf is not a name that WSL looks for" in missing.stderr) == (2, True)
    for command in ("read", "lint", "edit"):
        result = wslconfig(command, tmp_path)
        assert (result.exit_code, "Is a directory" in result.stderr) == (2, True)
    gone = wslconfig("edit", tmp_path / "no" / ".wslconfig", "--set", "wsl2.swap=0")
    assert (gone.exit_code, "nothing was changed" in gone.stderr) == (2, True)
