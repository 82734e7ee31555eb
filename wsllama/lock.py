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


class Lock(Part):
    llama_cpp: LlamaCppPin


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
