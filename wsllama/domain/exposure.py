"""Which rules of Windows let other machines of the local subnet reach the server, by WSL's networking mode. Pure.

For Windows itself no rule is needed, whatever the mode: in NAT mode WSL's relay listens on Windows' own 127.0.0.1 for what
listens on 127.0.0.1 in the distro, and Windows' firewall doesn't filter loopback; in mirrored mode both share their loopback.

For others, in NAT mode Windows forwards a port of its own to that relay (portproxy to 127.0.0.1, because the distro's address
changes with each start), and its firewall lets the local subnet in. The port is another one than the server's: a forwarder that
listens on the same port keeps the relay from it (ollama#16400). In mirrored mode the distro has Windows' own addresses, and the
Hyper-V firewall, which blocks all that comes in, gets a rule for WSL's virtual machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["portproxy", "firewall", "hyperv"]
# How `wslinfo --networking-mode` calls the modes in which WSL's relay serves Windows' localhost.
RELAYED = ("nat", "virtioproxy", "consomme")
WHY_NO_RULE = (
    "loopback: programs on Windows reach the server at http://localhost:{port} through WSL's own relay; loopback isn't filtered,"
    " so there is no firewall rule, and other machines don't get in"
)


@dataclass(frozen=True)
class Rule:
    """One rule. port: that other machines ask; to: where portproxy sends them, a port of Windows' loopback; else 0."""

    kind: Kind
    port: int
    to: int = 0

    @property
    def name(self) -> str:
        """As Windows lists it. It holds all that the rule says, so that a rule of this name is this rule."""
        return f"0.0.0.0:{self.port}" if self.kind == "portproxy" else f"wsllama-lan-{self.port}"

    @property
    def record(self) -> dict[str, Any]:
        """For the journal."""
        return asdict(self)


def wanted(expose: str, mode: str | None, port: int, lan_port: int) -> list[Rule]:
    """The rules that the settings ask for; none for loopback.

    mode: of WSL's network as the machine has it now, None when that isn't known. Raises ValueError with one sentence where lan
    can't be had.
    """
    if expose != "lan":
        return []
    if mode == "mirrored":
        return [Rule("hyperv", port)]
    if mode in RELAYED:
        return [Rule("portproxy", lan_port, port), Rule("firewall", lan_port)]
    raise ValueError(
        f"server.expose lan works with WSL's networking modes nat and mirrored, and this machine's is {mode or 'not known'}: set"
        " wsl.wsl2.networkingMode, or server.expose to loopback"
    )


def step(rule: Rule, present: bool) -> dict[str, Any]:
    """What an administrator has to do so that the rule is there, or isn't: one step of templates/windows/elevated.ps1."""
    words = _words(rule, present)
    did = "added" if present else "removed"
    if rule.kind == "hyperv":
        what = f"Hyper-V firewall rule {rule.name} for TCP port {rule.port} from the local subnet {did}"
        return {
            "id": f"hyperv {rule.name}",
            "kind": "hyperv",
            "name": rule.name,
            "port": rule.port,
            "present": present,
            "what": what,
        }
    if rule.kind == "firewall":
        what = f"firewall rule {rule.name} for TCP port {rule.port} from the local subnet {did}"
        look = ["advfirewall", "firewall", "show", "rule", f"name={rule.name}"]
        base = {"id": f"firewall {rule.name}", "kind": "netsh", "words": words, "what": what}
        return {**base, "look": look, "present": present}
    what = f"port {rule.port} of Windows forwarded to {rule.to}, {did}"
    return {"id": f"portproxy {rule.name}", "kind": "netsh", "words": words, "what": what}


def command(rule: Rule, present: bool) -> str:
    """The same as a command for a person, who is an administrator in cmd.exe or PowerShell."""
    return " ".join(["netsh", *_words(rule, present)]) if rule.kind != "hyperv" else _hyperv(rule, present)


def forwarded(text: str) -> dict[int, str]:
    """Port -> "address:port", from `netsh interface portproxy show v4tov4` in whatever language: rows of four fields.

    Only what listens on all addresses is told: that is ours, or in the way of ours.
    """
    rows = re.findall(r"^\s*(\S+)\s+(\d+)\s+(\S+)\s+(\d+)\s*$", text, re.M)
    return {int(port): f"{address}:{to}" for listens, port, address, to in rows if listens in ("0.0.0.0", "*")}


def lacking(rules: Iterable[Rule], there: Iterable[Rule]) -> list[Rule]:
    """Those that aren't there, in their order."""
    known = set(there)
    return [rule for rule in rules if rule not in known]


def _words(rule: Rule, present: bool) -> list[str]:
    if rule.kind == "firewall" and present:
        # a network that Windows calls public gets no access: whoever shares a café's network is in the local subnet too
        who = [
            "dir=in",
            "action=allow",
            "protocol=TCP",
            f"localport={rule.port}",
            "remoteip=LocalSubnet",
            "profile=private,domain",
        ]
        return ["advfirewall", "firewall", "add", "rule", f"name={rule.name}", *who]
    if rule.kind == "firewall":
        return ["advfirewall", "firewall", "delete", "rule", f"name={rule.name}"]
    listen = ["listenaddress=0.0.0.0", f"listenport={rule.port}"]
    to = ["connectaddress=127.0.0.1", f"connectport={rule.to}"]
    return ["interface", "portproxy", "add" if present else "delete", "v4tov4", *listen, *(to if present else [])]


def _hyperv(rule: Rule, present: bool) -> str:
    if not present:
        return f"Remove-NetFirewallHyperVRule -Name {rule.name}"
    return (
        f"New-NetFirewallHyperVRule -Name {rule.name} -DisplayName {rule.name} -Direction Inbound"
        " -VMCreatorId '{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}' -Protocol TCP"
        f" -LocalPorts {rule.port} -RemoteAddresses LocalSubnet -Action Allow"
    )
