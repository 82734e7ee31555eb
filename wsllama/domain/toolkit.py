"""Which CUDA toolkit compiles llama.cpp for a host, with what around it, or why none does. Pure.

Every rule stands in a table or in a function of its own, with its source. `choose` tries releases against all of them, so that
a refusal can name each conflict and the nearest combination that has none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from wsllama.domain import build

Provider = Literal["apt", "wheels"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)
Suffix = Literal["", "-real", "-virtual"]

# Of each release's libc6; its compiler is in `build`. Debian's and Ubuntu's package lists.
GLIBC = {
    "ubuntu-22.04": (2, 35),
    "ubuntu-24.04": (2, 39),
    "ubuntu-26.04": (2, 43),
    "debian-12": (2, 36),
    "debian-13": (2, 41),
}


class Release(NamedTuple):
    max_gcc: int  # of the toolkit's own crt/host_config.h, which stops at a newer one
    driver: tuple[int, int] | None  # Windows column of NVIDIA's release notes; from 13.1 on the branch that it came with


RELEASES = {
    "12.4": Release(13, (551, 61)),
    "12.5": Release(13, (555, 85)),
    "12.6": Release(13, (560, 76)),
    "12.8": Release(14, (570, 65)),
    "12.9": Release(14, (576, 2)),
    "13.0": Release(15, (580, 0)),
    "13.1": Release(15, (590, 0)),
    "13.2": Release(15, (590, 0)),
    "13.3": Release(15, (610, 0)),
    "13.4": Release(16, (610, 0)),
    "13.5": Release(16, (610, 0)),
}

# What is taken when nothing is asked for: 13.0 was compiled by both providers and needs no newer driver than 580; 12.8 is the
# first that knows RTX 50 and runs on any driver since 528.33; 13.3 is the first for Ubuntu 26.04. 13.2 is never taken.
PREFERRED = ("13.0", "12.8", "12.9", "13.3", "13.1", "13.4", "13.5", "12.6", "12.5", "12.4")

# cicc -O2 of 13.2 miscompiles kernels of quantised types: the build is fine and the answers are gibberish (llama.cpp issues
# 21255 and 21371). 13.3 is right again; with -O1 13.2 is right too.
MISCOMPILES = {"13.2": "-Xcicc -O1"}

# Oldest driver for each major release, on Windows: minor releases are compatible (NVIDIA's CUDA compatibility guide).
DRIVER_FLOOR = {12: (528, 33), 13: (580, 0)}

# First toolkit that compiles for a capability (ggml/src/ggml-cuda/CMakeLists.txt:24-34 at the pin; release notes for 10.x, 11.0),
# and the oldest capability that each major release still compiles for (the same file, line 47).
CAPABILITIES = {
    "5.0 5.2 5.3 6.0 6.1 6.2 7.0 7.2 7.5 8.0 8.6 8.7 8.9 9.0": "12.4",
    "10.0 12.0": "12.8",
    "10.3 12.1": "12.9",
    "11.0": "13.0",
}
OLDEST_CAPABILITY = {12: (5, 0), 13: (7, 5)}

# NVIDIA's packages on the Python index that make up a compiler; their -cu12 kin carry no nvcc.
WHEELS = ("nvidia-cublas", "nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-nvvm")

# Compiler, runtime and cuBLAS: gigabytes less than cuda-toolkit-X-Y, and no driver is among what they depend on. Of a release
# without pins; those of one that has some name what these depend on as well.
APT = ("cuda-nvcc-{}", "cuda-cudart-dev-{}", "libcublas-dev-{}")

FA_QUANTS = "q4_0-q4_0;q8_0-q8_0;f16-f16;bf16-bf16"
"""Pairs of K and V types that flash attention is compiled for; llama.cpp's default, named so that a build can't drift."""

NEAREST = "nearest that works:"
"""How the last sentence of a refusal begins, when there is a combination to name."""

_WITHOUT_CURL = 7736
"""llama.cpp's build number from which LLAMA_CURL is no option any more; before it, libcurl's headers were asked for."""


@dataclass(frozen=True)
class Choice:
    """What to install and how to configure; with ok False only `refusals`, `warnings` and `nearest` mean something."""

    ok: bool
    cuda: str | None = None  # major.minor
    provider: Provider | None = None
    packages: tuple[str, ...] = ()  # of the toolkit: of apt, or of the Python index for wheels
    build_packages: tuple[str, ...] = ()  # of the distribution, besides
    host_compiler: str | None = None
    architectures: tuple[str, ...] = ()
    cmake: dict[str, str] = field(default_factory=dict)
    root: str | None = None  # the toolkit's folder on the host; None for wheels, which are laid out where the caller says
    reasons: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()  # every conflict, then the nearest combination that works
    warnings: tuple[str, ...] = ()
    nearest: dict[str, str] | None = None  # of distro, driver, cuda, provider: what to change to


class _Host(NamedTuple):
    distro: str
    driver: tuple[int, int] | None  # None: not known
    compute: tuple[str, ...]  # sorted


def choose(
    distro: str,
    driver: str | None,
    compute: Sequence[str],
    cuda: str | None = None,
    provider: str | None = None,
    *,
    allow_miscompiling: bool = False,
    suffix: Suffix = "",
    build_number: int | None = None,
    pinned: Mapping[str, Collection[str]] | None = None,
) -> Choice:
    """Choose a toolkit, or say why there is none.

    distro: ID-VERSION_ID of /etc/os-release. driver: Windows' number, NNN.NN, as nvidia-smi prints it in WSL, or the long form
    of the device manager; None where it isn't known, for example on a machine that only builds. compute: capabilities of all
    GPUs that the build is for, "8.9". cuda: major.minor that is asked for. provider: apt unless wheels are asked for.
    allow_miscompiling: let 13.2 pass, with less optimisation. suffix: of each architecture. build_number: of the llama.cpp pin.
    pinned: release -> packages of apt that a lock has exact versions of.
    """
    number = _driver(driver) if driver is not None else None
    wanted = ".".join(cuda.split(".")[:2]) if cuda else None
    if wrong := _wrong_input(distro, driver, number, compute, wanted, provider):
        near = _nearest(_Host(distro, number, tuple(compute)), wanted, "apt") if len(wrong) == 1 and wrong[0].near else None
        return _refusal([w.sentence for w in wrong], near, _Host(distro, number, ()))
    host = _Host(distro, number, tuple(sorted(set(compute), key=_version)))
    kind: Provider = "wheels" if provider == "wheels" else "apt"
    tried = [wanted] if wanted else [c for c in PREFERRED if kind == "apt" or _version(c)[0] >= 13]
    found = next((c for c in tried if not conflicts(host, c, kind, allow_miscompiling)), None)
    if found is None:
        best = tried if wanted else [_fewest(host, [c for c in PREFERRED if c.startswith(m)], kind) for m in ("13.", "12.")]
        sentences = [s for c in best for s in conflicts(host, c, kind, allow_miscompiling)]
        return _refusal(sentences, _nearest(host, wanted, kind), host)
    packages = WHEELS if kind == "wheels" else apt_packages(found, pinned or {})
    return _choice(host, found, kind, suffix, build_number, packages, asked=wanted is not None)


def apt_packages(cuda: str, pinned: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """The packages of a release: those that are pinned, else by their names. pinned: as for `choose`."""
    return tuple(pinned.get(cuda) or (name.format(cuda.replace(".", "-")) for name in APT))


def architecture(capability: str, suffix: Suffix = "") -> str:
    """CMake's name for a capability, "8.9" to "89".

    Without a suffix both machine code and PTX are made, so that a later GPU of the family runs too. 12.x becomes 12Xa as
    llama.cpp would rewrite it: FP4 needs it (ggml/src/ggml-cuda/CMakeLists.txt:98-111 at the pin).
    """
    number = capability.replace(".", "")
    return number + ("a" if capability.startswith("12.") else "") + suffix


def covers(architectures: Iterable[str], capability: str) -> bool:
    """Whether a build for these architectures runs on a GPU of this capability without being compiled again.

    Machine code runs on the same major number and an equal or newer minor one; 12Xa on nothing else (NVIDIA's nvcc manual). PTX
    could be compiled by the driver, but takes minutes at every first start and needs a driver as new as the toolkit: not counted.
    """
    major, minor = _version(capability)
    for name in architectures:
        m = re.match(r"(\d+)(\d)(a?)", name)
        if m and int(m[1]) == major and (int(m[2]) == minor if m[3] else int(m[2]) <= minor):
            return True
    return False


def compiler_conflicts(cuda: str, gcc: int, glibc: tuple[int, int]) -> list[str]:
    """Why nvcc of this release doesn't compile with that compiler and C library; an empty list when it does."""
    out = []
    if gcc > RELEASES[cuda].max_gcc:
        out.append(f"CUDA {cuda} takes GCC {RELEASES[cuda].max_gcc} at most, and this is GCC {gcc} (host_config.h)")
    # Its math_functions.h declares functions that newer C libraries declare with noexcept: cospi and sinpi since 2.41, rsqrt
    # since 2.42. No other compiler cures that.
    first_clash = (2, 41) if _version(cuda) <= (12, 9) else (2, 42) if _version(cuda) <= (13, 1) else None
    if first_clash and glibc >= first_clash:
        out.append(
            f"CUDA {cuda} doesn't compile against glibc {_dotted(glibc)}, whatever the compiler:"
            f" its math_functions.h clashes with glibc {_dotted(first_clash)} and newer"
        )
    return out


def conflicts(host: _Host, cuda: str, provider: Provider, allow_miscompiling: bool = False) -> list[str]:
    """Every rule that this combination breaks, one sentence each."""
    major = _version(cuda)[0]
    out = compiler_conflicts(cuda, _gcc(host.distro), GLIBC[host.distro])
    if cuda in MISCOMPILES and not allow_miscompiling:
        out.append(f"CUDA {cuda} miscompiles llama.cpp's kernels for quantised models: the build works and answers gibberish")
    if host.driver and host.driver < DRIVER_FLOOR[major]:
        floor = f"{DRIVER_FLOOR[13][0]}" if major == 13 else _number(DRIVER_FLOOR[major])
        hint = "; below that use provider apt with CUDA 12.8" if provider == "wheels" else ""
        out.append(f"CUDA {cuda} needs Windows driver {floor} or newer, and this is {_number(host.driver)}{hint}")
    for capability in host.compute:
        oldest, first = OLDEST_CAPABILITY[major], _first_toolkit(capability)
        if _version(capability) < oldest:
            hint = "; for older GPUs use provider apt with CUDA 12.8" if provider == "wheels" else ""
            out.append(f"CUDA {cuda} compiles for compute capability {_dotted(oldest)} and newer, and this is {capability}{hint}")
        elif _version(cuda) < _version(first):
            out.append(f"compute capability {capability} needs CUDA {first} or newer, and this is {cuda}")
    if provider == "wheels" and major < 13:
        out.append(f"wheels hold a compiler from CUDA 13.0 on, and this is {cuda}: use provider apt")
    return out


def _choice(
    host: _Host, cuda: str, provider: Provider, suffix: Suffix, build_number: int | None, packages: tuple[str, ...], asked: bool
) -> Choice:
    gcc = _gcc(host.distro)
    architectures = tuple(architecture(c, suffix) for c in host.compute)
    root = f"/usr/local/cuda-{cuda}" if provider == "apt" else None
    cmake = {
        "GGML_CUDA": "ON",
        "GGML_CUDA_FA": "ON",
        "GGML_CUDA_FA_QUANTS": FA_QUANTS,
        "GGML_CUDA_GRAPHS": "ON",
        "GGML_CUDA_NCCL": "OFF",  # on by default, it links whatever NCCL the machine happens to have
        "CMAKE_CUDA_ARCHITECTURES": ";".join(architectures),
        "CMAKE_CUDA_HOST_COMPILER": f"/usr/bin/g++-{gcc}",
    }
    if root:
        cmake["CMAKE_CUDA_COMPILER"] = f"{root}/bin/nvcc"  # a distribution's own nvcc may stand first on PATH
    else:
        cmake["GGML_CUDA_NO_VMM"] = "ON"  # wheels have no stub of libcuda to link with
    if cuda in MISCOMPILES:
        cmake["CMAKE_CUDA_FLAGS"] = MISCOMPILES[cuda]
    if build_number is not None and build_number < _WITHOUT_CURL:
        cmake["LLAMA_CURL"] = "OFF"
    return Choice(
        ok=True,
        cuda=cuda,
        provider=provider,
        packages=packages,
        build_packages=tuple(sorted({*build.packages(*_split(host.distro)).build, f"g++-{gcc}"})),
        host_compiler=f"g++-{gcc}",
        architectures=architectures,
        cmake=cmake,
        root=root,
        reasons=tuple(_reasons(host, cuda, provider, asked)),
        warnings=tuple(_warnings(host, cuda, provider)),
    )


def _reasons(host: _Host, cuda: str, provider: Provider, asked: bool) -> Iterator[str]:
    driver = f"Windows driver {_number(host.driver)}" if host.driver else "a driver that isn't known"
    why = "asked for, and" if asked else "the first of " + ", ".join(PREFERRED) + " that"
    yield f"CUDA {cuda}: {why} fits {host.distro}, {driver} and compute capability {', '.join(host.compute)}"
    release = RELEASES[cuda]
    yield f"g++-{_gcc(host.distro)}: {host.distro}'s own, and CUDA {cuda} takes GCC up to {release.max_gcc} (host_config.h)"
    yield f"glibc {_dotted(GLIBC[host.distro])}: CUDA {cuda} compiles against it (math_functions.h)"
    if host.driver:
        floor = DRIVER_FLOOR[_version(cuda)[0]]
        yield f"driver {_number(host.driver)}: any CUDA {_version(cuda)[0]}.x runs on {_number(floor)} and newer"
    yield "architectures are named: detecting them takes a GPU while configuring, and a newer CMake than Ubuntu 22.04's"
    if any(c.startswith("12.") for c in host.compute):
        yield "12Xa instead of 12X: llama.cpp's FP4 kernels need it"
    if provider == "apt":
        yield "apt: compiler, runtime and cuBLAS out of NVIDIA's repository for WSL, which has no driver in it"
    else:
        yield "wheels: compiler, runtime and cuBLAS as NVIDIA's packages of the Python index, with sha256 in the lock"


def _warnings(host: _Host, cuda: str, provider: Provider) -> Iterator[str]:
    own = RELEASES[cuda].driver
    if host.driver is None:
        yield "the Windows driver isn't known, so nothing was checked against it"
    elif own and host.driver < own:
        yield (
            f"driver {_number(host.driver)} is older than the one of CUDA {cuda} ({_number(own)}): what is compiled for the GPU"
            " runs, but the driver can't compile PTX of this release"
        )
    if cuda in MISCOMPILES:
        yield f"CUDA {cuda} miscompiles kernels, so they are compiled with {MISCOMPILES[cuda]}, which makes them slower"
    if provider == "apt" and host.distro.startswith("debian"):
        yield "NVIDIA's repository for WSL is made for Ubuntu: on Debian prefer wheels where the driver is 580 or newer"


class _Wrong(NamedTuple):
    sentence: str
    near: bool  # a nearest combination can be looked for


def _wrong_input(
    distro: str, driver: str | None, number: object, compute: Sequence[str], cuda: str | None, provider: str | None
) -> list[_Wrong]:
    out = []
    if distro not in GLIBC:
        out.append(_Wrong(f"{distro} is not supported for CUDA: use one of {', '.join(GLIBC)}", True))
    if driver is not None and number is None:
        out.append(
            _Wrong(
                f"{driver!r} is no Windows driver version, which looks like 581.42:"
                " take the one after Driver Version that nvidia-smi prints in WSL",
                False,
            )
        )
    if not compute:
        out.append(_Wrong("no GPU is named: CUDA needs its compute capability, as in 8.9", False))
    for capability in compute:
        if not _first_toolkit(capability):
            out.append(_Wrong(f"{capability!r} is no compute capability that CUDA compiles for, as 8.9 is", False))
    if cuda and cuda not in RELEASES:
        out.append(
            _Wrong(f"CUDA {cuda} is none of the releases that are known to compile llama.cpp: {', '.join(RELEASES)}", True)
        )
    if provider not in (None, *PROVIDERS):
        out.append(_Wrong(f"provider {provider!r} is unknown: use apt or wheels", True))
    return out


def _refusal(sentences: Iterable[str], near: dict[str, str] | None, host: _Host) -> Choice:
    said = list(dict.fromkeys(sentences))
    if near:
        change = [f"on {near['distro']}"] if near["distro"] != host.distro else []
        floor = _driver(near["driver"]) if near["driver"] else None
        if floor != host.driver:
            change.append(f"with Windows driver {near['driver']} or newer")
        said.append(" ".join([f"{NEAREST} CUDA {near['cuda']} by {near['provider']}", *change]))
    return Choice(ok=False, refusals=tuple(said), nearest=near)


def _nearest(host: _Host, wanted: str | None, provider: Provider) -> dict[str, str] | None:
    """The combination without conflicts that changes least: CUDA or its provider first, then the driver, then the distro."""
    ranked = sorted(RELEASES, key=lambda c: _distance(c, wanted)) if wanted in RELEASES else list(PREFERRED)
    for distro in sorted(GLIBC, key=lambda d: _far(d, host.distro)):
        for driver in (host.driver, *sorted(DRIVER_FLOOR.values())):
            there = _Host(distro, driver, host.compute)
            for cuda in ranked:
                for kind in dict.fromkeys((provider, "apt")):
                    if not conflicts(there, cuda, kind):
                        return {
                            "distro": distro,
                            "driver": _number(driver) if driver else "",
                            "cuda": cuda,
                            "provider": kind,
                        }
    return None


def _distance(cuda: str, wanted: str | None) -> tuple[int, int]:
    """Nearer releases first, of two equally near ones the newer."""
    order = list(RELEASES)
    steps = order.index(cuda) - order.index(wanted or cuda)
    return abs(steps), -steps


def _far(distro: str, own: str) -> tuple[bool, bool, tuple[int, ...]]:
    """The own release first, then its family, newest first."""
    family, _, version = distro.partition("-")
    return distro != own, family != own.partition("-")[0], tuple(-part for part in _version(version))


def _fewest(host: _Host, releases: Sequence[str], provider: Provider) -> str:
    return min(releases, key=lambda c: len(conflicts(host, c, provider)))


def _first_toolkit(capability: str) -> str:
    """The first toolkit of the table that compiles for a capability; '' for one that isn't known."""
    return next((first for known, first in CAPABILITIES.items() if capability in known.split()), "")


def _driver(text: str) -> tuple[int, int] | None:
    """Windows' driver number: 576.02, or the end of the device manager's 32.0.15.7602; None for another form."""
    if m := re.fullmatch(r"\d+\.\d+\.\d*(\d)\.(\d\d)(\d\d)", text):
        return int(m[1] + m[2]), int(m[3])
    m = re.fullmatch(r"(\d{3})\.(\d\d)", text)
    return (int(m[1]), int(m[2])) if m else None


@functools.cache
def _gcc(distro: str) -> int:
    """Version of the compiler that build-essential leads to."""
    return next(int(name[4:]) for name in build.packages(*_split(distro)).toolchain if name.startswith("g++-"))


def _split(distro: str) -> tuple[str, str]:
    name, _, release = distro.partition("-")
    return name, release


@functools.cache
def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _dotted(version: Iterable[int]) -> str:
    return ".".join(str(part) for part in version)


def _number(driver: tuple[int, int]) -> str:
    return f"{driver[0]}.{driver[1]:02d}"
