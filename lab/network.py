"""A bridge, a subnet and (masquerade) NAT for every lab, all named with its id."""

import ipaddress
import json
from pathlib import Path

from lab.tools import LabError, run

IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
POOL = ipaddress.ip_network("10.213.0.0/16")


def bridge_name(lab: str) -> str:
    """Interface name of a lab's bridge (the kernel allows 15 characters)."""
    return f"wl{lab}"


def table_name(lab: str) -> str:
    """nftables table of a lab."""
    return f"wsllama_lab_{lab}"


def free_subnet(taken: list[str]) -> str:
    """A /24 that neither another lab nor a route of this machine uses. The caller holds the registry's lock.

    Routes wider than /16 (a company's 10.0.0.0/8) don't count: the bridge's own is more specific.
    """
    routes = json.loads(run(["ip", "-j", "-4", "route", "show", "table", "all"]).stdout or "[]")
    names = [*taken, *(route["dst"] for route in routes if route["dst"] != "default")]
    used = [found for name in names if (found := ipaddress.ip_network(name, strict=False)).prefixlen >= 16]
    for candidate in POOL.subnets(new_prefix=24):
        if not any(candidate.overlaps(other) for other in used):
            return str(candidate)
    raise LabError(f"No free subnet is left in {POOL}: end a lab with `python -m lab down`.")


def address(subnet: str, number: int) -> str:
    """The n-th address of a subnet; 1 is the bridge, that is this machine."""
    return str(ipaddress.ip_network(subnet)[number])


def create(lab: str, subnet: str, internet: bool) -> None:
    """Make a lab's bridge and its table. Raises LabError when the kernel refuses."""
    bridge = bridge_name(lab)
    run(["ip", "link", "add", bridge, "type", "bridge"])
    run(["ip", "addr", "add", f"{address(subnet, 1)}/24", "dev", bridge])
    run(["ip", "link", "set", bridge, "up"])
    set_internet(lab, subnet, internet)


def set_internet(lab: str, subnet: str, on: bool) -> None:
    """Let a lab's machines out through this machine's address, or refuse whatever they send beyond the bridge."""
    table, bridge = table_name(lab), bridge_name(lab)
    run(["nft", "add", "table", "ip", table])
    run(["nft", "flush", "table", "ip", table])
    if on:
        chain, hook = "postrouting", "{ type nat hook postrouting priority 100; }"
        rule = ["ip", "saddr", subnet, "oifname", "!=", bridge, "masquerade"]
    else:
        chain, hook = "forward", "{ type filter hook forward priority -10; }"
        rule = ["iifname", bridge, "oifname", "!=", bridge, "reject"]
    run(["nft", "add", "chain", "ip", table, chain, hook])
    run(["nft", "add", "rule", "ip", table, chain, *rule])


def remove(lab: str) -> None:
    """Remove a lab's bridge and table; none of it is an error when it is gone already."""
    if Path(f"/sys/class/net/{bridge_name(lab)}").exists():
        run(["ip", "link", "del", bridge_name(lab)])
    tables = json.loads(run(["nft", "-j", "list", "tables"]).stdout or "{}").get("nftables", [])
    if any(item.get("table", {}).get("name") == table_name(lab) for item in tables):
        run(["nft", "delete", "table", "ip", table_name(lab)])
