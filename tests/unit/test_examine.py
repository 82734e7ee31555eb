"""Units, answers, outputs of nvidia-smi and wsl.exe, build logs: others than those of tests/data/fixtures, and their readings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wsllama.domain import text
from wsllama.domain.examine import build_log, nvidia_smi, response, unit, wsl_output

FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"
GOOD = (FIXTURES / "unit" / "good-plain.service").read_text(encoding="utf-8")
CALL = next(line for line in GOOD.splitlines() if line.startswith("ExecStart="))
MODEL = "/srv/models/Qwen3.6-35B-A3B-Q4_K_M.gguf"


# Units


@pytest.mark.parametrize(
    ("instead", "by", "ids"),
    [
        ("User=llama", "User=llama\nPrivateDevices=on", ["private_devices"]),
        ("User=llama", "User=llama\nPrivateDevices=yes\nPrivateDevices=no", []),
        ("User=llama", "User=llama\nDevicePolicy=strict", ["devices_closed_without_dxg"]),
        ("User=llama", "User=llama\nDevicePolicy=closed\nDeviceAllow=/dev/dxg rw", []),
        ("User=llama", "User=llama\nDeviceAllow=/dev/dri rw\nDeviceAllow=", []),
        ("Restart=on-failure", "  Restart=on-failure", []),
        ("User=llama", "User=llama\nDeviceAllow=char-nvidia* rw", ["devices_closed_without_dxg"]),
        ("User=llama", "DynamicUser=yes", []),
        ("User=llama", "User=root", ["root_user"]),
        (
            "Environment=LD_LIBRARY_PATH=/usr/lib/wsl/lib",
            'Environment="A=b c" "LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/lib/wsl/lib/"',
            [],
        ),
        ("Environment=LD_LIBRARY_PATH=/usr/lib/wsl/lib", "Environment=LD_LIBRARY_PATH=/usr/lib/wsl", ["no_wsl_lib_path"]),
        ("Environment=LD", "Environment=LD_LIBRARY_PATH=/x\nEnvironment=LD", []),
        ("/usr/lib/wsl/lib\n", "/usr/local/cuda/lib64/stubs:/usr/lib/wsl/lib\n", ["stub_library_path"]),
        ("ExecStart=", "Environment=\nExecStart=/usr/bin/env LD_LIBRARY_PATH=/usr/lib/wsl/lib ", []),
        ("--host 127.0.0.1", "--host 0.0.0.0", ["listens_everywhere_without_key"]),
        ("--host 127.0.0.1", "--host ${H}", []),
        ("--host 127.0.0.1", "--host $H --port 1\nEnvironment=H=0.0.0.0", ["listens_everywhere_without_key"]),
        ("User=llama", "User=llama\nEnvironment=LLAMA_ARG_HOST=0.0.0.0", []),  # the option wins
        ("--host 127.0.0.1", "--host :: --api-key-file /k", ["listens_everywhere"]),
        ("--host 127.0.0.1", "--host 0.0.0.0 --api-key ${KEY}", ["listens_everywhere", "secret_in_argv"]),
        ("ExecStart=", "Environment=LLAMA_API_KEY=x LLAMA_ARG_HOST=0.0.0.0 H=0.0.0.0\nExecStart=", []),
        (MODEL, "/mnt/d/models/a.gguf", ["model_on_drvfs"]),
        (MODEL, "/mnt/data/a.gguf", []),
        (f"--model {MODEL}", "\nEnvironment=LLAMA_ARG_MODEL=/mnt/c/a.gguf", ["model_on_drvfs", "no_port"]),
        ("Restart=on-failure", "Restart=no", ["no_restart"]),
        ("StartLimitIntervalSec=300\nStartLimitBurst=4\n", "", ["restart_without_limit"]),
        ("StartLimitIntervalSec=300\nStartLimitBurst=4\n", "StartLimitBurst=3\n", []),
        ("Restart=on-failure", "Restart=always\nStartLimitInterval=0", []),  # of [Service], where it counts for nothing here
        ("--host", "\\\n    --host", []),
        ("--host", "\\\n# a comment between\n    --host", []),
        ("--host", "\\ \n    --host", ["broken_continuation", "no_port"]),
        ("--host", "\n    --host", ["broken_continuation", "no_port"]),
        ("--ctx-size 32768", "\\\n    --ctx-size 32768 \\ ", ["broken_continuation"]),
        ("--port 8080", "--port 8080 --no-mmap -dio", ["removed_flag"]),
        ("--port 8080", "--port 8080 --load-mode none", []),
        ("--port 8080", "--port 8080 -lm mlock", ["mlock_without_limit"]),
        ("--port 8080", "--port 8080 --mlock\nLimitMEMLOCK=infinity", ["removed_flag"]),
        ("--port 8080", "--port 8080 --tools all --ui-mcp-proxy", ["tools_exposed"]),
        ("User=llama", "User=llama\nEnvironment=LLAMA_ARG_TOOLS=all", ["tools_exposed"]),
        ("User=llama", "User=llama\nEnvironment=LLAMA_ARG_TOOLS= LLAMA_ARG_CTX_SIZE=4096", []),
        ("--port 8080", "", ["no_port"]),
        ("--port 8080", "\nEnvironment=LLAMA_ARG_PORT=8080", []),
        ("--port 8080", "--port=8080", []),
        ("--port 8080", "$MORE", []),  # of a file that is not here
        ("/opt/llama/bin/llama-server", "llama-server", ["relative_path"]),
        ("/opt/llama/bin/llama-server", "-/opt/llama/bin/llama-server", []),
        (MODEL, "~/a.gguf", ["relative_path"]),
        (MODEL, "%S/llama/a.gguf", []),
        (CALL, f"ExecStart=/bin/sh -c 'exec {CALL.removeprefix('ExecStart=')} --api-key k'", ["secret_in_argv"]),
        (CALL, f"ExecStart=/usr/bin/nice -n 5 {CALL.removeprefix('ExecStart=')}", []),
        ("TimeoutStartSec=900", "TimeoutStartSec=30\nType=notify", ["start_timeout_too_short"]),
        ("TimeoutStartSec=900", "TimeoutStartSec=30", []),
        ("TimeoutStartSec=900", "TimeoutStartSec=1min 30s\nExecStartPost=/usr/bin/curl http://127.0.0.1:8080/health", []),
        ("TimeoutStartSec=900", "TimeoutSec=0\nExecStartPost=/usr/bin/curl http://127.0.0.1:8080/health", []),
        (
            "TimeoutStartSec=900",
            "TimeoutStartSec=900ms\nExecStartPost=/usr/bin/curl http://127.0.0.1/health",
            ["start_timeout_too_short"],
        ),
        ("TimeoutStartSec=900", "TimeoutStartSec=infinity\nExecStartPost=/usr/bin/curl http://127.0.0.1/health", []),
    ],
)
def test_units(instead: str, by: str, ids: list[str]) -> None:
    assert instead in GOOD
    assert sorted(unit.findings(GOOD.replace(instead, by, 1))) == ids


def test_a_file_of_the_environment_counts_where_it_is_known() -> None:
    text = GOOD.replace(CALL, "EnvironmentFile=/opt/a\nExecStart=/opt/llama/bin/llama-server $ARGS")
    assert unit.findings(text) == set()
    assert unit.findings(text, {"ARGS": "--host 0.0.0.0 --model '/mnt/c/my models/a.gguf'"}) == {
        "listens_everywhere_without_key",
        "model_on_drvfs",
        "no_port",
    }


# Answers


def chat(
    content: Any = "", *, thought: str = "", reason: str = "stop", tokens: int = 5, total: int = 20, **message: Any
) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **({"reasoning_content": thought} if thought else {}), **message}
    usage = {"completion_tokens": tokens, "total_tokens": total}
    return {"object": "chat.completion", "choices": [{"finish_reason": reason, "message": message}], "usage": usage}


def sse(*chunks: Any, done: bool = True) -> str:
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n" * done


def delta(reason: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"finish_reason": reason, "delta": said}]}


@pytest.mark.parametrize(
    ("body", "limits", "answer", "ids"),
    [
        (chat("4", thought="2+2"), {}, "4", []),
        (
            chat(None, thought="hm", reason="length", tokens=64),
            {"max_tokens": 64, "n_ctx": 8192},
            None,
            ["only_reasoning_budget"],
        ),
        (
            chat("", thought="hm", reason="length", total=256),
            {"max_tokens": 4096, "n_ctx": 256},
            None,
            ["only_reasoning_context"],
        ),
        (chat("", thought="hm", reason="length"), {}, None, ["only_reasoning_budget"]),
        (chat("", thought="hm"), {"max_tokens": 64, "n_ctx": 8192}, None, []),
        (chat("", thought="hm", tokens=64), {"max_tokens": 64, "n_ctx": 8192}, None, ["only_reasoning_budget"]),
        (chat("\n\n"), {}, None, ["empty_answer"]),
        (chat([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), {}, "ab", []),
        (chat("Let me think</think>\n\nREADY"), {}, "Let me think</think>\n\nREADY", ["leaked_think_tag"]),
        (chat("a<|endoftext|>"), {}, "a<|endoftext|>", ["leaked_eog"]),
        (chat("I think, therefore"), {}, "I think, therefore", []),
        (chat(None, thought="hm", reason="tool_calls", tool_calls=[{"id": "1"}]), {}, None, ["tool_call"]),
        (chat(None, tool_calls=[]), {}, None, ["empty_answer"]),
        ({"content": "", "stop": True}, {}, None, ["empty_answer"]),
        ({"content": "x", "prompt": "what does <|im_start|> mean?"}, {}, "x", []),
        (
            {"content": "x", "prompt": "<|im_start|>user\n<|im_start|>user\nhi<|im_end|>\n<|im_end|>"},
            {},
            "x",
            ["double_template"],
        ),
        ({"content": "x", "prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"}, {}, "x", []),
        ({"object": "text_completion", "choices": [{"text": "x", "finish_reason": "stop"}]}, {}, "x", []),
        ({"type": "message", "content": [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}]}, {}, "b", []),
        (sse(delta(content="a"), delta(content="b"), delta("stop")), {}, "ab", []),
        (sse(delta(content="a"), delta("stop"), done=False), {}, "a", ["truncated_stream"]),
        (sse(delta(reasoning_content="a"), delta("length")), {}, None, ["only_reasoning_budget"]),
        (sse(delta(tool_calls=[{"index": 0}]), delta("tool_calls")), {}, None, ["tool_call"]),
        (sse(delta(content="a")).replace("\n", "\r\n"), {}, "a", []),
        (": ping\n\n" + sse(delta(content="a")) + 'data: {"choi', {}, "a", []),
        (sse({"content": "a", "stop": False}, {"content": "", "stop": True}, done=False), {}, "a", []),
        (
            sse(delta(content="a"), {"error": {"code": 500, "message": "x", "type": "server_error"}}, done=False),
            {},
            "a",
            ["truncated_stream"],
        ),
    ],
)
def test_answers(body: Any, limits: dict[str, int], answer: str | None, ids: list[str]) -> None:
    found = response.examine(body if isinstance(body, str) else json.dumps(body), **limits)
    assert (found["answer"], found["findings"]) == (answer, ids)
    assert "http_status" not in found


THINKS: dict[str, Any] = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Let me think"}]}
SAYS: dict[str, Any] = {"type": "message", "content": [{"type": "output_text", "annotations": [], "text": "READY"}]}
USED = {"input_tokens": 23, "output_tokens": 7, "total_tokens": 30}
OF_RESPONSES: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"object": "response", "status": "in_progress"}},
    {"type": "response.reasoning_text.delta", "delta": "Let"},
    {"type": "response.output_text.delta", "delta": "REA"},
    {"type": "response.output_text.delta", "delta": "DY"},
    {"type": "response.completed", "response": {"object": "response", "output": [THINKS, SAYS], "usage": USED}},
]
OF_MESSAGES: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"type": "message", "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Let"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "READY"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
]


def named_events(chunks: list[dict[str, Any]]) -> str:
    return "".join(f"event: {chunk['type']}\ndata: {json.dumps(chunk)}\n\n" for chunk in chunks)


@pytest.mark.parametrize(
    ("body", "limits", "read"),
    [
        ({"object": "response", "output": [THINKS, SAYS], "usage": USED}, {}, ("chat", "READY", True, None, [])),
        (
            {"object": "response", "output": [THINKS], "usage": USED},
            {"max_tokens": 7},
            ("chat", None, True, None, ["only_reasoning_budget"]),
        ),
        (
            {"object": "response", "output": [{"type": "function_call", "name": "f"}]},
            {},
            ("chat", None, False, None, ["tool_call"]),
        ),
        (named_events(OF_RESPONSES), {}, ("stream", "READY", True, None, [])),
        (named_events(OF_RESPONSES[:-1]), {}, ("stream", "READY", True, None, ["truncated_stream"])),
        (named_events(OF_MESSAGES), {}, ("stream", "READY", True, "end_turn", [])),
        (named_events(OF_MESSAGES[:-2]), {}, ("stream", "READY", True, None, ["truncated_stream"])),
    ],
)
def test_answers_in_the_form_of_other_interfaces(body: Any, limits: dict[str, int], read: tuple[Any, ...]) -> None:
    """As /v1/responses and /v1/messages of the pin gave them, shortened."""
    found = response.examine(body if isinstance(body, str) else json.dumps(body), **limits)
    assert tuple(found[key] for key in ("kind", "answer", "reasoning", "finish_reason", "findings")) == read


@pytest.mark.parametrize(
    ("body", "status", "ids"),
    [
        (
            '{"error":{"code":400,"message":"the request exceeds it","type":"exceed_context_size_error"}}',
            400,
            ["context_exceeded"],
        ),
        ('{"error":{"code":"context_length_exceeded","message":"too long"}}', 413, ["context_exceeded"]),
        ('{"error":{"code":400,"message":"temperature must be a number","type":"invalid_request_error"}}', 400, []),
        ('{"error":{"code":503,"message":"no slot available","type":"unavailable_error"}}', 503, []),
        ('{"status":"loading model"}', 503, ["loading"]),
        ('{"error":{"code":500,"message":"error loading model","type":"server_error"}}', 500, []),
        ('{"error":"Invalid API Key"}', 401, ["unauthorized"]),
        ('{"detail":"Not Found"}', 404, ["not_found_endpoint"]),
        ('{"error":{"code":404,"message":"model not found","type":"not_found_error"}}', 404, []),
        (
            '{"error":{"code":400,"message":"Conversation roles must alternate","type":"invalid_request_error"}}',
            400,
            ["template_error"],
        ),
        ('data: {"error":{"code":401,"message":"Invalid API Key","type":"authentication_error"}}\n\n', 401, ["unauthorized"]),
        ("Internal Server Error", 500, ["not_json"]),
        ('{"choices":[{"mess', 200, ["not_json"]),
        ("", 502, ["not_json"]),
    ],
)
def test_errors(body: str, status: int, ids: list[str]) -> None:
    found = response.examine(body, http_status=status)
    assert (found["kind"], found["answer"], found["findings"], found["http_status"]) == ("error", None, ids, status)


# Build logs


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (
            "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\nninja: build stopped: subcommand failed.\n",
            ["compiler_killed_oom"],
        ),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]\n", ["compiler_killed_oom"]),
        ("/bin/sh: 1: nvcc: not found\n", ["nvcc_not_found"]),
        ("nvcc fatal   : Value 'sm_120' is not defined for option 'gpu-architecture'\n", ["unsupported_arch"]),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_No CUDA devices found.'\n", ["native_without_gpu"]),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory\n", ["driver_stub_link"]),
        ("a.o: undefined reference to `cudaMalloc'\n", ["other_error"]),
        ("/usr/include/bits/mathcalls.h:206: error: 'rsqrt' has a different exception specifier\n", ["glibc_clash"]),
        ("a.cpp:1:2: fatal error: error writing to /tmp/a.s: No space left on device\n", ["disk_full"]),
        (
            "CMake Warning at CMakeLists.txt:9 (message):\n  LLAMA_CURL option is deprecated and will be ignored\n",
            ["deprecated_option"],
        ),
        (
            '-- The CUDA compiler identification is NVIDIA 13.0.88\n-- Found CUDAToolkit: /cuda-13.2 (found version "13.2.51")\n',
            [],
        ),
        ("cmake -DLLAMA_CURL=OFF ..\n[100%] Built target llama-server\n", ["ok"]),
        ("[100%] Built target llama-server-impl\n/usr/bin/ld: undefined reference to `cuMemMap'\n", ["driver_stub_link"]),
        ("[228/228] Linking CXX executable bin/llama-server\n", ["ok"]),
        (
            "[227/228] Linking CXX executable bin/llama-server\nFAILED: bin/llama-server\n/usr/bin/ld: cannot find -lcuda\n",
            ["driver_stub_link"],
        ),
        (
            "fetch: Could not resolve host: example.org, building without an embedded UI\n[100%] Built target llama-server\n",
            ["ok"],
        ),
        ("-- Found OpenSSL: /mnt/c/Program Files/OpenSSL/lib/libcrypto.lib\n", ["windows_path_leak"]),
        ("PATH=/usr/bin:/mnt/c/Windows/system32\n[100%] Built target llama-server\n", ["ok"]),
        ("cd /mnt/c/src/llama.cpp/build\n[100%] Built target llama-server\n", ["ok"]),
        ("-- Configuring done (1.0s)\n[ 10%] Building CXX object common/CMakeFiles/error.cpp.o\n", []),
    ],
)
def test_build_logs(text: str, ids: list[str]) -> None:
    assert sorted(build_log.read(text).findings) == ids


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[1/9] a\nFAILED: a.o\na.cpp: In function 'f':\na.cpp:12:5: error: 'x' was not declared\n",
            "a.cpp:12:5: error: 'x' was not declared",
        ),
        ("w.cpp:1: warning: error: no\nmake: *** [Makefile:1: all] Error 2\n", "make: *** [Makefile:1: all] Error 2"),
        (
            "CMake Error at CMakeLists.txt:3 (find_package):\n  Could not find X\n",
            "CMake Error at CMakeLists.txt:3 (find_package):",
        ),
    ],
)
def test_the_line_that_decides_a_build_without_a_known_cause(text: str, line: str) -> None:
    assert build_log.read(text) == (frozenset({"other_error"}), line)


# nvidia-smi


@pytest.mark.parametrize(
    ("text", "command", "returncode", "status"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", "nvidia-smi", 18, "no_driver"),
        ("/usr/lib/wsl/lib/nvidia-smi: No such file or directory\n", "/usr/lib/wsl/lib/nvidia-smi", 127, "no_driver"),
        ("sh: 1: nvidia-smi: not found\n", "nvidia-smi", 127, "unknown"),
        ("Segmentation fault (core dumped)\r\n", "nvidia-smi", 139, "crashed"),
        ("GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)\n", "nvidia-smi -L", 0, "unknown"),
        ("Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.\n", "nvidia-smi", 15, "unknown"),
        ("Failed to initialize NVML: Unknown Error\n", "nvidia-smi", 255, "unknown"),
        ("", "nvidia-smi", 0, "unknown"),
    ],
)
def test_the_status_of_nvidia_smi_is_told_by_its_words(text: str, command: str, returncode: int, status: str) -> None:
    found = nvidia_smi.examine(text, command)
    assert (found["returncode"], found["status"]) == (returncode, status)
    assert nvidia_smi.examine(text, command, 3)["returncode"] == 3


# wsl.exe and cmd.exe


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("拒绝访问。\r\n", "access_denied"),
        ("Zugriff verweigert\r\n", "access_denied"),
        ("El sistema no puede obtener acceso al archivo.\r\n", "store_alias_session0"),
        ("Fehlercode: Wsl/Service/E_ACCESSDENIED\r\n", "access_denied"),
        ("Fehlercode: Wsl/Service/CreateInstance/CreateVm/HCS/0x80370102\r\n", "virtualization_off"),
        ("Fehlercode: Wsl/Service/CreateInstance/E_OUTOFMEMORY\r\n", "out_of_memory"),
        ("Das Windows-Subsystem für Linux ist nicht installiert. Führen Sie 'wsl.exe --install' aus.\r\n", "wsl_not_installed"),
        ("Fehlercode: Wsl/WSL_E_DEFAULT_DISTRO_NOT_FOUND\r\n", "distro_not_found"),
        ("-bash: /mnt/c/Windows/System32/wsl.exe: cannot execute binary file: Exec format error\r\n", "interop_broken"),
        ("'\\\\wsl.localhost\\Ubuntu\\root'\r\nCMD.EXE wurde mit dem oben angegebenen Pfad gestartet.\r\n", "unc_banner_only"),
        ("Something nobody knows\r\n", None),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-8"])
def test_errors_in_any_language(text: str, error: str | None, encoding: str) -> None:
    found = wsl_output.examine(text.encode(encoding), "wsl.exe -d a --exec true", 1)
    assert found == {"kind": "error", "encoding": {"utf-16-le": "utf-16le"}.get(encoding, encoding), "error_id": error}


def test_lists_in_every_form() -> None:
    def row(name: str, running: bool | None = None, version: int | None = None, default: bool = False) -> dict[str, Any]:
        return {"name": name, "state_running": running, "version": version, "default": default}

    def read(text: str, command: str) -> Any:
        found = wsl_output.examine(text.encode("utf-16-le"), command, 0)
        assert found["kind"] == "list"
        return found["distros"]

    verbose = (
        "  NAME    STATE           VERSION\r\n* Debian  Wird ausgeführt  2\r\n  old     已停止          1\r\n  x  Xyz  2\r\n"
    )
    wanted = [row("Debian", True, 2, True), row("old", False, 1), row("x", None, 2)]
    assert read(verbose, "wsl.exe -l -v") == wanted
    assert read("wsl: Unknown key 'wsl2.x' in C:\\a:1\r\n" + verbose, "wsl.exe --list --verbose") == wanted
    plain = "Distributions du sous-système Windows pour Linux :\r\nUbuntu (par défaut)\r\nDebian\r\n"
    assert read(plain, "wsl.exe -l") == [row("Ubuntu", default=True), row("Debian")]
    nobody = wsl_output.examine("There are no running distributions.\r\n".encode("utf-16-le"), "wsl.exe -l --running", 1)
    assert nobody == {"kind": "list", "encoding": "utf-16le", "distros": []}
    assert read("Ubuntu\r\nDebian\r\n", "wsl.exe -l -q") == [row("Ubuntu"), row("Debian")]


@pytest.mark.parametrize(
    ("data", "codepage", "encoding", "profile"),
    [
        ("C:\\Users\\Jürgen\r\n".encode("cp850"), 850, "cp850", "C:\\Users\\Jürgen"),
        ("C:\\Users\\Jürgen\r\n".encode("cp1252"), 1252, "cp1252", "C:\\Users\\Jürgen"),
        ("C:\\Users\\Jürgen\r\n".encode(), None, "utf-8", "C:\\Users\\Jürgen"),
        ("C:\\Users\\ada lovelace\r\n".encode("utf-16-le"), None, "utf-16le", "C:\\Users\\ada lovelace"),
        (b"\\\\fs01\\home$\\ada\r\n", None, "utf-8", "\\\\fs01\\home$\\ada"),
        (b"%USERPROFILE%\r\n", None, "utf-8", None),
    ],
)
def test_the_folder_of_the_windows_user(data: bytes, codepage: int | None, encoding: str, profile: str | None) -> None:
    found = wsl_output.examine(data, "cmd.exe /C echo.%USERPROFILE%", 0, codepage)
    assert found == {"kind": "userprofile", "encoding": encoding, "profile": profile}


def test_versions_and_status_by_their_places() -> None:
    numbers = [
        "2.6.2.0",
        "6.6.87.2-1",
        "1.0.71",
        "1.2.6411",
        "1.615.2-90114120",
        "10.0.26200.1-250512-1010.ge-release",
        "10.0.26100.1",
    ]
    text = "".join(f"Версия WSL{i}： {number}\r\n" for i, number in enumerate(numbers))
    wanted = {
        "kind": "version",
        "encoding": "utf-16le",
        "wsl_version": numbers[0],
        "kernel_version": numbers[1],
        "windows_build": numbers[6],
    }
    assert wsl_output.examine(text.encode("utf-16-le"), "wsl.exe --version") == wanted
    assert wsl_output.examine(text.encode("utf-16-le")) == wanted
    warned = f"wsl: Unknown key 'wsl2.x' in C:\\a:1\r\n{text}"
    assert wsl_output.examine(warned.encode("utf-16-le"), "wsl.exe --version") == wanted
    said = "既定のディストリビューション: llama-box\r\n既定のバージョン: 2\r\n".encode("utf-16-le")
    assert wsl_output.examine(said, "wsl.exe --status")["distros"][0]["name"] == "llama-box"
    for without in ("Standardversion: 2\r\n", "Nothing is installed\r\n", ""):
        assert wsl_output.examine(without.encode("utf-16-le"), "wsl.exe --status")["distros"] == []
    failed = wsl_output.examine("Nothing\r\n".encode("utf-16-le"), "wsl.exe --version", 1)
    assert failed == {"kind": "error", "encoding": "utf-16le", "error_id": None}
    assert wsl_output.examine(text.encode("utf-16-le"), "wsl.exe --version", 1) == wanted


def test_bytes_that_are_hard_to_tell() -> None:
    """UTF-16 with a mark, UTF-16 without a single NUL, a western code page, line ends of old systems."""
    said, command = "拒绝访问。".encode("utf-16-le"), "wsl.exe -d a --exec true"
    wanted = {"kind": "error", "encoding": "utf-16le", "error_id": "access_denied"}
    assert wsl_output.examine(b"\xff\xfe" + said, command, 1, 850) == wanted
    assert wsl_output.examine(said, command, 1) == wanted
    assert wsl_output.examine(b"?\r\n", command, 50)["error_id"] == "wsl_not_installed"
    assert text.decode(b"J\xfcrgen\rx\r\n") == "Jürgen\nx\n"


def test_a_compiler_of_windows_explains_that_there_is_none_of_linux() -> None:
    log = "-- Found: /mnt/c/Program Files/NVIDIA/bin/nvcc.exe\nCUDA Toolkit not found\n"
    assert build_log.read(log).findings == {"windows_path_leak"}
