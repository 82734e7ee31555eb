"""CUDA on a host: whether its GPU can be used, which toolkit compiles for it, and how that gets there."""

from __future__ import annotations

import hashlib
import json
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from wsllama import layout, lock, transfer, wheels
from wsllama.domain import build as rules
from wsllama.domain import guest, network, nvidia_smi, openpgp
from wsllama.domain import toolkit as choices
from wsllama.facts import probe
from wsllama.host.toolkit import TOOLKITS
from wsllama.index import SourceError
from wsllama.operations import bundle
from wsllama.operations.base import Refused, fail, follow, resource, send, tell
from wsllama.operations.files import ROOT, File, changes, render
from wsllama.settings import Settings

KEYRING = "/etc/apt/keyrings/wsllama-cuda.asc"
SOURCES = "/etc/apt/sources.list.d/wsllama-cuda.sources"
PREFERENCES = "/etc/apt/preferences.d/wsllama-cuda"
WHEELS = f"{layout.CACHE}/wheels"
LOCAL = "/usr/local"
NVIDIA_SMI = {"wsl": guest.NVIDIA_SMI, "linux": "/usr/bin/nvidia-smi"}

TIME_LIMIT_S = 2 * 3600  # gigabytes over a slow line
LOCK_LIMIT_S = 900  # first start of a new distro: unattended upgrades hold apt's locks for minutes
APT_BYTES = 5_000_000_000
"""Room for packages and what is in them, in bytes; cuBLAS alone has 1.7 GB."""
UNPACKED = 3
"""What wheels take as a toolkit, at most, as a multiple of their own size."""

# Patterns of names, for apt's preferences and Python's fnmatch alike: what guest.driver_packages names, and in the places of
# which others have nothing. Few, because every start of apt compares each with all packages that there are: about 40 ms, and
# seconds for a regular expression. libnvidia-container and libnvidia-egl-… aren't the driver's, -ml-dev is for compiling.
FORBIDDEN = (
    *("nvidia-[aehkuv0-9]*", "nvidia-[df][aikr]*", "nvidia-le*", "nvidia-op*", "nvidia-comp*", "nvidia-smi"),
    *("nvidia-persistenced", "libnvidia-[!cem]*", "libnvidia-[cem][!glo]*", "libnvidia-[ce][go][!ln]*", "libnvidia-egl[!-]*"),
    *("libnvidia-ml1*", "libcuda1", "libcuda1-*", "libcudadebugger1", "libnvcuvid1", "libnvoptix1", "cuda-drivers*"),
    *("xserver-xorg-video-nvidia*", "linux-[mos]*-nvidia-*"),
)


@dataclass(frozen=True)
class Toolkit:
    """The CUDA toolkit of a host.

    + provider: present is one that the host had before us
    + root: its folder on the host; there: whether it is there, whole
    + versions: everything of it that determines the bytes of a build
    + cmake: options that follow from it; stub: it has a libcuda to link with
    + packages: with apt, package -> exact version, None for the newest
    """

    release: str
    provider: Literal["present", "apt", "wheels"]
    root: str
    there: bool
    versions: Mapping[str, str]
    cmake: Mapping[str, str]
    stub: bool
    packages: Mapping[str, str | None] = field(default_factory=dict)


@cache
def pins() -> lock.Cuda:
    """The lock's CUDA."""
    return lock.load(ROOT / "wsllama.lock").cuda


def looks(settings: Settings) -> probe.Looks:
    """What decides the toolkit; nothing for a host that needs none, because nvidia-smi takes its time."""
    if settings.backend != "cuda":
        return {}
    return {
        "system": {"distro": None, "kernel": None},
        "gpu": {NVIDIA_SMI[settings.platform]: None},
        "toolkits": dict.fromkeys([LOCAL, TOOLKITS]),
        "packages": dict.fromkeys(name for release in choices.RELEASES for name in _packages(release)),
        "files": {SOURCES: None, KEYRING: None, PREFERENCES: None},
    }


def _packages(release: str) -> dict[str, str | None]:
    pinned = pins().apt.packages
    return {name: pinned.get(release, {}).get(name) for name in choices.apt_packages(release, pinned)}


def reading(now: Any, settings: Settings) -> nvidia_smi.Reading:
    """What nvidia-smi said on the host; no_driver where there is none."""
    said = now["gpu"][NVIDIA_SMI[settings.platform]]
    if said is None:
        return nvidia_smi.Reading("no_driver")
    return nvidia_smi.read(said["text"], said["returncode"], said["command"])


# The GPU, before the first change


def guard_looks(settings: Settings) -> probe.Looks:
    """What may hide the GPU, and what decides the toolkit; nothing for a host that needs none."""
    if settings.backend != "cuda":
        return {}
    keys = ["packages", "ldconfig", "real_paths", "ld_so_conf", "dxg", "gpu_enabled"]
    return {**looks(settings), "guest": dict.fromkeys(keys)}


@resource(guard_looks)
def guards(now: Any, settings: Settings) -> Iterator[Any]:
    """Nothing on the host hides its GPU, and there is a toolkit that compiles for it: otherwise the host fails here.

    + settings: the host's
    """
    if settings.backend == "cuda" and (found := problems(now, settings)):
        yield fail("\n".join(found))


def problems(now: Any, settings: Settings) -> list[str]:
    """Why this host can't have a build for its GPU, one sentence each."""
    seen, needed, wsl = reading(now, settings), settings.cuda.require_gpu, settings.platform == "wsl"
    out: list[str] = []
    if wsl:
        found, kernel = dict(now["guest"]), now["system"]["kernel"]
        found["dxg"] = found["dxg"] or not needed
        out += guest.problems(guest.Guest(**found, kernel=kernel, nvidia_smi=seen if needed else None))
    elif needed and seen.status != "ok":
        out.append("no GPU of NVIDIA's is seen here: set llama_cpp.backend to cpu, or cuda.require_gpu to False to only build")
    if not out:  # what hides the GPU also hides what the choice asks for
        try:
            kit = toolkit_of(now, settings)
        except Refused as e:
            return str(e).splitlines()
        built_for = options(kit, settings)["CMAKE_CUDA_ARCHITECTURES"]
        for gpu in seen.gpus if needed else ():
            if gpu.compute_cap and not choices.covers(built_for.split(";"), gpu.compute_cap):
                out.append(
                    f"a build for {built_for} has no code for the {gpu.name} here, whose compute capability is {gpu.compute_cap}:"
                    " name it too, or leave out cuda.compute and cuda.architectures"
                )
    return out


# Which toolkit


def toolkit_of(now: Any, settings: Settings) -> Toolkit:
    """The toolkit that compiles for this host: one that it has, else what is to be brought. Raises Refused."""
    wanted, distro = settings.cuda, now["system"]["distro"]
    seen = reading(now, settings)
    driver = wanted.driver or seen.driver_windows
    compute = _compute(settings, seen)

    def choose(release: str | None, provider: str | None) -> choices.Choice:
        return choices.choose(distro, driver, compute, release, provider)

    if wanted.provider != "wheels":
        there = {t["release"]: (root, t) for root, t in now["toolkits"][LOCAL].items() if t["whole"] and t["release"]}
        for release in [wanted.version] if wanted.version else choices.PREFERRED:
            if release in there and (choice := choose(release, "apt")).ok:
                return _by_apt(now, choice) if _ours(now, settings, release) else _present(*there[release], choice)
    choice = choose(wanted.version, wanted.provider)
    if not choice.ok:
        raise Refused("\n".join(choice.refusals))
    return _by_wheels(now, choice) if choice.provider == "wheels" else _by_apt(now, choice)


def _compute(settings: Settings, seen: nvidia_smi.Reading) -> tuple[str, ...]:
    wanted = settings.cuda
    named = [a.split("-")[0].rstrip("af") for a in wanted.architectures]
    found = wanted.compute or tuple(f"{a[:-1]}.{a[-1]}" for a in named)
    found = found or tuple(sorted({gpu.compute_cap for gpu in seen.gpus if gpu.compute_cap}))
    if not found:
        raise Refused(
            f"nvidia-smi does not tell this host's compute capability ({seen.status}): set cuda.compute, as in"
            ' cuda = {"compute": ["8.9"]}'
        )
    return found


def _ours(now: Any, settings: Settings, release: str) -> bool:
    """Whether we brought the packages of this release, so that they are ours to keep at their pins."""
    by_us = now["files"][SOURCES] is not None or bundle.used(settings)
    return by_us and any(now["packages"][name] for name in _packages(release))


def wheels_to_bring(now: Any, settings: Settings) -> lock.CudaWheels | None:
    """The wheels that become this host's toolkit, None where it needs none. Raises Refused."""
    kit = toolkit_of(now, settings) if settings.backend == "cuda" else None
    return _wheels(kit.release) if kit and kit.provider == "wheels" and not kit.there else None


def _present(root: str, found: Mapping[str, Any], choice: choices.Choice) -> Toolkit:
    versions = {"nvcc": found["version"], "libraries": " ".join(found["libraries"])}
    cmake = {**choice.cmake, "CMAKE_CUDA_COMPILER": f"{root}/bin/nvcc"}
    return Toolkit(str(choice.cuda), "present", root, True, versions, cmake, found["stub"])


def _by_apt(now: Any, choice: choices.Choice) -> Toolkit:
    release, root = str(choice.cuda), str(choice.root)
    packages = _packages(release)
    have = now["packages"]
    there = all(have[name] and version in (None, have[name]) for name, version in packages.items())
    there = there and bool(now["toolkits"][LOCAL].get(root))
    versions = {name: version or "the newest" for name, version in packages.items()}
    return Toolkit(release, "apt", root, there, versions, choice.cmake, True, packages)


def _by_wheels(now: Any, choice: choices.Choice) -> Toolkit:
    release = str(choice.cuda)
    root = f"{TOOLKITS}/{wheels.toolkit_name(release, _wheels(release))}"
    there = bool(now["toolkits"][TOOLKITS].get(root, {}).get("whole"))
    return Toolkit(release, "wheels", root, there, _wheels(release).versions, choice.cmake, False)


def _wheels(release: str) -> lock.CudaWheels:
    known = pins().wheels
    if release not in known:
        raise Refused(
            f"wsllama.lock has wheels of CUDA {', '.join(known)}, not of {release}: set cuda.version to one of them,"
            " or cuda.provider to apt"
        )
    return known[release]


def options(kit: Toolkit, settings: Settings) -> dict[str, str]:
    """What `cmake_options` of domain/build.py takes as `cuda`. Raises ValueError as `cuda_options` does."""
    wanted = settings.cuda
    return rules.cuda_options(
        kit.cmake,
        architectures=wanted.architectures,
        flags=wanted.flags,
        flash_attention=wanted.flash_attention,
        without_driver=not (kit.stub and wanted.require_gpu),
    )


def space(kit: Toolkit) -> dict[str, int]:
    """Bytes that bringing the toolkit takes below these paths."""
    if kit.there:
        return {}
    if kit.provider == "apt":
        return {LOCAL: APT_BYTES}
    size = _wheels(kit.release).size
    return {WHEELS: size, TOOLKITS: size * UNPACKED}


# How it gets there


def toolkit_commands(now: Any, settings: Settings) -> Iterator[Any]:
    """Commands that bring the host's toolkit, none where it is there. For the host that builds, right before it does.

    now: with what `looks` names. Raises Refused.
    """
    kit = toolkit_of(now, settings)
    if kit.there:
        return
    tell(f"CUDA toolkit {kit.release} is absent or in other versions: it is brought by {kit.provider}")
    if kit.provider == "wheels":
        yield from _bring_wheels(kit, settings)
    elif bundle.used(settings):
        yield from bundle.install(now["system"]["distro"], settings, kit.packages)
    else:
        yield from _bring_packages(now, kit, settings)


def _bring_wheels(kit: Toolkit, settings: Settings) -> Iterator[Any]:
    pin = _wheels(kit.release)
    try:
        environment = network.environment(settings.network.proxy, settings.network.ca_file)
        here = bundle.wheels(settings, pin) if bundle.used(settings) else wheels.fetch(pin, environment=environment)
    except SourceError as e:
        raise Refused(str(e)) from e
    for name, wheel in pin.packages.items():
        yield send(transfer.send_file, here[name], f"{WHEELS}/{wheel.file}", sha256=wheel.sha256)
    argument = wheels.for_host(kit.release, pin, WHEELS)
    yield follow("toolkit", argument, key=str(argument["name"]), limit_s=TIME_LIMIT_S)


def _apt_files(kit: Toolkit, settings: Settings) -> tuple[File, File]:
    """apt's preferences and source for the toolkit."""
    exact = {name: version for name, version in kit.packages.items() if version}
    uri = settings.cuda.repository or pins().apt.uri
    preferences = render("cuda.preferences.j2", forbidden=FORBIDDEN, pins=exact)
    return File(PREFERENCES, preferences), File(SOURCES, render("cuda.sources.j2", uri=uri, keyring=KEYRING))


def edited(now: Any, settings: Settings) -> list[str]:
    """Which of apt's files for the toolkit are not as we write them. The deploy looks at them only where it brings a toolkit.

    now: with what `looks` names.
    """
    try:
        kit = toolkit_of(now, settings) if settings.backend == "cuda" else None
    except Refused:
        return []
    if not kit or kit.provider != "apt" or now["files"][SOURCES] is None:
        return []
    return [f.path for f in _apt_files(kit, settings) if (now["files"][f.path] or {}).get("sha256") != f.sha256]


def _bring_packages(now: Any, kit: Toolkit, settings: Settings) -> Iterator[Any]:
    uri = settings.cuda.repository or pins().apt.uri
    trusted = signing_key(settings, uri, pins().apt.key)  # or Refused, before anything is written
    preferences, sources = _apt_files(kit, settings)
    yield from changes(now, [File(KEYRING, trusted), preferences])
    argument = {
        "packages": dict(kit.packages),
        "sources": SOURCES,
        "text": sources.text,
        "uri": uri,
        "compiler": f"{kit.root}/bin/nvcc",
        "forbidden": FORBIDDEN,
        "lock_limit_s": LOCK_LIMIT_S,
    }
    same = hashlib.sha256(json.dumps(argument, sort_keys=True).encode()).hexdigest()[:16]
    yield follow("cuda_apt", argument, key=same, limit_s=TIME_LIMIT_S)


def signing_key(settings: Settings, uri: str, fingerprint: str) -> str:
    """The key with this fingerprint as text: from the file that the settings name, else from the repository.

    uri: of the repository. Raises Refused: no key, one of somebody else's, or more than one.
    """
    where = settings.cuda.key_file or f"{uri.rstrip('/')}/{fingerprint[-8:].lower()}.pub"
    try:
        data = Path(where).read_bytes() if settings.cuda.key_file else _fetched(where, settings)
        packets = openpgp.dearmored(data)
        found = openpgp.fingerprints(packets)
    except openpgp.KeyFormatError as e:
        raise Refused(f"{where} is not NVIDIA's signing key: {e}; set cuda.key_file to a file that holds it") from e
    except OSError as e:
        reason = getattr(e, "reason", None) or getattr(e, "strerror", None) or e
        raise Refused(
            f"NVIDIA's signing key cannot be had from {where} ({reason}): set cuda.key_file to a file that holds it,"
            " or network.proxy"
        ) from e
    if found != [fingerprint]:
        raise Refused(
            f"{where} is not NVIDIA's signing key: its fingerprint is {' and '.join(found)} instead of {fingerprint};"
            " set cuda.key_file to a file that holds that one"
        )
    return openpgp.armored(openpgp.without_subkeys(packets))


def _fetched(url: str, settings: Settings) -> bytes:
    proxy, ca_file = settings.network.proxy, settings.network.ca_file
    proxies = {"proxies": {"http": proxy, "https": proxy}} if proxy else {}
    secure = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file))
    with urllib.request.build_opener(urllib.request.ProxyHandler(**proxies), secure).open(url, timeout=30) as answer:
        data: bytes = answer.read(openpgp.LARGEST + 1)
    return data
