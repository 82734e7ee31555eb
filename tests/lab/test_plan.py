"""Plans against the program: the deployed host's own llama.cpp, over a model with the real one's shapes and holes for weights."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from lab import ghost_model, tiny_model
from lab.lab import Host
from lab.windows import WslMachine
from tests.lab.deployed import LIMIT_S, Deployed, wsllama
from wsllama.domain import memory, models, plan_drift, server_log
from wsllama.domain.memory import GIB, MIB, Load
from wsllama.domain.planner import Model
from wsllama.host.model import seen
from wsllama.planning import of_file

BIN = "/opt/wsllama/current/build/bin"
FOLDER = "var/tmp/plan"
# Narrow types for the server, which reads the whole file once: what is compared does not depend on them.
NARROW = ghost_model.Types(gate_up="IQ1_S", down="IQ1_S")
KINDS = ("f16", "q8_0", "q4_0")
SMALL = [
    Load(4096, 1, n_cpu_moe=0),
    Load(4096, 4, "q8_0", "q8_0", n_cpu_moe=20),
    Load(32_768, 4, "q4_0", "q4_0", n_cpu_moe=40),
    Load(32_768, 1, ubatch_size=2048),
    Load(32_768, 1, flash_attn=False),
    Load(262_144, 2, "q8_0", "q8_0", n_cpu_moe=7),
]
LARGE = [
    Load(ctx_size, slots, kind, kind, ubatch_size=micro_batch, n_cpu_moe=moved)
    for ctx_size, kind, slots, moved, micro_batch in itertools.product(
        (4096, 32_768, 131_072, 262_144), KINDS, (1, 4, 16), (0, 20, 40), (128, 512)
    )
]
POINTS = (Load(8192, 1), Load(32_768, 4, "q8_0", "q8_0"), Load(131_072, 2, "q4_0", "q4_0", ubatch_size=256))


@pytest.fixture(scope="module")
def host(deployed: Deployed) -> Iterator[Host]:
    """A host with both files on its disk; they are written there, because a copy would fill their holes."""
    found = deployed.lab.hosts[0]
    (found.root / FOLDER).mkdir()
    yield found
    found.run(["rm", "-rf", f"/{FOLDER}"])


def written(host: Host, name: str, types: ghost_model.Types | None = None) -> Model:
    path = host.root / FOLDER / name
    return of_file(path if path.exists() else ghost_model.write(path, types)[0])


def compare(host: Host, loads: Sequence[Load]) -> None:
    """Ask llama-fit-params for each load, in one command, and hold its rows against ours."""
    model = written(host, "ghost.gguf")
    lines = [
        shlex.join([f"{BIN}/llama-fit-params", "-m", f"/{FOLDER}/ghost.gguf", *memory.fit_arguments(load)]) for load in loads
    ]
    script = "\n".join(f"{line} 2>/dev/null; echo ---" for line in lines)
    answers = host.run(["sh", "-c", script], timeout=2 * LIMIT_S).stdout.split("---\n")[:-1]
    assert len(answers) == len(loads)
    wrong = [
        (load, sentence)
        for load, answer in zip(loads, answers, strict=True)
        for sentence in memory.disagreements(memory.fit_rows(model.summary, load), memory.read_fit(answer))
    ]
    assert not wrong


def test_llama_fit_params_agrees(host: Host) -> None:
    compare(host, SMALL)


@pytest.mark.full
def test_llama_fit_params_agrees_over_a_large_grid(host: Host) -> None:
    compare(host, LARGE)


def test_a_wrong_figure_would_be_seen(host: Host) -> None:
    """Of forty full-attention layers, as others count, the context is four times as large."""
    model = written(host, "ghost.gguf").summary
    wrong = replace(model, keys={**model.keys, "full_attention_interval": 1})
    load = Load(32_768)
    words = [f"{BIN}/llama-fit-params", "-m", f"/{FOLDER}/ghost.gguf", *memory.fit_arguments(load)]
    theirs = memory.read_fit(host.run(words).stdout)
    assert any("MiB for context" in sentence for sentence in memory.disagreements(memory.fit_rows(wrong, load), theirs))


def logged(host: Host, load: Load, name: str) -> dict[str, float]:
    """MiB of each kind of buffer that a real server logs with a load; it is ended as soon as it listens."""
    words = [f"{BIN}/llama-server", "-m", f"/{FOLDER}/{name}", "--port", "18099", "--offline", "-lv", "4", "--load-mode", "mmap"]
    words += ["--no-repack", "--no-warmup", "--fit", "off", "--kv-unified", "--threads", "1"]
    words += ["-c", str(load.ctx_size), "-np", str(load.parallel), "-ub", str(load.ubatch_size)]
    words += ["-ctk", load.cache_type_k, "-ctv", load.cache_type_v, "-fa", "on"]
    script = (
        f": >/{FOLDER}/log\n"  # here: the one behind the & comes late on a busy machine, and the start before it is read
        f"timeout 1700 {shlex.join(words)} >/{FOLDER}/log 2>&1 & server=$!\n"
        f"until grep -q 'listening on' /{FOLDER}/log || ! kill -0 $server 2>/dev/null; do sleep 0.2; done\n"
        f"kill $server; wait $server; cat /{FOLDER}/log"
    )
    text = host.run(["sh", "-c", script], timeout=LIMIT_S).stdout
    assert "listening on" in text, text[-2000:]
    return {
        kind: float(size) for kind, size in re.findall(r"CPU\S* +(model|KV|RS|compute|output) buffer size = +([\d.]+) MiB", text)
    }


def agree(host: Host, load: Load, name: str, types: ghost_model.Types | None = None) -> None:
    held_against(logged(host, load, name), memory.needs(written(host, name, types).summary, load, 0).ram)


def held_against(said: dict[str, float], ram: memory.Part) -> None:
    for kind, size in (("model", ram.weights), ("KV", ram.kv), ("RS", ram.recurrent)):
        assert said[kind] == pytest.approx(size / MIB, abs=0.0051), kind  # as printed, two digits
    assert abs(said["compute"] * MIB - ram.compute) <= max(16 * MIB, 0.05 * said["compute"] * MIB)
    assert said["output"] == pytest.approx(ram.output / MIB, abs=0.0051)


@pytest.mark.parametrize("load", [POINTS[1], *(pytest.param(load, marks=pytest.mark.full) for load in (POINTS[0], POINTS[2]))])
def test_a_real_servers_log_agrees_for_four_of_the_layers(host: Host, load: Load) -> None:
    """Each as large as the real model's; all forty take a minute, because the whole file is read."""
    path = host.root / FOLDER / "four.gguf"
    ghost_model.write(path, replace(NARROW, embedding="Q2_K", output="Q2_K"), layers=4)
    header = seen(str(path), path.name).header
    assert header
    summary = models.summary([header])
    held_against(logged(host, load, path.name), memory.needs(summary, load, 0).ram)


@pytest.mark.full
@pytest.mark.parametrize("load", POINTS, ids=lambda load: str(load.ctx_size))
def test_a_real_servers_log_agrees(host: Host, load: Load) -> None:
    agree(host, load, "narrow.gguf", NARROW)


@pytest.mark.full
@pytest.mark.parametrize("load", POINTS, ids=lambda load: str(load.ctx_size))
def test_a_real_servers_log_agrees_with_q4(host: Host, load: Load) -> None:
    agree(host, load, "ghost.gguf")


def test_a_deployed_host_is_asked_and_its_program_agrees(deployed: Deployed) -> None:
    p = wsllama("plan", str(deployed.inventory()), "--json")
    assert p.returncode == 0, p.stderr
    found = json.loads(p.stdout)
    assert (found["failed"], found["unreachable"]) == ({}, {})
    assert set(found["hosts"]) == set(deployed.names)
    for name, document in found["hosts"].items():
        cores = int(deployed.lab.host(name).run(["nproc"]).stdout)
        total = int(deployed.lab.host(name).run(["sh", "-c", "sed -n 's/^MemTotal: *//p' /proc/meminfo"]).stdout.split()[0])
        assert document["ok"]
        assert document["memory"]["ram"]["now"] == total * 1024
        assert document["server"]["n_gpu_layers"] == 0
        assert document["model"]["bytes"] == deployed.model.stat().st_size
        assert document["build"]["jobs"] <= cores
        assert document["server"]["threads"] == 1  # which the settings say
        assert document["fit"] == []  # it was asked, and says nothing else


def test_a_disagreement_of_the_hosts_program_is_shown(deployed: Deployed) -> None:
    """Another file than the settings' in the model's place: with more layers than its header here says."""
    host = deployed.lab.hosts[0]
    installed = host.run(["sh", "-c", "readlink -f /opt/wsllama/current/model/*.gguf"]).stdout.strip()
    other = tiny_model.write(deployed.folder / "other.gguf", layers=16)
    (host.root / "var/tmp/other.gguf").write_bytes(other.read_bytes())
    host.run(["mount", "--bind", "/var/tmp/other.gguf", installed])
    try:
        p = wsllama("plan", str(deployed.inventory(hosts=[host])), "--json")
    finally:
        host.run(["umount", installed])
        host.run(["rm", "/var/tmp/other.gguf"])
    document = json.loads(p.stdout)["hosts"][host.name]
    assert any(re.search(r"Host: llama-fit-params says \d+ MiB for (model|context), the plan", said) for said in document["fit"])
    assert set(document["fit"]) <= set(document["warnings"])


def test_a_deployed_server_takes_what_its_release_records(deployed: Deployed) -> None:
    host = deployed.lab.hosts[0]
    plan = json.loads(host.run(["cat", "/opt/wsllama/current/release.json"]).stdout)["plan"]
    start = "_SYSTEMD_INVOCATION_ID=$(systemctl show --value -p InvocationID llama-server)"
    log = server_log.read(host.run(f'journalctl -q -o cat "{start}"').stdout)
    assert plan_drift.drift(log, plan, 0) == []
    assert log.kv_mib
    plan["memory"]["ram"]["kv"] *= 2
    (sentence,) = plan_drift.drift(log, plan, 5)
    assert re.fullmatch(r"RAM: \d+ MiB of kv where \d+ MiB is planned", sentence)


SMI = "usr/lib/wsl/lib/nvidia-smi"
SAID = """\
#!/bin/sh
echo 'name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], compute_cap, driver_version'
echo 'NVIDIA GeForce RTX 4070, 12282 MiB, 5000 MiB, [N/A], 8.9, 581.42'
"""


def test_a_wsl_host_is_asked_for_its_gpu_and_its_windows(deployed: Deployed, host: Host) -> None:
    data = {"platform": "wsl", "llama_cpp": {"backend": "cuda"}}
    inventory = deployed.inventory({host.name: data}, [host], "wsl")
    with WslMachine(host, memory_bytes=64 * GIB):
        smi = host.root / SMI
        smi.parent.mkdir(parents=True, exist_ok=True)
        smi.write_text(SAID)
        smi.chmod(0o755)
        try:
            p = wsllama("plan", str(inventory), "--json")
        finally:
            smi.unlink()
    document = json.loads(p.stdout)["hosts"][host.name]
    assert p.returncode == 0, p.stderr
    (card,) = document["memory"]["gpus"]
    assert (card["name"], card["total"], card["held_now"]) == ("NVIDIA GeForce RTX 4070", 12_282 * MIB, 5000 * MIB)
    assert card["reserve"] >= 5000 * MIB
    now = document["memory"]["ram"]["now"]
    assert document["memory"]["ram"]["possible"] == max(now, 56 * GIB)
    assert document["wsl"]["memory"].endswith("GB")
    assert any("4.9 GiB is in use now (by whom is not reported)" in said for said in document["warnings"])
    assert document["fit"] == ["llama-fit-params counts 0 GPUs, the plan 1"]  # the build that is there is one for the processor


def test_a_model_on_the_host_is_planned_by_its_header(deployed: Deployed, host: Host) -> None:
    written(host, "ghost.gguf")
    path = f"/{FOLDER}/ghost.gguf"
    where = {"model": {"path": path, "on": "host"}}
    p = wsllama("plan", str(deployed.inventory({host.name: where}, [host], "large")), "--json")
    document = json.loads(p.stdout)["hosts"][host.name]
    size = (host.root / FOLDER / "ghost.gguf").stat().st_size
    row = next(row for row in document["quants"] if row["name"] == "ghost.gguf")
    assert (row["bytes"], row["estimated"], row["ok"]) == (size, False, document["ok"])
    assert p.returncode == (0 if document["ok"] else 2)
    nowhere = {"model": {"path": "/nowhere.gguf", "on": "host"}}
    p = wsllama("plan", str(deployed.inventory({host.name: nowhere}, [host], "nowhere")), "--json")
    assert p.returncode == 1
    assert json.loads(p.stdout)["failed"] == {host.name: "model.path: nowhere.gguf: it is not there: copy or download it"}
