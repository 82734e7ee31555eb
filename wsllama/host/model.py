"""Runs on the host: puts a model's files where the server finds them, with stamps so that no later run hashes them again.

    /var/lib/wsllama/models/
        .incoming/<name>-<size>.part                   partial files (wsllama/host/receive.py)
        .incoming/<name>-<sha256>.whole                verified, waits for the rest of its model
        <stem>-<first 8 of sha256>/<name>.gguf         whole, verified and audited, never changed in place
        <stem>-<first 8 of sha256>/<name>.gguf.stamp   size, mtime_ns, inode, sha256, architecture, source; of a first
                                                       file also summary: what a plan needs to know of the whole model
        <stem>-<first 8 of sha256>/.awaited            the run that brought it has not switched to it yet (wsllama/host/release.py
                                                       removes it then), so that no other run takes it for an old one

Shards lie in one folder, named after the first; a projector has a folder of its own, so that quants share it. No file gets its
name before all files of its model are there and their headers go together. A stamp is written before its file is renamed: a
run that is killed in between leaves the verified file, which the next run only has to rename, and a stamp that fits no file.
"""

import contextlib
import dataclasses
import fcntl
import grp
import json
import os
import stat
from collections.abc import Iterator
from typing import Any

from wsllama.domain import gguf, gguf_audit, model_policy, models
from wsllama.host import probe, receive

Entry = dict[str, Any]
"""A file of a model: name, and where they are known size in bytes, sha256, and source: where it is from, for the stamp."""


def seen(path: str, name: str) -> gguf_audit.File:
    """A file with its header, called `name`; what can't be read has a problem instead of one."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
            return gguf_audit.File(name, 0, None, "it is no file: give the GGUF itself")
        size = found.st_size
        with open(path, "rb") as stream:
            return gguf_audit.File(name, size, gguf.read(stream, size))
    except FileNotFoundError:
        return gguf_audit.File(name, 0, None, "it is not there: copy or download it")
    except OSError as e:
        return gguf_audit.File(name, 0, None, f"it can't be read: {e.strerror}")
    except gguf.GgufError as e:
        return gguf_audit.File(name, size, None, str(e))


def unfit(paths: list[str], mmproj: str | None, allow_unofficial: bool) -> list[str]:
    """Why these files can't be served as one model, a sentence each; paths: of the shards in order, by their own names."""
    files = [seen(path, os.path.basename(path)) for path in paths]
    beside = seen(mmproj, os.path.basename(mmproj)) if mmproj else None
    return judged(files, beside, allow_unofficial).problems


def judged(files: list[gguf_audit.File], mmproj: "gguf_audit.File | None", allow_unofficial: bool) -> gguf_audit.Report:
    """The audit, and what the file says of itself. files: shards in order; mmproj: the projector beside them."""
    report = gguf_audit.audit(files, files[0].name, mmproj, any_size=True)
    header = files[0].header
    if header is not None:
        said = model_policy.removed((files[0].name, *model_policy.names_of(header.metadata)), allow_unofficial)
        said += model_policy.other_base(header.metadata, allow_unofficial)
        report.problems += [f"{files[0].name}: {sentence}" for sentence in said]
    report.problems, report.warnings = ([*map(gguf_audit.printable, told)] for told in (report.problems, report.warnings))
    return report


def summary(files: list[gguf_audit.File]) -> dict[str, Any] | None:
    """What a plan needs to know of a model: models.Summary, as JSON has it. files: shards in order. None: one can't be read."""
    headers = [file.header for file in files if file.header]
    try:
        return dataclasses.asdict(models.summary(headers)) if len(headers) == len(files) else None
    except gguf.GgufError:
        return None


class Model:
    """One model that is being installed below `root`. group: of the files, None: as it comes.

    - files: its entries, shards in order; mmproj: that of its projector
    """

    def __init__(self, argument: dict[str, Any], files: list[Entry]) -> None:
        self.root, self.group = argument["root"], argument.get("group")
        self.incoming = os.path.join(self.root, ".incoming")
        self.allow_unofficial = argument.get("allow_unofficial", False)
        self.files, self.mmproj = files, argument.get("mmproj")
        for entry in self.every:
            entry["sha256"] = receive.lower(entry.get("sha256"))

    @property
    def every(self) -> list[Entry]:
        return [*self.files, *([self.mmproj] if self.mmproj else [])]

    def folder(self, entry: Entry) -> str | None:
        """The name of the folder that an entry belongs to; None while its sum, or that of the first shard, isn't known."""
        of = entry if entry is self.mmproj else self.files[0]
        return f"{os.path.splitext(of['name'])[0]}-{of['sha256'][:8]}" if of["sha256"] else None

    def installed(self, entry: Entry) -> dict[str, Any] | None:
        """The stamp of an intact file of that name, in the right folder where that is known; `file` is its path."""
        for place, stamp in probe.models([self.root])[self.root].items():
            folder, name = os.path.split(place)
            fits = stamp["intact"] and name == entry["name"] and entry.get("size") in (None, stamp["size"])
            if fits and entry["sha256"] in (None, stamp["sha256"]) and self.folder(entry) in (None, folder):
                return {**stamp, "file": os.path.join(self.root, place)}
        return None

    def revive(self, entry: Entry) -> None:
        """Stamp a file that has its name and its bytes, and was touched or lost its stamp: it need not be brought again."""
        folder = self.folder(entry)
        path = os.path.join(self.root, folder or "", entry["name"])
        if not (folder and entry["sha256"]) or not os.path.isfile(path) or os.path.getsize(path) != entry["size"]:
            return
        receive.stage(f"{entry['name']} is there, and not as it was stamped: its bytes are looked at")
        with open(path, "rb") as file:
            before, found = os.fstat(file.fileno()), receive.file_sha256(file.fileno())
        header = seen(path, entry["name"]).header
        if found == entry["sha256"] and header and receive.identity(os.stat(path)) == receive.identity(before):
            own(path, self.group)
            beside = [seen(os.path.join(os.path.dirname(path), e["name"]), e["name"]) for e in self.files]
            self.stamp(entry, path, path, header.architecture, summary(beside))

    def waiting(self, entry: Entry) -> str | None:
        """The path of a verified file that waits for the rest of the model."""
        path = os.path.join(self.incoming, f"{entry['name']}-{entry['sha256']}.whole")
        return path if entry["sha256"] and os.path.exists(path) else None

    def there(self, entry: Entry) -> str | None:
        """Where an entry of known sha256 is, installed or waiting."""
        stamp = self.installed(entry) if entry["sha256"] else None
        return stamp["file"] if stamp else self.waiting(entry)

    def lacks(self) -> list[Entry]:
        """The entries that are neither installed nor wait."""
        return [entry for entry in self.every if not self.there(entry)]

    def job(self, entry: Entry) -> receive.Job:
        return {"name": entry["name"], "size": entry["size"], "sha256": entry["sha256"], "incoming": self.incoming}

    def have(self, entry: Entry) -> receive.Installed:
        """For receive: what is there of an entry already, asked while its lock is held."""

        def installed() -> receive.There:
            if not self.installed(entry):
                self.revive(entry)
            stamp = self.installed(entry)
            sha256 = entry["sha256"] if self.waiting(entry) else stamp["sha256"] if stamp else None

            def finish() -> dict[str, Any]:
                entry["sha256"] = sha256
                return self.settled(entry)

            return (sha256, finish) if sha256 else None

        return installed

    def keep(self, entry: Entry) -> receive.Place:
        """For receive: a verified partial file waits, and with the last one the model is placed."""

        def place(part: str, sha256: str) -> dict[str, Any]:
            os.replace(part, os.path.join(self.incoming, f"{entry['name']}-{sha256}.whole"))
            entry["sha256"] = sha256
            return self.settled(entry)

        return place

    def settled(self, entry: Entry) -> dict[str, Any]:
        """Place the model when all of it is there; what is to be said of the entry."""
        with self.alone():
            if self.lacks():
                return {"ok": True, "changed": True, "file": None, "sha256": entry["sha256"], "size": entry["size"]}
            changed = any(self.waiting(e) and not self.installed(e) for e in self.every)
            if changed:
                self.place()
        return self.result(changed)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Of two runs that bring two files of one model, one places it."""
        os.makedirs(self.incoming, mode=0o700, exist_ok=True)
        folder = os.open(self.incoming, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def place(self) -> None:
        """Audit the headers of all files and rename those that wait. Bytes that are no model are removed: they'd come again."""
        files = [seen(str(self.there(entry)), entry["name"]) for entry in self.files]
        mmproj = seen(str(self.there(self.mmproj)), self.mmproj["name"]) if self.mmproj else None
        report = judged(files, mmproj, self.allow_unofficial)
        if report.problems:
            for entry in self.every:
                waits = self.waiting(entry)
                if waits:
                    os.unlink(waits)
            raise SystemExit("; ".join(report.problems))
        for sentence in report.warnings:
            receive.stage(f"warning: {sentence}")
        known = summary(files)
        for entry, file in zip(self.every, [*files, *([mmproj] if mmproj else [])], strict=True):
            self.rename(entry, file, known)

    def rename(self, entry: Entry, file: gguf_audit.File, known: dict[str, Any] | None) -> None:
        """Stamp a file that waits and give it its name. known: the model's summary."""
        waits = self.waiting(entry)
        if waits is None or self.installed(entry):
            return
        folder = os.path.join(self.root, str(self.folder(entry)))
        os.makedirs(folder, mode=0o755, exist_ok=True)
        path = os.path.join(folder, entry["name"])
        own(waits, self.group)
        if self.group:  # it is for a service, not for a mirror
            write_text(os.path.join(folder, ".awaited"), "")
        self.stamp(entry, waits, path, file.header.architecture if file.header else "", known)
        os.replace(waits, path)
        receive.sync_folder(folder)
        receive.sync_folder(self.root)

    def stamp(self, entry: Entry, now: str, path: str, architecture: str, known: dict[str, Any] | None) -> None:
        """Write the stamp beside `path` of a verified file that is at `now`. known: the model's summary."""
        stamp = {**receive.identity(os.stat(now)), "sha256": entry["sha256"], "source": entry.get("source", {})}
        stamp["architecture"] = architecture
        if entry is self.files[0]:
            stamp["summary"] = known
        write_text(f"{path}.stamp", json.dumps(stamp, indent=1, sort_keys=True) + "\n")

    def result(self, changed: bool) -> dict[str, Any]:
        stamp = self.installed(self.files[0])
        if stamp is None:
            raise SystemExit(f"{self.files[0]['name']} was changed by another program while it was installed: run again")
        return {
            "ok": True,
            "changed": changed,
            "dir": os.path.dirname(stamp["file"]),
            "file": stamp["file"],
            "sha256": stamp["sha256"],
            "size": stamp["size"],
            "architecture": stamp["architecture"],
        }


def looked_at(a: dict[str, Any]) -> dict[str, Any]:
    """What files on this host are, before anything is copied: problems, summary, bytes, and of the projector bytes and width."""
    paths, beside = [probe.readable(path) for path in a["look"]], a["mmproj"] and probe.readable(a["mmproj"])
    files = [seen(path, os.path.basename(path)) for path in paths]
    projector = seen(beside, os.path.basename(beside)) if beside else None
    return {
        "problems": unfit(paths, beside, a["allow_unofficial"]),
        "summary": summary(files),
        "bytes": sum(file.size for file in files),
        "mmproj": {"bytes": projector.size, "width": gguf_audit.projection(projector.header)}
        if projector and projector.header
        else None,
    }


def own(path: str, group: str | None) -> None:
    """Root's file, that the service may read and nobody else."""
    if group is None:
        os.chmod(path, 0o644)
        return
    try:
        os.chown(path, 0, grp.getgrnam(group).gr_gid)
    except KeyError:
        raise SystemExit(f"there is no group {group} on the host: run the whole deploy, which makes it") from None
    os.chmod(path, 0o640)


def write_text(path: str, text: str) -> None:
    aside = f"{path}.new"
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def from_host(model: Model) -> dict[str, Any]:
    """Copy the entries of a model that lie on this host, each at its `path`."""
    paths = {}
    for entry in model.every:
        paths[entry["name"]] = path = os.path.realpath(probe.readable(entry["path"]))
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SystemExit(f"{path}: it is no file: give the GGUF itself")
        entry["size"] = os.stat(path).st_size
        entry["source"] = {"on": "host", "path": path, **receive.identity(os.stat(path))}
    _fit_to_be_copied(model, paths)
    result, changed = dict[str, Any](), False
    for entry in model.every:
        stamp = model.installed(entry)
        if stamp and stamp["source"] == entry["source"]:  # the very file that was copied, and not touched since
            entry["sha256"] = stamp["sha256"]
            result = model.settled(entry)
            continue
        compared = bool(stamp) and not entry["sha256"]
        result = receive.from_path(model.job(entry), paths[entry["name"]], model.have(entry), model.keep(entry))
        if stamp and compared and stamp["sha256"] == entry["sha256"]:  # the same: the next run needn't read it again
            fields = {key: value for key, value in stamp.items() if key not in NOT_STAMPED} | {"source": entry["source"]}
            write_text(f"{stamp['file']}.stamp", json.dumps(fields, indent=1, sort_keys=True) + "\n")
        changed = changed or result["changed"]
    return {**result, "changed": changed}


NOT_STAMPED = ("file", "intact", "awaited_s", "mode", "user", "group")


def _fit_to_be_copied(model: Model, paths: dict[str, str]) -> None:
    """Judge the headers of files on this host before anything is written."""
    files = [seen(paths[entry["name"]], paths[entry["name"]]) for entry in model.files]
    broken = [f"{file.name}: {file.problem}" for file in files if file.problem]
    if broken:
        raise SystemExit("; ".join(broken))
    named = [seen(paths[entry["name"]], entry["name"]) for entry in model.files]
    mmproj = seen(paths[model.mmproj["name"]], model.mmproj["name"]) if model.mmproj else None
    problems = judged(named, mmproj, model.allow_unofficial).problems
    if problems:
        folder = os.path.dirname(paths[model.files[0]["name"]])
        raise SystemExit("; ".join(f"{folder}/{problem}" for problem in problems))


def main(argument: dict[str, Any]) -> None:
    """Install a model.

    - path: a GGUF that lies on the host, installed by `name` (default: the path's); its shards are taken with it
    - or files: entries of a model that lies on the host, each with a `path`; and mmproj: that of its projector
    - or look: paths of a model's files on this host, and mmproj: that of its projector: nothing is installed
    - or name, size and source: what the stream will bring and where it is from; files and mmproj: the model that it belongs to
    - root: folder of the models; group: that may read its files; sha256: what a single file has to be, or None
    - allow_unofficial: take what says that its limits were removed

    Lines of progress on stdout, the last line is {"ok", "changed", "dir", "file", "sha256", "size", "architecture"}, where file
    is None while others of its model are to come; with look it is that of `looked_at`. Raises SystemExit with a sentence.
    """
    if "look" in argument:
        print(json.dumps(looked_at(argument)))
        return
    argument = {"root": "/var/lib/wsllama/models", **argument}
    with receive.one_sentence(argument["root"]):
        if "size" not in argument:
            model = Model(argument, argument.get("files") or _at_path(argument))
            receive.tell(**from_host(model))
            return
        brought = {key: argument.get(key) for key in ("name", "size", "sha256", "source")}
        files = argument.get("files") or [brought]
        model = Model(argument, files)
        entry = next(e for e in model.every if e["name"] == brought["name"])
        entry.update({key: value for key, value in brought.items() if value is not None})
        entry["sha256"] = receive.lower(entry["sha256"])
        receive.tell(**receive.from_stream(model.job(entry), model.have(entry), model.keep(entry)))


def _at_path(argument: dict[str, Any]) -> list[Entry]:
    """The entries that a path alone means."""
    path = argument["path"]
    folder, own_name = os.path.split(path)
    names = gguf.shard_names(own_name)
    if len(names) == 1:
        return [{"name": argument.get("name") or own_name, "path": path, "sha256": argument.get("sha256")}]
    return [{"name": name, "path": os.path.join(folder, name)} for name in names]
