"""The plan inside a deploy: what is asked for it, when it holds, what is refused before the first change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from tests.operations.fake_hosts import Converge, settings
from tests.operations.test_op_release import BUILDS, BUILT, MACHINE, MODELS, ORIGINAL, ROOT, STAMP, UNIT, build_id, host
from tests.operations.test_op_windows import CONFIG
from tests.operations.test_op_windows import seen as windows_seen
from wsllama.domain import drift, models
from wsllama.operations import plan, preflight, release, server, windows
from wsllama.operations.base import resource

GIB, MIB = 1 << 30, 1 << 20
SIZE = 22_134_528_992  # of UD-Q4_K_M
REAL = {**STAMP, "size": SIZE, "summary": asdict(models.estimate(SIZE))}
CARD = "NVIDIA GeForce RTX 4070, 12282 MiB, 900 MiB, [N/A], 8.9, 581.42"
HEAD = "name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], compute_cap, driver_version\n"
SMI = "/usr/lib/wsl/lib/nvidia-smi"
MACHINE_ASKED = "python3 -I -S - # windows"
GPU: dict[str, Any] = {"platform": "wsl", "llama_cpp": {"backend": "cuda"}, "plan": {"decides": True}}
Q8 = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
CPU: dict[str, Any] = {"plan": {"decides": True}}


def on_gpu(*rows: str, ram: float = 24, **more: Any) -> dict[str, Any]:
    """A WSL machine with the real model installed and these GPUs."""
    said = {"command": f"{SMI} --format=csv", "returncode": 0, "text": HEAD + "\n".join(rows or [CARD]) + "\n"}
    now = host(models={MODELS: {"ab/a.gguf": REAL}}, gpu={SMI: said}, **windows_seen())
    now["system"] = {**MACHINE, "cores": 16, "memory_total": int(ram * GIB)}
    now.update(more)
    return now


class Planner:
    """Plans on a canned host, and keeps what came of it."""

    def __init__(self, converge: Converge) -> None:
        self.converge = converge
        self.found: list[tuple[Any, Any]] = []
        self.times = 1

        @resource(plan.looks)
        def planned(now: Any, settings: Any) -> Iterator[Any]:
            """Nothing is changed."""
            for _ in range(self.times):
                self.found.append(plan.planned(now, settings))
            yield from ()

        self.operation = planned

    def __call__(self, now: dict[str, Any], windows_ram: float = 32, answers: Any = None, **given: Any) -> Any:
        self.found.clear()
        told = {MACHINE_ASKED: json.dumps({"memory": int(windows_ram * GIB)}), **(answers or {})}
        self.outcome = self.converge(self.operation, settings(**given), seen=now, answers=told)
        return self.found[0] if self.found else None

    def refused(self, now: dict[str, Any], **given: Any) -> str:
        assert self(now, **given) is None
        assert self.outcome.failed
        return str(self.outcome.log)


@pytest.fixture
def planner(converge: Converge) -> Planner:
    return Planner(converge)


def kept(now: dict[str, Any], made: dict[str, Any], accepted: bool = True, current: str = "1") -> dict[str, Any]:
    """The host with a release that records this plan."""
    entry = {"digest": "d", "accepted": accepted, "model": {}, "server": {}, "build": "b", "plan": made}
    return {**now, "releases": {ROOT: {"numbers": {"1": entry}, "highest": 1, "current": current, "last-good": "1"}}}


# What is planned


def test_what_the_settings_leave_open_is_planned(planner: Planner) -> None:
    topic, made = planner(on_gpu(), **GPU)
    assert 0 < topic.n_cpu_moe < 40
    assert (topic.n_gpu_layers, topic.threads, topic.ctx_size, topic.flash_attn) == (41, 8, 16384, "on")
    assert made["memory"]["gpus"][0]["held_now"] == 900 * MIB
    ram = made["memory"]["ram"]
    assert made["ram"] == ram["total"] - ram["free"]
    assert planner.outcome.commands == [MACHINE_ASKED]
    assert "a context of 16384 for one request" in planner.outcome.log


def test_what_the_operator_fixes_stays(planner: Planner) -> None:
    given = {"ctx_size": 65536, "parallel": 2, "n_cpu_moe": 38, "threads": 3, "load_mode": "dio", "ubatch_size": 256}
    topic, _ = planner(on_gpu(), **GPU, server=given)
    assert {name: getattr(topic, name) for name in given} == given


def test_a_context_that_is_set_goes_down_only_where_the_settings_allow_it(planner: Planner) -> None:
    row, server = "RTX 3050, 4096 MiB, 300 MiB, [N/A], 8.6, 581.42", {"ctx_size": 262_144, "n_gpu_layers": 41}
    assert "with all experts in RAM and a context of 262144" in planner.refused(on_gpu(row), **GPU, server=server)
    topic, made = planner(on_gpu(row), **{**GPU, "plan": {"decides": True, "least_ctx_size": 16384}}, server=server)
    assert 16384 <= topic.ctx_size < 262_144
    assert any(said.startswith("context: ") for said in made["given_up"])


def test_a_small_model_on_the_processor(planner: Planner) -> None:
    topic, made = planner(host(), **CPU, server={"n_cpu_moe": 2})
    assert (topic.n_gpu_layers, topic.n_cpu_moe, topic.load_mode, topic.batch_size) == (None, 2, "none", 2048)
    assert made["memory"]["gpus"] == []
    assert made["wsl"] is None
    assert planner.outcome.commands == []


def test_nothing_is_planned_where_it_is_not_wanted(planner: Planner) -> None:
    topic, made = planner(host(), plan={"decides": False})
    assert (topic, made) == (settings().server, None)


def test_a_stamp_without_a_summary_has_the_file_looked_at(planner: Planner) -> None:
    answer = {"problems": [], "summary": asdict(models.estimate(SIZE)), "bytes": SIZE, "mmproj": None}
    for bad in ({}, {"summary": None}, {"summary": {"architecture": "x", "keys": {}, "tensors": {"dense": 1}}}):
        stamp = {**{key: value for key, value in STAMP.items() if key != "summary"}, **bad}
        _, made = planner(host(models={MODELS: {"ab/a.gguf": stamp}}), answers={"# model look": json.dumps(answer)}, **CPU)
        assert planner.outcome.sent == [{"look": [f"{MODELS}/ab/a.gguf"], "mmproj": None, "allow_unofficial": False}]
        assert made["memory"]["ram"]["weights"] > 20 * GIB


def test_a_release_on_the_way_records_its_own_figures(planner: Planner, converge: Converge) -> None:
    topic, made = planner(on_gpu(), **GPU)
    less = topic.model_copy(update={"ctx_size": 8192})
    of_stage = plan.of_stage(on_gpu(), settings(**GPU), made, less, pictures=False)
    assert of_stage["memory"]["vram"]["kv"] == 160 * MIB
    assert made["memory"]["vram"]["kv"] == 320 * MIB
    assert {**of_stage, "memory": 0} == {**made, "memory": 0}


def test_a_host_is_asked_once_a_run(planner: Planner) -> None:
    """Preflight, Windows' settings and the release all plan."""
    answer = {"problems": [], "summary": asdict(models.estimate(SIZE)), "bytes": SIZE, "mmproj": None}
    without = {key: value for key, value in REAL.items() if key != "summary"}
    for there in ({}, {"ab/a.gguf": without}):
        planner.times = 3
        planner(on_gpu(models={MODELS: there}), answers={"# model look": json.dumps(answer)}, **GPU)
        assert sorted(planner.outcome.commands) == ["python3 -I -S - # model look", MACHINE_ASKED]
        assert planner.outcome.log.count("a context of 16384 for one request") == 1


# When it holds


def test_a_recorded_plan_holds_whatever_vram_is_free(planner: Planner) -> None:
    first, made = planner(on_gpu(), **GPU)
    full = "NVIDIA GeForce RTX 4070, 12282 MiB, 12000 MiB, [N/A], 8.9, 581.42"
    for now in (kept(on_gpu(full), made), kept(on_gpu(ram=23.9), made), kept(on_gpu(), made, accepted=False)):
        assert planner(now, **GPU) == (first, made)
        assert planner.outcome.commands == []


def test_a_plan_that_was_edited_on_the_host_is_made_anew(planner: Planner) -> None:
    first, made = planner(on_gpu(), **GPU)
    recorded = drift.sealed(made)
    assert planner(kept(on_gpu(), recorded), **GPU) == (first, recorded)
    edited = {**recorded, "server": {**recorded["server"], "n_cpu_moe": 0}}
    assert planner(kept(on_gpu(), edited), **GPU) == (first, made)


@pytest.mark.parametrize(
    ("now", "more"),
    [
        (on_gpu(), {"server": {"parallel": 2}}),
        (on_gpu(), {"server": {"ctx_size": 16384}}),  # the default, but it was open
        (on_gpu(), {"plan": {"decides": True, "anew": 1}}),
        (on_gpu(), {"plan": {"decides": True, "least_ctx_size": 4096}}),
        (on_gpu("NVIDIA GeForce RTX 4080, 16376 MiB, 900 MiB, [N/A], 8.9, 581.42"), {}),
        (on_gpu(models={MODELS: {"ab/a.gguf": {**REAL, "sha256": "cd" * 32}}}), {}),
    ],
)
def test_another_input_is_another_plan(planner: Planner, now: dict[str, Any], more: dict[str, Any]) -> None:
    _, made = planner(on_gpu(), **GPU)
    _, other = planner(kept(now, made), **{**GPU, **more})
    assert other["key"] != made["key"]


def test_a_guest_that_got_more_or_less_ram_keeps_a_plan_that_would_be_the_same(planner: Planner) -> None:
    first, made = planner(on_gpu(ram=24), **GPU)
    assert made["given_up"][0].startswith("experts to RAM")
    assert planner(kept(on_gpu(ram=30), made), **GPU) == (first, made)
    assert planner.outcome.commands == []
    limited = {**made, "given_up": ["host caches: 512 MiB of prompts and 8 checkpoints a slot"]}
    planner(kept(on_gpu(ram=30), limited), **GPU)
    assert planner.outcome.commands == [MACHINE_ASKED]
    topic, _ = planner(kept(on_gpu(ram=made["ram"] / GIB + 1), made), **GPU)
    assert (first.load_mode, topic.load_mode) == ("none", "mmap")
    assert planner(kept(on_gpu(ram=made["ram"] / GIB - 5), made), windows_ram=12, **GPU) != (first, made)


def test_a_plan_for_another_ram_is_another_release(planner: Planner) -> None:
    _, made = planner(on_gpu(ram=24), **GPU)
    _, other = planner(on_gpu(ram=30), **GPU)
    assert (made["key"], made["apart"]) == (other["key"], other["apart"])
    assert made["made"] != other["made"]


def test_settings_that_no_plan_follows_from_leave_it(planner: Planner) -> None:
    _, made = planner(on_gpu(), **GPU)
    given = {**GPU, "plan": {"decides": True, "drift": "fail", "margin_percent": 9}}
    topic, same = planner(kept(on_gpu(), made), **given, server={"port": 8081, "metrics": False})
    assert same == made
    assert (topic.port, topic.metrics, topic.n_cpu_moe) == (8081, False, made["server"]["n_cpu_moe"])


def test_a_plan_that_was_not_accepted_and_gave_way_is_made_again(planner: Planner) -> None:
    _, made = planner(on_gpu(), **GPU)
    planner(kept(on_gpu(), made, accepted=False, current="7"), **GPU)
    assert planner.outcome.commands == [MACHINE_ASKED]


def test_what_others_hold_makes_it_smaller_and_is_recorded(planner: Planner) -> None:
    alone, made = planner(on_gpu(), **GPU)
    assert made["held"] is None
    beside, made = planner(on_gpu("NVIDIA GeForce RTX 4070, 12282 MiB, 6000 MiB, [N/A], 8.9, 581.42"), **GPU)
    assert beside.n_cpu_moe > alone.n_cpu_moe
    assert made["held"].startswith("others hold 5.9 GiB of VRAM: without them it would be n_cpu_moe ")
    assert made["held"] in planner.outcome.log


def test_our_own_server_is_not_held_against_another_plan(planner: Planner) -> None:
    log = "load_tensors:        CUDA0 model buffer size =  8000.00 MiB\n"
    busy = on_gpu("NVIDIA GeForce RTX 4070, 12282 MiB, 9460 MiB, [N/A], 8.9, 581.42")
    running = {"units": {UNIT: {"ActiveState": "active"}}, "buffers": {UNIT: log}}
    idle, _ = planner(on_gpu(), **GPU)
    assert planner({**busy, **running}, **GPU)[0] == idle
    assert planner(busy, **GPU)[0].n_cpu_moe > idle.n_cpu_moe


# What is refused before anything changes


def refused_early(converge: Converge, seen: dict[str, Any], said: str, **given: Any) -> None:
    got = converge(preflight.ready, settings(**{**CPU, **given}), seen=seen)
    assert got.failed
    assert got.commands == []
    assert said in got.log


def test_what_cannot_be_served_is_refused_before_anything_changes(converge: Converge) -> None:
    real = host(models={MODELS: {"ab/a.gguf": REAL}})
    refused_early(converge, real, "300000 is above the model's: nearest that works: 262144", server={"ctx_size": 300_000})
    small = {**real, "system": {**MACHINE, "memory_total": 8 * GIB}}
    refused_early(converge, small, "but the guest has 8.0 GiB")
    refused_early(converge, small, "nearest that works: ")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("NVIDIA GeForce RTX 4070, 0 MiB, 0 MiB, [N/A], 8.9, 581.42", "reports 0 MiB"),
        ("NVIDIA GeForce RTX 4070, 12282 MiB, 24000 MiB, [N/A], 8.9, 581.42", "more memory in use than it has"),
        ("NVIDIA GeForce RTX 4070, [N/A], [N/A], [N/A], 8.9, 581.42", "reports no GPU with its memory ([N/A])"),
    ],
)
def test_a_gpu_that_reports_nonsense(planner: Planner, row: str, said: str) -> None:
    assert said in planner.refused(on_gpu(row), **GPU)


def nvidia_smi(text: str, returncode: int) -> dict[str, Any]:
    return {"gpu": {SMI: {"command": f"{SMI} --format=csv", "returncode": returncode, "text": text}}}


def test_an_nvidia_smi_that_crashes_leaves_it_to_the_server_and_drops_no_plan(planner: Planner) -> None:
    crashed = nvidia_smi("", -11)
    topic, made = planner(on_gpu(**crashed), **GPU)
    assert (topic.n_gpu_layers, made) == (None, None)
    assert "nvidia-smi crashes, so nothing is planned" in planner.outcome.log
    first, made = planner(on_gpu(), **GPU)
    assert planner(kept(on_gpu(**crashed), made), **GPU) == (first, made)
    assert planner(kept(on_gpu(**crashed), made), **GPU, server={"parallel": 2})[1] is None


def test_what_hides_the_gpu_is_left_to_the_guards_that_explain_it(planner: Planner) -> None:
    blocked = nvidia_smi("Failed to initialize NVML: GPU access blocked by the operating system", 17)
    for hidden in (blocked, {"gpu": {SMI: None}}):
        assert planner(on_gpu(**hidden), **GPU)[1] is None
        assert not planner.outcome.failed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"server": {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}}, "no flash attention for K q8_0 with V q4_0"),
        ({"server": Q8, "cuda": {"flash_attention": False}}, "a V cache of q8_0 needs flash attention, which is off"),
        ({"server": {"extra_args": ["--spec-type", "draft-mtp"]}}, "has no layer for multi-token prediction"),
    ],
)
def test_what_the_build_or_the_model_lacks(planner: Planner, given: dict[str, Any], said: str) -> None:
    assert said in planner.refused(on_gpu(), **{**GPU, **given})


def test_a_quantised_v_cache_without_flash_attention_is_no_setting() -> None:
    with pytest.raises(AssertionError, match="needs flash attention"):
        settings(server={"cache_type_v": "q8_0", "flash_attn": "off"})


def test_what_is_to_be_minded_is_said(planner: Planner) -> None:
    predicting = {**REAL, "summary": asdict(models.estimate(SIZE, mtp=True))}
    planner(on_gpu(models={MODELS: {"ab/a.gguf": predicting}}), **GPU)
    assert "has a layer for multi-token prediction, which stays unused" in planner.outcome.log
    both = [CARD, "NVIDIA GeForce RTX 3090, 24576 MiB, 900 MiB, [N/A], 8.6, 581.42"]
    topic, made = planner(on_gpu(*both), **GPU)
    assert "the GPUs are of different size" in planner.outcome.log
    assert topic.extra_args[0] == "--tensor-split"
    assert len(made["memory"]["gpus"]) == 2
    planner(on_gpu("NVIDIA GeForce RTX 4070, 12282 MiB, [N/A], [N/A], 8.9, 581.42"), **GPU)
    assert "what Windows and others hold now is not reported" in planner.outcome.log


def looked(problems: list[str], **more: Any) -> dict[str, str]:
    found = {"problems": problems, "summary": asdict(models.estimate(SIZE)), "bytes": SIZE, "mmproj": None, **more}
    return {"# model look": json.dumps(found)}


def test_a_file_on_the_host_is_looked_at_before_anything_changes(converge: Converge) -> None:
    seen = host(models={MODELS: {}})
    got = converge(preflight.ready, settings(**CPU), seen=seen, answers=looked(["a.gguf: it is cut off"]))
    assert got.failed
    assert got.commands == ["python3 -I -S - # model look"]
    assert got.sent == [{"look": ["/srv/a.gguf"], "mmproj": None, "allow_unofficial": False}]
    assert "model.path: a.gguf: it is cut off" in got.log
    tight = {**seen, "system": {**MACHINE, "memory_total": 8 * GIB}}
    got = converge(preflight.ready, settings(**CPU), seen=tight, answers=looked([]))
    assert "but the guest has 8.0 GiB" in got.log


def test_a_projector_of_another_model_is_refused_before_anything_changes(converge: Converge) -> None:
    beside = {"path": "/srv/a.gguf", "on": "host", "mmproj": "/srv/mmproj.gguf"}
    second = {**ORIGINAL, "path": "/srv/mmproj.gguf"}
    seen = host(models={MODELS: {}}, originals={"/srv/a.gguf": ORIGINAL, "/srv/mmproj.gguf": second})
    seen["system"] = {**MACHINE, "memory_total": 32 * GIB}
    for width, fails in ((1024, True), (2048, False)):
        answers = looked([], mmproj={"bytes": 900 * MIB, "width": width})
        got = converge(preflight.ready, settings(**CPU, model=beside), seen=seen, answers=answers)
        assert got.failed is fails, got.log
        assert ("vectors of 1024 values where a.gguf takes 2048" in got.log) is fails


def test_a_model_of_the_lock_is_planned_before_it_is_downloaded(converge: Converge) -> None:
    named = {"path": None, "on": "controller", "name": "Qwen3.6-35B-A3B-UD-Q4_K_M"}
    seen = host(models={MODELS: {}}, system={**MACHINE, "memory_total": 16 * GIB})
    got = converge(preflight.ready, settings(**CPU, model=named), seen=seen, answers={"# reach": '{"blocked": []}'})
    assert got.failed
    assert "the host part of UD-Q4_K_M is" in got.log
    assert "nearest that works: UD-" in got.log


# What a release is made of


def test_a_release_records_its_plan_and_is_started_with_it(converge: Converge) -> None:
    given = settings(**CPU)
    got = converge(server.release, release.looks(given), lambda now: release.wanted(now, given), seen=host())
    make = got.sent[0]
    record, words = make["record"], make["words"]
    assert record["plan"]["memory"]["ram"]["weights"] > 0
    assert record["server"]["load_mode"] == "none"
    assert words[words.index("--load-mode") + 1] == "none"
    assert words[words.index("--batch-size") + 1] == "2048"


def test_figures_of_the_moment_make_no_other_release() -> None:
    made = server.Release({}, {}, {"plan": {"made": "k", "held": None}}, [])
    assert made.digest == server.Release({}, {}, {"plan": {"made": "k", "held": "5 GiB"}}, []).digest
    assert made.digest != server.Release({}, {}, {"plan": {"made": "l", "held": None}}, []).digest


def test_several_gpus_are_counted_as_nvidia_smi_does() -> None:
    topic = settings(platform="wsl", llama_cpp={"backend": "cpu"}).server
    for cards, there in ((1, False), (2, True)):
        made = {"key": "k", "server": {"extra_args": []}, "memory": {"gpus": [{}] * cards, "ram": {}}, "ram": 0}
        now = kept(host(builds={BUILDS: {build_id(host()): BUILT}}), made)
        of = replace_planned(topic, made, now)
        assert ("CUDA_DEVICE_ORDER" in of.files["env"]) is there


def replace_planned(topic: Any, made: dict[str, Any], now: dict[str, Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "planned", lambda now, settings: (topic, made))
        return release.wanted(now, settings(platform="wsl", llama_cpp={"backend": "cpu"}))


def test_a_guest_that_gets_its_memory_with_the_next_start_of_wsl_is_not_filled_before(converge: Converge) -> None:
    given = settings(platform="wsl", llama_cpp={"backend": "cpu"}, plan={"decides": True})
    now = host(models={MODELS: {"ab/a.gguf": REAL}}, **windows_seen())
    now["system"] = {**MACHINE, "memory_total": 15 * GIB}
    got = converge(
        server.release,
        release.looks(given),
        lambda now: release.wanted(now, given),
        seen=now,
        answers={MACHINE_ASKED: json.dumps({"memory": 64 * GIB})},
    )
    assert got.failed
    assert "the server is not started: its plan takes" in got.log
    assert "the guest has 15.0 GiB until WSL is started again: run `wsl --shutdown`" in got.log


# .wslconfig


def config(converge: Converge, now: dict[str, Any], **given: Any) -> Any:
    wanted = settings(platform="wsl", llama_cpp={"backend": "cpu"}, plan={"decides": True}, **given)
    answers = {MACHINE_ASKED: json.dumps({"memory": 64 * GIB})}
    return converge(
        windows.config,
        wanted,
        plan.looks(wanted),
        lambda now: plan.guest_memory(now, wanted),
        seen=now,
        answers=answers,
    )


def of_guest(ram: float, text: bytes | None = None, **side: Any) -> dict[str, Any]:
    now = host(models={MODELS: {"ab/a.gguf": REAL}}, **windows_seen((text or b"") + CONFIG, **side))
    now["system"] = {**MACHINE, "memory_total": int(ram * GIB)}
    return now


def changes(got: Any) -> dict[str, Any]:
    (argument,) = [sent for sent in got.sent if "files" in sent]
    return {name: value for name, value in argument["files"][0]["entry"]["changes"].items() if name.startswith("wsl2.")}


def test_a_windows_with_less_than_its_guest_gives_nothing(planner: Planner) -> None:
    _, made = planner(on_gpu(ram=40), **GPU)
    assert made["memory"]["ram"]["possible"] == 40 * GIB
    assert planner(on_gpu(ram=30), **GPU)[1]["memory"]["ram"]["possible"] == 30 * GIB
    assert planner(on_gpu(ram=20), **GPU)[1]["memory"]["ram"]["possible"] == 24 * GIB


def test_a_windows_that_does_not_answer_gives_the_guest_nothing(planner: Planner) -> None:
    assert "but the guest has 8.0 GiB" in planner.refused(on_gpu(ram=8), answers={MACHINE_ASKED: ""}, **GPU)


def test_the_guest_gets_what_the_plan_takes(converge: Converge) -> None:
    got = config(converge, of_guest(15))
    found = changes(got)
    assert (
        found["wsl2.memory"] == "30GB"
    )  # 20.6 GiB of weights, 2 of the system, 2 of caches and buffers; two compilers of 2.5 GB
    assert found["wsl2.swap"] == "8GB"
    assert "wsl2.memory, wsl2.swap" in got.log


@pytest.mark.parametrize(
    ("ram", "text"),
    [(31, None), (26, None), (15, b"[wsl2]\nmemory=30GB\n"), (15, b"[wsl2]\nmemory=26GB\nswap=0\n")],
)
def test_nothing_is_written_where_what_is_there_suffices(converge: Converge, ram: float, text: bytes | None) -> None:
    got = config(converge, of_guest(ram, text))
    assert not got.failed
    assert not [sent for sent in got.sent if "files" in sent]


def test_too_little_in_the_file_is_raised_and_its_swap_stays(converge: Converge) -> None:
    found = changes(config(converge, of_guest(8, b"[wsl2]\nmemory=8GB\nswap=3GB\n")))
    assert "wsl2.swap" not in found
    assert found["wsl2.memory"] == "30GB"


def test_what_the_settings_say_is_neither_raised_nor_forgotten(converge: Converge) -> None:
    got = config(converge, of_guest(15), wsl={"wsl2": {"memory": "16GB"}})
    assert got.failed
    assert "but the guest has 16.0 GiB" in got.log
    found = changes(config(converge, of_guest(15), wsl={"wsl2": {"memory": "40GB"}}))
    assert found["wsl2.memory"] == "40GB"


def test_memory_of_a_plan_is_waited_for_as_long_as_it_stands_there() -> None:
    given = settings(platform="wsl", llama_cpp={"backend": "cpu"})
    journal = {"/w/.wslconfig": {"changes": {"wsl2.memory": "33GB", "wsl2.processors": 3}}}
    side = windows_seen(b"[wsl2]\nmemory=33GB\n", journal=journal)["windows"]["side"]
    assert windows.in_file(side, given)["wsl2.memory"] == "33GB"
    side = windows_seen(b"[wsl2]\nmemory=12GB\n", journal=journal)["windows"]["side"]
    assert "wsl2.memory" not in windows.in_file(side, given)


def test_a_guest_is_big_enough_as_the_kernel_counts_it() -> None:
    for total, fits in ((19.2, True), (18.9, False)):
        assert plan.fits_now({"system": {"memory_total": int(total * GIB)}}, {"ram": 20 * GIB}) is fits
