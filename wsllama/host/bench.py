"""Runs on the host: measures the server that is there, and keeps one record of it; the last line names that record.

What has to be stopped or started otherwise for a measurement is put right by a unit that waits for the end of this program, so
that not even a kill leaves the service stopped or changed.
"""

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from wsllama.domain import nvidia_smi, record, scenarios, server_log
from wsllama.host import records, smi
from wsllama.host.accept import of_start, show, wait
from wsllama.host.api import NotAccepted, Server

NR = record.NOT_REPORTED
NO_GRAPHS = "GGML_CUDA_DISABLE_GRAPHS"
RESTORE, SWEEP = "wsllama-bench-restore", "wsllama-bench-threads"

# Arguments: the measuring program's process, the drop-in, the service, and the unit of the sweep, which would take its memory.
PUT_RIGHT = """\
tail --pid="$1" -f /dev/null
systemctl stop "$4"
again=start
if [ -e "$2" ]; then rm -f "$2"; rmdir "${2%/*}" 2>/dev/null; systemctl daemon-reload; again=restart; fi
systemctl reset-failed "$3"
systemctl "$again" "$3"
"""


def say(text: str) -> None:
    print(text, flush=True)


# What the machine has


def content(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def cards() -> tuple[nvidia_smi.Gpu, ...]:
    """What nvidia-smi says of each GPU now; nothing where there is none."""
    return smi.ask().gpus


def memory() -> dict[str, int]:
    found = re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB", content("/proc/meminfo"), re.M)
    return {name: int(kib) * 1024 for name, kib in found}


def resident(pid: str) -> int:
    """Memory of a process in bytes, its pages of mapped files included; 0 when it is gone."""
    try:
        found = re.search(r"^VmRSS:\s+(\d+) kB", content(f"/proc/{pid}/status"), re.M)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


class Sampler(threading.Thread):
    """Looks at memory and GPUs every second, and whenever it is told to."""

    def __init__(self, unit: str) -> None:
        super().__init__(daemon=True)
        self.unit, self.taken, self.ended = unit, list[dict[str, Any]](), threading.Event()
        self.pid = show(unit)["MainPID"]

    def take(self) -> dict[str, Any]:
        now, ram = cards(), memory()
        used = [card.vram_used_mib for card in now if card.vram_used_mib is not None]
        sample = {
            "vram_bytes": sum(used) * 2**20 if used and len(used) == len(now) else NR,
            "server_bytes": resident(self.pid),
            "used_bytes": ram["MemTotal"] - ram["MemAvailable"],
            "power": [card.power_w for card in now if card.power_w is not None],
            "utilization": [card.utilization_pct for card in now if card.utilization_pct is not None],
            "temperature": [card.temperature_c for card in now if card.temperature_c is not None],
        }
        self.taken.append(sample)
        return sample

    def run(self) -> None:
        while not self.ended.wait(1):
            self.take()

    def peak(self, key: str) -> Any:
        return max((s[key] for s in self.taken if s[key] != NR), default=NR)

    def load(self) -> dict[str, Any]:
        """Of the GPUs: power is theirs together, utilisation their mean, the temperature that of the hottest."""
        power = [sum(s["power"]) for s in self.taken if s["power"]]
        busy = [sum(s["utilization"]) / len(s["utilization"]) for s in self.taken if s["utilization"]]
        hot = [max(s["temperature"]) for s in self.taken if s["temperature"]]
        return {
            "power_mean_w": round(sum(power) / len(power), 1) if power else NR,
            "power_peak_w": max(power, default=NR),
            "utilization_mean_pct": round(sum(busy) / len(busy), 1) if busy else NR,
            "temperature_peak_c": max(hot, default=NR),
        }


# The service


class Service:
    """The service, as this measurement needs it; see PUT_RIGHT for what holds whatever becomes of this program."""

    def __init__(self, a: dict[str, Any], server: Server) -> None:
        self.a, self.server, self.guarded = a, server, False
        self.drop_in = "/run/systemd/system/{}.d/wsllama-bench.conf".format(a["unit"])

    def systemctl(self, *words: str) -> None:
        p = subprocess.run(["systemctl", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if p.returncode:
            raise NotAccepted("systemctl {}: {}".format(" ".join(words), " ".join(p.stderr.split())))

    def guard(self) -> None:
        if self.guarded:
            return
        subprocess.run(["systemctl", "stop", RESTORE], stderr=subprocess.DEVNULL)  # of an earlier one, which has nothing to do
        words = ["sh", "-c", PUT_RIGHT, "sh", str(os.getpid()), self.drop_in, self.a["unit"], SWEEP]
        p = subprocess.run(
            ["systemd-run", "--quiet", "--collect", "--unit", RESTORE, "-p", "Type=exec", *words],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
        if p.returncode:
            raise NotAccepted("the unit that puts the service right can't be started: " + " ".join(p.stderr.split()))
        self.guarded = True

    def stop(self) -> None:
        self.guard()
        self.systemctl("stop", self.a["unit"])

    def start(self, environment: str = "") -> str:
        """Start it, with one more variable if given, and wait until it answers; returns its process id."""
        self.guard()
        if environment:
            os.makedirs(os.path.dirname(self.drop_in), exist_ok=True)
            with open(self.drop_in, "w", encoding="utf-8") as f:
                f.write(f"[Service]\nEnvironment={environment}\n")
        elif os.path.exists(self.drop_in):
            os.unlink(self.drop_in)
            with contextlib.suppress(OSError):  # somebody else's may be beside it
                os.rmdir(os.path.dirname(self.drop_in))
        self.systemctl("daemon-reload")
        subprocess.run(["systemctl", "reset-failed", self.a["unit"]], stderr=subprocess.DEVNULL)  # these starts are no crashes
        self.systemctl("restart", self.a["unit"])
        wait(self.server, self.a)
        return show(self.a["unit"])["MainPID"]

    def put_right(self) -> None:
        """As it was, and the unit that would have done it is not needed any more."""
        if not self.guarded:
            return
        if os.path.exists(self.drop_in) or show(self.a["unit"])["ActiveState"] != "active":
            self.start()
        subprocess.run(["systemctl", "stop", RESTORE], stderr=subprocess.DEVNULL)


def counter(server: Server, name: str) -> float | None:
    """A figure of /metrics; None where that isn't served."""
    status, text = server.ask("/metrics")
    found = re.search(rf"^llamacpp:{name} (\S+)$", text, re.M) if status == 200 and isinstance(text, str) else None
    return float(found[1]) if found else None


# Requests


def reply(server: Server, messages: Sequence[dict[str, str]], thinking: bool, **more: Any) -> dict[str, Any]:
    """One streamed reply: text, seconds to its first token by our clock, and the server's own timings."""
    body = {
        "model": server.a["alias"], "messages": messages, "stream": True, "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": thinking}, **more,
    }  # fmt: skip
    headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + server.key} if server.key else {})}
    request = urllib.request.Request(server.a["url"] + "/v1/chat/completions", json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    began, first, text, last = time.monotonic(), None, "", dict[str, Any]()
    try:
        with opener.open(request, timeout=server.a["request_timeout_s"]) as stream:
            for line in stream:
                event = line.decode("utf-8", "replace").strip()
                if not event.startswith("data: ") or event == "data: [DONE]":
                    continue
                last = json.loads(event[len("data: ") :])
                for choice in last.get("choices", ()):
                    delta = choice.get("delta", {})
                    said = delta.get("content") or ""
                    if first is None and (said or delta.get("reasoning_content")):
                        first = time.monotonic() - began
                    text += said
    except OSError as e:
        said = e.read().decode("utf-8", "replace")[:300] if hasattr(e, "read") else str(e)
        raise NotAccepted(f"a request of the benchmark failed: {said}") from None
    if "timings" not in last or first is None:
        raise NotAccepted(f"a reply of the benchmark broke off: the last that came is {json.dumps(last)[:300]}")
    return {"text": text, "first_token_s": round(first, 4), "timings": last["timings"]}


def measured(server: Server, messages: Sequence[dict[str, str]], scenario: scenarios.Scenario, cache: bool) -> dict[str, Any]:
    """One reply of exactly the scenario's length. cache: whether the server may use what it remembers of the prompt."""
    got = reply(server, messages, scenario.thinking, max_tokens=scenario.cap, ignore_eos=True, temperature=0, cache_prompt=cache)
    t = got["timings"]
    if t["predicted_n"] != scenario.cap:
        raise NotAccepted(
            f"scenario {scenario.name}: a reply has {t['predicted_n']} tokens, not {scenario.cap}: its context is too small"
        )
    if not cache and t["cache_n"]:
        raise NotAccepted(f"scenario {scenario.name}: the server took {t['cache_n']} tokens of the prompt from its cache")
    return {
        "text": got["text"],
        "prompt_tokens": t["prompt_n"],
        "cached_tokens": t["cache_n"],
        "generated_tokens": t["predicted_n"],
        "prompt_s": round(t["prompt_ms"] / 1000, 6),
        "generation_s": round(t["predicted_ms"] / 1000, 6),
        "first_token_s": got["first_token_s"],
    }


def described(scenario: scenarios.Scenario, runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "prompt": list(scenario.turns),
        "prompt_sha256": scenario.sha256,
        "thinking": scenario.thinking,
        "output_cap": scenario.cap,
        "runs": [{key: value for key, value in run.items() if key != "text"} for run in runs],
        **record.figures(runs),
    }


def one_turn(server: Server, scenario: scenarios.Scenario, runs: int, sampler: Sampler) -> dict[str, Any]:
    """The same question, several times, each computed from nothing."""
    done = []
    for number in range(1, runs + 1):
        done.append(measured(server, [{"role": "user", "content": scenario.turns[0]}], scenario, cache=False))
        sampler.take()
        say(f"==> {scenario.name}, run {number} of {runs}: {speeds(done[-1])}")
    return described(scenario, done)


def conversation(server: Server, scenario: scenarios.Scenario, sampler: Sampler) -> dict[str, Any]:
    """Turn after turn, with the server's cache as a client has it; memory after each."""
    said: list[dict[str, str]] = []
    turns, samples = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, question in enumerate(scenario.turns, 1):
        said.append({"role": "user", "content": question})
        turns.append(measured(server, said, scenario, cache=True))
        said.append({"role": "assistant", "content": turns[-1]["text"]})
        samples.append(sampler.take())
        say(f"==> {scenario.name}, turn {number} of {len(scenario.turns)}: {speeds(turns[-1])}")
    first, last = turns[0], turns[-1]
    vram = [sample["vram_bytes"] for sample in samples]
    return {
        **described(scenario, turns),
        "growth": {
            "server_bytes": samples[-1]["server_bytes"] - samples[0]["server_bytes"],
            "vram_bytes": NR if NR in vram else vram[-1] - vram[0],
        },
        "last_to_first": {
            "generation_per_s": round(first["generation_s"] / last["generation_s"], 4),  # of the same number of tokens
            "first_token_s": round(last["first_token_s"] / first["first_token_s"], 4),
        },
    }


def speeds(run: dict[str, Any]) -> str:
    prompt, generation = (run[f"{x}_tokens"] / run[f"{y}_s"] for x, y in (("prompt", "prompt"), ("generated", "generation")))
    return f"prompt {prompt:.1f} tokens/s, generation {generation:.1f} tokens/s, first token after {run['first_token_s']:.2f} s"


def answered(server: Server, budget: int) -> dict[str, Any]:
    """Questions with one right answer, and at most so many tokens of thinking: how many got an answer, and the right one."""
    found = {"budget": budget, "answered": 0, "correct": 0, "of": len(scenarios.QUESTIONS)}
    for seed, (question, right) in enumerate(scenarios.QUESTIONS):
        more = {"max_tokens": budget + scenarios.ANSWER_TOKENS, "reasoning_budget_tokens": budget, "seed": seed}
        choice = server.chat(question, chat_template_kwargs={"enable_thinking": budget > 0}, **more)["choices"][0]
        said = choice["message"].get("content") or ""
        found["answered"] += bool(said.strip()) and choice["finish_reason"] == "stop"
        found["correct"] += bool(re.search(rf"(?<![\w.:]){re.escape(right)}(?![\w:])", said, re.I))
    say("==> thinking of {budget} tokens: {answered} of {of} answered, {correct} right".format(**found))
    return found


# Threads, without the service

SWEPT = {
    "-ctk": "cache_type_k", "-ctv": "cache_type_v", "-fa": "flash_attn", "-b": "batch_size", "-ub": "ubatch_size",
    "-ngl": "n_gpu_layers", "-ncmoe": "n_cpu_moe", "-lm": "load_mode",
}  # fmt: skip


def sweep(a: dict[str, Any], release: dict[str, Any]) -> list[dict[str, Any]]:
    """llama-bench of the same build, with the release's placement and caches, for each number of threads."""
    of = release["server"]
    folder = os.path.join(a["root"], "current")
    model = f"{folder}/model/{os.path.basename(release['model']['file'])}"
    words = [f"{folder}/build/bin/llama-bench", "-m", model, "-o", "json", "-t", ",".join(map(str, a["threads"]))]
    words += ["-p", str(a["sweep_tokens"]), "-n", str(a["sweep_tokens"] // 4), "-r", "2"]
    for flag, key in SWEPT.items():
        words += [] if of[key] is None else [flag, str(of[key])]
    say("==> llama-bench with {} threads".format(", ".join(map(str, a["threads"]))))
    if "--tensor-split" in of["extra_args"]:
        words += ["-ts", of["extra_args"][of["extra_args"].index("--tensor-split") + 1].replace(",", "/")]
    unit = ["--unit", SWEEP, "-p", f"EnvironmentFile={folder}/env", "-p", f"User={a['user']}", "-p", f"Group={a['user']}"]
    command = ["systemd-run", "--quiet", "--collect", "--pipe", "--wait", *unit, *words]
    p = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        rows = json.loads(p.stdout)
    except ValueError:
        raise NotAccepted("llama-bench failed: " + (p.stderr.strip().splitlines() or ["no word"])[-1]) from None
    out = []
    for number in a["threads"]:
        mine = [row for row in rows if row["n_threads"] == number]
        speed = {bool(row["n_gen"]): row["avg_ts"] for row in mine}
        out.append({"threads": number, "prompt_per_s": round(speed[False], 3), "generation_per_s": round(speed[True], 3)})
    return out


# The record


def release_of(a: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Number and record of the release that runs."""
    folder = os.path.realpath(os.path.join(a["root"], "current"))
    try:
        return os.path.basename(folder), json.loads(content(os.path.join(folder, "release.json")))
    except (OSError, ValueError):
        raise NotAccepted(f"there is no release in {folder}: run the deploy") from None


def identity(a: dict[str, Any], server: Server) -> dict[str, Any]:
    """What is measured: machine, build, model, and where the log says that everything lies."""
    number, release = release_of(a)
    state, gpus, uname = show(a["unit"]), cards(), os.uname()
    log = server_log.read(of_start(state["InvocationID"]))
    cpu = re.search(r"^model name\s*:\s*(.*)$", content("/proc/cpuinfo"), re.M)
    distro = re.search(r'^PRETTY_NAME="?([^"\n]*)', content("/etc/os-release"), re.M)
    status, props = server.ask("/props")
    n_ctx = props.get("default_generation_settings", {}).get("n_ctx") if status == 200 and isinstance(props, dict) else None
    version = subprocess.run([f"{a['root']}/current/build/bin/llama-server", "--version"], capture_output=True, text=True)
    model, of = release["model"], release["server"]
    files = [os.path.join(a["models"], file) for file in (model["file"], *model.get("others", ()))]
    return {
        "schema": record.SCHEMA,
        "label": a["label"],
        "host": {
            "name": a["name"], "wsl": a["wsl"], "kernel": uname.release, "cores": len(os.sched_getaffinity(0)),
            "distro": distro[1] if distro else "unknown", "cpu": cpu[1] if cpu else uname.machine,
            "ram_bytes": memory()["MemTotal"],
        },
        "gpus": [{"name": g.name, "vram_bytes": g.vram_total_mib * 2**20, "driver": g.driver or NR} for g in gpus],
        "llama_cpp": {
            "commit": release["commit"], "build_id": release["build"],
            "version": (version.stdout + version.stderr).strip(),
        },
        "release": number,
        "model": {"file": os.path.basename(model["file"]), "sha256": model["sha256"], "bytes": sum(map(os.path.getsize, files))},
        "context": n_ctx or log.n_ctx,
        "slots": log.n_slots or of["parallel"],
        "kv_cache": {"k": of["cache_type_k"], "v": of["cache_type_v"]},
        "server": of,
        "offload": {
            "layers": log.layers_offloaded if log.layers_offloaded is not None else NR if log.on_gpu else 0,
            "of": log.layers_total if log.layers_total is not None else NR,
        },
        "buffers": {"model": log.model_mib, "kv": log.kv_mib, "recurrent": log.recurrent_mib, "compute": log.compute_mib},
        "plan": release.get("plan") or {},
    }  # fmt: skip


def kept(sample: dict[str, Any]) -> dict[str, Any]:
    return {key: sample[key] for key in ("vram_bytes", "server_bytes", "used_bytes")}


def idle(a: dict[str, Any], service: Service) -> dict[str, Any]:
    """Memory before the first request: without the server, and after it has loaded, where it may be started again for that."""
    if not a["restart"]:
        sample = Sampler(a["unit"]).take()
        return {
            "without_server": {"vram_bytes": NR, "used_bytes": NR},
            "idle": {"state": "after earlier requests", **kept(sample)},
        }
    say("==> the service is started again, to see its memory before the first request")
    service.stop()
    without = Sampler(a["unit"]).take()
    service.start()
    loaded = Sampler(a["unit"]).take()
    return {
        "without_server": {key: without[key] for key in ("vram_bytes", "used_bytes")},
        "idle": {"state": "after loading", **kept(loaded)},
    }


def run_all(a: dict[str, Any], server: Server, service: Service) -> dict[str, Any]:
    began, taken = time.monotonic(), time.time()
    if counter(server, "requests_processing"):
        raise NotAccepted("the server is answering somebody now, which would be measured too: try again later")
    memory_found = idle(a, service)
    out = {**identity(a, server), "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(taken))}
    invocation, before, ours = show(a["unit"])["InvocationID"], counter(server, "tokens_predicted_total"), 0
    say("==> warm-up")
    ours += reply(server, [{"role": "user", "content": scenarios.WARM_UP}], False, max_tokens=8)["timings"]["predicted_n"]
    sampler = Sampler(a["unit"])
    sampler.start()
    out["scenarios"] = found = {}
    for scenario in (scenarios.SCENARIOS[name] for name in a["scenarios"]):
        several = len(scenario.turns) > 1
        found[scenario.name] = (
            conversation(server, scenario, sampler) if several else one_turn(server, scenario, a["runs"], sampler)
        )
        ours += sum(run["generated_tokens"] for run in found[scenario.name]["runs"])
    sampler.ended.set()
    sampler.join()
    out["disturbed"] = disturbed(a, server, invocation, before, ours)
    peak = {key: sampler.peak(key) for key in ("vram_bytes", "server_bytes", "used_bytes")}
    out["memory"], out["gpu_load"] = {**memory_found, "peak": peak}, sampler.load()
    out["budgets"] = [answered(server, budget) for budget in a["budgets"]]
    on_gpu = any(map(server_log.is_gpu, out["buffers"]["model"]))
    if "conversation" in found and a["restart"] and (a["graphs"] == "always" or (a["graphs"] == "auto" and on_gpu)):
        found["conversation"]["without_graphs"] = without_graphs(server, service)
    out["threads"] = []
    if a["threads"]:
        service.stop()
        out["threads"] = sweep(a, release_of(a)[1])
    service.put_right()
    out["took_s"] = round(time.monotonic() - began, 1)
    return {"record": out, "taken": taken}


def without_graphs(server: Server, service: Service) -> dict[str, Any]:
    """The same conversation with a server that may not use CUDA graphs."""
    say(f"==> the service is started with {NO_GRAPHS}=1")
    pid = service.start(f"{NO_GRAPHS}=1")
    if f"{NO_GRAPHS}=1" not in content(f"/proc/{pid}/environ").split("\0"):
        raise NotAccepted(f"the service did not get {NO_GRAPHS}: something in its unit takes it away")
    reply(server, [{"role": "user", "content": scenarios.WARM_UP}], False, max_tokens=8)
    found = conversation(server, scenarios.CONVERSATION, Sampler(service.a["unit"]))
    return {key: found[key] for key in ("generation_per_s", "first_token_s", "last_to_first", "growth")}


def disturbed(a: dict[str, Any], server: Server, invocation: str, before: float | None, ours: int) -> str:
    """What else the server did meanwhile, in words; empty when it did nothing else, or can't be asked."""
    if show(a["unit"])["InvocationID"] != invocation:
        raise NotAccepted("somebody started the service again meanwhile, so nothing of this counts: run it again")
    after = counter(server, "tokens_predicted_total")
    if before is None or after is None or after - before == ours:
        return ""
    return f"the server generated {after - before - ours:.0f} tokens for others meanwhile"


def main(a: dict[str, Any]) -> None:
    """Measure and keep a record.

    a: what api.Server and accept.wait take, and unit, root, models and records (paths), user (who the service runs as), name
    and label, wsl, scenarios (names), runs (of each, 1 or more), budgets and threads (numbers, may be empty), sweep_tokens,
    restart (the service may be), graphs (auto, always, never).
    """
    os.makedirs(a["records"], exist_ok=True)
    server = service = None
    try:
        with open(os.path.join(a["records"], ".lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.exit("another benchmark runs on this host: wait for its end")
            if show(a["unit"])["ActiveState"] != "active":
                sys.exit(f"{a['unit']} does not run: run the deploy")
            server = Server(a)
            service = Service(a, server)
            try:
                done = run_all(a, server, service)
            except NotAccepted:
                service.put_right()
                raise
            if wrong := record.problems(done["record"]):
                sys.exit("the record is incomplete and was not kept: " + "; ".join(wrong[:5]))
            print(json.dumps({"record": records.keep(a["records"], done["record"], done["taken"])}))
    except (NotAccepted, OSError) as e:
        sys.exit(str(e))
