"""Models on real hosts without a network: from a Hub and from a mirror on this machine's bridge, checked, pruned."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import Lab, network, tiny_model
from lab.hub import Hub
from lab.lab import Host
from lab.windows import WslMachine
from tests.lab.deployed import BIN, ROOT, Deployed, Run, answers, main_pid

MODELS = "/var/lib/wsllama/models"
REPO = "unsloth/Qwen3.6-35B-A3B-GGUF"
CARD = {"license": "apache-2.0", "base_model": ["Qwen/Qwen3.6-35B-A3B"]}
NAMES = {quant: f"Qwen3.6-35B-A3B-{quant}" for quant in ("Q8_0", "UD-Q4_K_M")}


class Models(Deployed):
    """Hosts that get a model alone, a Hub and a lock that know two small quants; this user's cache is empty."""

    def __init__(self, lab: Lab, folder: Path, hub: Hub) -> None:
        self.lab, self.folder, self.hub, self.cache = lab, folder, hub, folder / "cache"
        (self.cache / "wsllama").mkdir(parents=True)
        self.files: dict[str, bytes | Path] = {
            f"{name}.gguf": tiny_model.write(folder / f"{name}.gguf", seed=seed) for seed, name in enumerate(NAMES.values(), 1)
        }
        hub.add(REPO, self.files, card=CARD)
        self.lock = folder / "models.lock"
        shutil.copy(ROOT / "wsllama.lock", self.lock)
        words = [word for quant in NAMES for word in ("--quant", quant)]
        self.wsllama("lock", "add", REPO, *words, "--lock", str(self.lock))
        hub.sent.clear()  # of the headers
        self.base = {"platform": "linux", "model": self.model()}

    def model(self, quant: str = "Q8_0", **more: Any) -> dict[str, Any]:  # type: ignore[override]
        return {"name": NAMES[quant], "lock_file": str(self.lock), "endpoint": self.hub.url, **more}

    def command(self, inventory: Path, *options: str) -> list[str]:
        return [str(BIN / "pyinfra"), str(inventory), "tests/lab/only_model.py", "-y", *options]

    @property
    def environment(self) -> dict[str, str]:
        mine = {key: value for key, value in super().environment.items() if not key.startswith("HF_")}
        return {**mine, "HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.folder / "hf")}

    def wsllama(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        p = subprocess.run([str(BIN / "wsllama"), *words], cwd=ROOT, env=self.environment, capture_output=True, text=True)
        assert p.returncode == code, p.stdout + p.stderr
        return p

    def size(self, quant: str = "Q8_0") -> int:
        return (self.folder / f"{NAMES[quant]}.gguf").stat().st_size

    def sent(self, quant: str = "Q8_0") -> int:
        return self.hub.sent[REPO, f"{NAMES[quant]}.gguf"]

    def place(self, quant: str = "Q8_0") -> str:
        sha256 = hashlib.sha256((self.folder / f"{NAMES[quant]}.gguf").read_bytes()).hexdigest()
        return f"{MODELS}/{NAMES[quant]}-{sha256[:8]}/{NAMES[quant]}.gguf"

    def sum_on(self, host: Host, quant: str = "Q8_0") -> bool:
        """Whether a host has the right bytes under the name."""
        there = host.root / self.place(quant).lstrip("/")
        return there.exists() and there.read_bytes() == (self.folder / f"{NAMES[quant]}.gguf").read_bytes()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with Lab(hosts=3, name="models", internet=False) as lab, Hub(network.address(lab.record.subnet, 1)) as hub:
        yield Models(lab, tmp_path_factory.mktemp("models"), hub)


def test_from_the_hub_by_a_host_without_anything(models: Models) -> None:
    """Its Python has none of the Hub's client; the controller brings that, and the host asks the Hub itself."""
    host = models.lab.hosts[0]
    assert host.run("python3 -c 'import huggingface_hub'", check=False).returncode == 1
    run = models.run(hosts=[host]).green()
    assert "venv " in run.stderr
    assert models.sum_on(host)
    assert models.sent() == models.size()
    stamp = json.loads(host.run(f"cat {models.place()}.stamp").stdout)
    assert (stamp["source"]["on"], stamp["source"]["repo"]) == ("hub", REPO)
    before = len(models.hub.requests)
    models.run(hosts=[host]).unchanged()
    assert len(models.hub.requests) == before
    assert "whole" in host.run("ls /opt/wsllama/venv/*").stdout
    assert not host.run("ls /var/cache/wsllama").stdout.strip()


def test_the_service_can_read_its_model_and_not_write_it(models: Models) -> None:
    host, place = models.lab.hosts[0], models.place()
    assert host.run(f"stat -c '%U:%G %a' {place}").stdout.strip() == "root:llama 640"
    assert host.run(f"runuser -u llama -- head -c 4 {place}").stdout == "GGUF"
    for what in (f"echo x >>{place}", f"rm -f {place}", f"touch $(dirname {place})/x"):
        assert host.run(f'runuser -u llama -- sh -c "{what}"', check=False).returncode != 0
    assert host.run(f"runuser -u nobody -- head -c 4 {place}", check=False).returncode != 0
    host.run(f"chmod 666 {place}")
    assert models.run(hosts=[host]).green().changed() == ["model"]
    assert host.run(f"stat -c '%a' {place}").stdout.strip() == "640"


def test_a_token_from_a_file_leaves_no_trace(models: Models) -> None:
    host, token = models.lab.hosts[0], models.folder / "token"
    token.write_text(f"{models.hub.token}\n")
    models.hub.repos[REPO].gated = True
    try:
        other = {host.name: {"model": models.model("UD-Q4_K_M")}}
        refused = models.run(other, hosts=[host])
        assert refused.returncode == 1
        assert "it is gated: accept the terms" in refused.stderr
        assert models.sum_on(host), "what was there stays"
        models.run({host.name: {"model": models.model("UD-Q4_K_M", token_file=str(token))}}, hosts=[host]).green()
    finally:
        models.hub.repos[REPO].gated = False
    assert models.sum_on(host, "UD-Q4_K_M")
    assert models.sum_on(host), "another quant leaves the first"
    assert host.run(f"grep -rl {models.hub.token} /var /etc /opt /tmp /run /root", check=False).stdout == ""


def test_old_models_go_when_that_is_wanted(models: Models) -> None:
    host = models.lab.hosts[0]
    told = json.loads(models.wsllama("models", str(models.inventory(hosts=[host])), "--json").stdout)["hosts"][host.name]
    assert sorted(file["bytes"] for file in told["files"]) == sorted(models.size(quant) for quant in NAMES)
    assert (told["bytes"], told["free_bytes"] > 0) == (sum(models.size(quant) for quant in NAMES), True)
    keep_one = {host.name: {"model": models.model("UD-Q4_K_M", keep_models=1)}}
    models.run(keep_one, hosts=[host]).unchanged()
    keep_none = {host.name: {"model": models.model("UD-Q4_K_M", keep_models=0)}}
    unfinished = f"{MODELS}/.incoming/other.gguf-9.part"
    host.run(f"echo x >{unfinished}")
    models.run(keep_none, hosts=[host]).unchanged()
    assert models.sum_on(host), "a run that hasn't switched to it yet may have brought it"
    host.run(f"touch -d '4 days ago' {MODELS}/*/.awaited {unfinished}")
    told = models.wsllama("models", str(models.inventory(hosts=[host]))).stdout
    assert "other.gguf-9.part" in told
    assert "abandoned" in told
    host.run(f"mkdir -p /opt/wsllama/releases/1 && ln -s releases/1 /opt/wsllama/last-good && ln -s $(dirname {models.place()})"
             " /opt/wsllama/releases/1/model")  # fmt: skip
    run = models.run(keep_none, hosts=[host]).green()
    assert "unfinished files removed: other.gguf-9.part" in run.stderr
    assert host.run(f"ls {unfinished}", check=False).returncode
    assert models.sum_on(host), "the last good release needs it, whatever was seen"
    host.run("rm -r /opt/wsllama/last-good /opt/wsllama/releases")
    run = models.run(keep_none, hosts=[host]).green()
    assert "models removed: " in run.stderr
    assert host.run(f"ls {MODELS}").stdout.split() == [Path(models.place("UD-Q4_K_M")).parent.name]
    models.run(keep_none, hosts=[host]).unchanged()


@contextmanager
def mirrored(models: Models) -> Iterator[str]:
    """`wsllama mirror` on the bridge; its address."""
    address = network.address(models.lab.record.subnet, 1)
    words = [
        str(BIN / "wsllama"),
        "mirror",
        NAMES["Q8_0"],
        "--lock",
        str(models.lock),
        "--address",
        address,
        "--port",
        "0",
        "--json",
    ]
    process = subprocess.Popen(words, cwd=ROOT, env=models.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stderr
    threading.Thread(target=process.stderr.read, daemon=True).start()
    try:
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)["url"]
                break
    finally:
        process.terminate()
        process.wait(timeout=300)


def test_three_hosts_take_one_download(models: Models) -> None:
    """Two of them at once start from nothing, one has half of it already."""
    hosts, before = models.lab.hosts, models.sent()
    half = hosts[2].root / f"{MODELS.lstrip('/')}/.incoming"
    half.mkdir(parents=True)
    size = models.size()
    (half / f"{NAMES['Q8_0']}.gguf-{size}.part").write_bytes((models.folder / f"{NAMES['Q8_0']}.gguf").read_bytes()[: size // 2])
    hosts[0].run(f"rm -rf {MODELS}/*")
    with mirrored(models) as url:
        model = {"name": NAMES["Q8_0"], "lock_file": str(models.lock), "source": "url", "url": url}
        models.base = {"platform": "linux", "model": model}
        try:
            run = models.run().green()
            assert all(models.sum_on(host) for host in hosts)
            assert models.sent() - before == size, "the mirror's own download, once"
            assert "goes on after the" in run.stderr
            models.run().unchanged()
        finally:
            models.base = {"platform": "linux", "model": models.model()}
    with mirrored(models):
        assert models.sent() - before == size, "it was there"


def test_a_swapped_file_of_equal_size_and_time_is_found_and_fetched_again(models: Models) -> None:
    host, place = models.lab.hosts[1], models.place()
    there = host.root / place.lstrip("/")
    was = there.stat()
    with there.open("r+b") as file:
        file.seek(was.st_size - 40)
        file.write(b"\xff")
    os.utime(there, ns=(was.st_atime_ns, was.st_mtime_ns))
    models.run(hosts=[host]).unchanged()
    found = models.wsllama("verify", str(models.inventory(hosts=[host])), "--deep", "--json", code=1)
    reasons = [f["reason"] for f in json.loads(found.stdout)["failures"] if f["check"] == "the model's bytes"]
    assert len(reasons) == 1
    assert f"{place}: it has sha256 " in reasons[0]
    before = models.sent()
    with there.open("rb") as as_a_server_has_it:
        assert models.run(hosts=[host]).green().changed() == ["model"]
        assert models.sent() - before == models.size()
        assert models.sum_on(host)
        assert as_a_server_has_it.read()[-40] == 0xFF, "what is open is not written to"
    again = json.loads(models.wsllama("verify", str(models.inventory(hosts=[host])), "--deep", "--json", code=1).stdout)
    assert not [f for f in again["failures"] if f["check"] == "the model's bytes"]


def test_what_the_settings_mean_is_refused_before_connecting(models: Models) -> None:
    host = models.lab.hosts[0]
    held = json.loads(models.lock.read_text())
    for name, changes, said in (
        ("no-sum", {"files": [{"sha256": None, "sha256_from": None, "why_no_sha256": "x"}]}, "has no sha256 of"),
        ("licence", {"licence": "other"}, "its licence 'other' is none of those that are allowed"),
        ("publisher", {"repo": "someone/m", "publisher": "someone"}, "its publisher 'someone' is none of those that are allowed"),
        ("unofficial", {"repo": "unsloth/Abliterated"}, "it says 'abliterated' of itself"),
    ):
        pin = json.loads(json.dumps(held["models"][NAMES["Q8_0"]]))
        for key, value in changes.items():
            pin[key] = [{**pin[key][0], **value[0]}] if key == "files" else value  # type: ignore[dict-item]
        held["models"][name] = pin
        models.lock.write_text(json.dumps(held))
        run = models.run({host.name: {"model": {"name": name, "lock_file": str(models.lock)}}}, hosts=[host])
        assert run.returncode == 2
        assert said in run.stderr


def test_a_path_as_windows_spells_it(models: Models) -> None:
    """The drive is where its mount says, and the file may be called otherwise than in the lock."""
    host, name = models.lab.hosts[2], "model (1).gguf"
    host.run(f"rm -rf {MODELS}/*")
    with WslMachine(host, root="/win") as machine:
        folder = machine.path("/win/c/Users/Ada/My Models")
        folder.mkdir()
        shutil.copy(models.folder / f"{NAMES['Q8_0']}.gguf", folder / name)
        found = {"name": NAMES["Q8_0"], "lock_file": str(models.lock)}
        models.base = {"platform": "linux", "model": {**found, "path": rf"C:\Users\Ada\My Models\{name}"}}
        try:
            models.run(hosts=[host]).green()
            assert models.sum_on(host)
            source = json.loads(host.run(f"cat {models.place()}.stamp").stdout)["source"]
            assert source["path"] == f"/win/c/Users/Ada/My Models/{name}"
            models.run(hosts=[host]).unchanged()
            models.base["model"].update(path=r"E:\m.gguf", name=NAMES["UD-Q4_K_M"])
            run = models.run(hosts=[host])
            assert run.returncode == 1
            assert r"E:\m.gguf: the drive E: is not mounted here" in run.stderr
        finally:
            models.base = {"platform": "linux", "model": models.model()}


@pytest.mark.full  # test_settings_change.py deploys from the Hub in the plain suite, and the tests above damage files
def test_a_deploy_from_the_hub_serves_it(deployed: Deployed, tmp_path: Path) -> None:
    """The whole deploy, and the good service goes on while what was damaged is fetched again."""
    host = deployed.lab.hosts[0]
    with Hub(network.address(deployed.lab.record.subnet, 1)) as hub:
        name = "Qwen3.6-35B-A3B-Q8_0"
        hub.add(REPO, {f"{name}.gguf": deployed.model}, card=CARD)
        lock = tmp_path / "models.lock"
        shutil.copy(ROOT / "wsllama.lock", lock)
        environment = {**os.environ, "HF_ENDPOINT": hub.url}
        words = [str(BIN / "wsllama"), "lock", "add", REPO, "--quant", "Q8_0", "--lock", str(lock)]
        subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True)
        model = {"name": name, "lock_file": str(lock), "endpoint": hub.url, "path": None}
        data = {host.name: {"model": model}}
        run: Run = deployed.run(data, hosts=[host]).green()
        assert "model" in run.changed()
        assert answers(host)
        deployed.run(data, hosts=[host]).unchanged()
        place = json.loads(host.run("cat /opt/wsllama/current/release.json").stdout)["model"]["file"]
        pid = main_pid(host)
        before = hub.sent[REPO, f"{name}.gguf"]
        host.run(f"cd {MODELS} && head -c 1000 {place} >x && mv x {place}")  # the server has the one before open
        assert (main_pid(host), answers(host)) == (pid, True)
        deployed.run(data, hosts=[host]).green()
        assert hub.sent[REPO, f"{name}.gguf"] - before == deployed.model.stat().st_size
        assert answers(host)
        deployed.run(data, hosts=[host]).unchanged()
