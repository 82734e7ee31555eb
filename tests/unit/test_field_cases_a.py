"""Field cases, section A: .wslconfig. The rows: tests/data/field_cases.json."""

from __future__ import annotations

import base64
import codecs
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.operations.fake_hosts import Converge, converge
from tests.operations.test_op_windows import of, seen
from wsllama import cli
from wsllama.domain import windows as rules
from wsllama.domain.wslconfig import edit, lint, parse
from wsllama.host import windows as on_host
from wsllama.operations import windows
from wsllama.settings import parse as settings_of

__all__ = ["converge"]  # a fixture

GIB = 1 << 30
IDLE = {"general.instanceIdleTimeout": -1, "wsl2.vmIdleTimeout": -1}


def values(data: bytes) -> dict[str, Any]:
    return parse(data, "wslconfig").values


def ids(data: bytes) -> list[str]:
    return [finding.id for finding in lint(data, "wslconfig")]


def refusals(**wsl: Any) -> list[str]:
    """What the settings say of these, all at once."""
    found, wrong = settings_of({"model": {"path": "/srv/a.gguf", "on": "host"}, "wsl": wsl})
    assert (found is None) == bool(wrong)
    return wrong


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["wslconfig", *map(str, words)])


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Windows user's folder; what the host keeps is elsewhere."""
    monkeypatch.setattr(on_host, "STATE", str(tmp_path / "state"))
    monkeypatch.setattr(on_host, "JOURNAL", str(tmp_path / "state/journal.json"))
    (tmp_path / "Ada").mkdir()
    return tmp_path / "Ada"


def deployed(converge: Converge, profile: Path) -> tuple[bool, str]:
    """Look at the folder as the host does, converge, write what was sent; whether something was, and what was said."""
    file = on_host._file(f"{profile}/.wslconfig")
    got = converge(windows.config, of(), seen=seen(wslconfig=file))
    assert not got.failed, got.log
    for sent in got.sent:
        on_host.change(sent["files"])
    return bool(got.sent), got.log


@pytest.mark.parametrize("name", [".wslconf", ".wslconfig.txt", "wslconfig"])
def test_1_a_file_under_another_name_is_warned_of_and_the_right_one_written(converge: Converge, profile: Path, name: str) -> None:
    (profile / name).write_bytes(b"[wsl2]\nmemory=4GB\n")
    changed, said = deployed(converge, profile)
    assert changed
    assert f"{name} is not a name that WSL looks for: it reads .wslconfig only. Rename it to .wslconfig." in said
    assert values((profile / ".wslconfig").read_bytes()) == values(edit(None, "wslconfig", rules.wanted("wslconfig", {})))
    assert (profile / name).read_bytes() == b"[wsl2]\nmemory=4GB\n"
    told = command("lint", profile / ".wslconfig")
    assert (told.exit_code, f"wrong_file: {name} is not a name" in told.stdout) == (1, True)


def test_1_a_digit_in_the_header_is_an_unknown_section() -> None:
    data = b"[ws12]\nmemory=4GB\n"
    assert (values(data), ids(data)[0]) == ({}, "unknown_section")
    assert "[ws12]" in lint(data, "wslconfig")[0].text


def test_2_letters_that_changed_places() -> None:
    data = b"[wls2]\nmemory=4GB\n"
    assert ids(data)[0] == "unknown_section"
    assert "wsl2.memory" not in values(data)
    after = edit(data, "wslconfig", {"wsl2.memory": "48GB"})
    assert after == data + b"\n[wsl2]\nmemory=48GB\n"
    assert values(after) == {"wsl2.memory": 48 * GIB}


@pytest.mark.parametrize("wanted", [{"wsl2.swap": 0}, {"wsl2.memory": "4GB", "wsl2.swap": 0}])
def test_4_utf_16_becomes_utf_8_without_a_mark(wanted: dict[str, Any]) -> None:
    data = codecs.BOM_UTF16_LE + "[wsl2]\r\nmemory=4GB\r\n# größer?\r\n".encode("utf-16-le")
    assert data[:6] == b"\xff\xfe[\0w\0"
    assert values(data) == {"wsl2.memory": 4 * GIB}
    assert edit(data, "wslconfig", {"wsl2.memory": "4GB"}) == data, "nothing has to be written"
    after = edit(data, "wslconfig", wanted)
    assert after.decode("utf-8") == "[wsl2]\r\nmemory=4GB\r\nswap=0\r\n# größer?\r\n"
    assert values(after) == {"wsl2.memory": 4 * GIB, "wsl2.swap": 0}


def test_5_single_backslashes() -> None:
    """\\t is a tabulator, \\s is refused, and with it this key only."""
    data = b"[wsl2]\nswapFile=C:\\temp\\swap.vhdx\nmemory=4GB\n"
    assert values(data) == {"wsl2.memory": 4 * GIB}
    assert [w.kind for w in parse(data, "wslconfig").warnings] == ["ConfigInvalidEscape"]
    assert ids(data)[0] == "bad_escape"
    assert values(b"[wsl2]\nswapFile=C:\\temp\n") == {"wsl2.swapFile": "C:\temp"}
    wanted = r"C:\temp\swap.vhdx"
    after = edit(data, "wslconfig", {"wsl2.swapFile": wanted})
    assert b"swapFile=C:\\\\temp\\\\swap.vhdx\n" in after
    assert values(after) == {"wsl2.memory": 4 * GIB, "wsl2.swapFile": wanted}


def test_5_a_path_in_which_python_took_the_backslash_is_refused() -> None:
    """An inventory is Python, where \\t in a text is a tabulator too."""
    assert refusals(wsl2={"swapFile": r"C:\temp\swap.vhdx"}) == []
    (said,) = refusals(wsl2={"swapFile": "C:\temp/swap.vhdx"})
    assert "control characters are not allowed; in a path write" in said


def test_7_no_swap_is_written_plainly_and_0gb_is_the_same() -> None:
    assert edit(None, "wslconfig", {"wsl2.swap": 0}) == b"[wsl2]\nswap=0\n"
    assert edit(None, "wslconfig", {"wsl2.swap": "0GB"}) == b"[wsl2]\nswap=0\n"
    there = b"[wsl2]\nswap=0GB\n"
    assert edit(there, "wslconfig", {"wsl2.swap": 0}) == there
    assert values(there) == {"wsl2.swap": 0}


@pytest.mark.parametrize("size", ["16gb", "16 GB", "1.5GB", "16GiB", "50%", "'8GB'"])
def test_8_sizes_that_wsl_does_not_take(tmp_path: Path, size: str) -> None:
    (said,) = refusals(wsl2={"memory": size})
    assert repr(size) in said
    assert "a whole number with an upper-case unit and no blank, as in 16GB" in said
    file = tmp_path / ".wslconfig"
    got = command("edit", file, "--set", f"wsl2.memory={size}")
    assert (got.exit_code, file.exists()) == (2, False)
    there = f"[wsl2]\nmemory={size}\n".encode()
    assert values(there) == {}
    assert ids(there)[0] == "bad_size"
    assert edit(there, "wslconfig", {"wsl2.memory": "16GB"}) == b"[wsl2]\nmemory=16GB\n"


def test_10_a_semicolon_begins_no_comment() -> None:
    data = b"; note\n[wsl2]\nswap=0\n"
    assert [tuple(w) for w in parse(data, "wslconfig").warnings] == [("ConfigInvalidKey", 1)]
    assert values(data) == {"wsl2.swap": 0}
    assert ids(data)[0] == "semicolon_comment"
    assert edit(data, "wslconfig", {"wsl2.memory": "4GB"}) == b"; note\n[wsl2]\nswap=0\nmemory=4GB\n"


@pytest.mark.parametrize("header", [b"[system-distro-env]", b"[wsl2] ; the VM", b"[wsl-2]"])
def test_10_nothing_is_inserted_behind_a_broken_header(header: bytes) -> None:
    data = b"[wsl2]\nswap=0\n" + header + b"\nLANG=C\n"
    assert parse(data, "wslconfig").warnings[0].kind.startswith("ConfigExpected")
    after = edit(data, "wslconfig", {"wsl2.memory": "4GB", "general.instanceIdleTimeout": -1})
    assert after.startswith(b"[wsl2]\nswap=0\nmemory=4GB\n" + header)
    assert after.endswith(b"\n[general]\ninstanceIdleTimeout=-1\n")
    assert values(after) == {"wsl2.swap": 0, "wsl2.memory": 4 * GIB, "general.instanceIdleTimeout": -1}


def test_11_a_key_above_its_section(converge: Converge, profile: Path) -> None:
    data = b"memory=8GB\n[wsl2]\n"
    (profile / ".wslconfig").write_bytes(data)
    assert [tuple(w) for w in parse(data, "wslconfig").warnings] == [("ConfigUnknownKey", 1)]
    _, said = deployed(converge, profile)
    assert ".wslconfig:1: memory stands above the first section that WSL accepts, so it has no effect." in said
    after = (profile / ".wslconfig").read_bytes()
    assert after.startswith(b"memory=8GB\n[wsl2]\nvmIdleTimeout=-1\n")
    assert "wsl2.memory" not in values(after), "what WSL didn't read does not become active"
    assert deployed(converge, profile)[0] is False
    assert edit(data, "wslconfig", {"wsl2.memory": "8GB"}) == b"memory=8GB\n[wsl2]\nmemory=8GB\n"


def test_13_sparse_disks_are_refused(tmp_path: Path) -> None:
    (said,) = refusals(experimental={"sparseVhd": True})
    assert "sparseVhd has damaged file systems" in said
    assert refusals(experimental={"sparseVhd": False}) == []
    assert "experimental.sparseVhd" not in rules.wanted("wslconfig", {})
    file = tmp_path / ".wslconfig"
    file.write_bytes(before := b"[experimental]\nsparseVhd=true\n")
    for name in ("experimental.sparseVhd", "EXPERIMENTAL.SPARSEVHD"):
        got = command("edit", file, "--set", f"{name}=1", "--set", "wsl2.swap=0")
        assert (got.exit_code, "sparseVhd has damaged file systems" in got.stderr) == (2, True)
    assert file.read_bytes() == before
    assert "sparse_vhd" in ids(before)
    assert command("edit", file, "--unset", "experimental.sparseVhd").exit_code == 0
    assert "sparse_vhd" not in ids(file.read_bytes())


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"[wsl2]\ninstanceIdleTimeout=-1\nvmIdleTimeout=-1\n", ["wrong_section", "idle_keys_missing_for_service"]),
        (b"[general]\ninstanceIdleTimeout=-1\nvmIdleTimeout=-1\n", ["wrong_section", "idle_keys_missing_for_service"]),
        (
            b"[wsl2]\ninstanceIdleTimeout=-1\n[general]\nvmIdleTimeout=-1\n",
            ["wrong_section"] * 2 + ["idle_keys_missing_for_service"],
        ),
    ],
)
def test_14_idle_keys_below_each_other_s_section(data: bytes, found: list[str]) -> None:
    assert {w.kind for w in parse(data, "wslconfig").warnings} == {"ConfigUnknownKey"}
    assert ids(data) == found
    after = edit(data, "wslconfig", IDLE)
    assert values(after) == IDLE
    assert edit(None, "wslconfig", IDLE) == b"[general]\ninstanceIdleTimeout=-1\n\n[wsl2]\nvmIdleTimeout=-1\n"


@pytest.mark.parametrize(("there", "wanted"), [("C:/a/b", r"C:\a\b"), (r"C:\\a\\b", "C:/a/b"), (r"C:\\a/b", r"C:\a\b")])
def test_16_slashes_of_either_kind_name_the_same_path(converge: Converge, there: str, wanted: str) -> None:
    data = edit(f"[wsl2]\nswapFile={there}\n".encode(), "wslconfig", rules.wanted("wslconfig", {}))
    assert edit(data, "wslconfig", {"wsl2.swapFile": wanted}) == data
    got = converge(windows.config, of(wsl2={"swapFile": wanted}), seen=seen(data))
    assert (got.changed, got.sent) == (False, [])
    other = converge(windows.config, of(wsl2={"swapFile": r"C:\a\c"}), seen=seen(data))
    assert b"swapFile=C:\\\\a\\\\c\n" in base64.b64decode(other.sent[0]["files"][0]["data"])


@pytest.mark.parametrize("key", ["kernel", "swapFile"])
def test_17_only_ascii_survives(tmp_path: Path, key: str) -> None:
    path = "C:\\Users\\K\u00f6ln\\bzImage"
    (said,) = refusals(wsl2={key: path})
    assert "only ASCII survives in WSL's settings; use a name without other letters" in said
    with pytest.raises(ValueError, match="only ASCII survives"):
        edit(None, "wslconfig", {f"wsl2.{key}": "C:\\Users\\\u7528\u6237\\x"})
    file = tmp_path / ".wslconfig"
    assert command("edit", file, "--set", f"wsl2.{key}={path}").exit_code == 2
    assert not file.exists()
    there = f"[wsl2]\n{key}=C:\\\\Users\\\\K\u0151ln\\\\bzImage\n".encode()
    assert "\u0151" not in values(there)[f"wsl2.{key}"], "one byte of the character is left"
    assert ids(there)[0] == "non_ascii_value"


def test_17_a_file_that_holds_such_a_path_keeps_it() -> None:
    there = "[wsl2]\nkernel=C:\\\\Users\\\\K\u00f6ln\\\\bzImage\n".encode()
    assert edit(there, "wslconfig", {"wsl2.swap": 0}) == there + b"swap=0\n"
