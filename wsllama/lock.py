"""wsllama.lock: what is built and served is pinned there, with the sha256 of everything that is fetched."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from wsllama import whole
from wsllama.domain import models

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
GitHash = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Of a model in the lock."""
FIRST_DATE = "2026-02-11"
"""Of a commit of llama.cpp that loads Qwen3.6."""


class LockError(Exception):
    """The lock file can't be used: one sentence."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Sdist(Part):
    """A source distribution of the Python index that carries the commit's tree in a folder."""

    name: str
    version: str
    sha256: Sha256
    path: str = Field(description="Folder of llama.cpp below the archive's top folder.")


class LlamaCppPin(Part):
    """One commit of llama.cpp, with what only its history knows: an archive or a shallow clone has no number."""

    commit: GitHash
    tree: GitHash = Field(description="Git's hash of the commit's files: `git rev-parse COMMIT^{tree}`.")
    build_number: Annotated[int, Field(ge=1)] = Field(description="Commits up to this one: `git rev-list --count`.")
    version: str
    # of 9 and 10 February 2026 are commits that load the model wrongly or not at all: PR 19435, its revert 19453, then 19468
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    git: str
    sdist: Sdist

    @field_validator("date")
    @classmethod
    def _knows_the_model(cls, value: str) -> str:
        if value < FIRST_DATE:
            raise ValueError(f"a commit of {value} does not know Qwen3.6: take one of {FIRST_DATE} or later (PR 19468)")
        return value


class Wheel(Part):
    """One file of the Python index."""

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-py3-none-manylinux[a-z0-9_.]+_x86_64\.whl$")]
    version: str
    sha256: Sha256
    size: Annotated[int, Field(ge=1)] = Field(description="Bytes of the file.")


class CudaWheels(Part):
    """The packages of one CUDA release that compile llama.cpp, in the versions that the release's own list names."""

    toolkit: str = Field(description="Version of the package cuda-toolkit whose requirements name these versions.")
    packages: Annotated[dict[str, Wheel], Field(min_length=1)]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(wheel.size for wheel in self.packages.values())

    @property
    def versions(self) -> dict[str, str]:
        """What determines the bytes of a build: package -> version and sha256."""
        return {name: f"{wheel.version} sha256:{wheel.sha256}" for name, wheel in sorted(self.packages.items())}


class CudaApt(Part):
    """NVIDIA's repository for WSL, the key that signs it, and what is taken from it."""

    uri: Annotated[str, Field(pattern=r"^https://\S+$")]
    key: Annotated[str, Field(pattern=r"^[0-9A-F]{40}$")] = Field(description="Fingerprint of the only key that is trusted.")
    packages: dict[Annotated[str, Field(pattern=r"^\d+\.\d+$")], dict[str, str]] = Field(
        description="Release -> package -> exact version; of a release that isn't here the newest are taken."
    )


class Cuda(Part):
    apt: CudaApt
    wheels: dict[Annotated[str, Field(pattern=r"^\d+\.\d+$")], CudaWheels] = Field(description="Release -> its packages.")


class ModelFile(Part):
    """One file of a model's repository. A size or sha256 that was not read from the Hub says where it is from."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*$")]
    bytes: Annotated[int, Field(ge=1)]
    bytes_from: Literal["hub", "transcribed", "estimated"]
    sha256: Sha256 | None
    sha256_from: Literal["hub", "transcribed"] | None
    why_no_sha256: str | None = None

    @field_validator("path")
    @classmethod
    def _inside(cls, value: str) -> str:
        if ".." in PurePosixPath(value).parts:
            raise ValueError("a path stays inside of its repository")
        return value

    @model_validator(mode="after")
    def _sourced(self) -> ModelFile:
        if not (self.sha256 is None) == (self.sha256_from is None) == (self.why_no_sha256 is not None):
            raise ValueError("a sha256 has sha256_from; without one there is why_no_sha256")
        return self

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return PurePosixPath(self.path).name


class BaseModelPin(Part):
    """The model that a quant was made of. revision: where its repository stood on the date of reading."""

    repo: str
    revision: GitHash | None


class Converter(Part):
    """Who or what made the quant, where repository or file state it."""

    name: str | None
    version: str | None


class ModelPin(Part):
    """One quant of a model at one revision of its repository."""

    repo: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")]
    revision: GitHash
    quant: Annotated[str, Field(pattern=r"^[A-Z0-9][A-Z0-9_-]*$")]
    files: Annotated[tuple[ModelFile, ...], Field(min_length=1)] = Field(description="Shards in order.")
    mmproj: ModelFile | None
    base_model: BaseModelPin
    converter: Converter
    licence: str | None
    publisher: str
    read: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = Field(
        description="Date on which it was read from the Hub; null: it is a transcription."
    )
    summary: models.Summary | None = Field(description="What the header says; null: not read yet, so it is estimated.")

    @property
    def bytes(self) -> int:
        """Bytes of the model's files, without the projector."""
        return sum(file.bytes for file in self.files)

    @property
    def known_or_estimated(self) -> models.Summary:
        """The summary, or one that is estimated from the size (`summary` is None then)."""
        return self.summary or models.estimate(self.bytes, mtp="-MTP-" in f"{self.repo}-")

    def refusal(self, name: str, with_mmproj: bool = False) -> str | None:
        """Why it can't be installed; None when every file that is wanted has a sha256."""
        projector = (self.mmproj,) if self.mmproj and with_mmproj else ()
        lacking = [file for file in (*self.files, *projector) if file.sha256 is None]
        if not lacking:
            return None
        why = lacking[0].why_no_sha256
        return f"{name}: wsllama.lock has no sha256 of {lacking[0].path} ({why}): run `wsllama lock update {name}`"


class Lock(Part):
    llama_cpp: LlamaCppPin
    cuda: Cuda
    models: dict[Annotated[str, Field(pattern=f"^{NAME.pattern}$")], ModelPin] = {}


def load(path: Path) -> Lock:
    """Read a lock file. Raises LockError when it is missing, no JSON, or holds something unknown or malformed."""
    try:
        return Lock.model_validate_json(path.read_bytes())
    except OSError as e:
        raise LockError(f"the lock file {path} cannot be read: {e.strerror}") from e
    except ValidationError as e:
        raise LockError(f"the lock file {path} is wrong at {first(e)}; take it from the repository") from e


def first(error: ValidationError) -> str:
    """Where the first thing is that doesn't fit, and why."""
    found = error.errors()[0]
    return f"{'.'.join(map(str, found['loc'])) or 'its start'}: {found['msg']}"


def text(lock: Lock) -> str:
    """A lock file's whole text: sorted, so that a change of one pin is a change of its own lines."""
    return json.dumps(lock.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Hold a lock file for reading, changing and saving, so that of two commands at once none undoes the other's work."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as e:
        raise LockError(f"the folder of the lock file {path} cannot be opened: {e.strerror}") from e
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def save(path: Path, lock: Lock) -> None:
    """Write a lock file whole or not at all, with the mode that it has; behind a link what it leads to.

    Raises LockError when it can't be written.
    """
    path = path.resolve()
    data = text(lock).encode()
    Lock.model_validate_json(data)  # what can't be read again must not be there

    def fill(out: io.BufferedWriter) -> None:
        os.fchmod(out.fileno(), path.stat().st_mode & 0o777 if path.exists() else 0o644)
        out.write(data)

    try:
        whole.write(path, fill)
    except OSError as e:
        raise LockError(f"the lock file {path} cannot be written: {e.strerror}") from e
