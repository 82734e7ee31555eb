"""Logs of failed builds as they were reported: the line that names the cause is among those that are shown."""

from pathlib import Path

import pytest

from wsllama.domain.examine import build_log
from wsllama.domain.findings import CATALOGUE
from wsllama.host.follow import Meter, lines_that_matter

LOGS = Path(__file__).parents[1] / "data" / "fixtures" / "build-log"

CAUSES = {
    "cc1plus-killed.log": "fatal error: Killed signal terminated program cc1plus",
    "clone-no-dns.log": "Could not resolve host: github.com",
    "cmake-too-old.log": "CMake 3.18 or higher is required.  You are running version 3.16.3",
    "curl-required-by-old-pin.log": "to disable this feature, set -DLLAMA_CURL=OFF",
    "disk-full-ar.log": "libggml-cuda.a: No space left on device",
    "distro-nvcc-12-0-too-old.log": "nvcc fatal   : Unsupported gpu architecture 'compute_120a'",
    "fatal-llama-cublas-2.log": "LLAMA_CUBLAS is deprecated, use GGML_CUDA instead",
    "gcc-too-new-short.log": "gcc versions later than 12 are not supported!",
    "glibc-cospi-12-9.log": "exception specification is incompatible",
    "link-cumem-undefined.log": "undefined reference to `cuMemCreate'",
    "native-no-gpu-cmake.log": 'CUDA_ARCHITECTURES is set to "native", but no GPU was detected.',
    "ninja-missing.log": 'unable to find a build program corresponding to "Ninja"',
    "nvcc-not-found.log": "Could not find nvcc, please set CUDAToolkit_ROOT.",
    "ok-then-copy-fails.log": "cp: target '/opt/llama/bin': No such file or directory",
    "other-host-flag-to-nvcc.log": "nvcc fatal   : 'f16c': expected a number",
    "windows-nvcc-from-path.log": "CUDA/v12.8/bin/nvcc.exe",
}


def text(name: str) -> str:
    return (LOGS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_the_cause_is_shown_also_out_of_a_long_log(name: str) -> None:
    noise = "".join(f"[{i:3d}%] Building CXX object x/error-{i}.cpp.o\n" for i in range(100))
    warnings = "x.cpp:1:2: warning: unused parameter ‘error’ [-Wunused-parameter]\n" * 40
    shown = lines_that_matter(noise + warnings + text(name))
    assert CAUSES[name] in "\n".join(shown)
    assert len(shown) <= 12


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_the_lines_that_are_shown_name_the_same_causes(name: str) -> None:
    whole, shown = build_log.read(text(name)), build_log.read("\n".join(lines_that_matter(text(name))))
    causes = {entry for entry in whole.findings if CATALOGUE["build-log", entry].severity == "error"}
    assert causes == {entry for entry in shown.findings if CATALOGUE["build-log", entry].severity == "error"}
    assert shown.first_error == whole.first_error


def test_consequences_are_left_out_and_long_lines_cut() -> None:
    log = (
        "FAILED: a.o \n/usr/bin/c++ "
        + "-I/x " * 200
        + "-c a.cpp\na.cpp:1:1: error: "
        + "x" * 999
        + "\ngmake[2]: *** [a.o] Error 1\nninja: build stopped: subcommand failed.\n"
    )
    shown = lines_that_matter(log)
    assert shown[0] == "FAILED: a.o"
    assert shown[1].startswith("a.cpp:1:1: error:")
    assert len(shown[1]) == 300
    assert len(shown) == 2


def test_without_any_sign_the_last_lines_are_shown() -> None:
    assert lines_that_matter("".join(f"line {i}\n\n" for i in range(30)), limit=3) == ["line 27", "line 28", "line 29"]
    assert lines_that_matter("") == []


def test_the_first_errors_are_kept_when_there_are_too_many() -> None:
    shown = lines_that_matter("".join(f"a.cpp:{i}:1: error: no\n" for i in range(99)), limit=4)
    assert shown == [f"a.cpp:{i}:1: error: no" for i in range(4)]


def test_progress_is_shown_every_few_percent_with_the_time() -> None:
    meter = Meter(started=1000.0)
    lines = ["==> configure", *(f"[{i:3d}%] Building {i}" for i in range(101)), "noise", "==> install"]
    shown = [s for i, line in enumerate(lines) if (s := meter.shown(line, 1000.0 + i))]
    assert shown[0] == "==> configure (0:00)"
    assert shown[1:4] == ["[  0%] 0:01", "[  5%] 0:06", "[ 10%] 0:11"]
    assert shown[-2:] == ["[100%] 1:41", "==> install (1:43)"]
    assert len(shown) == 23
    assert meter.shown("[  0%] the next stage counts anew", 1200.0) == "[  0%] 3:20"
