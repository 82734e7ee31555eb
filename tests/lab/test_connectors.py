"""Deploys, awkward bytes and refusals through @wslssh and @wsl, in front of the lab's Windows machine."""

import hashlib
import io
import os
import pprint
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import Lab
from lab.windows import WindowsMachine
from tests.lab.deployed import UNIT, Deployed, Run, answers
from tests.lab.test_windows import windows_that_restarts
from tests.unit.test_connectors import AWKWARD, refusal, run
from tests.unit.test_transfer import connected
from wsllama.connectors.shell import INSTALLED

DISTRO = "Ubuntu-24.04"
SIZE = 64 * 1024**2
CONNECTORS = ("wslssh", "wsl")
Target = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def machine(deployed: Deployed) -> Iterator[WindowsMachine]:
    """A host that knows nothing of us, behind a Windows machine."""
    host = deployed.lab.hosts[1]
    host.reset()
    with WindowsMachine(host, distro=DISTRO) as found:
        yield found


def target(machine: WindowsMachine, connector: str, folder: Path, distro: str = DISTRO, **more: Any) -> Target:
    """A host of an inventory: name and data."""
    if connector == "wsl":
        return f"@wsl/{distro}", {"wsl_exe": str(machine.controller_wsl_exe(folder)), **more}
    known = folder / "windows_known_hosts"  # pyinfra reads a file of that name once, and each machine has a key of its own
    known.write_text(machine.known_hosts.read_text())
    return f"@wslssh/{machine.address}:{distro}", {**machine.connection_data(), "ssh_known_hosts_file": str(known), **more}


def deploy(deployed: Deployed, one: Target, folder: Path) -> Run:
    name, data = one
    inventory = folder / "inventory"
    inventory.write_text(f"lab = {pprint.pformat([(name, {**deployed.base, **data})])}\n")
    return deployed.pyinfra(inventory)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_deploy_and_then_nothing(deployed: Deployed, machine: WindowsMachine, connector: str, tmp_path: Path) -> None:
    """The first brings a machine up that has nothing but the packages; the other what was taken away."""
    host, one = machine.host, target(machine, connector, tmp_path)
    if (host.root / "opt/wsllama").exists():
        host.run(f"systemctl stop {UNIT}; rm -rf /opt/wsllama /etc/wsllama /var/lib/wsllama /etc/systemd/system/llama-server.*")
    first = deploy(deployed, one, tmp_path).green()
    assert {"receive", "model"} & set(first.changed()), first.changed()
    assert answers(host)
    deploy(deployed, one, tmp_path).unchanged()
    used = {tuple(call.argv[1:]) for call in machine.calls("wsl.exe")}
    assert used == {("-d", DISTRO, "-u", "root", "--exec", "/bin/sh")}
    machine.forget()


@pytest.mark.parametrize("connector", CONNECTORS)
def test_awkward_payloads(machine: WindowsMachine, connector: str, tmp_path: Path) -> None:
    text = f'{AWKWARD}\r\n%USERPROFILE% ^^ ""\n\\\\server\\share\\\n'
    source, back = tmp_path / "source.bin", tmp_path / "back.bin"
    source.write_bytes(os.urandom(SIZE // 2) + bytes(range(256)) * (SIZE // 512))
    expected = hashlib.sha256(source.read_bytes()).hexdigest()
    with connected(*target(machine, connector, tmp_path)) as host:
        assert host.put_file(io.StringIO(text), "/root/it's $HOME %PATH%.txt") is True
        assert run(host, 'cat "/root/it\'s \\$HOME %PATH%.txt"; printf "%s" "$TEXT"', _env={"TEXT": text})[
            1
        ] == f"{text}{text}".rstrip("\n")
        assert run(host, "cat", _stdin=text)[1] == text.rstrip("\n")
        assert host.put_file(str(source), "/root/big.bin") is True
        assert machine.host.run("sha256sum /root/big.bin").stdout.split()[0] == expected
        assert host.get_file("/root/big.bin", str(back)) is True
    assert hashlib.sha256(back.read_bytes()).hexdigest() == expected
    machine.host.run("rm /root/big.bin /root/it*.txt")


@pytest.mark.parametrize("connector", CONNECTORS)
def test_no_such_distro(machine: WindowsMachine, connector: str, tmp_path: Path) -> None:
    sentence = refusal(*target(machine, connector, tmp_path, "Debian"))
    assert sentence.startswith("there is no distro Debian for the user of this session")


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_run_from_outside_restarts_wsl_and_goes_on(
    deployed: Deployed, machine: WindowsMachine, connector: str, tmp_path: Path
) -> None:
    wsl = {"restart": True, "keep_alive": "off", "wsl2": {"memory": "24GB" if connector == "wsl" else "20GB"}}
    name, data = target(machine, connector, tmp_path)
    one = name, {**data, **deployed.base, "platform": "wsl", "llama_cpp": {"backend": "cpu"}, "wsl": wsl}
    machine.forget()
    with windows_that_restarts(machine):
        done = deploy(deployed, one, tmp_path)
    assert (done.returncode, done.results["pending"]) == (0, {}), done.stderr
    assert f"it ends {DISTRO}" in done.stderr
    assert "accepted" in done.stderr, "the stages behind it ran"
    assert deploy(deployed, one, tmp_path).unchanged().results["pending"] == {}


def test_the_key_of_the_distro_is_not_that_of_windows(machine: WindowsMachine, tmp_path: Path) -> None:
    key = machine.host.known_hosts.read_text().split()[1:3]
    (tmp_path / "known").write_text(f"[{machine.address}]:{machine.ssh_port} {' '.join(key)}\n")
    assert "shows another host key" in refusal(*target(machine, "wslssh", tmp_path, ssh_known_hosts_file=str(tmp_path / "known")))


def test_a_login_that_is_refused(machine: WindowsMachine, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    assert "refused the login" in refusal(*target(machine, "wslssh", tmp_path, ssh_key=str(tmp_path / "key")))


SYSTEM32 = r"C:\Windows\System32\wsl.exe"


@pytest.mark.parametrize(
    ("wsl", "language", "exe", "said"),
    [
        ("stopped", "zh", None, "WSL is stopped, its service is off: run `sc.exe config WSLService start= demand`"),
        ("missing", "de", SYSTEM32, "WSL is not installed there: run `wsl.exe --install --no-distribution`"),
        ("missing", "de", None, f"{INSTALLED} did not start there (Das System kann den angegebenen Pfad nicht finden.)"),
        ("store", "de", SYSTEM32, f"{SYSTEM32} belongs to the Store, which does not start programs without a desktop"),
        ("store", "zh", SYSTEM32, f"{SYSTEM32} did not start there ("),
    ],
    ids=["stopped", "missing", "elsewhere", "store", "store in an unknown language"],
)  # fmt: skip
def test_wsl_that_does_not_work(lab: Lab, wsl: Any, language: Any, exe: str | None, said: str, tmp_path: Path) -> None:
    with WindowsMachine(lab.hosts[0], distro=DISTRO, wsl=wsl, language=language) as machine:
        sentence = refusal(*target(machine, "wslssh", tmp_path, **({"wsl_exe": exe} if exe else {})))
    assert sentence.startswith(said)
    if wsl == "store":
        assert sentence.endswith(f"set wsl_exe to {INSTALLED}")
