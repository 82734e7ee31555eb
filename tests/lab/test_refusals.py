"""Bad input: one clear sentence, a non-zero exit code, and the service that was there goes on serving.

What can be known here is refused before anything connects (exit 2); what only a host knows fails that host alone (exit 1).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab import Lab, tiny_model
from lab.lab import Host
from tests.lab.deployed import BIN, LIMIT_S, ROOT, UNIT, Deployed, Run, answers, arguments_of, wait_for, wsllama
from wsllama import lock
from wsllama.sources import true_pin_repository

PIN = lock.load(ROOT / "wsllama.lock").llama_cpp
UNKNOWN = "0123456789abcdef0123456789abcdef01234567"


# Before connecting


@dataclass
class Nowhere:
    """A port here that notices who connects, and inventories that lead to it."""

    listener: socket.socket
    folder: Path
    model: Path

    def inventory(self, hosts: Mapping[str, Mapping[str, Any]], name: str = "inventory") -> Path:
        address, port = self.listener.getsockname()
        where = {"ssh_hostname": address, "ssh_port": port, "platform": "linux"}
        entries = [(h, {**where, "model": {"path": str(self.model)}, **data}) for h, data in hosts.items()]
        path = self.folder / name
        path.write_text(f"hosts = {entries!r}\n")
        return path

    def untouched(self) -> bool:
        """Whether nobody connected since the last call."""
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return True
        return False


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nowhere]:
    folder = tmp_path_factory.mktemp("nowhere")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield Nowhere(listener, folder, tiny_model.write(folder / "good.gguf"))


def deploy(
    inventory: Path | str, *options: str, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`pyinfra INVENTORY deploy.py …`, without a terminal."""
    words = [str(BIN / "pyinfra"), str(inventory), str(ROOT / "deploy.py"), *options]
    return subprocess.run(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)


def refusals(p: subprocess.CompletedProcess[str]) -> list[str]:
    """What a command refused; asserts that it ended as a refusal does."""
    assert p.returncode == 2, p.stderr
    assert "Traceback" not in p.stderr
    assert "exception" not in p.stderr
    return [line.removeprefix("refused: ") for line in p.stderr.splitlines() if line.startswith("refused: ")]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"server": {"ctx_sise": 4096}}, "unknown setting server.ctx_sise: did you mean server.ctx_size?"),
    "topic": ({"acceptence": {}}, "unknown setting acceptence: did you mean acceptance?"),
    "elsewhere": ({"port": 8081}, "unknown setting port: did you mean server.port?"),
    "value": ({"server": {"port": 99999}}, "server.port = 99999: Input should be less than or equal to 65535"),
    "kind": ({"server": {"ctx_size": "big"}}, "server.ctx_size = 'big': Input should be a valid integer"),
    "open": ({"server": {"host": "0.0.0.0"}}, "host 0.0.0.0 is not loopback, so clients must be asked for a key: set api_key"),
    "cache": (
        {"server": {"cache_type_v": "q8_0", "flash_attn": "off"}},
        "cache_type_v q8_0 needs flash attention, but flash_attn is off",
    ),
    "unset": ({"model": {}}, "model.path is not set: give the GGUF"),
    "missing": ({"model": {"path": "/nowhere/m.gguf"}}, "model.path: there is no file /nowhere/m.gguf on this machine"),
    "truncated": ({"model": {"path": "{folder}/truncated.gguf"}}, "truncated.gguf: it is cut off: it has 100000 bytes"),
    "page": ({"model": {"path": "{folder}/page.gguf"}}, "page.gguf: it is not a GGUF but an HTML page"),
    "archive": (
        {"llama_cpp": {"source": "archive", "archive": "/nowhere/a.tar.gz", "archive_sha256": "0" * 64}},
        "llama_cpp.archive: there is no file /nowhere/a.tar.gz on this machine",
    ),
    "pin": ({"llama_cpp": {"commit": UNKNOWN}}, f"llama_cpp.commit: {UNKNOWN} needs llama_cpp.source git or archive"),
}


@pytest.fixture(scope="module")
def wrong(nowhere: Nowhere) -> Path:
    """An inventory of hosts of which each has another mistake, and one good one."""
    (nowhere.folder / "truncated.gguf").write_bytes(nowhere.model.read_bytes()[:100_000])
    (nowhere.folder / "page.gguf").write_text("<!DOCTYPE html>\n<html><body>Entry not found</body></html>\n")
    hosts: dict[str, Any] = json.loads(
        json.dumps({h: data for h, (data, _) in WRONG.items()}).replace("{folder}", str(nowhere.folder))
    )
    return nowhere.inventory({**hosts, "good": {}}, "wrong")


@pytest.fixture(scope="module")
def refused(nowhere: Nowhere, wrong: Path) -> list[str]:
    """What the deploy says about them; nobody was connected to."""
    sentences = refusals(deploy(wrong, "-y"))
    assert nowhere.untouched()
    return sentences


@pytest.mark.parametrize("host", WRONG)
def test_a_mistake_is_named_with_its_host(host: str, refused: list[str]) -> None:
    said = [sentence for sentence in refused if sentence.startswith(f"{host}: ")]
    assert len(said) == 1
    assert WRONG[host][1] in said[0]


def test_nothing_is_said_about_a_good_host(refused: list[str]) -> None:
    assert len(refused) == len(WRONG)


def test_check_says_the_same_without_connecting(nowhere: Nowhere, wrong: Path, refused: list[str]) -> None:
    p = wsllama("check", str(wrong), "--json")
    assert refusals(p) == refused
    assert json.loads(p.stdout) == {"ok": False, "errors": refused}
    assert nowhere.untouched()


def test_check_of_good_hosts(nowhere: Nowhere) -> None:
    p = wsllama("check", str(nowhere.inventory({"a": {}, "b": {"server": {"ctx_size": 4096}}})), "--json")
    assert (p.returncode, json.loads(p.stdout)) == (0, {"ok": True, "errors": [], "hosts": ["a", "b"]})
    assert nowhere.untouched()


@pytest.mark.parametrize(
    ("inventory", "options", "sentence"),
    [
        ("empty", ["-y"], "the inventory empty holds no host: give a file that lists some"),
        ("nosuch", ["-y"], "there is no inventory nosuch: give a file that is there, or hosts with commas between them"),
        ("unclosed", ["-y"], "the inventory unclosed can't be read: SyntaxError: '[' was never closed (unclosed, line 1)"),
        ("folder", ["-y"], "the inventory folder can't be read: IsADirectoryError"),
        ("good", ["-y", "--limit", "nosuch"], "--limit nosuch matches no host and no group of the inventory"),
        ("good", ["-y", "--exclude", "a"], "--limit and --exclude leave no host"),
        ("good", ["-y", "--no-wait"], "--no-wait reports success for hosts that failed: leave it out"),
        ("good", [], "there is no terminal to ask on: give -y to change things, or --dry to look"),
    ],
)
def test_a_command_that_would_do_nothing_or_hide_failures(
    nowhere: Nowhere, inventory: str, options: list[str], sentence: str
) -> None:
    nowhere.inventory({"a": {}}, "good")
    (nowhere.folder / "empty").write_text("hosts = []\n")
    (nowhere.folder / "unclosed").write_text("hosts = [\n")
    (nowhere.folder / "folder").mkdir(exist_ok=True)
    said = refusals(deploy(nowhere.folder / inventory, *options))
    assert len(said) == 1
    assert sentence in said[0].replace(f"{nowhere.folder}/", "")
    assert nowhere.untouched()
    if inventory != "good":
        assert refusals(wsllama("check", str(nowhere.folder / inventory))) == said


# On a host


def invocation(host: Host) -> str:
    """Which start of the service this is."""
    return host.run(["systemctl", "show", "--value", "-p", "InvocationID", UNIT]).stdout.strip()


def current(host: Host) -> str:
    return os.readlink(host.root / "opt/wsllama/current")


def said(run: Run, host: str) -> str:
    """What the run said about a host."""
    return "\n".join(line for line in run.stderr.splitlines() if f"[{host}]" in line)


def fails_alone(deployed: Deployed, data: Mapping[str, Any], *words: str, other: Mapping[str, Any] | None = None) -> Run:
    """Deploy both hosts, the first one with wrong data: it fails in these words, and the other one doesn't."""
    bad, good = deployed.names
    run = deployed.run({bad: data, good: other or {}})
    assert run.returncode == 1, run.stderr
    assert run.operations("error", bad) or bad in run.results["failed_hosts"], run.stderr
    assert not run.operations("error", good), run.stderr
    assert "Traceback" not in run.stderr
    for word in words:
        assert word in said(run, bad)
    return run


def refused_untouched(
    deployed: Deployed, data: Mapping[str, Any], *words: str, broken: AbstractContextManager[None] | None = None
) -> None:
    """The same, and the first host's service is the one that ran before, while nothing changed on the other one.

    + broken: what is wrong with the host during the run
    """
    host = deployed.lab.hosts[0]
    before = invocation(host), current(host)
    with broken or nullcontext():
        run = fails_alone(deployed, data, *words)
    assert not run.changed(deployed.names[1])
    assert (invocation(host), current(host)) == before
    assert answers(host)


@contextmanager
def mounted(host: Host, path: str, *options: str) -> Iterator[None]:
    """Something mounted over a folder of a host."""
    host.nsenter(["mount", *options, path])
    try:
        yield
    finally:
        host.nsenter(["umount", path])


def put(host: Host, path: str, data: bytes) -> None:
    target = host.root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def test_another_folder_where_config_py_is_not_read(deployed: Deployed, tmp_path: Path) -> None:
    before = [invocation(host) for host in deployed.lab.hosts]
    wanted = {name: {"server": {"ctx_size": 1024}} for name in deployed.names}
    p = deploy(deployed.inventory(wanted), "-y", cwd=tmp_path)
    assert p.returncode == 1
    assert "config.py was not read: run pyinfra in the project's own folder, or give --chdir" in p.stderr
    assert "Traceback" not in p.stderr
    assert [invocation(host) for host in deployed.lab.hosts] == before


def test_sha256_that_is_known_to_be_another(deployed: Deployed) -> None:
    inventory = deployed.inventory({deployed.names[0]: {"model": {"sha256": "0" * 64}}})
    p = deploy(inventory, "-y", env=deployed.environment)  # its cache has the sum of what was sent
    assert [f"not {'0' * 64}: give the right file, or the right sum" in s for s in refusals(p)] == [True]


def test_sha256_that_does_not_match(deployed: Deployed, tmp_path: Path) -> None:
    copy = shutil.copyfile(deployed.model, tmp_path / "copy.gguf")  # its sha256 isn't known yet
    model = {"path": str(copy), "sha256": "0" * 64}
    refused_untouched(deployed, {"model": model}, "copy.gguf has sha256", f"where {'0' * 64} was expected; nothing was changed")


def test_source_archive_with_one_byte_changed(deployed: Deployed, tmp_path: Path) -> None:
    data = bytearray(os.urandom(100_000))
    archive, sha256 = tmp_path / "llama.tar.gz", hashlib.sha256(data).hexdigest()
    data[50_000] ^= 1
    archive.write_bytes(data)
    source = {"source": "archive", "archive": str(archive), "archive_sha256": sha256, "commit": UNKNOWN}
    refused_untouched(deployed, {"llama_cpp": source}, f"the archive {archive} has sha256", f"instead of {sha256}")


def test_commit_that_a_git_repository_does_not_hold(deployed: Deployed) -> None:
    true_pin_repository(PIN, deployed.lab.hosts[0].root / "srv/pin.git")
    source = {"source": "git", "git_url": "file:///srv/pin.git", "commit": UNKNOWN}
    sentence = f"fetching {UNKNOWN} from file:///srv/pin.git failed"
    refused_untouched(deployed, {"llama_cpp": source}, sentence, "not our ref", "the whole log is /var/log/wsllama/build.log")


def test_truncated_model_on_the_host(deployed: Deployed) -> None:
    put(deployed.lab.hosts[0], "/srv/cut.gguf", deployed.model.read_bytes()[:100_000])
    sentence = "model.path: cut.gguf: it is cut off: it has 100000 bytes"
    refused_untouched(deployed, {"model": {"path": "/srv/cut.gguf", "on": "host"}}, sentence)


def test_missing_model_on_the_host(deployed: Deployed) -> None:
    sentence = "model.path: there is no file /srv/none.gguf on the host"
    refused_untouched(deployed, {"model": {"path": "/srv/none.gguf", "on": "host"}}, sentence)


@contextmanager
def program_at(host: Host, port: int) -> Iterator[None]:
    """Another program that listens on a port of a host."""
    host.run(f"setsid -f python3 -m http.server {port} --bind 127.0.0.1 >/dev/null 2>&1 </dev/null")
    host.run(f"until ss -Hltn sport = :{port} | grep -q .; do sleep 0.1; done")
    try:
        yield
    finally:
        host.run(["pkill", "-f", f"http.server {port}"])


def test_port_in_use_names_the_program(deployed: Deployed) -> None:
    sentence = "port 8099 is taken by python3 (pid "
    broken = program_at(deployed.lab.hosts[0], 8099)
    refused_untouched(deployed, {"server": {"port": 8099}}, sentence, "stop that, or set server.port", broken=broken)


@pytest.mark.parametrize(
    ("path", "data"), [("/var/lib/wsllama/models", {}), ("/var/cache/wsllama", {"llama_cpp": {"native": False}})]
)
def test_no_disk_space(deployed: Deployed, path: str, data: dict[str, Any]) -> None:
    broken = mounted(deployed.lab.hosts[0], path, "-t", "tmpfs", "-o", "size=100m", "tmpfs")
    refused_untouched(deployed, data, f"no disk space for {path}:", "are needed, 0.1 GB are free", broken=broken)


def test_host_without_systemd(deployed: Deployed) -> None:
    broken = mounted(deployed.lab.hosts[0], "/run/systemd", "-t", "tmpfs", "tmpfs")
    words = "systemd does not run here: put systemd=true below [boot] in /etc/wsl.conf", "run scripts/demo"
    refused_untouched(deployed, {}, *words, broken=broken)


def test_platform_wsl_on_another_machine(deployed: Deployed) -> None:
    words = "this is no WSL machine", "set platform to linux if that is meant", "run scripts/demo"
    refused_untouched(deployed, {"platform": "wsl"}, *words)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"_sudo": True}, "sudo asks for a password here, and there is no terminal"),
        ({"_sudo": True, "_sudo_password": "wrong"}, "sudo did not take the password: give the right one of this user"),
        ({"_sudo": False}, "needs root: log in as root, or set _sudo to True for this host"),
    ],
)
def test_user_without_rights(deployed: Deployed, data: dict[str, Any], sentence: str) -> None:
    refused_untouched(deployed, {"ssh_user": "plain", **data}, sentence)


def test_arguments_that_llama_server_refuses(deployed: Deployed) -> None:
    words = (
        "llama-server refuses the arguments of the settings: --no-such-flag",
        "service was not touched",
    )
    refused_untouched(deployed, {"server": {"extra_args": ["--no-such-flag"]}}, *words)


# A model that the server can't serve


def not_accepted(deployed: Deployed, data: Mapping[str, Any], *words: str) -> None:
    """The first host is not accepted, says why, and serves what it served before."""
    host = deployed.lab.hosts[0]
    before = current(host)
    number = before.rpartition("/")[2]
    fails_alone(deployed, data, "is not accepted: ", f"release {number} serves again", *words)
    assert current(host) == before
    assert answers(host)
    assert Path(arguments_of(host)[arguments_of(host).index("--model") + 1]).name == deployed.model.name


def test_model_of_an_unknown_architecture(deployed: Deployed, tmp_path: Path) -> None:
    """It never gets to a host."""
    (tmp_path / "other.gguf").write_bytes(deployed.model.read_bytes().replace(b"qwen35moe", b"qwen99moe"))
    run = deployed.run({deployed.names[0]: {"model": {"path": str(tmp_path / "other.gguf")}}})
    assert run.returncode == 2
    assert "its architecture is 'qwen99moe', but that of Qwen3.6-35B-A3B is 'qwen35moe': it is another model" in run.stderr


@pytest.mark.full  # test_rollback.py has a release that can't start in the plain suite
def test_model_that_llama_cpp_can_not_load(deployed: Deployed, tmp_path: Path) -> None:
    """Nothing in its header is wrong but that a tensor has another name."""
    data = deployed.model.read_bytes()
    assert data.count(b"output_norm.weight") == 1
    (tmp_path / "other.gguf").write_bytes(data.replace(b"output_norm.weight", b"output_nrom.weight"))
    words = "starts again and again", "output_norm.weight"
    not_accepted(deployed, {"model": {"path": str(tmp_path / "other.gguf")}}, *words)


@pytest.mark.full  # test_acceptance.py has such a model in the plain suite, with the limit and without
def test_model_that_thinks_without_end(deployed: Deployed, tmp_path: Path) -> None:
    loop = {"model": {"path": str(tiny_model.write(tmp_path / "loop.gguf", "loop"))}}
    words = "with thinking on there was no answer", "thinking used up all 256 tokens; give acceptance.thinking_tokens a limit"
    not_accepted(deployed, {**loop, "acceptance": {"thinking_tokens": -1}}, *words)
    host = deployed.lab.hosts[0]
    deployed.run({host.name: {**loop, "acceptance": {"thinking_tokens": 32}}}, hosts=[host]).green()
    words_now = arguments_of(host)
    assert words_now[words_now.index("--model") + 1].endswith("/loop.gguf")


@pytest.mark.full  # test_acceptance.py has models that answer wrongly in the plain suite
def test_model_that_says_nothing_sensible(deployed: Deployed, tmp_path: Path) -> None:
    """Random weights answer something or nothing; either the release counts, or the one before serves."""
    host = deployed.lab.hosts[0]
    good = os.readlink(host.root / "opt/wsllama/last-good")
    model = {"path": str(tiny_model.write(tmp_path / "random.gguf", "random"))}
    run = deployed.run({host.name: {"model": model}, deployed.names[1]: {}})
    assert "Traceback" not in run.stderr
    assert (run.returncode, "is not accepted: " in said(run, host.name)) in ((0, False), (1, True))
    assert os.readlink(host.root / "opt/wsllama/last-good") == current(host)
    assert (current(host) == good) == (run.returncode == 1)


# Hosts that fail alone


def test_host_that_cannot_be_reached(deployed: Deployed) -> None:
    bad, good = deployed.names
    deployed.lab.hosts[0].stop(kill=True)
    try:
        run = fails_alone(deployed, {}, other={"server": {"ctx_size": 2048}})
    finally:
        deployed.lab.hosts[0].start()
    wait_for(lambda: answers(deployed.lab.hosts[0]), "what is started at boot")
    assert run.results["failed_hosts"] == [bad]
    assert run.changed(good) == ["release", "service", "accepted"]
    assert answers(deployed.lab.hosts[1])


def test_host_that_is_broken(deployed: Deployed) -> None:
    good, settings = deployed.names[1], {"server": {"ctx_size": 4096}}
    with mounted(deployed.lab.hosts[0], "/opt", "--bind", "-o", "ro", "/opt"):
        run = fails_alone(deployed, settings, "/opt/wsllama", "Read-only file system", other=settings)
    assert run.changed(good) == ["release", "service", "accepted"]
    assert answers(deployed.lab.hosts[0])
    assert deployed.run(dict.fromkeys(deployed.names, settings)).green().changed(good) == []


def test_sources_that_are_blocked_are_named_before_the_first_change(tmp_path: Path, nowhere: Nowhere) -> None:
    with Lab(hosts=1, name="offline", internet=False) as lab:
        host = lab.hosts[0]
        before = (host.root / "var/lib/dpkg/status").read_bytes()
        p = deploy(lab.inventory(tmp_path / "inventory", {host.name: {"model": {"path": str(nowhere.model)}}}), "-y")
        assert p.returncode == 1
        assert "apt can't reach http" in p.stderr
        assert "check the network, or set network.proxy and network.ca_file" in p.stderr
        assert "Traceback" not in p.stderr
        assert (host.root / "var/lib/dpkg/status").read_bytes() == before
        assert host.run(["getent", "passwd", "llama"], check=False).returncode == 2
        assert not list(host.root.glob("*/wsllama")) + list(host.root.glob("var/*/wsllama"))
