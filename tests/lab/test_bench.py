"""Benchmarks of a real llama-server on a deployed host: the record, what it leaves behind, and what it does not measure."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.lab import Host
from tests.lab.deployed import LIMIT_S, UNIT, Deployed, arguments_of, main_pid, started, wait_for, wsllama
from wsllama import bench, layout, program
from wsllama.commands.common import connected
from wsllama.domain import record, report

SMI = "usr/lib/wsl/lib/nvidia-smi"
SAID = "NVIDIA GeForce RTX 4070, 12282 MiB, 5000 MiB, [N/A], 35.20 W, 44, 581.42"
DROP_IN = f"/run/systemd/system/{UNIT}.d/wsllama-bench.conf"


@pytest.fixture(scope="module")
def host(deployed: Deployed) -> Host:
    return deployed.lab.hosts[0]


@pytest.fixture(scope="module")
def inventory(deployed: Deployed, host: Host) -> Path:
    return deployed.inventory(hosts=[host], name="bench")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def measured(host: Host, inventory: Path, folder: Path) -> dict[str, Any]:
    """The record of one whole run, with a card that nvidia-smi tells of."""
    smi = host.root / SMI
    smi.parent.mkdir(parents=True, exist_ok=True)
    smi.write_text(f"#!/bin/sh\necho '{SAID}'\n")
    smi.chmod(0o755)
    try:
        words = ["--scenario", "short", "--scenario", "conversation", "--runs", "2", "--budgets", "16", "--threads-sweep", "1"]
        p = wsllama("bench", str(inventory), *words, "--label", "lab", "--records", str(folder), "--json")
    finally:
        shutil.rmtree(smi.parent)
    assert p.returncode == 0, p.stderr
    document = json.loads(p.stdout)
    assert (document["failed"], document["unreachable"], list(document["records"])) == ({}, {}, [host.name])
    assert f"[{host.name}] ==> conversation, turn 10 of 10: prompt " in p.stderr
    found: dict[str, Any] = document["records"][host.name]
    return found


def test_the_record_says_what_was_measured(deployed: Deployed, host: Host, measured: dict[str, Any]) -> None:
    release = json.loads((host.root / "opt/wsllama/current/release.json").read_text())
    assert record.problems(measured) == []
    assert measured["host"]["name"] == host.name
    assert measured["host"]["cores"] == int(host.run(["nproc"]).stdout)
    assert measured["gpus"] == [{"name": "NVIDIA GeForce RTX 4070", "vram_bytes": 12282 << 20, "driver": "581.42"}]
    assert measured["llama_cpp"]["commit"] == release["commit"]
    assert measured["llama_cpp"]["build_id"] == release["build"]
    assert release["commit"][:9] in measured["llama_cpp"]["version"]
    assert measured["model"] == {
        "file": "tiny.gguf",
        "sha256": hashlib.sha256(deployed.model.read_bytes()).hexdigest(),
        "bytes": deployed.model.stat().st_size,
    }
    words = arguments_of(host)
    assert measured["context"] == int(words[words.index("--ctx-size") + 1])
    assert measured["kv_cache"] == {key: words[words.index(f"--cache-type-{key}") + 1] for key in ("k", "v")}
    assert measured["offload"] == {"layers": 0, "of": "not reported"}  # the card is a stand-in, the build is for the processor
    log = host.run(["journalctl", "-q", "-o", "cat", "-u", UNIT]).stdout
    *_, kv = re.findall(r"CPU KV buffer size = +([\d.]+) MiB", log)  # of the last start
    assert measured["buffers"]["kv"] == {"CPU": float(kv)}
    assert measured["plan"] == release["plan"]
    (planned,) = [row for row in report.planned(measured) if row["what"] == "KV cache"]
    assert planned["difference"] == "+0.0 %"


def test_speeds_are_what_the_server_logged(host: Host, measured: dict[str, Any]) -> None:
    short, conversation = (measured["scenarios"][name] for name in ("short", "conversation"))
    host.run(["journalctl", "--sync"])
    log = host.run(["journalctl", "-q", "-o", "cat", "-u", UNIT]).stdout
    logged = re.findall(r"prompt eval time = +([\d.]+) ms / +(\d+) tokens", log)
    for run in short["runs"] + conversation["runs"]:
        assert any(abs(float(ms) / 1000 - run["prompt_s"]) < 1e-4 and int(n) == run["prompt_tokens"] for ms, n in logged)
    assert [len(short["runs"]), len(conversation["runs"])] == [2, 10]
    assert {run["generated_tokens"] for run in short["runs"]} == {64}
    assert {run["generated_tokens"] for run in conversation["runs"]} == {128}
    assert {run["cached_tokens"] for run in short["runs"]} == {0}  # the second run asks the same and is computed anew
    assert all(run["cached_tokens"] for run in conversation["runs"][1:])
    assert measured["disturbed"] == ""
    for run in short["runs"]:
        assert run["first_token_s"] >= run["prompt_s"]


def test_memory_and_power_are_there_apart(measured: dict[str, Any]) -> None:
    memory = measured["memory"]
    assert memory["idle"]["state"] == "after loading"
    assert memory["without_server"]["vram_bytes"] == memory["idle"]["vram_bytes"] == memory["peak"]["vram_bytes"] == 5000 << 20
    assert 0 < memory["idle"]["server_bytes"] < memory["peak"]["server_bytes"]
    load = measured["gpu_load"]
    assert (load["power_peak_w"], load["temperature_peak_c"], load["utilization_mean_pct"]) == (35.2, 44, "not reported")


def test_budgets_and_threads_on_wish(measured: dict[str, Any]) -> None:
    assert [(row["budget"], row["answered"], row["of"]) for row in measured["budgets"]] == [(16, 8, 8)]
    (row,) = measured["threads"]
    assert row["threads"] == 1
    assert min(row["prompt_per_s"], row["generation_per_s"]) > 0


def test_a_short_benchmark_is_appended_and_compared(
    deployed: Deployed, host: Host, inventory: Path, folder: Path, measured: dict[str, Any]
) -> None:
    pid, there = main_pid(host), host.root / layout.RECORDS[1:]
    (first,) = there.glob("*.json")
    before = first.read_bytes()
    with connected(str(inventory), None) as fleet:
        found = bench.short_benchmark(fleet, fleet.hosts[0])
    page = folder.parent / "page.md"
    p = wsllama("report", "--inventory", str(inventory), "--records", str(folder), "--markdown", "-o", str(page))
    assert (p.returncode, p.stdout) == (0, f"{page}: 2 records of 1 hosts\n"), p.stderr
    assert f"| {host.name} | NVIDIA GeForce RTX 4070 |" not in page.read_text()  # the newest record is of the host without it
    assert f"| {host.name} | no GPU |" in page.read_text()
    (new,) = {path for path in (folder / host.name).iterdir() if path.name != first.name}
    assert list(found["scenarios"]) == ["short"]
    assert found["memory"]["idle"]["state"] == "after earlier requests"
    assert main_pid(host) == pid  # nobody started it again
    assert first.read_bytes() == before == (folder / host.name / first.name).read_bytes()
    assert new.read_bytes() == (there / new.name).read_bytes()
    p = wsllama("compare", first.stem, host.name, "--records", str(folder), "--json")
    compared = json.loads(p.stdout)
    assert (p.returncode, compared["first"], compared["second"], compared["worse"]) == (0, first.stem, new.stem, [])
    ratio = next(row for row in compared["figures"] if row["what"] == "short: generation speed")
    medians = [of["scenarios"]["short"]["generation_per_s"]["median"] for of in (measured, found)]
    assert ratio["ratio"] == pytest.approx(medians[1] / medians[0], abs=1e-4)


def test_the_deploy_finds_nothing_to_do_afterwards(deployed: Deployed, inventory: Path, measured: dict[str, Any]) -> None:
    deployed.pyinfra(inventory).unchanged()


def refused(inventory: Path, folder: Path) -> str:
    p = wsllama("bench", str(inventory), "--scenario", "short", "--records", str(folder))
    assert p.returncode == 1, p.stdout
    return p.stderr.splitlines()[-1]


# Several that ask on and on: a reply ends when the context is full, and the server is to be busy for as long as this runs.
BUSY = """
import json, threading, urllib.request
body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2000, "ignore_eos": True, "stream": True}
asked = urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions", json.dumps(body).encode())
begun = threading.Event()
def ask():
    while True:
        try:
            stream = urllib.request.urlopen(asked)
            while stream.readline():
                begun.set()
        except OSError:
            pass
for _ in range(3):
    threading.Thread(target=ask, daemon=True).start()
begun.wait()
print("begun", flush=True)
threading.Event().wait()
"""


def test_a_server_that_answers_somebody_is_not_measured(host: Host, inventory: Path, folder: Path) -> None:
    pid = main_pid(host)
    with subprocess.Popen(
        [*host.ssh_argv(), "--", "python3", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin
        assert client.stdout
        client.stdin.write(BUSY)
        client.stdin.close()
        assert client.stdout.readline() == "begun\n"
        said = refused(inventory, folder)
        host.run(["pkill", "-f", "^python3 -$"], check=False)  # its own on this host
        client.kill()
    assert said == f"{host.name}: the server is answering somebody now, which would be measured too: try again later"
    assert main_pid(host) == pid


@pytest.mark.full
def test_a_measurement_that_is_killed_leaves_the_service_as_it_was(host: Host, inventory: Path) -> None:
    """Killed while the server runs without CUDA graphs: it gets its own environment again, and everything of ours is gone."""
    with connected(str(inventory), None) as fleet:
        wanted = bench.argument(fleet, fleet.hosts[0], ["conversation"], 1, restart=True, graphs="always")
    folder = host.root / layout.RECORDS[1:]
    before = len(list(folder.glob("*.json")))

    def environment() -> str:
        return host.run(["sh", "-c", f"tr '\\0' '\\n' </proc/{main_pid(host)}/environ"], check=False).stdout

    with subprocess.Popen(
        [*host.ssh_argv(), "--", "exec python3 -I -S - # bench"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdin
        assert run.stdout
        run.stdin.write(program.call("bench", wanted))
        run.stdin.close()
        turns = 0
        for line in run.stdout:
            turns += "conversation, turn 1 of" in line
            if turns == 2:  # the second time is the one without graphs
                break
        assert turns == 2
        assert "GGML_CUDA_DISABLE_GRAPHS=1" in environment()
        assert (host.root / DROP_IN[1:]).exists() or host.run(["test", "-e", DROP_IN], check=False).returncode == 0
        host.run(["pkill", "-KILL", "-f", "^python3 -I -S -$"])
        run.wait(timeout=LIMIT_S)
    wait_for(lambda: host.run(["systemctl", "is-active", "wsllama-bench-restore"], check=False).returncode, "the end of the unit")
    assert host.run(["test", "-e", DROP_IN], check=False).returncode == 1
    wait_for(lambda: host.run(["systemctl", "is-active", UNIT], check=False).returncode == 0, "the service")
    assert "GGML_CUDA_DISABLE_GRAPHS" not in environment()
    assert len(list(folder.glob("*.json"))) == before  # what was cut off is no record


def test_a_service_that_does_not_run_is_not_measured(host: Host, inventory: Path, folder: Path) -> None:
    host.run(["systemctl", "stop", UNIT])
    try:
        assert refused(inventory, folder) == f"{host.name}: {UNIT} does not run: run the deploy"
    finally:
        started(host)
