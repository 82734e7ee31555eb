"""Two hosts, converged in one run: what stands there, what a second run costs, and what a user of it is told."""

import json
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.fleet import replay
from lab.lab import Host
from tests.lab.deployed import LIMIT_S, ROOT, Deployed, Run, main_pid, wsllama

CHAT = {"model": "qwen3.6-35b-a3b", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.bare_hosts
def test_two_hosts_converge_in_one_run(deployed_once: Deployed) -> None:
    """One of them builds, the other is like it and gets what was built."""
    first = deployed_once.first.green()
    for name, way in zip(deployed_once.names, ("build", "receive"), strict=True):
        stages = ["user of the service", "folders", "packages", way, "model", "release", "service", "watchdog", "accepted"]
        assert [op for op in first.changed(name) if op != "apt and certificates"] == stages


@pytest.fixture(scope="module")
def second(deployed: Deployed) -> Run:
    return deployed.run(counted=True)


def test_second_run_changes_nothing(second: Run, deployed: Deployed) -> None:
    second.unchanged()
    for name in deployed.names:
        assert len(second.operations("no_change", name)) == len(second.results["operations"])


def test_no_op_costs_two_commands_a_host(second: Run, deployed: Deployed) -> None:
    """The probe and acceptance, with every stage of the deploy in it; no file transfer among them."""
    stages = ("preflight", "distro", "llama.cpp", "model", "server", "acceptance")
    looked = [str(o["name"]) for o in second.results["operations"]]
    assert list(dict.fromkeys(name.partition(" | ")[0] for name in looked)) == list(stages)
    assert {"server | stages before", "server | watchdog"} <= set(looked)
    for name in deployed.names:
        assert [command.rpartition(" # ")[2].strip("'") for command in second.commands[name]] == ["probe", "accept"]


def test_64_hosts_go_through_the_whole_deploy(deployed: Deployed, tmp_path: Path) -> None:
    """They are @fake hosts and answer as a real one did; what each of them takes of the controller's memory is bounded."""
    alone = deployed.inventory(hosts=deployed.lab.hosts[:1], name="alone")
    real = replay.watched(alone, tmp_path, deployed.environment)
    assert (real.unchanged, len(real.answers)) == (1, 2)
    few, many = (
        replay.watched(replay.fakes(count, real.answers, deployed.base, tmp_path), tmp_path, deployed.environment)
        for count in (4, 64)
    )
    assert (few.unchanged, many.unchanged) == (4, 64)
    assert list(many.commands.values()) == [2] * 64
    assert (many.memory - few.memory) / 60 < 1 << 20


def test_works_as_a_user_with_sudo(deployed: Deployed) -> None:
    run = deployed.run({name: {"ssh_user": "deploy", "_sudo": True} for name in deployed.names}, counted=True)
    run.unchanged()
    assert all(command.startswith("sudo") for name in deployed.names for command in run.commands[name])


def test_end_state_is_verified(deployed: Deployed) -> None:
    p = wsllama("verify", str(deployed.inventory()), "--json")
    report = json.loads(p.stdout)
    assert p.returncode == 0, report
    assert report["hosts"] == deployed.names
    assert (report["failed"], report["unreachable"]) == (0, {})
    assert report["passed"] >= 20 * len(deployed.names)


def test_ask_gets_reasoning_and_an_answer(deployed: Deployed) -> None:
    p = wsllama("ask", str(deployed.inventory()), "Are you ready?", "--json")
    assert p.returncode == 0, p.stderr
    for name in deployed.names:
        reply = json.loads(p.stdout)["replies"][name]
        assert "think" in reply["reasoning"]
        assert reply["content"].strip() == "READY"


def test_version_names_the_lock(deployed: Deployed) -> None:
    pin = json.loads((ROOT / "wsllama.lock").read_text())["llama_cpp"]
    for host in deployed.lab.hosts:
        version = host.run(["/opt/wsllama/current/build/bin/llama-server", "--version"]).stderr
        assert pin["commit"][:9] in version
        assert re.search(rf"\bbuild {pin['build_number']}\b", version)


def test_baseline_is_kept(deployed: Deployed) -> None:
    for host in deployed.lab.hosts:
        baseline = json.loads(host.run(["cat", "/opt/wsllama/current/baseline.json"]).stdout)
        assert "llama" in baseline["version"] or "build" in baseline["version"]
        assert baseline["model"]["file"].endswith("/tiny.gguf")
        assert baseline["n_ctx"] == 8192
        assert baseline["kv_type"] == {"k": "f16", "v": "f16"}
        assert 0 < baseline["memory"]["MemAvailable"] <= baseline["memory"]["MemTotal"]
        assert baseline["server_rss"] > 10_000_000


def last_words(text: str, host: str) -> dict[str, str]:
    """What the end of a run says about a host: label -> the rest of its line."""
    lines = text.rstrip().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{host} serves "))
    return {key: rest for key, _, rest in (line.strip().partition("  ") for line in lines[start + 1 : start + 7])}


def test_last_lines_say_how_to_connect(second: Run, deployed: Deployed) -> None:
    for host in deployed.lab.hosts:
        told = {key: rest.strip() for key, rest in last_words(second.stderr, host.name).items()}
        assert told["base URL"] == "http://127.0.0.1:8080/v1"
        assert told["model id"] == "qwen3.6-35b-a3b"
        assert told["API key"] == "none is asked for"
        assert told["PowerShell"].startswith("Invoke-RestMethod ")
        assert answer(host, told["curl"]) == "READY"
    assert second.stderr.rstrip().splitlines()[-1].startswith("  PowerShell")


def answer(host: Host, curl: str, user: str = "root") -> str:
    """The reply to a command line for curl, run on a host; hosts of the lab have no curl, so this machine's is lent."""
    lend_curl(host)
    text: str = json.loads(host.run(curl, user=user).stdout)["choices"][0]["message"]["content"]
    return text.strip()


def lend_curl(host: Host) -> None:
    if host.run("command -v curl", check=False).returncode:
        host.run("apt-get -qq update && apt-get -qq install -y --no-install-recommends curl")


def status(host: Host, key: str | None = None) -> int:
    """The status of a chat request with this key."""
    header = f"-H {shlex.quote(f'Authorization: Bearer {key}')}" if key else ""
    body = shlex.quote(json.dumps(CHAT))
    line = f"curl -s -o /dev/null -w '%{{http_code}}' {header} -H 'Content-Type: application/json' -d {body}"
    return int(host.run(f"{line} http://127.0.0.1:8080/v1/chat/completions").stdout)


def test_key_is_asked_for_and_seen_nowhere(deployed: Deployed) -> None:
    host, other = deployed.lab.hosts
    data = {host.name: {"server": {"api_key": True}, "ssh_user": "deploy", "_sudo": True}}
    run = deployed.run(data).green()
    assert run.changed(host.name) == ["API key", "release", "service", "accepted"]
    assert run.changed(other.name) == []
    assert deployed.run(data).unchanged()

    lend_curl(host)
    key = host.run(["cat", "/etc/wsllama/api-key"]).stdout.strip()
    assert len(key) >= 40
    assert host.run(["stat", "-c", "%a %U:%G", "/etc/wsllama/api-key"]).stdout.strip() == "640 root:llama"
    assert host.run(["cat", "/etc/wsllama/api-key"], user="plain", check=False).returncode != 0
    assert (status(host), status(host, "wrong"), status(host, key)) == (401, 401, 200)
    told = last_words(run.stderr, host.name)
    assert told["API key"].strip() == "/etc/wsllama/api-key on the host"
    assert answer(host, told["curl"].strip(), user="deploy") == "READY"

    pid = main_pid(host)
    assert key not in host.run(f"cat /proc/{pid}/cmdline /proc/{pid}/environ | tr '\\0' '\\n'; ps axww -o args").stdout
    assert key not in host.run(["systemctl", "show", "llama-server.service"]).stdout
    assert key not in host.run(["journalctl", "--no-pager", "-q"]).stdout
    folders = "/etc /opt/wsllama /var/lib/wsllama /var/log/wsllama"
    assert host.run(f"grep -rlF -f /etc/wsllama/api-key {folders}", check=False).stdout == "/etc/wsllama/api-key\n"
    assert key not in run.stdout + run.stderr
    assert deployed.run().green().changed(host.name) == ["release", "service", "accepted"]


def test_a_look_ahead_counts_the_restart_that_a_new_release_brings(deployed: Deployed) -> None:
    name = deployed.names[0]
    words = [
        w for w in deployed.command(deployed.inventory({name: {"server": {"ctx_size": 4096}}}), "--dry", "--json") if w != "-y"
    ]
    p = subprocess.run(words, cwd=ROOT, env=deployed.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    plan = json.loads(p.stdout)["plan"]
    assert [o["name"].rpartition(" | ")[2] for o in plan if name in o["hosts_with_change"]] == ["release", "service"]
    deployed.run().unchanged()


def test_model_on_the_command_line(deployed: Deployed) -> None:
    bare = deployed.lab.inventory(
        deployed.folder / "bare", {name: {"server": {"threads": 1, "ctx_size": 8192}} for name in deployed.names}
    )
    data = json.dumps({"path": str(deployed.model)})
    deployed.pyinfra(bare, "--data", f"model={data}").unchanged()


# The literal command, on the machine itself


def checkout(target: Path) -> None:
    """The files of HEAD, as a fresh clone has them."""
    target.mkdir()
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    if subprocess.run([*git, "rev-parse", "-q", "--verify", "HEAD"], capture_output=True).returncode:
        pytest.skip("this is no checkout of git")
    packed = subprocess.run([*git, "archive", "HEAD"], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "--no-same-owner", "-C", str(target)], input=packed, check=True)


def pip_environment(host: Host) -> str:
    """This machine's way to its Python index, for a shell on the host: index, proxy, and certificates that both have."""
    names = {"index-url", "proxy", "trusted-host", "cert"}
    listed = subprocess.run(["python3", "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        name, value = name.rpartition(".")[2], value.strip("'\"")
        if name in names and (not value.startswith("/") or host.run(["test", "-e", value], check=False).returncode == 0):
            found[f"PIP_{name.upper().replace('-', '_')}"] = value
    return " ".join(f"export {name}={shlex.quote(value)};" for name, value in found.items())


def test_literal_command_on_the_machine_itself(deployed: Deployed) -> None:
    """scripts/setup and `pyinfra inventory deploy.py` in a fresh checkout, on a host whose build and model are gone."""
    host = deployed.lab.hosts[1]
    checkout(host.root / "root/wsllama")
    (host.root / "root/tiny.gguf").write_bytes(deployed.model.read_bytes())
    settings = (
        '\nplatform = "linux"\nmodel = {"path": "/root/tiny.gguf"}\nserver = {"threads": 1}\nacceptance = {"long_prompt_s": 0}\n'
    )
    with (host.root / "root/wsllama/group_data/all.py").open("a") as f:
        f.write(settings)
    host.run("systemctl stop llama-server; rm -rf /opt/wsllama /var/lib/wsllama/models/*")
    env = pip_environment(host)
    try:
        host.run(f"cd wsllama && {env} scripts/setup", timeout=LIMIT_S)
        began = time.monotonic()
        first = host.run(f"cd wsllama && {env} pyinfra inventory deploy.py -y", timeout=LIMIT_S)
        print(f"{time.monotonic() - began:.0f} s")
        assert answer(host, last_words(first.stderr, "@local")["curl"].strip()) == "READY"
        again = host.run("cd wsllama && pyinfra inventory deploy.py -y --json", timeout=LIMIT_S)
        Run(0, again.stdout, again.stderr, 0, {}).unchanged()
    finally:
        host.run("rm -rf wsllama tiny.gguf .cache/wsllama /usr/local/bin/pyinfra /usr/local/bin/wsllama")
