"""Runs on the host: asks the server until it answers as wanted; the last line is one JSON document with what was found.

A server without a model answers /health too (router mode, server.cpp:139-141 at the pin), and a server that loads answers 503:
so the model's name and a real reply are what counts, and waiting is told.
"""

import json
import os
import re
import subprocess
import time
from typing import Any

from wsllama.host.api import NotAccepted, Server, message

# What llama-server logs when a chat template can't be used: at start, replaced by another, or at a request.
TEMPLATE_TROUBLE = re.compile(
    r"chat template (?:parsing error|is not supported|that comes with this model is not)"
    r"|[Jj]inja (?:[Ee]xception|error)|template[^\n]*?(?:[Ff]ailed|exception)|Unable to generate parser for this template"
    r"|falling back to chatml"
)

# What it logs when the GPU that it was built for is not used; it serves on the CPU then, and /health is 200 (llama.cpp#27923).
FALLEN_BACK = re.compile(r"failed to initialize CUDA|no usable GPU found|no CUDA-capable device|found no NVIDIA driver")
ON_GPU = re.compile(r"\bCUDA\d+ +(?:model|KV|RS|compute) buffer size")

# llama-server marks its errors with E; the rest is what the GPU's runtime, an assertion or systemd says of its end.
CAUSE = re.compile(r"^\S+ E |CUDA error|GGML_ASSERT|terminate called|[Oo]ut of memory|Main process exited")


def show(unit: str) -> dict[str, str]:
    names = "ActiveState,SubState,Result,NRestarts,InvocationID,MainPID,ExecMainStatus"
    p = subprocess.run(["systemctl", "show", "-p", names, unit], stdout=subprocess.PIPE, text=True)
    return dict(line.split("=", 1) for line in p.stdout.splitlines() if "=" in line)


def journal(*which: str) -> str:
    """Lines of the log, without journald's prefix."""
    command = ["journalctl", "-q", "-o", "cat", "--no-pager", *which]
    return subprocess.run(command, stdout=subprocess.PIPE, errors="replace", text=True).stdout


def of_start(invocation: str) -> str:
    """The log of one start of the unit."""
    return journal(f"_SYSTEMD_INVOCATION_ID={invocation}")


def of_failure(unit: str) -> list[str]:
    """Lines of the unit's log that say why, of whichever start: it may be starting again already. The last ones if none does."""
    lines = [line[:300] for line in journal("-u", unit, "-n", "150").splitlines()]
    return [line for line in lines if CAUSE.search(line)][-12:] or lines[-25:]


def wait(server: Server, a: dict[str, Any]) -> None:
    """Until /health is 200; 503 is loading. A unit that gave up, or that starts again and again, ends the wait."""
    began, told, first = time.monotonic(), time.monotonic(), show(a["unit"])
    while True:
        status, _ = server.ask("/health", timeout=5)
        now, seconds = show(a["unit"]), time.monotonic() - began
        if status == 200:
            return
        if now["ActiveState"] in ("failed", "inactive"):
            raise NotAccepted(
                "{} ended while it was starting ({}, status {})".format(a["unit"], now["Result"], now["ExecMainStatus"])
            )
        if int(now["NRestarts"] or 0) - int(first["NRestarts"] or 0) >= 2:
            raise NotAccepted("{} starts again and again".format(a["unit"]))
        if seconds > a["start_timeout_s"]:
            raise NotAccepted(f"/health was not ready after {seconds:.0f} s (last answer: status {status})")
        if time.monotonic() - told >= 5:
            told = time.monotonic()
            doing = "the model is being loaded" if status == 503 else "waiting for the server"
            print(f"{doing}, {seconds:.0f} s", flush=True)
        time.sleep(0.2)


def named(server: Server, a: dict[str, Any]) -> None:
    status, got = server.ask("/v1/models")
    if status != 200 or not isinstance(got, dict):
        raise NotAccepted(f"/v1/models got status {status}: {json.dumps(got)[:300]}")
    ids = [m.get("id") for m in got.get("data", [])]
    if a["alias"] not in ids:
        raise NotAccepted("/v1/models names {}, not {}".format(", ".join(map(str, ids)) or "no model", a["alias"]))


def without_thinking(server: Server, a: dict[str, Any]) -> str:
    kwargs = {"enable_thinking": False}
    content, _, finish = message(server.chat(a["prompt"], max_tokens=a["answer_tokens"], chat_template_kwargs=kwargs))
    if not content.strip():
        raise NotAccepted(f"with thinking off the reply was empty (finish reason {finish})")
    return content


def with_thinking(server: Server, a: dict[str, Any]) -> dict[str, Any]:
    budget = a["thinking_tokens"]
    more = {"max_tokens": a["answer_tokens"] + max(budget, 0), "chat_template_kwargs": {"enable_thinking": True}}
    if budget >= 0:
        more["reasoning_budget_tokens"] = budget
    content, reasoning, finish = message(server.chat(a["prompt"], **more))
    if not content.strip():
        cause = f"thinking used up all {more['max_tokens']} tokens" if finish == "length" else f"finish reason {finish}"
        raise NotAccepted(
            f"with thinking on there was no answer, only {len(reasoning)} characters of reasoning: {cause};"
            " give acceptance.thinking_tokens a limit or raise answer_tokens"
        )
    return {"content": content, "reasoning": reasoning, "finish_reason": finish}


def on_gpu(log: str) -> None:
    """Raise NotAccepted unless the log of this start shows that something lies on the GPU."""
    fallen = next((line.strip() for line in log.splitlines() if FALLEN_BACK.search(line)), None)
    if fallen or not ON_GPU.search(log):
        raise NotAccepted(
            f"the server fell back to the CPU ({fallen or 'its log shows no buffer on a GPU'}): see `nvidia-smi` in Windows and"
            " `wsl --update`, or set cuda.require_gpu to False"
        )


def output(*command: str) -> str | None:
    try:
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return p.stdout.strip() if p.returncode == 0 else None


def record(server: Server, a: dict[str, Any]) -> dict[str, Any]:
    """What this release was when it was accepted: the baseline to compare later runs with."""
    status, props = server.ask("/props")
    props = props if status == 200 and isinstance(props, dict) else {}
    query = "--query-gpu=name,memory.total,driver_version"
    gpu = next(
        (
            g
            for tool in ("/usr/lib/wsl/lib/nvidia-smi", "/usr/bin/nvidia-smi")
            if os.path.exists(tool)
            for g in [output(tool, query, "--format=csv,noheader")]
        ),
        None,
    )
    with open("/proc/meminfo", encoding="ascii") as f:
        memory = {m[0]: int(m[1]) * 1024 for m in re.findall(r"^(MemTotal|MemAvailable|SwapTotal): +(\d+) kB", f.read(), re.M)}
    status_of = "/proc/{}/status".format(show(a["unit"])["MainPID"])
    with open(status_of, encoding="ascii", errors="replace") as f:
        resident = re.search(r"^VmRSS:\s+(\d+) kB", f.read(), re.M)
    log = of_start(show(a["unit"])["InvocationID"])
    kv = re.search(r"size = .*K \((\w+)\):.*V \((\w+)\):", log)
    with open(os.path.join(a["release"], "release.json"), encoding="utf-8") as f:
        release = json.load(f)
    return {
        "version": output(a["program"], "--version"),
        "gpu": gpu or "none seen",
        "memory": memory,
        "server_rss": int(resident[1]) * 1024 if resident else None,
        "model": release.get("model"),
        "build": release.get("build"),
        "n_ctx": props.get("default_generation_settings", {}).get("n_ctx"),
        "kv_type": {"k": kv[1], "v": kv[2]} if kv else "not in the log",
        "accepted": time.time(),
    }


def main(a: dict[str, Any]) -> None:
    found: dict[str, Any] = {"ok": False, "invocation": None}
    try:
        server = Server(a)
        wait(server, a)
        if a.get("only") == "wait":
            return
        found["invocation"] = show(a["unit"])["InvocationID"]
        named(server, a)
        found["answer"] = without_thinking(server, a)
        if a["whole"]:
            found["reply"] = with_thinking(server, a)
            if trouble := [x for x in of_start(found["invocation"]).splitlines() if TEMPLATE_TROUBLE.search(x)]:
                raise NotAccepted(f"the log speaks of a template error: {trouble[0].strip()}")
            if a["gpu"]:
                on_gpu(of_start(found["invocation"]))
            found["baseline"] = record(server, a)
        found["ok"] = True
    except (NotAccepted, OSError) as e:
        if a.get("only") == "wait":
            return  # the question that follows says what is wrong
        found["error"] = str(e)
        found["log"] = of_failure(a["unit"])
    print(json.dumps(found))
