"""What programs of all versions and languages say, line by line, and what each line means: one at least for every pattern."""

from __future__ import annotations

import json

import pytest

from wsllama.domain import server_log
from wsllama.domain.examine import build_log, nvidia_smi, response, wsl_output

LOG = {
    "oom_host": """\
llama-server invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
oom_reaper: reaped process 1790 (llama-server), now anon-rss:0kB, file-rss:0kB
llama_model_load: error loading model: unable to allocate CPU buffer
fork: Cannot allocate memory
error loading model: mmap failed: Invalid argument
llama-server.service: Failed with result 'oom-kill'.
Memory cgroup out of memory: Killed process 1790
"OOMKilled": true""",
    "oom_vram": """\
CUDA error 2 at /build/ggml-cuda.cu:7200: out of memory
ggml_cuda_pool_vmm: cuMemCreate failed: out of memory
cuInit: CUDA_ERROR_OUT_OF_MEMORY
cudaErrorMemoryAllocation: out of memory
cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED
vkAllocateMemory: VK_ERROR_OUT_OF_DEVICE_MEMORY
ROCm error: out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size 5368709120
graph_reserve: failed to allocate compute buffers
llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache""",
    "mmproj": """\
mtmd: mmproj /m/v.gguf: failed to open
clip_model_loader: model loading failed
hint: you may be using wrong mmproj
mismatch between text model and mmproj (n_embd = 2560)
clip_init: failed to load model
load_hparams: unknown projector type: qwen9
mtmd_init_from_file: error: cannot load vision
srv load_model: failed to load multimodal model
gguf_init_from_file: failed to open GGUF file '/m/mmproj-F16.gguf'""",
    "bad_arch": """\
check_tensor_dims: tensor 'blk.0.attn_q.weight' has wrong shape; expected 2048, 4096, got 2048, 8192
gguf_init_from_file: tensor 'a' of unknown ggml type 42
gguf_init_from_file_impl: this GGUF file is version 4 but this software only supports up to version 3
unsupported GGUF version 9
error: unsupported model architecture""",
    "bad_file": """\
error loading model: invalid split file: model-a.gguf
llama_model_load: error loading model: failed to load GGUF split from /m/a-00002-of-00003.gguf
llama_model_load: error loading model: model is corrupted or incomplete
gguf: failed to read magic
failed to open GGUF file 'a'
main: /m/a.gguf: Permission denied
gguf_init_from_file_impl: failed
llama_model_load: error loading model: failed to open /m/a.gguf
error: unable to load model
error: model file does not exist
GGUFv1 is no longer supported. please use a more up-to-date version
/bin/sh: No such file or directory: /m/a.gguf
llama_model_load: error loading model: unexpectedly reached end of file
llama_model_load: error loading model: read error: Bad address
error loading model hyperparameters: key not found in model: qwen35moe.rope.dimension_sections
llama_model_load: error loading model: mmap failed: No such device
load: failed to read split 2
tensor 'a' data has unexpected size
fread: Input/output error""",
    "bad_flag": """\
error while handling argument "--defrag-thold": the argument has been removed
server: unrecognized option '--a3b'
error: invalid parameter for argument: -ngl
error while handling argument "-c": stoi
expected value for argument
the argument has been removed
Unsupported cache type: a3b
quantized V cache was requested, but this requires Flash Attention
the server is built without SSL support""",
    "port": """\
listen EADDRINUSE 127.0.0.1:8080
srv start: failed to bind to 127.0.0.1:8080""",
    "killed": """\
llama-server.service: Main process exited, code=killed, status=9/KILL
Killing process 123 (llama-server) with signal SIGKILL.
zsh: killed     llama-server -m a.gguf
terminated by signal 9""",
    "template": """\
srv init: chat template parsing error: Expected value expression
failed to apply chat template
got: Jinja Exception: x
Unable to generate parser for this template.
common_chat_templates_init: failed to parse chat template
the supplied chat template is not supported: x
init: defaulting to chatml
main: falling back to chatml""",
    "cpu_fallback": """\
warning: llama.cpp was compiled without GPU support, ignoring
load_backend: failed to find ggml_backend_init in /opt/bin/libggml-cuda.so
CUDA: no suitable device found
warning: no usable GPU found, --gpu-layers option will be ignored
ggml_vulkan: No devices found.
load_backend: failed to load /opt/bin/libggml-cuda.so: libcudart.so.13: no file
ggml_cuda_init: found 0 CUDA devices""",
    "loading": """\
srv load_model: loading model '/m/a.gguf'
load_tensors: offloading 40 repeating layers to GPU
print_info: arch = qwen35moe
srv  llama_server: initializing ...
cmn  common_init_: warming up the model with an empty run
ggml_cuda_init: found 1 CUDA devices:
main: HTTP server is listening, hostname: 127.0.0.1, port: 8080
srv init: using 15 threads for HTTP server
srv load: spawning server instance with name=qwen on port 41877
build: 3990 (1fb8c44e) with cc
build_info: b9071-51c0d7e8b""",
    "ok": """\
HTTP server listening
main: starting the main loop...
main: server is listening on unix socket
srv  llama_server: listening on http://127.0.0.1:8080""",
}
CRASHES = """\
llama-server.service: Main process exited, code=exited, status=1/FAILURE
llama-server.service: Failed with result 'start-limit-hit'.
srv llama_server: exiting due to HTTP server error
Segmentation fault
Aborted (core dumped)
terminate called after throwing an instance of 'std::runtime_error'
/src/ggml.c:99: GGML_ASSERT(a) failed
ROCm error: unspecified launch failure
srv: failed to load model
llama-server.service: Start request repeated too quickly.
Failed to start llama-server.service"""
BUILD = {
    "wrong_nvcc": """\
-- Check for working CUDA compiler: /usr/lib/nvidia-cuda-toolkit/bin/nvcc
-- Check for working CUDA compiler: /usr/bin/nvcc
-- Found CUDAToolkit: /usr/include (found version "12.0.140")""",
    "missing_openssl": "-- Could NOT find OpenSSL\nCMake Warning: OpenSSL not found, HTTPS support disabled",
    "windows_path_leak": """\
-- Found Git: /mnt/c/Program Files/Git/cmd/git
-- Found ZLIB: /mnt/d/lib/zlib.lib
-- CUDA: /mnt/d/NVIDIA GPU Computing Toolkit/CUDA/v12.8/bin/nvcc""",
    "deprecated_option": "-- Warning: LLAMA_CUDA is deprecated, use B\nLLAMA_CURL option is deprecated and will be ignored",
    "nvcc_not_found": """\
Failed to find nvcc.
-- Could not find nvcc, please set CUDAToolkit_ROOT.
CUDA Toolkit not found
-- Could NOT find CUDAToolkit (missing: CUDAToolkit_ROOT)
No CMAKE_CUDA_COMPILER could be found.
Could not find compiler set in environment variable CUDACXX:
error MSB3721: No CUDA toolset found.
CMAKE_CUDA_COMPILER-NOTFOUND
/usr/local/cuda/bin/nvcc: No such file or directory""",
    "native_without_gpu": "nvcc warning : Cannot find valid GPU for '-arch=native', default arch is used",
    "glibc_clash": """\
error: exception specification of "rsqrt" differs from /usr/include/bits/mathcalls.h(206)
/usr/include/bits/mathcalls.h:79:1:\\nnote: here\\nerror: exception specification is incompatible""",
    "compiler_killed_oom": """\
g++: internal compiler error: Killed (program cc1plus)
virtual memory exhausted: Cannot allocate memory
cc1plus: out of memory allocating 65536 bytes
LLVM ERROR: out of memory
Killed
terminate called after throwing an instance of 'std::bad_alloc'
fork: Cannot allocate memory
Out of memory: Killed process 812 (cc1plus)""",
    "disk_full": """\
write: Disk quota exceeded
ar: Auf dem Gerät ist kein Speicherplatz mehr verfügbar""",
    "missing_curl_old_pin": """\
CMake Error: CURL not found
-- Could NOT find CURL (missing: CURL_LIBRARY)
Hint: to disable this feature, set -DLLAMA_CURL=OFF
common.cpp:9:10: fatal error: curl/curl.h: No such file or directory""",
    "driver_stub_link": """\
/usr/bin/ld: warning: libcuda.so.1, needed by ./libggml-cuda.so, not found
  Target "ggml-cuda" links to: CUDA::cuda_driver\\n  but the target was not found.""",
    "network_fetch_failed": """\
Failed to connect to github.com port 443
fatal: Could not resolve host: github.com
fatal: unable to access 'https://github.com/': x
ssh: connect: Connection timed out
Temporary failure in name resolution
connect: Network is unreachable
error: RPC failed; curl 56
fatal: early EOF
gnutls_handshake() failed: Error in the pull function
server certificate verification failed: SSL certificate problem
The requested URL returned error: 403
fetch-pack: unexpected disconnect while reading sideband packet
E: Failed to fetch http://a/b
Operation timed out after 300 seconds""",
    "ninja_missing": "sh: 1: ninja: not found",
    "ok": "-- Installing: /opt/llama/bin/llama-server",
    "cuda_13_2": """\
Cuda compilation tools, release 13.2, V13.2.51
-- Found CUDAToolkit: /opt/cuda/include (found version "13.2.51")
-- Check for working CUDA compiler: /usr/local/cuda-13.2/bin/nvcc""",
    "other_error": """\
make: *** No rule to make target 'x'
ld: a.o: multiple definition of `f'
/usr/bin/ld: cannot find -lfoo
sh: 1: foo: command not found
cc: Segmentation fault
ptxas died due to signal 11
cp: cannot stat 'a': No such file or directory
mkdir: cannot create directory 'a': Permission denied
Makefile:2: *** Build system changed.  Stop.
a.o: relocation truncated to fit""",
}
WSL = {
    "timeout": "0x80370109\n0x80370118",
    "virtualization_off": """\
HCS_E_SERVICE_NOT_AVAILABLE
WSL_E_VIRTUAL_MACHINE_PLATFORM_REQUIRED
0x80370114
https://aka.ms/enablevirtualization""",
    "out_of_memory": "0x8007000e\nERROR_NO_SYSTEM_RESOURCES\nERROR_OUTOFMEMORY",
    "distro_not_found": "There is no distribution with the supplied name.\nhttps://aka.ms/wslstore",
    "access_denied": """\
0x80070005
Access denied
Accès refusé.
Acceso denegado.
Accesso negato.
Acesso negado.
アクセスが拒否されました。
存取被拒。
액세스가 거부되었습니다.
Отказано в доступе.
Odmowa dostępu.
Toegang geweigerd.
Åtkomst nekad.
Přístup byl odepřen.
Erişim engellendi.
bash: /mnt/c/a.exe: Permission denied""",
    "store_alias_session0": """\
0x80070780
ERROR_CANT_ACCESS_FILE
Das System kann nicht auf die Datei zugreifen.
Le système ne peut pas accéder au fichier.
O arquivo não pode ser acessado pelo sistema.
O sistema não consegue aceder ao ficheiro.
Impossibile accedere al file.
系统无法访问此文件。
系統無法存取該檔案。
このファイルにシステムからアクセスすることはできません。
시스템에서 파일에 액세스할 수 없습니다.
Система не имеет доступа к файлу.
Системе не удается получить доступ к файлу.
System nie może uzyskać dostępu do pliku.""",
    "wsl_not_installed": """\
WSL_E_WSL_OPTIONAL_COMPONENT_REQUIRED
0x8007019e
0x80040154
REGDB_E_CLASSNOTREG
https://aka.ms/wslinstall
bash: wsl.exe: command not found
'wsl' is not recognized as an internal or external command""",
    "interop_broken": """\
run-detectors: unable to find an interpreter for /mnt/c/Windows/System32/cmd.exe
bash: cmd.exe: Fehler im Format der Programmdatei
bash: cmd.exe: erreur de format pour exec()
bash: cmd.exe: 可执行文件格式错误
bash: cmd.exe: 実行形式エラー""",
}
RUNS = (
    "Running,Wird ausgeführt,En cours d'exécution,En ejecución,Em execução,Executando,In esecuzione"
    ",正在运行,執行中,正在執行,実行中,실행 중,Выполняется,Работает,Запущен,Uruchomiono,Działa,Spuštěno,Çalışıyor"
    ",Wordt uitgevoerd,Körs,Actief"
)
RESTS = (
    "Stopped,Wird nicht ausgeführt,Beendet,Angehalten,Gestoppt,Arrêté,Detenido,Parado,Interrompido,Arrestato,已停止,停止,중지됨"
    ",Остановлено,Zatrzymano,Zastaveno,Durduruldu,Gestopt,Stoppad,Installing,Converting,Exporting,Uninstalling"
)
SMI = {
    135: "Bus error (core dumped)",
    134: "Aborted (core dumped)",
    132: "Illegal instruction",
    137: "Killed",
    12: "libnvidia-ml.so.1: cannot open shared object file\nNVML Shared Library Not Found",
    6: "Unable to determine the device handle for GPU 0000:01:00.0: Not Found",
    15: "GPU has fallen off the bus",
    4: "Failed to initialize NVML: Insufficient Permissions",
    2: "Invalid combination of input arguments.\nOption --foo is not recognized.",
    1: "sudo: nvidia-smi: command not found\nThe term 'nvidia-smi' is not recognized as the name of a cmdlet",
    127: "Command 'nvidia-smi' not found, but can be installed with:\nnvidia-smi: cannot execute: required file not found",
    126: "bash: nvidia-smi.exe: Permission denied\nbash: nvidia-smi.exe: cannot execute binary file: Exec format error",
}


def lines(of: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, line.replace("\\n", "\n")) for name, text in of.items() for line in text.split("\n")]


@pytest.mark.parametrize(("verdict", "line"), lines(LOG))
def test_lines_of_a_server_s_log(verdict: str, line: str) -> None:
    assert server_log.read(line).verdict == verdict


@pytest.mark.parametrize("line", CRASHES.split("\n"))
def test_lines_that_end_a_server_without_a_reason(line: str) -> None:
    assert server_log.read(f"main: model loaded\n{line}\n") == server_log.Reading("unknown", line)


@pytest.mark.parametrize(("name", "line"), lines(BUILD))
def test_lines_of_a_build_s_log(name: str, line: str) -> None:
    assert sorted(build_log.read(line).findings) == [name]


@pytest.mark.parametrize(
    "consequence",
    [
        "collect2: error: ld returned 1 exit status",
        "gmake: *** [a.o] error : 1",
        "ninja: fatal: subcommand failed",
        "FAILED: error : a.o",
        "gmake: error: Waiting for unfinished jobs",
        "error: compilation terminated.",
        "a.cpp:1: warning: error : no",
    ],
)
def test_what_follows_from_an_error_is_not_named_instead_of_it(consequence: str) -> None:
    assert build_log.read(f"{consequence}\na.cpp:9: error: no\n").first_error == "a.cpp:9: error: no"


@pytest.mark.parametrize(("error", "line"), lines(WSL))
def test_lines_of_windows(error: str, line: str) -> None:
    assert wsl_output.examine(line.encode(), "wsl.exe -d a --exec true", 1)["error_id"] == error


@pytest.mark.parametrize(("running", "words"), [(True, RUNS), (False, RESTS)])
def test_states_of_a_distro(running: bool, words: str) -> None:
    for word in words.split(","):
        text = f"  NAME    STATE           VERSION\r\n  Debian  {word}   2\r\n"
        (distro,) = wsl_output.examine(text.encode("utf-16-le"), "wsl.exe -l -v")["distros"]
        assert distro["state_running"] is running, word


@pytest.mark.parametrize(("code", "line"), [(code, line) for code, text in SMI.items() for line in text.split("\n")])
def test_exit_statuses_of_nvidia_smi(code: int, line: str) -> None:
    assert nvidia_smi.examine(line, "nvidia-smi")["returncode"] == code


@pytest.mark.parametrize(
    "prompt",
    [
        "<start_of_turn>user\n<start_of_turn>user\nhi",
        "[INST] [INST] hi [/INST]",
        "<|start_header_id|>user<|end_header_id|>\n\n<|start_header_id|>user<|end_header_id|>",
    ],
)
def test_templates_of_other_models_that_were_put_on_twice(prompt: str) -> None:
    assert response.examine(json.dumps({"content": "x", "prompt": prompt}))["findings"] == ["double_template"]


@pytest.mark.parametrize("message", ["Value is not callable: null", "minja: unexpected token", "unknown: {% if %}"])
def test_messages_about_a_template(message: str) -> None:
    body = json.dumps({"error": {"code": 500, "message": message, "type": "server_error"}})
    assert response.examine(body)["findings"] == ["template_error"]
