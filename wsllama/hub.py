"""What the Hub says of a model's repository at a revision, read with the Hub's own client: nothing of a model is downloaded.

Its address is HF_ENDPOINT, its token that of the client (HF_TOKEN, HF_TOKEN_PATH) or one that is given; proxies are those of the
environment. Each failure is one sentence.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from wsllama.domain import gguf

if TYPE_CHECKING:
    import httpx2

TIMEOUT_S = 30  # that the Hub may be silent
PIECE = 4 * 1024 * 1024  # bytes of one request for a part of a header; a real one has 11 MB
TEXT_MOST = 512 * 1024  # bytes of a card's text that are read
TRIES = 3  # without a byte, after a connection was cut
PORTAL = (
    "what answers is not the Hub but a page or another program, as in a network that asks for a login: open a browser, or check"
    " HF_ENDPOINT and the proxy"
)
RELEASE = re.compile(r"llama\.cpp.{0,200}?\b(b\d{4,6})\b", re.IGNORECASE | re.DOTALL)


class HubError(Exception):
    """Why something can't be read from the Hub, and what to do: one sentence."""


@dataclass(frozen=True)
class HubFile:
    """One file: its bytes, and its sha256 where the Hub has one (large files in LFS)."""

    size: int
    sha256: str | None


@dataclass(frozen=True)
class Repository:
    """A repository at one commit. `card` is the metadata of its card."""

    repo: str
    revision: str
    files: dict[str, HubFile]
    card: dict[str, object]
    tags: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All that card and Hub call it: texts and lists of texts of the card's metadata, and tags."""
        values = [v for value in self.card.values() for v in (value if isinstance(value, list) else [value])]
        return (*self.tags, *(v for v in values if isinstance(v, str)))

    @property
    def licence(self) -> str | None:
        """The licence of the card."""
        found = self.card.get("license")
        return found if isinstance(found, str) else None

    @property
    def bases(self) -> tuple[str, ...]:
        """The base models of the card."""
        found = self.card.get("base_model")
        return (
            (found,)
            if isinstance(found, str)
            else tuple(b for b in found if isinstance(b, str))
            if isinstance(found, list)
            else ()
        )


def repository(repo: str, revision: str, token: str | None = None) -> Repository:
    """Files, sizes, sums and card of a repository.

    + revision: a branch, a tag or a commit
    + token: of the Hub; without it the client's own

    Raises HubError.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    with _sentences(f"{repo} at {revision}"):
        api = HfApi(endpoint=_endpoint())
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S, token=token)
        if not info.sha:
            raise HubError(f"{repo}: what answers is not the Hub, as it names no commit: check HF_ENDPOINT")
        listed = [(file.rfilename, file.size, file.lfs) for file in info.siblings or ()]
        if not listed or any(size is None for _, size, _ in listed):  # a mirror of the Hub may tell sizes only in its tree
            tree = api.list_repo_tree(repo, revision=info.sha, recursive=True, token=token)
            listed = [(file.path, file.size, file.lfs) for file in tree if isinstance(file, RepoFile)]
        return Repository(
            repo=info.id,
            revision=info.sha,
            files={path: HubFile(cast(int, size), lfs.sha256 if lfs else None) for path, size, lfs in listed},
            card={key: value for key, value in vars(info.card_data).items() if value is not None} if info.card_data else {},
            tags=tuple(info.tags or ()),
        )


def address(repo: str, revision: str, path: str, endpoint: str | None = None) -> str:
    """Where a file of a repository is. endpoint: of the Hub, None for that of the environment."""
    from huggingface_hub import hf_hub_url

    return hf_hub_url(repo, path, revision=revision, endpoint=(endpoint or "").rstrip("/") or _endpoint())


def commit_of(repo: str, token: str | None = None) -> str | None:
    """Where a repository's main branch stands; None when it can't be seen."""
    try:
        return repository(repo, "main", token).revision
    except HubError:
        return None


def header(found: Repository, path: str, token: str | None = None) -> gguf.Header:
    """The header of a GGUF, read by range requests: no more is fetched than the header has, and a few megabytes.

    Raises HubError, also when it is no GGUF or the repository's size is less than what the header asks for.
    """
    size = found.files[path].size
    where = f"{found.repo}/{path}"
    try:
        with _sentences(where):
            return gguf.check(cast(BinaryIO, _Ranges(found, path, size, token)), size)
    except gguf.GgufError as e:
        raise HubError(f"{where}: {e}") from e


def content(found: Repository, path: str, start: int, token: str | None = None) -> Iterator[bytes]:
    """A file's bytes from `start` on, in pieces as they come; goes on after a cut. Raises HubError."""
    size = found.files[path].size
    at, tries = start, 0
    with _sentences(f"{found.repo}/{path}"):
        import httpx2

        stream = _Ranges(found, path, size, token)
        while at < size:
            before = at
            try:
                for part in stream.part(at, size):
                    at += len(part)
                    yield part
                if at == before:
                    raise HubError(f"{found.repo}/{path}: the Hub sends nothing of it: try again later")
            except (httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.ReadTimeout):
                tries = 0 if at > before else tries + 1
                if tries == TRIES:
                    raise


def card_text(found: Repository, token: str | None = None) -> str:
    """The text of the repository's card, of which the first half a megabyte counts; empty without one. Raises HubError."""
    if "README.md" not in found.files:
        return ""
    with _sentences(f"{found.repo}/README.md"):
        size = min(found.files["README.md"].size, TEXT_MOST)
        data = _Ranges(found, "README.md", size, token).read(size) if size else b""
    return data.decode("utf-8", errors="replace")


def converter_version(text: str) -> str | None:
    """The release of llama.cpp that a card says was used, as in b6115."""
    found = RELEASE.search(text)
    return found[1] if found else None


def _endpoint() -> str | None:
    """HF_ENDPOINT as it is now; the client itself looks when it is imported."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


class _Ranges(io.RawIOBase):
    """A file on the Hub as a stream; what is read is fetched in pieces, and goes on after a cut."""

    def __init__(self, found: Repository, path: str, size: int, token: str | None) -> None:
        from huggingface_hub.utils import build_hf_headers

        self.url = address(found.repo, found.revision, path)
        # without this a text would come compressed, and a range be one of the compressed bytes
        self.headers = {**build_hf_headers(token=token), "Accept-Encoding": "identity"}
        self.where, self.size, self.at = f"{found.repo}/{path}", size, 0

    def read(self, count: int = -1, /) -> bytes:
        """At most a piece; nothing at the end."""
        import httpx2

        end = min(self.size, self.at + min(count if count > 0 else PIECE, PIECE))
        data, tries = b"", 0
        while self.at + len(data) < end:
            before = len(data)
            try:
                for part in self.part(self.at + len(data), end):
                    data += part
                if len(data) == before:
                    raise HubError(f"{self.where}: the Hub sends nothing of it: try again later")
            except (httpx2.ReadError, httpx2.RemoteProtocolError):
                tries = 0 if len(data) > before else tries + 1
                if tries == TRIES:
                    raise
        self.at += len(data)
        return data

    def part(self, start: int, end: int) -> Iterator[bytes]:
        """Bytes from `start` up to `end`, as they come."""
        from huggingface_hub.utils import get_session, hf_raise_for_status

        headers = {**self.headers, "Range": f"bytes={start}-{end - 1}"}
        with get_session().stream("GET", self.url, headers=headers, timeout=TIMEOUT_S) as response:
            if response.is_error:
                response.read()
            hf_raise_for_status(response)
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise HubError(f"{self.where}: {PORTAL}")
            whole = response.status_code == 200 and start == 0
            if not whole and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise HubError(f"{self.where}: what answers gives no parts of files: check HF_ENDPOINT and the proxy")
            left = end - start
            for part in response.iter_bytes():
                yield part[:left]
                left -= len(part[:left])
                if not left:
                    return


@contextmanager
def _sentences(what: str) -> Iterator[None]:
    """Turn what the client raises into one sentence about `what`."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as e:
        raise HubError(f"{what}: that is no name of a repository: give it as owner/name") from e
    except errors.OfflineModeIsEnabled as e:
        raise HubError(f"{what}: HF_HUB_OFFLINE is set, so the Hub is not asked: unset it") from e
    except errors.HfHubHTTPError as e:
        raise HubError(f"{what}: {_answer(e)}") from e
    except httpx2.ProxyError as e:
        raise HubError(f"{what}: the proxy refuses ({_first_line(e)}): check HTTPS_PROXY and NO_PROXY") from e
    except httpx2.TimeoutException as e:
        raise HubError(f"{what}: the Hub was silent for {TIMEOUT_S} s: check the network and the proxy") from e
    except httpx2.ConnectError as e:
        raise HubError(
            f"{what}: the Hub can't be reached ({_first_line(e)}): check the network, HF_ENDPOINT and HTTPS_PROXY"
        ) from e
    except (httpx2.HTTPError, httpx2.InvalidURL) as e:
        raise HubError(f"{what}: the connection to the Hub broke ({_first_line(e)}): run again") from e
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        if isinstance(e, gguf.GgufError):
            raise
        raise HubError(f"{what}: {PORTAL}") from e


def _answer(error: httpx2.HTTPError) -> str:
    """What an answer with an error means."""
    from huggingface_hub import errors

    response = cast("errors.HfHubHTTPError", error).response
    status = response.status_code
    if isinstance(error, errors.GatedRepoError):
        if status == 403:
            return "it is gated and the token's account has no access: accept the terms on the repository's page, and wait for it"
        return "it is gated: accept the terms on the repository's page and give a token with --token-file, or HF_TOKEN_PATH"
    if isinstance(error, errors.DisabledRepoError):
        return "the Hub has disabled it: take another repository"
    if isinstance(error, errors.RevisionNotFoundError):
        return "it has no such revision, or no longer: look which ones there are and use `wsllama lock update --revision`"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return "there is no such file at this revision: look at the repository's files"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such repository, or it is private and needs a token (--token-file): check its name"
    if status == 401:
        return "the Hub refuses the token: make a new one, or unset HF_TOKEN"
    if status == 403:
        return "the Hub forbids it (403): the token lacks the right to read it, or your network filters the Hub"
    if status == 407:
        return "the proxy asks for a login (407): check HTTPS_PROXY"
    if status == 429:
        return f"too many requests (429): {_wait(response.headers)}, or give a token, which is allowed more"
    if status >= 500:
        return f"the Hub has a fault of its own ({status}): try again later"
    return f"the Hub answers {status}: check the name and HF_ENDPOINT"


def _wait(headers: Mapping[str, str]) -> str:
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(headers)
    after = headers.get("Retry-After", "")
    seconds = limit.reset_in_seconds if limit else int(after) if after.isdecimal() and len(after) < 7 else None
    return f"wait {seconds} s" if seconds is not None else "wait some minutes"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
