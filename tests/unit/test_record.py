"""Records of benchmarks: what is incomplete is refused, what was kept is never changed, and what got worse is told."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from wsllama import bench
from wsllama.domain import record, scenarios
from wsllama.host import records
from wsllama.remote import RemoteError

DATA = Path(__file__).parents[1] / "data" / "records"
GUIDE = [  # what the guide to local deployment lists, by its own words and where it stands here
    ("GPU: model and memory", "gpus.0.name"),
    ("GPU: model and memory", "gpus.0.vram_bytes"),
    ("driver", "gpus.0.driver"),
    ("backend: llama.cpp commit", "llama_cpp.commit"),
    ("model: whole GGUF file name", "model.file"),
    ("system memory", "host.ram_bytes"),
    ("context", "context"),
    ("KV cache type", "kv_cache.k"),
    ("KV cache type", "kv_cache.v"),
    ("GPU offload by the log", "offload.layers"),
    ("prompt: fixed text", "scenarios.answer.prompt"),
    ("output: fixed limit", "scenarios.answer.output_cap"),
    ("VRAM after loading", "memory.idle.vram_bytes"),
    ("VRAM at peak", "memory.peak.vram_bytes"),
    ("prompt tok/s", "scenarios.answer.prompt_per_s.median"),
    ("generation tok/s", "scenarios.answer.generation_per_s.median"),
]
MORE = ["model.sha256", "llama_cpp.build_id", "memory.idle.server_bytes", "memory.peak.server_bytes", "gpu_load.power_mean_w",
        "scenarios.answer.first_token_s.median", "scenarios.conversation.growth.server_bytes", "plan", "disturbed",
        "scenarios.conversation.last_to_first.generation_per_s", "scenarios.reasoning.runs.0.cached_tokens"]  # fmt: skip


@pytest.fixture
def whole() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "laptop-5.json").read_text())
    return found


def without(of: dict[str, Any], path: str) -> dict[str, Any]:
    out = copy.deepcopy(of)
    *before, last = path.split(".")
    place: Any = out
    for name in before:
        place = place[int(name) if isinstance(place, list) else name]
    del place[last]
    return out


def put(of: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    out = without(of, path)
    place: Any = out
    *before, last = path.split(".")
    for name in before:
        place = place[int(name) if isinstance(place, list) else name]
    place[last] = value
    return out


def test_the_examples_are_whole() -> None:
    assert {p.name: record.problems(json.loads(p.read_text())) for p in DATA.glob("*.json")} == {
        name: [] for name in ("desk-2.json", "laptop-4.json", "laptop-5.json", "server-1.json")
    }


@pytest.mark.parametrize("path", [path for _, path in GUIDE] + MORE)
def test_a_record_without_a_field_is_refused_by_its_name(whole: dict[str, Any], path: str) -> None:
    assert record.problems(without(whole, path)) == [f"{path} is missing"]


@pytest.mark.parametrize("path", ["gpus.0.driver", "memory.peak.vram_bytes", "gpu_load.power_mean_w", "offload.of"])
def test_not_reported_may_stand_where_machines_do_not_tell(whole: dict[str, Any], path: str) -> None:
    assert record.problems(put(whole, path, "not reported")) == []


@pytest.mark.parametrize("path", ["model.sha256", "memory.peak.server_bytes", "scenarios.answer.generation_per_s.median"])
def test_not_reported_may_stand_nowhere_else(whole: dict[str, Any], path: str) -> None:
    assert record.problems(put(whole, path, "not reported")) == [f"{path} is 'not reported', which may not stand there"]


def test_wrong_kinds_are_told(whole: dict[str, Any]) -> None:
    assert record.problems(put(whole, "context", "8192")) == ["context is '8192', not int"]
    assert record.problems(put(whole, "host.cores", True)) == ["host.cores is True, not int"]
    assert record.problems(put(whole, "scenarios", {})) == ["scenarios is empty"]
    assert record.problems(put(whole, "scenarios.answer.runs", [])) == ["scenarios.answer.runs is empty"]
    assert record.problems(put(whole, "schema", 7)) == ["its schema is 7, and this version reads 1: update wsllama"]
    assert record.problems([]) == ["it is no JSON object"]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("scenarios.answer.generation_per_s.median", float("nan"), "is nan, not a number that can be compared"),
        ("scenarios.answer.generation_per_s.median", 0, "is 0, not above 0"),
        ("scenarios.answer.runs.0.generation_s", -1.5, "is -1.5, not above 0"),
        ("gpu_load.power_mean_w", float("inf"), "is inf, not a number that can be compared"),
        ("buffers.model.CUDA0", "much", "is 'much', not int or float"),
        ("plan.memory.ram.kv", None, "is None, not int"),
    ],
)
def test_what_can_not_be_compared_is_refused(whole: dict[str, Any], path: str, value: Any, said: str) -> None:
    """A NaN is worse than nothing: no gate ever finds it worse."""
    assert record.problems(put(whole, path, value)) == [f"{path} {said}"]


def test_a_release_without_a_plan_has_none_to_check(whole: dict[str, Any]) -> None:
    assert record.problems(put(whole, "plan", {})) == []
    assert "plan.memory.gpus is missing" in record.problems(put(whole, "plan", {"memory": {"ram": {}}}))


def test_speeds_are_the_servers_counts_by_its_clock() -> None:
    runs = [
        {"prompt_tokens": 400, "prompt_s": 2.0, "generated_tokens": 100, "generation_s": 4.0, "first_token_s": 2.1},
        {"prompt_tokens": 400, "prompt_s": 1.0, "generated_tokens": 100, "generation_s": 5.0, "first_token_s": 1.1},
        {"prompt_tokens": 400, "prompt_s": 4.0, "generated_tokens": 100, "generation_s": 2.0, "first_token_s": 4.1},
    ]
    assert record.figures(runs) == {
        "prompt_per_s": {"median": 200.0, "min": 100.0, "max": 400.0},
        "generation_per_s": {"median": 25.0, "min": 20.0, "max": 50.0},
        "first_token_s": {"median": 2.1, "min": 1.1, "max": 4.1},
    }


# Kept, and never changed


def test_a_record_is_kept_once_and_named_by_time_and_sum(tmp_path: Path, whole: dict[str, Any]) -> None:
    name = records.keep(str(tmp_path / "records"), whole, 1_796_063_011.9)
    text = (tmp_path / "records" / f"{name}.json").read_text()
    assert name == "20261130T182331Z-" + hashlib.sha256(text.encode()).hexdigest()[:8]
    assert json.loads(text) == whole
    with pytest.raises(FileExistsError):
        records.keep(str(tmp_path / "records"), whole, 1_796_063_011.9)
    assert [p.name for p in (tmp_path / "records").iterdir()] == [f"{name}.json"]


def test_a_record_that_was_changed_is_refused(tmp_path: Path, whole: dict[str, Any]) -> None:
    path = tmp_path / f"{records.keep(str(tmp_path), whole, 0)}.json"
    assert bench.read(path) == {**whole, "id": path.stem}
    path.write_text(path.read_text().replace('"cores": 20', '"cores": 21'))
    with pytest.raises(RemoteError, match=r"record 1970.*was changed after it was taken: its sum is another one"):
        bench.read(path)


def test_an_incomplete_file_is_refused(tmp_path: Path, whole: dict[str, Any]) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(without(whole, "model.sha256")))
    with pytest.raises(RemoteError, match=r"mine.json: record mine is incomplete: model.sha256 is missing$"):
        bench.read(path)
    path.write_text("{")
    with pytest.raises(RemoteError, match="record mine is no JSON"):
        bench.read(path)


def test_which_record_is_meant(tmp_path: Path) -> None:
    for name in ("desk/20260101T000000Z-aaaaaaaa", "desk/20260201T000000Z-bbbbbbbb", "other/20260201T000000Z-cccccccc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.json").write_text("{}")
    assert bench.one("desk", tmp_path).stem == "20260201T000000Z-bbbbbbbb"
    assert bench.one("20260101", tmp_path).stem == "20260101T000000Z-aaaaaaaa"
    with pytest.raises(RemoteError, match="202602: 2 records begin so in"):
        bench.one("202602", tmp_path)
    with pytest.raises(RemoteError, match="nobody: no host and no record is called so in"):
        bench.one("nobody", tmp_path)
    assert len(bench.files([], tmp_path)) == 3
    with pytest.raises(RemoteError, match=r"there is no record in .*/none.json"):
        bench.files([str(tmp_path / "none.json")], tmp_path)


# Comparison


def slower(of: dict[str, Any], factor: float) -> dict[str, Any]:
    """The same record with each generation taking `factor` times as long."""
    out = copy.deepcopy(of)
    for scenario in out["scenarios"].values():
        for run in scenario["runs"]:
            run["generation_s"] *= factor
        scenario.update(record.figures(scenario["runs"]))
    return out


def test_what_got_slower_by_more_than_the_gate_is_told(whole: dict[str, Any]) -> None:
    assert record.regression(whole, slower(whole, 1.25), 5) == [
        "reasoning: generation speed is 20 % worse, 31.8 to 25.44 tokens/s; 5 % is allowed",
        "answer: generation speed is 20 % worse, 31.8 to 25.44 tokens/s; 5 % is allowed",
        "conversation: generation speed is 20 % worse, 31.23 to 24.98 tokens/s; 5 % is allowed",
    ]
    assert record.regression(whole, slower(whole, 1.25), 21) == []
    assert record.regression(whole, slower(whole, 0.5), 0) == []


def test_a_spread_that_was_seen_is_no_regression(whole: dict[str, Any]) -> None:
    whole["scenarios"] = {"answer": whole["scenarios"]["answer"]}
    assert record.regression(whole, slower(whole, 1.02), 1) == []  # its runs were 3 % apart


def test_a_longer_wait_for_the_first_token_is_worse(whole: dict[str, Any]) -> None:
    later = put(whole, "scenarios.answer.first_token_s", {"median": 2.0, "min": 1.9, "max": 2.1})
    assert record.regression(whole, later, 10) == [
        "answer: time to the first token is 119 % worse, 0.9114 to 2 s; 10 % is allowed"
    ]


def test_a_cached_prompt_has_no_speed_to_lose(whole: dict[str, Any]) -> None:
    lame = {"median": 0.1, "min": 0.1, "max": 0.1}
    assert record.regression(whole, put(whole, "scenarios.conversation.prompt_per_s", lame), 10) == []
    assert len(record.regression(whole, put(whole, "scenarios.answer.prompt_per_s", lame), 10)) == 1


def test_what_cannot_be_compared(whole: dict[str, Any]) -> None:
    assert record.incomparable(whole, whole) == []
    other = put(whole, "model.sha256", "0" * 64)
    assert record.incomparable(whole, put(other, "model.file", "b.gguf")) == [
        "they are of different models: Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf and b.gguf"
    ]
    assert record.incomparable(whole, put(whole, "scenarios.answer.prompt_sha256", "x")) == [
        "scenario answer has another prompt, length or thinking in each"
    ]
    assert record.incomparable(whole, put(whole, "disturbed", "it was")) == ["the second was disturbed: it was"]
    only = put(whole, "scenarios", {"short": whole["scenarios"]["answer"]})
    assert record.incomparable(whole, only)[0].startswith("they have no scenario in common: reasoning, answer, conversation and")


def test_the_texts_are_told_apart_and_long_enough() -> None:
    """What is fixed has a sum of its own: a changed word, length or thinking is another measurement."""
    assert list(scenarios.SCENARIOS) == ["reasoning", "answer", "conversation", "short"]
    answer = scenarios.ANSWER
    others = [answer._replace(cap=255), answer._replace(thinking=True), answer._replace(turns=("x",)), scenarios.SHORT]
    assert len({one.sha256 for one in (answer, *others)}) == 5
    assert len(scenarios.CONVERSATION.turns) == 10
    assert int(scenarios.QUESTIONS[0][1]) == 17 * 23
    assert sum(range(1, 61)) == int(scenarios.QUESTIONS[7][1])
