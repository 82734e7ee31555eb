"""The model's files on a host: installed whole and verified, never hashed again while nothing moved."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyinfra import host, state

from wsllama import digest, host_venv, hub, layout, model_files, transfer
from wsllama.domain import housekeeping, network
from wsllama.facts import probe
from wsllama.host.venv import site
from wsllama.index import SourceError
from wsllama.model_files import File, Model
from wsllama.operations import bundle
from wsllama.operations.base import Later, Refused, follow, in_thread, on_host, resource, send, tell
from wsllama.settings import Settings

# A copy of 100 GB from a slow disk takes hours; what hangs longer than this many seconds is ended.
TIME_LIMIT_S = 12 * 3600
FETCH_TIME_LIMIT_S = housekeeping.LONGEST_RUN_S
ARCHIVE = f"{layout.CACHE}/venv.tar"
MODE = {"mode": "640", "user": "root", "group": layout.USER}


def is_on_host(settings: Settings) -> bool:
    """Whether the path is one of the host itself: said so, or the host is this machine."""
    of_file = settings.model.way in ("path", "bundle")
    return of_file and (settings.model.on_host or host.connector_cls.__name__ == "LocalConnector")


def _wanted(settings: Settings) -> Model:
    try:
        return model_files.wanted(settings)
    except model_files.ModelError as e:
        raise Refused(str(e)) from e


def looks(settings: Settings) -> probe.Looks:
    """What is installed, and the originals when they lie on the host."""
    out: probe.Looks = {"models": {layout.MODELS: None}}
    if is_on_host(settings):
        out["originals"] = dict.fromkeys(file.place for file in _wanted(settings).every)
    if settings.model.way == "hub":
        out["system"] = {"python": None, "arch": None}
    return out


def _original(now: Any, settings: Settings, file: File) -> dict[str, Any] | None:
    """What tells of the original that it is the same still; None when it isn't there."""
    if is_on_host(settings):
        seen = now["originals"][file.place]
        return {"on": "host", **seen} if seen and "why" not in seen else None
    s = os.stat(file.place)
    return {
        "on": "controller",
        "path": os.path.realpath(file.place),
        "size": s.st_size,
        "mtime_ns": s.st_mtime_ns,
        "inode": s.st_ino,
    }


def _installed_each(now: Any, settings: Settings, model: Model) -> dict[str, str | None]:
    """name -> what `_installed` says of it; a shard counts only in the folder of the first, where llama-server looks for it."""
    found = {file.name: _installed(now, settings, file) for file in model.every}
    folder = str(found[model.files[0].name]).rpartition("/")[0]
    apart = [file.name for file in model.files[1:] if str(found[file.name]).rpartition("/")[0] != folder]
    return {**found, **dict.fromkeys(apart)}


def _installed(now: Any, settings: Settings, file: File) -> str | None:
    """`folder/name` of the whole installed file, below the folder of models; None when it isn't there.

    With a sha256 that decides; else the stamp must say that it was made of the original as it is now. An original that is
    gone from the host leaves what was installed from it.
    """
    whole = {f: s for f, s in now["models"][layout.MODELS].items() if s["intact"] and f.rsplit("/", 1)[1] == file.name}
    if file.sha256:
        return next((f for f, s in whole.items() if s["sha256"] == file.sha256), None)
    original = _original(now, settings, file)
    if original is None:
        gone = [f for f, s in whole.items() if s["source"].get("path") == file.place]
        return gone[-1] if len(gone) == 1 else None
    known = None if is_on_host(settings) else digest.known(file.place)
    return next((f for f, s in whole.items() if s["source"] == original or (known and s["sha256"] == known)), None)


def installed_files(now: Any, settings: Settings) -> list[str] | None:
    """Each file of the model as `_installed` has it: shards in order, then the projector; None while one isn't there."""
    found = _installed_each(now, settings, _wanted(settings)).values()
    return [str(file) for file in found] if all(found) else None


def to_bring(now: Any, settings: Settings) -> tuple[int, list[str]]:
    """Bytes that the host has to take, and sentences when they can't be had."""
    size, problems, model = 0, list[str](), _wanted(settings)
    there = _installed_each(now, settings, model)
    for file in model.every:
        if there[file.name]:
            continue
        if settings.model.way not in ("path", "bundle"):
            size += max(0, file.about - _arrived(now, file))
            continue
        original = _original(now, settings, file)
        if original is None:
            why = (now["originals"][file.place] or {}).get("why")
            problems.append(f"model.path: {why or f'there is no file {file.place} on the host'}")
        else:
            size += max(0, int(original["size"]) - _arrived(now, file))
            if file.size not in (None, original["size"]):
                problems.append(
                    f"model.path: {file.place} has {original['size']} bytes where the lock has {file.size}: it is cut off, or"
                    " another file"
                )
    return size, problems


def _arrived(now: Any, file: File) -> int:
    """Bytes of a file that an earlier run brought: they take no more room, whether they are gone on with or overwritten."""
    part = re.compile(rf"{re.escape(file.name)}-(\d+\.part|{file.sha256}\.whole)")
    return sum(came["size"] for name, came in now["incoming"][layout.MODELS].items() if part.fullmatch(name))


def to_send(now: Any, settings: Settings) -> list[str]:
    """Paths on this machine of the files that the host lacks."""
    if settings.model.way not in ("path", "bundle") or settings.model.on_host:
        return []
    model = _wanted(settings)
    there = _installed_each(now, settings, model)
    return [file.place for file in model.every if not there[file.name]]


def to_try(now: Any, settings: Settings) -> dict[str, Any] | None:
    """For wsllama/host/reach.py: one file that the host has to download itself; None when there is none. Raises Refused."""
    model = _wanted(settings)
    there = _installed_each(now, settings, model)
    lacking = [file for file in model.every if not there[file.name]]
    if settings.model.way not in ("hub", "url") or not lacking:
        return None
    if settings.model.way == "url":
        return {"hub": False, "url": lacking[0].place, "token": None}
    assert model.pin is not None  # Settings refuses it
    url = hub.address(model.pin.repo, model.pin.revision, lacking[0].place, settings.model.endpoint)
    return {"hub": True, "url": url, "token": token(settings)}


@resource(looks)
def installed(now: Any, settings: Settings) -> Iterator[Any]:
    """The model that the settings name is installed, and only root can write it.

    + settings: the host's
    """
    model = _wanted(settings)
    there = _installed_each(now, settings, model)
    lacking = [file for file in model.every if not there[file.name]]
    if lacking:
        names = ", ".join(file.name for file in lacking)
        tell(f"{names}: to be installed", names, "absent, or not as it was verified", "installed")
        _mind_projector(settings, model)
        how = {"hub": _from_hub, "url": _from_web}.get(settings.model.way, _from_host if is_on_host(settings) else _from_here)
        yield from how(now, settings, model, lacking)
    yield from _owned(now, [file for file in there.values() if file])


def _mind_projector(settings: Settings, model: Model) -> None:
    """Say when nothing tells that a projector is of the model's repository and revision."""
    if model.pin is None or model.mmproj is None or not isinstance(settings.model.mmproj, str):
        return
    known = None if is_on_host(settings) else digest.known(model.mmproj.place)
    if model.pin.mmproj is None or known is None or known != model.pin.mmproj.sha256:
        tell(
            f"warning: model.mmproj: nothing tells that {model.mmproj.place} is of {model.pin.repo} at"
            f" {model.pin.revision[:12]}, as the model is: set it to True for the lock's"
        )


def _owned(now: Any, found: list[str]) -> Iterator[Any]:
    """What is installed may be read by the service, and written by root alone."""
    seen = now["models"][layout.MODELS]
    if wrong := [f for f in found if any(seen[f].get(key) != value for key, value in MODE.items())]:
        tell(
            f"{', '.join(wrong)}: mode or owner set",
            ", ".join(f"{layout.MODELS}/{f}" for f in wrong),
            "other mode or owner",
            "root:llama 640",
        )
        yield on_host("apply", [{"path": f"{layout.MODELS}/{f}", "kind": "file", **MODE} for f in wrong], "model")


def _kept_looks(settings: Settings) -> probe.Looks:
    if settings.model.keep_models is None:
        return {}
    return probe.together(looks(settings), {"releases": {layout.ROOT: None}, "incoming": {layout.MODELS: None}})


@resource(_kept_looks)
def kept(now: Any, settings: Settings) -> Iterator[Any]:
    """Of the models that neither the current nor the last good release needs only the newest stay, as many as are wanted.

    What another run may be about to switch to stays, too; what was left of copies and downloads goes when no run can need it.

    + settings: the host's
    """
    keep = settings.model.keep_models
    if keep is None or not state.is_executing:
        return  # before acceptance nobody knows what will be needed
    models, wanted = now["models"][layout.MODELS], installed_files(now, settings) or []
    releases, incoming = now["releases"][layout.ROOT], now["incoming"][layout.MODELS]
    stays = housekeeping.needed(releases) | {file.split("/")[0] for file in wanted}
    folders = [f for f in housekeeping.to_remove(models, stays, keep) if f not in housekeeping.awaited(models)]
    unfinished = housekeeping.abandoned(incoming)
    if folders:
        freed, left = housekeeping.total(models, folders), housekeeping.total(models) - housekeeping.total(models, folders)
        tell(f"models removed: {', '.join(folders)}: {freed / 1e9:.1f} GB are free again, {left / 1e9:.1f} GB of models stay")
    if unfinished:
        freed = sum(incoming[name]["size"] for name in unfinished)
        tell(f"unfinished files removed: {', '.join(unfinished)}: {freed / 1e9:.1f} GB are free again")
    if folders or unfinished:
        argument = {"root": layout.ROOT, "models": layout.MODELS, "folders": folders, "incoming": unfinished}
        yield on_host("prune", argument, "models")


def _argument(settings: Settings, model: Model, sums: dict[str, str] | None = None) -> dict[str, Any]:
    """What wsllama/host/model.py has to know of the whole model. sums: name -> sha256, of what has none yet."""

    def entry(file: File) -> dict[str, Any]:
        return {"name": file.name, "size": file.size, "sha256": file.sha256 or (sums or {}).get(file.name)}

    return {
        "root": layout.MODELS,
        "group": layout.USER,
        "allow_unofficial": settings.model.allow_unofficial,
        "files": [entry(file) for file in model.files],
        "mmproj": entry(model.mmproj) if model.mmproj else None,
    }


def _key(*of: Any) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]


def _placed(argument: dict[str, Any], model: Model, key: str) -> dict[str, Any]:
    """The argument with the place of each file, below `key`."""
    for entry, file in zip([*argument["files"], argument["mmproj"]], model.every, strict=False):
        entry[key] = file.place
    return argument


def _from_host(now: Any, settings: Settings, model: Model, lacking: list[File]) -> Iterator[Any]:
    argument = _placed(_argument(settings, model, {} if settings.model.on_host else _of_bundle(settings, model)), model, "path")
    key = _key(argument, [_original(now, settings, file) for file in model.every])
    yield follow("model", argument, key=key, limit_s=TIME_LIMIT_S)


def _from_here(now: Any, settings: Settings, model: Model, lacking: list[File]) -> Iterator[Any]:
    """Of several files the sums have to be known before the first is sent, so that the host knows when it has all."""
    sums = _of_bundle(settings, model)
    if len(model.every) > 1 and state.is_executing:
        for file in model.every:
            if not file.sha256 and file.name not in sums:
                sums[file.name] = in_thread(digest.sha256_of, file.place)
    more = _argument(settings, model, sums)
    of_one = {key: more[key] for key in ("group", "allow_unofficial")}
    for file in lacking:
        sha256 = file.sha256 or sums.get(file.name)
        yield send(
            transfer.send_model,
            Path(file.place),
            root=layout.MODELS,
            name=file.name,
            sha256=sha256,
            more=more if len(model.every) > 1 else of_one,
        )


def _of_bundle(settings: Settings, model: Model) -> dict[str, str]:
    """name -> sha256 by the manifest of the bundle, of the files that are in one."""
    found = {file.name: bundle.sha256_of(settings, file.place) for file in model.every}
    return {name: sha256 for name, sha256 in found.items() if sha256}


def _from_web(now: Any, settings: Settings, model: Model, lacking: list[File]) -> Iterator[Any]:
    argument = {**_placed(_argument(settings, model), model, "place"), "hub": None}
    yield follow("fetch", argument, key=_key(argument), limit_s=FETCH_TIME_LIMIT_S, environment=_environment(settings))


def _from_hub(now: Any, settings: Settings, model: Model, lacking: list[File]) -> Iterator[Any]:
    assert model.pin is not None  # Settings refuses it
    python, machine = now["system"]["python"], now["system"]["arch"]
    try:
        venv = host_venv.wanted(python, machine)
    except SourceError as e:
        raise Refused(str(e)) from e
    folder = f"{layout.VENVS}/{venv.key}"
    if not probe.see({"stamps": {f"{folder}/whole": None}})["stamps"][f"{folder}/whole"]:
        yield from _venv(settings, venv)
    where = {
        "repo": model.pin.repo,
        "revision": model.pin.revision,
        "endpoint": settings.model.endpoint or os.environ.get("HF_ENDPOINT"),
        "site": site(folder, venv.python),
        "token": None,
    }
    argument = {**_placed(_argument(settings, model), model, "place"), "hub": where}
    key = _key(argument)  # a token isn't part of the work
    where["token"] = token(settings)
    yield follow("fetch", argument, key=key, limit_s=FETCH_TIME_LIMIT_S, environment=_environment(settings))


def _venv(settings: Settings, venv: host_venv.Wanted) -> Iterator[Any]:
    """The Hub's client, on the host, from wheels that were fetched here."""
    if not state.is_executing:
        raise Later("the host's venv is not there yet")
    tell(f"venv {venv.key}: to be made")
    environment = network.environment(settings.network.proxy, settings.network.ca_file)
    try:
        archive = host_venv.archive(venv, environment=environment)
    except SourceError as e:
        raise Refused(str(e)) from e
    yield send(transfer.send_file, archive, ARCHIVE)
    yield on_host("venv", {"root": layout.VENVS, "key": venv.key, "python": venv.python, "archive": ARCHIVE}, venv.key)


def _environment(settings: Settings) -> dict[str, str]:
    return network.environment(settings.network.proxy, layout.CA_FILE if settings.network.ca_file else None)


def token(settings: Settings) -> str | None:
    """The token of the Hub in the file that the settings name. Raises Refused."""
    if settings.model.token_file is None:
        return None
    try:
        found = Path(settings.model.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise Refused(f"model.token_file: {settings.model.token_file} can't be read: {e}") from e
    if not found or not found.isascii() or not found.isprintable() or " " in found:
        raise Refused(f"model.token_file: {settings.model.token_file} holds no token: put one into it, as the Hub shows it")
    return found
