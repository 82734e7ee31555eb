"""What a log of llama-server says: how its last start ended, and what was put where. Pure.

From any build of 2025 and 2026, with or without its own prefix (`M.SS.mmm.uuu L srv  name: `), out of a file, a journal, a
terminal or the kernel's ring. Buffers and placement stand in it only at verbosity 4 (common/log.cpp:529-540 at the pin).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from wsllama.domain.text import plain

Verdict = Literal[
    "ok",
    "loading",
    "cpu_fallback",
    "oom_vram",
    "oom_host",
    "bad_file",
    "bad_arch",
    "bad_flag",
    "port",
    "mmproj",
    "template",
    "killed",
    "unknown",
]


@dataclass
class Reading:
    """The last start in a log. Buffers are MiB by device, as printed, all lines of a kind together (a draft's context too)."""

    verdict: Verdict = "unknown"
    line: str = ""  # the one that decided, without the prefixes of journals
    layers_offloaded: int | None = None
    layers_total: int | None = None
    model_mib: dict[str, float] = field(default_factory=dict)
    kv_mib: dict[str, float] = field(default_factory=dict)
    recurrent_mib: dict[str, float] = field(default_factory=dict)
    compute_mib: dict[str, float] = field(default_factory=dict)
    free_mib: dict[str, int] = field(default_factory=dict)  # before loading, by device; never above the device's total
    n_ctx: int | None = None  # tokens of the first context
    n_slots: int | None = None
    build: int | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether weights lie on a GPU, by what the log shows of it."""
        return any(map(is_gpu, self.model_mib)) or bool(self.layers_offloaded)

    def document(self) -> dict[str, object]:
        """For JSON: the verdict, and only what the text holds."""
        named = {
            "verdict": self.verdict,
            "layers_offloaded": self.layers_offloaded,
            "layers_total": self.layers_total,
            "model_buffers_mib": self.model_mib,
            "kv_mib": self.kv_mib,
            "recurrent_mib": self.recurrent_mib,
            "compute_mib": self.compute_mib,
            "n_ctx": self.n_ctx,
            "n_slots": self.n_slots,
            "build": self.build,
        }
        return {name: value for name, value in named.items() if value not in (None, {})}


def is_gpu(device: str) -> bool:
    """Whether a buffer's device is a GPU: CUDA0, Vulkan1; not CPU, CPU_Mapped, and not memory of the host such as CUDA_Host."""
    return re.match(r"(CUDA|ROCm|HIP|MUSA|Vulkan|SYCL|Metal|MTL|OpenCL|CANN)\d*(?!.*_Host)", device, re.I) is not None


def read(data: bytes | str) -> Reading:
    """Read a log. Several starts in it: the last one counts."""
    lines = [_message(line) for line in plain(data).split("\n")]
    last = _last_start(lines)
    out = _numbers(last)
    out.build = _build(last) or _build(lines)
    out.verdict, out.line = _verdict(last, out)
    return out


# Lines


@dataclass(frozen=True)
class _Line:
    text: str  # what the program said
    sender: str = ""  # "llama-server" of a journal, empty where nothing tells
    pid: str = ""
    seconds: float | None = None  # since the program's start, by its own clock


_JOURNAL = re.compile(r"^(?:\S+\s+){1,5}?([\w@.:\\()+-]+)\[(\d+)\]: ?(.*)$")  # five words in short-full
# At verbosity 5 a server logs whole requests, with their pictures, as one line; patterns take the square of a line's length.
WIDEST = 2048
_COMPOSE = re.compile(r"^[\w.-]+\s+\| ")
_CLOCK = re.compile(r"^(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] ")


MOST = 4000  # characters of a line: nothing that counts stands behind them, and patterns take minutes for a megabyte


def _message(line: str) -> _Line:
    line = line.rstrip()
    sender = pid = ""
    if line.startswith("{"):
        line = _json_message(line)
    line = line[:WIDEST]
    if m := _JOURNAL.match(line):
        sender, pid, line = m.groups()
    line = _COMPOSE.sub("", line)
    clock = _CLOCK.match(line)
    seconds = int(clock[1]) * 60 + int(clock[2]) + int(clock[3]) / 1000 if clock else None
    return _Line(line[:MOST], sender, pid, seconds)


def _json_message(line: str) -> str:
    """A line of --log-jsonl, or of `journalctl -o json`."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # of brackets without end
        return line
    text = str(found.get("msg", found.get("MESSAGE", line))).rstrip("\n")
    sender = found.get("SYSLOG_IDENTIFIER")
    return f"- {sender}[{found.get('_PID', 0)}]: {text}" if sender else text


# Starts

_UNIT_START = re.compile(r"^(?:Starting|Started) \S+")
_ENDED = re.compile(
    r"Main process exited|Scheduled restart job|^Stopped |Deactivated successfully|Failed with result|cleaning up before exit"
    r"|exiting due to|^-- (?:Boot|Reboot)|^Killed$|Segmentation fault"
)
_BEGIN = re.compile(r"build_info: |common_params_print_info: build|llama_server: initializing|^(?:main: )?build(?: =|:) ?\d+ \(")
_LOAD = re.compile(r"load_model: loading model|main: loading model")
_LOADED = re.compile(
    r"(?:main|llama_server|server)(?:: |\] )model loaded|(?<!HTTP server is )\blistening on (?:http|unix)"
    r"|HTTP server listening|starting the main loop|all slots are idle"
)
_SERVES = re.compile(r"slot +(?:launch_slot_|update_slots|release|print_timing): id |request: POST /\S+ \S+ 200$")


def _last_start(lines: list[_Line]) -> list[_Line]:
    """The lines from where the last start begins."""
    begin, seen = 0, _Seen(lines)
    for i, line in enumerate(lines):
        if seen.starts(line):
            begin = i
    return lines[begin:]


class _Seen:
    """What was seen of the start that is being read, and whether a line begins another one."""

    def __init__(self, lines: list[_Line]) -> None:
        ours = [line for line in lines if _UNIT_START.match(line.text) and "llama" in line.text.lower()]
        self.unit_lines = {line.text for line in ours or lines}
        self.marks: dict[str, int] = {}
        self.fresh()

    def fresh(self) -> None:
        self.pids: dict[str, str] = {}
        self.said = self.ended = False
        self.marks = {}
        self.seconds = 0.0

    def starts(self, line: _Line) -> bool:
        new = self._starts(line)
        if new:
            self.fresh()
        self._note(line)
        return new

    def _starts(self, line: _Line) -> bool:
        if _UNIT_START.match(line.text) and line.sender in ("systemd", ""):
            first = line.text.startswith("Starting")
            return line.text in self.unit_lines and (self.ended or (first and self.said))
        if line.sender == "systemd":
            return False
        if line.pid and line.sender != "kernel" and self.pids.get(line.sender, line.pid) != line.pid:
            return True
        if line.seconds is not None and line.seconds < min(self.seconds - 0.5, 60):
            return True  # its clock began anew
        if _BEGIN.search(line.text):
            return self.ended or ("begin" in self.marks and "load" in self.marks)
        return bool(_LOAD.search(line.text)) and (self.ended or "loaded" in self.marks) and "load" in self.marks

    def _note(self, line: _Line) -> None:
        self.ended = self.ended or bool(_ENDED.search(line.text))
        if line.sender == "systemd" or _UNIT_START.match(line.text) or not line.text:
            return
        self.said = True
        if line.pid:
            self.pids[line.sender] = line.pid
        if line.seconds is not None:
            self.seconds = line.seconds
        for name, pattern in (("begin", _BEGIN), ("load", _LOAD), ("loaded", _LOADED)):
            if pattern.search(line.text):
                self.marks[name] = 1


# Numbers

_BUFFER = re.compile(r"(\S+) (model|KV|RS|compute) buffer size\s*=\s*(\d+\.?\d*) MiB")
_OLD_BUFFER = re.compile(r"llm_load_tensors:\s+(\S+) buffer size\s*=\s*(\d+\.?\d*) MiB")  # until the end of 2024
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers")
_N_CTX = re.compile(r"llama_\w+:\s+n_ctx\s*=\s*(\d+)")
_N_SLOTS = re.compile(r"n_slots\s*=\s*(\d+)")
_FREE = re.compile(r"using device (\S+) .*?(\d+) MiB free")
_TOTAL = re.compile(r"Device (\d+): .*?VRAM: (\d+) MiB")
_BUILD = (
    re.compile(r"\bbuild(?: =|:)? ?b?(\d+)[ ,]+\(?(?:commit )?[0-9a-f]{6,}"),
    re.compile(r"build_info: b(\d+)-"),
    re.compile(r"\bversion: (\d+) \([0-9a-f]+\)"),
    re.compile(r"\bbuild=(\d+) commit="),
)


def _numbers(lines: list[_Line]) -> Reading:
    out = Reading()
    totals = {}
    kinds = {"model": out.model_mib, "KV": out.kv_mib, "RS": out.recurrent_mib, "compute": out.compute_mib}
    for line in lines:
        if m := _BUFFER.search(line.text):
            _add(kinds[m[2]], m[1], m[3])
        elif m := _OLD_BUFFER.search(line.text):
            _add(out.model_mib, m[1], m[2])
        elif m := _OFFLOADED.search(line.text):
            out.layers_offloaded, out.layers_total = int(m[1]), int(m[2])
        elif (m := _N_CTX.search(line.text)) and out.n_ctx is None:
            out.n_ctx = int(m[1])
        elif m := _N_SLOTS.search(line.text):
            out.n_slots = int(m[1])
        elif m := _FREE.search(line.text):
            out.free_mib[m[1]] = int(m[2])
        elif m := _TOTAL.search(line.text):
            totals[f"CUDA{m[1]}"] = int(m[2])
    # In WSL a driver has told more free memory than the card has (llama.cpp#24831).
    out.free_mib = {device: min(free, totals.get(device, free)) for device, free in out.free_mib.items()}
    return out


def _add(into: dict[str, float], device: str, mib: str) -> None:
    into[device] = round(into.get(device, 0.0) + float(mib), 2)


def _build(lines: list[_Line]) -> int | None:
    for line in reversed(lines):
        for pattern in _BUILD:
            if m := pattern.search(line.text):
                return int(m[1])
    return None


# Verdict

_HOST_DEVICE = r"(?:CPU\w*|\w+_Host)"
# What was out of memory where the line says so; the order is that of the verdicts.
_OOM_HOST = re.compile(
    rf"(?:failed|unable) to allocate {_HOST_DEVICE} buffer|cpu_buffer_type_alloc_buffer: failed to allocate"
    r"|insufficient memory \(attempted|std::bad_alloc|Cannot allocate memory|mmap failed(?!.*No such device)|oom[-_]kill"
    r'|Out of memory: Killed process|Memory cgroup out of memory|OOM ?[Kk]ill(?!ed"?: ?false)|oom_reaper'
    r"|failed to allocate output buffer of size|due to memory pressure for |systemd-oomd killed"
    r"|GGML_ASSERT\((?:ctx->)?mem_buffer != NULL\)",
)
_OOM_VRAM = re.compile(
    r"(?:cuda|hip|musa)Malloc\w* failed: out of memory|(?:failed|unable) to allocate (?!CPU)(?!\w+_Host)[A-Za-z]\w*\d+ buffer"
    r"|(?:CUDA|ROCm|HIP|MUSA) error(?: \d+)?(?: at [^:]+:\d+)?: out of memory|cu(?:da)?Mem\w+ failed.*out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDA error: the resource allocation failed|ErrorOutOfDeviceMemory"
    r"|OUT_OF_DEVICE_MEMORY|failed to allocate compute (?:pp |tg )?buffers|failed to allocate buffer for (?:kv|rs) cache",
    re.I,
)
# Lines that name memory and are no failure: other memory is taken, memory is not locked.
_SOFT = re.compile(r"pinned memory|mlock|VirtualLock", re.I)
_MMPROJ = re.compile(
    r"wrong mmproj|mmproj \(n_embd|failed to load (?:multimodal model|mmproj|CLIP model)|clip_\w+: failed|unknown projector type"
    r"|mtmd_init\w*: (?:error|failed)|mmproj.*(?:failed to open|invalid magic|not a valid)"
    r"|clip_model_loader: .*failed|failed to open .*mmproj"
)
_BAD_ARCH = re.compile(
    r"unknown (?:model architecture|pre-tokenizer type)(?!: 'clip')|missing tensor '|wrong number of tensors|has wrong shape"
    r"|invalid ggml type|unknown (?:ggml )?type \d+|GGUF (?:file )?(?:is )?version \d+"
    r"|unsupported model architecture"
)
_BAD_FILE = re.compile(
    r"illegal split file|invalid split file|failed to load GGUF split|not within the file bounds|corrupted or incomplete"
    r"|invalid magic|failed to read (?:magic|key|tensor|header)|failed to open GGUF file|error loading model: failed to open"
    r"|unable to (?:open|load) model|model file (?:not found|does not exist)|GGUFv1 is no longer supported"
    r"|No such file or directory.*\.gguf"
    r"|\.gguf\S*(?::| \().*(?:No such file|Permission denied|Is a directory)|unexpectedly reached end of file|read error"
    r"|key not found in model|cannot find tokenizer (?:merges|vocab|scores)"
    r"|unknown model architecture: 'clip'|CLIP cannot be used as main model"
    r"|mmap failed: No such device|failed to (?:read|load) split|gguf_init_from_file\w*: failed|data has unexpected size"
    r"|input/output error|corrupted model: |tensor '[^']*' (?:is duplicated|has invalid data)|found tensors with invalid data"
    r"|gguf_init_\w+: encountered (?:bad_alloc|length_error)|not available in cache \(offline mode\)"
    r"|failed to download model|error from HF API|no GGUF files found in repository"
    r"|file '[^']*' not found in repository|key \S+ has wrong type",
    re.I,
)
_BAD_FLAG = re.compile(
    r"(?<!parsing )error: (?:invalid|unknown|unrecognized) (?:argument|option|parameter)"
    r"|error while handling (?:argument|environment)"
    r"|expected value for argument|not recognized in preset|argument has been removed|unrecognized (?:arguments|option)"
    r"|requires flash[ _]?att|V cache quantization requires|invalid value for main_gpu|does not support different K"
    r"|built without SSL support"
    r"|Unsupported cache type",
    re.I,
)
_PORT = re.compile(r"(?:could(?:n.t| not)|failed to|unable to|cannot) bind\b|Address already in use|EADDRINUSE", re.I)
_KILLED = re.compile(
    r"^(?:.*: line \d+: +\d+ |\[\d+\]\s*[+-]? +)?Killed\b(?! process)|\bsignal 9\b|code=killed, (?:status=9|signal=KILL)"
    r"|exit(?:ed|) (?:with )?(?:code|status) 137|\bSIGKILL\b|\bzsh: killed\b"
)
_TEMPLATE = re.compile(
    r"Jinja Exception|parser for this template|(?:chat )?template (?:parsing|rendering) error|parse chat template|"
    r"(?:chat )?template .*(?:is not (?:yet )?supported|not supported|falling back|defaulting)|defaulting to chatml"
    r"|falling back to chatml|(?:exception|error).*(?:at row \d+, column \d+|roles must alternate|\bjinja\b|minja)"
    r"|failed to (?:apply|initialize|init|render) (?:the )?chat template",
    re.I,
)
_GPU_LOST = re.compile(
    r"no usable GPU found|found 0 (?:CUDA|ROCm) devices"
    r"|failed to initialize (?:CUDA|ROCm|HIP|MUSA|Vulkan)|not compiled with GPU offload support"
    r"|compiled without (?:GPU|CUDA) support, |no (?:CUDA|ROCm|Vulkan)?[ -]?(?:capable )?devices? (?:found|is detected)"
    r"|failed to load \S*ggml-(?:cuda|hip|vulkan|musa)"
    r"|failed to find ggml_backend_init in \S*ggml-(?:cuda|hip)|no suitable device found",
    re.I,
)
_GPU_THERE = re.compile(r"found \d+ (?:CUDA|ROCm|HIP|Vulkan) devices|using device (?!CPU)\w+|offloaded 0/\d+ layers", re.I)
_QUOTED = re.compile(r"log_server_r: re(?:quest|sponse): +[^A-Z\s]")  # bodies of requests and replies (verbosity 5)
_VULKAN_DEVICE = re.compile(r"ggml_vulkan: \d+ = ")
_CRASH = re.compile(
    r"Main process exited|Failed with result|exiting due to|Segmentation fault|core dumped|terminate called|GGML_ASSERT"
    r"|(?:CUDA|ROCm) error|failed to load model|error loading model|Start request repeated|Failed to start"
)
_STOPPED = re.compile(r"^Stopped \S*llama|Deactivated successfully")
_CLEAN_END = re.compile(r"status=0/SUCCESS|status=15/TERM")
_RUNNING = re.compile(
    r"loading model|load_tensors: |print_info: |llama_\w+: |common_init_|ggml_cuda_init: |HTTP server is listening"
    r"|threads for HTTP server|spawning server instance|^(?:\w+: )?build(?: =|:)? ?\d+|build_info: "
)


def _verdict(lines: list[_Line], numbers: Reading) -> tuple[Verdict, str]:
    said = [line.text for line in lines if line.text.strip() and not _QUOTED.search(line.text)]
    ready = max((i for i, text in enumerate(said) if _is_ready(text, said[i + 1 :])), default=-1)
    for name, text in _failures(said, ready):
        return name, text
    if text := _first(_TEMPLATE, [t for t in said if not _quotes_a_template(t)]):
        return "template", text
    if text := next((t for t in said[ready + 1 :] if _CRASH.search(t) and not _CLEAN_END.search(t)), ""):
        return "unknown", text
    lost = _lost_gpu(said, numbers)
    running = _first(_RUNNING, said) or next((t for t in said if _UNIT_START.match(t)), "")
    if lost and (ready >= 0 or not _first(_LOAD, said)):
        return "cpu_fallback", lost
    if ready >= 0:
        return "ok", said[ready]
    if said and _STOPPED.search(said[-1]):
        return "unknown", said[-1]  # on purpose, before it was loaded
    return ("loading", said[-1]) if running else ("unknown", said[-1] if said else "")


def _is_ready(text: str, after: list[str]) -> bool:
    """Loaded or listening. Builds up to 2025 said of their HTTP server that it is listening before they loaded the model."""
    if _LOADED.search(text) or _SERVES.search(text):  # all that is left of the start at the end of a long log
        return True
    return "HTTP server is listening" in text and _first(_LOAD, after) == "" and bool(after)


def _first(pattern: re.Pattern[str], texts: list[str]) -> str:
    return next((text for text in texts if pattern.search(text)), "")


def _failures(said: list[str], ready: int) -> Iterator[tuple[Verdict, str]]:
    """Stated failures, the one that says most first."""
    loaded = max((i for i, t in enumerate(said) if _LOADED.search(t) and "idle" not in t), default=-1)
    # a try that failed and was made good doesn't count
    memory = [t for t in said[loaded + 1 :] if not _SOFT.search(t)]
    if text := _first(_OOM_HOST, memory):
        yield "oom_host", text
    if text := _first(_OOM_VRAM, memory):
        yield "oom_vram", text
    early = said if ready < 0 else said[ready + 1 :]
    stated: tuple[tuple[Verdict, re.Pattern[str], list[str]], ...] = (
        ("bad_flag", _BAD_FLAG, said),
        ("port", _PORT, said),
        ("mmproj", _MMPROJ, said),
        ("bad_arch", _BAD_ARCH, early),
        ("bad_file", _BAD_FILE, early),
        ("killed", _KILLED, said),
    )
    for name, pattern, where in stated:
        if text := _first(pattern, where):
            yield name, text


def _quotes_a_template(text: str) -> bool:
    """A healthy server prints the model's whole template, with all that it may complain of, and an example of its use."""
    return "chat_template: " in text or "example_format" in text or "raise_exception(" in text


def _lost_gpu(said: list[str], numbers: Reading) -> str:
    """The line that says that the GPU is not used although it was there or asked for; empty when nothing says so."""
    drivers = [text for text in said if _VULKAN_DEVICE.search(text)]
    if drivers and all("llvmpipe" in text for text in drivers) and not any(name.startswith("CUDA") for name in numbers.model_mib):
        return drivers[0]  # Mesa's rasterizer on the CPU, counted as a GPU
    if numbers.on_gpu:
        return ""
    there = _first(_GPU_THERE, said)
    found = re.search(r"found [1-9]\d* ", there)
    if found and any("spawning server instance" in text for text in said):
        return ""  # the parent of a router uses none itself, and says so (llama.cpp#22748)
    # one backend of several may find nothing
    if text := next((t for t in said if _GPU_LOST.search(t) and not (found and "vulkan" in t.lower())), ""):
        return text
    return there if numbers.model_mib or "offloaded 0/" in there else ""
