"""Whether a host can be provisioned at all, said before its first change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyinfra import state

from wsllama import layout
from wsllama.domain import readiness
from wsllama.facts import probe
from wsllama.operations import bundle, cuda, llama_cpp, model, plan, windows
from wsllama.operations.base import Later, Refused, ask_host, fail, resource, tell
from wsllama.settings import Settings

_LOOK = dict.fromkeys(["systemd", "wsl", "distro", "root", "python"])


def _looks(settings: Settings) -> probe.Looks:
    disk = dict.fromkeys([layout.ROOT, layout.CACHE, layout.MODELS, *([cuda.LOCAL] if settings.backend == "cuda" else [])])
    own: probe.Looks = {"disk": disk, "ports": {str(settings.server.port): None}, "system": dict(_LOOK)}
    own["incoming"] = {layout.MODELS: None}
    side = windows.look(settings) if settings.platform == "wsl" and settings.wsl.windows else {}
    return probe.together(own, llama_cpp.looks(settings), model.looks(settings), plan.looks(settings), side)


@resource(_looks)
def ready(now: Any, settings: Settings) -> Iterator[Any]:
    """The host can be provisioned: otherwise it fails here, with every reason at once, and nothing was changed on it.

    + settings: the host's
    """
    problems = readiness.problems(
        now["system"],
        platform=settings.platform,
        port=settings.server.port,
        port_owner=now["ports"][str(settings.server.port)],
        own_unit=layout.UNIT,
    )
    if not problems:
        problems += _missing(now, settings)
    if problems:
        yield fail("\n".join(problems))


def _missing(now: Any, settings: Settings) -> list[str]:
    """What this run has to bring, and why it can't: no space, no file, no way to its source."""
    out, need = [], {layout.ROOT: 0, layout.CACHE: 0, layout.MODELS: 0}
    try:
        names = llama_cpp.package_names(now)
    except Refused as e:
        return [str(e)]
    lacks = [name for name in names if not now["packages"][name]]
    built, made = _built(now, settings), False
    if not built:
        try:
            made = not llama_cpp.is_kept(now, settings)
            for path, size in llama_cpp.space(now, settings, made=made).items():
                need[path] = need.get(path, 0) + size
            if made:
                llama_cpp.source_of(settings)
        except Refused as e:
            out.append(str(e))
    try:
        bytes_of_model, problems = model.to_bring(now, settings)
        model.token(settings)
    except Refused as e:
        bytes_of_model, problems = 0, [str(e)]
    need[layout.MODELS] += bytes_of_model
    out += problems or plan.problems(now, settings)
    if bundle.used(settings):
        out += _not_in_bundle(now, settings, need, bool(lacks), not built, made)
        lacks, made = [], False
    else:
        out += _space(now, need)
    if state.is_executing and not problems:
        out += _unreachable(settings, bool(lacks), made, model.to_try(now, settings))
    return list(dict.fromkeys(out))  # of a bundle's source both speak


def _not_in_bundle(now: Any, settings: Settings, need: dict[str, int], packages: bool, build: bool, made: bool) -> list[str]:
    """What the bundle can't bring, and what doesn't fit."""
    distro = now["system"]["distro"]
    try:
        need[layout.CACHE] += bundle.room(distro, settings) if packages else 0
        kit = cuda.wheels_to_bring(now, settings) if made else None
        files = model.to_send(now, settings)
        out = bundle.problems(distro, settings, packages=packages, build=build, toolkit=kit, model=files)
    except Refused as e:
        out = [str(e)]
    return out + _space(now, need)


def _space(now: Any, need: dict[str, int]) -> list[str]:
    """What doesn't fit into the guest, or on the drive of Windows that the guest's disk grows on."""
    windows = now["windows"]["side"]["free_bytes"] if "windows" in now else None
    return readiness.space(need, now["disk"]) + readiness.windows_space(sum(need.values()), windows)


def _built(now: Any, settings: Settings) -> bool:
    """Whether the build is there. Its id isn't known without the toolchain; then one of that commit has to do."""
    there = now["builds"][layout.BUILDS]
    try:
        return bool(there.get(llama_cpp.build_id(now, settings)))
    except Refused:
        return True  # no toolkit for its GPU: the guards of the next stage say why, and end this host
    except Later:
        return any(b and b["commit"] == llama_cpp.commit_of(settings) for b in there.values())


def _unreachable(settings: Settings, apt: bool, build: bool, file: dict[str, Any] | None) -> list[str]:
    """Sources that the host itself fetches from and can't reach; asks only for those that this run needs. file: of the model."""
    git = (settings.llama_cpp.git_url or llama_cpp.pin().git) if build and settings.llama_cpp.source == "git" else None
    sources = [*(["apt"] if apt else []), *([git] if git else []), *([file["url"]] if file else [])]
    if not sources:
        return []
    tell(f"trying the sources: {', '.join(sources)}")
    ca = settings.network.ca_file and _text(settings)
    argument = {"apt": apt, "git": git, "model": file, "proxy": settings.network.proxy, "ca": ca}
    blocked: list[str] = ask_host("reach", argument)["blocked"]
    return blocked


def _text(settings: Settings) -> str:
    with open(str(settings.network.ca_file), encoding="utf-8") as f:
        return f.read()
