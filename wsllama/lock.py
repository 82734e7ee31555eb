"""wsllama.lock: what is built and served is pinned there, with the sha256 of everything that is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
GitHash = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


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
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    git: str
    sdist: Sdist


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


class Lock(Part):
    llama_cpp: LlamaCppPin
    cuda: Cuda


def load(path: Path) -> Lock:
    """Read a lock file. Raises LockError when it is missing, no JSON, or holds something unknown or malformed."""
    try:
        return Lock.model_validate_json(path.read_bytes())
    except OSError as e:
        raise LockError(f"the lock file {path} cannot be read: {e.strerror}") from e
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = f"{where or 'its start'}: {first['msg']}"
        raise LockError(f"the lock file {path} is wrong at {said}; take it from the repository") from e
