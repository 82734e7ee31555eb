"""What a build of llama.cpp is: options, packages, jobs, and the id that stands for all that determines its bytes."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

Backend = Literal["cpu", "cuda"]

TARGETS = ("llama-server", "llama-fit-params", "llama-bench", "llama-gguf-split")

BYTES_PER_JOB = 1024**3
"""Memory for one compiler of the CPU build, in bytes; the largest was seen to take 0.7 GB."""

WORK_BYTES = 1_500_000_000
"""Room that a CPU build takes while it runs: source, objects, the compiler's temporary files, a cache that fills up."""

RESULT_BYTES = 100_000_000
"""Room that an installed CPU build takes, with space to spare."""

BYTES_PER_CUDA_JOB = 2_500_000_000
"""Memory for one nvcc, in bytes: those of the flash attention kernels were seen to take 2 to 3 GB."""

CUDA_WORK_BYTES = 4_000_000_000
"""Room that a CUDA build takes while it runs, its result included; the toolkit is not in it."""

CUDA_RESULT_BYTES = 1_000_000_000
"""Room that an installed CUDA build takes: libcublasLt alone has 0.5 GB."""

SHORT_COMMIT = 9
"""Hex digits of the commit that are stamped into the programs, as the project's own releases print them."""

# Options that speed up or steer a build and leave its bytes alone.
_NOT_BYTES = frozenset(
    {"CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CUDA_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_MAKE_PROGRAM"}
)

_BACKENDS: Mapping[str, Mapping[str, str]] = {
    "cpu": {"GGML_CPU": "ON", "GGML_CUDA": "OFF"},
    "cuda": {
        "GGML_CPU": "ON",
        "GGML_CUDA": "ON",
        "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
    },
}

# One build for machines with different processors: the best CPU backend is loaded at the start. Needs shared libraries.
_PORTABLE = {"GGML_NATIVE": "OFF", "GGML_BACKEND_DL": "ON", "GGML_CPU_ALL_VARIANTS": "ON"}


def cuda_options(
    chosen: Mapping[str, str],
    *,
    architectures: Sequence[str] = (),
    flags: Sequence[str] = (),
    flash_attention: bool = True,
    without_driver: bool = False,
) -> dict[str, str]:
    """What `cmake_options` takes as `cuda`: what was chosen for a host, with what the settings say otherwise.

    chosen: `Choice.cmake` of wsllama/domain/toolkit.py. architectures: others than chosen, like "89-virtual"; never
    "native", which asks a GPU. flags: more words for nvcc. flash_attention: its kernels are a third of the work.
    without_driver: the programs have to start where libcuda is missing.
    Raises ValueError, in one sentence, without an architecture or for "native".
    Rules: ggml/src/ggml-cuda/CMakeLists.txt of the pinned commit.
    """
    numbers = ";".join(architectures) or chosen.get("CMAKE_CUDA_ARCHITECTURES", "")
    if not numbers or "native" in numbers:
        raise ValueError("a CUDA build needs its architectures by number, like 89; set cuda.compute or cuda.architectures")
    return {
        "GGML_CUDA_NO_VMM": "OFF",
        **chosen,
        "CMAKE_CUDA_ARCHITECTURES": numbers,
        "CMAKE_CUDA_FLAGS": " ".join([*chosen.get("CMAKE_CUDA_FLAGS", "").split(), *flags]),
        **({} if flash_attention else {"GGML_CUDA_FA": "OFF"}),
        **({"GGML_CUDA_NO_VMM": "ON"} if without_driver else {}),
    }


def cmake_options(
    commit: str,
    build_number: int,
    *,
    backend: Backend = "cpu",
    native: bool = True,
    portable: bool = False,
    cuda: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Cache entries for the configure step of a build.

    commit: full hash of the source; its first digits are what `llama-server --version` names.
    build_number: count of commits up to it; a shallow clone or an archive can't know it.
    backend: what computes; a key of the table of backends above.
    native: use every instruction of the CPU that compiles. The result may not run on another CPU.
    portable: have code for every kind of CPU and choose at the start, whatever `native` says.
    cuda: of `cuda_options`, for the backend cuda.

    Nothing in it names a folder of ours: the program that builds adds those of the toolkit, and maps its own away.
    Rules: llama.cpp's CMakeLists.txt and ggml/CMakeLists.txt of the pinned commit.
    """
    return {
        "CMAKE_BUILD_TYPE": "Release",
        "BUILD_SHARED_LIBS": "ON",
        # The result is moved into place by a rename, so libraries are found beside the programs, wherever that is.
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        "CMAKE_INSTALL_RPATH": "$ORIGIN/../lib",
        "CMAKE_C_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "GGML_CCACHE": "OFF",  # it would put a second ccache before the launcher
        "GGML_NATIVE": "ON" if native else "OFF",
        # Both ask git for the commit: it isn't there to be asked, and the one would overwrite what is stamped below.
        "GIT_EXE": "OFF",
        "GIT_EXECUTABLE": "/bin/false",
        "LLAMA_BUILD_COMMIT": commit[:SHORT_COMMIT],
        "LLAMA_BUILD_NUMBER": str(build_number),
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_APP": "OFF",
        "LLAMA_BUILD_UI": "OFF",
        "LLAMA_USE_PREBUILT_UI": "OFF",  # on by default, it downloads an unpinned web page while compiling
        "LLAMA_OPENSSL": "ON",
        **_BACKENDS[backend],
        **(cuda or {}),
        **(_PORTABLE if portable else {}),
    }


def jobs(cores: int, mem_available_bytes: int, bytes_per_job: int = BYTES_PER_JOB) -> int:
    """Compilers to run at once: bounded by cores and by memory (both of the host), at least one."""
    return max(1, min(cores, mem_available_bytes // bytes_per_job))


class Packages(NamedTuple):
    build: tuple[str, ...]  # to compile
    run: tuple[str, ...]  # what the result needs without them
    toolchain: tuple[str, ...]  # those of the former whose versions determine the bytes


_BUILD_PACKAGES = ("build-essential", "ccache", "cmake", "git", "libssl-dev", "ninja-build", "pkg-config")
_TOOLCHAIN = ("binutils", "cmake", "libc6-dev", "libssl-dev")

# Library of OpenSSL 3 (the time_t transition renamed it) and version of the compiler that build-essential leads to.
_RELEASES = {
    ("debian", "12"): ("libssl3", "12"),
    ("debian", "13"): ("libssl3t64", "14"),
    ("ubuntu", "22.04"): ("libssl3", "11"),
    ("ubuntu", "24.04"): ("libssl3t64", "13"),
    ("ubuntu", "26.04"): ("libssl3t64", "15"),
}


def packages(distro: str, release: str) -> Packages:
    """Names of the packages for a build of the CPU backend, and for running it.

    distro, release: `ID` and `VERSION_ID` of /etc/os-release.
    Raises ValueError, in one sentence, for a release that isn't supported.
    """
    if (distro, release) not in _RELEASES:
        known = ", ".join(f"{d.capitalize()} {r}" for d, r in _RELEASES)
        raise ValueError(f"{distro} {release} is not supported for building llama.cpp; use one of {known}")
    openssl, gcc = _RELEASES[distro, release]
    run = ("ca-certificates", "curl", "libgcc-s1", "libgomp1", openssl, "libstdc++6")
    return Packages(_BUILD_PACKAGES, run, (*_TOOLCHAIN, f"g++-{gcc}", f"gcc-{gcc}"))


def every_package() -> list[str]:
    """Each name that `packages` gives for some release: what a probe asks about before it knows the release."""
    return sorted({name for known in _RELEASES for kind in packages(*known) for name in kind})


def inputs(
    *,
    commit: str,
    options: Mapping[str, str],
    targets: Sequence[str],
    versions: Mapping[str, str],
    architecture: str,
    distro: str,
    release: str,
    cpu_flags: Iterable[str],
    toolkit: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Everything that determines the bytes of a build, as JSON-able data.

    The kind of source is not in it: a commit is the same tree from wherever it came, and all kinds are checked for it.
    options: of `cmake_options`. versions: of `Packages.toolchain`, as dpkg prints them. architecture: of dpkg.
    cpu_flags: of /proc/cpuinfo, in any order; they count only for a native build.
    toolkit: of CUDA: package -> exact version, and for a wheel its sha256 as well.
    """
    native = options.get("GGML_NATIVE") == "ON"
    of_cuda = {"toolkit": dict(sorted(toolkit.items()))} if toolkit else {}
    return {
        "commit": commit,
        "options": {k: v for k, v in sorted(options.items()) if k not in _NOT_BYTES},
        "targets": sorted(targets),
        "versions": dict(sorted(versions.items())),
        "architecture": architecture,
        "distro": distro,
        "release": release,
        "cpu_flags": sorted(set(cpu_flags)) if native else [],
        **of_cuda,
    }


def build_id(inputs: Mapping[str, object]) -> str:
    """16 hex digits that name the build of `inputs`: the start of the sha256 of their canonical JSON."""
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def git_blob(data: bytes) -> str:
    """Git's name of a file with these bytes: 40 hex digits."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def git_tree(files: Mapping[str, tuple[str, str]]) -> str:
    """Git's name of a folder: the same 40 hex digits as `git rev-parse COMMIT^{tree}` for the same files.

    files: path with `/` -> (mode, name of the blob); modes are Git's "100644", "100755" and "120000" (a link).
    Rule: Git's object format; entries sorted by name, a folder as if its name ended in `/`.
    """
    folders: dict[str, dict[str, tuple[str, str]]] = {}
    entries: list[tuple[str, str, str]] = []
    for path, (mode, blob) in files.items():
        head, slash, rest = path.partition("/")
        if slash:
            folders.setdefault(head, {})[rest] = (mode, blob)
        else:
            entries.append((head, mode, blob))
    entries += [(name, "40000", git_tree(inside)) for name, inside in folders.items()]
    entries.sort(key=lambda e: e[0].encode() + (b"/" if e[1] == "40000" else b""))
    body = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(digest) for name, mode, digest in entries)
    return hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
