"""Field cases, section I: the root file system, its import, and SSH to Windows. The rows: tests/data/field_cases.json.

bootstrap.ps1 is read by its syntax tree, as in test_bootstrap_script.py: no PowerShell can be had here.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
from tree_sitter import Node
from typer.testing import CliRunner

from tests.unit.test_bootstrap import carried
from tests.unit.test_bootstrap_script import default, function_of, of_type, text
from tests.unit.test_connectors import behind_ssh, refusal, run, server, ssh_data
from tests.unit.test_transfer import Sshd, connected, needs_sshd
from wsllama import cli
from wsllama.commands.bootstrap import script
from wsllama.connectors import shell
from wsllama.domain.bootstrap import IMAGES, Settings

__all__ = ["behind_ssh", "server"]  # fixtures


def branch(function: str, condition: str) -> str:
    """What bootstrap.ps1 does in a function when this holds, on one line."""
    found = [n for n in of_type(default(), "if_statement") if function_of(n) == function and condition in _condition(n)]
    (statement,) = found
    body = next(child for child in statement.children if child.type == "statement_block")
    return re.sub(r"\s+", " ", text(body))


def _condition(node: Node) -> str:
    condition = node.child_by_field_name("condition")
    assert condition is not None
    return text(condition)


def order(function: str) -> list[str]:
    """Names of what a function calls, one after the other."""
    return [text(n).split()[0] for n in of_type(default(), "command") if function_of(n) == function]


@pytest.mark.parametrize("distro", ["20.04", "18.04", "focal", "24.04.4", "https://h/wsl/jammy/current/ubuntu.rootfs.tar.gz", ""])
def test_112_another_root_file_system_than_those_of_the_list_is_refused(tmp_path: Path, distro: str) -> None:
    with pytest.raises(ValueError, match=r"is none of 22\.04, 24\.04, 26\.04"):
        Settings(distro=distro)
    got = CliRunner().invoke(cli.app, ["bootstrap", "--out", str(tmp_path / "x.ps1"), "--distro", distro])
    assert (got.exit_code, list(tmp_path.iterdir())) == (2, [])


@pytest.mark.parametrize("distro", list(IMAGES))
def test_112_addresses_are_those_of_the_list_with_their_sums(distro: str) -> None:
    """No tarball of the cloud images, whose addresses went away: a .wsl of its release, and one address in the whole script."""
    image = carried(script(Settings(distro=distro)))["image"]
    assert isinstance(image, dict)
    assert image == IMAGES[distro]._asdict()
    assert re.fullmatch(rf"https://[^/]+/[a-z0-9.]+/ubuntu-{re.escape(distro)}(\.\d+)?-wsl-amd64\.wsl", image["url"])
    assert re.fullmatch("[0-9a-f]{64}", image["sha256"])
    assert re.findall(r"https?://\S+?\.(?:wsl|gz|xz|tar)\b", script(Settings(distro=distro))) == [image["url"]]
    assert "$sum -ne $Settings.image.sha256" in script(Settings(distro=distro))


def test_113_an_address_that_is_gone_is_told_clearly() -> None:
    done = branch("Receive-File", "$status -eq 404")
    (said,) = re.findall(r"throw \('(.*)' -f \$Url\)", done)
    assert said == "{0} is gone, as a point release is when the next one is out: take a newer wsllama, which names that"
    (status,) = [
        n for n in of_type(default(), "if_statement") if function_of(n) == "Receive-File" and "$status -eq 404" in _condition(n)
    ]
    rest = text(status.parent) if status.parent else ""
    assert rest.index("$status -eq 404") < rest.index("can not be downloaded"), "which says to try again, and that would not help"
    assert "$status = [int]$failure.Response.StatusCode" in script(Settings())


def test_113_what_was_there_before_stays_usable() -> None:
    """An image that was downloaded is taken without asking for its address again; one with another sum is deleted."""
    assert "return $image" in branch("Get-Image", "Test-Path -LiteralPath $image")
    wrong_sum = branch("Get-Image", "$sum -ne $Settings.image.sha256")
    assert wrong_sum.index("Remove-Item -LiteralPath $part") < wrong_sum.index("throw")
    names = order("Get-Image")
    assert names.index("Test-Path") < names.index("Receive-File") < names.index("Get-FileHash") < names.index("Move-Item")


@contextlib.contextmanager
def instead(server: Sshd, login: str) -> Iterator[None]:
    """The server runs this whatever it is asked."""
    keys = server.key.with_name("authorized_keys")
    before = keys.read_text()
    keys.write_text(f'command="{login}" {server.key.with_suffix(".pub").read_text()}')
    try:
        yield
    finally:
        keys.write_text(before)


@needs_sshd
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            "The file cannot be accessed by the system.\r\n",
            r"belongs to the Store, which does not start programs without a desktop (session 0): set wsl_exe to "
            r"C:\Program Files\WSL\wsl.exe",
        ),
        (
            "Zugriff verweigert\r\nFehlercode: Wsl/Service/E_ACCESSDENIED\r\n",
            "Windows refuses WSL to this user: distros belong to",
        ),
        ("x\r\nError code: Wsl/0x80070005\r\n", "Windows refuses WSL to this user: distros belong to"),
    ],
)
def test_115_what_session_0_says_is_told(server: Sshd, tmp_path: Path, answer: str, said: str) -> None:
    (tmp_path / "said").write_bytes(answer.encode("utf-16-le"))
    with instead(server, f"cat {tmp_path}/said; exit 1"):
        assert said in refusal("@wslssh/127.0.0.1:Ubuntu", ssh_data(server, tmp_path))


@needs_sshd
def test_115_the_installed_program_is_what_is_started(behind_ssh: Any) -> None:
    """This server only takes the command line with that path. Commands begin in root's home, not in a folder of Windows."""
    assert behind_ssh.connector.exe() == shell.INSTALLED == r"C:\Program Files\WSL\wsl.exe"
    assert run(behind_ssh, "pwd") == (True, os.path.expanduser("~"), "")


@needs_sshd
def test_115_a_jump_host_may_stand_between(server: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    one = f"Hostname 127.0.0.1\nPort {server.port}\nUser root\nIdentityFile {server.key}\nStrictHostKeyChecking no\n"
    config.write_text(f"Host jump\n{one}Host windows\n{one}ProxyJump jump\n")
    data = {**ssh_data(server, tmp_path), "ssh_config_file": str(config)}
    del data["ssh_port"]
    with connected("@wslssh/windows:Ubuntu", data) as host:
        assert isinstance(host.connector.client.get_transport().sock, paramiko.Channel), "through the one before it"
        assert run(host, 'echo "a b"') == (True, "a b", "")


def test_116_a_compressed_folder_is_refused_before_anything_is_done() -> None:
    done = branch("Assert-Folder", "$attributes -band")
    (condition,) = [_condition(n) for n in of_type(default(), "if_statement") if "$attributes -band" in _condition(n)]
    assert condition == "$attributes -band ([IO.FileAttributes]::Compressed -bor [IO.FileAttributes]::Encrypted)"
    assert "'{0} is compressed or encrypted, where no virtual disk works (0xc03a001a): turn that off in its properties'" in done
    assert "$attributes = (Get-Item -LiteralPath $folder -Force).Attributes" in script(Settings())
    steps = order("Install-All")
    before = steps[: steps.index("Assert-Folder")]
    assert all(name.startswith("Assert-") for name in before), "checks, which change nothing"
    assert steps.index("Assert-Folder") < steps.index("Import-Distro")


def test_116_the_folder_above_a_new_one_counts() -> None:
    """A new folder takes its attributes over."""
    (loop,) = [n for n in of_type(default(), "while_statement") if function_of(n) == "Assert-Folder"]
    assert "-not (Test-Path -LiteralPath $folder)" in _condition(loop)
    assert "$folder = Split-Path -Parent $folder" in text(loop)


def test_116_what_wsl_says_of_it_is_told_too() -> None:
    done = branch("Import-Distro", "c03a001a")
    assert "'{0} is compressed or encrypted by Windows (0xc03a001a): turn that off in its properties' -f $folder" in done
    body = next(text(n) for n in of_type(default(), "function_statement") if text(n).startswith("function Import-Distro"))
    assert body.index("c03a001a") < body.index("can not import"), "before the general sentence"
