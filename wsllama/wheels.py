"""NVIDIA's wheels of one CUDA release on the controller: fetched, verified, kept.

    CACHE/<file>        a wheel under its own name, once its sha256 was right
    CACHE/digests.json  what was hashed already; later only what tells that a file is the same still is looked at
    CACHE/lock          one fetch at a time

CACHE is ${XDG_CACHE_HOME:-~/.cache}/wsllama/wheels.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wsllama import digest, index
from wsllama.index import SourceError
from wsllama.lock import Cuda, CudaWheels, Wheel

# Named, so that any controller gets the files for hosts; pip takes the older manylinux of the second for granted.
_PLATFORMS = ("manylinux_2_27_x86_64", "manylinux2014_x86_64")


def pinned(cuda: Cuda, release: str) -> CudaWheels:
    """The wheels of a release, like "13.0", in the lock's `cuda`. Raises SourceError for one that isn't there."""
    if release not in cuda.wheels:
        known = " and ".join(sorted(cuda.wheels))
        there = f"wsllama.lock has the wheels of CUDA {known}, and not of {release}"
        raise SourceError(f"{there}; set cuda.version to one of them or cuda.provider to apt")
    return cuda.wheels[release]


def toolkit_name(release: str, pin: CudaWheels) -> str:
    """Name of the folder on a host for the toolkit of these very wheels; release: like "13.0"."""
    made_of = "\n".join(sorted(wheel.sha256 for wheel in pin.packages.values()))
    return f"cuda-{release}-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"


def for_host(release: str, pin: CudaWheels, folder: str) -> dict[str, Any]:
    """The argument of wsllama/host/toolkit.py; folder: where the wheels lie on the host under their own names."""
    wheels = [{"path": f"{folder}/{wheel.file}", "sha256": wheel.sha256} for wheel in pin.packages.values()]
    return {"name": toolkit_name(release, pin), "release": release, "wheels": wheels}


def fetch(pin: CudaWheels, *, cache: Path | None = None, environment: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Get the wheels of a release and verify them. Returns package -> file.

    pin: of the lock. cache: instead of the user's. environment: added to the own one for what is fetched (proxy,
    certificates).
    Raises SourceError: a sha256 that differs, no network, no pip, a cache that can't be written.
    """
    cache = cache or index.cache_of("wheels")
    try:
        if _missing(pin, cache):
            with index.alone(cache):
                if missing := _missing(pin, cache):  # still, after another run held the lock
                    _download(missing, cache, {**os.environ, **(environment or {})})
    except OSError as e:
        raise SourceError(f"cannot keep the wheels in {cache}: {e}") from e
    return {name: cache / wheel.file for name, wheel in pin.packages.items()}


def _missing(pin: CudaWheels, cache: Path) -> dict[str, Wheel]:
    return {name: wheel for name, wheel in pin.packages.items() if not _good(cache / wheel.file, wheel, cache)}


def _good(path: Path, wheel: Wheel, cache: Path) -> bool:
    return path.is_file() and path.stat().st_size == wheel.size and digest.sha256_of(path, cache_dir=cache) == wheel.sha256


def _download(missing: Mapping[str, Wheel], cache: Path, env: Mapping[str, str]) -> None:
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    pins = [(name, wheel.version, wheel.sha256) for name, wheel in missing.items()]
    with tempfile.TemporaryDirectory(dir=cache, prefix=".partial-") as work:
        index.download(pins, Path(work), env, ["--only-binary", ":all:", *platforms], "*.whl")
        for name, wheel in missing.items():
            got = Path(work) / "out" / wheel.file
            if not got.is_file():
                raise SourceError(f"pip brought {name} {wheel.version} under another name than {wheel.file}")
            was, found = got.stat(), digest.sha256_of(got, cache_dir=Path(work))
            if found != wheel.sha256:
                raise SourceError(f"{name} {wheel.version} has sha256 {found}, the lock has {wheel.sha256}")
            os.replace(got, cache / wheel.file)
            digest.remember(cache / wheel.file, was, found, cache)
