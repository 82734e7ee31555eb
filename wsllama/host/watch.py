"""Runs on the host as a service: samples the GPU beside the server, warns in the journal, and leaves the newest sample in a file.

    FOLDER/sample.json    the newest sample; `wsllama watch` reads it
    FOLDER/watch.prom     the same for Prometheus' textfile collector
    FOLDER/nvml-tried     there while NVML is tried: a library that crashed once is not called again until the next boot

It changes nothing and asks the server for its counters only.
"""

import importlib.util
import json
import os
import sys
import time
from typing import Any

from wsllama.domain import nvidia_smi, watch
from wsllama.domain.client import base_url
from wsllama.host import smi
from wsllama.host.api import Server

AGAIN_S = 300.0  # after which NVML is tried again
PATIENCE_S = 5.0  # for one answer of the server, which may have a batch to compute first
SELDOM_S = 60.0  # between two calls of nvidia-smi while nothing is computed: each is a process


class NoNvml(Exception):
    """Why NVML tells nothing."""


class Nvml:
    """NVIDIA's library through NVIDIA's own module. Raises NoNvml."""

    def __init__(self, module: str) -> None:
        spec = importlib.util.spec_from_file_location("pynvml", module)
        if spec is None or spec.loader is None or not os.path.exists(module):
            raise NoNvml(f"{module} is not there")
        self.lib: Any = importlib.util.module_from_spec(spec)
        sys.modules["pynvml"] = self.lib  # it looks itself up there
        spec.loader.exec_module(self.lib)
        try:
            self.lib.nvmlInit()
            self.handles = [self.lib.nvmlDeviceGetHandleByIndex(n) for n in range(self.lib.nvmlDeviceGetCount())]
        except self.lib.NVMLError as e:
            raise NoNvml(str(e)) from None

    def told(self, name: str, *words: Any) -> Any:
        """What a function of the library gives; None for what this GPU or driver doesn't report."""
        try:
            return getattr(self.lib, name)(*words)
        except self.lib.NVMLError:
            return None

    def card(self, handle: Any) -> watch.Card:
        memory, rates = self.told("nvmlDeviceGetMemoryInfo", handle), self.told("nvmlDeviceGetUtilizationRates", handle)
        milliwatts = self.told("nvmlDeviceGetPowerUsage", handle)
        return watch.Card(
            self.told("nvmlDeviceGetName", handle) or "GPU",
            memory and memory.total,
            memory and memory.used,
            rates and rates.gpu,
            None if milliwatts is None else milliwatts / 1000,
            self.told("nvmlDeviceGetTemperature", handle, self.lib.NVML_TEMPERATURE_GPU),
        )

    def cards(self) -> list[watch.Card]:
        found = [self.card(handle) for handle in self.handles]
        if all(card[1:] == (None,) * 5 for card in found):  # also after the driver was replaced under it
            raise NoNvml("it reports nothing of any GPU")
        return found


class Gpus:
    """NVML, nvidia-smi where that fails, or nothing. source: "nvml", "nvidia-smi" or "none"; why: what is missing."""

    def __init__(self, module: str, tried: str) -> None:
        self.module, self.tried = module, tried
        self.nvml: Nvml | None = None
        self.next_try, self.next_ask = 0.0, 0.0
        self.source, self.why, self.reason = "none", "", ""
        self.last: list[watch.Card] = []

    def cards(self, at: float, working: bool) -> list[watch.Card]:
        try:
            found = self.by_nvml(at)
            self.source, self.why = "nvml", ""
        except NoNvml as e:
            self.nvml = None
            if at < self.next_ask and not working and self.source != "nvml":
                return self.last
            self.next_ask = at + SELDOM_S
            reading = smi.ask()
            found = [_card(gpu) for gpu in reading.gpus]
            self.source = "nvidia-smi" if found else "none"
            self.why = f"NVML: {e}" if found else f"NVML: {e}; nvidia-smi: {reading.status.replace('_', ' ')}"
        self.last = found
        return found

    def by_nvml(self, at: float) -> list[watch.Card]:
        if self.nvml:
            return self.nvml.cards()
        if at < self.next_try:
            raise NoNvml(self.reason)
        self.next_try = at + AGAIN_S
        try:
            if os.path.exists(self.tried):
                raise NoNvml("it crashed since the last boot, and is left alone")
            with open(self.tried, "w"):
                pass
            try:
                self.nvml = Nvml(self.module)
                return self.nvml.cards()
            finally:
                os.unlink(self.tried)
        except NoNvml as e:
            self.reason = str(e)
            raise


def _card(gpu: nvidia_smi.Gpu) -> watch.Card:
    used = None if gpu.vram_used_mib is None else gpu.vram_used_mib << 20
    return watch.Card(gpu.name, gpu.vram_total_mib << 20, used, gpu.utilization_pct, gpu.power_w, gpu.temperature_c)


class Watcher:
    """argument: root, key_file, folder, nvml (path of NVIDIA's module), interval_s, limits (of watch.Limits)."""

    def __init__(self, argument: dict[str, Any]) -> None:
        self.a = argument
        self.watch = watch.Watch(watch.Limits(**argument["limits"]))
        self.gpus = Gpus(argument["nvml"], os.path.join(argument["folder"], "nvml-tried"))
        self.said = ""
        self.began: dict[str, int] = {}

    def server(self) -> "tuple[watch.Counters | None, dict[str, Any]]":
        """The server's counters, and what is told of it: its state, and counts of its slots where it serves those."""
        try:
            with open(os.path.join(self.a["root"], "current", "release.json"), encoding="utf-8") as f:
                of = json.load(f)["server"]
        except (OSError, ValueError, KeyError):
            return None, {"state": "no release"}
        server = Server({"url": base_url(of["host"], of["port"]), "key_file": self.a["key_file"] if of["api_key"] else None})
        got = server.fetch("/metrics", timeout=PATIENCE_S)
        counted = watch.counters(got.body.decode("utf-8", "replace")) if got.status == 200 else None
        told: dict[str, Any] = {"state": "ok" if counted else f"/metrics: {got.status or got.why}"}
        if of.get("slots"):
            status, slots = server.ask("/slots", timeout=PATIENCE_S)
            if status == 200 and isinstance(slots, list):  # it has prompts, too: only counts are taken
                told["slots"] = len(slots)
                told["slots_processing"] = sum(1 for slot in slots if slot.get("is_processing"))
        return counted, told

    def round(self) -> None:
        counted, told = self.server()
        cards = self.gpus.cards(time.monotonic(), bool(counted and counted.busy))
        at, now = time.monotonic(), int(time.time())
        for event in self.watch.look(at, cards, counted):
            print(f"<{4 if event.warning else 6}>{event.sentence}", flush=True)
            self.began.pop(event.kind, None)
            if event.warning:
                self.began[event.kind] = now
        self.tell_source()
        sample = self.sample(now, counted, told)
        put(os.path.join(self.a["folder"], "sample.json"), json.dumps(sample))
        put(os.path.join(self.a["folder"], "watch.prom"), watch.prometheus(sample))

    def tell_source(self) -> None:
        """Where the figures come from, when that changes: without them nothing is warned of."""
        by = {"nvml": "NVML", "nvidia-smi": "nvidia-smi", "none": "nothing, so the GPU is not reported"}[self.gpus.source]
        said = f"the GPU is told of by {by}{f' ({self.gpus.why})' if self.gpus.why else ''}"
        if said != self.said:
            print(f"<6>{said}", flush=True)
        self.said = said

    def sample(self, now: int, counted: "watch.Counters | None", told: dict[str, Any]) -> dict[str, Any]:
        w = self.watch
        return {
            "at": now,
            "interval_s": self.a["interval_s"],
            "source": self.gpus.source,
            "why": self.gpus.why,
            "gpus": [card._asdict() for card in w.cards],
            "server": {**told, **(counted._asdict() if counted else {})},
            "working": w.working,
            "tokens_per_second": w.speed,
            "best_tokens_per_second": w.best.get(w.at_a_time),
            "states": w.states(),
            "warnings": [{"kind": k, "since": self.began.get(k), "sentence": e.sentence} for k, e in w.episodes.items()],
        }


def put(path: str, text: str) -> None:
    """Replace a file as a whole: who reads it gets one sample or the one before."""
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".tmp", path)


def main(argument: dict[str, Any]) -> None:
    """Until another program stands in its own file: systemd then starts that."""
    try:
        own, watcher = os.stat(sys.argv[0]), Watcher(argument)
        while os.path.samestat(os.stat(sys.argv[0]), own):
            watcher.round()
            time.sleep(argument["interval_s"])
    except (OSError, ValueError, KeyError) as e:
        raise SystemExit(f"the GPU watch ends, systemd starts it again: {type(e).__name__} {e}") from None
