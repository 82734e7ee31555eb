"""The source of llama.cpp on the controller: fetched, verified, and packed into an archive of always the same bytes.

    CACHE/<sdist name>-<version>.tar.gz   the source distribution as the index gave it, once its sha256 was right
    CACHE/<sha256>.tar.gz                 the tree that is sent to hosts, named by its content
    CACHE/<request>.json                  the answer to a request; later only size and time of that file are looked at
    CACHE/lock                            one fetch at a time

CACHE is ${XDG_CACHE_HOME:-~/.cache}/wsllama/sources.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import ssl
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from wsllama import index, whole
from wsllama.domain.build import git_blob, git_tree
from wsllama.host.build import too_old
from wsllama.index import SourceError as SourceError
from wsllama.lock import LlamaCppPin

Kind = Literal["sdist", "archive", "git"]

# Top folders of llama.cpp that no build of ours reads: three quarters of its bytes. The check of the tree has them.
LEFT_OUT = frozenset({"benches", "docs", "media", "models", "tests"})

# `pip download` asks the archive's build backend for metadata. This stands in for it, so nothing of the archive runs.
_STUB_MODULE = "scikit_build_core"
_STUB = """\
import os


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "{wheel}-{version}.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return name
"""


@dataclass(frozen=True)
class Source:
    """A verified source. For `git` the host fetches and verifies, so there is no file."""

    kind: Kind
    commit: str
    tree: str | None  # Git's hash of the files, where it is known
    path: Path | None = None
    sha256: str | None = None  # of that file
    size: int = 0  # of that file, bytes
    git_url: str | None = None

    def for_host(self, path: str) -> dict[str, str | None]:
        """The `source` of wsllama/host/build.py's argument; path: where the file lies on the host."""
        if self.kind == "git":
            return {"kind": "git", "url": self.git_url, "commit": self.commit, "tree": self.tree}
        return {"kind": "tar", "path": path, "sha256": self.sha256}


def default_cache() -> Path:
    """The folder of this user where fetched sources are kept."""
    return index.cache_of("sources")


def fetch(
    pin: LlamaCppPin,
    kind: Kind,
    *,
    commit: str | None = None,
    git_url: str | None = None,
    archive: str | None = None,
    archive_sha256: str | None = None,
    sdist: Path | None = None,
    cache: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Source:
    """Get the source of llama.cpp and verify it.

    pin: of the lock. commit: another one than the pin's. git_url: another repository than the pin's.
    archive: path or URL of a tar.gz with one top folder; archive_sha256: its sha256.
    sdist: the pin's source distribution, where there is one already, which keeps the index from being asked.
    cache: instead of `default_cache()`. environment: added to the own one for what is fetched (proxy, certificates).
    Raises SourceError: a sha256 or a tree that differs, a commit that this kind can't bring, no network, no pip.
    """
    wanted = commit or pin.commit
    tree = pin.tree if wanted == pin.commit else None
    if kind == "git":
        return Source("git", wanted, tree, git_url=git_url or pin.git)
    if kind == "sdist" and wanted != pin.commit:
        held = f"{pin.sdist.name} {pin.sdist.version} of the Python index holds commit {pin.commit} only"
        raise SourceError(f"{held}; commit {wanted} can come with llama_cpp.source git or archive")
    if kind == "archive" and not (archive and archive_sha256):
        raise SourceError("source archive needs a path or URL and its sha256")

    cache = cache or default_cache()
    request = [kind, wanted, tree, archive, archive_sha256] if kind == "archive" else [kind, pin.model_dump()]
    stamp = cache / (hashlib.sha256(json.dumps(request).encode()).hexdigest()[:32] + ".json")
    if source := _stamped(stamp):
        return source
    env = {**os.environ, **(environment or {})}
    try:
        with index.alone(cache):
            if source := _stamped(stamp):
                return source
            if kind == "sdist":
                files = _read(_checked(pin, sdist) if sdist else _sdist(pin, cache, env), pin.sdist.path)
            else:
                files = _read_archive(str(archive), str(archive_sha256), cache, env)
            found = git_tree({name: (mode, blob) for name, (mode, blob, _) in files.items()})
            if tree and found != tree:
                raise SourceError(f"the {kind} is not commit {wanted}: that is tree {tree}, but it holds tree {found}")
            if old := too_old(wanted, lambda name: files[name][2].decode("utf-8", "replace") if name in files else None):
                raise SourceError(old)
            source = _pack(files, cache, kind, wanted, found)
            whole.write(stamp, lambda out: out.write(_stamp_text(source).encode()))
            return source
    except OSError as e:
        raise SourceError(f"cannot keep the source in {cache}: {e}") from e


def sdist_name(pin: LlamaCppPin) -> str:
    """Name of the pin's source distribution, as a file."""
    return f"{pin.sdist.name}-{pin.sdist.version}.tar.gz"


def fetch_sdist(pin: LlamaCppPin, *, cache: Path | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Get the pin's source distribution itself, verified; arguments, and what is raised, as in `fetch`."""
    cache = cache or default_cache()
    try:
        with index.alone(cache):
            return _sdist(pin, cache, {**os.environ, **(environment or {})})
    except OSError as e:
        raise SourceError(f"cannot keep the source in {cache}: {e}") from e


def true_pin_repository(
    pin: LlamaCppPin, folder: Path, *, cache: Path | None = None, environment: Mapping[str, str] | None = None
) -> Path:
    """Make a bare repository in `folder` that holds the pinned commit itself, without a forge: the source distribution
    carries it, shallow. Tests of `git` fetch from it. Returns `folder`; raises SourceError like `fetch`."""
    path = fetch_sdist(pin, cache=cache, environment=environment)
    inside = f".git/modules/{pin.sdist.path}/"
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            name = member.name.partition("/")[2].removeprefix(inside)
            if member.isreg() and name.split("/")[0] in ("objects", "refs", "packed-refs", "shallow", "HEAD"):
                target = folder / _plain(name, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(_bytes(tar, member))
    (folder / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
                                   "[uploadpack]\n\tallowAnySHA1InWant = true\n")  # fmt: skip
    return folder


def _stamped(stamp: Path) -> Source | None:
    try:
        known = json.loads(stamp.read_bytes())
        path, mtime_ns = Path(known.pop("path")), known.pop("mtime_ns")
        now = path.stat()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Source(**known, path=path) if (now.st_size, now.st_mtime_ns) == (known["size"], mtime_ns) else None


def _stamp_text(source: Source) -> str:
    assert source.path
    mtime_ns = source.path.stat().st_mtime_ns
    return json.dumps({**asdict(source), "path": str(source.path), "mtime_ns": mtime_ns}, indent=1)


def _sdist(pin: LlamaCppPin, cache: Path, env: Mapping[str, str]) -> Path:
    """The source distribution, from the cache or from the index that this machine's pip is set up for."""
    wanted, path = pin.sdist, cache / sdist_name(pin)
    if path.is_file() and index.sha256_of(path) == wanted.sha256:
        return path
    with tempfile.TemporaryDirectory(dir=cache, prefix=".partial-") as work:
        got = _pip_download(pin, Path(work), env)
        os.replace(_checked(pin, got), path)
    return path


def _checked(pin: LlamaCppPin, path: Path) -> Path:
    """The source distribution at this path, if it has the lock's sha256."""
    wanted = pin.sdist
    if (found := index.sha256_of(path)) != wanted.sha256:
        raise SourceError(f"{wanted.name} {wanted.version} has sha256 {found}, the lock has {wanted.sha256}")
    return path


def _pip_download(pin: LlamaCppPin, work: Path, env: Mapping[str, str]) -> Path:
    wanted, stub = pin.sdist, work / "stub"
    (stub / _STUB_MODULE).mkdir(parents=True)
    (stub / _STUB_MODULE / "__init__.py").touch()
    (stub / _STUB_MODULE / "build.py").write_text(
        _STUB.format(name=wanted.name, wheel=wanted.name.replace("-", "_"), version=wanted.version)
    )
    options = ["--no-binary", ":all:", "--no-build-isolation"]
    pins = [(wanted.name, wanted.version, wanted.sha256)]
    return index.download(pins, work, {**env, "PYTHONPATH": str(stub)}, options, "*.tar.gz")[0]


_File = tuple[str, str, bytes]  # Git's mode, Git's name of the bytes, the bytes (empty where they are left out)


def _read_archive(archive: str, sha256: str, cache: Path, env: Mapping[str, str]) -> dict[str, _File]:
    with tempfile.TemporaryDirectory(dir=cache, prefix=".partial-") as work:
        path = _download(archive, Path(work) / "archive", env) if "://" in archive else Path(archive)
        try:
            found = index.sha256_of(path)
        except OSError as e:
            raise SourceError(f"the archive {path} cannot be read: {e.strerror}") from e
        if found != sha256:
            raise SourceError(f"the archive {archive} has sha256 {found} instead of {sha256}")
        return _read(path, "")


def _download(url: str, path: Path, env: Mapping[str, str]) -> Path:
    proxies = {s: p for s in ("http", "https") if (p := env.get(f"{s}_proxy") or env.get(f"{s.upper()}_PROXY"))}
    context = ssl.create_default_context(cafile=env.get("SSL_CERT_FILE"))
    handlers = urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context)
    try:
        if not url.startswith(("http://", "https://")):
            raise SourceError(f"the archive {url} is neither a path nor an http or https address")
        with urllib.request.build_opener(*handlers).open(url, timeout=60) as answer, open(path, "wb") as out:
            while block := answer.read(1 << 20):
                out.write(block)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as e:
        reason = getattr(e, "reason", e)
        raise SourceError(f"the archive {url} cannot be fetched ({reason}); check it and network.proxy") from e
    return path


def _read(path: Path, below: str) -> dict[str, _File]:
    """Files of a tar.gz below its one top folder and the folder `below` of that; nothing is put on the disk."""
    files: dict[str, _File] = {}
    tops = set()
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                top, _, name = member.name.partition("/")
                tops.add(top)
                if member.isdir() or (below and not name.startswith(below + "/")):
                    continue
                name = _plain(name[len(below) + 1 :] if below else name, path)
                if not member.isreg():
                    raise SourceError(f"{path} holds {member.name!r}, which is no plain file: links are not taken")
                if name == ".git":  # a submodule's pointer, no part of the commit
                    continue
                data = _bytes(tar, member)
                mode = "100755" if member.mode & 0o100 else "100644"
                files[name] = (mode, git_blob(data), b"" if name.split("/")[0] in LEFT_OUT else data)
    except (tarfile.TarError, EOFError, OSError) as e:
        raise SourceError(f"{path} cannot be read as a tar.gz: {e}") from e
    if len(tops) != 1 or "CMakeLists.txt" not in files:
        raise SourceError(f"{path} does not hold llama.cpp in one top folder")
    return files


def _plain(name: str, path: Path) -> str:
    """A name that stays inside, or SourceError."""
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise SourceError(f"{path} holds the name {name!r}, which leads out of its folder")
    return name


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    assert stream  # a regular file
    return stream.read()


def _pack(files: Mapping[str, _File], cache: Path, kind: Kind, commit: str, tree: str) -> Source:
    """The archive for hosts: the same bytes for the same files, whenever and from whatever it is made."""
    packed = io.BytesIO()
    squeezed = gzip.GzipFile("", "wb", compresslevel=1, fileobj=packed, mtime=0)
    with squeezed, tarfile.open(fileobj=squeezed, mode="w") as tar:
        for name, (mode, _, data) in sorted(files.items()):
            if name.split("/")[0] not in LEFT_OUT:
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), int(mode[-3:], 8)
                tar.addfile(member, io.BytesIO(data))
    sha256 = hashlib.sha256(packed.getbuffer()).hexdigest()
    path = cache / f"{sha256}.tar.gz"
    whole.write(path, lambda out: out.write(packed.getbuffer()))
    return Source(kind, commit, tree, path, sha256, len(packed.getbuffer()))
