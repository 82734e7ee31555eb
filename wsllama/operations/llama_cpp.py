"""llama.cpp on a host: built once for everything that determines the bytes, by one host of a run, and sent to the others.

The three operations are in this order because pyinfra waits for all hosts between two: what hosts lack is known before
one of them builds, and what was built is here before the others ask for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand
from pyinfra.context import ctx_host

from wsllama import artifacts, layout, lock, sources, transfer
from wsllama.domain import build as rules
from wsllama.domain import network
from wsllama.facts import probe
from wsllama.host.toolkit import TOOLKITS
from wsllama.operations import bundle, cuda
from wsllama.operations.base import Later, Refused, follow, in_thread, resource, send, tell
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
    sdist = bundle.sdist(settings, pin()) if wanted.source == "bundle" else None
    try:
        return sources.fetch(
            pin(),
            "sdist" if wanted.source == "bundle" else wanted.source,
            commit=wanted.commit,
            git_url=wanted.git_url,
            archive=wanted.archive,
            archive_sha256=wanted.archive_sha256,
            sdist=sdist,
            environment=environment,
        )
    except sources.SourceError as e:
        raise Refused(str(e)) from e


def looks(settings: Settings) -> probe.Looks:
    """What decides the build id, and which builds there are."""
    return probe.together(_package_looks(), {"system": dict(_MEASURE), "builds": {layout.BUILDS: None}}, cuda.looks(settings))


def _package_looks() -> probe.Looks:
    return {"system": {"distro": None}, "packages": dict.fromkeys(rules.every_package())}


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


@resource(lambda settings: _package_looks())
def packages(now: Any, settings: Settings) -> Iterator[Any]:
    """The packages that llama.cpp is built and run with are installed.

    + settings: the host's
    """
    names = package_names(now)
    if not bundle.used(settings):
        yield from install(now, names)
    elif missing := [name for name in names if not now["packages"][name]]:
        tell(f"packages missing: {' '.join(missing)}", " ".join(missing), "not installed", "installed")
        yield from bundle.install(now["system"]["distro"], settings, dict.fromkeys(missing))


def commit_of(settings: Settings) -> str:
    return settings.llama_cpp.commit or pin().commit


def _options(settings: Settings, kit: cuda.Toolkit | None) -> dict[str, str]:
    number = pin().build_number if commit_of(settings) == pin().commit else 0  # of another commit nobody told us the number
    return rules.cmake_options(
        commit_of(settings),
        number,
        backend=settings.backend,
        native=settings.llama_cpp.native,
        portable=settings.llama_cpp.portable,
        cuda=cuda.options(kit, settings) if kit else None,
    )


def _kit(now: Any, settings: Settings) -> cuda.Toolkit | None:
    return cuda.toolkit_of(now, settings) if settings.backend == "cuda" else None


def inputs(now: Any, settings: Settings) -> dict[str, object]:
    """Everything that determines the bytes of this host's build. Raises Later while the toolchain isn't installed."""
    versions = {name: now["packages"][name] for name in _packages(now).toolchain}
    if missing := [name for name, version in versions.items() if not version]:
        raise Later(f"the toolchain is not installed yet ({' '.join(missing)})")
    distro, _, release = now["system"]["distro"].partition("-")
    kit = _kit(now, settings)
    made_of = rules.inputs(
        commit=commit_of(settings),
        options=_options(settings, kit),
        targets=rules.TARGETS,
        versions=versions,
        architecture=now["system"]["arch"],
        distro=distro,
        release=release,
        cpu_flags=now["system"]["cpu"]["flags"],
        toolkit=kit.versions if kit else None,
    )
    if commit_of(settings) != pin().commit and settings.llama_cpp.archive_sha256:
        made_of["archive_sha256"] = settings.llama_cpp.archive_sha256  # no tree of the lock vouches for its commit
    return made_of


def _work_bytes(kit: cuda.Toolkit | None) -> int:
    return rules.CUDA_WORK_BYTES if kit else rules.WORK_BYTES


def space(now: Any, settings: Settings, *, made: bool = True) -> dict[str, int]:
    """Bytes that a build takes below these paths; when it is made here, with its work and the toolkit that it needs.

    Raises Refused where there is no toolkit.
    """
    kit = _kit(now, settings)
    need = {layout.ROOT: rules.CUDA_RESULT_BYTES if kit else rules.RESULT_BYTES}
    if not made:
        return need
    need[layout.CACHE] = _work_bytes(kit)
    if not kit:
        return need
    folders = {cuda.WHEELS: layout.CACHE, TOOLKITS: layout.ROOT, cuda.LOCAL: cuda.LOCAL}  # what their disk is asked for
    for path, size in cuda.space(kit).items():
        need[folders[path]] = need.get(folders[path], 0) + size
    return need


def build_id(now: Any, settings: Settings) -> str:
    """The id of this host's build."""
    return rules.build_id(inputs(now, settings))


def is_kept(now: Any, settings: Settings) -> bool:
    """Whether the host's build is known by now, and seems to be in the cache or in the bundle. Raises Refused."""
    try:
        return _kept(build_id(now, settings), settings)
    except Later:
        return False


class Lacking:
    """What one run of pyinfra has to do with builds.

    + hosts: build id -> names of the hosts that lack it
    + holders: build id -> names of the hosts that have it
    + ready: build id -> what is in the controller's cache, verified in this run
    + why: build id -> why it can't be had, where it isn't the builder that says so
    """

    def __init__(self) -> None:
        self.hosts: defaultdict[str, set[str]] = defaultdict(set)
        self.holders: defaultdict[str, set[str]] = defaultdict(set)
        self.ready: dict[str, artifacts.Artifact] = {}
        self.why: dict[str, str] = {}


def lacking() -> Lacking:
    """That of the run that goes on: kept with pyinfra's state, and gone with it."""
    found: Lacking = vars(host.state).setdefault("wsllama_lacking", Lacking())
    return found


def _absent(now: Any, name: str) -> bool:
    """Whether the host lacks this build; when executing, it is noted for the others."""
    absent = not now["builds"][layout.BUILDS].get(name)
    if state.is_executing:
        (lacking().hosts if absent else lacking().holders)[name].add(host.name)
    return absent


@resource(looks)
def announce(now: Any, settings: Settings) -> Iterator[Any]:
    """Which build the host lacks or has is known to the whole run. It changes nothing.

    + settings: the host's
    """
    if state.is_executing:
        _absent(now, build_id(now, settings))
    yield from ()


@resource(looks)
def build(now: Any, settings: Settings) -> Iterator[Any]:
    """A build that hosts lack is in the controller's cache: from a host of the run that has it, else the first of them by
    name makes it.

    + settings: the host's
    """
    made_of = inputs(now, settings)
    name = rules.build_id(made_of)
    if not _absent(now, name):
        return
    if state.is_executing:
        if host.name != min(lacking().hosts[name]) or _cached(name, settings) or _given(name):
            return
    elif _kept(name, settings):
        return
    tell(f"build {name} is {'not whole' if name in now['builds'][layout.BUILDS] else 'absent'}")
    if not state.is_executing:
        raise Later("a build is to be made")
    yield from _make(now, settings, name, made_of)
    yield _bring(name)


@resource(looks)
def receive(now: Any, settings: Settings) -> Iterator[Any]:
    """The build that the settings name is on the host, whole: one that another host has made comes from the cache.

    + settings: the host's
    """
    name = build_id(now, settings)
    if not _absent(now, name):
        return
    if not state.is_executing:
        if _kept(name, settings):
            tell(f"build {name} is absent, and here")
            raise Later("a build is to be sent")
        return  # it is to be made: that is said already
    run = lacking()
    if not (artifact := run.ready.get(name)):
        raise Refused(run.why.get(name) or f"build {name} failed on {min(run.hosts[name])}: see there")
    tell(f"build {name} comes from this machine")
    more = {"build_id": name, "sha256": artifact.sha256, "unpacked": artifact.unpacked}
    yield send(transfer.send_build, artifact.path, **more)


def _kept(name: str, settings: Settings) -> bool:
    """Whether the build seems to be here, in the cache or in a bundle."""
    return bool(artifacts.known(name)) or bundle.has_build(settings, name)


def _cached(name: str, settings: Settings) -> bool:
    """Whether the build is here, every byte of it; one that is damaged in the cache is made again. Raises Refused."""
    try:
        found = in_thread(artifacts.verified, name)
    except artifacts.ArtifactError as e:
        host.log(f"{e}; it is built again", log_func=logger.warning)
        found = None
    if found := found or bundle.build(settings, name):
        lacking().ready[name] = found
    return bool(found)


def _fetch(name: str, giver: Any) -> None:
    """Put a host's build into the cache. Raises TransferError or ArtifactError."""
    run = lacking()
    with ctx_host.use(giver):
        arguments = probe.arguments()  # its own sudo and the rest, whoever asks
    bring = partial(transfer.fetch_build, giver, name, say=lambda text: host.log(text), arguments=arguments)
    run.ready[name] = artifacts.keep(name, bring, needed=run.hosts)


def _given(name: str) -> bool:
    """Whether a host of this run that has the build gave it to the cache, the first by name that can; who would build asks."""
    for giver in sorted(lacking().holders[name]):
        tell(f"build {name} is on {giver}")
        try:
            _fetch(name, state.inventory.get_host(giver))
            return True
        except (transfer.TransferError, artifacts.ArtifactError) as e:
            host.log(f"{e}; it is not taken from {giver}", log_func=logger.warning)
    return False


def _bring(name: str) -> FunctionCommand:
    """A command that puts the host's build into the cache. If it can't, that is the others' failure: this host has it."""

    def call(state: Any, host: Any) -> bool:
        try:
            _fetch(name, host)
        except (transfer.TransferError, artifacts.ArtifactError) as e:
            why = lacking().why[name] = f"build {name} was made on {host.name} but is not here: {e}"
            host.log(why, log_func=logger.warning)
        return True

    return FunctionCommand(call, (), {})


def _make(now: Any, settings: Settings, name: str, made_of: dict[str, object]) -> Iterator[Any]:
    kit, source = _kit(now, settings), source_of(settings)
    if kit:
        yield from cuda.toolkit_commands(now, settings)
    path = f"{layout.SOURCES}/{source.sha256}.tar.gz"
    if source.path and source.sha256:
        yield send(transfer.send_file, source.path, path, sha256=source.sha256)
    measured, wanted = now["system"], settings.llama_cpp
    of_one = rules.BYTES_PER_CUDA_JOB if kit else rules.BYTES_PER_JOB
    argument = {
        "build_id": name,
        "source": source.for_host(path),
        "commit": source.commit,
        "options": _options(settings, kit),
        "targets": list(rules.TARGETS),
        "jobs": wanted.jobs or rules.jobs(measured["cores"], measured["memory_available"], of_one),
        "work_bytes": _work_bytes(kit),
        "inputs": made_of,
        "ccache_dir": f"{layout.CACHE}/ccache",
        "environment": network.environment(settings.network.proxy, layout.CA_FILE if settings.network.ca_file else None),
        "require_gpu": bool(kit) and settings.cuda.require_gpu,
        **({"toolkit": {"root": kit.root, "release": kit.release}} if kit else {}),
    }
    yield follow("build", argument, key=name, limit_s=wanted.time_limit_minutes * 60)
