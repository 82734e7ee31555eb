"""A local endpoint that speaks the Hub's protocol as the huggingface_hub client uses it: `HF_ENDPOINT=http://127.0.0.1:PORT`.

    GET  /api/models/REPO[/revision/R]           card, sha, siblings (with `blobs`)
    GET  /api/models/REPO/tree/R[/FOLDER]        files with LFS entries, page by page (Link: <...>; rel="next")
    POST /api/models/REPO/paths-info/R           the same for some paths
    HEAD|GET /REPO/resolve/R/PATH                small files at once; LFS files by a redirect to another origin, the CDN
    GET  /cdn/REPO/COMMIT/PATH                   on that origin: bytes, whole or a range

It is an HTTP proxy too, for requests to itself; it tunnels nothing, so https through it is refused. What goes wrong on the way is
told by `Hub.faults`; how many bytes of which file went out by `Hub.sent`.
"""

import argparse
import hashlib
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

BLOCK = 1 << 20
LFS_FROM = 1 << 20  # bytes; smaller files are in Git itself, unless their name says otherwise
LFS_NAMES = (".gguf", ".bin", ".safetensors")
PORTAL = b"<!DOCTYPE html><html><head><title>Sign in to the network</title></head><body>Sign in</body></html>"


@dataclass
class Fault:
    """What happens to requests whose path has `part` in it; the first fault that fits is taken.

    - times: how many requests, then it is over; None: all
    - methods: of those requests
    - status, headers, body: the answer instead; without a status the true answer is given
    - cut_after: bytes of the body after which the connection is cut
    - hold_after, hold: bytes of the body after which nothing comes before `hold` is set, nor is the connection cut
    - flip_at: offset in the file of a byte that is changed on its way
    """

    part: str = "/"
    times: int | None = None
    methods: tuple[str, ...] = ("GET", "HEAD", "POST")
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"error":"asked for by the lab"}'
    cut_after: int | None = None
    hold_after: int | None = None
    hold: threading.Event = field(default_factory=threading.Event)
    flip_at: int | None = None


def portal(part: str = "/") -> Fault:
    """A network that asks for a login answers everything with a page."""
    return Fault(part, status=200, headers={"Content-Type": "text/html; charset=utf-8"}, body=PORTAL)


@dataclass
class File:
    """A file of a commit: its bytes, or a path that has them. `lfs` is its sha256 where the repository tells one."""

    data: bytes | Path
    size: int
    blob: str
    lfs: str | None

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` up to `end`, in pieces."""
        if isinstance(self.data, bytes):
            yield self.data[start:end]
            return
        with self.data.open("rb") as file:
            file.seek(start)
            while start < end and (piece := file.read(min(BLOCK, end - start))):
                start += len(piece)
                yield piece


@dataclass
class Repo:
    """A repository of models. `commits` by their 40 digits; `refs` names some of them."""

    name: str
    card: dict[str, Any]
    gated: bool
    private: bool
    xet: bool = False
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)


class Hub:
    """The endpoint and its CDN, each with a port of its own, from `with` on.

    - address: where it listens
    - page: entries of a tree in one answer
    - blobs: whether the models API tells sizes and sums; a mirror may tell them in its tree only
    - token, stranger: two tokens that it knows; only the first may read gated and private repositories
    """

    def __init__(self, address: str = "127.0.0.1", port: int = 0, page: int = 1000, blobs: bool = True) -> None:
        self.page, self.blobs = page, blobs
        self.token, self.stranger = "hf_lab_reader", "hf_lab_stranger"
        self.repos: dict[str, Repo] = {}
        self.moved: dict[str, str] = {}  # old name -> new name, as after a rename
        self.faults: list[Fault] = []
        self._sent: Counter[tuple[str, str]] = Counter()
        self._idle, self._answering = threading.Condition(), 0  # contents that are on their way
        self.requests: list[tuple[str, str, int]] = []  # method, path with its query, status
        self.ranges: list[tuple[str, int, int]] = []  # path, first byte, byte behind the last one that was asked for
        handler = type("Handler", (_Handler,), {"hub": self})
        self._servers = [_Server((address, port), handler), _Server((address, 0), handler)]
        self.url, self.cdn = (f"http://{address}:{server.server_port}" for server in self._servers)

    def __enter__(self) -> "Hub":
        for server in self._servers:
            threading.Thread(target=lambda server=server: server.serve_forever(0.02), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While content goes out: a client may have its last byte before that is counted here."""
        with self._idle:
            self._answering += 1
        try:
            yield
        finally:
            with self._idle:
                self._answering -= 1
                self._idle.notify_all()

    def count(self, name: str, path: str, size: int) -> None:
        """So many bytes of this file went out."""
        with self._idle:
            self._sent[name, path] += size

    @property
    def sent(self) -> Counter[tuple[str, str]]:
        """(repository, path) -> bytes of content that went out, once nothing is on its way."""
        with self._idle:
            self._idle.wait_for(lambda: not self._answering, timeout=600)
            return self._sent

    def add(self, name: str, files: Mapping[str, bytes | Path], *, card: Mapping[str, Any] | None = None, gated: bool = False,
            private: bool = False, hashes: bool = True, xet: bool = False, ref: str = "main") -> str:  # fmt: skip
        """Commit these files as the whole content of a repository; returns the commit.

        - card: metadata of the model card, as in {"license": "apache-2.0", "base_model": "Qwen/Qwen3.6-35B-A3B"}
        - gated, private: who may read it
        - hashes: whether its large files are in LFS, with a sha256; a mirror may lack that
        - xet: whether it tells of a Xet store, too, as most repositories do; its large files still come over HTTP
        - ref: the branch that then is at this commit
        """
        repo = self.repos.setdefault(name, Repo(name, dict(card or {}), gated, private))
        repo.card, repo.gated, repo.private, repo.xet = dict(card or repo.card), gated, private, xet
        content = {path: _file(path, data, hashes) for path, data in sorted(files.items())}
        told = json.dumps([name, len(repo.commits), [(path, file.blob) for path, file in content.items()]])
        commit = hashlib.sha1(told.encode()).hexdigest()
        repo.commits[commit] = content
        repo.refs[ref] = commit
        return commit

    def fault(self, path: str, method: str) -> Fault | None:
        """The fault that this request meets, counted."""
        for fault in self.faults:
            if fault.part in path and method in fault.methods and fault.times != 0:
                fault.times = None if fault.times is None else fault.times - 1
                return fault
        return None


def _file(path: str, data: bytes | Path, hashes: bool) -> File:
    size = len(data) if isinstance(data, bytes) else data.stat().st_size
    whole = File(data, size, "", None)
    sha1, sha256 = hashlib.sha1(b"blob %d\0" % size), hashlib.sha256()
    for piece in whole.read(0, size):
        sha1.update(piece)
        sha256.update(piece)
    in_lfs = hashes and (size >= LFS_FROM or path.endswith(LFS_NAMES))
    return File(data, size, sha1.hexdigest(), sha256.hexdigest() if in_lfs else None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_CONNECT(self) -> None:
        self._send(403, b"this proxy lets nothing through\n", {"Content-Type": "text/plain"})
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)  # with scheme and host, when it is asked as a proxy
        self.where, self.query = url.path, parse_qs(url.query)
        self.asked = url.path + (f"?{url.query}" if url.query else "")
        fault = self.hub.fault(self.asked, self.command) or Fault()
        self.cut_after, self.flip_at = fault.cut_after, fault.flip_at
        self.hold_after, self.hold = fault.hold_after, fault.hold
        if fault.status is not None:
            self._send(fault.status, fault.body, {"Content-Type": "application/json", **fault.headers})
            return
        try:
            self._route()
        except _Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message, "Content-Type": "application/json"}
            self._send(
                refusal.status,
                json.dumps({"error": refusal.message}).encode(),
                {name: value for name, value in headers.items() if value},
            )

    def _route(self) -> None:
        patterns: tuple[tuple[str, Callable[..., None]], ...] = (
            (r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", self._model),
            (r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/(.+))?", self._tree),
            (r"/api/models/([^/]+/[^/]+)/paths-info/([^/]+)", self._paths),
            (r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self._resolve),
            (r"/cdn/([^/]+/[^/]+)/([0-9a-f]{40})/(.+)", self._cdn),
        )
        for pattern, answer in patterns:
            found = re.fullmatch(pattern, self.where)
            if found:
                name = found[1]
                if name in self.hub.moved:
                    self._send(307, b"", {"Location": self.asked.replace(name, self.hub.moved[name], 1)})
                    return
                answer(name, *(unquote(part) if part else None for part in found.groups()[1:]))
                return
        raise _Refusal(404, "", "Not Found")

    def _allowed(self, name: str) -> bool:
        """Whether who asks may read what isn't public."""
        told = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if told and told not in (self.hub.token, self.hub.stranger):
            raise _Refusal(401, "", "Invalid credentials in Authorization header")
        return told == self.hub.token

    def _found(self, name: str, revision: str | None) -> tuple[Repo, str]:
        """A repository that may be seen, and the commit that is meant."""
        allowed, repo = self._allowed(name), self.hub.repos.get(name)
        if repo is None or (repo.private and not allowed):
            anonymous = "Authorization" not in self.headers
            raise _Refusal(401 if anonymous else 404, "RepoNotFound", "Repository not found")
        commit = repo.refs.get(revision or "main", revision or "")
        if commit not in repo.commits:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo, commit

    def _model(self, name: str, revision: str | None) -> None:
        repo, commit = self._found(name, revision)
        blobs = self.hub.blobs and "blobs" in self.query
        files = repo.commits[commit]
        tags = [f"{key}:{value}" for key, value in repo.card.items() if isinstance(value, str)]
        self._json({
            "_id": commit[:24], "id": name, "modelId": name, "author": name.split("/")[0], "sha": commit, "private": repo.private,
            "gated": "manual" if repo.gated else False, "disabled": False, "downloads": 0, "likes": 0, "tags": tags,
            "lastModified": "2026-04-20T10:00:00.000Z", "createdAt": "2026-04-16T10:00:00.000Z", "cardData": repo.card,
            "siblings": [{"rfilename": path, **(_sibling(file) if blobs else {})} for path, file in files.items()],
        })  # fmt: skip

    def _tree(self, name: str, revision: str, folder: str | None) -> None:
        repo, commit = self._found(name, revision)
        start = f"{folder}/" if folder else ""
        below = {path: file for path, file in repo.commits[commit].items() if path.startswith(start)}
        if folder and not below:
            raise _Refusal(404, "EntryNotFound", f"{folder} does not exist")
        recursive = self.query.get("recursive", ["false"])[0].lower() == "true"
        entries = _entries(below, start, recursive)
        at = int(self.query.get("cursor", ["0"])[0])
        headers = {}
        if at + self.hub.page < len(entries):
            more = f"{self.hub.url}{self.where}?recursive={str(recursive).lower()}&cursor={at + self.hub.page}"
            headers["Link"] = f'<{more}>; rel="next"'
        self._json(entries[at : at + self.hub.page], headers)

    def _paths(self, name: str, revision: str) -> None:
        repo, commit = self._found(name, revision)
        wanted = parse_qs(self.body.decode()).get("paths", [])
        self._json([_entry(path, file) for path, file in repo.commits[commit].items() if path in wanted])

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repo, commit = self._found(name, revision)
        if repo.gated and not self._allowed(name):
            anonymous = "Authorization" not in self.headers
            raise _Refusal(401 if anonymous else 403, "GatedRepo", f"Access to model {name} is restricted.")
        file = repo.commits[commit].get(path)
        if file is None:
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", "ETag": f'"{file.lfs or file.blob}"'}
        if file.lfs:
            headers |= {"X-Linked-Etag": f'"{file.lfs}"', "X-Linked-Size": str(file.size)}
            headers |= self._xet(name, commit, file) if repo.xet else {}
            self._send(302, b"", {**headers, "Location": f"{self.hub.cdn}/cdn/{name}/{commit}/{quote(path)}"})
        else:
            self._content(name, path, file, headers)

    def _xet(self, name: str, commit: str, file: File) -> dict[str, str]:
        """What the Hub adds for a file of a Xet store: its hash there and where a token for that store is asked for."""
        refresh = f"{self.hub.url}/api/models/{name}/xet-read-token/{commit}"
        links = f'<{refresh}>; rel="xet-auth", <{self.hub.url}/xet/{file.lfs}>; rel="xet-reconstruction-info"'
        return {"X-Xet-Hash": str(file.lfs), "X-Xet-Refresh-Route": refresh, "Link": links}

    def _cdn(self, name: str, commit: str, path: str) -> None:
        file = self.hub.repos[name].commits.get(commit, {}).get(path)
        if file is None:
            raise _Refusal(404, "", "Not Found")
        self._content(name, path, file, {"Accept-Ranges": "bytes", "ETag": f'"{file.lfs}"'})

    def _content(self, name: str, path: str, file: File, headers: dict[str, str]) -> None:
        """A file or the range of it that is asked for, with the faults that this request meets."""
        start, end, status = 0, file.size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            start, end, status = int(asked[1]), min(file.size, int(asked[2] or file.size - 1) + 1), 206
            if start >= file.size:
                self._send(416, b"", {**headers, "Content-Range": f"bytes */{file.size}"})
                return
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{file.size}"}
        if self.command != "HEAD":
            self.hub.ranges.append((path, start, end))
        self._start(status, end - start, {**headers, "Content-Type": "application/octet-stream"})
        if self.command == "HEAD":
            return
        with self.hub.answering(), suppress(ConnectionError):
            for piece in file.read(start, end):
                self.hub.count(name, path, self._write(_flipped(piece, start, self.flip_at)))
                start += len(piece)
                if self.cut_after == 0:
                    return

    def _write(self, piece: bytes) -> int:
        """Send it, or what may be sent before the connection is cut; returns how many bytes that were."""
        if self.cut_after is not None:
            piece = piece[: self.cut_after]
            self.cut_after -= len(piece)
            self.close_connection = self.close_connection or self.cut_after == 0
        first = b""
        if self.hold_after is not None and len(piece) >= self.hold_after:
            first, self.hold_after = piece[: self.hold_after], None
            self.wfile.write(first)
            self.hold.wait(600)
        elif self.hold_after is not None:
            self.hold_after -= len(piece)
        self.wfile.write(piece[len(first) :])
        return len(piece)

    def _json(self, document: Any, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json; charset=utf-8", **(headers or {})})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._start(status, len(body), headers)
        if self.command != "HEAD":
            with suppress(ConnectionError):
                self._write(body)

    def _start(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.hub.requests.append((self.command, getattr(self, "asked", self.path), status))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()


def _flipped(piece: bytes, start: int, at: int | None) -> bytes:
    if at is None or not start <= at < start + len(piece):
        return piece
    changed = bytearray(piece)
    changed[at - start] ^= 1
    return bytes(changed)


def _sibling(file: File) -> dict[str, Any]:
    lfs = {"lfs": {"sha256": file.lfs, "size": file.size, "pointerSize": 135}} if file.lfs else {}
    return {"size": file.size, "blobId": file.blob, **lfs}


def _entry(path: str, file: File) -> dict[str, Any]:
    lfs = {"lfs": {"oid": file.lfs, "size": file.size, "pointerSize": 135}} if file.lfs else {}
    return {"type": "file", "path": path, "oid": file.blob, "size": file.size, **lfs}


def _entries(files: dict[str, File], start: str, recursive: bool) -> list[dict[str, Any]]:
    """Files, and the folders that they are in: all of them, or only what is directly there."""
    folders = {
        start + "/".join(parts[:n]) for path in files for parts in [path[len(start) :].split("/")] for n in range(1, len(parts))
    }
    found: list[dict[str, Any]] = [
        {"type": "directory", "path": folder, "oid": hashlib.sha1(folder.encode()).hexdigest(), "size": 0} for folder in folders
    ]
    found += [_entry(path, file) for path, file in files.items()]
    return sorted((e for e in found if recursive or "/" not in e["path"][len(start) :]), key=lambda e: str(e["path"]))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.hub",
        description="Serve a folder as one repository of the Hub's protocol, until it is interrupted.",
        epilog="example: python -m lab.hub unsloth/Qwen3.6-35B-A3B-GGUF models --port 8099",
    )
    parser.add_argument("name", help="owner/name of the repository")
    parser.add_argument("folder", type=Path, help="its files")
    parser.add_argument("--address", default="127.0.0.1", help="where it listens (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="its port (a free one)")
    parser.add_argument("--base-model", default="Qwen/Qwen3.6-35B-A3B", help="base_model of its card (Qwen/Qwen3.6-35B-A3B)")
    chosen = parser.parse_args(arguments)
    files = {str(path.relative_to(chosen.folder)): path for path in chosen.folder.rglob("*") if path.is_file()}
    with Hub(chosen.address, chosen.port) as hub, suppress(KeyboardInterrupt):
        commit = hub.add(chosen.name, files, card={"license": "apache-2.0", "base_model": chosen.base_model})
        print(f"HF_ENDPOINT={hub.url} has {chosen.name} at {commit}", flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
