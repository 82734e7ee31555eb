"""What a log of a build of llama.cpp says: its causes, its warnings, and whether llama-server came out of it. Pure.

Which lines of a log are shown while it runs is decided where the log is, in wsllama/host/follow.py.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from wsllama.domain.text import plain


class Reading(NamedTuple):
    findings: frozenset[str]  # ids of the catalogue, with ok and other_error
    first_error: str | None  # the decisive line, where the cause has no name


# Warnings can stand beside ok. A cause doesn't, when llama-server was built after it.
_WARNINGS = {
    "wrong_nvcc": r"(?<![\w/])/usr/bin/nvcc\b|Found CUDAToolkit: /usr/include\b|/usr/lib/(?:nvidia-cuda-toolkit|cuda)/bin/nvcc",
    "missing_openssl": r"Could NOT find OpenSSL|OpenSSL not found",
    "deprecated_option": r"CMake (?:Deprecation )?Warning[^\n]*\n(?:[ \t]*\n)?\s+\w+ (?:option )?is deprecated"
    r"|option is deprecated and will be ignored|^-- (?:Warning: )?\w+ is deprecated, use",
    "windows_path_leak": r"/mnt/[a-z]/(?:Program ?Files|ProgramData|Windows\b"
    r"|Users/[^/\n]+/(?:AppData|scoop)|msys|mingw|Strawberry|vcpkg)"
    r"|/mnt/[a-z]/[^\n\"':;]*?\.(?:exe|lib|dll)\b|/mnt/[a-z]/[^\n]*NVIDIA GPU Computing Toolkit",
}
_CAUSES = {
    "nvcc_not_found": r"Could not find nvcc|CUDA Toolkit not found|Failed to find nvcc|nvcc: (?:command )?not found"
    r"|Could NOT find CUDAToolkit|No CMAKE_CUDA_COMPILER could be found"
    r"|Could not find compiler set in environment variable CUDACXX"
    r"|(?-i:nvcc|NVCC)\S*\s+is not a full path to an existing compiler tool"
    r"|No CUDA toolset found|CMAKE_CUDA_COMPILER-NOTFOUND|nvcc\S*: No such file or directory",
    "unsupported_gcc": r"unsupported GNU version",
    "unsupported_arch": r"Unsupported gpu architecture 'compute_\d|Value '(?:sm|compute)_\d+[af]?' is not defined",
    "native_without_gpu": r'is set to "native", but no GPU|compute_No CUDA devices|Cannot find valid GPU for .-arch=native',
    "glibc_clash": r"mathcalls\.h\b[^\n]*exception specif|exception specif[^\n]*mathcalls\.h"
    r"|mathcalls\.h\b[^\n]*\n(?:[^\n]*\n){0,4}?[^\n]*exception specif",
    "compiler_killed_oom": r"killed signal terminated program|died due to signal 9|internal compiler error: Killed|^Killed$"
    r"|\*\*\* \[[^\n]*\] Killed"
    r"|terminated with signal 9|out of memory allocating|LLVM ERROR: out of memory|\bstd::bad_alloc"
    r"|Cannot allocate memory|Out of memory: Killed process",
    "disk_full": r"No space left on device|Disk quota exceeded|kein Speicherplatz mehr",
    "cmake_too_old": r"CMake \d[\d.]* or higher is required",
    "missing_curl_old_pin": r"Could NOT find CURL|CURL not found|set -DLLAMA_CURL=OFF|curl/curl\.h: No such file",
    "fatal_option": r"CMake Error[^\n]*\n(?:[ \t]*\n)?\s+\w+ is deprecated",
    "driver_stub_link": r"undefined (?:reference to|symbol:?) ?[`'‘\"]?(?-i:cu[A-Z])\w+|cannot find -lcuda\b"
    r"|libcuda\.so(?:\.1)?,? needed by"
    r"|CUDA::cuda_driver\b[^\n]*(?:not found|\n+[^\n]*target was not found)",
    "network_fetch_failed": r"could not resolve (?:host|proxy)|unable to resolve host|failed to connect to|unable to access '"
    r"|connection (?:timed out|refused|reset)|Temporary failure (?:in name resolution|resolving)|network is unreachable"
    r"|RPC failed|early EOF|gnutls_handshake"
    r"|SSL certificate problem|requested URL returned error|unexpected disconnect|Failed to fetch http|Operation timed out",
    "ninja_missing": r'unable to find a build program corresponding to "Ninja"|ninja: (?:command )?not found',
}
_COMPILER = re.compile(r"CUDA compiler identification is NVIDIA ([\d.]+)|release \d+\.\d+, V([\d.]+)")
_TOOLKIT = re.compile(r"(?:Found CUDAToolkit[^\n]*found version \"([\d.]+)|/usr/local/cuda-([\d.]+)/bin/nvcc)")
_BUILT = re.compile(r"Built target (?:llama-)?server(?![\w-])|^-- Installing: \S*/llama-server$", re.M)
_LINKED = re.compile(
    r"^\[\d+/\d+\] Linking CXX executable \S*bin/(?:llama-)?server(?![\w-])", re.M
)  # ninja's way to say the same
_ERROR = re.compile(
    r"(?:^|[\s:)\]])(?:fatal )?error\s*: |\bfatal\s*: |^CMake Error|undefined reference|cannot find -l"
    r"|multiple definition|command not found|^\S+: \d+: \S+: not found$|Segmentation fault"
    r"|died due to signal"
    r"|relocation truncated|No such file or directory|Permission denied"
)
_CONSEQUENCE = re.compile(
    r"ld returned|\*\*\* \[|subcommand failed|^FAILED: |Waiting for unfinished|compilation terminated|warning:"
)


def read(data: bytes | str) -> Reading:
    """Read a log, or the lines of it that matter. Nothing is found in one that was cut before anything was said."""
    text = re.sub(r"^.*\bPATH=.*$", "", plain(data), flags=re.M)  # that a folder is on the path is not yet its use
    text = re.sub(r"^(.{4000}).+$", r"\1", text, flags=re.M)  # patterns would take minutes for a line of a megabyte
    built = _built(text)
    found = {name for name, pattern in _WARNINGS.items() if re.search(pattern, text, re.I | re.M)}
    causes = {name for name, pattern in _CAUSES.items() if re.search(pattern, text[built:], re.I | re.M)}
    if re.search(_CAUSES["native_without_gpu"], text, re.I):
        causes.add("native_without_gpu")
    if _compiler(text).startswith("13.2"):
        found.add("cuda_13_2")
    if "windows_path_leak" in found:
        causes.discard("nvcc_not_found")  # the one of Windows is what was found
    if built:
        return Reading(frozenset(found | causes | {"ok"}), None)
    explained = causes or "windows_path_leak" in found
    first = None if explained else _first_error(text)
    return Reading(frozenset(found | causes | ({"other_error"} if first else set())), first)


def _built(text: str) -> int:
    """Where the text goes on after llama-server was made; 0 when it wasn't."""
    if m := [*_BUILT.finditer(text)]:
        return m[-1].end()
    linked = [*_LINKED.finditer(text)]
    if linked and not re.search(r"^FAILED: |error: ld returned|build stopped", text[linked[-1].end() :], re.M):
        return linked[-1].end()
    return 0


def _compiler(text: str) -> str:
    """Version of the CUDA compiler; what the toolkit says where the compiler doesn't."""
    m = _COMPILER.search(text) or _TOOLKIT.search(text)
    return (m[1] or m[2]) if m else ""


def _first_error(text: str) -> str | None:
    lines = [line.strip() for line in text.split("\n")]
    decisive = [line for line in lines if _ERROR.search(line) and not _CONSEQUENCE.search(line)]
    stopped = [line for line in lines if re.search(r"\*\*\* |build stopped|Error \d+$", line)]
    return next(iter(decisive or stopped), None)
