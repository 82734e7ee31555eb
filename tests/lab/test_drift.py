"""Drift on real hosts: every kind of tampering is found and named, with who wins; and that is what a deploy then does."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab.lab import Host
from tests.lab.deployed import UNIT, Deployed, Run, started, wait_for, wsllama

ROOT, UNIT_FILE, KEY = "/opt/wsllama", f"/etc/systemd/system/{UNIT}", "/etc/wsllama/api-key"
APT, CA, STARTED = "/etc/apt/apt.conf.d/80wsllama", "/etc/wsllama/ca.pem", f"/var/lib/wsllama/{UNIT}.started-with"
DROP_IN, PROPERTY = f"{UNIT_FILE}.d/override.conf", f"/etc/systemd/system.control/{UNIT}.d/50-CPUWeight.conf"
EXEC = f"{ROOT}/current/build/bin/llama-server $LLAMA_SERVER_ARGS --threads-http 3 --host 0.0.0.0"
# Names of what scripts and findings speak of: the release, its number, the build, the model; P is the release without a key.
NAMES = f"""
R=$(readlink -f {ROOT}/current); N=${{R##*/}}; B=$(readlink -f $R/build); M=$(readlink -f $R/model)/tiny.gguf
"""
PUT = "printf '%s\\n'"


class Tampering(NamedTuple):
    """What somebody does, what drift says of it (kind, what, who wins), and what takes back what a deploy leaves."""

    does: str
    found: tuple[tuple[str, str, str], ...]
    undo: str = ""


# The service goes on here, and is started again by hand once.
ONE: Mapping[str, Tampering] = {
    "drop-in: command line, address, variable": Tampering(
        f"mkdir -p {UNIT_FILE}.d; {PUT} '[Service]' Environment=MY_TOKEN=hush-hush ExecStart= 'ExecStart={EXEC}' >{DROP_IN}",
        (
            ("drop-in", DROP_IN, "user"),
            ("flag", "--threads-http", "user"),
            ("flag", "--host", "user"),
            ("socket", "*:8080", "user"),
            ("environment", "MY_TOKEN", "user"),
        ),
        f"rm -r {UNIT_FILE}.d",
    ),
    "property set at run time": Tampering(
        f"systemctl set-property {UNIT} CPUWeight=50", (("drop-in", PROPERTY, "user"),), f"rm -r {os.path.dirname(PROPERTY)}"
    ),
    "variable for all services": Tampering(
        f"systemctl set-environment GGML_ODD=1; systemctl daemon-reload; systemctl restart {UNIT}",
        (("environment", "GGML_ODD", "nobody"),),
        "systemctl unset-environment GGML_ODD",
    ),
    "second server": Tampering(
        "systemd-run -q --service-type=exec --unit odd $B/bin/llama-server -m $M --port 9999 -c 256 -t 1",
        (("process", "llama-server, pid {odd}", "nobody"),),
        "systemctl stop odd",
    ),
    "unit file edited": Tampering(f"echo '# mine' >>{UNIT_FILE}", (("file", UNIT_FILE, "deploy"), ("service", UNIT, "deploy"))),
    "not started at boot": Tampering(f"systemctl disable -q {UNIT}", (("unit", f"{UNIT} at boot", "deploy"),)),
    "program replaced while it runs": Tampering(
        "cp -p $B/bin/llama-server $B/new; mv $B/new $B/bin/llama-server", (("process", "the running program", "deploy"),)
    ),
    "key readable by all": Tampering(f"chmod 644 {KEY}", (("file", KEY, "deploy"),)),
    "apt's configuration edited": Tampering(f"echo '// mine' >>{APT}", (("file", APT, "deploy"),)),
    "certificates that nobody wants": Tampering(f"echo mine >{CA}", (("file", CA, "deploy"),)),
    "folder writable by all": Tampering(f"chmod 777 {ROOT}", (("file", ROOT, "deploy"),)),
    "shell of the service's user": Tampering("usermod -s /bin/bash llama", (("user", "user llama", "deploy"),)),
    "group of the service's user": Tampering(
        "usermod -aG sudo llama", (("user", "user llama: groups", "nobody"),), "gpasswd -d llama sudo"
    ),
    "password of the service's user": Tampering(
        "echo llama:secret | chpasswd", (("user", "user llama: password", "nobody"),), "usermod -p '*' llama"
    ),
    "package removed": Tampering("dpkg -r --force-depends pkg-config", (("package", "pkg-config", "deploy"),)),
    "package held": Tampering("apt-mark hold ccache", (("package", "ccache: hold", "user"),), "apt-mark unhold ccache"),
    "program with other bytes": Tampering(
        "cp -p $B/bin/llama-bench /root/; printf x | dd of=$B/bin/llama-bench bs=1 seek=9000 conv=notrunc status=none",
        (("build", "{B}/bin/llama-bench", "nobody"),),
        "mv /root/llama-bench $B/bin/",
    ),
    "library slipped in": Tampering("touch $B/lib/libodd.so", (("build", "{B}/lib/libodd.so", "nobody"),), "rm $B/lib/libodd.so"),
    "release writable by all": Tampering("chmod 666 $R/args", (("file", "{R}/args", "nobody"),), "chmod 644 $R/args"),
    "record of the release edited": Tampering(
        """sed -i 's/"metrics": true/"metrics": false/' $R/release.json""",
        (("release", "releases/{N}/release.json: server.metrics", "nobody"),),
        """sed -i 's/"metrics": false/"metrics": true/' $R/release.json""",
    ),
    "plan of the release edited": Tampering(
        """sed -i 's/"given_up": \\[\\]/"given_up": ["x"]/' $R/release.json""",
        (("release", "releases/{N}/release.json: plan", "nobody"),),
        """sed -i 's/"given_up": \\["x"\\]/"given_up": []/' $R/release.json""",
    ),
    "last-good moved": Tampering(f"ln -sfn releases/0 {ROOT}/last-good", (("link", f"{ROOT}/last-good", "deploy"),)),
    "model with other bytes, touched back": Tampering(
        "cp -p $M /root/m; printf x | dd of=$M bs=1 seek=7000000 conv=notrunc status=none; touch -r /root/m $M",
        (("model", "{M}", "nobody"),),
        "cat /root/m >$M; touch -r /root/m $M; rm /root/m",
    ),
}
# And here it does not run.
TWO: Mapping[str, Tampering] = {
    "service stopped": Tampering(f"systemctl stop {UNIT}", (("service", UNIT, "deploy"),)),
    "port taken": Tampering(
        "systemd-run -q --unit odd python3 -m http.server 8080 --bind 127.0.0.1\n"
        "until ss -Hltn | grep -q :8080; do sleep .1; done",
        (("refused", "host is ready", "nobody"),),
        "systemctl stop odd",
    ),
    "key gone": Tampering(f"rm {KEY}", (("file", KEY, "deploy"),)),
    "arguments edited": Tampering("sed -i 's/8080/8081/' $R/args", (("release", "{R}/args", "deploy"),)),
    "environment edited": Tampering("echo GGML_ODD=1 >>$R/env", (("release", "{R}/env", "deploy"),)),
    "model's link moved": Tampering("ln -sfn /tmp $R/model", (("release", "{R}/model", "deploy"),)),
    "acceptance forgotten": Tampering("rm $R/baseline.json", (("release", "{R}/baseline.json", "deploy"),)),
    "program cut off": Tampering("truncate -s 100 $B/bin/llama-gguf-split", (("build", "{B}/bin/llama-gguf-split", "deploy"),)),
    "model writable by all": Tampering("chmod 666 $M", (("model", "{M}", "deploy"),)),
}
# What would hide others of the above.
THEN_ONE: Mapping[str, Tampering] = {
    "model touched": Tampering("touch $M", (("model", "{M}", "deploy"),)),
    "toolchain upgraded": Tampering(
        "sed -i.before '/^Package: binutils$/,/^$/s/^Version: .*/Version: 99/' /var/lib/dpkg/status",
        (("package", "binutils", "deploy"), ("build", "build", "deploy")),
        "mv /var/lib/dpkg/status.before /var/lib/dpkg/status",
    ),
}
THEN_TWO: Mapping[str, Tampering] = {
    "current moved to the release before": Tampering(
        f"ln -sfn releases/$P {ROOT}/current",
        (
            ("release", f"{ROOT}/current", "deploy"),
            ("link", f"{ROOT}/last-good", "deploy"),
            ("setting", "server.api_key", "deploy"),
            ("flag", "--api-key-file", "deploy"),
        ),
    ),
}
KEYED: dict[str, Any] = {"server": {"api_key": True}}


def names(host: Host) -> dict[str, str]:
    """R, N, B, M of a host, and the process id of the odd server."""
    text = host.run(f"{NAMES} echo $R; echo $N; echo $B; echo $M; systemctl show --value -p MainPID odd").stdout
    return dict(zip(("R", "N", "B", "M", "odd"), text.split(), strict=True))


def without_key(host: Host) -> str:
    """The number of the release that has the settings of the current one, but no key; env tells platforms apart."""
    found = {
        path.parent.name: (json.loads(path.read_text()), (path.parent / "env").read_text())
        for path in (host.root / "opt/wsllama/releases").glob("*/release.json")
    }
    now, env = found[os.readlink(host.root / "opt/wsllama/current").removeprefix("releases/")]
    wanted = ({**now["server"], "api_key": False}, now["links"], env)
    return next(number for number, (of, its) in found.items() if (of["server"], of["links"], its) == wanted)


def tampered(host: Host, table: Mapping[str, Tampering]) -> set[tuple[str, str, str]]:
    """Do all of a table on a host; what has to be found."""
    script, known = "\n".join(one.does for one in table.values()), names(host)
    host.run(f"set -e; {NAMES}\nP={without_key(host)}\n{script}")
    if table is ONE:  # it was started again by hand
        wait_for(lambda: host.run("ss -Hltn sport = :8080").stdout, f"the server of {host.name}")
    known["odd"] = names(host)["odd"]
    return {(kind, what.format(**known), wins) for one in table.values() for kind, what, wins in one.found}


def asked(deployed: Deployed, command: str, *words: str, status: int) -> dict[str, Any]:
    """What a command says of both hosts, in JSON."""
    p = wsllama(command, str(deployed.inventory(dict.fromkeys(deployed.names, KEYED))), "--json", *words)
    assert p.returncode == status, p.stdout + p.stderr
    assert "hush" not in p.stdout + p.stderr
    found = json.loads(p.stdout)
    hosts: dict[str, Any] = found["hosts"]
    assert (found["failed"], found["unreachable"], list(hosts)) == ({}, {}, deployed.names)
    return hosts


def drift(deployed: Deployed, *words: str, status: int) -> list[set[tuple[str, str, str]]]:
    """What drifted on each host."""
    return [{(f["kind"], f["what"], f["wins"]) for f in of} for of in asked(deployed, "drift", *words, status=status).values()]


@pytest.fixture(scope="module")
def keyed(deployed: Deployed) -> Deployed:
    """Both hosts with an API key, which has a release of before."""
    run(deployed).green()
    return deployed


def run(deployed: Deployed) -> Run:
    return deployed.run(dict.fromkeys(deployed.names, KEYED))


def test_a_clean_fleet_serves_and_has_no_drift(keyed: Deployed) -> None:
    assert drift(keyed, "--deep", status=0) == [set(), set()]
    for of in asked(keyed, "status", status=0).values():
        assert (of["state"], of["result"], of["address"]) == ("serves", "accepted", "127.0.0.1:8080")
    for of in asked(keyed, "diff", status=0).values():
        assert of == {"changes": False, "steps": [], "settings": [], "files": [], "refused": [], "unknown": []}


def test_two_machines_of_one_lock_came_to_the_same(keyed: Deployed, tmp_path: Path) -> None:
    """All that a deploy brought, by name; and what somebody did to one of them since."""
    one, two = keyed.lab.hosts
    path, inventory = tmp_path / "of-one.json", str(keyed.inventory(dict.fromkeys(keyed.names, KEYED)))
    p = wsllama("rebuild-check", inventory, "--limit", one.name, "--record", str(path))
    assert p.returncode == 0, p.stderr
    facts = json.loads(path.read_text())["hosts"][one.name]
    assert {"package cmake", "build bin/llama-server", "argument --ctx-size", f"file {KEY}", "input wsllama.lock"} <= set(facts)
    asked_again = ("rebuild-check", inventory, "--limit", two.name, "--against", str(path), "--like", one.name, "--deep")
    p = wsllama(*asked_again)
    assert (p.returncode, p.stdout) == (0, f"{two.name}: the same in {len(facts)} facts\n"), p.stderr
    two.run(["chmod", "600", KEY])
    p = wsllama(*asked_again, "--json")
    two.run(["chmod", "640", KEY])
    assert p.returncode == 3, p.stderr
    assert json.loads(p.stdout)["differences"] == {
        two.name: [{"what": f"file {KEY}", "recorded": "file 640 root:llama", "here": "file 600 root:llama"}]
    }


def test_each_tampering_is_found_and_wins_who_was_said_to(keyed: Deployed) -> None:
    one, two = keyed.lab.hosts
    wanted = [tampered(one, ONE), tampered(two, TWO)]
    assert drift(keyed, "--deep", status=3) == wanted
    assert [of["state"] for of in asked(keyed, "status", status=1).values()] == ["serves", "inactive"]

    two.run(TWO["port taken"].undo)
    run(keyed).green()
    left = {finding for finding in wanted[0] if finding[2] != "deploy"}
    assert drift(keyed, "--deep", status=3) == [left, set()]

    undo = "\n".join(tampering.undo for tampering in ONE.values())
    one.run(f"set -e; {NAMES}\n{undo}\nsystemctl daemon-reload")
    started(one)
    wanted = [tampered(one, THEN_ONE), tampered(two, THEN_TWO)]
    assert drift(keyed, "--deep", status=3) == wanted

    said = asked(keyed, "diff", status=3)
    one.run(THEN_ONE["toolchain upgraded"].undo)
    assert [step["operation"] for step in said[one.name]["steps"]][:2] == ["llama.cpp | build", "model | model"]
    assert said[two.name]["settings"] == [{"setting": "server.api_key", "is": "false", "should": "true"}]
    (args,) = said[two.name]["files"]
    assert [line for line in args[2:] if line.startswith("+")] == [f"+--api-key-file {KEY}"]
