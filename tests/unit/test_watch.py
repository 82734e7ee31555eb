"""The GPU watch: what samples mean. Then its program, with a real libnvidia-ml.so.1 that a test builds, and scripts beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import nvml
from wsllama import program
from wsllama.domain.watch import KINDS, NOT_REPORTED, Card, Counters, Limits, Watch, counters, prometheus
from wsllama.operations.watch import nvml as module

METRICS = Path(__file__).parents[1] / "data/metrics/after-one-reply.txt"
LIMITS = Limits(low_utilization_percent=10, low_utilization_s=30, vram_full_percent=95, collapse_percent=40, temperature_c=87)
GIB = 1 << 30
CARD = Card("NVIDIA GeForce RTX 4070", 12 * GIB, 6 * GIB, 90, 120.0, 60)
IDLE = Counters(0, 100, 50, 80, 4.0)


class Server:
    """Counters of a server that does what a test says, as llama-server counts."""

    def __init__(self) -> None:
        self.now = IDLE

    def generates(self, tokens: int, busy: int = 1) -> Counters:
        self.now = self.now._replace(busy=busy, decodes=self.now.decodes + tokens)
        return self.now

    def reads(self, prompt: int = 20) -> Counters:
        self.now = self.now._replace(busy=1, decodes=self.now.decodes + 1, prompt=self.now.prompt + prompt)
        return self.now

    def ends(self, tokens: int, seconds: float) -> Counters:
        now = self.now
        self.now = now._replace(busy=0, predicted=now.predicted + tokens, predicted_s=now.predicted_s + seconds)
        return self.now


def looks(watch: Watch, *each: tuple[Card, Counters | None], seconds: float = 10.0) -> list[str]:
    """Kinds of events, a minus before what ended, of looks that are so far apart."""
    out = []
    for card, now in each:
        out += [f"{'' if e.warning else '-'}{e.kind}" for e in watch.look(watch.at + seconds, [card], now)]
    return out


def generating(watch: Watch, card: Card, count: int, server: Server | None = None, tokens: int = 300) -> list[str]:
    server = server or Server()
    if watch.counted is None:
        looks(watch, (CARD, server.now))
    server.reads()
    return looks(watch, *((card, server.generates(tokens)) for _ in range(count)))


@pytest.mark.parametrize(("percent", "told"), [(0, ["utilisation"]), (9, ["utilisation"]), (10, []), (90, []), (None, [])])
def test_a_gpu_that_rests_while_replies_are_made_is_told_once(percent: int | None, told: list[str]) -> None:
    watch = Watch(LIMITS)
    card = CARD._replace(utilization_percent=percent)
    server = Server()
    assert generating(watch, card, 3, server) == []  # the work before its first look isn't known
    assert generating(watch, card, 50, server) == told
    state = {None: NOT_REPORTED, 0: "low", 9: "low"}.get(percent, "ok")
    assert watch.states() == {"utilisation": state, "spill": "ok", "temperature": "ok"}


def test_the_sentence_says_what_how_long_and_what_to_do() -> None:
    watch, server = Watch(LIMITS), Server()
    said = [
        e.sentence
        for n in (0, 0, 3, 1, 2, 0)
        for e in watch.look(watch.at + 10, [CARD._replace(utilization_percent=n)], server.generates(9))
    ]
    assert said == [
        "the GPU was used 3% at most during 30 s of work: the server computes on the processor, or waits for something else: run"
        " `wsllama doctor`"
    ]


def test_a_gpu_that_rests_while_nothing_is_to_do_is_no_fault() -> None:
    assert looks(Watch(LIMITS), *[(CARD._replace(utilization_percent=0), IDLE)] * 99) == []
    assert looks(Watch(LIMITS), *[(CARD._replace(utilization_percent=0), None)] * 99) == []
    assert generating(Watch(LIMITS._replace(low_utilization_percent=0)), CARD._replace(utilization_percent=0), 99) == []
    waits = IDLE._replace(busy=1)  # a request that hangs is the watchdog's affair
    assert looks(Watch(LIMITS), *[(CARD._replace(utilization_percent=0), waits)] * 99) == []


def test_work_is_summed_over_pauses_and_they_end_no_episode() -> None:
    watch, server, low = Watch(LIMITS), Server(), CARD._replace(utilization_percent=2)
    for _ in range(2):
        assert generating(watch, low, 2, server) == []
        assert looks(watch, (low, server.ends(600, 20))) == []
    assert generating(watch, low, 3, server) == ["utilisation"]
    assert looks(watch, (low, server.ends(600, 20)), (CARD, server.now)) == [], "another program's work"
    assert generating(watch, low, 9, server) == []
    assert generating(watch, CARD, 2, server) == ["-utilisation"]
    assert generating(watch, low, 9, server) == ["utilisation"]


def test_one_of_several_gpus_that_works_is_enough() -> None:
    watch, server = Watch(LIMITS), Server()
    for _ in range(9):
        assert watch.look(watch.at + 10, [CARD._replace(utilization_percent=0), CARD], server.generates(9)) == []


FULL = CARD._replace(used=12 * GIB - 100)


@pytest.mark.parametrize(
    ("card", "tokens", "told"),
    [
        (FULL, 119, ["spill"]),
        (FULL, 120, []),
        (CARD, 30, []),
        (FULL._replace(used=None), 30, []),
        (FULL._replace(total=None), 30, []),
    ],
)
def test_a_full_vram_and_a_collapsed_speed_are_a_spill(card: Card, tokens: int, told: list[str]) -> None:
    watch, server = Watch(LIMITS), Server()
    assert generating(watch, FULL, 5, server) == []  # 30 tokens a second
    assert watch.best == {1: 30.0}
    assert generating(watch, card, 6, server, tokens) == told


def test_a_spill_is_told_once_and_is_over_with_the_speed_or_the_memory() -> None:
    watch, server = Watch(LIMITS), Server()
    generating(watch, FULL, 5, server)
    assert generating(watch, FULL, 20, server, 30) == ["spill"]
    assert watch.episodes["spill"].sentence == (
        "NVIDIA GeForce RTX 4070: its memory is full (12287 of 12288 MiB), and a reply has 3.0 tokens a second where it had 30.0:"
        " it spills to RAM: close what else uses the GPU, or lower server.ctx_size, or raise server.n_cpu_moe"
    )
    assert generating(watch, FULL, 5, server, 150) == [], "half of the speed is not yet well"
    assert generating(watch, FULL, 5, server, 200) == ["-spill"]
    assert generating(watch, FULL, 5, server, 30) == ["spill"]
    assert generating(watch, CARD, 2, server, 30) == ["-spill"]


def test_speeds_of_replies_that_ended_count_too_and_short_ones_do_not() -> None:
    watch, server = Watch(LIMITS), Server()
    for _ in range(4):
        looks(watch, (FULL, server.generates(100)), (FULL, server.ends(100, 2)))
    assert watch.best == {1: 50.0}
    for _ in range(4):
        looks(watch, (FULL, server.generates(15)), (FULL, server.ends(15, 15)))
    assert "spill" not in watch.episodes
    told = [looks(watch, (FULL, server.generates(16)), (FULL, server.ends(16, 16))) for _ in range(3)]
    assert told == [[], [], ["spill"]]


def test_a_long_prompt_is_no_collapse() -> None:
    watch, server = Watch(LIMITS), Server()
    generating(watch, FULL, 5, server)
    looks(watch, (FULL, server.ends(1500, 50)))
    assert looks(watch, *((FULL, server.generates(3)) for _ in range(30))) == [], "a batch of 2048 tokens takes seconds"


def test_the_best_speed_is_that_of_one_run_of_the_server_and_of_so_many_requests() -> None:
    watch, server = Watch(LIMITS), Server()
    generating(watch, FULL, 5, server)
    server.now = Counters(0, 0, 0, 0, 0.0)
    assert looks(watch, (FULL, None), (FULL, server.now)) == []
    assert watch.best == {}
    assert generating(watch, FULL, 9, server, 30) == []
    server.now = server.now._replace(busy=4)
    two = [(FULL, server.now._replace(decodes=server.now.decodes + 9 * n)) for n in range(1, 9)]
    assert looks(watch, *two) == []


def test_speeds_with_one_request_and_with_two_are_not_mixed() -> None:
    watch, server = Watch(LIMITS), Server()
    generating(watch, FULL, 5, server)
    for _ in range(5):
        looks(watch, (FULL, server.generates(30, busy=2)))
    told = [looks(watch, (FULL, server.generates(30))) for _ in range(4)]
    assert told == [[], [], [], ["spill"]], "the first has both, then three speeds in a row are needed"


def test_heat_has_a_margin_before_it_is_over() -> None:
    watch = Watch(LIMITS)
    at = [86, 87, 95, 86, 83, 82, 86, 87]
    told = [looks(watch, (CARD._replace(temperature_c=heat), None)) for heat in at]
    assert told == [[], ["temperature"], [], [], [], ["-temperature"], [], ["temperature"]]
    assert looks(watch, (CARD._replace(temperature_c=None), None)) == []
    assert watch.states()["temperature"] == NOT_REPORTED


def test_without_any_card_nothing_is_reported() -> None:
    watch = Watch(LIMITS)
    assert watch.look(1, [], IDLE) == []
    assert set(watch.states().values()) == {NOT_REPORTED}


maybe = st.none() | st.integers(0, 100)
cards = st.builds(
    Card, st.just("a"), st.none() | st.integers(0, 1 << 40), st.none() | st.integers(0, 1 << 40), maybe, st.none(), maybe
)
counted = st.none() | st.builds(
    Counters, st.integers(0, 4), st.integers(0, 999), st.integers(0, 99), st.integers(0, 99), st.floats(0, 1e6), st.integers(0, 2)
)
anything = st.lists(st.tuples(st.floats(0, 600), st.lists(cards, max_size=3), counted), max_size=40)


@given(anything)
def test_of_each_kind_warnings_and_ends_take_turns(each: list[tuple[float, list[Card], Counters | None]]) -> None:
    watch, open_now = Watch(LIMITS), set[str]()
    for seconds, found, now in each:
        events = watch.look(watch.at + seconds, found, now)
        open_now &= set(watch.episodes) | {e.kind for e in events}  # another run of the server forgets without a word
        for event in events:
            assert event.warning == (event.kind not in open_now)
            (open_now.add if event.warning else open_now.discard)(event.kind)
            assert event.sentence.isprintable()
        assert open_now == set(watch.episodes)
        assert set(watch.states()) == set(KINDS)
        assert len(watch.best) <= 5  # one for each number of requests: memory is bounded


def test_counters_of_a_real_server() -> None:
    assert counters(METRICS.read_text()) == Counters(0, 2, 1, 2, 0.003366, 0)
    assert counters("<html>") is None


def test_the_text_for_prometheus_has_what_is_reported_and_quotes_names() -> None:
    card = Card('a "quoted" \\ name', 1000, 900, None, 35.2, 44)
    sample = {
        "at": 1790000000, "gpus": [card._asdict()], "server": {"state": "ok", "busy": 1}, "tokens_per_second": 12.5,
        "states": {"utilisation": NOT_REPORTED, "spill": "spills", "temperature": "ok"},
    }  # fmt: skip
    text = prometheus(sample)
    where = '{gpu="0",name="a \\"quoted\\" \\\\ name"}'
    assert f"wsllama_gpu_memory_used_bytes{where} 900\n" in text
    assert f"wsllama_gpu_power_watts{where} 35.2\n" in text
    assert "utilization_percent" not in text
    assert 'wsllama_gpu_reported{kind="utilisation"} 0\n' in text
    assert 'wsllama_gpu_warning{kind="spill"} 1\n' in text
    assert "# TYPE wsllama_server_tokens_per_second gauge\nwsllama_server_tokens_per_second 12.5\n" in text
    line = re.compile(r'# TYPE \w+ gauge|\w+(\{(\w+="([^"\\]|\\.)*",?)+\})? [-+.\de]+')
    assert [one for one in text.splitlines() if not line.fullmatch(one)] == []


class Host:
    """A host's files and a server that answers what a test puts down; the program runs with the real module and library."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.metrics, self.asked = METRICS.read_text(), list[tuple[str, str | None]]()
        (folder / "current").mkdir()
        self.record(api_key=True, slots=False, port=port)
        (folder / "key").write_text("secret\n")
        (folder / "run").mkdir()
        (folder / "pynvml.py").write_text(module())
        self.decodes = 2

    def record(self, **server: Any) -> None:
        path = self.folder / "current/release.json"
        known = json.loads(path.read_text())["server"] if path.exists() else {"host": "127.0.0.1"}
        path.write_text(json.dumps({"server": {**known, **server}}))

    @property
    def argument(self) -> dict[str, Any]:
        limits = LIMITS._replace(low_utilization_s=1)._asdict()
        paths = {"root": str(self.folder), "key_file": str(self.folder / "key"), "folder": str(self.folder / "run")}
        return {**paths, "nvml": str(self.folder / "pynvml.py"), "interval_s": 0.05, "limits": limits}

    @property
    def sample(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run/sample.json").read_text())
        return found

    def generate(self) -> None:
        """One request more is worked on, and each look finds more steps."""
        self.metrics = METRICS.read_text().replace("requests_processing 0", "requests_processing 1")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append((self.path, self.headers["Authorization"]))
            made.decodes += 1
            slots = '[{"id": 0, "is_processing": true, "prompt": "hidden"}, {"id": 1, "is_processing": false}]'
            text = slots if self.path == "/slots" else made.metrics.replace("n_decode_total 2", f"n_decode_total {made.decodes}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = Host(tmp_path, server.server_address[1])
    yield made
    server.shutdown()
    server.server_close()


def watched(host: Host, until: Callable[[], Any], library: Path | None = None, smi: str | None = None) -> str:
    """What the program says until something is so; the bound is far beyond what it takes."""
    path = host.folder / "watch.py"
    text = program.call("watch", host.argument)
    tool = host.folder / "nvidia-smi"
    if smi is not None:
        tool.write_text(f"#!/bin/sh\n{smi}\n")
        tool.chmod(0o755)
    text = re.sub(r"/usr/lib/wsl/lib/nvidia-smi|/usr/bin/nvidia-smi", str(tool), text)
    path.write_text(text)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library or host.folder)}
    with subprocess.Popen(
        [sys.executable, "-I", "-S", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as p:
        deadline = time.monotonic() + 600
        try:
            while not until():
                assert p.poll() is None, p.stderr and p.stderr.read()
                assert time.monotonic() < deadline, "it did not come"
                time.sleep(0.02)
        finally:
            aside = host.folder / "new"
            aside.write_text("")
            aside.replace(path)  # as a deploy does; it ends by itself
            out, err = p.communicate(timeout=900)
    assert (p.returncode, err) == (0, "")
    return out


def sampled(host: Host) -> Callable[[], bool]:
    return lambda: (host.folder / "run/watch.prom").exists()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.build(tmp_path_factory.mktemp("nvml"))


def put(library: Path, **values: Any) -> None:
    nvml.say(library, **values)


def test_nvml_is_asked_and_what_it_does_not_support_is_not_reported(host: Host, library: Path) -> None:
    put(
        library,
        name="NVIDIA GeForce RTX 4070 Laptop GPU",
        total=8188 << 20,
        used=610 << 20,
        utilization=None,
        power=None,
        temperature=48,
    )
    out = watched(host, lambda: sampled(host)() and len(host.asked) > 3, library)
    assert out == "<6>the GPU is told of by NVML\n", "once, not with each look"
    assert host.sample["gpus"] == [
        {
            "name": "NVIDIA GeForce RTX 4070 Laptop GPU", "total": 8188 << 20, "used": 610 << 20, "utilization_percent": None,
            "power_w": None, "temperature_c": 48,
        }
    ]  # fmt: skip
    assert host.sample["states"] == {"utilisation": NOT_REPORTED, "spill": "ok", "temperature": "ok"}
    assert set(host.asked) == {("/metrics", "Bearer secret")}
    assert host.sample["server"] == {"state": "ok", **Counters(0, host.sample["server"]["decodes"], 1, 2, 0.003366)._asdict()}


def test_a_warning_is_one_line_of_the_journal_with_its_level(host: Host, library: Path) -> None:
    put(library, name="a", total=8188 << 20, used=610 << 20, utilization=0, power=15000, temperature=48)
    host.generate()
    out = watched(host, lambda: sampled(host)() and host.sample["warnings"], library)
    (line,) = re.findall(r"^<4>.*", out, re.M)
    assert re.match(r"<4>the GPU was used 0% at most during \d+ s of work: ", line)
    assert host.sample["warnings"][0]["sentence"] == line.removeprefix("<4>")
    assert 'wsllama_gpu_warning{kind="utilisation"} 1\n' in (host.folder / "run/watch.prom").read_text()


SAID = "echo 'NVIDIA GeForce MX450, 2048 MiB, 11 MiB, [Not Supported], [N/A], 41, 512.78'"


def test_nvidia_smi_is_asked_where_nvml_fails(host: Host) -> None:
    out = watched(host, sampled(host), smi=SAID)
    assert out == "<6>the GPU is told of by nvidia-smi (NVML: NVML Shared Library Not Found)\n"
    assert host.sample["gpus"] == [Card("NVIDIA GeForce MX450", 2048 << 20, 11 << 20, None, None, 41)._asdict()]


@pytest.mark.parametrize(
    ("smi", "why"),
    [
        (None, "no driver"),
        ("kill -SEGV $$", "crashed"),
        ("echo 'Failed to initialize NVML: GPU access blocked by the operating system'; exit 17", "blocked"),
    ],
)
def test_without_both_nothing_is_reported_and_the_server_is_still_watched(host: Host, smi: str | None, why: str) -> None:
    host.record(slots=True)
    out = watched(host, sampled(host), smi=smi)
    reason = f"NVML: NVML Shared Library Not Found; nvidia-smi: {why}"
    assert out == f"<6>the GPU is told of by nothing, so the GPU is not reported ({reason})\n"
    assert (host.sample["gpus"], host.sample["source"], set(host.sample["states"].values())) == ([], "none", {NOT_REPORTED})
    assert (host.sample["server"]["slots"], host.sample["server"]["slots_processing"]) == (2, 1)
    assert "hidden" not in (host.folder / "run/sample.json").read_text()


def test_a_library_that_crashed_is_left_alone(host: Host, library: Path) -> None:
    put(library, crash=True)
    (host.folder / "watch.py").write_text(program.call("watch", host.argument))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    p = subprocess.run([sys.executable, "-I", "-S", host.folder / "watch.py"], capture_output=True, env=environment, timeout=900)
    assert p.returncode == -11
    out = watched(host, sampled(host), library, smi=SAID)
    assert out == "<6>the GPU is told of by nvidia-smi (NVML: it crashed since the last boot, and is left alone)\n"


def test_a_driver_that_is_replaced_under_it_is_asked_for_otherwise(host: Host, library: Path) -> None:
    put(library, name="a", total=8188 << 20, used=610 << 20, utilization=3, power=15000, temperature=48)

    def other() -> bool:
        if not sampled(host)():
            return False
        put(library, name=None, total=None, used=None, utilization=None, power=None, temperature=None)
        return bool(host.sample["source"] == "nvidia-smi")

    out = watched(host, other, library, smi=SAID)
    assert out.splitlines()[1:] == ["<6>the GPU is told of by nvidia-smi (NVML: it reports nothing of any GPU)"]


def test_what_it_can_not_do_is_one_sentence(host: Host) -> None:
    (host.folder / "run").rmdir()
    (host.folder / "watch.py").write_text(program.call("watch", host.argument))
    p = subprocess.run([sys.executable, "-I", "-S", host.folder / "watch.py"], capture_output=True, text=True, timeout=900)
    assert p.returncode == 1
    assert re.fullmatch(r"the GPU watch ends, systemd starts it again: FileNotFoundError .*\n", p.stderr)
