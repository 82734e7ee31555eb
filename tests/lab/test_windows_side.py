"""The Windows side of a deploy: started at logon, open to the LAN on wish, an administrator asked once, and all taken back.

Windows is played by stand-ins (docs/lab.md), which write down every call: what was not run counts as much as what was.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.lab import Host
from lab.standins.machine import FOLDER
from lab.windows import WslMachine
from tests.lab.deployed import Deployed, Run, wsllama
from tests.lab.elevated_standin import PLAY
from wsllama.domain.keep_alive import lint_task

NAME = "wsllama-keep-alive-Ubuntu-24.04"
STATE = "/var/lib/wsllama/windows"
LAN: dict[str, Any] = {"expose": "lan", "api_key": True}
# What of WSL's own settings would make a run pending is set on Windows already, so that runs here end with 0.
WSLCONFIG = b"# mine\r\n[general]\r\ninstanceIdleTimeout=-1\r\n[wsl2]\r\nvmIdleTimeout=-1\r\n" + (
    b"[experimental]\r\nautoMemoryReclaim=disabled\r\n"
)
CONFIRM = 'powershell -NoProfile -ExecutionPolicy Bypass -File "C:\\Users\\Ada\\AppData\\Local\\wsllama\\elevated.ps1"'


class Machine(WslMachine):
    """A machine whose .wslconfig holds what is wanted, and whose PowerShell knows our one script."""

    def __enter__(self) -> Machine:
        super().__enter__()
        return self

    def _install(self) -> None:
        super()._install()
        self.wslconfig.write_bytes(WSLCONFIG)
        os.utime(self.wslconfig, (0, 0))  # before WSL was started
        with self.path(f"{FOLDER}/lab/standins/powershell.py").open("a") as f:
            f.write(PLAY)

    @property
    def wslconfig(self) -> Path:
        return self.path(f"{self.profile}/.wslconfig")

    def ran(self) -> set[str]:
        """Programs that were started, without the plan's question for Windows' memory, which a host is asked once."""
        return {call.program for call in self.calls() if not call.argv[-1].endswith(").TotalPhysicalMemory")}


@pytest.fixture
def host(deployed: Deployed) -> Iterator[Host]:
    """A lab host without a trace of an earlier test's Windows; wsl.conf is as wanted."""
    chosen = deployed.lab.hosts[0]
    conf = chosen.root / "etc/wsl.conf"
    conf.write_text("[boot]\nsystemd=true\n[interop]\nenabled=true\n")
    yield chosen
    chosen.run(f"rm -rf {STATE} /etc/wsl.conf /etc/wsl.conf.*.bak")


def run(deployed: Deployed, host: Host, server: dict[str, Any] | None = None, lean: bool = False, **wsl: Any) -> Run:
    """A deploy of a WSL host, that must end well."""
    data = {"platform": "wsl", "llama_cpp": {"backend": "cpu"}, "wsl": wsl, "server": server or {}, "distro": {"lean": lean}}
    done = deployed.run({host.name: data}, hosts=[host])
    assert done.returncode == 0, done.stderr
    return done.green()


def inventory(deployed: Deployed, host: Host, server: dict[str, Any] | None = None) -> str:
    data = {"platform": "wsl", "llama_cpp": {"backend": "cpu"}, "server": server or {}}
    return str(deployed.inventory({host.name: data}, [host], "for-commands"))


def test_a_task_is_registered_checked_put_right_and_taken_back(deployed: Deployed, host: Host) -> None:
    with Machine(host) as machine:
        done = run(deployed, host)
        assert f"the task {NAME} starts Ubuntu-24.04 when its user logs on" in done.stderr
        assert "after 30 minutes without input" in done.stderr, "what ends the server anyway is said"
        task = machine.state()["tasks"][NAME]
        assert lint_task(task) == []
        assert "<UserId>LABPC\\Ada</UserId>" in task.decode("utf-16")
        assert machine.state()["started_tasks"] == [NAME]
        assert not any(call.elevated for call in machine.calls())
        assert machine.ran() & {"powershell.exe", "netsh.exe"} == set()
        assert not any("--shutdown" in call.argv for call in machine.calls())

        machine.forget()
        run(deployed, host).unchanged()
        assert [call.argv for call in machine.calls()] == [["schtasks.exe", "/Query", "/TN", NAME, "/XML"]]

        with machine.change() as state:
            text = task.decode("utf-16").replace("PT0S", "PT72H")
            state["tasks"][NAME] = base64.b64encode(b"\xff\xfe" + text.encode("utf-16-le")).decode()
        drifts_on_windows(deployed, host, machine)
        done = run(deployed, host)
        assert "it is ended after PT72H" in done.stderr
        assert lint_task(machine.state()["tasks"][NAME]) == []

        shown = json.loads(wsllama("windows", inventory(deployed, host), "--json").stdout)["hosts"][host.name]
        assert shown["keep_alive"] == {"mechanism": "task", "idle": True, "problems": []}
        assert shown["distros"] == [{"name": "Ubuntu-24.04", "running": True}]
        assert {f["id"] for f in shown["power"]} == {"standby", "lid", "fast-startup"}
        assert (shown["profile"], shown["pending"]) == ("/mnt/c/Users/Ada", [])

        run(deployed, host, keep_alive="off")
        assert machine.state()["tasks"] == {}
        run(deployed, host, keep_alive="off").unchanged()


def drifts_on_windows(deployed: Deployed, host: Host, machine: Machine) -> None:
    """The task was changed: that is found, and what somebody writes into both files, which is taken back here."""
    conf, its = host.root / "etc/wsl.conf", (host.root / "etc/wsl.conf").read_bytes()
    conf.write_bytes(its.replace(b"systemd=true", b"systemd=false"))
    machine.wslconfig.write_bytes(WSLCONFIG.replace(b"vmIdleTimeout=-1", b"vmIdleTimeout=1"))
    drifted = wsllama("drift", inventory(deployed, host), "--json")
    conf.write_bytes(its)
    machine.wslconfig.write_bytes(WSLCONFIG)
    os.utime(machine.wslconfig, (0, 0))
    assert drifted.returncode == 3, drifted.stderr
    found = {(f["kind"], f["what"], f["is"], f["wins"]) for f in json.loads(drifted.stdout)["hosts"][host.name]}
    assert found >= {
        ("windows", NAME, "it is ended after PT72H: ExecutionTimeLimit has to be PT0S", "deploy"),
        ("windows", "/etc/wsl.conf", "other boot.systemd", "deploy"),
        ("windows", f"{machine.profile}/.wslconfig", "other wsl2.vmIdleTimeout", "deploy"),
    }


def test_where_a_task_is_denied_the_startup_folder_holds_it(deployed: Deployed, host: Host) -> None:
    with Machine(host, schtasks="denied", language="de", user="Zoë", profiles=("Zoë",)) as machine:
        done = run(deployed, host)
        assert f"{NAME}.cmd in the Startup folder starts Ubuntu-24.04" in done.stderr
        assert "Zugriff verweigert" in done.stderr
        assert machine.state()["startup"] == [f"{NAME}.cmd"]
        machine.forget()
        run(deployed, host).unchanged()
        assert machine.ran() == {"schtasks.exe"}, "it isn't tried again, and no administrator is asked"


def test_a_task_that_is_asked_for_is_registered_by_an_administrator(deployed: Deployed, host: Host) -> None:
    with Machine(host, schtasks="denied") as machine:
        done = run(deployed, host, keep_alive="task")
        assert f"task {NAME} registered, which Windows refused" in done.stderr
        assert lint_task(machine.state()["tasks"][NAME]) == []
        assert [call.elevated for call in machine.calls("powershell.exe")] == [False, True], "one question"
        run(deployed, host, keep_alive="task").unchanged()


def test_without_interop_a_file_and_its_one_command_are_told_each_time(deployed: Deployed, host: Host) -> None:
    with Machine(host, interop="off") as machine:
        for done in (run(deployed, host, distro="Ubuntu-24.04") for _ in range(2)):
            assert f'copy /Y "\\\\wsl.localhost\\Ubuntu-24.04\\var\\lib\\wsllama\\windows\\{NAME}.cmd"' in done.stderr
        done.unchanged()
        assert "wslg.exe" in (host.root / STATE.lstrip("/") / f"{NAME}.cmd").read_text()
        assert machine.calls() == []


NAT_RULES = (
    [{"listenaddress": "0.0.0.0", "listenport": "18080", "connectaddress": "127.0.0.1", "connectport": "8080"}],
    [("wsllama-lan-18080", "18080", "LocalSubnet", "allow")],
)


def rules(machine: Machine) -> Any:
    """Port proxies, and of each firewall rule what counts."""
    state = machine.state()
    return state["portproxy"], [(r["name"], r["localport"], r["remoteip"], r["action"]) for r in state["firewall"]]


def test_behind_nat_the_lan_gets_a_port_and_loses_it_with_the_setting(deployed: Deployed, host: Host) -> None:
    theirs = {"listenaddress": "0.0.0.0", "listenport": "9000", "connectaddress": "10.0.0.5", "connectport": "90"}
    with Machine(host, language="de") as machine:
        with machine.change() as state:
            state["portproxy"].append(theirs)
        run(deployed, host, LAN)
        proxies, firewall = rules(machine)
        assert (proxies, firewall) == ([theirs, *NAT_RULES[0]], NAT_RULES[1])
        (script,) = {call.files["elevated.ps1"] for call in machine.calls("powershell.exe")}
        assert script.isascii()
        assert [call.elevated for call in machine.calls("powershell.exe")] == [False, True], "one question for all of it"

        machine.forget()
        run(deployed, host, LAN).unchanged()
        assert "powershell.exe" not in machine.ran()
        assert not any({"add", "delete", "set"} & set(call.argv) for call in machine.calls("netsh.exe"))

        with machine.change() as state:
            state["firewall"].clear()
        run(deployed, host, LAN)
        assert rules(machine)[1] == NAT_RULES[1], "what somebody took away is there again"

        run(deployed, host)
        assert rules(machine) == ([theirs], [])
        machine.forget()
        run(deployed, host).unchanged()
        assert machine.ran() == {"schtasks.exe"}, "without rules nothing is asked about them"


def test_in_mirrored_mode_the_lan_gets_a_rule_of_hyper_v_and_the_server_listens(deployed: Deployed, host: Host) -> None:
    wsl: dict[str, Any] = {"wsl2": {"networkingMode": "mirrored"}}
    with Machine(host, networking_mode="mirrored") as machine:
        run(deployed, host, LAN, **wsl)
        assert machine.state()["hyperv_rules"] == [
            {"Name": "wsllama-lan-8080", "LocalPorts": 8080, "RemoteAddresses": "LocalSubnet"}
        ]
        assert rules(machine) == ([], [])
        assert "0.0.0.0:8080" in host.run(["ss", "-Hltn", "sport = :8080"]).stdout
        machine.forget()
        run(deployed, host, LAN, **wsl).unchanged()
        assert "powershell.exe" not in machine.ran()
        run(deployed, host, **wsl)
        assert machine.state()["hyperv_rules"] == []
        assert "127.0.0.1:8080" in host.run(["ss", "-Hltn", "sport = :8080"]).stdout


@pytest.mark.parametrize("meets", ["cancelled", pytest.param("nobody", marks=pytest.mark.full)])
def test_who_does_not_confirm_is_told_the_one_command(deployed: Deployed, host: Host, meets: Any) -> None:
    with Machine(host, elevated=meets) as machine:
        for _ in range(2):
            done = run(deployed, host, LAN)
            assert f"not done, an administrator is needed ({meets}: " in done.stderr
            assert CONFIRM in done.stderr
        done.unchanged()
        assert rules(machine) == ([], [])

        machine.path(f"{FOLDER}/config.json").write_text(
            machine.path(f"{FOLDER}/config.json").read_text().replace(f'"elevated": "{meets}"', '"elevated": "yes"')
        )
        by_hand = [
            f"{machine.drive}/Windows/System32/WindowsPowerShell/v1.0/powershell.exe",
            *shlex.split(CONFIRM, posix=False)[1:],
        ]
        host.run([word.strip('"') for word in by_hand])
        assert rules(machine) == NAT_RULES, "by hand"
        machine.forget()
        assert "an administrator is needed" not in run(deployed, host, LAN).stderr
        assert "powershell.exe" not in machine.ran()
        run(deployed, host, LAN).unchanged()


def test_a_port_that_windows_forwards_elsewhere_is_refused(deployed: Deployed, host: Host) -> None:
    with Machine(host) as machine:
        theirs = {"listenaddress": "0.0.0.0", "listenport": "18080", "connectaddress": "10.0.0.5", "connectport": "90"}
        with machine.change() as state:
            state["portproxy"].append(theirs)
        data = {"platform": "wsl", "llama_cpp": {"backend": "cpu"}, "server": LAN}
        done = deployed.run({host.name: data}, hosts=[host])
        assert done.returncode == 1
        assert "Windows forwards its port 18080 to 10.0.0.5:90 already: set server.lan_port" in done.stderr
        assert rules(machine) == ([theirs], [])
        assert "powershell.exe" not in machine.ran()


@contextmanager
def apt_timers(host: Host) -> Iterator[list[str]]:
    """apt's timers as a distro has them, the first one running; the lab masks them."""
    timers = ["apt-daily.timer", "apt-daily-upgrade.timer"]
    host.run(["systemctl", "unmask", *timers])
    host.run(["systemctl", "start", timers[0]])
    yield timers
    host.run(["systemctl", "mask", "--now", *timers])


def test_a_lean_distro_masks_what_it_has_and_gives_it_back(deployed: Deployed, host: Host) -> None:
    with Machine(host), apt_timers(host) as timers:

        def states() -> list[str]:
            return host.run(["systemctl", "show", "--value", "-p", "LoadState", *timers]).stdout.split()

        done = run(deployed, host, lean=True)
        assert "memory available before " in done.stderr
        assert states() == ["masked", "masked"]
        run(deployed, host, lean=True).unchanged()
        run(deployed, host)
        assert states() == ["loaded", "loaded"]
        active = host.run(["systemctl", "is-active", *timers], check=False).stdout.split()
        assert active == ["active", "inactive"], "as they were"
        run(deployed, host).unchanged()


# What a deploy adds on a host.
OURS = (
    "opt/wsllama",
    "var/lib/wsllama",
    "etc/wsllama",
    "var/log/wsllama",
    "etc/apt/apt.conf.d/80wsllama",
    "etc/systemd/system/llama-server.service",
    "etc/systemd/system/llama-watchdog.service",
    "run/llama-watchdog",
    "etc/systemd/system/llama-watch.service",
    "run/llama-watch",
)


def items(done: Any, host: Host) -> dict[str, str]:
    """What `wsllama uninstall --json` said of each item."""
    return {item["what"]: item["state"] for item in json.loads(done.stdout)["hosts"][host.name]}


def test_uninstall_gives_everything_back_and_keeps_what_the_user_did(deployed: Deployed, host: Host) -> None:
    before = b"# mine\r\n[wsl2]\r\nmemory=24GB\r\n\r\n[experimental]\r\nautoMemoryReclaim=gradual\r\n"
    with Machine(host) as machine, apt_timers(host):
        machine.wslconfig.write_bytes(before)
        conf = host.root / "etc/wsl.conf"
        conf.write_text("[user]\ndefault=ada\n")
        data = {"platform": "wsl", "llama_cpp": {"backend": "cpu"}, "server": LAN, "distro": {"lean": True}}
        assert deployed.run({host.name: data}, hosts=[host]).returncode == 5, "it waits for wsl --shutdown"
        machine.wslconfig.write_bytes(machine.wslconfig.read_bytes() + b"[wsl2]\r\nprocessors=6\r\n")
        names = inventory(deployed, host, LAN)

        asked = wsllama("uninstall", names)
        assert (asked.returncode, "give -y" in asked.stderr) == (2, True)
        assert (host.root / "opt/wsllama").exists()

        machine.forget()
        kept = wsllama("uninstall", names, "--keep-model", "-y", "--json")
        assert kept.returncode == 0, kept.stderr + kept.stdout
        said = items(kept, host)
        assert set(said.values()) == {"changed", "unchanged"}
        assert said["service llama-server.service"] == said["user llama"] == "changed"
        assert machine.wslconfig.read_bytes() == before + b"[wsl2]\r\nprocessors=6\r\n"
        assert conf.read_text() == "[user]\ndefault=ada\n"
        state = machine.state()
        assert (state["tasks"], state["startup"], rules(machine)) == ({}, [], ([], []))
        assert not machine.path(f"{machine.profile}/AppData/Local/wsllama").exists()
        assert not any("--shutdown" in call.argv for call in machine.calls())
        there = [path for path in OURS if (host.root / path).exists()]
        assert there == ["var/lib/wsllama"]
        assert [p.name for p in (host.root / "var/lib/wsllama").iterdir()] == ["models"]
        assert host.run("systemctl is-enabled apt-daily.timer; id llama", check=False).stdout == "enabled\n"

        machine.forget()
        again = wsllama("uninstall", names, "--keep-model", "-y", "--json")
        assert (again.returncode, set(items(again, host).values())) == (0, {"unchanged"})
        assert machine.ran() <= {"schtasks.exe", "netsh.exe", "cmd.exe"}, "no administrator is asked"
        words = {word.lower() for call in machine.calls() for word in call.argv}
        assert words & {"/create", "/delete", "add", "delete"} == set(), "it only looks"

        last = wsllama("uninstall", names, "-y")
        assert last.returncode == 0, last.stderr
        assert f"{host.name}: /var/lib/wsllama: taken back" in last.stdout
        assert [path for path in OURS if (host.root / path).exists()] == []
        never = wsllama("uninstall", names, "-y")
        assert (never.returncode, never.stdout.splitlines()[0]) == (0, f"{host.name}: nothing to do")


def test_what_windows_does_not_let_go_is_left_and_said(deployed: Deployed, host: Host) -> None:
    with Machine(host, drive_bytes=1 << 30) as machine:
        run(deployed, host, LAN)
        config = machine.path(f"{FOLDER}/config.json")
        config.write_text(config.read_text().replace('"elevated": "yes"', '"elevated": "cancelled"'))
        names = inventory(deployed, host, LAN)
        done = wsllama("uninstall", names, "-y")
        assert done.returncode == 1
        assert done.stdout.count("LEFT") == 2
        assert CONFIRM in done.stdout
        assert (host.root / f"{STATE}/journal.json".lstrip("/")).exists(), "what is left is known the next time"
        config.write_text(config.read_text().replace('"elevated": "cancelled"', '"elevated": "yes"'))
        assert wsllama("uninstall", names, "-y").returncode == 0
        assert rules(machine) == ([], [])
        assert not (host.root / "var/lib/wsllama").exists()
