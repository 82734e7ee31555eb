"""Everything that a host may be told: one model a topic, one place, defaults that suit one WSL machine.

A host's settings are merged, topic by topic, from `group_data/all.py`, the groups that the host is in, the inventory's own
data of the host, what `wsllama doctor --apply` gave up (wsllama/recovery.py) and `--data` (the later wins). So a host may
override one key of a topic and keep the rest of it.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from wsllama.domain import memory, model_policy, server_flags, spelling
from wsllama.settings_base import Architecture, Capability, FromList, Port, Sha256, Text, Topic, Word
from wsllama.settings_wsl import Wsl

LONGEST_NAME = 200
"""Of a model's file, in bytes: file systems take 255, and wsllama/host/receive.py puts something behind it."""

LOCK = Path(__file__).resolve().parents[1] / "wsllama.lock"

# Data of pyinfra itself and of its connectors, not ours to judge.
FOREIGN = ("_", "ssh_", "wsl_", "fake_", "docker_", "vagrant_", "chroot_")

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


def _from_root(value: str | None) -> str | None:
    if value is not None and not value.startswith("/"):
        raise ValueError("a path starts with /")
    return value


class LlamaCpp(Topic):
    """Where llama.cpp comes from and how it is built."""

    source: Literal["sdist", "git", "archive", "bundle"] = Field(
        "sdist",
        description="sdist: from the Python index, fetched by the controller; git: by the host; archive: a tar.gz;"
        " bundle: without a network, like all else that is fetched.",
    )
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = Field(
        None, description="Another commit than the lock's; needs source git or archive."
    )
    git_url: Text | None = Field(None, description="Another repository than the lock's.")
    archive: Text | None = Field(None, description="Path on the controller, or URL, of a tar.gz; source archive.")
    archive_sha256: Sha256 | None = Field(None, description="sha256 of that archive.")
    backend: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda on platform wsl, cpu on platform linux.")
    native: bool = Field(True, description="Build for this machine's own processor (GGML_NATIVE).")
    portable: bool = Field(
        False, description="Build code for every kind of processor, chosen at the start; so one build serves different machines."
    )
    jobs: Annotated[int, Field(ge=1, le=512)] | None = Field(None, description="Compile jobs; by default from cores and memory.")
    time_limit_minutes: Annotated[int, Field(ge=1, le=1440)] = Field(120, description="The build is ended after this time.")

    @model_validator(mode="after")
    def _whole(self) -> LlamaCpp:
        if self.source == "archive" and not (self.archive and self.archive_sha256):
            raise ValueError("source archive needs archive and archive_sha256")
        if self.source != "archive" and (self.archive or self.archive_sha256):
            raise ValueError(f"archive and archive_sha256 belong to source archive, but source is {self.source}")
        if self.source != "git" and self.git_url:
            raise ValueError(f"git_url belongs to source git, but source is {self.source}")
        return self


class Cuda(Topic):
    """The CUDA toolkit that a build for NVIDIA's GPUs is made with; nothing of it is asked for with backend cpu."""

    version: Annotated[str, Field(pattern=r"^\d{2}\.\d$")] | None = Field(
        None, description="Release of the toolkit; without it the best one for host and driver."
    )
    provider: Literal["apt", "wheels"] | None = Field(
        None, description="apt: NVIDIA's repository; wheels: the Python index, CUDA 13 and newer."
    )
    compute: Annotated[tuple[Capability, ...], FromList] = Field(
        (), description='Compute capabilities to build for, as in "8.9"; without them those of the host\'s GPUs.'
    )
    driver: Annotated[str, Field(pattern=r"^\d{3}\.\d{2}$")] | None = Field(
        None, description="Version of the Windows driver to build for, where the host itself can't tell."
    )
    architectures: Annotated[tuple[Architecture, ...], FromList] = Field(
        (), description='CMAKE_CUDA_ARCHITECTURES, as in "89-virtual", instead of those that follow from compute.'
    )
    flags: Annotated[tuple[Word, ...], FromList] = Field((), description="More words for nvcc.")
    flash_attention: bool = Field(True, description="Compile the kernels of flash attention.")
    require_gpu: bool = Field(True, description="A host whose GPU isn't seen fails; False: it only builds.")
    repository: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9._~:/%\[\]-]+$")] | None = Field(
        None, description="Address of a mirror of NVIDIA's repository, signed with NVIDIA's key; provider apt."
    )
    key_file: Text | None = Field(
        None, description="Path on the controller of NVIDIA's signing key; without it the repository is asked for it."
    )


class Bundle(Topic):
    """What a host without a network gets everything from: packages, source, toolkit. `wsllama bundle` makes it."""

    path: Text | None = Field(None, description="Absolute path of the bundle on the controller; source bundle.")

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        return _from_root(value)


class Model(Topic):
    """The GGUF that is served: where it comes from, and what it has to be."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] | None = Field(
        None, description="Its name in wsllama.lock (`wsllama lock show`), which has every file's sha256."
    )
    quant: Annotated[str, Field(pattern=r"^[A-Z0-9][A-Z0-9_-]*$")] | None = Field(
        None, description="Its quantisation, where name is without one."
    )
    lock_file: Text | None = Field(
        None, description="Path on the controller of another lock file that has name, made by `wsllama lock add --lock`."
    )
    source: Literal["hub", "path", "url", "bundle"] | None = Field(
        None,
        description="hub: downloaded by the host; path: of a file; url: a mirror; bundle: what bundle.path has. Without it path"
        " or url where that is given, else hub.",
    )
    path: Text | None = Field(
        None, description="Absolute path of the GGUF, of its first shard; Windows' spelling is understood and is of the host."
    )
    on: Literal["controller", "host"] = Field("controller", description="The machine that path is on.")
    url: Text | None = Field(
        None, description="Address of the GGUF, or of the folder that has it, which ends with /; source url (`wsllama mirror`)."
    )
    endpoint: Text | None = Field(
        None, description="Address of the Hub, or of what speaks its protocol; without it the controller's HF_ENDPOINT."
    )
    token_file: Text | None = Field(None, description="Path on the controller of a file with a token of the Hub; source hub.")
    sha256: Sha256 | None = Field(
        None, description="The file must have this sha256; without it, and without name, any whole GGUF at path is taken."
    )
    mmproj: bool | Text = Field(
        False, description="Serve images, too. True: with the projector that the lock names; a path: with that one, beside path."
    )
    allow_unofficial: bool = Field(
        False, description="Take a model that says of itself that its limits were removed (uncensored, abliterated and the like)."
    )
    publishers: Annotated[tuple[Text, ...], FromList] = Field(
        (), description=f"Publishers on the Hub that are allowed beside {', '.join(model_policy.PUBLISHERS)}."
    )
    licences: Annotated[tuple[Text, ...], FromList] = Field(
        (), description=f"Licences that are allowed beside {', '.join(model_policy.LICENCES)}."
    )
    keep_models: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        None,
        description="Models that stay on the host beside those of the current and the last good release, the newest first; None:"
        " all. One that another run has installed and not switched to stays for three days, and so do"
        " unfinished downloads. A release whose model is gone can't be rolled back to.",
    )
    alias: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127}$")] = Field(
        "qwen3.6-35b-a3b", description="The id that /v1/models gives to clients."
    )

    @property
    def way(self) -> Literal["hub", "path", "url", "bundle"]:
        """Where it comes from."""
        return self.source or ("path" if self.path else "url" if self.url else "hub")

    @property
    def on_host(self) -> bool:
        """Whether `path` is one of the host itself."""
        return self.on == "host" or spelling.is_windows(self.path or "")

    @field_validator("path", "mmproj")
    @classmethod
    def _named(cls, value: str | bool | None) -> str | bool | None:
        """Hosts keep the file by its name, with endings of ours behind it; a hidden one is what isn't finished there."""
        if isinstance(value, bool):
            return value
        if value is None or not spelling.is_windows(value):
            value = _from_root(value)
        name = spelling.name(value) if value else "-"
        if not name or name.startswith("."):
            raise ValueError(f"{value} does not end in a file name that hosts can keep: give one that does not begin with a dot")
        if len(name.encode()) > LONGEST_NAME:
            raise ValueError(f"the file name has {len(name.encode())} bytes: rename the file to at most {LONGEST_NAME}")
        return value

    @field_validator("url", "endpoint")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("an address begins with http:// or https:// and names a machine")
            if not value.isascii() or not value.isprintable() or " " in value:
                raise ValueError("an address has no blanks and no letters beyond ASCII: write them as %20 and the like")
            if parts.username or parts.password:
                raise ValueError("a password in an address would get into files and logs: leave it out")
        return value

    @field_validator("token_file", "lock_file")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        return _from_root(value)

    @model_validator(mode="after")
    def _whole(self) -> Model:
        if (self.quant or self.lock_file) and not self.name:
            raise ValueError("quant and lock_file belong to name, which is not set")
        if self.way == "path" and self.source and not self.path:
            raise ValueError("source path needs path")
        if (self.way == "url") != bool(self.url):
            raise ValueError("source url and url belong together: set both or neither")
        if self.way in ("hub", "url") and self.path:
            raise ValueError(f"path belongs to source path or bundle, but source is {self.way}")
        if self.way != "hub" and (self.token_file or self.endpoint):
            raise ValueError(f"token_file and endpoint belong to source hub, but source is {self.way}")
        if self.way == "hub" and self.source and not self.name:
            raise ValueError("source hub needs the name of a model of wsllama.lock: see `wsllama lock show`")
        if self.way == "url" and not self.name and (not self.sha256 or self.url is None or self.url.endswith("/")):
            raise ValueError("source url needs name, or the address of a file and its sha256, so that it is known what comes")
        if self.name and self.sha256:
            raise ValueError("sha256 is the lock's where name is given: leave one of them out")
        if self.mmproj is True and not self.name:
            raise ValueError("mmproj True means the lock's, so it needs name: give the projector's path")
        if isinstance(self.mmproj, str) and self.way not in ("path", "bundle"):
            raise ValueError(f"mmproj is a path, which belongs to source path, but source is {self.way}: set it to True")
        return self


class Server(Topic):
    """llama-server: names are those of its own --help. A value that is None leaves the program's own default."""

    host: Text = Field("127.0.0.1", description="Address that is listened on.")
    port: Port = Field(8080, description="Port that is listened on; always given, because the program's default changes.")
    expose: Literal["loopback", "lan"] = Field(
        "loopback", description="lan: other machines of the local subnet get in through Windows; platform wsl, with api_key."
    )
    lan_port: Port | None = Field(
        None, description="Port of Windows for these machines where WSL has NAT; without it port + 10000. Never the same as port."
    )
    api_key: bool = Field(False, description="Ask clients for the key in /etc/wsllama/api-key; made on the host once.")
    ctx_size: Annotated[int, Field(ge=256, le=1048576)] = Field(16384, description="Context in tokens.")
    parallel: Annotated[int, Field(ge=1, le=memory.SLOTS)] = Field(
        1, description="Requests at a time; the context is shared by them."
    )
    cache_type_k: CacheType = Field("f16", description="Type of the K cache.")
    cache_type_v: CacheType = Field("f16", description="Type of the V cache; a quantised one needs flash attention.")
    flash_attn: Literal["auto", "on", "off"] = Field("auto", description="Flash attention.")
    batch_size: Annotated[int, Field(ge=1, le=65536)] | None = Field(None, description="Logical batch in tokens.")
    ubatch_size: Annotated[int, Field(ge=1, le=65536)] | None = Field(None, description="Physical batch in tokens.")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="Threads that generate.")
    n_gpu_layers: Annotated[int, Field(ge=0, le=999)] | None = Field(
        None, description="Layers on the GPU; without it llama-server fits them to the free memory."
    )
    n_cpu_moe: Annotated[int, Field(ge=0, le=999)] | None = Field(None, description="Layers whose experts stay in RAM.")
    load_mode: Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"] = Field("auto", description="How weights are read.")
    cache_ram: Annotated[int, Field(ge=0, le=1048576)] = Field(1024, description="Host memory for cached prompts in MiB.")
    ctx_checkpoints: Annotated[int, Field(ge=0, le=256)] = Field(8, description="Context checkpoints a slot, about 63 MiB each.")
    sampling: Literal["thinking", "coding", "instruct"] | None = Field(
        None,
        description="What the model card recommends for thinking, for precise coding with thinking, or for answers without it,"
        " where a client says nothing; extra_args win over it; None: the program's own defaults.",
    )
    reasoning: Literal["auto", "on", "off"] = Field(
        "auto", description="Thinking where a client says nothing; auto: as the chat template has it."
    )
    reasoning_format: Literal["auto", "none", "deepseek", "deepseek-legacy"] = Field(
        "auto",
        description="Where thinking goes. auto and deepseek: reasoning_content; none: it stays in the answer, with its tags;"
        " deepseek-legacy: both.",
    )
    reasoning_budget: Annotated[int, Field(ge=-1, le=1048576)] = Field(-1, description="Thinking tokens; -1: no limit, 0: none.")
    reasoning_budget_message: Text | None = Field(
        None, description="What is put at the end of thinking that reaches reasoning_budget, so that an answer follows."
    )
    metrics: bool = Field(True, description="Serve /metrics.")
    slots: bool = Field(False, description="Serve /slots, which shows prompts.")
    memory_max: Annotated[str, Field(pattern=r"^([1-9][0-9]*[MGT]|infinity)$")] | None = Field(
        None,
        description="RAM that the service may take before it is ended and started again, as MemoryMax= has it;"
        " None: what its plan needs with a margin; infinity: no limit.",
    )
    watchdog: bool = Field(True, description="Restart the server when it hangs, and once when it comes up without its GPU.")
    watchdog_timeout_s: Annotated[int, Field(ge=2, le=86400)] = Field(
        300,
        description="Seconds without any sign of life before that; longer than one batch or picture takes. Without metrics only"
        " /health is looked at.",
    )
    allow_tools: bool = Field(False, description="Let extra_args give the model files or a shell (--tools, --agent).")
    extra_args: Annotated[tuple[Text, ...], FromList] = Field(
        (), description="More arguments, one a word, as llama-server's --help has them."
    )

    @property
    def port_on_lan(self) -> int:
        """The port of Windows that other machines ask with expose lan where WSL has NAT."""
        return self.lan_port or self.port + 10000

    @field_validator("host")
    @classmethod
    def _address(cls, value: str) -> str:
        if value == "localhost":  # where a hosts file has it for ::1 too, the server would listen there only
            return "127.0.0.1"
        try:
            ipaddress.ip_address(value)
        except ValueError:
            raise ValueError("an IP address or localhost is wanted") from None
        return value

    @model_validator(mode="after")
    def _whole(self) -> Server:
        if not server_flags.is_loopback(self.host) and not self.api_key:
            raise ValueError(f"host {self.host} is not loopback, so clients must be asked for a key: set api_key to True")
        if self.expose == "lan" and not self.api_key:
            raise ValueError("expose lan lets other machines in, so clients must be asked for a key: set api_key to True")
        if self.lan_port and self.expose != "lan":
            raise ValueError(f"lan_port belongs to expose lan, but expose is {self.expose}")
        if self.expose == "lan" and not (self.lan_port or self.port + 10000 <= 65535):
            raise ValueError(f"port {self.port} + 10000 is no port: give a lan_port")
        if self.lan_port == self.port:
            raise ValueError(f"lan_port {self.lan_port} is port too, which would keep WSL's relay from it: give another lan_port")
        if self.cache_type_v not in ("f32", "f16", "bf16") and self.flash_attn == "off":
            raise ValueError(f"cache_type_v {self.cache_type_v} needs flash attention, but flash_attn is off")
        if self.batch_size and self.ubatch_size and self.ubatch_size > self.batch_size:
            raise ValueError("ubatch_size is larger than batch_size")
        if self.reasoning_budget_message and self.reasoning_budget < 0:
            raise ValueError("reasoning_budget_message belongs to a reasoning_budget, which is not set")
        if problems := server_flags.refused(self.extra_args, self.allow_tools):
            raise ValueError("; ".join(problems))
        return self


class Plan(Topic):
    """The server's memory, planned from the host's: what `server` leaves open follows from it, and what can't fit is refused."""

    decides: bool = Field(True, description="False: nothing is planned, and the server is started with `server` as it stands.")
    least_ctx_size: Annotated[int, Field(ge=256, le=1048576)] | None = Field(
        None,
        description="The context may be given up down to this; without it a server.ctx_size that is set stays, and one that isn't"
        " goes down to 8192.",
    )
    drift: Literal["warn", "fail"] = Field(
        "warn", description="What acceptance makes of a server that takes another amount of memory than planned."
    )
    margin_percent: Annotated[int, Field(ge=0, le=100)] = Field(
        5, description="How far each kind of buffer may be off before that counts; compute buffers may be off by 16 MiB anyway."
    )
    anew: Annotated[int, Field(ge=0, le=1000000)] = Field(
        0, description="A plan stays while its inputs do, whatever VRAM is free meanwhile; another number here has it made anew."
    )


class Acceptance(Topic):
    """What a server must do before a release counts."""

    prompt: Text = Field("Reply with the single word READY.", description="The question that is asked.")
    thinking_tokens: Annotated[int, Field(ge=-1, le=65536)] = Field(
        512, description="Budget of the thinking request; -1: no limit but answer_tokens."
    )
    answer_tokens: Annotated[int, Field(ge=1, le=65536)] = Field(256, description="Tokens beyond the thinking budget.")
    start_timeout_s: Annotated[int, Field(ge=1, le=7200)] | None = Field(
        None, description="Time for loading the model; None: 300 and one for each 50 MB of it."
    )
    request_timeout_s: Annotated[int, Field(ge=1, le=7200)] = Field(600, description="Time for one reply, to its last byte.")
    long_prompt_s: Annotated[int, Field(ge=0, le=7200)] = Field(
        20, description="Time for prompts that get longer up to the whole context; 0: none is asked."
    )
    strict: bool = Field(
        False,
        description="Answers have to be right, too: a sum, a number out of the long prompt, the colours of two pictures, a tool"
        " called without being made to, Windows reaching the port.",
    )


class Network(Topic):
    """How this deploy reaches the world: the same for apt, pip, git and the Hub."""

    proxy: Text | None = Field(None, description="http://host:port, for the controller and the host alike.")
    ca_file: Text | None = Field(None, description="Path on the controller of PEM certificates to trust.")

    @field_validator("proxy")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None:
            if "@" in value:
                raise ValueError("a proxy with a password in its address would put the password into files and logs")
            # it stands in apt's configuration and in environments, so no quote and no blank may get there
            if not re.fullmatch(r"https?://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d+)?/?", value, re.ASCII) or urlsplit(value).port == 0:
                raise ValueError("a proxy looks like http://host:port")
        return value


class Distro(Topic):
    """The Linux distro that WSL runs."""

    lean: bool = Field(False, description="Mask snapd and apt's timers, which take memory and wake the disk; platform wsl.")


class Watch(Topic):
    """The GPU beside the server: sampled on the host, warned of in the journal of llama-watch; `wsllama watch` shows a fleet."""

    enabled: bool | None = Field(
        None, description="None: where llama.cpp is built for CUDA; without a GPU there is little to see."
    )
    interval_s: Annotated[int, Field(ge=1, le=600)] = Field(5, description="Seconds between two samples.")
    low_utilization_percent: Annotated[int, Field(ge=0, le=100)] = Field(
        10,
        description="Less than this while it computes is a warning; 0: none. With experts in RAM the GPU waits for the processor"
        " most of the time, so more than this is no fault there.",
    )
    low_utilization_s: Annotated[int, Field(ge=1, le=86400)] = Field(30, description="Seconds of work before that warning.")
    vram_full_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        95,
        description="VRAM is full from here on; with a speed that collapsed it is a warning, as Windows moves the rest to RAM.",
    )
    collapse_percent: Annotated[int, Field(ge=1, le=99)] = Field(
        40,
        description="A speed has collapsed below this part of the best one since the server's start; a long context costs less.",
    )
    temperature_c: Annotated[int, Field(ge=1, le=150)] = Field(87, description="Degrees Celsius from which on a GPU is too hot.")
    textfile: Annotated[str, Field(pattern=r"^/[^\x00-\x1f]*[^/\x00-\x1f]\.prom$")] | None = Field(
        None,
        description="Path on the host, as in /var/lib/prometheus/node-exporter/wsllama.prom, at which Prometheus' textfile"
        " collector finds the newest sample; a link is made there.",
    )


class Settings(Topic):
    """All topics of one host."""

    platform: Literal["wsl", "linux"] = Field(
        "wsl", description="linux: the lab and the demo, where nothing of wsl, distro and server.expose is done."
    )
    keep_releases: Annotated[int, Field(ge=1, le=1000)] = Field(
        5, description="Releases that stay on the host to roll back to, beside the current and the last good one."
    )
    llama_cpp: LlamaCpp = LlamaCpp()
    bundle: Bundle = Bundle()
    cuda: Cuda = Cuda()
    model: Model = Model()
    server: Server = Server()
    plan: Plan = Plan()
    acceptance: Acceptance = Acceptance()
    network: Network = Network()
    wsl: Wsl = Wsl()
    distro: Distro = Distro()
    watch: Watch = Watch()

    @property
    def watched(self) -> bool:
        """Whether the GPU watch runs on this host."""
        return self.backend == "cuda" if self.watch.enabled is None else self.watch.enabled

    @property
    def backend(self) -> Literal["cpu", "cuda"]:
        """What llama.cpp is built for on this host."""
        wanted = self.llama_cpp.backend
        if wanted == "auto":
            return "cuda" if self.platform == "wsl" else "cpu"
        return wanted

    @model_validator(mode="after")
    def _whole(self) -> Settings:
        if not (self.model.path or self.model.name or self.model.url):
            raise ValueError('model.path is not set: give the GGUF, as in model = {"path": "/path/of/file.gguf"}, or model.name')
        if self.model.source == "bundle" and not self.bundle.path:
            raise ValueError("model.source bundle needs bundle.path")
        if (self.llama_cpp.source == "bundle") != bool(self.bundle.path):
            raise ValueError("llama_cpp.source bundle and bundle.path belong together: set both or neither")
        if self.platform == "wsl" and self.wsl.conf.boot.systemd is False:
            raise ValueError("wsl.conf.boot.systemd: False would leave the server without systemd, which runs it: leave it out")
        if self.platform == "wsl" and self.server.expose == "lan" and not self.wsl.windows:
            raise ValueError("server.expose lan needs rules on Windows, which wsl.windows False keeps out: leave one of them out")
        mirrored = self.platform == "wsl" and self.wsl.wsl2.networkingMode == "mirrored"
        relayed = self.platform == "wsl" and self.server.expose == "lan" and not mirrored
        if relayed and self.wsl.wsl2.localhostForwarding is False:
            raise ValueError(
                "server.expose lan goes over the relay that wsl.wsl2.localhostForwarding False turns off: leave it out"
            )
        if mirrored and self.server.expose == "lan" and server_flags.is_loopback(self.server.host):
            # there Windows has no relay or forwarder between: the server itself listens where the others ask
            return self.model_copy(update={"server": self.server.model_copy(update={"host": "0.0.0.0"})})
        return self


def merge(levels: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge data dictionaries, later ones over earlier ones, dictionaries inside key by key."""
    out: dict[str, Any] = {}
    for level in levels:
        for key, value in level.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = merge([out[key], value]) if both else value
    return out


def parse(data: Mapping[str, Any]) -> tuple[Settings | None, list[str]]:
    """Read one host's merged data.

    Returns the settings, or None and every error in it, each one sentence that names the setting and what to do. Keys of
    pyinfra and of its connectors are passed over. Raises nothing.
    """
    ours = {str(k): v for k, v in data.items() if not str(k).startswith(FOREIGN)}
    try:
        return Settings.model_validate(ours), []
    except ValidationError as e:
        return None, [_sentence(error) for error in e.errors()]


def _sentence(error: Any) -> str:
    where = [str(part) for part in error["loc"]]
    name = ".".join(where) or "settings"
    if error["type"] == "extra_forbidden":
        near = _meant(where[:-1], where[-1])
        return f"unknown setting {name}" + (f": did you mean {near}?" if near else "")
    text = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{name}: {text}"
    text = re.sub(r" or instance of \w+", "", text).replace("valid tuple", "valid list")
    return f"{name} = {error['input']!r}: {text}"


def _meant(topics: list[str], word: str) -> str:
    """The setting that `word`, given below these topics, most likely stands for: `port` at top level is server.port."""
    outer_last = sorted(_topics(), key=lambda found: -len(found[0]))
    every = {key: ".".join([*path, key]) for path, topic in outer_last for key in topic.model_fields if path}
    parent = next(topic for path, topic in _topics() if path == tuple(topics))
    here = {key: ".".join([*topics, key]) for key in parent.model_fields}
    if word in every:
        return every[word]
    for places, cutoff in ((here, 0.5), (every, 0.8)):
        if near := difflib.get_close_matches(word, list(places), n=1, cutoff=cutoff):
            return places[near[0]]
    return ""


def _topics() -> list[tuple[tuple[str, ...], type[Topic]]]:
    """Every topic and where it stands, the outer ones before the inner ones."""
    out: list[tuple[tuple[str, ...], type[Topic]]] = [((), Settings)]
    for path, topic in out:
        kinds = ((name, field.annotation) for name, field in topic.model_fields.items())
        out += [((*path, name), kind) for name, kind in kinds if isinstance(kind, type) and issubclass(kind, Topic)]
    return out


def local_problems(settings: Settings) -> list[str]:
    """What is wrong with the files on this controller that the settings name; each one sentence. Reads headers only."""
    out = []
    named = {
        "network.ca_file": settings.network.ca_file,
        "cuda.key_file": settings.cuda.key_file,
        "model.token_file": settings.model.token_file,
    }
    if settings.llama_cpp.archive and "://" not in settings.llama_cpp.archive:
        named["llama_cpp.archive"] = settings.llama_cpp.archive
    for name, path in named.items():
        if path is not None and not Path(path).is_file():
            out.append(f"{name}: there is no file {path} on this machine; give another path")
    from wsllama import model_files

    out += model_files.problems(settings)
    return out + _pin_problems(settings.llama_cpp) + _bundle_problems(settings.bundle)


def _pin_problems(wanted: LlamaCpp) -> list[str]:
    if wanted.source not in ("sdist", "bundle") or not wanted.commit:
        return []
    from wsllama import lock

    try:
        held = lock.load(LOCK).llama_cpp.commit
    except lock.LockError as e:
        return [str(e)]
    if wanted.commit == held:
        return []
    where = "a bundle" if wanted.source == "bundle" else "the Python index"
    return [f"llama_cpp.commit: {wanted.commit} needs llama_cpp.source git or archive: {where} holds {held} only"]


def _bundle_problems(wanted: Bundle) -> list[str]:
    if not wanted.path:
        return []
    from wsllama import bundle

    try:
        bundle.opened(Path(wanted.path), LOCK)
    except (bundle.BundleError, OSError) as e:
        return [f"bundle.path: {e}"]
    return []
