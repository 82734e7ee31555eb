"""Field cases, section B: wsl.conf. The rows: tests/data/field_cases.json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jinja2 import FileSystemLoader

from tests.operations.fake_hosts import Converge, converge, settings
from tests.operations.test_op_windows import file, of, seen
from tests.operations.test_op_windows_side import kept, side
from wsllama.commands.bootstrap import script
from wsllama.domain import bootstrap
from wsllama.domain import windows as rules
from wsllama.domain.wslconfig import edit, lint, parse
from wsllama.host import windows as on_host
from wsllama.operations import files, keep_alive, release, windows

__all__ = ["converge"]  # a fixture

BOOT = {"boot.systemd": True}
WANTED = {"boot.systemd": True, "interop.enabled": True}


def values(data: bytes) -> dict[str, Any]:
    return parse(data, "wslconf").values


def ids(data: bytes) -> list[str]:
    return [finding.id for finding in lint(data, "wslconf")]


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """wsl.conf in a folder; what the host keeps is beside it."""
    monkeypatch.setattr(on_host, "STATE", str(tmp_path / "state"))
    monkeypatch.setattr(on_host, "JOURNAL", str(tmp_path / "state/journal.json"))
    return tmp_path / "wsl.conf"


def deployed(converge: Converge, conf: Path) -> tuple[bool, str]:
    """Look at the file as the host does, converge, write what was sent; whether something was, and what was said."""
    got = converge(windows.config, of(), seen=seen(wslconf=on_host._file(str(conf))))
    assert not got.failed, got.log
    for sent in got.sent:
        on_host.change(sent["files"])
    return bool(got.sent), got.log


@pytest.mark.parametrize(
    "data",
    [
        b"# ours\r\n[boot]\r\nsystemd=false\r\n[user]\r\ndefault=ada\r\n",
        b"# ours\r\n[boot]\r\nsystemd=true\r\n\r\n[user]\r\ndefault=ada",
        b"# ours\r\n[user]\r\ndefault=ada\r\r\n",
    ],
)
def test_19_no_carriage_return_is_written(converge: Converge, conf: Path, data: bytes) -> None:
    conf.write_bytes(data)
    assert "crlf_old_builds" in ids(data)
    assert deployed(converge, conf)[0]
    after = conf.read_bytes()
    assert b"\r" not in after
    assert after.startswith(b"# ours\n[")
    assert values(after) == {**WANTED, "user.default": "ada"}
    assert ids(after) == []


def test_19_templates_that_were_checked_out_with_carriage_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rendered for a distro is the same; the script that is sent into one loses them."""
    of_wsl = settings(platform="wsl")
    ours = release.unit_text(of_wsl)
    shutil.copytree(files.ROOT / "templates", copy := tmp_path / "templates")
    for path in copy.glob("*.j2"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    monkeypatch.setattr(files._jinja, "loader", FileSystemLoader(copy))
    assert b"\r\n" in (copy / "llama-server.service.j2").read_bytes()
    assert release.unit_text(of_wsl) == ours
    assert "\r" not in ours
    (sent,) = [line for line in script(bootstrap.Settings()).splitlines() if "$Inside" in line and "$Inside = @'" not in line]
    assert sent.split("#")[0].strip() == "$commands = $Inside.Replace([string][char]13, '')"


def test_20_a_byte_order_mark_is_taken_out_once(converge: Converge, conf: Path) -> None:
    data = b"\xef\xbb\xbf[boot]\nsystemd=true\n"
    conf.write_bytes(data)
    assert (values(data), parse(data, "wslconf").rc) == ({}, -1)
    assert ids(data)[0] == "bom"
    changed, said = deployed(converge, conf)
    assert (changed, "The file begins with a byte order mark" in said) == (True, True)
    after = conf.read_bytes()
    assert b"\xef\xbb\xbf" not in after
    assert values(after) == WANTED
    assert deployed(converge, conf)[0] is False
    assert conf.read_bytes() == after


@pytest.mark.parametrize("blank", [b"", b"  "])
def test_22_a_continued_command_and_carriage_returns(blank: bytes) -> None:
    """WSL's parser goes on behind \\ and a line feed; behind \\ and CR LF the next line is one of its own, and no setting."""
    data = b"[boot]\r\nsystemd=true\r\ncommand=echo a \\\r\n" + blank + b"b\r\n[user]\r\ndefault=ada\r\n"
    read = parse(data, "wslconf")
    assert (read.rc, read.values["boot.systemd"], "user.default" in read.values) == (-1, True, False)
    assert "stops_parsing" in ids(data)
    assert parse(data.replace(b"\r\n", b"\n"), "wslconf").values["boot.command"].split() == ["echo", "a", "b"]
    after = edit(data, "wslconf", WANTED)
    assert (parse(after, "wslconf").rc, values(after)) == (0, {**read.values, **WANTED})
    assert b"\n# " + blank + b"b\n# [user]\n# default=ada\n" in after, "nothing that was not read is read now"


def test_23_a_header_in_a_comment() -> None:
    data = b"[user]\ndefault=ada\n# [boot]\nsystemd=true\n"
    assert values(data) == {"user.default": "ada"}
    assert [w.kind for w in parse(data, "wslconf").warnings] == ["ConfigUnknownKey"]
    (first, *_) = lint(data, "wslconf")
    assert (first.id, first.line) == ("wrong_section", 4)
    assert "systemd has no effect in [user]: it belongs to [boot]" in first.text
    after = edit(data, "wslconf", BOOT)
    assert after == data + b"\n[boot]\nsystemd=true\n"
    assert values(after) == {"user.default": "ada", **BOOT}


def test_25_a_key_that_the_parser_refuses_ends_it(converge: Converge, conf: Path) -> None:
    data = b"[boot]\nsystemd=true\n[network]\nhost-name=h\nhostname=h\n[interop]\nenabled=true\n"
    conf.write_bytes(data)
    read = parse(data, "wslconf")
    assert (read.values, read.rc) == (BOOT, -1)
    stops = next(finding for finding in lint(data, "wslconf") if finding.id == "stops_parsing")
    assert (stops.line, stops.text) == (4, "WSL stops reading here: everything from this line on has no effect.")
    changed, said = deployed(converge, conf)
    assert (changed, f"{conf.name}:4: {stops.text}" in said) == (True, True)
    after = conf.read_bytes()
    assert b"\n# host-name=h\n# hostname=h\n# [interop]\n# enabled=true\n" in after
    assert (parse(after, "wslconf").rc, values(after)) == (0, WANTED)


def test_26_a_command_at_boot_keeps_nothing(converge: Converge) -> None:
    """It is kept as it is, and both idle keys and what starts the distro at logon are wanted all the same."""
    data = edit(b"[boot]\ncommand=service x start\n", "wslconf", rules.wanted("wslconf", {}))
    got = converge(windows.config, of(), seen=seen(config=None, conf=data))
    assert [change["path"] for change in got.sent[0]["files"]] == ["/w/.wslconfig"]
    assert {"general.instanceIdleTimeout", "wsl2.vmIdleTimeout"} <= set(got.sent[0]["files"][0]["entry"]["waiting"])
    there = side(wslconf=file("/etc/wsl.conf", data), wslconfig=file("/w/.wslconfig", None))
    holds = keep_alive.effect(there["side"], kept()["side"])
    assert (holds.mechanism, holds.idle) == ("none", False)
    shown = json.dumps({"power": {"powercfg": None, "registry": None, "clock_ahead_s": None}, "distros": None})
    made = json.dumps({"mechanism": "task", "changed": True, "refused": None, "xml": None, "left": []})
    answers = {"# keep_alive": made, "# windows_side": shown}
    done = converge(keep_alive.kept, of(), seen={"windows": there, "keep_alive": kept()}, answers=answers)
    assert (done.sent[0]["action"], done.sent[0]["ways"], done.changed) == ("make", ["task", "startup"], True)
