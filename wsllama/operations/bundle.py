"""What a host takes from the bundle that its settings name: source, wheels, builds and packages, each verified before use."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyinfra import state

from wsllama import artifacts, index, layout, sources, transfer
from wsllama.bundle import INDEX, Bundle, BundleError
from wsllama.bundle import opened as opened_at
from wsllama.lock import CudaWheels, LlamaCppPin
from wsllama.operations.base import Later, Refused, ask_host, follow, in_thread, send, tell
from wsllama.settings import LOCK, Settings

ARCHIVE = f"{layout.CACHE}/debs.tar"
DEBS = f"{layout.CACHE}/debs"
TIME_LIMIT_S = 3600


def used(settings: Settings) -> bool:
    """Whether this host takes everything from a bundle."""
    return settings.llama_cpp.source == "bundle"


def opened(settings: Settings) -> Bundle:
    """The bundle that the settings name. Raises Refused with one sentence."""
    try:
        return opened_at(Path(str(settings.bundle.path)), LOCK)
    except (BundleError, OSError) as e:
        raise Refused(str(e)) from e


def _file(bundle: Bundle, name: str) -> Path:
    """A file of it, verified. Raises Refused."""
    try:
        found: Path = in_thread(bundle.file, name)
    except BundleError as e:
        raise Refused(str(e)) from e
    return found


def sdist(settings: Settings, pin: LlamaCppPin) -> Path:
    """llama.cpp's source distribution. Raises Refused."""
    return _file(opened(settings), f"sources/{sources.sdist_name(pin)}")


def wheels(settings: Settings, pin: CudaWheels) -> dict[str, Path]:
    """Package -> wheel of a CUDA release. Raises Refused."""
    bundle = opened(settings)
    return {name: _file(bundle, f"wheels/{wheel.file}") for name, wheel in pin.packages.items()}


def has_build(settings: Settings, name: str) -> bool:
    """Whether the bundle has a build of this id; no byte of it is read."""
    return used(settings) and f"builds/{name}.tar.gz" in opened(settings).manifest.files


def build(settings: Settings, name: str) -> artifacts.Artifact | None:
    """The build of this id, verified; None when the bundle has none. Raises Refused."""
    if not has_build(settings, name):
        return None
    bundle = opened(settings)
    path, _ = _file(bundle, f"builds/{name}.tar.gz"), _file(bundle, f"builds/{name}.json")
    return artifacts.known(name, path.parent)


def sha256_of(settings: Settings, path: str) -> str | None:
    """What a model's file has to be when it is one of the bundle's. Raises Refused."""
    if not settings.bundle.path:
        return None
    bundle = opened(settings)
    name = bundle.name_of(path)
    return bundle.manifest.files[name].sha256 if name else None


def problems(
    distro: str, settings: Settings, *, packages: bool, build: bool, toolkit: CudaWheels | None, model: Sequence[str]
) -> list[str]:
    """Why the bundle can't bring what this host needs, one sentence each; every byte that may be used is read.

    packages, build: whether the host lacks some; toolkit: the wheels that it needs; model: paths of its files on this machine
    that the host lacks. Raises Refused.
    """
    bundle, names = opened(settings), []
    if packages:
        if not bundle.below(f"debs/{distro}"):
            there = sorted({name.split("/")[1] for name in bundle.below("debs")})
            held = f"only for {' and '.join(there)}" if there else "for no distro"
            return [f"the bundle {bundle.path} has packages {held}: make it with a host that has {distro}"]
        names += bundle.below(f"debs/{distro}")
    if build:
        names += [*bundle.below("sources"), *bundle.below("builds")]
    names += [f"wheels/{wheel.file}" for wheel in toolkit.packages.values()] if toolkit else []
    names += [name for path in model if (name := bundle.name_of(path))]
    found: list[str] = in_thread(bundle.wrong, names)
    return found


def room(distro: str, settings: Settings) -> int:
    """Bytes that packages take on the host while they are installed, beside what is in them: the archive, and its files."""
    bundle = opened(settings)
    return 2 * sum(bundle.manifest.files[name].size for name in bundle.below(f"debs/{distro}"))


def install(distro: str, settings: Settings, wanted: Mapping[str, str | None]) -> Iterator[Any]:
    """Commands that install packages (name -> exact version, None for the one that the bundle has). Raises Refused.

    The host is sent what it lacks of them and of what they need, and nothing of its apt's configuration changes.
    """
    if not state.is_executing:
        raise Later("packages of the bundle are to be installed")
    bundle, folder = opened(settings), f"debs/{distro}"
    text = _file(bundle, f"{folder}/{INDEX}").read_text(encoding="utf-8")
    words = [f"{name}={version}" if version else name for name, version in wanted.items()]
    names = [f"{folder}/{name}" for name in ask_host("debs", {"action": "plan", "index": text, "packages": words})["files"]]
    size = sum(bundle.manifest.files[name].size for name in names)
    tell(f"{len(names)} packages come from the bundle, {size / 1e6:.0f} MB")
    cache = index.cache_of("bundle")  # not /tmp, which may be a small part of the memory
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".partial-") as work:
        archive = Path(work) / "debs.tar"
        sha256 = in_thread(_pack, [_file(bundle, name) for name in names], archive)
        yield send(transfer.send_file, archive, ARCHIVE, sha256=sha256)
        argument = {"action": "install", "archive": ARCHIVE, "folder": DEBS, "index": text, "packages": words}
        yield follow("debs", argument, key=sha256[:16], limit_s=TIME_LIMIT_S)


def _pack(paths: Sequence[Path], archive: Path) -> str:
    """Write files into one tar, so that they are sent as one; its sha256, as it was written."""
    digest = hashlib.sha256()

    class Hashed:
        def write(self, data: bytes) -> int:
            digest.update(data)
            return out.write(data)

    with archive.open("wb") as out, tarfile.open(fileobj=Hashed(), mode="w|") as tar:  # type: ignore[call-overload]  # only writes
        for path in paths:
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(member, file)
    return digest.hexdigest()
