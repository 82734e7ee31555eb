"""A bundle: everything that hosts without a network need, in one folder, each file with its size and sha256.

    manifest.json                 what is in it, for which wsllama.lock
    bom.json                      the same as a bill of materials (CycloneDX)
    sources/<sdist>               llama.cpp's source, as the lock pins it
    wheels/<wheel>                the CUDA toolkit from the Python index, as the lock pins it
    builds/<build id>.tar.gz      builds for hosts of the same kind, as wsllama/artifacts.py keeps them, and <build id>.json
    debs/<distro>/                Debian packages, and Packages: a flat apt repository
    models/<name>                 the model

Here it is read and checked; wsllama/bundle_maker.py makes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wsllama import digest, index
from wsllama.lock import Sha256

MANIFEST, BOM, INDEX = "manifest.json", "bom.json", "Packages"
Kind = Literal["source", "wheel", "build", "package", "index", "model", "bom"]
READ_AT_ONCE = ("index", "bom")  # small ones, hashed whenever a bundle is opened
AGAIN = "make it again with `wsllama bundle`, or copy it again"


class BundleError(Exception):
    """A bundle can't be made or used: one sentence."""


class Entry(BaseModel):
    """A file of a bundle; size in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    kind: Kind
    sha256: Sha256
    size: Annotated[int, Field(ge=0)]


class Manifest(BaseModel):
    """What manifest.json says. lock: sha256 of the wsllama.lock that it was made with; files: path in the bundle -> file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    version: Literal[1]
    created: str
    lock: Sha256
    files: dict[Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.+%~-]*/)*[A-Za-z0-9_][A-Za-z0-9_.+%~ -]*$")], Entry]


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are there in their sizes."""

    path: Path
    manifest: Manifest

    def below(self, folder: str) -> list[str]:
        """Names of the files in this folder of the bundle and in those below it."""
        return [name for name in self.manifest.files if name.startswith(f"{folder}/")]

    def file(self, name: str) -> Path:
        """Path of a file after all its bytes were read, or are known to be, and found right. Raises BundleError."""
        if name not in self.manifest.files:
            raise BundleError(f"the bundle {self.path} holds no {name}: make it for this host with `wsllama bundle`")
        path, wanted = self.path / name, self.manifest.files[name].sha256
        try:
            found = sha256_of(path, self.manifest.files[name].kind)
        except (OSError, RuntimeError) as e:
            raise BundleError(f"{path} can't be read: {getattr(e, 'strerror', None) or e}") from e
        if found != wanted:
            raise BundleError(f"{path} has sha256 {found} where the bundle's manifest has {wanted}: {AGAIN}")
        return path

    def wrong(self, names: list[str]) -> list[str]:
        """Which of these files are not as the manifest has them, one sentence each."""
        out = []
        for name in names:
            try:
                self.file(name)
            except BundleError as e:
                out.append(str(e))
        return out

    def name_of(self, path: str) -> str | None:
        """Name in the bundle of the file at an absolute path, None where that is none of the bundle's."""
        try:
            name = str(Path(path).resolve().relative_to(self.path.resolve()))
        except ValueError:
            return None
        return name if name in self.manifest.files else None


def sha256_of(path: Path, kind: Kind) -> str:
    """sha256 of a file, read once. Those of many small files are kept apart, so that they don't drive out a model's."""
    return digest.sha256_of(path, cache_dir=None if kind == "model" else index.cache_of("bundle"))


def lock_sha256(lock: Path) -> str:
    """What stands for a lock file in a bundle. Raises OSError."""
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of a bundle, None where there is none. Raises BundleError for one that says nothing we know."""
    try:
        return Manifest.model_validate_json((path / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise BundleError(f"{path / MANIFEST} can't be read: {e.strerror}") from e
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its start"
        raise BundleError(f"{path / MANIFEST} is wrong at {where} ({first['msg']}): {AGAIN}") from e


def opened(path: Path, lock: Path) -> Bundle:
    """The bundle at a path, after a look at each of its files; lock: the lock file that it has to be made with.

    Raises BundleError: no bundle, one of another lock, a file that is missing or of another size, a wrong small file.
    """
    manifest = read_manifest(path)
    if manifest is None:
        raise BundleError(f"there is no bundle in {path}, because {path / MANIFEST} is missing: make it with `wsllama bundle`")
    if manifest.lock != lock_sha256(lock):
        raise BundleError(f"the bundle {path} was made with another wsllama.lock than {lock}: make it again with this one")
    bundle = Bundle(path, manifest)
    for name, entry in manifest.files.items():
        try:
            size = (path / name).stat().st_size
        except OSError as e:
            raise BundleError(f"{path / name} is in the bundle's manifest and can't be read ({e.strerror}): {AGAIN}") from e
        if size != entry.size:
            raise BundleError(f"{path / name} has {size} bytes where the bundle's manifest has {entry.size}: {AGAIN}")
    for sentence in bundle.wrong([name for name, entry in manifest.files.items() if entry.kind in READ_AT_ONCE]):
        raise BundleError(sentence)
    return bundle
