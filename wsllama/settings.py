"""Everything that a host may be told: one model a topic, one place, defaults that suit one WSL machine.

A host's settings are merged, topic by topic, from `group_data/all.py`, the groups that the host is in, the inventory's own
data of the host and `--data` (the later wins). So a host may override one key of a topic and keep the rest of it.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from wsllama.domain import server_flags

LOCK = Path(__file__).resolve().parents[1] / "wsllama.lock"

# Data of pyinfra itself and of its connectors, not ours to judge.
FOREIGN = ("_", "ssh_", "fake_", "docker_", "vagrant_", "chroot_")

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


def _sha256(value: str) -> str:
    if len(value) != 64 or set(value) - set("0123456789abcdefABCDEF"):
        raise ValueError("a sha256 is 64 hexadecimal digits")
    return value.lower()


def _printable(value: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError("control characters are not allowed")
    if any(0xD800 <= ord(c) <= 0xDFFF for c in value):  # how Python reads bytes that are no UTF-8; they can't be sent on
        raise ValueError("it is not UTF-8: give another name")
    return value


def _from_root(value: str | None) -> str | None:
    if value is not None and not value.startswith("/"):
        raise ValueError("a path starts with /")
    return value


Sha256 = Annotated[str, AfterValidator(_sha256)]
Text = Annotated[str, AfterValidator(_printable), Field(min_length=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Capability = Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")]
Architecture = Annotated[str, Field(pattern=r"^\d{2,3}[af]?(-real|-virtual)?$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,:=+/-]+$")]
FromList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)


class Topic(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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
    """The GGUF that is served."""

    path: Text | None = Field(None, description="Absolute path of the GGUF.")
    on: Literal["controller", "host"] = Field("controller", description="The machine that path is on.")
    sha256: Sha256 | None = Field(None, description="The file must have this sha256; without it any whole GGUF is taken.")
    alias: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127}$")] = Field(
        "qwen3.6-35b-a3b", description="The id that /v1/models gives to clients."
    )

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        return _from_root(value)


class Server(Topic):
    """llama-server: names are those of its own --help. A value that is None leaves the program's own default."""

    host: Text = Field("127.0.0.1", description="Address that is listened on.")
    port: Port = Field(8080, description="Port that is listened on; always given, because the program's default changes.")
    api_key: bool = Field(False, description="Ask clients for the key in /etc/wsllama/api-key; made on the host once.")
    ctx_size: Annotated[int, Field(ge=256, le=1048576)] = Field(16384, description="Context in tokens.")
    parallel: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Requests at a time; the context is shared by them.")
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
    reasoning_budget: Annotated[int, Field(ge=-1, le=1048576)] = Field(-1, description="Thinking tokens; -1: no limit, 0: none.")
    metrics: bool = Field(True, description="Serve /metrics.")
    slots: bool = Field(False, description="Serve /slots, which shows prompts.")
    allow_tools: bool = Field(False, description="Let extra_args give the model files or a shell (--tools, --agent).")
    extra_args: Annotated[tuple[Text, ...], FromList] = Field(
        (), description="More arguments, one a word, as llama-server's --help has them."
    )

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
        if self.cache_type_v not in ("f32", "f16", "bf16") and self.flash_attn == "off":
            raise ValueError(f"cache_type_v {self.cache_type_v} needs flash attention, but flash_attn is off")
        if self.batch_size and self.ubatch_size and self.ubatch_size > self.batch_size:
            raise ValueError("ubatch_size is larger than batch_size")
        if problems := server_flags.refused(self.extra_args, self.allow_tools):
            raise ValueError("; ".join(problems))
        return self


class Acceptance(Topic):
    """What a server must do before a release counts."""

    prompt: Text = Field("Reply with the single word READY.", description="The question that is asked.")
    thinking_tokens: Annotated[int, Field(ge=-1, le=65536)] = Field(
        512, description="Budget of the thinking request; -1: no limit but answer_tokens."
    )
    answer_tokens: Annotated[int, Field(ge=1, le=65536)] = Field(256, description="Tokens beyond the thinking budget.")
    start_timeout_s: Annotated[int, Field(ge=1, le=7200)] = Field(900, description="Time for loading the model.")
    request_timeout_s: Annotated[int, Field(ge=1, le=7200)] = Field(600, description="Time for one reply.")


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


class Settings(Topic):
    """All topics of one host."""

    platform: Literal["wsl", "linux"] = Field("wsl", description="linux: the lab and the demo.")
    keep_releases: Annotated[int, Field(ge=1, le=1000)] = Field(
        5, description="Releases that stay on the host to roll back to, beside the current and the last good one."
    )
    llama_cpp: LlamaCpp = LlamaCpp()
    bundle: Bundle = Bundle()
    cuda: Cuda = Cuda()
    model: Model = Model()
    server: Server = Server()
    acceptance: Acceptance = Acceptance()
    network: Network = Network()

    @property
    def backend(self) -> Literal["cpu", "cuda"]:
        """What llama.cpp is built for on this host."""
        wanted = self.llama_cpp.backend
        if wanted == "auto":
            return "cuda" if self.platform == "wsl" else "cpu"
        return wanted

    @model_validator(mode="after")
    def _whole(self) -> Settings:
        if self.model.path is None:
            raise ValueError('model.path is not set: give the GGUF, as in model = {"path": "/path/of/file.gguf"}')
        if (self.llama_cpp.source == "bundle") != bool(self.bundle.path):
            raise ValueError("llama_cpp.source bundle and bundle.path belong together: set both or neither")
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
    every = {key: f"{name}.{key}" for name, topic in _topics().items() for key in topic.model_fields}
    here = {key: ".".join([*topics, key]) for key in (_topics()[topics[0]] if topics else Settings).model_fields}
    if word in every:
        return every[word]
    for places, cutoff in ((here, 0.5), (every, 0.8)):
        if near := difflib.get_close_matches(word, list(places), n=1, cutoff=cutoff):
            return places[near[0]]
    return ""


def _topics() -> dict[str, type[Topic]]:
    kinds = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Topic)}


def local_problems(settings: Settings) -> list[str]:
    """What is wrong with the files on this controller that the settings name; each one sentence. Reads headers only."""
    out = []
    named = {"network.ca_file": settings.network.ca_file, "cuda.key_file": settings.cuda.key_file}
    if settings.model.on == "controller":
        named["model.path"] = settings.model.path
    if settings.llama_cpp.archive and "://" not in settings.llama_cpp.archive:
        named["llama_cpp.archive"] = settings.llama_cpp.archive
    for name, path in named.items():
        if path is not None and not Path(path).is_file():
            or_there = ', or set model.on to "host" when it is there' if name == "model.path" else ""
            out.append(f"{name}: there is no file {path} on this machine; give another path{or_there}")
        elif path is not None and name == "model.path":
            out += _model_problems(Path(path), settings.model.sha256)
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


def _model_problems(path: Path, sha256: str | None) -> list[str]:
    from wsllama import digest
    from wsllama.domain import gguf

    try:
        with path.open("rb") as stream:
            gguf.check(stream, path.stat().st_size)
        known = digest.known(path)
    except (OSError, gguf.GgufError) as e:
        return [f"model.path: {path}: {e}"]
    if sha256 and known and known != sha256:
        return [f"model.sha256: {path} has sha256 {known}, not {sha256}: give the right file, or the right sum"]
    return []
