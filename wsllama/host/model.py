"""Runs on the host: puts a model file where the server finds it, with a stamp so that no later run hashes it again.

    /var/lib/wsllama/models/
        .incoming/                                     partial files (wsllama/host/receive.py)
        <stem>-<first 8 of sha256>/<name>.gguf         whole and verified, never changed in place
        <stem>-<first 8 of sha256>/<name>.gguf.stamp   size, mtime_ns, inode, sha256, architecture, source

The stamp is written before the file is renamed to its name: a run that is killed in between leaves the whole partial
file, which the next run only has to rename, and a stamp that doesn't fit any file.
"""

import json
import os
from typing import Any

from wsllama.domain import gguf
from wsllama.host import probe, receive


def installed(root: str, name: str, size: int, sha256: str | None) -> dict[str, Any] | None:
    """The stamp of an intact model of that name and size, the one with that sha256 when it is known; `file` is its path."""
    for place, stamp in probe.models([root])[root].items():
        fits = stamp["intact"] and os.path.basename(place) == name and stamp["size"] == size
        if fits and sha256 in (None, stamp["sha256"]):
            return {**stamp, "file": os.path.join(root, place)}
    return None


def header_of(path: str, called: str) -> gguf.Header:
    """The header of a whole GGUF that can be served alone. Raises SystemExit with a sentence."""
    with open(path, "rb") as stream:
        try:
            header = gguf.check(stream, os.fstat(stream.fileno()).st_size)
        except gguf.GgufError as error:
            raise SystemExit(f"{called}: {error}") from None
    if header.split_count > 1:
        raise SystemExit(
            f"{called}: it is part {header.split_no + 1} of {header.split_count} of a split model: "
            "merge them with `llama-gguf-split --merge` and give that file"
        )
    return header


def place(part: str, sha256: str, root: str, name: str, source: dict[str, Any]) -> dict[str, Any]:
    """Check a verified partial file's header, stamp it and rename it into its folder. Returns the result.

    Bytes that are no model are removed: sent again they would be the same.
    """
    try:
        header = header_of(part, name)
    except SystemExit:
        os.unlink(part)
        raise
    folder = os.path.join(root, f"{os.path.splitext(name)[0]}-{sha256[:8]}")
    os.makedirs(folder, mode=0o755, exist_ok=True)
    file = os.path.join(folder, name)
    os.chmod(part, 0o644)  # the server runs as a user of its own
    stamp = {**receive.identity(os.stat(part)), "sha256": sha256, "architecture": header.architecture, "source": source}
    write_text(f"{file}.stamp", json.dumps(stamp, indent=1, sort_keys=True) + "\n")
    os.replace(part, file)
    receive.sync_folder(folder)
    receive.sync_folder(root)
    return result(stamp, file, True)


def result(stamp: dict[str, Any], file: str, changed: bool) -> dict[str, Any]:
    return {
        "ok": True,
        "changed": changed,
        "dir": os.path.dirname(file),
        "file": file,
        "sha256": stamp["sha256"],
        "size": stamp["size"],
        "architecture": stamp["architecture"],
    }


def write_text(path: str, text: str) -> None:
    aside = f"{path}.new"
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def main(argument: dict[str, Any]) -> None:
    """Install a model.

    - path: a GGUF that lies on the host; or size and source: bytes that the stream will bring and where they are from
    - root: folder of the models; name: file name to install it by (default: the path's)
    - sha256: what it has to be, or None

    Lines of progress on stdout, the last line is {"ok", "changed", "dir", "file", "sha256", "size", "architecture"}.
    Raises SystemExit with a sentence.
    """
    path, root = argument.get("path"), argument.get("root", "/var/lib/wsllama/models")
    name = argument.get("name") or os.path.basename(path or "")
    with receive.one_sentence(root):
        job: receive.Job = {"name": name, "sha256": receive.lower(argument.get("sha256"))}
        job["incoming"] = os.path.join(root, ".incoming")
        if path:
            path = os.path.realpath(path)
            header_of(path, path)  # before anything is written
            seen = receive.identity(os.stat(path))
            job["size"], source = seen["size"], {"on": "host", "path": path, **seen}
        else:
            job["size"], source = argument["size"], argument["source"]

        def there() -> tuple[str, dict[str, Any]] | None:
            stamp = installed(root, name, job["size"], job["sha256"])
            return (stamp["sha256"], result(stamp, stamp["file"], False)) if stamp else None

        def put(part: str, sha256: str) -> dict[str, Any]:
            return place(part, sha256, root, name, source)

        os.makedirs(root, mode=0o755, exist_ok=True)
        if not path:
            receive.tell(**receive.from_stream(job, there, put))
            return
        stamp = installed(root, name, job["size"], job["sha256"])
        if stamp and stamp["source"] == source:  # the very file that was copied, and not touched since
            receive.tell(**result(stamp, stamp["file"], False))
        else:
            found = receive.from_path(job, path, there, put)
            if stamp and not found["changed"] and not job["sha256"]:  # read, and the same: the next run needn't read it again
                fields = {key: value for key, value in stamp.items() if key not in ("file", "valid")} | {"source": source}
                write_text(f"{stamp['file']}.stamp", json.dumps(fields, indent=1, sort_keys=True) + "\n")
            receive.tell(**found)
