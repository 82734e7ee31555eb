"""Field cases, section G, as far as they show while a server loads and answers. The rows: tests/data/field_cases.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_accept import LOADING, Host, host, reply
from tests.unit.test_build_program import FILES
from tests.unit.test_build_program import Host as BuildHost
from wsllama.domain import ladder, server_log
from wsllama.domain.examine import unit
from wsllama.domain.examine.host import Seen, judge
from wsllama.domain.findings import CATALOGUE, examine
from wsllama.domain.nvidia_smi import Gpu, Reading

__all__ = ["host"]  # a fixture

LOADED = (
    "ggml_cuda_init: found 1 CUDA devices:\n  Device 0: NVIDIA GeForce RTX 4080, VMM: yes, VRAM: 16376 MiB\n"
    "load_tensors:        CUDA0 model buffer size = 12800.00 MiB\nllama_kv_cache:      CUDA0 KV buffer size =   640.00 MiB\n"
    "main: model loaded\n"
)


def test_76_a_model_that_is_mapped_over_9p_is_found_in_the_unit() -> None:
    text = "[Service]\nUser=a\nExecStart=/opt/llama-server -m /mnt/c/models/a.gguf --port 1 --load-mode mmap\n"
    assert "model_on_drvfs" in unit.findings(text)
    assert "Copy the model into the distro's file system" in CATALOGUE["unit", "model_on_drvfs"].fix


def test_85_a_projector_is_wrong_when_the_server_says_so_and_not_by_a_rule_of_ours() -> None:
    """A healthy one whose dimension looks odd because of deepstack, and the server's own verdict."""
    deepstack = "clip_model_loader: has vision encoder\nload_hparams: n_embd 8192, projection_dim 2048, deepstack 3\n"
    assert server_log.read(deepstack + LOADED).verdict == "ok"
    said = "mtmd_init_from_file: error: mismatch between text model (n_embd = 2048) and mmproj (n_embd = 8192)\n"
    assert server_log.read(deepstack + said).verdict == "mmproj"


def test_86_an_older_source_is_refused_before_it_is_compiled(tmp_path: Path) -> None:
    small = BuildHost(tmp_path)
    said = small.refuse(source=small.tar({**FILES, "src/llama-arch.cpp": '{ LLM_ARCH_QWEN3MOE, "qwen3moe" },\n'}))
    assert 'does not know Qwen3.6 (src/llama-arch.cpp lacks "qwen35moe")' in said


def test_88_free_memory_is_held_to_what_the_card_has() -> None:
    text = (
        "  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VRAM: 24575 MiB\n"
        "  Device 1: NVIDIA GeForce RTX 3090, compute capability 8.6, VRAM: 24575 MiB\n"
        "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) - 30790 MiB free\n"
        "llama_model_load_from_file_impl: using device CUDA1 (NVIDIA GeForce RTX 3090) - 23300 MiB free\n"
    )
    assert server_log.read(text).free_mib == {"CUDA0": 24575, "CUDA1": 23300}


def test_89_the_ladder_places_layers_itself_where_fitting_failed() -> None:
    first = next(rung for rung in ladder.rungs("vram", {"parallel": 1}) if rung.server)
    assert first.server == {"n_gpu_layers": 99, "n_cpu_moe": 10}


def test_91_an_empty_answer_with_thoughts_is_told_from_an_empty_one(host: Host) -> None:
    host.thinking = reply("", "Let me", finish_reason="length")
    assert "thinking used up all 96 tokens" in host.accept()["error"]
    thought = examine("response", host.thinking[1], max_tokens=3)
    assert (thought["reasoning"], thought["findings"]) == (True, ["only_reasoning_budget"])
    assert examine("response", reply("")[1], max_tokens=3)["findings"] == ["empty_answer"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_92_both_fields_are_read_whatever_the_second_is_called(field: str) -> None:
    def body(content: str) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": content, field: "2 and 2"}
        return json.dumps({"choices": [{"finish_reason": "stop", "message": message}]}).encode()

    assert [examine("response", body(content))["answer"] for content in ("", "4")] == [None, "4"]
    assert examine("response", body(""))["reasoning"] is True


def test_94_loading_for_long_is_waited_for(host: Host) -> None:
    host.health = [LOADING] * 8 + [(200, b'{"status":"ok"}')]
    assert host.accept(whole=False)["ok"] is True
    for body in ('{"status":"loading"}', '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'):
        assert examine("response", body.encode(), http_status=503)["findings"] == ["loading"]


def test_95_a_card_that_is_almost_full_is_named_with_who_fills_it() -> None:
    full = Seen(journal=LOADED, smi=Reading("ok", (Gpu("RTX 4080", 16376, 15900),)))
    (found,) = judge(full)
    assert found.finding.id == "vram_taken_by_others"
    assert found.detail == "RTX 4080: others hold about 2460 MiB of 16376, 476 MiB are free"


def test_97_full_and_slow_is_memory_that_windows_moved() -> None:
    entry = CATALOGUE["use", "vram_taken_by_others"]
    assert "moves memory of the server to RAM" in entry.cause
    assert "1 to 1.5 GiB free" in entry.fix
    busy = Seen(journal=LOADED, smi=Reading("ok", (Gpu("RTX 4080", 16376, 14000, 100),)))
    assert judge(busy) == []  # busy with 2 GiB free is just busy
    shared = Seen(journal=LOADED, smi=Reading("ok", (Gpu("RTX 4090", 24564, 15500, 100),)))
    assert judge(shared) == []  # others hold 2 GiB, and there is room for both


def test_98_pinned_memory_that_is_refused_is_not_fatal() -> None:
    warned = "ggml_cuda_host_malloc: failed to allocate 1024.00 MiB of pinned memory: out of memory\n"
    assert server_log.read(warned + LOADED).verdict == "ok"
    assert server_log.read(LOADED + warned).verdict == "ok"


def test_100_the_oom_killer_s_work_is_reported() -> None:
    journal = (
        "Nov 12 07:41:03 box llama-server[7]: main: loading model\n"
        "Nov 12 07:41:42 box systemd[1]: llama-server.service: Failed with result 'oom-kill'.\n"
    )
    (found,) = judge(Seen(journal=journal))
    assert (found.finding.id, found.detail) == ("oom_host", "llama-server.service: Failed with result 'oom-kill'.")
    assert ladder.short_of("oom_host") == "ram"
