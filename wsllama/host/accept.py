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

from wsllama.host.api import HANGS, NotAccepted, Server
from wsllama.host.checks import Chain, Check, Odd, Skipped, run

# One line a start (common_params_print_info, common.cpp:417 at the pin): what the code that was loaded computes with, which a
# build with GGML_BACKEND_DL chooses at the start.
SYSTEM_INFO = re.compile(r"\bsystem_info: .*")

# llama-server marks its errors with E; the rest is what the GPU's runtime, an assertion or systemd says of its end.
CAUSE = re.compile(r"^\S+ E |CUDA error|GGML_ASSERT|terminate called|[Oo]ut of memory|Main process exited")

# What it logs when it can't have its port, without the system's reason (server-http.cpp:517 at the pin).
NO_PORT = re.compile(r"couldn't bind HTTP server socket|[Aa]ddress already in use")

# Why a start ends that ends the next one just as well.
FOR_GOOD = ("bad_file", "bad_arch", "bad_flag", "mmproj")


def show(unit: str) -> dict[str, str]:
    names = "ActiveState,SubState,Result,NRestarts,InvocationID,MainPID,ExecMainStatus,MemoryMax"
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


def listened_on(port: int) -> bool:
    """Whether anybody in this distro listens on a TCP port, by the kernel's own tables."""
    for table in filter(os.path.exists, ("/proc/net/tcp", "/proc/net/tcp6")):
        with open(table, encoding="ascii") as f:
            rows = [line.split() for line in f.readlines()[1:]]
        if any(row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port for row in rows):
            return True
    return False


def port_trouble(log: list[str], url: str, wsl: bool) -> str:
    """Who has the server's port, when the log of its failure says that it could not have it; else nothing.

    In WSL's mirrored networking, distros share their ports with Windows (microsoft/WSL#10494, #40984): then nobody is seen here.
    """
    if not any(NO_PORT.search(line) for line in log[-4:]):  # above them stands what ended an earlier start
        return ""
    port = int(url.rpartition(":")[2])
    if listened_on(port):
        return f"; another program in this distro has port {port}: `ss -ltnp` names it"
    if not wsl:
        return ""
    return (
        f"; nobody in this distro has port {port}, so Windows or another distro has, which mirrored networking shares ports with:"
        f" run `netstat -ano | findstr :{port}` in Windows and end it, or set server.port, or wsl.wsl2.networkingMode to nat"
    )


def wait(server: Server, a: dict[str, Any]) -> str:
    """Until /health is 200; 503 is loading. A unit that gave up, or that starts again and again, ends the wait.

    What a wait before has used of the time (`waited_s`) isn't given again.
    """
    waited = a.get("waited_s", 0)
    began = told = time.monotonic()
    restarts: int | None = None
    while True:
        got = server.fetch("/health", timeout=5)
        seconds = time.monotonic() - began + waited
        if got.status == 200:  # before systemd is asked, which takes longer
            return f"after {seconds:.1f} s"
        now = show(a["unit"])
        if restarts is None:  # the count begins with a start by hand, so it is all of this one where that is what is waited for
            restarts = 0 if waited else int(now["NRestarts"] or 0)
        again = int(now["NRestarts"] or 0) - restarts
        if now["ActiveState"] in ("failed", "inactive") or again >= 1:
            verdict, why = _why(a["unit"], now.get("MemoryMax", ""))
            if now["ActiveState"] in ("failed", "inactive"):
                how = "{}, status {}".format(now["Result"], now["ExecMainStatus"])
                raise NotAccepted("{} ended while it was starting ({}){}".format(a["unit"], how, why))
            if again >= 2:
                raise NotAccepted("{} starts again and again{}".format(a["unit"], why))
            if verdict in FOR_GOOD:
                raise NotAccepted("{} can't be started{}".format(a["unit"], why))
        if seconds > a["start_timeout_s"]:
            raise NotAccepted(f"/health was not ready after {seconds:.0f} s ({_last(got.status, got.why)})")
        if time.monotonic() - told >= 5:
            told = time.monotonic()
            doing = "the model is being loaded" if got.status == 503 else "waiting for the server"
            print(f"{doing}, {seconds:.0f} s", flush=True)
        time.sleep(0.2)


def _last(status: int, why: str) -> str:
    """What the last answer says of a server that never got ready."""
    if status == 503:
        return (
            "last answer: status 503, the model is still being loaded: raise acceptance.start_timeout_s, or see whether it lies"
            " on a Windows drive"
        )
    if status:
        return f"last answer: status {status}: another program has the port, `ss -ltnp` names it"
    return f"last answer: {why}" + (f": {HANGS}" if "timed out" in why else "")


def _why(unit: str, limit: str) -> tuple[str, str]:
    """Verdict of the start that ended, and what is said of it. limit: bytes of memory that the unit may have, if they are."""
    verdict, line = ended(unit)
    why = f": {verdict}: {line} (`wsllama doctor` says what to do)" if line else ""
    if verdict in ("killed", "oom_host") and limit.isdigit():
        why += f"; its limit of memory is {int(limit) >> 20} MiB: raise server.memory_max"
    return verdict, why


def ended(unit: str) -> tuple[str, str]:
    """Verdict and line of the log that say why the last start that ended did so; the line is empty where that is not known."""
    from wsllama.domain import server_log

    text = journal("-u", unit, "-n", "600")
    before, again, _ = text.rpartition("Scheduled restart job")  # behind it stands the start that is on its way
    found = server_log.read(before if again else text)
    known = found.verdict not in ("ok", "loading", "unknown")
    return found.verdict, found.line.strip()[:200] if known else ""


class Log:
    """Checks of what the log of this start says. a: the argument of `main`; invocation: of the start."""

    def __init__(self, a: dict[str, Any], invocation: str) -> None:
        from wsllama.domain import server_log

        self.a, self.invocation = a, invocation
        self.text = of_start(invocation)
        self.reading = server_log.read(self.text)

    def checks(self) -> list[Check]:
        """Before anything is asked: a server on the CPU would take its time for it."""
        on_gpu: list[Check] = [("GPU", self.gpu), ("CUDA graphs", self.graphs)]
        return [("plan", self.plan), *(on_gpu if self.a["gpu"] else []), ("processor", self.processor)]

    def plan(self) -> str:
        """The memory of this start is that of the plan which the release records; a planned GPU is used in any case."""
        from wsllama.domain import plan_drift

        with open(os.path.join(self.a["release"], "release.json"), encoding="utf-8") as f:
            plan = json.load(f).get("plan")
        if not plan:
            raise Skipped("the release was made without a plan")
        if fallen := plan_drift.fallen_back(self.reading, plan):
            raise NotAccepted(f"{fallen}: see `nvidia-smi` in Windows and `wsl --update`")
        if not (found := plan_drift.drift(self.reading, plan, self.a["plan"]["margin_percent"])):
            return "memory is as planned"
        said = "memory isn't as planned: {}: raise plan.margin_percent".format("; ".join(found))
        if self.a["plan"]["drift"] == "fail":
            raise NotAccepted(f"{said}, or set plan.drift to warn")
        raise Odd(said)

    def after(self) -> str:
        """No template error, which is logged when a request uses it."""
        from wsllama.domain import server_log

        reading = server_log.read(of_start(self.invocation))
        if reading.verdict == "template":
            raise NotAccepted(f"the log speaks of a template error: {reading.line.strip()}")
        return "no template error"

    def gpu(self) -> str:
        """Something lies on the GPU."""
        if self.reading.verdict == "cpu_fallback" or not self.reading.on_gpu:
            said = self.reading.line.strip() if self.reading.verdict == "cpu_fallback" else "its log shows no buffer on a GPU"
            raise NotAccepted(
                f"the server fell back to the CPU ({said}): see `nvidia-smi` in Windows and `wsl --update`, or set"
                " cuda.require_gpu to False"
            )
        return f"{self.reading.layers_offloaded} of {self.reading.layers_total} layers"

    def graphs(self) -> str:
        """CUDA graphs, which save time between kernels: compiled in, not switched off, and known to this GPU."""
        info = SYSTEM_INFO.search(self.text)
        if not info or "USE_GRAPHS = 1" not in info[0]:
            raise Odd("the build uses no CUDA graphs: build it with GGML_CUDA_GRAPHS=ON, which is the default of llama.cpp")
        if "GGML_CUDA_DISABLE_GRAPHS" in environment_of(show(self.a["unit"])["MainPID"]):
            raise Odd("CUDA graphs are switched off: GGML_CUDA_DISABLE_GRAPHS is set for the service, and its presence counts")
        old = [m[0] for m in re.finditer(r"Device \d+: .*?, compute capability ([1-6])\.\d", self.text)]
        if old:  # ggml-cuda.cu:4426 at the pin
            raise Odd(f"CUDA graphs are not used on a GPU older than Volta ({old[0]})")
        return "used"

    def processor(self) -> str:
        """With AVX2 where the processor has it: several times slower without, and nobody sees it."""
        with open(self.a.get("cpuinfo", "/proc/cpuinfo"), encoding="utf-8", errors="replace") as f:
            flags = re.search(r"^flags\s*:(.*)$", f.read(), re.M)
        found = SYSTEM_INFO.search(self.text)
        said = found[0].rstrip(" |") if found else "its log has no system_info"
        if flags and "avx2" in flags[1].split() and "AVX2 = 1" not in said:
            raise NotAccepted(
                f"the processor has AVX2 and the server computes without it ({said}):"
                " set llama_cpp.native or llama_cpp.portable to True, so that it is built for this processor"
            )
        return "AVX2" if "AVX2 = 1" in said else "no AVX2"


def environment_of(pid: str) -> dict[str, str]:
    """The environment that a process was started with."""
    with open(f"/proc/{pid}/environ", "rb") as f:
        words = f.read().decode("utf-8", "replace").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


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
    """Ask the server.

    a: url, host (that is listened on), alias, key_file, unit, release, program; gpu, vision, wsl, reasoning, reasoning_apart
    (bools); ctx_size in tokens; the settings' topic acceptance; whole; and where they are given stage, go_on (ask on after a
    failure), waited_s, only ("wait": do no more than that).
    """
    found: dict[str, Any] = {"ok": False, "checks": []}
    try:
        server = Server(a)
        if a.get("only") == "wait":
            wait(server, a)
            return
        found["error"] = asked(server, a, found)
        found["ok"] = not found["error"]
    except (NotAccepted, OSError) as e:
        if a.get("only") == "wait":
            return  # the question that follows says what is wrong
        found["error"] = str(e)
    if found["ok"]:
        del found["error"]
    else:
        found["log"] = of_failure(a["unit"])
        found["error"] += port_trouble(found["log"], a["url"], os.path.isdir(a.get("sockets", "/run/WSL")))
    print(json.dumps(found))


def asked(server: Server, a: dict[str, Any], found: dict[str, Any]) -> str | None:
    """Run the chain and put down what it finds; the sentence of its first failure. Raises OSError."""
    out = found["checks"]
    if wrong := run([("health", lambda: wait(server, a))], False, out):
        return wrong
    chain = Chain(server, a)
    checks = chain.checks()
    if a["whole"]:
        log = Log(a, show(a["unit"])["InvocationID"])
        checks = [*log.checks(), *checks, ("log", log.after)]
    wrong = run(checks, bool(a.get("go_on")), out)
    found["answer"] = chain.answer
    if a["whole"] and not wrong:
        found.update(reply=chain.reply, baseline={**record(server, a), "seconds": chain.seconds})
    return wrong
