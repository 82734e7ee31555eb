"""Field cases, section F: toolkit, compiler and options of the build. The rows: tests/data/field_cases.json."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path

import pytest

from tests.operations.fake_hosts import settings
from tests.operations.test_op_cuda import RTX_4090, seen
from tests.unit.test_probe_cuda import NVCC, program, toolkit
from wsllama.domain import build
from wsllama.domain.toolkit import CAPABILITIES, GLIBC, PROVIDERS, RELEASES, Choice, choose, compiler_conflicts
from wsllama.host import build as build_program
from wsllama.host import probe
from wsllama.operations import cuda, llama_cpp
from wsllama.operations.base import Refused

COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"


@functools.cache
def every_choice() -> list[Choice]:
    """For each distro, GPU, toolkit and provider that go together."""
    every = itertools.product(GLIBC, " ".join(CAPABILITIES).split(), (None, *RELEASES), PROVIDERS)
    found = [choose(d, "610.74", [c], cuda=r, provider=p, allow_miscompiling=True) for d, c, r, p in every]
    return [choice for choice in found if choice.ok]


@functools.cache
def every_option() -> list[dict[str, str]]:
    """What cmake is given in each of these, and for the processor alone."""
    cpu = [build.cmake_options(COMMIT, 11434, native=n, portable=p) for n, p in itertools.product([True, False], repeat=2)]
    chosen = [build.cuda_options(choice.cmake) for choice in every_choice()]
    return [*cpu, *(build.cmake_options(COMMIT, 11434, backend="cuda", cuda=cuda) for cuda in chosen)]


@pytest.mark.parametrize("name", ["cuda-12.8", "cuda-12.8.1"])
def test_62_the_nvcc_of_the_distribution_is_stepped_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Both are there, the old one first in PATH: cmake gets the path of the other one."""
    old = program(tmp_path / "usr/bin/nvcc", "echo 'Cuda compilation tools, release 11.5, V11.5.119'")
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    new = toolkit(tmp_path / "local" / name, NVCC.replace("13.0", "12.8"))
    local = {f"/usr/local/{new.name}": found for found in probe.toolkits([str(new.parent)])[str(new.parent)].values()}
    kit = cuda.toolkit_of(seen(local=local), settings(platform="wsl", cuda={"version": "12.8"}))
    assert (kit.provider, kit.root) == ("present", f"/usr/local/{name}")
    assert kit.cmake["CMAKE_CUDA_COMPILER"] == f"/usr/local/{name}/bin/nvcc"
    argument = {"options": {}, "toolkit": {"root": kit.root, "release": kit.release}}
    assert build_program.options_here(argument, "/w/src", "/w/out")["CMAKE_CUDA_COMPILER"] == f"/usr/local/{name}/bin/nvcc"


@pytest.mark.parametrize("said", ["No CUDA devices found.", "No devices were found", "[N/A]", ""])
def test_64_what_is_no_number_never_reaches_cmake(said: str) -> None:
    smi = {**RTX_4090, "text": RTX_4090["text"].replace(" 8.9,", f" {said},")}
    with pytest.raises(Refused, match=r"does not tell this host's compute capability .*: set cuda\.compute"):
        cuda.toolkit_of(seen(smi=smi), settings(platform="wsl"))
    (sentence, *_) = choose("ubuntu-24.04", "581.42", [said]).refusals
    assert sentence == f"{said!r} is no compute capability that CUDA compiles for, as 8.9 is"
    with pytest.raises(ValueError, match="needs its architectures by number"):
        build.cuda_options({"CMAKE_CUDA_ARCHITECTURES": "native"})


@pytest.mark.parametrize("gcc", [15, 14])
def test_65_another_compiler_does_not_cure_glibc(gcc: int) -> None:
    assert "CUDA 12.8 doesn't compile against glibc 2.43, whatever the compiler" in compiler_conflicts("12.8", gcc, (2, 43))[-1]
    assert compiler_conflicts("13.3", gcc, (2, 43)) == []


def test_65_ubuntu_26_04_is_refused_with_what_works() -> None:
    choice = choose("ubuntu-26.04", "610.74", ["8.9"], "12.8")
    assert not choice.ok
    assert choice.nearest == {"distro": "ubuntu-26.04", "driver": "610.74", "cuda": "13.3", "provider": "apt"}


def test_67_a_clash_with_the_headers_of_glibc() -> None:
    (sentence,) = compiler_conflicts("12.9", 14, (2, 41))
    assert sentence.startswith("CUDA 12.9 doesn't compile against glibc 2.41, whatever the compiler")
    assert compiler_conflicts("12.9", 14, (2, 40)) == []
    assert not choose("debian-13", "581.42", ["8.9"], "12.9").ok


def test_68_a_toolkit_that_miscompiles() -> None:
    refused = choose("ubuntu-24.04", "610.74", ["8.9"], "13.2")
    assert not refused.ok
    assert refused.refusals[0].startswith("CUDA 13.2 miscompiles llama.cpp's kernels for quantised models")
    allowed = choose("ubuntu-24.04", "610.74", ["8.9"], "13.2", allow_miscompiling=True)
    assert allowed.ok
    assert allowed.cmake["CMAKE_CUDA_FLAGS"] == "-Xcicc -O1"


@pytest.mark.parametrize(("number", "curl"), [(5200, "OFF"), (7700, "OFF"), (7735, "OFF"), (7736, None), (11434, None)])
def test_70_an_old_source_is_told_to_do_without_curl(number: int, curl: str | None) -> None:
    assert choose("ubuntu-24.04", "581.42", ["8.9"], build_number=number).cmake.get("LLAMA_CURL") == curl


def test_70_the_pinned_source_is_not() -> None:
    assert llama_cpp.pin().build_number >= 7736
    assert [options for options in every_option() if "LLAMA_CURL" in options] == []


@pytest.mark.parametrize("distro", list(GLIBC))
def test_71_openssl_is_among_the_packages(distro: str) -> None:
    name, _, release = distro.partition("-")
    assert "libssl-dev" in build.packages(name, release).build
    assert "libssl-dev" in choose(distro, "610.74", ["8.9"]).build_packages


def test_71_a_build_without_it_is_no_build(tmp_path: Path) -> None:
    cache, options = tmp_path / "CMakeCache.txt", {"LLAMA_OPENSSL": "ON"}
    assert build.cmake_options(COMMIT, 11434)["LLAMA_OPENSSL"] == "ON"
    cache.write_text("LLAMA_OPENSSL:BOOL=ON\nOPENSSL_SSL_LIBRARY:FILEPATH=OPENSSL_SSL_LIBRARY-NOTFOUND\n")
    with pytest.raises(build_program.BuildError, match="could not speak HTTPS; install libssl-dev"):
        build_program.check_cache(str(cache), options)
    cache.write_text("LLAMA_OPENSSL:BOOL=ON\nOPENSSL_SSL_LIBRARY:FILEPATH=/usr/lib/x86_64-linux-gnu/libssl.so\n")
    build_program.check_cache(str(cache), options)


def test_73_architectures_are_numbers() -> None:
    """On each distro, so also on Ubuntu 22.04, whose CMake does not know another word."""
    assert choose("ubuntu-22.04", "610.74", ["8.9"]).cmake["CMAKE_CUDA_ARCHITECTURES"] == "89"
    given = [options["CMAKE_CUDA_ARCHITECTURES"] for options in every_option() if options["GGML_CUDA"] == "ON"]
    assert len(given) == len(every_choice())
    assert [value for value in given if not re.fullmatch(r"\d{2,3}a?", value)] == []


def test_74_obsolete_options_are_never_given() -> None:
    names = {name for options in every_option() for name in options}
    assert "GGML_CUDA" in names
    assert names & {"LLAMA_CUDA", "LLAMA_CUBLAS", "GGML_CUBLAS", "LLAMA_NATIVE", "LLAMA_CCACHE"} == set()


@pytest.mark.parametrize(
    ("devices", "seen_by_it"),
    [("  CUDA0: NVIDIA GeForce RTX 4090 (24563 MiB, 22994 MiB free)", True), ("  (none)", False), ("", False)],
)
def test_74_the_gpu_has_to_be_seen_by_what_was_built(tmp_path: Path, devices: str, seen_by_it: bool) -> None:
    """llama-server ends with 0 in each case."""
    program(tmp_path / "bin/llama-server", f'[ "$1" = --list-devices ] && echo "Available devices:\n{devices}"')
    if seen_by_it:
        assert build_program.ask_devices(str(tmp_path), {"require_gpu": True}) == [devices.strip()]
    else:
        with pytest.raises(build_program.BuildError, match="see no GPU and would compute on the CPU"):
            build_program.ask_devices(str(tmp_path), {"require_gpu": True})
