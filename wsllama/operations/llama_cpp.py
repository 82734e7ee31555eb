"""llama.cpp on a host: its source is brought there and built, once for everything that determines the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pyinfra import state

from wsllama import layout, lock, sources, transfer
from wsllama.domain import build as rules
from wsllama.domain import network
from wsllama.facts import probe
from wsllama.operations.base import Later, Refused, follow, resource, send, tell
from wsllama.operations.files import ROOT, install
from wsllama.settings import Settings

_MEASURE = {"distro": None, "arch": None, "cores": None, "cpu": None, "memory_available": None}


@cache
def pin() -> lock.LlamaCppPin:
    """The lock's llama.cpp."""
    return lock.load(ROOT / "wsllama.lock").llama_cpp


def source_of(settings: Settings) -> sources.Source:
    """The verified source that the settings name; for `git` the host fetches it. Raises Refused with one sentence."""
    wanted = settings.llama_cpp
    environment = network.environment(settings.network.proxy, settings.network.ca_file)
    try:
        return sources.fetch(
            pin(),
            wanted.source,
            commit=wanted.commit,
            git_url=wanted.git_url,
            archive=wanted.archive,
            archive_sha256=wanted.archive_sha256,
            environment=environment,
        )
    except sources.SourceError as e:
        raise Refused(str(e)) from e


def looks() -> probe.Looks:
    """What decides the build id, and which builds there are."""
    return {"system": dict(_MEASURE), "packages": dict.fromkeys(rules.every_package()), "builds": {layout.BUILDS: None}}


def _packages(now: Any) -> rules.Packages:
    distro, _, release = now["system"]["distro"].partition("-")
    try:
        return rules.packages(distro, release)
    except ValueError as e:
        raise Refused(str(e)) from e


def package_names(now: Any) -> list[str]:
    """The packages that this host needs. Raises Refused for a distro that isn't supported."""
    found = _packages(now)
    return [*found.build, *found.run]


@resource(looks)
def packages(now: Any) -> Iterator[Any]:
    """The packages that llama.cpp is built and run with are installed."""
    yield from install(now, package_names(now))


def commit_of(settings: Settings) -> str:
    return settings.llama_cpp.commit or pin().commit


def _options(settings: Settings) -> dict[str, str]:
    number = pin().build_number if commit_of(settings) == pin().commit else 0  # of another commit nobody told us the number
    return rules.cmake_options(commit_of(settings), number, native=settings.llama_cpp.native)


def inputs(now: Any, settings: Settings) -> dict[str, object]:
    """Everything that determines the bytes of this host's build. Raises Later while the toolchain isn't installed."""
    versions = {name: now["packages"][name] for name in _packages(now).toolchain}
    if missing := [name for name, version in versions.items() if not version]:
        raise Later(f"the toolchain is not installed yet ({' '.join(missing)})")
    distro, _, release = now["system"]["distro"].partition("-")
    made_of = rules.inputs(
        commit=commit_of(settings),
        options=_options(settings),
        targets=rules.TARGETS,
        versions=versions,
        architecture=now["system"]["arch"],
        distro=distro,
        release=release,
        cpu_flags=now["system"]["cpu"]["flags"],
    )
    if commit_of(settings) != pin().commit and settings.llama_cpp.archive_sha256:
        made_of["archive_sha256"] = settings.llama_cpp.archive_sha256  # no tree of the lock vouches for its commit
    return made_of


def build_id(now: Any, settings: Settings) -> str:
    """The id of this host's build."""
    return rules.build_id(inputs(now, settings))


@resource(lambda settings: looks())
def build(now: Any, settings: Settings) -> Iterator[Any]:
    """The build that the settings name is on the host, whole.

    + settings: the host's
    """
    made_of = inputs(now, settings)
    name = rules.build_id(made_of)
    if now["builds"][layout.BUILDS].get(name):
        return
    tell(f"build {name} is {'not whole' if name in now['builds'][layout.BUILDS] else 'absent'}")
    if not state.is_executing:
        raise Later("a build is to be made")
    source = source_of(settings)
    path = f"{layout.SOURCES}/{source.sha256}.tar.gz"
    if source.path and source.sha256:
        yield send(transfer.send_file, source.path, path, sha256=source.sha256)
    measured, wanted = now["system"], settings.llama_cpp
    argument = {
        "build_id": name,
        "source": source.for_host(path),
        "commit": source.commit,
        "options": _options(settings),
        "targets": list(rules.TARGETS),
        "jobs": wanted.jobs or rules.jobs(measured["cores"], measured["memory_available"]),
        "inputs": made_of,
        "ccache_dir": f"{layout.CACHE}/ccache",
        "environment": network.environment(settings.network.proxy, layout.CA_FILE if settings.network.ca_file else None),
    }
    yield follow("build", argument, key=name, limit_s=wanted.time_limit_minutes * 60)
