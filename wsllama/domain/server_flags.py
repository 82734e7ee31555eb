"""llama-server's arguments: which ones follow from the settings, which ones nobody may add. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from wsllama.domain import flags

# Arguments that settings own (a second one would silently win), by each spelling of llama-server's --help at the pin.
OWNED = {
    "--model": "model.path",
    "-m": "model.path",
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
    "--reasoning-budget": "server.reasoning_budget",
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
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "-mu", "--model-url", "-dr", "--docker-repo"), _UNVERIFIED),
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
    return out


def arguments(server: Any, alias: str, model_file: str, key_file: str) -> list[str]:
    """llama-server's argument words.

    server: the settings' `Server` topic; alias: id for clients; model_file, key_file: absolute paths on the host. `-np` alone
    divides the context by the slots (llama-context.cpp:292-307 at the pin), so `--kv-unified` stands beside it. -lv 4 makes
    placement and buffer lines visible (common/log.cpp:529-540).
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
    words += ["--load-mode", server.load_mode, "--cache-ram", str(server.cache_ram)]
    words += ["--ctx-checkpoints", str(server.ctx_checkpoints), "--reasoning-budget", str(server.reasoning_budget)]
    words += ["--metrics"] if server.metrics else []
    words += ["--slots" if server.slots else "--no-slots"]
    words += ["--api-key-file", key_file] if server.api_key else []
    return [*words, "--log-verbosity", "4", "--offline", *server.extra_args]
