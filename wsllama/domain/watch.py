"""What the GPU of a server does: samples in, warnings out, one for each episode. Pure; wsllama/host/watch.py looks and tells.

In WSL NVML leaves out what it can't know ([N/A], NVML_ERROR_NOT_SUPPORTED), utilisation most of all (microsoft/WSL#7162). So None
is a value of its own here, "not reported": it is neither 0 nor right, and nothing is concluded from it.
llama-server adds a reply's tokens and seconds when the reply ends, and a prompt's when the prompt is read; its own averages are
reset at each look (server-common.h:507, server-context.cpp:4047,4110 at the pin). So speeds are taken from its counters.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Kind = Literal["utilisation", "spill", "temperature"]
KINDS: tuple[Kind, ...] = ("utilisation", "spill", "temperature")
NOT_REPORTED = "not reported"
STEADY = 3  # looks in a row that a speed has to last, to be taken for one
LEAST_TOKENS = 16  # of a reply, for a speed: what comes before and after is no small part of shorter ones
COOLER_C = 5  # how far below its limit a GPU has cooled down
RECOVERED_PERCENT = 20  # of the best speed, above the limit of a collapse
FREED_PERCENT = 3  # of VRAM, below the limit of what counts as full


class Card(NamedTuple):
    """One GPU at one look; memory in bytes. None: not reported."""

    name: str
    total: int | None = None
    used: int | None = None
    utilization_percent: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None

    @property
    def full_percent(self) -> float | None:
        """How much of its memory is taken, by whatever."""
        return None if self.used is None or not self.total else 100 * self.used / self.total


class Counters(NamedTuple):
    """What /metrics counts since the server's start. busy: requests that are worked on; drafts: of speculative decoding."""

    busy: int
    decodes: int
    prompt: int
    predicted: int
    predicted_s: float
    drafts: int = 0


class Limits(NamedTuple):
    """As the settings' topic `watch` has them."""

    low_utilization_percent: int
    low_utilization_s: int
    vram_full_percent: int
    collapse_percent: int
    temperature_c: int


class Event(NamedTuple):
    """A warning, or its end."""

    kind: Kind
    warning: bool
    sentence: str


class Episode(NamedTuple):
    """since: seconds of the clock of the looks."""

    since: float
    sentence: str


def counters(text: str) -> Counters | None:
    """Of the text of /metrics; None when it isn't llama-server's."""
    found = {name: float(value) for name, value in re.findall(r"^llamacpp:(\w+) ([\d.e+]+)$", text, re.M)}
    names = ("requests_processing", "n_decode_total", "prompt_tokens_total", "tokens_predicted_total")
    if not set(names) <= set(found):
        return None
    busy, decodes, prompt, predicted = (int(found[name]) for name in names)
    seconds, drafts = found.get("tokens_predicted_seconds_total", 0.0), int(found.get("spec_decode_num_drafts_total", 0))
    return Counters(busy, decodes, prompt, predicted, seconds, drafts)


@dataclass
class Watch:
    """What is remembered between looks: a fixed amount, however long it runs.

    episodes: those that go on; working: whether something was computed up to the last look; speed: tokens a second of one
    reply, where it could be told; best: the highest that lasted in this run of the server, by requests at a time
    """

    limits: Limits
    episodes: dict[Kind, Episode] = field(default_factory=dict)
    working: bool = False
    speed: float | None = None
    best: dict[int, float] = field(default_factory=dict)
    at: float = 0.0
    counted: Counters | None = None
    cards: tuple[Card, ...] = ()
    low_s: float = 0.0
    highest: int = 0
    replying: bool = False
    speeds: deque[float] = field(default_factory=lambda: deque(maxlen=STEADY))
    at_a_time: int = 1

    def look(self, at: float, cards: Sequence[Card], now: Counters | None) -> list[Event]:
        """Take one look in, and say what begins or ends with it.

        at: seconds of a clock that never jumps; cards: none where nothing tells of a GPU; now: None while the server is silent.
        """
        self.cards, before, seconds, worked = tuple(cards), self.counted, at - self.at, self.working
        if now and before and (now.decodes < before.decodes or now.predicted < before.predicted):
            self._another_run()
            before = None
        self.working = bool(now and before and now.busy and now.decodes > before.decodes)
        self.speed = self._speed(before, now, seconds) if now and before and seconds > 0 else None
        self.at, self.counted = at, now or self.counted
        return [*self._utilisation(seconds if worked and self.working else 0.0), *self._spill(), *self._temperature()]

    def states(self) -> dict[str, str]:
        """Of each kind: "ok", what is wrong, or that nothing tells."""
        wrong = {"utilisation": "low", "spill": "spills", "temperature": "hot"}
        told = {
            "utilisation": any(c.utilization_percent is not None for c in self.cards),
            "spill": any(c.full_percent is not None for c in self.cards),
            "temperature": any(c.temperature_c is not None for c in self.cards),
        }
        return {kind: NOT_REPORTED if not told[kind] else wrong[kind] if kind in self.episodes else "ok" for kind in KINDS}

    def _another_run(self) -> None:
        """Of the server: its speeds are its own, and what still goes wrong is said again."""
        self.best, self.low_s, self.highest, self.replying = {}, 0.0, 0, False
        self.speeds.clear()
        self.episodes.pop("utilisation", None)
        self.episodes.pop("spill", None)

    def _speed(self, before: Counters, now: Counters, seconds: float) -> float | None:
        """Tokens a second of one reply: of those that ended, else of a time in which each step made one token of each."""
        ended, read = now.predicted - before.predicted, now.prompt != before.prompt
        steps = None
        if (
            self.replying
            and not ended
            and not read
            and now.busy == before.busy
            and not now.drafts
            and now.decodes > before.decodes
        ):
            steps = (now.decodes - before.decodes) / seconds
        # Where a reply ended and a prompt was read, the next one may be a prompt that is still read: nothing tells.
        self.replying = bool(now.busy) and not ended and (read or self.replying)
        taken = now.predicted_s - before.predicted_s
        speed = ended / taken if ended >= LEAST_TOKENS and taken > 0 else steps
        if speed is not None:
            if (at_a_time := max(now.busy, before.busy, 1)) != self.at_a_time:
                self.speeds.clear()
            self.at_a_time = at_a_time
            self.speeds.append(speed)
            if len(self.speeds) == STEADY:
                self.best[at_a_time] = max(self.best.get(at_a_time, 0.0), min(self.speeds))
        return speed

    def _utilisation(self, seconds: float) -> Iterator[Event]:
        """seconds: of work since the last look. Time without work neither counts nor ends an episode."""
        told = [c.utilization_percent for c in self.cards if c.utilization_percent is not None]
        if not self.working or not told:
            return
        if max(told) >= self.limits.low_utilization_percent:
            self.low_s, self.highest = 0.0, 0
            yield from self._over("utilisation", "the GPU works again")
            return
        self.low_s, self.highest = self.low_s + seconds, max(self.highest, *told)
        if self.low_s >= self.limits.low_utilization_s:
            yield from self._begins(
                "utilisation",
                f"the GPU was used {self.highest}% at most during {self.low_s:.0f} s of work: the server computes on the"
                " processor, or waits for something else: run `wsllama doctor`",
            )

    def _spill(self) -> Iterator[Event]:
        """Windows moves what doesn't fit into VRAM to RAM and says nothing; the speed collapses."""
        known = [c for c in self.cards if c.full_percent is not None]
        best = self.best.get(self.at_a_time)
        if not known or self.speed is None or not best:
            return
        fullest = max(known, key=lambda c: c.full_percent or 0.0)
        full, percent = fullest.full_percent or 0.0, 100 * max(self.speeds) / best
        if full >= self.limits.vram_full_percent and len(self.speeds) == STEADY and percent < self.limits.collapse_percent:
            yield from self._begins(
                "spill",
                f"{fullest.name}: its memory is full ({_mib(fullest.used)} of {_mib(fullest.total)} MiB), and a reply has"
                f" {self.speeds[-1]:.1f} tokens a second where it had {best:.1f}: it spills to RAM: close what else uses the GPU,"
                " or lower server.ctx_size, or raise server.n_cpu_moe",
            )
        recovered = percent >= min(100, self.limits.collapse_percent + RECOVERED_PERCENT)
        if recovered or full < self.limits.vram_full_percent - FREED_PERCENT:
            yield from self._over("spill", f"a reply has {self.speeds[-1]:.1f} tokens a second again")

    def _temperature(self) -> Iterator[Event]:
        told = [c for c in self.cards if c.temperature_c is not None]
        if not told:
            return
        hottest = max(told, key=lambda c: c.temperature_c or 0)
        heat, limit = hottest.temperature_c or 0, self.limits.temperature_c
        if heat >= limit:
            yield from self._begins(
                "temperature",
                f"{hottest.name} has {heat} °C, and {limit} are its limit here: it slows down when it gets hotter: let more air"
                " to it, or raise watch.temperature_c",
            )
        elif heat <= limit - COOLER_C:
            yield from self._over("temperature", f"{hottest.name} has {heat} °C again")

    def _begins(self, kind: Kind, sentence: str) -> Iterator[Event]:
        if kind not in self.episodes:
            self.episodes[kind] = Episode(self.at, sentence)
            yield Event(kind, True, sentence)

    def _over(self, kind: Kind, sentence: str) -> Iterator[Event]:
        if episode := self.episodes.pop(kind, None):
            yield Event(kind, False, f"{sentence}, after {self.at - episode.since:.0f} s")


def state_of(found: Mapping[str, Any]) -> str:
    """One word for what wsllama/host/watched.py found: a sample that is too old is none."""
    sample = found["sample"]
    if sample is None:
        return "not watched"
    if found["now"] - sample["at"] > 3 * sample["interval_s"] + 10:
        return "stale"
    if sample["warnings"]:
        return "warns"
    if sample["server"]["state"] != "ok":
        return "no server"
    return "works" if sample["working"] else "idle"


def prometheus(sample: Mapping[str, Any]) -> str:
    """A sample in Prometheus' text format (exposition_formats.md, version 0.0.4). What isn't reported has no value."""
    lines: dict[str, list[str]] = {}

    def put(metric: str, value: Any, **labels: Any) -> None:
        if value is not None:
            inside = ",".join(f'{key}="{_label(str(text))}"' for key, text in labels.items())
            labelled = "{" + inside + "}" if inside else ""
            lines.setdefault(metric, []).append(f"wsllama_{metric}{labelled} {value}")

    for number, gpu in enumerate(sample["gpus"]):
        labels = {"gpu": number, "name": gpu["name"]}
        put("gpu_utilization_percent", gpu["utilization_percent"], **labels)
        put("gpu_memory_used_bytes", gpu["used"], **labels)
        put("gpu_memory_total_bytes", gpu["total"], **labels)
        put("gpu_power_watts", gpu["power_w"], **labels)
        put("gpu_temperature_celsius", gpu["temperature_c"], **labels)
    server = sample["server"]
    put("server_up", int(server["state"] == "ok"))
    put("server_requests_processing", server.get("busy"))
    put("server_tokens_per_second", sample["tokens_per_second"])
    for kind, state in sample["states"].items():
        put("gpu_reported", int(state != NOT_REPORTED), kind=kind)
        put("gpu_warning", int(state not in ("ok", NOT_REPORTED)), kind=kind)
    put("watch_sampled_timestamp_seconds", sample["at"])
    return "".join(f"# TYPE wsllama_{metric} gauge\n" + "".join(f"{line}\n" for line in of) for metric, of in lines.items())


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _mib(size: int | None) -> int:
    return (size or 0) >> 20
