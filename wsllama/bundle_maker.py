"""Makes a bundle (wsllama/bundle.py) for hosts like those of an inventory, which are connected and reach their sources.

Every file is written aside, verified and renamed; one that is there already, whole, is not fetched again. The manifest
comes last: a bundle that was not finished has none, or one that does not fit.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from wsllama import artifacts, digest, layout, sources, transfer, wheels, whole
from wsllama import lock as pins
from wsllama.bundle import BOM, INDEX, MANIFEST, BundleError, Entry, Kind, Manifest, lock_sha256, read_manifest, sha256_of
from wsllama.domain import bom, gguf, network
from wsllama.facts import probe
from wsllama.host.debs import NAME as DEB
from wsllama.host.receive import DROP_EVERY, Progress
from wsllama.remote import Fleet, RemoteError
from wsllama.settings import LOCK, Settings

ASIDE = f"{layout.CACHE}/bundle"  # apt's folder on a connected host
FOLDERS = ("sources", "wheels", "builds", "debs", "models")
Say = Callable[[str], None]


@dataclass
class Wanted:
    """What hosts need, as one of each kind told it.

    + packages: distro -> name -> exact version, None for the newest; asked: distro -> the host that is asked for them
    + cuda: releases whose wheels are needed; builds: ids that the controller's cache has
    + models: name of a file -> its path here; locked: name in the lock -> settings that want it from there
    """

    packages: dict[str, dict[str, str | None]] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    cuda: set[str] = field(default_factory=set)
    builds: set[str] = field(default_factory=set)
    models: dict[str, Path] = field(default_factory=dict)
    locked: dict[str, Settings] = field(default_factory=dict)


def wanted_by(fleet: Fleet, with_model: bool, say: Say) -> Wanted:
    """Ask all connected hosts. Raises BundleError with a sentence for the first one whose needs no bundle can bring."""
    from wsllama.guard import settings_of
    from wsllama.operations import cuda, llama_cpp
    from wsllama.operations.base import Later, Refused

    out = Wanted()
    for host in fleet.hosts:
        settings: Settings = settings_of(host)
        try:
            if llama_cpp.commit_of(settings) != llama_cpp.pin().commit:
                raise Refused(f"a bundle holds the commit of wsllama.lock only, not {llama_cpp.commit_of(settings)}")
            if with_model:
                _want_model(out, settings)
            with fleet.asking(host):
                now = probe.see(llama_cpp.looks(settings))
            distro = now["system"]["distro"]
            out.asked.setdefault(distro, host)
            names = out.packages.setdefault(distro, {})
            names.update(dict.fromkeys(llama_cpp.package_names(now)))
            kit = cuda.toolkit_of(now, settings) if settings.backend == "cuda" else None
            if kit and kit.provider == "apt":
                names.update(kit.packages)
                out.asked[distro] = host  # one that has the repository
            elif kit and kit.provider == "wheels":
                out.cuda.add(kit.release)
            elif kit:
                say(f"{host.name}: its CUDA toolkit in {kit.root} is not ours, so the bundle has none for hosts like it")
            if artifacts.known(build_id := llama_cpp.build_id(now, settings)):
                out.builds.add(build_id)
        except Later:  # without its toolchain nobody knows its build
            pass
        except (Refused, RemoteError, RuntimeError) as e:
            raise BundleError(f"{host.name}: {e}") from e
    return out


def _want_model(out: Wanted, settings: Settings) -> None:
    """Note the model that the settings name: files of this machine, or one of the lock. Raises Refused."""
    from wsllama import model_files
    from wsllama.operations.base import Refused

    model = settings.model
    try:
        pinned = model_files.pinned(settings)
        if model.way == "path" and not model.on_host:
            out.models.update({file.name: Path(file.place) for file in model_files.wanted(settings).every})
        elif pinned:
            out.locked[pinned[0]] = settings
        else:
            where = f"on the host ({model.path})" if model.path else f"at {model.url}"
            raise Refused(
                f"the model is {where}: give its name in wsllama.lock, a path on this machine, or leave out --with-model"
            )
    except model_files.ModelError as e:
        raise Refused(str(e)) from e


def _of_lock(name: str, settings: Settings, say: Say) -> dict[str, Path]:
    """The files of a model of the lock, by their names: from this machine, else downloaded. Raises BundleError."""
    from wsllama import mirror, model_files
    from wsllama.operations.base import Refused
    from wsllama.operations.model import token

    found = model_files.pinned(settings)
    assert found is not None
    projector = settings.model.mmproj is True
    files = [*found[1].files, *([found[1].mmproj] if projector and found[1].mmproj else [])]
    here = {file.name: digest.path_of(file.sha256) for file in files if file.sha256}
    if len(here) == len(files) and all(here.values()):
        return {file: path for file, path in here.items() if path}
    say(f"{name}: taken from the Hub, where this machine doesn't have it")
    try:
        model = settings.model
        paths = mirror.bring(
            *found, mmproj=projector, token=token(settings), endpoint=model.endpoint, allow_unofficial=model.allow_unofficial
        )
    except (mirror.MirrorError, Refused) as e:
        raise BundleError(str(e)) from e
    return {path.name: path for path in paths}


def bring_models(wanted: Wanted, maker: Maker) -> None:
    """Put the models that are wanted into a bundle. Raises BundleError or OSError."""
    found = dict(wanted.models)
    for name, settings in sorted(wanted.locked.items()):
        found.update(_of_lock(name, settings, maker.say))
    for name, path in sorted(found.items()):
        maker.model(path, name)


class Maker:
    """One bundle that is being made in `out`.

    say: gets lines of progress. Raises BundleError when `out` holds something else.
    """

    def __init__(self, out: Path, lock: Path, say: Say) -> None:
        self.out, self.say, self.lock_sha256, self.pins = out, say, lock_sha256(lock), pins.load(lock)
        self.files: dict[str, Entry] = {}
        self.bill: list[bom.Component] = []
        self.fetched = 0  # bytes that were written
        strange = [p.name for p in out.iterdir() if p.name not in (*FOLDERS, MANIFEST, BOM)] if out.is_dir() else []
        if strange or (out.exists() and not out.is_dir()):
            what = f"holds {sorted(strange)[0]}" if strange else "is a file"
            raise BundleError(f"{out} {what}, so it is no bundle: give a new or empty folder")
        self.before = read_manifest(out)

    # Files

    def there(self, name: str, kind: Kind, sha256: str, size: int) -> bool:
        """Whether this file is in the bundle with these bytes already."""
        path = self.out / name
        return path.is_file() and path.stat().st_size == size and sha256_of(path, kind) == sha256

    def note(self, name: str, kind: Kind, sha256: str, size: int) -> None:
        self.files[name] = Entry(kind=kind, sha256=sha256, size=size)

    def copy(self, source: Path, name: str, kind: Kind, sha256: str) -> None:
        """Bring a file of this machine. Raises BundleError when it isn't what it has to be."""
        size = source.stat().st_size
        if not self.there(name, kind, sha256, size):
            progress = Progress(f"copy of {source.name}", size, 0, self.say)
            found = hashlib.sha256()

            def fill(out: BinaryIO) -> None:
                with source.open("rb") as file:
                    while block := file.read(digest.BLOCK):
                        found.update(block)
                        out.write(block)
                        progress.at(out.tell())
                        if out.tell() % DROP_EVERY < digest.BLOCK or out.tell() == size:
                            _drop(file, out)
                if found.hexdigest() != sha256:
                    raise BundleError(f"{source} has sha256 {found.hexdigest()} instead of {sha256}")

            self.write(name, fill)
            self.fetched += size
        self.note(name, kind, sha256, size)

    def write(self, name: str, fill: Callable[[Any], object]) -> None:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole.write(path, fill)
        path.chmod(0o644)

    def text(self, name: str, kind: Kind, text: str) -> None:
        data = text.encode()
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.there(name, kind, sha256, len(data)):
            self.write(name, lambda out: out.write(data))
        self.note(name, kind, sha256, len(data))

    # What is in it

    def source(self, environment: Mapping[str, str]) -> None:
        """llama.cpp, as the lock pins it. Raises SourceError."""
        pin = self.pins.llama_cpp
        name = f"sources/{sources.sdist_name(pin)}"
        sdist = self.out / name
        if not (sdist.is_file() and sha256_of(sdist, "source") == pin.sdist.sha256):
            sdist = sources.fetch_sdist(pin, environment=environment)
        self.copy(sdist, name, "source", pin.sdist.sha256)
        more = {"tree": pin.tree, "build-number": str(pin.build_number), "in": name}
        purl = bom.of_git(pin.git, pin.commit)
        self.bill.append(bom.component("application", "llama.cpp", pin.version, purl, licence="MIT", more=more))
        of = bom.of_pypi(pin.sdist.name, pin.sdist.version)
        self.bill.append(
            bom.component("library", pin.sdist.name, pin.sdist.version, of, path=name, sha256=pin.sdist.sha256, licence="MIT")
        )

    def cuda(self, release: str, environment: Mapping[str, str]) -> None:
        """The wheels of a CUDA release. Raises SourceError."""
        pin = wheels.pinned(self.pins.cuda, release)
        names = {package: f"wheels/{wheel.file}" for package, wheel in pin.packages.items()}
        have = all(self.there(names[package], "wheel", wheel.sha256, wheel.size) for package, wheel in pin.packages.items())
        here = {p: self.out / n for p, n in names.items()} if have else wheels.fetch(pin, environment=environment)
        for package, wheel in pin.packages.items():
            name = names[package]
            self.copy(here[package], name, "wheel", wheel.sha256)
            of, licence = bom.of_pypi(package, wheel.version), _licence(self.out / name)
            self.bill.append(
                bom.component("library", package, wheel.version, of, path=name, sha256=wheel.sha256, licence=licence)
            )

    def build(self, build_id: str) -> None:
        """A build of the controller's cache. Raises ArtifactError when it is damaged."""
        if not (found := artifacts.verified(build_id)):
            return
        name = f"builds/{build_id}"
        self.copy(found.path, f"{name}.tar.gz", "build", found.sha256)
        about = found.path.with_name(f"{build_id}.json").read_text()
        self.text(f"{name}.json", "build", about)
        version, path = str(found.record["version"]), f"{name}.tar.gz"
        more = {"commit": str(found.record["commit"])}
        self.bill.append(
            bom.component("application", f"llama.cpp build {build_id}", version, None, path=path, sha256=found.sha256, more=more)
        )

    def model(self, path: Path, called: str) -> None:
        """A model's file of this machine, by the name that hosts keep it by. Raises OSError."""
        sha256, name = digest.sha256_of(path), f"models/{called}"
        self.copy(path, name, "model", sha256)
        with path.open("rb") as stream:
            said = gguf.read(stream, path.stat().st_size).metadata
        version, licence = said.get("general.version"), said.get("general.license")
        self.bill.append(
            bom.component(
                "machine-learning-model",
                called,
                str(version) if version else None,
                None,
                path=name,
                sha256=sha256,
                licence=_spdx(str(licence)) if licence else None,
            )
        )

    def packages(self, fleet: Fleet, host: Any, distro: str, wanted: Mapping[str, str | None]) -> None:
        """The packages of a distro and all that they need, from a host of it. Raises BundleError."""
        folder = f"debs/{distro}"
        try:
            self.say(f"{host.name}: what do {len(wanted)} packages of {distro} need?")
            found = fleet.run(host, "debs", {"action": "resolve", "folder": ASIDE, "packages": wanted})["files"]
            self.fetch(fleet, host, folder, found)
            fleet.run(host, "debs", {"action": "forget", "folder": ASIDE})
        except (RemoteError, transfer.TransferError) as e:
            raise BundleError(f"{host.name}: {e}") from e
        self.listed(distro, found)

    def listed(self, distro: str, found: list[dict[str, Any]]) -> None:
        """Note the packages of a distro that are here now, and write their index."""
        folder = f"debs/{distro}"
        for of in found:
            name = f"{folder}/{of['file']}"
            self.note(name, "package", of["sha256"], of["size"])
            purl = bom.of_deb(distro, of["package"], of["version"], of["architecture"])
            self.bill.append(bom.component("library", of["package"], of["version"], purl, path=name, sha256=of["sha256"]))
        self.text(f"{folder}/{INDEX}", "index", "\n".join(_stanza(of) for of in found))

    def fetch(self, fleet: Fleet, host: Any, folder: str, found: list[dict[str, Any]]) -> None:
        """Bring those of the files that a host told of, and that aren't here. Raises TransferError."""
        missing = [of for of in found if not self.there(f"{folder}/{of['file']}", "package", of["sha256"], of["size"])]
        if not missing:
            return
        size = sum(of["size"] for of in missing)
        self.say(f"{host.name}: {len(missing)} of {len(found)} files are fetched, {size / 1e6:.0f} MB")
        argument = {"action": "stream", "folder": ASIDE, "files": missing}
        with fleet.at(host):
            given = probe.arguments()
        with _Split(self, folder, missing) as out:
            transfer.fetch(host, "debs", argument, out, what="packages", say=self.say, arguments=given)  # type: ignore[arg-type]

    def finish(self) -> dict[str, Any]:
        """Write the bill and the manifest, and remove what an earlier one listed and this one doesn't. Returns a report."""
        self.text(BOM, "bom", bom.document("wsllama bundle", self.bill))
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        manifest = Manifest(version=1, created=created, lock=self.lock_sha256, files=dict(sorted(self.files.items())))
        changed = not self.before or self.before.model_copy(update={"created": created}) != manifest
        if changed:
            self.write(MANIFEST, lambda out: out.write(manifest.model_dump_json(indent=1).encode() + b"\n"))
            for name in set(self.before.files if self.before else ()) - set(self.files):
                (self.out / name).unlink(missing_ok=True)
        kinds: dict[str, dict[str, int]] = {}
        for entry in manifest.files.values():
            of = kinds.setdefault(entry.kind, {"files": 0, "bytes": 0})
            of["files"] += 1
            of["bytes"] += entry.size
        size = sum(of["bytes"] for of in kinds.values())
        models = [str(self.out / n) for n, e in manifest.files.items() if e.kind == "model"]
        return {
            "path": str(self.out),
            "changed": changed,
            "bytes": size,
            "fetched": self.fetched,
            "kinds": kinds,
            "distros": sorted({n.split("/")[1] for n, e in manifest.files.items() if e.kind == "index"}),
            "models": models,
        }


def _drop(source: BinaryIO, out: BinaryIO) -> None:
    """Let what was copied leave the page cache; only what is on the disk can."""
    out.flush()
    os.fdatasync(out.fileno())
    for file in (source, out):
        os.posix_fadvise(file.fileno(), 0, out.tell(), os.POSIX_FADV_DONTNEED)


class _Split:
    """Takes the stream of several files and puts each one into place once all of it came and is right."""

    def __init__(self, maker: Maker, folder: str, files: list[dict[str, Any]]) -> None:
        self.maker, self.folder, self.waiting = maker, maker.out / folder, list(files)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file: Any = None

    def __enter__(self) -> _Split:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file:  # the stream broke
            self.file.close()
            os.unlink(self.aside)

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            if not self.file:
                descriptor, self.aside = tempfile.mkstemp(dir=self.folder, prefix=".partial-")
                self.file = os.fdopen(descriptor, "wb")
                self.of, self.digest, self.left = self.waiting[0], hashlib.sha256(), self.waiting[0]["size"]
            piece, view = view[: self.left], view[self.left :]
            self.file.write(piece)
            self.digest.update(piece)
            self.left -= len(piece)
            if not self.left:
                self.place()
        return len(data)

    def place(self) -> None:
        name = self.of["file"]
        if self.digest.hexdigest() != self.of["sha256"] or not DEB.fullmatch(name):
            raise transfer.TransferError(f"{name} came with other bytes than apt's lists tell: run again")
        self.file.flush()
        os.fsync(self.file.fileno())
        os.fchmod(self.file.fileno(), 0o644)
        self.file.close()
        os.replace(self.aside, self.folder / name)
        self.file, self.maker.fetched = None, self.maker.fetched + self.of["size"]
        self.waiting.pop(0)


def _stanza(of: Mapping[str, Any]) -> str:
    """What a Packages file says of a package, whose file lies beside it.

    Ubuntu gives an update to a part of all machines first; apt would refuse the others what is in the bundle.
    """
    text = re.sub(r"^Phased-Update-Percentage: .*\n", "", of["stanza"], flags=re.M)
    return re.sub(r"^Filename: .*$", f"Filename: ./{of['file']}", text, flags=re.M) + "\n"


def _licence(wheel: Path) -> str | None:
    with zipfile.ZipFile(wheel) as archive:
        about = next((n for n in archive.namelist() if n.endswith(".dist-info/METADATA")), None)
        text = archive.read(about).decode("utf-8", "replace") if about else ""
    found = re.search(r"^License(?:-Expression)?: (.+)$", text, re.M)
    return found[1].strip() if found else None


def _spdx(licence: str) -> str:
    """GGUF writes licences in small letters."""
    return {"apache-2.0": "Apache-2.0", "mit": "MIT"}.get(licence, licence)


def make(fleet: Fleet, out: Path, *, with_model: bool, say: Say) -> dict[str, Any]:
    """Make or bring up to date the bundle in `out` for hosts like those that `fleet` is connected with.

    Returns {"path", "changed", "bytes", "fetched" (bytes that were not there), "kinds" (kind -> {"files", "bytes"}),
    "distros", "models"}. Raises BundleError, SourceError, ArtifactError, LockError or OSError; what came until then stays for
    the next time.
    """
    from wsllama.guard import settings_of

    maker = Maker(out, LOCK, say)
    wanted = wanted_by(fleet, with_model, say)
    first = settings_of(fleet.hosts[0]).network
    environment = network.environment(first.proxy, first.ca_file)
    maker.source(environment)
    for release in sorted(wanted.cuda):
        maker.cuda(release, environment)
    for build_id in sorted(wanted.builds):
        maker.build(build_id)
    bring_models(wanted, maker)
    for distro, names in sorted(wanted.packages.items()):
        maker.packages(fleet, wanted.asked[distro], distro, names)
    return maker.finish()
