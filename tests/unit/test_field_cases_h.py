"""Field cases, section H: how Windows and other machines reach the server. The rows: tests/data/field_cases.json."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.operations.fake_hosts import Converge, converge, settings
from tests.operations.test_op_release import host as canned
from tests.operations.test_op_windows import GIB, SEEN, of, pending, seen, told
from tests.operations.test_op_windows_side import ports, side, steps
from tests.unit.test_accept import LOADING, Host, host
from tests.unit.test_bootstrap_script import problems, tree
from tests.unit.test_powershell import WINDOWS, wrong
from wsllama.commands.bootstrap import script
from wsllama.domain import bootstrap, client, exposure, power
from wsllama.domain.exposure import Rule
from wsllama.domain.wslconfig import advise, edit, parse
from wsllama.operations import exposure as operation
from wsllama.operations import release, server, windows

__all__ = ["converge", "host", "told"]  # fixtures

MIRRORED = {"expose": "lan", "api_key": True}, {"wsl2": {"networkingMode": "mirrored"}}


def mirrored() -> Any:
    return settings(platform="wsl", server=MIRRORED[0], wsl=MIRRORED[1])


def words(converge: Converge, wanted: Any) -> list[str]:
    """llama-server's arguments in the release that a host with these settings gets."""
    got = converge(server.release, release.looks(wanted), lambda now: release.wanted(now, wanted), seen=canned())
    (made,) = [argument for argument in got.sent if argument["action"] == "make"]
    listed: list[str] = made["words"]
    return listed


@pytest.mark.parametrize("mode", [None, "nat", "consomme", "virtioproxy"])
def test_101_the_server_listens_on_loopback_where_windows_finds_it(converge: Converge, mode: str | None) -> None:
    """WSL's relay takes Windows' localhost to what listens there: no 0.0.0.0, and no rule; not even where others are let in."""
    for expose in ({}, {"expose": "lan", "api_key": True}):
        given = settings(platform="wsl", server=expose, wsl={"wsl2": {"networkingMode": mode} if mode else {}})
        assert given.server.host == "127.0.0.1"
    listed = words(converge, settings(server={"expose": "lan", "api_key": True}))
    assert listed[listed.index("--host") + 1] == "127.0.0.1"
    assert "0.0.0.0" not in listed
    done = converge(operation.administrator, settings(), False, seen={"windows": side(), "exposure": ports()})
    assert (done.sent, done.failed) == ([], False)
    assert client.base_url("127.0.0.1", 8080) == "http://127.0.0.1:8080"
    assert "through WSL's own relay" in exposure.WHY_NO_RULE


def test_103_a_mirrored_network_that_does_not_let_in_has_two_ways_out(converge: Converge) -> None:
    """What is told of such a .wslconfig, and that the other way works: in NAT the same setting forwards a port of Windows."""
    data = b"[wsl2]\nnetworkingMode=mirrored\n"
    (found,) = [f for f in advise(data, "wslconfig") if f.id == "mirrored"]
    assert "0.0.0.0 can't be reached all the same, run `wsl --update`, or take networkingMode=mirrored out" in found.fix
    assert advise(edit(data, "wslconfig", {"wsl2.networkingMode": "nat"}), "wslconfig") == []
    given = mirrored()
    assert (given.server.host, exposure.wanted("lan", "mirrored", 8080, 18080)) == ("0.0.0.0", [Rule("hyperv", 8080)])
    assert settings(platform="wsl", server=MIRRORED[0], wsl={"wsl2": {"networkingMode": "nat"}}).server.host == "127.0.0.1"
    assert exposure.wanted("lan", "nat", 8080, 18080) == [Rule("portproxy", 18080, 8080), Rule("firewall", 18080)]


BIND = (
    "0.00.104.219 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080\n"
    "0.00.104.313 E srv  llama_server: exiting due to HTTP server error\n"
)


@pytest.fixture
def free() -> Iterator[int]:
    """A port that nobody listens on; it is bound, so that nobody else takes it."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        yield s.getsockname()[1]


def ended(host: Host, port: int, log: str, wsl: bool = True) -> str:
    """What is said of a server that logged this and ended."""
    host.log(log)
    host.health = [LOADING]
    host.state(ActiveState="failed", Result="exit-code", ExecMainStatus="1")
    (host.folder / "WSL").mkdir(exist_ok=True)
    sockets = str(host.folder / ("WSL" if wsl else "none"))
    found = host.accept(url=f"http://127.0.0.1:{port}", sockets=sockets)
    assert (found["ok"], found["log"]) == (False, [line for line in log.splitlines() if " E " in line])
    said: str = found["error"]
    assert said.startswith("llama-server.service ended while it was starting (exit-code, status 1)")
    assert "\n" not in said
    return said.partition("status 1)")[2]


def test_104_a_port_that_nobody_here_has_is_windows(host: Host, free: int) -> None:
    said = ended(host, free, BIND)
    assert f"nobody in this distro has port {free}, so Windows or another distro has, which mirrored networking shares" in said
    assert f"run `netstat -ano | findstr :{free}` in Windows" in said
    assert "or set server.port, or wsl.wsl2.networkingMode to nat" in said
    assert "nobody in this distro" in ended(host, free, "0.00 E x: bind: Address already in use\n")


def test_104_one_that_somebody_here_has_is_not(host: Host) -> None:
    """The test's own server listens on it."""
    assert ended(host, host.port, BIND).endswith(f"; another program in this distro has port {host.port}: `ss -ltnp` names it")


def test_104_another_failure_is_not_about_ports(host: Host, free: int) -> None:
    later = "".join(f"0.00.{n} E srv: CUDA error: out of memory\n" for n in range(4))
    assert "in this distro" not in ended(host, free, later)
    assert "in this distro" not in ended(host, free, BIND + later), "what ended an earlier start does not count"
    assert "in this distro" not in ended(host, free, BIND, wsl=False)


@pytest.mark.parametrize("wanted", ["virtioproxy", "consomme", "VirtioProxy"])
@pytest.mark.parametrize("shown", ["virtioproxy", "consomme"])
def test_106_a_mode_that_was_renamed_is_the_same(converge: Converge, told: list[str], wanted: str, shown: str) -> None:
    data = edit(f"[wsl2]\nnetworkingMode={wanted}\n".encode(), "wslconfig", windows.wanted(of(), "wslconfig"))
    for name in ("virtioproxy", "consomme"):
        given = of(wsl2={"networkingMode": name})
        now = seen(data, seen={**SEEN, "networking_mode": shown})
        got = converge(windows.config, given, seen=now)
        assert (got.changed, got.sent) == (False, [])
        got = converge(windows.in_effect, given, seen=now)
        assert (got.failed, pending(), told) == (False, [], [])
        assert exposure.wanted("lan", name, 8080, 18080) == exposure.wanted("lan", "nat", 8080, 18080)
    assert parse(data, "wslconfig").values["wsl2.networkingMode"] == "Consomme"


def test_106_another_mode_is_not(converge: Converge, told: list[str]) -> None:
    data = edit(b"[wsl2]\nnetworkingMode=virtioproxy\n", "wslconfig", windows.wanted(of(), "wslconfig"))
    now = seen(data, seen={**SEEN, "networking_mode": "nat", "memory": 16 * GIB})
    converge(windows.in_effect, of(wsl2={"networkingMode": "virtioproxy"}), seen=now)
    assert ["wsl2.networkingMode (wanted consomme, seen nat)" in line for line in told] == [True]


CURLY = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u2013\u2014"


def test_107_all_powershell_has_straight_quotes_and_is_read() -> None:
    texts = {path.name: path.read_bytes() for path in WINDOWS.iterdir() if path.suffix in (".ps1", ".cmd")}
    texts["bootstrap.ps1"] = script(bootstrap.Settings(location=f"C:\\{CURLY}", git_url="https://h/it's")).encode()
    rules = [Rule("portproxy", 18080, 8080), Rule("firewall", 18080), Rule("hyperv", 8080)]
    texts.update({f"{rule.kind} {on}": exposure.command(rule, on).encode() for rule in rules for on in (True, False)})
    assert [name for name, data in texts.items() if not data.isascii()] == []
    scripts = [data for name, data in texts.items() if name.endswith(".ps1") or "hyperv" in name]
    assert [wrong(data) for data in scripts] == [[]] * 4
    assert problems(tree(texts["bootstrap.ps1"].decode())) == set()


def test_107_rules_are_for_ports_and_not_for_programs() -> None:
    """A rule for wsl.exe or a program in a distro lets nothing in: Windows' firewall doesn't see who listens there."""
    for rule, port in ((Rule("firewall", 18080), "localport=18080"), (Rule("hyperv", 8080), "-LocalPorts 8080")):
        command = exposure.command(rule, True)
        assert port in command
        assert not re.search(r"program|service|\.exe|-Package", command, re.I)
    elevated = (WINDOWS / "elevated.ps1").read_text()
    assert "-LocalPorts $step.port" in elevated
    assert not re.search(r"\s-(Program|Package|Service)\b", elevated)
    assert exposure.step(Rule("firewall", 18080), True)["kind"] == "netsh", "a program, which every Windows has"


def test_107_a_cmdlet_that_is_missing_is_told_with_the_rule(converge: Converge) -> None:
    why = "The term 'Get-NetFirewallHyperVRule' is not recognized as the name of a cmdlet"
    did = [{"id": "hyperv wsllama-lan-8080", "state": "failed", "why": why}]
    answer = {"state": "done", "why": "", "steps": did, "command": None, "changed": False}
    now = {"windows": side(seen={"networking_mode": "mirrored"}), "exposure": ports()}
    done = converge(operation.administrator, mirrored(), True, seen=now, answers={"# windows_side": json.dumps(answer)})
    assert done.failed
    what = "Hyper-V firewall rule wsllama-lan-8080 for TCP port 8080 from the local subnet added"
    assert f"{what}: failed on Windows: {why}" in done.log


def test_109_what_kills_the_relay_is_found_with_its_command() -> None:
    registry = "\r\nHKEY_LOCAL_MACHINE\\SYSTEM\\...\\Power\r\n    HiberbootEnabled    REG_DWORD    0x1\r\n"
    (fast,) = power.findings(None, registry, None)
    assert (fast.id, fast.admin) == ("fast-startup", True)
    assert "after which WSL's network may be dead" in fast.says
    assert fast.command == f'reg add "{power.FAST_STARTUP}" /v HiberbootEnabled /t REG_DWORD /d 0 /f'
    assert power.findings(None, registry.replace("0x1", "0x0"), 0.1) == []
    sleeps = f"Power Setting GUID: {power.STANDBY}\n  Current AC: 0x00000708\n  Current DC: 0x00000384\n"
    (sleep, clock) = power.findings(sleeps, None, -900.0, "Ubuntu")
    assert (sleep.command, sleep.says.split(" without")[0]) == (
        "powercfg /change standby-timeout-ac 0",
        "Windows goes to sleep after 30 minutes",
    )
    assert "behind Windows', as after a sleep" in clock.says


def test_110_in_mirrored_mode_one_port_is_opened_for_the_local_subnet(converge: Converge) -> None:
    did = [{"id": "hyperv wsllama-lan-8080", "state": "changed", "why": ""}]
    answer = {"state": "done", "why": "", "steps": did, "command": None, "changed": True}
    now = {"windows": side(seen={"networking_mode": "mirrored"}), "exposure": ports()}
    done = converge(operation.administrator, mirrored(), True, seen=now, answers={"# windows_side": json.dumps(answer)})
    assert steps(done) == [("hyperv wsllama-lan-8080", True)]
    assert done.sent[0]["steps"][0]["port"] == 8080
    command = exposure.command(Rule("hyperv", 8080), True)
    assert "-Direction Inbound -VMCreatorId '{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}' -Protocol TCP" in command
    assert command.endswith("-LocalPorts 8080 -RemoteAddresses LocalSubnet -Action Allow")
    lines = (WINDOWS / "elevated.ps1").read_text().replace("`\n", "").splitlines()
    (made,) = [re.sub(r" +", " ", line).strip() for line in lines if "New-NetFirewallHyperVRule" in line]
    assert made.endswith("-VMCreatorId $vm -Protocol TCP -LocalPorts $step.port -RemoteAddresses LocalSubnet -Action Allow")
    assert "DefaultInboundAction" not in "".join(lines), "the firewall's own default stays"
