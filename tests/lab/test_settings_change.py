"""Each setting, changed alone: it arrives on the host, and the second run has nothing to do. One setting on each host a run."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from lab import network, tiny_model
from lab.lab import Host
from tests.lab.deployed import Deployed, arguments_of, main_pid
from wsllama import lock, sources
from wsllama.bundle_maker import Maker
from wsllama.settings import LOCK, Settings, Topic

ROOT = Path(__file__).parents[2]
APT_CONF = "/etc/apt/apt.conf.d/80wsllama"
BUILD = "readlink -f /opt/wsllama/current/build"
PIN_ON_HOST = "/root/pin.git"


class World:
    """What settings point at, made when it is asked for: files here, files on a host, a repository, a proxy."""

    def __init__(self, deployed: Deployed) -> None:
        self.deployed, self.folder = deployed, deployed.folder
        self.pin = lock.load(ROOT / "wsllama.lock").llama_cpp
        self.asked_of_proxy: list[str] = []
        self.ends = contextlib.ExitStack()

    def repository(self) -> Path:
        """A bare repository with the pinned commit, and one commit on it whose hash is always the same."""
        path = self.folder / "pin.git"
        if not path.exists():
            path.mkdir()
            sources.true_pin_repository(self.pin, path)
            self.other_commit()
        return path

    def repository_on(self, host: Host) -> str:
        inside = host.root / PIN_ON_HOST.lstrip("/")
        if not inside.exists():
            subprocess.run(["cp", "-r", str(self.repository()), str(inside)], check=True)
            host.run(["chown", "-R", "root:root", PIN_ON_HOST])
        return PIN_ON_HOST

    def other_commit(self) -> str:
        """A commit with the pin's files and another hash, the same in every session."""
        who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
               for what, value in (("NAME", "t"), ("EMAIL", "t@example.org"), ("DATE", "1700000000 +0000"))}  # fmt: skip
        git = ["git", "-C", str(self.repository())]
        made = subprocess.run(
            [*git, "commit-tree", self.pin.tree, "-m", "another"], env=who, check=True, capture_output=True, text=True
        ).stdout.strip()
        subprocess.run([*git, "update-ref", "refs/heads/other", made], check=True)
        return made

    def archive(self, level: int) -> dict[str, str]:
        """The pinned tree as a tar.gz with one top folder; level: of compression, so that there are several sums."""
        path = self.folder / f"llama.cpp-{level}.tar.gz"
        if not path.exists():
            git = [
                "git",
                "-c",
                "safe.directory=*",
                "-C",
                str(self.repository()),
                "archive",
                "--prefix=llama.cpp/",
                self.pin.commit,
            ]
            packed = subprocess.run(git, check=True, capture_output=True).stdout
            path.write_bytes(gzip.compress(packed, level, mtime=0))
        return {"archive": str(path), "archive_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}

    def bundle(self) -> str:
        """A bundle for hosts that lack no package."""
        maker = Maker(self.folder / "bundle", LOCK, print)
        maker.source({})
        maker.finish()
        return str(maker.out)

    def proxy(self) -> str:
        """A proxy on the lab's bridge that writes down what it is asked for, and refuses it."""
        world = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                world.asked_of_proxy.append(self.path)
                self.send_error(502)

            do_GET = do_CONNECT = do_HEAD = answer

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer((network.address(self.deployed.lab.record.subnet, 1), 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.ends.callback(server.shutdown)
        return f"http://{server.server_address[0]!s}:{server.server_address[1]}"

    def certificate(self, host: Host) -> str:
        """A self-signed certificate in a file here; made on a host, which has openssl."""
        made = host.run("openssl req -x509 -newkey rsa:2048 -nodes -keyout /dev/null -subj /CN=test -days 2 2>/dev/null").stdout
        (self.folder / "ca.pem").write_text(made)
        return str(self.folder / "ca.pem")


@dataclass(frozen=True)
class Sample:
    """+ name: topic.field
    + data: what the inventory says of the host, from the world and the host; also what the field needs beside it
    + sees: asserts on the host that the setting arrived
    + before: makes the host need the setting
    + full: too long for the plain suite
    """

    name: str
    data: Callable[[World, Host], dict[str, Any]]
    sees: Callable[[World, Host], None]
    before: Callable[[World, Host], object] = field(default=lambda w, h: None)
    full: bool = False


def of_server(key: str, value: Any, *words: str, absent: bool = False) -> Sample:
    """A server setting; the running process must have these words side by side among its arguments, or not have them."""

    def sees(world: World, host: Host) -> None:
        running = arguments_of(host)
        there = any(tuple(running[i : i + len(words)]) == words for i in range(len(running)))
        assert there is not absent, f"{words} among {running}"

    return Sample(f"server.{key}", lambda w, h: {"server": {key: value}}, sees)


def of_acceptance(key: str, value: Any) -> Sample:
    """Nothing on the host follows from it: the same process goes on, and it is accepted with the setting."""
    return Sample(f"acceptance.{key}", lambda w, h: {"acceptance": {key: value}}, lambda w, h: None)


def has_file(path: str, text: str) -> Callable[[World, Host], None]:
    def sees(world: World, host: Host) -> None:
        assert text in host.run(f"cat {path}").stdout

    return sees


def no_build(world: World, host: Host) -> None:
    """Neither there nor kept here, so that this host has to build; the other one of the pair must have it."""
    host.run("rm -rf /opt/wsllama/builds/*")
    shutil.rmtree(world.deployed.cache / "wsllama/artifacts", ignore_errors=True)


def built_from(source: str) -> Callable[[World, Host], None]:
    def sees(world: World, host: Host) -> None:
        assert json.loads(host.run(f"cat $({BUILD})/build.json").stdout)["source"] == source

    return sees


def built_with(option: str, value: str) -> Callable[[World, Host], None]:
    def sees(world: World, host: Host) -> None:
        assert json.loads(host.run(f"cat $({BUILD})/build.json").stdout)["options"][option] == value

    return sees


def model_is(file: str, on: str) -> Callable[[World, Host], None]:
    def sees(world: World, host: Host) -> None:
        running = arguments_of(host)
        assert running[running.index("--model") + 1] == f"/opt/wsllama/current/model/{file}"
        stamp = json.loads(host.run(f"cat /opt/wsllama/current/model/{file}.stamp").stdout)
        assert stamp["source"]["on"] == on, stamp

    return sees


def other_model(world: World) -> str:
    path = world.folder / "other.gguf"
    return str(path if path.exists() else tiny_model.write(path, seed=2))


def model_on_host(world: World, host: Host) -> None:
    inside = host.root / str(world.deployed.model).lstrip("/")
    inside.parent.mkdir(parents=True, exist_ok=True)
    inside.write_bytes(world.deployed.model.read_bytes())


def names_commit(world: World, host: Host) -> None:
    version = host.run("/opt/wsllama/current/build/bin/llama-server --version 2>&1").stdout
    assert world.other_commit()[:9] in version


def runs_as_in_wsl(world: World, host: Host) -> None:
    assert "LD_LIBRARY_PATH=/usr/lib/wsl/lib" in host.run(f"cat /proc/{main_pid(host)}/environ | tr '\\0' '\\n'").stdout
    assert "/dev/dxg" in host.run("systemctl show -p DeviceAllow llama-server").stdout


def apt_asks_the_proxy(world: World, host: Host) -> None:
    world.asked_of_proxy.clear()
    host.run("apt-get -o Acquire::Retries=0 update", check=False)
    assert world.asked_of_proxy


def trusts(world: World, host: Host) -> None:
    assert host.run("cat /etc/wsllama/ca.pem").stdout == (world.folder / "ca.pem").read_text()
    assert 'CaInfo "/etc/wsllama/ca.pem"' in host.run(f"cat {APT_CONF}").stdout


def nothing(world: World, host: Host) -> None:
    """Takes effect in a build only, and there is one already."""


def git(world: World, host: Host) -> dict[str, Any]:
    return {"source": "git", "git_url": world.repository_on(host)}


CUDA = {
    "version": "13.0",
    "provider": "wheels",
    "compute": ["8.9"],
    "driver": "581.29",
    "architectures": ["89-virtual"],
    "flags": ["-Xptxas=-v"],
    "flash_attention": False,
    "require_gpu": False,
    "repository": "http://127.0.0.1/cuda",
    "key_file": "",
}


def archive(world: World, level: int) -> dict[str, Any]:
    return {"llama_cpp": {"source": "archive", **world.archive(level)}}


SAMPLES = [
    of_server("host", "127.0.0.2", "--host", "127.0.0.2"),
    of_server("port", 8081, "--port", "8081"),
    of_server("api_key", True, "--api-key-file", "/etc/wsllama/api-key"),
    of_server("ctx_size", 4096, "--ctx-size", "4096"),
    of_server("parallel", 2, "--parallel", "2"),
    of_server("cache_type_k", "q8_0", "--cache-type-k", "q8_0"),
    of_server("cache_type_v", "q8_0", "--cache-type-v", "q8_0"),
    of_server("flash_attn", "on", "--flash-attn", "on"),
    of_server("batch_size", 256, "--batch-size", "256"),
    of_server("ubatch_size", 64, "--ubatch-size", "64"),
    of_server("threads", 2, "--threads", "2"),
    of_server("n_gpu_layers", 0, "--n-gpu-layers", "0"),
    of_server("n_cpu_moe", 2, "--n-cpu-moe", "2"),
    of_server("load_mode", "mlock", "--load-mode", "mlock"),
    of_server("cache_ram", 64, "--cache-ram", "64"),
    of_server("ctx_checkpoints", 2, "--ctx-checkpoints", "2"),
    of_server("reasoning_budget", 200, "--reasoning-budget", "200"),
    of_server("metrics", False, "--metrics", absent=True),
    of_server("slots", True, "--slots"),
    of_server("extra_args", ["--top-k", "20"], "--top-k", "20"),
    Sample(
        "server.allow_tools",
        lambda w, h: {"server": {"allow_tools": True, "extra_args": ["--tools", "all"]}},
        lambda w, h: of_server("", "", "--tools", "all").sees(w, h),
    ),
    of_acceptance("prompt", "Say READY, with 'quotes' and \"more\"."),
    of_acceptance("thinking_tokens", 100),
    of_acceptance("answer_tokens", 50),
    of_acceptance("start_timeout_s", 100),
    of_acceptance("request_timeout_s", 100),
    Sample("model.path", lambda w, h: {"model": {"path": other_model(w)}}, model_is("other.gguf", "controller")),
    Sample("model.on", lambda w, h: {"model": {"on": "host"}}, model_is("tiny.gguf", "host"), model_on_host),
    Sample(
        "model.sha256",
        lambda w, h: {"model": {"sha256": hashlib.sha256(w.deployed.model.read_bytes()).hexdigest().upper()}},
        lambda w, h: None,
    ),
    Sample(
        "model.alias",
        lambda w, h: {"model": {"alias": "qwen/other:1"}},
        lambda w, h: of_server("", "", "--alias", "qwen/other:1").sees(w, h),
    ),
    Sample("network.proxy", lambda w, h: {"network": {"proxy": w.proxy()}}, apt_asks_the_proxy),
    Sample("network.ca_file", lambda w, h: {"network": {"ca_file": w.certificate(h)}}, trusts),
    Sample(
        "platform",
        lambda w, h: {"platform": "wsl", "llama_cpp": {"backend": "cpu"}},
        runs_as_in_wsl,
        lambda w, h: h.run(["mkdir", "-p", "/run/WSL"]),
    ),
    Sample("keep_releases", lambda w, h: {"keep_releases": 1}, lambda w, h: None),  # heeded when a release is accepted next
    Sample("llama_cpp.backend", lambda w, h: {"llama_cpp": {"backend": "cpu"}}, nothing),
    Sample("llama_cpp.git_url", lambda w, h: {"llama_cpp": git(w, h)}, built_from("git"), no_build),
    Sample("llama_cpp.source", lambda w, h: {"llama_cpp": {"source": "git"}}, nothing),
    Sample("llama_cpp.archive", lambda w, h: archive(w, 1), built_from("tar"), no_build),
    Sample("llama_cpp.archive_sha256", lambda w, h: archive(w, 2), nothing),
    Sample("llama_cpp.commit", lambda w, h: {"llama_cpp": {**git(w, h), "commit": w.other_commit()}}, names_commit),
    Sample("llama_cpp.time_limit_minutes", lambda w, h: {"llama_cpp": {"time_limit_minutes": 60}}, nothing),
    Sample(
        "llama_cpp.jobs", lambda w, h: {"llama_cpp": {"jobs": 1}}, has_file("/var/log/wsllama/build.log", "with 1 jobs"), no_build
    ),
    # Without the backend cuda nothing of these may reach the host.
    Sample(" ".join(f"cuda.{key}" for key in CUDA), lambda w, h: {"cuda": {**CUDA, "key_file": w.certificate(h)}}, nothing),
    Sample(
        "bundle.path",
        lambda w, h: {"llama_cpp": {"source": "bundle"}, "bundle": {"path": w.bundle()}},
        built_from("tar"),
        no_build,
    ),
    Sample("llama_cpp.native", lambda w, h: {"llama_cpp": {"native": False}}, built_with("GGML_NATIVE", "OFF"), full=True),
    Sample(
        "llama_cpp.portable",
        lambda w, h: {"llama_cpp": {"portable": True}},
        built_with("GGML_CPU_ALL_VARIANTS", "ON"),
        full=True,
    ),
]
PLAIN = [s for s in SAMPLES if not s.full]
PAIRS = list(zip_longest(PLAIN[0::2], PLAIN[1::2]))
PAIRS += [(s, None) for s in SAMPLES if s.full]  # minutes of compiling that no cache has done before


def fields(topic: type[Topic]) -> Iterator[str]:
    """topic.field of everything below."""
    for name, f in topic.model_fields.items():
        inner = f.annotation
        if isinstance(inner, type) and issubclass(inner, Topic):
            yield from (f"{name}.{key}" for key in fields(inner))
        else:
            yield name


def test_every_setting_has_a_sample() -> None:
    assert sorted(name for s in SAMPLES for name in s.name.split()) == sorted(fields(Settings))


@pytest.fixture(scope="module")
def world(deployed: Deployed) -> Iterator[World]:
    made = World(deployed)
    with made.ends:
        yield made


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=" ".join(s.name for s in pair if s), marks=[pytest.mark.full] if pair[0].full else [])
        for pair in PAIRS
    ],
)
def test_one_setting_changed_and_run_twice(world: World, pair: tuple[Sample, Sample | None]) -> None:
    """The hosts are not put back in between: each run has to undo the setting before, too."""
    each = [(host, sample) for host, sample in zip(world.deployed.lab.hosts, pair, strict=True) if sample]
    data = {}
    for host, sample in each:
        sample.before(world, host)
        data[host.name] = sample.data(world, host)
    hosts = [host for host, _ in each]
    world.deployed.run(data, hosts=hosts).green()
    for host, sample in each:
        sample.sees(world, host)
    world.deployed.run(data, hosts=hosts).unchanged()
