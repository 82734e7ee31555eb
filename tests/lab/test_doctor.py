"""`wsllama doctor` on a real host: nothing where all is well, and each thing that is broken by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.lab import Host
from lab.windows import WslMachine
from tests.lab.deployed import LIMIT_S, UNIT, Deployed, arguments_of, started, wsllama


@pytest.fixture
def broken(deployed: Deployed) -> Iterator[None]:
    """The first host's unit has a drop-in that hides devices, and its server was killed; put back afterwards."""
    host = deployed.lab.hosts[0]
    folder = host.root / f"etc/systemd/system/{UNIT}.d"
    folder.mkdir(exist_ok=True)
    # Not started again before it is stopped, however long that takes.
    (folder / "test.conf").write_text("[Service]\nPrivateDevices=yes\nUser=\nRestartSec=1h\n")
    died = f"while systemctl is-active -q {UNIT}; do sleep 0.1; done"
    host.run(f"systemctl daemon-reload; systemctl kill -s SIGKILL {UNIT}; {died}; systemctl stop {UNIT}")
    yield
    host.run(f"rm -r /etc/systemd/system/{UNIT}.d; systemctl daemon-reload")
    started(host)


def asked(inventory: Path, code: int) -> dict[str, Any]:
    done = wsllama("doctor", str(inventory), "--json")
    assert done.returncode == code, done.stdout + done.stderr
    hosts: dict[str, Any] = json.loads(done.stdout)["hosts"]
    return hosts


def test_a_host_on_which_all_is_well(deployed: Deployed) -> None:
    hosts = asked(deployed.inventory(), 0)
    assert hosts == {name: {"verdict": "ok", "findings": [], "ladder": []} for name in deployed.names}


@pytest.mark.usefixtures("broken")
def test_a_drop_in_that_breaks_the_unit_and_a_server_that_was_killed(deployed: Deployed) -> None:
    host = deployed.lab.hosts[0]
    found = asked(deployed.inventory(hosts=[host]), 1)[host.name]
    assert found["verdict"] == "killed"
    assert [one["id"] for one in found["findings"]] == ["killed", "private_devices", "root_user"]


def test_wsl_s_own_files_are_judged(deployed: Deployed) -> None:
    host = deployed.lab.hosts[0]
    inventory = deployed.inventory({host.name: {"platform": "wsl", "llama_cpp": {"backend": "cpu"}}}, [host], "wsl")
    with WslMachine(host) as machine:
        machine.path(f"{machine.profile}/.wslconfig").write_bytes(b"[wsl2]\r\nmemory=16gb\r\n")
        (host.root / "etc/wsl.conf").write_text("[boot]\nsystemd=true\n")
        try:
            found = asked(inventory, 1)[host.name]["findings"]
        finally:
            host.run("rm -f /etc/wsl.conf")
    ids = {one["id"] for one in found}
    assert {"bad_size", "idle_keys_missing_for_service"} <= ids
    assert "systemd_off" not in ids
    (size,) = [one for one in found if one["id"] == "bad_size"]
    assert size["detail"].startswith(f"{machine.profile}/.wslconfig:2: wsl2.memory: WSL does not take '16gb'")


SMI = "usr/lib/wsl/lib/nvidia-smi"
FULL = "echo 'name, memory.total [MiB], memory.used [MiB]'; echo 'NVIDIA GeForce RTX 4070, 12282 MiB, 11800 MiB'"


def test_a_card_that_others_have_filled_is_named_first(deployed: Deployed) -> None:
    """The server runs on the processor here, so all that is held is held by others; the GPU's other troubles come behind it."""
    host = deployed.lab.hosts[0]
    inventory = deployed.inventory({host.name: {"platform": "wsl", "llama_cpp": {"backend": "cuda"}}}, [host], "full")
    smi = host.root / SMI
    with WslMachine(host):
        smi.parent.mkdir(parents=True, exist_ok=True)
        smi.write_text(f"#!/bin/sh\n{FULL}\n")
        smi.chmod(0o755)
        try:
            found = asked(inventory, 1)[host.name]["findings"]
        finally:
            smi.unlink()
    assert found[0]["id"] == "vram_taken_by_others"
    assert found[0]["detail"] == "NVIDIA GeForce RTX 4070: others hold about 11800 MiB of 12282, 482 MiB are free"
    assert {one["id"] for one in found[1:]} >= {"cpu_fallback"}


@pytest.fixture
def starved(deployed: Deployed) -> Iterator[Host]:
    """The first host served a context of 262144, and died of it when it might not allocate that much any more.

    It takes 350 to 400 MiB, with half of the context 250 to 300 (tried by hand). An allocation beyond the limit fails in the
    server itself, so its log says it.
    """
    host = deployed.lab.hosts[0]
    deployed.pyinfra(large(deployed, host)).green()
    folder = host.root / f"etc/systemd/system/{UNIT}.d"
    folder.mkdir(exist_ok=True)
    (folder / "test.conf").write_text("[Service]\nLimitDATA=325M\nRestart=no\n")
    died = f"until systemctl is-failed -q {UNIT}; do sleep 0.3; done"
    host.run(f"systemctl daemon-reload; systemctl restart {UNIT}; {died}", timeout=LIMIT_S)
    yield host
    host.run(f"rm -r /etc/systemd/system/{UNIT}.d; systemctl daemon-reload; systemctl reset-failed {UNIT}", check=False)
    deployed.restore()


def large(deployed: Deployed, host: Host) -> Path:
    """An inventory of a server of which nothing but context can be given up."""
    server = {"ctx_size": 262144, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "ubatch_size": 128, "cache_ram": 0}
    more = {"parallel": 1, "ctx_checkpoints": 1, "load_mode": "mmap", "flash_attn": "on"}
    data = {"server": {**server, **more}, "plan": {"least_ctx_size": 8192}}
    return deployed.inventory({host.name: data}, [host], "large")


@pytest.mark.full
def test_a_server_that_died_of_memory_is_recovered_and_stays_so(deployed: Deployed, starved: Host) -> None:
    inventory = large(deployed, starved)
    kept = inventory.with_name("large.recovery.json")
    assert asked(inventory, 1)[starved.name]["verdict"] == "oom_host"
    done = wsllama("doctor", str(inventory), "--apply", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)["hosts"].values()
    assert [one["server"] for one in found["applied"]["tried"]] == [{"ctx_size": 131072}]
    assert (found["verdict"], found["applied"]["served"]) == ("ok", True)
    assert "131072" in arguments_of(starved)
    assert json.loads(kept.read_text())["hosts"] == {starved.name: {"server": {"ctx_size": 131072}}}
    again = deployed.pyinfra(inventory).unchanged()
    assert f"{starved.name}: {kept} keeps it at server.ctx_size 131072" in again.stderr
    kept.unlink()
