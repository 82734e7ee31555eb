"""What `wsllama windows` shows to people."""

from __future__ import annotations

from typing import Any

from wsllama.commands.windows import rows

FINDING = {"id": "standby", "says": "Windows goes to sleep", "command": "powercfg /change standby-timeout-ac 0", "admin": False}
OF: dict[str, Any] = {
    "wsl": True,
    "profile": "/mnt/c/Users/Ada",
    "profile_windows": "C:\\Users\\Ada",
    "user": "PC\\Ada",
    "interop": None,
    "candidates": [],
    "profile_missing": None,
    "distro": "Debian",
    "values": {"wslconfig": {"wsl2.memory": 25769803776}, "wslconf": {"boot.systemd": True}},
    "pending": ["wsl2.memory (wanted 24.0 GiB, seen 15.6 GiB)"],
    "not_in_effect": ["wsl2.swap (wanted 4.0 GiB, seen 0.0 GiB)"],
    "keep_alive": {"mechanism": "startup", "idle": True, "problems": ("it is disabled",)},
    "ports": {"expose": "loopback", "port": 8080, "rules": [], "asked": True},
    "power": [FINDING, {**FINDING, "says": "fast startup is on", "admin": True}],
    "distros": [{"name": "Debian", "running": True}, {"name": "docker-desktop", "running": False}],
}


def shown(**more: Any) -> str:
    return "\n".join(f"{label}: {text}" for label, text in rows({**OF, **more}))


def test_each_part_has_its_rows() -> None:
    assert shown().splitlines() == [
        "distro: Debian",
        "Windows user: PC\\Ada, /mnt/c/Users/Ada",
        ".wslconfig: wsl2.memory = 25769803776",
        "wsl.conf: boot.systemd = True",
        "pending: wsl2.memory (wanted 24.0 GiB, seen 15.6 GiB): run wsl --shutdown on Windows, which ends every distro",
        "not in effect: wsl2.swap (wanted 4.0 GiB, seen 0.0 GiB)",
        "keep-alive: a file in the Startup folder starts the distro when its user logs on; it isn't ended when idle",
        "keep-alive: it is disabled",
        "ports: loopback: programs on Windows reach the server at http://localhost:8080 through WSL's own relay; loopback isn't"
        " filtered, so there is no firewall rule, and other machines don't get in",
        "power: Windows goes to sleep; on Windows: powercfg /change standby-timeout-ac 0",
        "power: fast startup is on; on Windows, as an administrator: powercfg /change standby-timeout-ac 0",
        "distros: Debian runs",
        "distros: docker-desktop is stopped",
    ]


def test_rules_are_named_and_their_lack_is_said() -> None:
    ports = {"expose": "lan", "port": 8080, "rules": [], "asked": True}
    assert "other machines don't get in yet" in shown(ports=ports)
    rules = [
        {"kind": "portproxy", "name": "0.0.0.0:18080", "port": 18080, "to": 8080},
        {"kind": "firewall", "name": "wsllama-lan-18080", "port": 18080, "to": 0},
    ]
    text = shown(ports={**ports, "rules": rules})
    assert "ports: portproxy 0.0.0.0:18080: TCP 18080 to 127.0.0.1:8080" in text
    assert "ports: firewall wsllama-lan-18080: TCP 18080 from the local subnet" in text
    assert "yet" not in text


def test_what_is_not_known_is_said_with_what_to_do() -> None:
    text = shown(
        distro=None, keep_alive=None, user=None, profile=None, candidates=["/a", "/b"], interop="it is off", distros=None
    )
    assert "distro: its name is not known: set wsl.distro" in text
    assert "Windows user: not known, /a or /b" in text
    assert "interop: it is off" in text
    assert list(rows({"wsl": False})) == [("platform", "this is no WSL distro")]
