"""Which files the settings mean by a model: names, sizes, sums (of wsllama.lock where that has it), and where they are."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from wsllama import lock
from wsllama.domain import gguf, model_policy, spelling

if TYPE_CHECKING:
    from wsllama.settings import Settings


class ModelError(Exception):
    """The settings name no model that can be had: one sentence."""


@dataclass(frozen=True)
class File:
    """One file of a model.

    + name: that it is installed by; size: bytes, None while it isn't known; about: bytes, estimated where size is None
    + sha256: what it has to be, None when whatever lies there is meant
    + place: a path on controller or host, a path in the Hub's repository, or an address
    """

    name: str
    size: int | None
    about: int
    sha256: str | None
    place: str


@dataclass(frozen=True)
class Model:
    """The files of a model: shards in order, and the projector when it is to be served."""

    files: tuple[File, ...]
    mmproj: File | None
    pin: lock.ModelPin | None

    @property
    def every(self) -> tuple[File, ...]:
        """All of them, the projector last."""
        return (*self.files, *((self.mmproj,) if self.mmproj else ()))


@cache
def _held(path: Path) -> lock.Lock:
    return lock.load(path)


def pinned(settings: Settings) -> tuple[str, lock.ModelPin] | None:
    """The model of the lock that the settings name; None when they name none. Raises ModelError."""
    from wsllama.settings import LOCK

    wanted = settings.model
    if wanted.name is None:
        return None
    try:
        held = _held(Path(wanted.lock_file) if wanted.lock_file else LOCK).models
    except lock.LockError as e:
        raise ModelError(f"model.name: {e}") from e
    name = f"{wanted.name}-{wanted.quant}" if wanted.quant else wanted.name
    if name not in held:
        near = difflib.get_close_matches(name, list(held), n=3, cutoff=0.6) or sorted(held)
        raise ModelError(
            f"model.name: the lock has no model {name}: did you mean {', '.join(near) or 'one that is to be added'}?"
        )
    return name, held[name]


def wanted(settings: Settings) -> Model:
    """The files that the settings mean, and where they are. Raises ModelError."""
    found = pinned(settings)
    if found is None:
        return _unpinned(settings)
    _, pin = found
    if settings.model.mmproj is True and pin.mmproj is None:
        raise ModelError(f"model.mmproj: the lock has no projector of {found[0]}: set it to False, or lock another repository")
    files = [_of_lock(file) for file in pin.files]
    projector = _of_lock(pin.mmproj) if settings.model.mmproj is True and pin.mmproj else None
    placed = [replace(file, place=place) for file, place in zip(files, _places(settings, files), strict=True)]
    if isinstance(settings.model.mmproj, str):
        projector = _given(settings.model.mmproj, None)
    elif projector:
        projector = replace(projector, place=_beside(settings, files[0], projector))
    return Model(tuple(placed), projector, pin)


def _of_lock(file: lock.ModelFile) -> File:
    return File(file.name, None if file.bytes_from == "estimated" else file.bytes, file.bytes, file.sha256, file.path)


def _places(settings: Settings, files: list[File]) -> list[str]:
    """Where each file of a pinned model is; one that has another name at `path` is meant nevertheless."""
    way, path, url = settings.model.way, settings.model.path, settings.model.url
    if way == "hub":
        return [file.place for file in files]
    if url is not None:
        return [_address(url, file.name) for file in files] if url.endswith("/") or len(files) > 1 else [url]
    if path is None:
        return [f"{settings.bundle.path}/models/{file.name}" for file in files]
    names = gguf.shard_names(spelling.name(path))
    if len(names) != len(files):
        raise ModelError(
            f"model.path: {path} is one of {len(names)} files, but the lock has {len(files)} of {settings.model.name}"
        )
    return [spelling.beside(path, name) for name in names]


def _beside(settings: Settings, first: File, projector: File) -> str:
    """Where the lock's projector is: with the model."""
    if settings.model.way == "hub":
        return projector.place
    if settings.model.url:
        return _address(settings.model.url, projector.name)
    return spelling.beside(_places(settings, [first])[0] if not settings.model.path else settings.model.path, projector.name)


def _address(url: str, name: str) -> str:
    """The address of a file in the folder that an address names, or that has the file that it names."""
    return url[: url.rindex("/") + 1] + name


def _given(path: str, sha256: str | None) -> File:
    return File(spelling.name(path), None, 0, sha256, path)


def _unpinned(settings: Settings) -> Model:
    model = settings.model
    if model.url:
        return Model((File(urlsplit(model.url).path.rpartition("/")[2], None, 0, model.sha256, model.url),), None, None)
    path = str(model.path)
    names = gguf.shard_names(spelling.name(path))
    files = tuple(_given(spelling.beside(path, name), model.sha256 if len(names) == 1 else None) for name in names)
    return Model(files, _given(model.mmproj, None) if isinstance(model.mmproj, str) else None, None)


def problems(settings: Settings) -> list[str]:
    """What is wrong with the model that the settings name, as far as lock, policy and this controller's files tell.

    One sentence each; headers are read, no whole files.
    """
    if settings.model.way == "bundle" and not settings.bundle.path:
        return []  # the settings themselves are wrong
    try:
        model, found = wanted(settings), pinned(settings)
    except ModelError as e:
        return [str(e)]
    out = list(_of_pin(settings, *found)) if found else []
    if settings.model.way in ("path", "bundle") and not settings.model.on_host:
        out += _of_files(settings, model)
    return out


def _of_pin(settings: Settings, name: str, pin: lock.ModelPin) -> Iterator[str]:
    if refusal := pin.refusal(name, settings.model.mmproj is True):
        yield f"model.name: {refusal}"
    claim = model_policy.Claim(
        repo=pin.repo, licence=pin.licence, card_bases=(pin.base_model.repo,), names=(name, *(file.path for file in pin.files))
    )
    for sentence in model_policy.refusals(
        claim,
        settings.model.allow_unofficial,
        (*model_policy.PUBLISHERS, *settings.model.publishers),
        (*model_policy.LICENCES, *settings.model.licences),
    ):
        yield f"model.name: {sentence}"


def _of_files(settings: Settings, model: Model) -> Iterator[str]:
    """What is wrong with files on this controller."""
    from wsllama import digest

    absent = [file.place for file in model.every if not os.path.isfile(file.place)]
    for path in absent:
        yield (
            f'model.path: there is no file {path} on this machine; give another path, or set model.on to "host" when it is there'
        )
    if absent:
        return
    try:
        for file in model.every:
            known = digest.known(file.place)
            if file.sha256 and known and known != file.sha256:
                where = "model.sha256" if model.pin is None else "model.path"
                yield f"{where}: {file.place} has sha256 {known}, not {file.sha256}: give the right file, or the right sum"
        same = tuple((file.place, *digest.identity(os.stat(file.place))) for file in model.every)
    except OSError as e:
        yield f"model.path: {e.filename}: {e.strerror}"
        return
    for sentence in _unfit(same, len(model.files), settings.model.allow_unofficial):
        yield f"model.path: {sentence}"


@lru_cache(maxsize=32)
def _unfit(files: tuple[tuple[str | int, ...], ...], shards: int, allow_unofficial: bool) -> tuple[str, ...]:
    """Why these files can't be served as one model: asked once for all hosts of a run that have the same, because the header of
    a real model takes a quarter of a second to read.

    files: path and what tells that it is the same still, of the shards in order, then of the projector
    """
    from wsllama.host import model as program

    seen = []
    for path, *_ in files:
        file = program.seen(str(path), os.path.basename(str(path)))
        cut = gguf.cut_off(file.header, file.size) if file.header and file.size < file.header.expected_size else None
        if problem := file.problem or cut:
            return (f"{path}: {problem}",)
        seen.append(file)
    return tuple(program.judged(seen[:shards], seen[shards] if seen[shards:] else None, allow_unofficial).problems)
