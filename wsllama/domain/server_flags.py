"""llama-server's arguments: which ones follow from the settings, which ones nobody may add. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from wsllama.domain import flags, spelling

# Arguments that settings own (a second one would silently win), by each spelling of llama-server's --help at the pin.
OWNED = {
    "--model": "model.path",
    "-m": "model.path",
    **dict.fromkeys(("-mm", "--mmproj"), "model.mmproj"),
    "--alias": "model.alias",
    "-a": "model.alias",
    "--host": "server.host",
    "--port": "server.port",
    "--ctx-size": "server.ctx_size",
    "-c": "server.ctx_size",
    "--parallel": "server.parallel",
    "-np": "server.parallel",
    "--kv-unified": "server.parallel",
    "-kvu": "server.parallel",
    "--no-kv-unified": "server.parallel",
    "-no-kvu": "server.parallel",
    "--cache-type-k": "server.cache_type_k",
    "-ctk": "server.cache_type_k",
    "--cache-type-v": "server.cache_type_v",
    "-ctv": "server.cache_type_v",
    "--flash-attn": "server.flash_attn",
    "-fa": "server.flash_attn",
    "--batch-size": "server.batch_size",
    "-b": "server.batch_size",
    "--ubatch-size": "server.ubatch_size",
    "-ub": "server.ubatch_size",
    "--threads": "server.threads",
    "-t": "server.threads",
    "--gpu-layers": "server.n_gpu_layers",
    "--n-gpu-layers": "server.n_gpu_layers",
    "-ngl": "server.n_gpu_layers",
    "--n-cpu-moe": "server.n_cpu_moe",
    "-ncmoe": "server.n_cpu_moe",
    "--load-mode": "server.load_mode",
    "-lm": "server.load_mode",
    "--cache-ram": "server.cache_ram",
    "-cram": "server.cache_ram",
    "--ctx-checkpoints": "server.ctx_checkpoints",
    "-ctxcp": "server.ctx_checkpoints",
    "--swa-checkpoints": "server.ctx_checkpoints",
    **dict.fromkeys(("--reasoning", "-rea"), "server.reasoning"),
    "--reasoning-format": "server.reasoning_format",
    "--reasoning-budget": "server.reasoning_budget",
    "--reasoning-budget-message": "server.reasoning_budget_message",
    "--metrics": "server.metrics",
    "--slots": "server.slots",
    "--no-slots": "server.slots",
    "--api-key-file": "server.api_key",
}
# Arguments with a reason against each (facts on operation: a secret in a process list; placement lines need -lv 4).
_VERBOSITY = "the deploy reads the log at verbosity 4"
_ONE_MODEL = "the server serves one model"
_UNVERIFIED = "the model is verified before it is served; set model.path"
FORBIDDEN = {
    "--api-key": "a key among the arguments is readable by every user of the host; set server.api_key",
    **dict.fromkeys(("-lv", "--verbosity", "--log-verbosity", "-v", "--verbose", "--log-verbose"), _VERBOSITY),
    "--log-disable": "the deploy reads the log",
    "--log-file": "the log belongs into the journal",
    **dict.fromkeys(("--models-dir", "--models-preset"), _ONE_MODEL),
    **dict.fromkeys(
        ("-hf", "-hfr", "--hf-repo", "-mu", "--model-url", "-mmu", "--mmproj-url", "-dr", "--docker-repo"), _UNVERIFIED
    ),
}

# The card of Qwen3.6-35B-A3B, "Using Qwen3.6 via the Chat Completions API": a set for each way of using the model. Its
# repetition penalty of 1.0 is the program's default.
SAMPLING = {
    "thinking": {"--temp": "1.0", "--top-p": "0.95", "--top-k": "20", "--min-p": "0.0", "--presence-penalty": "1.5"},
    "coding": {"--temp": "0.6", "--top-p": "0.95", "--top-k": "20", "--min-p": "0.0", "--presence-penalty": "0.0"},
    "instruct": {"--temp": "0.7", "--top-p": "0.8", "--top-k": "20", "--min-p": "0.0", "--presence-penalty": "1.5"},
}


def is_loopback(host: str) -> bool:
    """Whether a listening address is reachable from this machine only; `host` is an IP address or localhost."""
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


def refused(extra: Sequence[str], allow_tools: bool = False) -> list[str]:
    """Say why each of these additional arguments can't be given; an empty list when all can.

    allow_tools: let those pass that give a model files or a shell.
    """
    out = []
    for word in extra:
        flag = word.split("=", 1)[0].replace("_", "-") if word.startswith("-") else ""
        if flag in OWNED:
            out.append(f"extra_args may not hold {flag}: set {OWNED[flag]}")
        elif flag in FORBIDDEN:
            out.append(f"extra_args may not hold {flag}: {FORBIDDEN[flag]}")
        elif (tool := flags.tool_flag(word)) and not allow_tools:
            out.append(f"extra_args may not hold {tool}: {flags.TOOLS_REASON}")
        elif spelling.on_windows(file := word.partition("=")[2] if flag else word):
            out.append(
                f"extra_args may not hold {file}: a file on a drive of Windows can't be served from there, as mapping it fills"
                " the memory: copy it into the distro"
            )
    return out


def arguments(server: Any, alias: str, model_file: str, key_file: str) -> list[str]:
    """llama-server's argument words.

    server: the settings' `Server` topic; alias: id for clients; model_file, key_file: absolute paths on the host. `-np` alone
    divides the context by the slots (llama-context.cpp:292-307 at the pin), so `--kv-unified` stands beside it. -lv 4 makes
    placement and buffer lines visible (common/log.cpp:529-540). With layers given, llama-server's own --fit would only warn that
    it can't change them (common/fit.cpp:464,485), so it is off.
    """
    words = ["--model", model_file, "--alias", alias, "--host", server.host, "--port", str(server.port)]
    words += ["--ctx-size", str(server.ctx_size), "--parallel", str(server.parallel), "--kv-unified"]
    words += ["--cache-type-k", server.cache_type_k, "--cache-type-v", server.cache_type_v, "--flash-attn", server.flash_attn]
    for flag, value in (
        ("--batch-size", server.batch_size),
        ("--ubatch-size", server.ubatch_size),
        ("--threads", server.threads),
        ("--n-gpu-layers", server.n_gpu_layers),
        ("--n-cpu-moe", server.n_cpu_moe),
    ):
        words += [] if value is None else [flag, str(value)]
    given = server.n_gpu_layers is not None and server.n_cpu_moe is not None and not {"--fit", "-fit"} & {*server.extra_args}
    words += ["--fit", "off"] if given else []
    words += ["--load-mode", server.load_mode, "--cache-ram", str(server.cache_ram)]
    words += ["--ctx-checkpoints", str(server.ctx_checkpoints), "--reasoning-budget", str(server.reasoning_budget)]
    words += [word for pair in SAMPLING.get(server.sampling, {}).items() for word in pair]
    words += [] if server.reasoning == "auto" else ["--reasoning", server.reasoning]
    words += [] if server.reasoning_format == "auto" else ["--reasoning-format", server.reasoning_format]
    words += ["--reasoning-budget-message", server.reasoning_budget_message] if server.reasoning_budget_message else []
    words += ["--metrics"] if server.metrics else []
    words += ["--slots" if server.slots else "--no-slots"]
    words += ["--api-key-file", key_file] if server.api_key else []
    return [*words, "--log-verbosity", "4", "--offline", *server.extra_args]
