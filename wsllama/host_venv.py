"""The host's own venv: packages of requirements.lock for the host's Python, fetched and unpacked here, sent as one archive.

    CACHE/<key>.tar   their files as they lie in site-packages; key: sha256 of the lines of requirements.lock, Python and machine

CACHE is ${XDG_CACHE_HOME:-~/.cache}/wsllama/venv. A host needs no network, no index and no pip for it.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wsllama import index, whole
from wsllama.index import SourceError

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements.lock"
# huggingface_hub and all that it needs, but for hf-xet: every file of a Xet repository is served over HTTP, too, where a
# download can go on at any byte and is hashed as it comes.
PACKAGES = (
    *(
        "anyio",
        "click",
        "exceptiongroup",
        "filelock",
        "fsspec",
        "h11",
        "httpcore2",
        "httpx2",
        "huggingface-hub",
        "idna",
    ),
    *("packaging", "pyyaml", "tomli", "tqdm", "truststore", "typing-extensions"),
)
LEFT_OUT = ("hf-xet",)
# The oldest glibc of the supported distros is 2.35.
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


@dataclass(frozen=True)
class Wanted:
    """What a host's venv is to hold. key: its folder's name; python: like 3.11; lines: of a requirements file."""

    key: str
    python: str
    machine: str
    lines: tuple[str, ...]


def wanted(python: str, machine: str, requirements: Path = REQUIREMENTS) -> Wanted:
    """What the venv for a Python, like 3.11.2, on a machine, like x86_64, holds. Raises SourceError."""
    from packaging.markers import Marker

    minor = ".".join(python.split(".")[:2])
    environment = {
        "python_version": minor,
        "python_full_version": python,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "os_name": "posix",
        "extra": "",
    }
    lines, blocks = [], re.split(r"\n(?=[A-Za-z0-9])", requirements.read_text(encoding="utf-8"))
    for block in blocks:
        said = re.match(r"([A-Za-z0-9._-]+)==(\S+)(?: ; ([^\\]+?))? *\\", block)
        if not said or said[1] not in PACKAGES or (said[3] and not Marker(said[3]).evaluate(environment)):
            continue
        hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}", block)
        lines.append(" ".join([f"{said[1]}=={said[2]}", *sorted(hashes)]))
    if not any(line.startswith("huggingface-hub==") for line in lines):
        raise SourceError(f"{requirements} has no huggingface-hub: take the file from the repository")
    key = hashlib.sha256("\n".join([minor, machine, *sorted(lines)]).encode()).hexdigest()[:16]
    return Wanted(key, minor, machine, tuple(lines))


def archive(of: Wanted, *, cache: Path | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """The archive of a venv's packages, made when it isn't there.

    cache: instead of the user's; environment: added to the own one for what is fetched. Raises SourceError: no network, no pip,
    another sha256, no wheel for that Python.
    """
    cache = cache or index.cache_of("venv")
    path = cache / f"{of.key}.tar"
    try:
        with index.alone(cache):
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=cache, prefix=".partial-") as work:
                    _unpack(of, Path(work), {**os.environ, **(environment or {})})
                    whole.write(path, lambda out: _pack(Path(work) / "site", out))
    except OSError as e:
        raise SourceError(f"{e.filename or cache} can't be written: {e.strerror}") from e
    return path


def _unpack(of: Wanted, work: Path, env: Mapping[str, str]) -> None:
    """Wheels for the host's Python, each held against its hashes, then laid out as pip does."""
    tag = f"cp{of.python.replace('.', '')}"
    options = ["--only-binary", ":all:", "--python-version", of.python, "--implementation", "cp"]
    options += [word for abi in (tag, "abi3", "none") for word in ("--abi", abi)]
    options += [word for platform in PLATFORMS for word in ("--platform", f"{platform}_{of.machine}")]
    index.pip_download(of.lines, work, env, options, "*.whl")
    words = ["--no-deps", "--no-index", "--find-links", "out", "--no-compile", "--target", "site", *options]
    said = index.pip("install", [*words, "--require-hashes", "--requirement", "requirements.txt"], work, env)
    if said is not None:
        raise SourceError(f"pip can't lay out the packages of the host's venv: {said.strip()[-300:]}")


def _pack(site: Path, out: io.BufferedWriter) -> None:
    """A tar of a folder, the same bytes whenever it is made."""
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(p for p in site.rglob("*") if p.is_file() and p.relative_to(site).parts[0] != "bin"):
            member = tarfile.TarInfo(str(path.relative_to(site)))
            member.size, member.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                tar.addfile(member, file)
