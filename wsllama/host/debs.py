"""Runs on the host: Debian packages for machines without a network.

On a connected host, "resolve" says which files some packages need, and "stream" sends them: to stdout, each block behind
a line {"block": its bytes, "done": bytes so far, "total": all of them}; the last line is the result. apt works in a folder of
its own there, as on a machine on which nothing is installed, so that the files are enough for every machine of that
distro, and the host's own lists and locks are left alone.

On a host without a network, "plan" says which of the files it lacks, and "install" installs them from those that were sent. apt
reads them from a folder that is gone afterwards, and sees no other source: nothing of /etc/apt is changed.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO
from urllib.parse import unquote

ARCHIVES = "/var/cache/apt/archives"  # apt's own, where what is looked for may lie already
LISTS = "/var/lib/apt/lists"
BLOCK = 1 << 20  # bytes a read
BATCH = 16  # files that apt downloads before they are sent: so progress is seen
LOCK_LIMIT_S = 900  # first start of a new distro: unattended upgrades hold apt's locks for minutes
HOW = ("--no-install-recommends", "--no-remove", "--allow-downgrades")  # the last is for exact versions: a pin may go back
NEEDED = re.compile(r"^'[^']+' (\S+) (\d+) SHA256:([0-9a-f]{64})$", re.M)
LISTED = re.compile(r"^'[^']+' (\S+\.deb) \d+", re.M)  # apt prints no sum of them
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~%_-]*\.deb")


class AptError(Exception):
    """One sentence: what failed, where, what to do."""


def main(argument: dict[str, Any]) -> None:
    """Do what argument["action"] says; the last line on stdout is one JSON document. Raises SystemExit with a sentence.

    - resolve: folder (of apt's here), packages (name -> exact version, or null for the newest) -> {"files": [{"file", "sha256",
      "size", "package", "version", "architecture", "stanza"}]}
    - stream: folder, files (of resolve) -> the blocks, then {"ok", "sha256", "size"}
    - forget: folder, which is removed -> {"ok"}
    - plan: index (text of a Packages file), packages (names) -> {"files": [name]}
    - install: archive (path of a tar of those files), folder (where they lie meanwhile), index, packages -> {"changed"}
    """
    actions = {"resolve": resolve, "stream": stream, "forget": forget, "plan": plan, "install": install}
    try:
        print(json.dumps(actions[argument["action"]](argument)), flush=True)
    except (AptError, OSError, tarfile.TarError) as e:
        sys.exit(str(e))


# On a connected host


def resolve(a: dict[str, Any]) -> dict[str, Any]:
    options = prepared(a["folder"])
    status, text = apt([*options, "-o", "APT::Update::Error-Mode=any", "update"])
    if status:
        raise AptError(f"apt can't read its sources ({first_error(text)}): check the network and the setting network.proxy")
    words = [f"{name}={version}" if version else name for name, version in a["packages"].items()]
    status, text = apt([*options, "--no-install-recommends", "--print-uris", "install", *words])
    needed = {sha256: (name, int(size)) for name, size, sha256 in NEEDED.findall(text)}
    if status or not needed:
        hint = "a deploy to this host adds sources that are missing"
        raise AptError(f"apt can't have all that {' '.join(words)} need ({first_error(text)}): {hint}")
    stanzas = known(options, needed)
    if missing := [name for sha256, (name, _) in needed.items() if sha256 not in stanzas]:
        raise AptError(f"apt's lists do not tell of {' '.join(missing)}: run again")
    found = [{"file": n, "sha256": s, "size": size, **stanzas[s]} for s, (n, size) in needed.items()]
    return {"files": sorted(found, key=lambda of: str(of["file"]))}


def prepared(folder: str) -> list[str]:
    """Options that make apt work in `folder` as on a machine without a package; its lists begin as the host's own."""
    lists = f"{folder}/state/lists"
    if not os.path.isdir(lists):
        os.makedirs(f"{folder}/state", exist_ok=True)
        if os.path.isdir(LISTS):
            shutil.copytree(LISTS, lists, ignore=shutil.ignore_patterns("lock", "partial", "auxfiles"))
    for path in (f"{lists}/partial", f"{folder}/cache/archives/partial"):
        os.makedirs(path, exist_ok=True)
    with open(f"{folder}/status", "w", encoding="utf-8"):
        pass
    state = {"Dir::State": f"{folder}/state", "Dir::State::status": f"{folder}/status", "Dir::Cache": f"{folder}/cache"}
    return words({**state, "Acquire::ForceHash": "sha256", "Acquire::Languages": "none"})


def known(options: Sequence[str], needed: Mapping[str, tuple[str, int]]) -> dict[str, dict[str, str]]:
    """sha256 -> what apt's lists tell of that file. apt's names of files are package, version and architecture, quoted."""
    parts = [unquote(name[: -len(".deb")]).split("_") for name, _ in needed.values()]
    asked = [f"{package}={version}" if arch == "all" else f"{package}:{arch}={version}" for package, version, arch in parts]
    command = ["apt-cache", *options, "show", *asked]
    shown = subprocess.run(command, capture_output=True, env=environment())
    out = {}
    for stanza in shown.stdout.decode("utf-8", "replace").split("\n\n"):
        field = dict(re.findall(r"^(Package|Version|Architecture|SHA256): (.*)$", stanza, re.M))
        if (sha256 := field.pop("SHA256", "")) in needed:
            out[sha256] = {**{name.lower(): text for name, text in field.items()}, "stanza": stanza.strip()}
    return out


def stream(a: dict[str, Any]) -> dict[str, Any]:
    out, total, done, digest = sys.stdout.buffer, sum(of["size"] for of in a["files"]), 0, hashlib.sha256()
    for at in range(0, len(a["files"]), BATCH):
        for path in downloaded(a["folder"], a["files"][at : at + BATCH]):
            with open(path, "rb") as file:
                while block := file.read(BLOCK):
                    done += len(block)
                    digest.update(block)
                    out.write(b"%s\n" % json.dumps({"block": len(block), "done": done, "total": total}).encode())
                    out.write(block)
            if path.startswith(a["folder"]):
                os.unlink(path)
    out.flush()
    return {"ok": True, "sha256": digest.hexdigest(), "size": done}


def downloaded(folder: str, files: Sequence[dict[str, Any]]) -> list[str]:
    """Paths of these files, after those that are on no disk here were downloaded."""
    own = f"{folder}/cache/archives"

    def there(of: dict[str, Any]) -> str | None:
        paths = [os.path.join(where, os.path.basename(of["file"])) for where in (own, ARCHIVES)]
        return next((path for path in paths if is_file(path, of["sha256"])), None)

    if missing := ["{package}:{architecture}={version}".format(**of) for of in files if not there(of)]:
        missing = [name.replace(":all=", "=") for name in missing]
        status, text = apt([*prepared(folder), "download", *missing], cwd=own)
        if status:
            raise AptError(f"apt can't download {' '.join(missing)}: {first_error(text)}")
    found = [(there(of), of) for of in files]
    if wrong := [of["file"] for path, of in found if not path]:
        raise AptError(f"apt brought {' '.join(wrong)} with other bytes than its lists tell: run again")
    return [path for path, _ in found if path]


def forget(a: dict[str, Any]) -> dict[str, Any]:
    shutil.rmtree(a["folder"], ignore_errors=True)
    return {"ok": True}


def is_file(path: str, sha256: str) -> bool:
    try:
        with open(path, "rb") as file:
            return sha256_of(file) == sha256
    except FileNotFoundError:
        return False


# On a host without a network


def plan(a: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="wsllama-") as folder, source(folder, a["index"]) as options:
        status, text = apt([*options, *HOW, "--print-uris", "install", *a["packages"]])
        if status:
            raise AptError(why_not(text))
        return {"files": LISTED.findall(text)}


def install(a: dict[str, Any]) -> dict[str, Any]:
    folder = a["folder"]
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        os.makedirs(folder)
        unpack(a["archive"], folder, a["index"])
        with source(folder, a["index"]) as options:
            print(f"==> install {' '.join(a['packages'])}", flush=True)
            status, text = apt([*options, *HOW, "install", *a["packages"]])
            print(text, flush=True)
            if status and "dpkg --configure -a" in text:  # the machine was switched off while it installed
                subprocess.run(["dpkg", "--configure", "-a"], env=environment(), check=False)
                status, text = apt([*options, *HOW, "install", *a["packages"]])
            if status:
                raise AptError(why_not(text))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(a["archive"])
    return {"changed": True}


def unpack(archive: str, folder: str, index: str) -> None:
    """Put the files of a tar into `folder`, each only if the index names it with these bytes."""
    sums = set(re.findall(r"^SHA256: ([0-9a-f]{64})$", index, re.M))
    with tarfile.open(archive, "r:") as tar:
        for member in tar:
            if not (member.isreg() and NAME.fullmatch(member.name)):
                raise AptError(f"{archive} holds {member.name!r}, which is no package")
            path = os.path.join(folder, member.name)
            with tar.extractfile(member) as packed, open(path, "xb") as file:  # type: ignore[union-attr]  # regular
                shutil.copyfileobj(packed, file, BLOCK)
            with open(path, "rb") as file:
                if sha256_of(file) not in sums:
                    raise AptError(f"{member.name} came with other bytes than the bundle tells: run again")


@contextlib.contextmanager
def source(folder: str, index: str) -> Iterator[list[str]]:
    """Options with which apt sees the packages of this index in `folder`, and no other source.

    `trusted` stands for a signature: each file was verified by its sha256 as it came, and apt compares that once more.
    """
    os.chmod(folder, 0o755)
    with open(f"{folder}/Packages", "w", encoding="utf-8") as file:
        file.write(index)
    with tempfile.TemporaryDirectory(prefix="wsllama-") as aside:
        os.chmod(aside, 0o755)
        for path in ("lists", "archives"):
            os.makedirs(f"{aside}/{path}/partial")
        with open(f"{aside}/sources.list", "w", encoding="utf-8") as file:
            file.write(f"deb [trusted=yes] file:{folder} ./\n")
        names = {"Dir::Etc::SourceList": "sources.list", "Dir::Etc::SourceParts": "none", "Dir::State::lists": "lists"}
        names.update({"Dir::Cache": "", "Dir::Cache::archives": "archives"})
        paths = {key: f"{aside}/{name}" for key, name in names.items()}
        options = words({**paths, "DPkg::Lock::Timeout": str(LOCK_LIMIT_S), "Acquire::Languages": "none"})
        status, text = apt([*options, "update"])
        if status:
            raise AptError(f"apt can't read the packages of the bundle: {first_error(text)}")
        yield options


# Both


def apt(command: Sequence[str], cwd: str = "/") -> tuple[int, str]:
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    p = subprocess.run(["apt-get", "-q", "-y", *command], env=environment(), cwd=cwd, **streams)
    return p.returncode, p.stdout.decode("utf-8", "replace")


def environment() -> dict[str, str]:
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "NEEDRESTART_SUSPEND": "1"}


def words(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def why_not(text: str) -> str:
    """One sentence out of what apt-get install said."""
    if re.search(r"No space left on device|enough free space", text):
        return "the disk is full while packages of the bundle are installed: make room and run again"
    depends = re.search(r"^ *(\S+) : (?:Pre)?Depends: (.+?)(?: but (.+?))?$", text, re.M)
    if depends:
        said = f"{depends[1]} of the bundle depends on {depends[2]}" + (f", but {depends[3]}" if depends[3] else "")
        return f"{said}: make the bundle again with a host of this distro that has its updates"
    return f"apt can't install packages of the bundle: {first_error(text)}"


def first_error(text: str) -> str:
    lines = [line[3:] for line in text.splitlines() if line.startswith("E: ")]
    lines += [line.strip() for line in text.splitlines() if line.strip()][-1:]
    return lines[0][:300] if lines else "it said nothing"


def sha256_of(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()
