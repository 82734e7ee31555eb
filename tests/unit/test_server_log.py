"""Logs of llama-server in other words than those of tests/data/fixtures: what each start ended with."""

from __future__ import annotations

import json

import pytest

from wsllama.domain import server_log

LOADED = (
    "0.00.010.000 I cmn  common_param: common_params_print_info: build 11240 (e5512fa07) with GNU 13.3.0 for Linux x86_64\n"
    "0.00.020.000 I srv    load_model: loading model '/srv/models/a.gguf'\n"
    "0.00.030.000 I load_tensors: offloaded 41/41 layers to GPU\n"
    "0.00.040.000 I load_tensors:        CUDA0 model buffer size = 20846.75 MiB\n"
    "0.00.050.000 I llama_context: n_ctx                 = 8192\n"
    "0.00.060.000 I llama_kv_cache:      CUDA0 KV buffer size =   160.00 MiB\n"
    "0.00.070.000 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 8192, kv_unified = 'false'\n"
    "0.05.000.000 I srv  llama_server: model loaded\n"
    "0.05.010.000 I srv  llama_server: listening on http://127.0.0.1:8080\n"
)
OOM = (
    "0.00.010.000 I srv    load_model: loading model '/srv/models/a.gguf'\n"
    "0.00.300.000 E ggml_backend_cuda_buffer_type_alloc_buffer: "
    "allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory\n"
    "0.00.310.000 E srv  llama_server: exiting due to model loading error\n"
)
ON_CPU = (
    "srv    load_model: loading model '/m/a.gguf'\nload_tensors:   CPU_Mapped model buffer size = 21120.27 MiB\n"
    "main: model loaded\nmain: server is listening on http://127.0.0.1:8080 - starting the main loop\n"
)


def journal(text: str, pid: int, sender: str = "llama-server") -> str:
    return "".join(f"Nov 12 07:41:03 box1 {sender}[{pid}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        ("ok", LOADED),
        ("ok", ON_CPU),  # a build for the processor alone: nothing was lost
        ("ok", "load_tensors: offloaded 41/41 layers to GPU\nall slots are idle"),
        ("ok", LOADED + "0.09.000.000 I srv  update_slots: all slots are idle\n"),
        ("ok", "W load: failed to mlock 123-byte buffer: Cannot allocate memory\n" + LOADED),
        ("ok", "W load: failed to VirtualLock 12-byte buffer: Cannot allocate memory\n" + LOADED),
        ("ok", LOADED + "llama-server.service: Main process exited, code=exited, status=0/SUCCESS\n"),
        ("unknown", LOADED + "llama-server.service: Main process exited, code=exited, status=1/FAILURE\n"),
        ("ok", "E ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory\n" + LOADED),
        ("ok", "W common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user\n" + LOADED),
        ("ok", LOADED + "srv init: chat template, chat_template: {{ raise_exception('Jinja Exception') }}\n"),
        ("ok", "ggml_vulkan: No devices found.\nggml_cuda_init: found 1 CUDA devices:\nmain: model loaded\n"),
        ("loading", "main: HTTP server is listening, hostname: 127.0.0.1, port: 8080\nmain: loading model\n"),
        ("loading", "systemd[1]: Starting llama-server.service...\n".join(["Nov 1 00:00:00 box ", ""])),
        ("loading", LOADED[: LOADED.index("0.05.000")]),
        ("loading", "main: loading model\nW load: failed to mlock 123-byte buffer: Cannot allocate memory\n"),
        ("loading", "main: loading model\nW load: failed to VirtualLock 12-byte buffer: Cannot allocate memory\n"),
        ("loading", "ggml_cuda_init: failed to initialize CUDA: no driver\n0.1 srv load_model: loading model 'a'\n"),
        ("cpu_fallback", "warning: not compiled with GPU offload support, --gpu-layers option will be ignored\n" + ON_CPU),
        ("cpu_fallback", "ggml_cuda_init: found 1 CUDA devices:\n" + ON_CPU),
        ("cpu_fallback", "load: using device CUDA0 (NVIDIA GeForce RTX 4090) - 23000 MiB free\n" + ON_CPU),
        ("cpu_fallback", ON_CPU.replace("load_tensors: ", "load_tensors: offloaded 0/41 layers to GPU\nload_tensors: ")),
        ("cpu_fallback", "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n"),
        ("oom_vram", OOM),
        ("oom_vram", LOADED + "CUDA error: out of memory\n  current device: 0, in function alloc at ggml-cuda.cu:512\n"),
        ("oom_vram", "ggml_vulkan: Device memory allocation failed.\nvk::Device::allocateMemory: ErrorOutOfDeviceMemory\n"),
        ("oom_vram", OOM.replace("exiting due to model loading", "failed to load multimodal model: ")),
        ("oom_host", "ggml_aligned_malloc: insufficient memory (attempted to allocate 13402.06 MB)\n"),
        ("oom_host", "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 14052352000\n"
                     "llama_init_from_model: failed to allocate buffer for kv cache\n"),
        # abort() comes before the line of the log's own thread: that memory couldn't be had is all that is left (run at the pin)
        ("oom_host", "0.1 I common_params_fit_impl: getting device memory data for initial parameters:\n"
                     "ggml/src/ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed\n"),
        ("oom_host", "error loading model: mmap failed: Cannot allocate memory\n"),
        ("oom_host", "Out of memory: Killed process 1790 (llama-server) total-vm:33010128kB\nKilled\n"),
        ("oom_host", "llama_model_load: error loading model: unable to allocate CUDA_Host buffer\n"),
        ("oom_host", LOADED + "terminate called after throwing an instance of 'std::bad_alloc'\n"),
        ("bad_file", "gguf_init_from_file: failed to open GGUF file '/srv/a.gguf' (No such file or directory)\n"),
        ("bad_file", "error loading model: tensor 'blk.9.x' data is not within the file bounds, model is corrupted\n"),
        ("bad_file", "gguf_init_from_file_impl: invalid magic characters: '<!DO', expected 'GGUF'\n"),
        ("bad_file", "error loading model architecture: unknown model architecture: 'clip'\n"),
        ("bad_file", "error loading model: CLIP cannot be used as main model, use it with --mmproj instead\n"),
        ("bad_arch", "gguf_init_from_file_impl: tensor 'a' has invalid ggml type 39 (NONE)\n"),
        ("bad_arch", "error loading model: done_getting_tensors: wrong number of tensors; expected 733, got 720\n"),
        ("bad_flag", "error: unknown argument: --cuda-graphs\nusage: ./server [options]\n"),
        ("bad_flag", 'error while handling environment variable "LLAMA_ARG_CACHE_TYPE_K": Unsupported cache type: a3b\n'),
        ("bad_flag", "llama_init_from_model: V cache quantization requires flash_attn\n"),
        ("bad_flag", "option 'mmap' not recognized in preset 'x'\n"),
        # as the pin says it, run and read in its source
        ("bad_flag", "E llama_init_from_model: quantized V cache requires flash_attn to be enabled\n"
                     "E srv  llama_server: exiting due to model loading error\n"),
        ("bad_flag", "llama_prepare_model_devices: invalid value for main_gpu: 3 (available devices: 1)\n"),
        ("bad_flag", "llama_kv_cache: model does not support different K (q8_0) and V (f16) cache types\n"),
        ("bad_file", "llama_model_load: error loading model: corrupted model: 733 tensors expected but 731 found\n"),
        ("bad_file", "llama_model_load: error loading model: invalid model: tensor 'blk.3.attn_k.weight' is duplicated\n"),
        ("bad_file", "gguf_init_from_file_impl: encountered bad_alloc error while reading key 7\n"),
        ("bad_file", "common_download: required file is not available in cache (offline mode): a.gguf\n"),
        ("bad_file", "load_all_data: tensor 'output.weight' has invalid data\nfound tensors with invalid data\n"),
        ("oom_vram", "llama_memory_recurrent: failed to allocate buffer for rs cache\n"),
        ("oom_host", "output_reserve: failed to allocate output buffer of size 485.00 MiB\n"),
        ("port", "srv start: couldn’t bind HTTP server socket, hostname: 0.0.0.0, port: 8080\n".replace("’", "'")),
        ("port", "main: model loaded\nbind: Address already in use\n"),
        ("mmproj", "clip_init: failed to load model '/m/mmproj.gguf': load_hparams: unknown projector type: qwen9\n"),
        ("mmproj", "gguf_init_from_file: failed to open GGUF file '/m/v.gguf' (No such file or directory)\n"
                   "srv    load_model: failed to load multimodal model, '/m/v.gguf'\n"),
        ("template", "common_chat_templates_init: failed to parse chat template (defaulting to chatml): a\n" + LOADED),
        ("template", "main: The chat template of this model is not yet supported, falling back to chatml.\n" + LOADED),
        ("template", LOADED + 'W srv got exception: {"error":{"code":500,"message":"null at row 4, column 2"}}\n'),
        ("killed", LOADED + "./run.sh: line 9:  4411 Killed                  llama-server -m a.gguf\n"),
        ("killed", "[1]+  Killed                  ./llama-server -m a.gguf\n"),
        ("killed", "llama-1 exited with code 137\n"),
        ("unknown", LOADED[: LOADED.index("0.05.000")] + "Stopped llama-server.service - llama-server.\n"),
        ("unknown", ""),
        ("unknown", "hello\n"),
        ("unknown", LOADED + "CUDA error: an illegal memory access was encountered\n"),
        ("unknown", "srv load_model: loading model 'a'\nsrv llama_server: exiting due to model loading error\n"),
    ],
)  # fmt: skip
def test_what_a_start_ended_with(verdict: str, text: str) -> None:
    found = server_log.read(text)
    assert found.verdict == verdict, found.line
    assert found.line in text


@pytest.mark.parametrize("pids", [(7, 8), (0, 0)])
def test_of_several_starts_the_last_decides_whatever_the_first_said(pids: tuple[int, int]) -> None:
    """By the process's number in a journal, and by the server's own clock in a file."""
    first, second = (journal(text, pid) if pid else text for text, pid in zip((OOM, LOADED), pids, strict=True))
    found = server_log.read(first + second)
    assert (found.verdict, found.kv_mib, found.layers_offloaded) == ("ok", {"CUDA0": 160.0}, 41)
    found = server_log.read(second + first)
    assert (found.verdict, found.kv_mib, found.layers_offloaded) == ("oom_vram", {}, None)


def test_buffers_of_two_starts_are_not_added() -> None:
    once, twice = server_log.read(LOADED), server_log.read(LOADED + LOADED)
    assert twice.model_mib == once.model_mib == {"CUDA0": 20846.75}


def test_a_start_that_systemd_announced_and_that_said_nothing_yet_is_loading() -> None:
    unit = journal(
        "Main process exited, code=exited, status=1/FAILURE\nScheduled restart job, restart counter is at 1.\n", 1, "systemd"
    )
    again = journal("Started llama-server.service - llama-server.\n", 1, "systemd")
    assert server_log.read(journal(OOM, 7) + unit).verdict == "oom_vram"
    assert server_log.read(journal(OOM, 7) + unit + again).verdict == "loading"
    assert server_log.read(journal(LOADED, 7) + again).verdict == "ok"  # it waited for readiness and is started only now


CUT = "srv load_model: loading model 'a'\nload_tensors: CUDA0 model buffer size = 5.00 MiB\n"


@pytest.mark.parametrize(
    "begin",
    [
        "build: 3990 (1fb8c44e) with cc",
        "main: build = 2050 (e6f8177)",
        "build_info: b9071-51c0d7e8b",
        "common_params_print_info: build 11240 (e5512fa07)",
        "srv  llama_server: initializing ...",
    ],
)
def test_a_start_that_was_cut_ends_where_the_next_begins(begin: str) -> None:
    """No end, no number of a process, no clock: its first line is all that tells."""
    assert server_log.read(f"{begin}\n{CUT}" * 2).model_mib == {"CUDA0": 5.0}


def test_a_start_that_was_cut_ends_where_the_clock_begins_anew() -> None:
    clocked = "0.03.000.000 I load_tensors: CUDA0 model buffer size = 5.00 MiB\n"
    assert server_log.read(f"0.01.000.000 I a\n{clocked}" * 2).model_mib == {"CUDA0": 5.0}
    assert server_log.read(f"llama-1  | 0.01.000.000 I a\nllama-1  | {clocked}" * 2).model_mib == {"CUDA0": 5.0}
    assert server_log.read(clocked * 2).model_mib == {"CUDA0": 10.0}


@pytest.mark.parametrize(
    "end",
    [
        "llama-server.service: Main process exited, code=exited, status=1/FAILURE",
        "llama-server.service: Scheduled restart job, restart counter is at 1.",
        "llama-server.service: Failed with result 'exit-code'.",
        "srv operator(): cleaning up before exit...",
        "srv llama_server: exiting due to model loading error",
        "Killed",
        "Segmentation fault",
    ],
)
def test_a_start_that_ended_is_over(end: str) -> None:
    found = server_log.read(f"{CUT}{end}\n{CUT}")
    assert (found.verdict, found.model_mib) == ("loading", {"CUDA0": 5.0})


@pytest.mark.parametrize(
    "end", ["Stopped llama-server.service - a.", "llama-server.service: Deactivated successfully.", "-- Boot 0123 --"]
)
def test_a_start_after_an_orderly_end_is_another_one(end: str) -> None:
    """Also where no process's number tells: what `journalctl -o cat` prints."""
    begun = "Started llama-server.service - a.\n"
    assert server_log.read(f"{begun}{ON_CPU}{begun}").verdict == "ok"
    assert server_log.read(f"{begun}{ON_CPU}{end}\n{begun}").verdict == "loading"


@pytest.mark.parametrize("sender", ["llama-server", "llama.cpp", "run@1.sh"])
def test_json_lines_and_prefixes_of_containers_are_read(sender: str) -> None:
    jsonl = "".join(json.dumps({"type": "log", "msg": line + "\n"}) + "\n" for line in OOM.splitlines())
    exported = "".join(
        json.dumps({"SYSLOG_IDENTIFIER": sender, "_PID": "7", "MESSAGE": line}) + "\n" for line in OOM.splitlines()
    )
    composed = "".join(f"llama-1  | {line}\n" for line in OOM.splitlines())
    assert [server_log.read(text).verdict for text in (jsonl, exported, composed, journal(OOM, 7, sender))] == ["oom_vram"] * 4


def test_numbers_of_older_builds() -> None:
    text = (
        "build: 4200 (1fb8c44e) with cc\nllm_load_tensors: offloaded 20/41 layers to GPU\n"
        "llm_load_tensors:   CPU_Mapped model buffer size =  100.50 MiB\nllm_load_tensors:      CUDA0 buffer size =  200.25 MiB\n"
        "llama_new_context_with_model: n_ctx      = 4096\nllama_new_context_with_model: n_ctx_per_seq = 1024\n"
        "llama_kv_cache_init:      CUDA0 KV buffer size =    40.00 MiB\nllama_kv_cache_init:      CPU KV buffer size = 8.00 MiB\n"
        "llama_new_context_with_model:  CUDA_Host  output buffer size =     3.79 MiB\nsrv init: initializing slots, n_slots = 4\n"
    )
    found = server_log.read(text)
    assert found.document() == {
        "verdict": "loading",
        "build": 4200,
        "layers_offloaded": 20,
        "layers_total": 41,
        "model_buffers_mib": {"CPU_Mapped": 100.5, "CUDA0": 200.25},
        "kv_mib": {"CUDA0": 40.0, "CPU": 8.0},
        "n_ctx": 4096,
        "n_slots": 4,
    }


@pytest.mark.parametrize(
    ("line", "build"),
    [
        ("build: 3990 (1fb8c44e) with cc", 3990),
        ("version: 0.5.0-dev (build 11434, commit 0c1e570)", 11434),
        ("version: 8412 (f09a771c3)", 8412),
        ("build_info: b9071-51c0d7e8b", 9071),
        ("main: build = 2050 (e6f8177)", 2050),
        ('INFO [main] build info | tid="1" build=2797 commit="858f6b73"', 2797),
    ],
)
def test_builds_of_all_times_are_read(line: str, build: int) -> None:
    assert server_log.read(line).build == build


def test_free_memory_is_never_more_than_the_card_has() -> None:
    text = (
        "ggml_cuda_init: found 1 CUDA devices:\n  Device 0: NVIDIA GeForce RTX 3090, VMM: yes, VRAM: 24575 MiB\n"
        "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:01:00.0) - 30790 MiB free\n"
    )
    assert server_log.read(text).free_mib == {"CUDA0": 24575}
    assert server_log.read(text.replace("30790", "20000")).free_mib == {"CUDA0": 20000}


@pytest.mark.parametrize(
    ("device", "gpu"), [("CUDA0", True), ("Vulkan1", True), ("CUDA_Host", False), ("CPU_Mapped", False), ("CPU", False)]
)
def test_memory_of_the_host_is_no_gpu(device: str, gpu: bool) -> None:
    assert server_log.is_gpu(device) is gpu


def test_the_first_context_counts_and_a_build_that_only_an_earlier_start_names() -> None:
    """The second context is that of a draft."""
    assert server_log.read("llama_context: n_ctx = 8192\nllama_context: n_ctx = 4096\n").n_ctx == 8192
    assert server_log.read(f"build: 7911 (5cf0a2e8) with cc\n{CUT}Killed\n{CUT}").build == 7911


def test_the_parent_of_a_router_needs_no_gpu_where_one_was_found() -> None:
    router = "warning: no usable GPU found\nsrv load: spawning server instance with name=a\n[41877] main: model loaded\n"
    assert server_log.read(router).verdict == "cpu_fallback"
    assert server_log.read("ggml_cuda_init: found 1 CUDA devices:\n" + router).verdict == "ok"


def test_a_file_that_was_read_at_the_second_try_is_no_bad_file() -> None:
    assert server_log.read("gguf: failed to read magic\n" + LOADED).verdict == "ok"
    assert server_log.read(LOADED + "gguf: failed to read magic\n").verdict == "bad_file"


def test_a_picture_in_a_log_takes_no_time_and_hides_nothing() -> None:
    """At verbosity 5 a request is one line with its pictures. Patterns over all of this one would take a day."""
    request = "0.06.000.000 D srv  log_server_r: request:  " + "iVBORw0KGgo/" * 100_000 + "\n"
    found = server_log.read(LOADED + request)
    assert (found.verdict, found.n_ctx) == ("ok", 8192)
    assert server_log.read(LOADED + request + "CUDA error: out of memory\n").verdict == "oom_vram"


@pytest.mark.parametrize(
    "line", ["load_tensors: CUDA0 model buffer size = 1.2.3 MiB", '{"msg":' + "[" * 100_000, '{"msg": 5, "_PID": []}']
)
def test_a_line_that_is_damaged_ends_nothing(line: str) -> None:
    assert server_log.read(f"{LOADED}{line}\n").verdict == "ok"
