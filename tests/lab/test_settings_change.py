"""Each setting, changed: it arrives on the host, and the second run has nothing to do. One setting on each host a run.

The plain suite changes some at once of those that go one way together, as the server's arguments do; the full one each alone.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from lab import network, tiny_model
from lab.hub import Hub
from lab.lab import Host
from tests.lab.deployed import Deployed, arguments_of, main_pid
from wsllama import lock, sources
from wsllama.bundle_maker import Maker
from wsllama.settings import LOCK, Settings, merge
from wsllama.settings_base import Topic

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

    def of_lock(self) -> dict[str, Any]:
        """The session's model, as a lock has it that was read from a Hub; of a publisher and under a licence of its own."""
        held = self.lock_with("tiny.gguf", "Small-Q8_0", self.deployed.model)
        names = {"name": "Small", "quant": "Q8_0", "lock_file": held}
        return {**names, "source": "path", "publishers": ["someone"], "licences": ["mit"]}

    def lock_with(self, file: str, name: str, path: Path) -> str:
        """A lock that has this file, besides what the project's has."""
        document = json.loads(LOCK.read_text(encoding="utf-8"))
        pin = next(iter(document["models"].values()))
        size, sha256 = path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
        sums = {"bytes": size, "bytes_from": "hub", "sha256": sha256, "sha256_from": "hub", "why_no_sha256": None}
        known = {**pin, "repo": "someone/small", "publisher": "someone", "licence": "mit", "quant": "Q8_0", "mmproj": None}
        document["models"][name] = {**known, "files": [{"path": file, **sums}], **self.revision}
        out = self.folder / f"{name}.lock"
        out.write_text(json.dumps(document))
        return str(out)

    @cached_property
    def revision(self) -> dict[str, str]:
        """Of the repository that the lab's Hub has."""
        return {"revision": self.hub.add("someone/small", {"third.gguf": self.third})}

    @cached_property
    def third(self) -> Path:
        return tiny_model.write(self.folder / "third.gguf", seed=3)

    @cached_property
    def hub(self) -> Hub:
        return self.ends.enter_context(Hub(network.address(self.deployed.lab.record.subnet, 1)))

    def of_hub(self) -> dict[str, Any]:
        """A repository that only a token may read."""
        held = self.lock_with("third.gguf", "Third", self.third)
        self.hub.repos["someone/small"].gated = True
        token = self.folder / "token"
        token.write_text(self.hub.token)
        of_it = {"name": "Third", "lock_file": held, "publishers": ["someone"], "licences": ["mit"]}
        return {**of_it, "path": None, "endpoint": self.hub.url, "token_file": str(token)}

    @cached_property
    def mirror(self) -> str:
        """An address of other.gguf, in a repository that everybody may read."""
        revision = self.hub.add("someone/open", {"other.gguf": Path(other_model(self))})
        return f"{self.hub.url}/someone/open/resolve/{revision}/other.gguf"

    def sha256_of_other(self) -> str:
        return hashlib.sha256(Path(other_model(self)).read_bytes()).hexdigest()

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
    + way: of those with the same one, several may be changed at once
    """

    name: str
    data: Callable[[World, Host], dict[str, Any]]
    sees: Callable[[World, Host], None]
    before: Callable[[World, Host], object] = field(default=lambda w, h: None)
    full: bool = False
    way: str = ""


def of_server(key: str, value: Any, *words: str, absent: bool = False) -> Sample:
    """A server setting; the running process must have these words side by side among its arguments, or not have them."""

    def sees(world: World, host: Host) -> None:
        running = arguments_of(host)
        there = any(tuple(running[i : i + len(words)]) == words for i in range(len(running)))
        assert there is not absent, f"{words} among {running}"

    return Sample(f"server.{key}", lambda w, h: {"server": {key: value}}, sees, way="arguments")


def of_acceptance(key: str, value: Any) -> Sample:
    """Nothing on the host follows from it: the same process goes on, and it is accepted with the setting."""
    return Sample(f"acceptance.{key}", lambda w, h: {"acceptance": {key: value}}, lambda w, h: None, way="acceptance")


def together(samples: Sequence[Sample]) -> Sample:
    """All of them on one host in one run."""

    def sees(world: World, host: Host) -> None:
        for sample in samples:
            sample.sees(world, host)

    return Sample(" ".join(s.name for s in samples), lambda w, h: merge([s.data(w, h) for s in samples]), sees)


def has_file(path: str, text: str) -> Callable[[World, Host], None]:
    def sees(world: World, host: Host) -> None:
        assert text in host.run(f"cat {path}").stdout

    return sees


def shows(unit: str, what: str, value: str) -> Callable[[World, Host], None]:
    """systemd says this value of a unit."""

    def sees(world: World, host: Host) -> None:
        assert host.run(["systemctl", "show", "--value", "-p", what, unit]).stdout.strip() == value

    return sees


def no_build(world: World, host: Host) -> None:
    """Neither there nor kept here, so that this host has to build; another one that has it would give it."""
    host.run("rm -rf /opt/wsllama/builds/*")
    shutil.rmtree(world.deployed.cache / "wsllama/artifacts", ignore_errors=True)


def built_from(source: str) -> Callable[[World, Host], None]:
    def sees(world: World, host: Host) -> None:
        assert json.loads(host.run(f"cat $({BUILD})/build.json").stdout)["source"] == source

    return sees


def built_by_one_job(world: World, host: Host) -> None:
    built_from("git")(world, host)
    assert "with 1 jobs" in host.run("cat /var/log/wsllama/build.log").stdout


def built_with(option: str, value: str) -> Callable[[World, Host], None]:
    def sees(world: World, host: Host) -> None:
        assert json.loads(host.run(f"cat $({BUILD})/build.json").stdout)["options"][option] == value

    return sees


def runs_code_of_its_kind(world: World, host: Host) -> None:
    """There is code for several kinds of processor, of which the server has loaded one."""
    there = set(host.run(f"cd $({BUILD})/bin && ls libggml-cpu-*.so").stdout.split())
    maps = host.run(f"cat /proc/{main_pid(host)}/maps").stdout
    assert len(there) > 9
    assert len({name for name in there if f"/bin/{name}\n" in maps}) == 1


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


def one_model_is_left(world: World, host: Host) -> None:
    there = host.run("ls /var/lib/wsllama/models").stdout.split()
    assert there == [Path(host.run("readlink -f /opt/wsllama/current/model").stdout.strip()).name]


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


def assert_plan(host: Host, server: dict[str, Any] | None) -> None:
    """The current release records a plan with these fields of a server, or none."""
    record = json.loads(host.run("cat /opt/wsllama/current/release.json").stdout)
    assert (record["plan"] and {key: record["plan"]["server"][key] for key in server or ()}) == server


WATCH = {
    "enabled": True,
    "interval_s": 2,
    "low_utilization_percent": 20,
    "low_utilization_s": 40,
    "vram_full_percent": 90,
    "collapse_percent": 30,
    "temperature_c": 80,
    "textfile": "/var/lib/prometheus/node-exporter/wsllama.prom",
}


def assert_watched(host: Host) -> None:
    """The GPU watch runs with these limits, and Prometheus' collector finds its samples."""
    whole = host.run("cat /opt/wsllama/watch.py").stdout
    assert all(f'{key}\\": {value}' in whole for key, value in WATCH.items() if key not in ("enabled", "textfile"))
    assert host.run(f"readlink {WATCH['textfile']}").stdout == "/run/llama-watch/watch.prom\n"


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


def fields(topic: type[Topic]) -> Iterator[str]:
    """topic.field of everything below."""
    for name, f in topic.model_fields.items():
        inner = f.annotation
        if isinstance(inner, type) and issubclass(inner, Topic):
            yield from (f"{name}.{key}" for key in fields(inner))
        else:
            yield name


# What only a WSL machine heeds; test_windows.py and test_windows_side.py have that, and test_settings_wsl.py every key of WSL's.
WSL: dict[str, Any] = {
    "wsl": {
        "profile": "C:\\Users\\Ada",
        "distro": "Ubuntu-24.04",
        "restart": True,
        "keep_alive": "task",
        "wsl2": {"memory": "48GB", "networkingMode": "mirrored"},
        "conf": {"boot": {"command": "touch /root/boot.command"}},
    },
    "distro": {"lean": True},
    "server": {"expose": "lan", "lan_port": 9000, "api_key": True},
}
OF_WSL = [name for name in fields(Settings) if name.startswith(("wsl.", "distro."))] + ["server.expose", "server.lan_port"]


def no_trace_of_wsl(world: World, host: Host) -> None:
    assert "boot.command" not in host.run("cat /etc/wsl.conf", check=False).stdout


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
    replace(
        of_server("threads", 2, "--threads", "2"),  # two wait for each other by spinning: on busy cores a reply takes minutes
        data=lambda w, h: {"server": {"threads": 2}, "acceptance": {"request_timeout_s": 7200}},
    ),
    of_server("n_gpu_layers", 0, "--n-gpu-layers", "0"),
    of_server("n_cpu_moe", 2, "--n-cpu-moe", "2"),
    of_server("load_mode", "mlock", "--load-mode", "mlock"),
    of_server("cache_ram", 64, "--cache-ram", "64"),
    of_server("ctx_checkpoints", 2, "--ctx-checkpoints", "2"),
    of_server("reasoning_budget", 200, "--reasoning-budget", "200"),
    of_server("sampling", "coding", "--temp", "0.6"),
    of_server("reasoning", "on", "--reasoning", "on"),
    of_server("reasoning_format", "deepseek", "--reasoning-format", "deepseek"),
    Sample(
        "server.reasoning_budget_message",
        lambda w, h: {"server": {"reasoning_budget": 100, "reasoning_budget_message": "So, in short: "}},
        lambda w, h: of_server("", "", "--reasoning-budget-message", "So, in short: ").sees(w, h),
    ),
    of_server("metrics", False, "--metrics", absent=True),
    of_server("slots", True, "--slots"),
    of_server("extra_args", ["--top-k", "20"], "--top-k", "20"),
    Sample("server.memory_max", lambda w, h: {"server": {"memory_max": "2G"}}, shows("llama-server", "MemoryMax", str(2 << 30))),
    Sample("server.watchdog", lambda w, h: {"server": {"watchdog": False}}, shows("llama-watchdog", "LoadState", "not-found")),
    Sample(
        "server.watchdog_timeout_s",
        lambda w, h: {"server": {"watchdog_timeout_s": 60}},
        has_file("/opt/wsllama/watchdog.py", 'timeout_s\\": 60'),
    ),
    Sample(
        "server.allow_tools",
        lambda w, h: {"server": {"allow_tools": True, "extra_args": ["--tools", "all"]}},
        lambda w, h: of_server("", "", "--tools", "all").sees(w, h),
    ),
    Sample(" ".join(f"watch.{key}" for key in WATCH), lambda w, h: {"watch": WATCH}, lambda w, h: assert_watched(h)),
    Sample("plan.decides", lambda w, h: {"plan": {"decides": False}}, lambda w, h: assert_plan(h, None)),
    Sample(
        "plan.least_ctx_size plan.drift plan.margin_percent plan.anew",
        lambda w, h: {"plan": {"least_ctx_size": 4096, "drift": "fail", "margin_percent": 10, "anew": 2}},
        lambda w, h: assert_plan(h, {"batch_size": 2048, "threads": 1}),
    ),
    of_acceptance("prompt", "Say READY, with 'quotes' and \"more\"."),
    of_acceptance("thinking_tokens", 100),
    of_acceptance("answer_tokens", 50),
    of_acceptance("start_timeout_s", 1000),
    of_acceptance("request_timeout_s", 1000),
    of_acceptance("long_prompt_s", 1),
    of_acceptance("strict", False),  # the small model can't reckon
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
    Sample(
        "model.name model.quant model.lock_file model.source model.publishers model.licences",
        lambda w, h: {"model": w.of_lock()},
        model_is("tiny.gguf", "controller"),
    ),
    Sample(
        "model.url model.allow_unofficial",
        lambda w, h: {"model": {"path": None, "url": w.mirror, "sha256": w.sha256_of_other(), "allow_unofficial": True}},
        model_is("other.gguf", "url"),
    ),
    Sample("model.endpoint model.token_file", lambda w, h: {"model": w.of_hub()}, model_is("third.gguf", "hub")),
    Sample("model.mmproj", lambda w, h: {"model": {"mmproj": False}}, lambda w, h: None),  # the small model has no projector
    Sample("model.keep_models", lambda w, h: {"model": {"keep_models": 0}}, one_model_is_left),
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
    Sample("llama_cpp.git_url llama_cpp.jobs", lambda w, h: {"llama_cpp": {**git(w, h), "jobs": 1}}, built_by_one_job, no_build),
    Sample("llama_cpp.source", lambda w, h: {"llama_cpp": {"source": "git"}}, nothing),
    Sample("llama_cpp.archive", lambda w, h: archive(w, 1), built_from("tar"), no_build),
    Sample("llama_cpp.archive_sha256", lambda w, h: archive(w, 2), nothing),
    Sample("llama_cpp.commit", lambda w, h: {"llama_cpp": {**git(w, h), "commit": w.other_commit()}}, names_commit),
    Sample("llama_cpp.time_limit_minutes", lambda w, h: {"llama_cpp": {"time_limit_minutes": 60}}, nothing),
    # Without the backend cuda nothing of these may reach the host.
    Sample(" ".join(f"cuda.{key}" for key in CUDA), lambda w, h: {"cuda": {**CUDA, "key_file": w.certificate(h)}}, nothing),
    Sample(" ".join(OF_WSL), lambda w, h: WSL, no_trace_of_wsl),
    Sample(
        "bundle.path",
        lambda w, h: {"llama_cpp": {"source": "bundle"}, "bundle": {"path": w.bundle()}},
        built_from("tar"),
        no_build,
        full=True,  # test_bundle.py brings a host up from one in the plain suite
    ),
    Sample("llama_cpp.native", lambda w, h: {"llama_cpp": {"native": False}}, built_with("GGML_NATIVE", "OFF"), full=True),
    Sample(
        "llama_cpp.portable",
        lambda w, h: {"llama_cpp": {"portable": True}},
        runs_code_of_its_kind,
        full=True,
    ),
]
ALONE = [s for s in SAMPLES if s.full or s.before is no_build]
ARGUMENTS, ACCEPTANCE = ([s for s in SAMPLES if s.way == way] for way in ("arguments", "acceptance"))
PLAIN = [together(ARGUMENTS[at : at + 4]) for at in range(0, len(ARGUMENTS), 4)] + [together(ACCEPTANCE)]
PLAIN += [s for s in SAMPLES if s not in ALONE and not s.way]
EACH = [replace(s, full=True) for s in ARGUMENTS + ACCEPTANCE]
PAIRS = [*zip_longest(PLAIN[0::2], PLAIN[1::2]), *zip_longest(EACH[0::2], EACH[1::2])]
PAIRS += [(s, None) for s in ALONE]  # some take minutes of compiling that no cache has done before


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
    try:
        world.deployed.run(data, hosts=hosts).green()
        for host, sample in each:
            sample.sees(world, host)
        world.deployed.run(data, hosts=hosts).unchanged()
    finally:
        for host in hosts:
            host.run("rm -rf /run/WSL /etc/wsl.conf")  # a machine's stand-in for WSL makes its own
