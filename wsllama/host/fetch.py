"""Runs on the host: downloads a model's files, from the Hub or from addresses, and installs them as wsllama/host/model.py does.

The Hub's client is that of the host's own venv, whose folder of packages is `site`; for addresses Python's own suffices. What
the Hub says of a file's size and sha256 at the revision has to be what the lock says, before a byte of it is asked for.
"""

import http.client
import os
import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from wsllama import hub
from wsllama.domain import gguf, gguf_audit
from wsllama.host import model, receive

TIMEOUT_S = 60  # that a mirror may be silent
PIECE = 1 << 20
TRIES = 3  # without a byte, after a connection was cut
HEAD = 64  # bytes that tell what a file is

Content = Callable[[int], Iterator[bytes]]


class WebError(Exception):
    """Why a file can't be had from an address: one sentence."""


def main(argument: dict[str, Any]) -> None:
    """Download and install a model.

    - files: entries of wsllama/host/model.py with name, size, sha256 and `place`: a path in the repository, or an address
    - mmproj: that of its projector, or None; root, group, allow_unofficial: as there
    - hub: {"repo", "revision", "endpoint", "token", "site"}; None: places are addresses

    Lines of progress on stdout, the last one is as in wsllama/host/model.py. Raises SystemExit with a sentence.
    """
    with receive.one_sentence(argument["root"]):
        receive.tell(**bring(argument))


def bring(argument: dict[str, Any]) -> dict[str, Any]:
    """The same; returns the last line's document."""
    found = model.Model(argument, argument["files"])
    try:
        read = of_hub(found, argument["hub"]) if argument["hub"] else of_web(found)
        result, changed = dict[str, Any](), False
        for entry in found.every:
            result = receive.from_source(found.job(entry), read(entry), found.have(entry), found.keep(entry))
            changed = changed or result["changed"]
        return {**result, "changed": changed}
    except (hub.HubError, WebError) as e:
        raise SystemExit(f"{e}; what came is kept, and the next run goes on from there") from None


def looked_at(what: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, unless the first of them shows that this is no GGUF. Raises WebError."""
    for first in pieces:
        other = gguf.not_gguf(first[:HEAD])
        if other:
            raise WebError(f"{what}: {other}")
        yield first
        break
    yield from pieces


def of_hub(found: model.Model, where: dict[str, Any]) -> Callable[[model.Entry], Content]:
    """What gives the content of entries at a revision, which the Hub has been asked about. Raises HubError."""
    if where["site"]:
        sys.path.insert(0, where["site"])
        os.environ["HF_HOME"] = os.path.join(found.incoming, "hf")  # a token in root's home isn't ours to use
    if where["endpoint"]:
        os.environ["HF_ENDPOINT"] = where["endpoint"]
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    token = where["token"]
    told = hub.repository(where["repo"], where["revision"], token)
    for entry in found.every:
        wrong = differs(told, entry, where["revision"])
        if wrong:
            raise SystemExit(f"{where['repo']}/{entry['place']} at {where['revision'][:12]}: {wrong}")
        entry["size"] = told.files[entry["place"]].size
        entry["source"] = {"on": "hub", "repo": where["repo"], "revision": where["revision"], "path": entry["place"]}

    def read(entry: model.Entry) -> Content:
        def content(start: int) -> Iterator[bytes]:
            pieces = hub.content(told, entry["place"], start, token)
            return pieces if start else looked_at(f"{where['repo']}/{entry['place']}", pieces)

        return content

    return read


def differs(told: hub.Repository, entry: model.Entry, revision: str) -> str | None:
    """How what the Hub says of an entry differs from the lock; None when it is the same."""
    if told.revision != revision:
        return f"the Hub gives the commit {told.revision} for it: look which ones there are and use `wsllama lock update`"
    theirs = told.files.get(entry["place"])
    if theirs is None:
        return "there is no such file at this revision: use `wsllama lock update`"
    if theirs.sha256 is None:
        return (
            "the Hub tells no sha256 of it, so it can't be held against the lock: check the endpoint, or take source url or path"
        )
    if theirs.sha256 != entry["sha256"]:
        return (
            f"it has sha256 {theirs.sha256} on the Hub and {entry['sha256']} in the lock: nothing was downloaded; see"
            " `wsllama lock check`"
        )
    if entry.get("size") not in (None, theirs.size):
        return (
            f"it has {theirs.size} bytes on the Hub and {entry['size']} in the lock: nothing was downloaded; see"
            " `wsllama lock check`"
        )
    return None


def of_web(found: model.Model) -> Callable[[model.Entry], Content]:
    """What gives the content of entries whose places are addresses."""
    for entry in found.every:
        if found.there(entry):
            entry["size"] = entry.get("size") or os.path.getsize(str(found.there(entry)))
            continue
        size = length(entry["place"])
        if entry.get("size") not in (None, size):
            raise WebError(
                f"{entry['place']}: it has {size} bytes where the lock has {entry['size']}: the mirror has another file"
            )
        entry["size"], entry["source"] = size, {"on": "url", "url": entry["place"]}

    def read(entry: model.Entry) -> Content:
        return lambda start: web(entry["place"], start, entry["size"])

    return read


def length(url: str) -> int:
    """Bytes of what an address has, after a look at how it begins. Raises WebError."""
    try:
        with answer(url, headers={"Range": f"bytes=0-{HEAD - 1}"}) as said:
            told = (
                said.headers.get("Content-Range", "").rpartition("/")[2] if said.status == 206 else said.headers["Content-Length"]
            )
            other = gguf.not_gguf(said.read(HEAD))
    except (OSError, http.client.HTTPException) as e:
        raise WebError(f"{url}: the connection broke ({_said(e)}): run again") from None
    if other:
        raise WebError(f"{url}: {other}")
    if not re.fullmatch("[0-9]{1,18}", told or ""):
        raise WebError(f"{url}: the mirror tells no size of it: take another, as `wsllama mirror` is one")
    return int(told)


def web(url: str, start: int, end: int) -> Iterator[bytes]:
    """The bytes from `start` up to `end`, in pieces; goes on after a cut. Raises WebError."""
    at, tries, why = start, 0, "the connection ended"
    while at < end:
        before = at
        try:
            with answer(url, headers={"Range": f"bytes={at}-{end - 1}"}) as said:
                skip(said, url, at)
                while at < end and (piece := said.read1(min(PIECE, end - at))):
                    at += len(piece)
                    yield piece
        except (OSError, http.client.HTTPException) as e:
            why = _said(e)
        tries = 0 if at > before else tries + 1
        if tries == TRIES:
            raise WebError(f"{url}: the connection broke after {at} of {end} bytes ({why}): run again")


def skip(said: Any, url: str, at: int) -> None:
    """Put an answer to where it was asked for: a server may not know ranges, and send all."""
    if said.status == 206:
        if not said.headers.get("Content-Range", "").startswith(f"bytes {at}-"):
            raise WebError(f"{url}: the mirror sends another part of it than it was asked for: take another")
        return
    while at:
        passed = said.read(min(PIECE, at))
        if not passed:
            raise ConnectionError("the connection ended")
        at -= len(passed)


def answer(url: str, headers: dict[str, str]) -> Any:
    """The answer of an address. Raises WebError, or OSError when the connection breaks."""
    asked = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **headers})
    try:
        return urllib.request.urlopen(asked, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as e:
        e.close()
        raise WebError(f"{url}: {_status(e.code)}") from None
    except urllib.error.URLError as e:
        if isinstance(e.reason, ConnectionError) and not isinstance(e.reason, ConnectionRefusedError):
            raise e.reason from None
        raise WebError(f"{url}: {_unreached(e.reason)}") from None
    except ValueError as e:  # an address that the mirror names
        raise WebError(f"{url}: the mirror answers with what is no address ({_said(e)}): check model.url") from None


def _said(error: object) -> str:
    """What an error says, as part of one line: it may quote what a server sent."""
    return gguf_audit.printable(str(error).strip())[:200] or type(error).__name__


def _status(code: int) -> str:
    known = {
        401: "the mirror asks for a login (401): give an address that needs none",
        403: "the mirror forbids it (403): check its settings and the network's filter",
        416: "it is empty, not a GGUF",
        404: "the mirror has no such file (404): check model.url",
        407: "the proxy asks for a login (407): check network.proxy",
        429: "too many requests (429): wait some minutes",
    }
    return known.get(code) or (
        f"the mirror has a fault of its own ({code}): try again later"
        if code >= 500
        else f"the mirror answers {code}: check model.url"
    )


def _unreached(reason: Any) -> str:
    said = _said(reason)
    if "Tunnel connection failed" in said:
        return f"the proxy refuses ({said}): check network.proxy"
    if isinstance(reason, (TimeoutError, socket.timeout)):
        return f"the mirror was silent for {TIMEOUT_S} s: check the network and network.proxy"
    return f"the mirror can't be reached ({said}): check model.url, the network and network.proxy"
