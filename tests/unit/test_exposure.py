"""Which rules of Windows a setting asks for, and the words that make and remove them."""

from __future__ import annotations

import pytest

from wsllama.domain.exposure import WHY_NO_RULE, Rule, command, forwarded, lacking, step, wanted

NAT = [Rule("portproxy", 18080, 8080), Rule("firewall", 18080)]


def test_loopback_needs_no_rule_in_any_mode_and_the_product_says_why() -> None:
    for mode in ("nat", "mirrored", "bridged", None):
        assert wanted("loopback", mode, 8080, 18080) == []
    assert "http://localhost:8080" in WHY_NO_RULE.format(port=8080)


@pytest.mark.parametrize("mode", ["nat", "consomme", "virtioproxy"])
def test_behind_nat_another_port_is_forwarded_to_the_relay(mode: str) -> None:
    assert wanted("lan", mode, 8080, 18080) == NAT


def test_mirrored_takes_one_rule_of_hyper_v() -> None:
    assert wanted("lan", "mirrored", 8080, 18080) == [Rule("hyperv", 8080)]


@pytest.mark.parametrize("mode", ["bridged", "none", "wsl1", None])
def test_other_modes_are_refused_by_name(mode: str | None) -> None:
    with pytest.raises(ValueError, match=mode or "not known"):
        wanted("lan", mode, 8080, 18080)


def test_the_words_are_those_of_netsh_and_let_in_the_local_subnet_only() -> None:
    assert command(NAT[0], True) == (
        "netsh interface portproxy add v4tov4 listenaddress=0.0.0.0 listenport=18080 connectaddress=127.0.0.1 connectport=8080"
    )
    assert command(NAT[0], False) == "netsh interface portproxy delete v4tov4 listenaddress=0.0.0.0 listenport=18080"
    assert command(NAT[1], True) == (
        "netsh advfirewall firewall add rule name=wsllama-lan-18080 dir=in action=allow protocol=TCP localport=18080"
        " remoteip=LocalSubnet profile=private,domain"
    )
    assert command(NAT[1], False) == "netsh advfirewall firewall delete rule name=wsllama-lan-18080"
    hyperv = command(Rule("hyperv", 8080), True)
    assert "-LocalPorts 8080 -RemoteAddresses LocalSubnet -Action Allow" in hyperv
    assert hyperv.isascii()
    assert command(Rule("hyperv", 8080), False) == "Remove-NetFirewallHyperVRule -Name wsllama-lan-8080"


def test_steps_have_ids_of_their_own_and_a_firewall_rule_is_looked_for_first() -> None:
    steps = [step(rule, True) for rule in (*NAT, Rule("hyperv", 8080))]
    assert len({s["id"] for s in steps}) == 3
    assert steps[1]["look"] == ["advfirewall", "firewall", "show", "rule", "name=wsllama-lan-18080"]
    assert (steps[2]["name"], steps[2]["port"], steps[2]["present"]) == ("wsllama-lan-8080", 8080, True)


GERMAN = """
Abhören auf ipv4:             Verbinden mit ipv4:

Adresse         Port        Adresse         Port
--------------- ----------  --------------- ----------
0.0.0.0         18080       127.0.0.1       8080
*               9000        10.0.0.5        90
192.168.1.4     70          127.0.0.1       80
"""


def test_what_is_forwarded_is_read_in_any_language() -> None:
    assert forwarded(GERMAN) == {18080: "127.0.0.1:8080", 9000: "10.0.0.5:90"}
    assert forwarded("") == {}


def test_what_is_lacking_keeps_its_order() -> None:
    assert lacking(NAT, [NAT[1]]) == [NAT[0]]
    assert lacking(NAT, [Rule("portproxy", 18080, 8081)]) == NAT
