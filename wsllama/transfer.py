"""Sends one big file to a host, or takes one, in one pass, over the connection that pyinfra has already, as root.

pyinfra's own upload hashes the file on both sides first, can't go on after a cut, says nothing for an hour and needs
the space twice (an SFTP upload to /tmp, then `cp`). Here the command that runs is as pyinfra would run it (sudo, su,
shell); what it does, its argument and the file's bytes go to its stdin, to wsllama/host/receive.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import gevent
from gevent.subprocess import PIPE, Popen
from paramiko import SSHException
from pyinfra.api import QuoteString, StringCommand
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.connectors.util import extract_control_arguments, make_unix_command_for_host

from wsllama import digest, program
from wsllama.connectors.shell import WslError, WslShell
from wsllama.domain import gguf
from wsllama.host.receive import BLOCK, DROP_EVERY, Progress, gib, identity
from wsllama.layout import MODELS

# Reads the program from stdin by its exact length, so that the rest of stdin is the program's.
START = "import sys; i = sys.stdin.buffer; exec(i.read(int(i.readline())))"

# sendall copies all that is left for each packet of 32 KiB; with 1 MiB at once that doubles the CPU time of sending.
PIECE = 256 * 1024

Say = Callable[[str], None]


class TransferError(Exception):
    """Why a file did not get to a host, in one sentence."""


def send_file(host: Any, source: Path, target: str, *, sha256: str | None = None, mode: int = 0o644, say: Say,
              arguments: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """Send a file to a path on a host, where its folder need not be there yet.

    - host: of pyinfra, connected over SSH, @wsl, @wslssh or @local
    - target: absolute path on the host; mode: its permissions
    - sha256: what it has to be; known ones save reading a file that is there already
    - say: gets a line of progress now and then
    - arguments: pyinfra's connector arguments (`_sudo` and the rest)

    Returns {"ok", "changed", "file", "sha256", "size"}. Raises TransferError; then nothing was changed on the host but
    a partial file that the next run goes on with.
    """
    return _send(host, "receive", {"target": target, "mode": mode}, source, sha256, say, arguments)


def send_model(host: Any, source: Path, *, root: str = MODELS, name: str | None = None, sha256: str | None = None,
               more: Mapping[str, Any] | None = None, say: Say, arguments: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """Send a GGUF to a host's models (layout: wsllama/host/model.py), after a look at its header.

    - root: folder of the models on the host; name: file name there (default: the source's)
    - more: of the program's argument: the model that this is a file of, who may read it

    The rest as `send_file`. Returns also "dir" and "architecture".
    """
    try:
        with source.open("rb") as stream:
            gguf.check(stream, os.fstat(stream.fileno()).st_size)
    except gguf.GgufError as error:
        raise TransferError(f"{source}: {error}") from None
    except OSError as error:
        raise TransferError(f"{source}: {error.strerror}") from None
    return _send(host, "model", {"root": root, "name": name or source.name, **(more or {})}, source, sha256, say, arguments)


def send_build(host: Any, source: Path, *, build_id: str, sha256: str, unpacked: int, say: Say,
               arguments: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """Send the archive of a build to a host and make the build of it there (wsllama/host/artifact.py).

    - sha256: of the archive, checked as it arrives; unpacked: bytes that the build takes

    The rest as `send_file`. Returns {"ok", "changed", "build_id", "sha256", "size"}.
    """
    argument = {"action": "unpack", "build_id": build_id, "unpacked": unpacked}
    return _send(host, "artifact", argument, source, sha256, say, arguments)


def fetch_build(host: Any, build_id: str, out: BinaryIO, *, say: Say, arguments: dict[str, Any]) -> dict[str, Any]:
    """Pack a build on a host (wsllama/host/artifact.py) and write the archive to `out` as it is made.

    Nothing is written on the host. Returns {"ok", "sha256", "size", "record"}: of the archive, as both sides saw it, and
    the build's own record. Raises TransferError; what `out` has got then is of no use.
    """
    argument = {"action": "pack", "build_id": build_id}
    return fetch(host, "artifact", argument, out, what=f"build {build_id}", say=say, arguments=arguments)


def fetch(host: Any, name: str, argument: dict[str, Any], out: BinaryIO, *, what: str, say: Say,
          arguments: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """Write to `out` what wsllama/host/<name>.py sends in blocks, as artifact.py there describes; what: its name in messages.

    Returns the document behind the blocks, whose "sha256" and "size" are of what came. Raises TransferError; what `out` has
    got then is of no use.
    """
    with _sentences(host, f"{what} was fetched"), _started(host, name, argument, arguments) as (remote, start):
        remote.write(start)
        return _take(remote, out, what, say)


def _take(remote: _Local | _Channel | _Distro, out: BinaryIO, what: str, say: Say) -> dict[str, Any]:
    """Write the blocks that come and return the document behind them."""
    digest, size, progress = hashlib.sha256(), 0, None
    answer: dict[str, Any] = {}
    for line in remote.lines():
        answer = json.loads(line)
        if "block" not in answer:
            break
        progress = progress or Progress(f"copy of {what}", answer["total"], 0, say)
        data = remote.read(answer["block"])
        _threads().apply(digest.update, (data,))
        try:
            out.write(data)
        except OSError as error:  # otherwise it would be the host's
            raise TransferError(f"{what} can't be written on this machine: {error.strerror}") from None
        size += len(data)
        progress.at(answer["done"])
    failure = remote.failure()
    if failure or not answer.get("ok"):
        raise TransferError(failure or f"the connection broke while {what} was fetched: run again")
    if (answer["sha256"], answer["size"]) != (digest.hexdigest(), size):
        raise TransferError(f"{what} came with sha256 {digest.hexdigest()} where {answer['sha256']} was sent: run again")
    if progress:
        progress.end()
    return answer


def _send(host: Any, name: str, argument: dict[str, Any], source: Path, sha256: str | None, say: Say,
          arguments: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    local = _way(host) is _Local
    with _sentences(host, f"{source.name} was sent"), source.open("rb") as file:
        sending = _Sending(source, file, sha256, say)
        argument = {**argument, "sha256": sending.sha256, **sending.described(local)}
        with _started(host, name, argument, arguments) as (remote, start):
            return sending.run(remote, start)


def _way(host: Any) -> type[_Local] | type[_Channel] | type[_Distro]:
    if isinstance(host.connector, WslShell):
        return _Distro
    if isinstance(host.connector, SSHConnector):
        return _Channel
    if isinstance(host.connector, LocalConnector):
        return _Local
    raise TransferError(
        f"files can't be sent to {host.name} over {type(host.connector).__name__}: "
        "give a path on the host itself, or reach it over SSH"
    )


@contextlib.contextmanager
def _started(
    host: Any, name: str, argument: dict[str, Any], arguments: dict[str, Any]
) -> Iterator[tuple[_Local | _Channel | _Distro, bytes]]:
    """A command on the host that waits for wsllama/host/<name>.py, and the bytes to begin with: program and argument."""
    with_program = program.call(name, argument, attended=False).encode()
    command = StringCommand("python3", "-I", "-S", "-c", QuoteString(START))
    shell = dict(arguments)
    extract_control_arguments(shell)  # what is left says how the command runs: sudo and the like
    remote = _way(host)(host, make_unix_command_for_host(host.state, host, command, **shell).get_raw_value())
    try:
        yield remote, b"%d\n%s" % (len(with_program), with_program)
    finally:
        remote.close()


@contextlib.contextmanager
def _sentences(host: Any, doing: str) -> Iterator[None]:
    """Make a TransferError of what goes wrong with a connection or a file."""
    try:
        yield
    except (SSHException, EOFError) as error:
        raise TransferError(f"{host.name}: the connection broke while {doing}: {error}") from None
    except WslError as error:
        raise TransferError(f"{host.name}: {error}") from None
    except OSError as error:
        raise TransferError(f"{error.filename or host.name}: {error.strerror or error}") from None


_readers: dict[str, dict[object, int]] = {}
"""File -> how far each of the talks with hosts has read it: what all have read leaves the page cache, so that a slow one need not
read the disk again."""


class _Sending:
    """The controller's side of the talk that wsllama/host/receive.py describes."""

    def __init__(self, source: Path, file: BinaryIO, sha256: str | None, say: Say) -> None:
        self.source, self.file, self.say = source, file, say
        self.before = os.fstat(file.fileno())
        self.size = self.before.st_size
        self.sha256 = (sha256 or digest.known(source) or "").lower() or None
        self.hash: Any = None  # of what was read from the start on, as long as nothing was left out

    def described(self, local: bool) -> dict[str, Any]:
        """What the receiver has to know of the file. On this machine it reads the file itself."""
        if local:
            return {"path": os.path.realpath(self.source)}
        path = os.path.realpath(self.source)
        return {"size": self.size, "source": {"on": "controller", "path": path, **identity(self.before)}}

    def run(self, remote: _Local | _Channel | _Distro, start: bytes) -> dict[str, Any]:
        try:
            result = self.talk(remote, start)
        except OSError:  # the other side ended; why, it says itself
            result = {}
        failure = remote.failure()
        if failure or not result.get("ok"):
            raise TransferError(failure or f"the connection broke while {self.source.name} was sent: run again")
        digest.remember(self.source, self.before, result["sha256"])
        return result

    def talk(self, remote: _Local | _Channel | _Distro, start: bytes) -> dict[str, Any]:
        remote.write(start)
        answers = self.answers(remote)
        answer = next(answers, {})
        if "have" in answer:
            self.stream(remote, self.agree(remote, answers, answer["have"]))
            remote.write(b"%s\n" % json.dumps({"sha256": self.hash.hexdigest() if self.hash else None}).encode())
            answer = next(answers, {})
        return answer

    def answers(self, remote: _Local | _Channel | _Distro) -> Iterator[dict[str, Any]]:
        for raw in remote.lines():
            line = raw.decode("utf-8", "replace").rstrip("\n")
            if line.startswith("{"):
                yield json.loads(line)
            else:
                self.say(line.removeprefix("==> "))

    def agree(self, remote: _Local | _Channel | _Distro, answers: Iterator[dict[str, Any]], have: int) -> int:
        """Where to go on: behind what is there, if that is how this file begins."""
        self.hash = None if self.sha256 else hashlib.sha256()
        if not have:
            return 0
        ours = hashlib.sha256()
        for block in self.blocks(0, have):
            _threads().apply(ours.update, (block,))
        same = next(answers, {}).get("sha256") == ours.hexdigest()
        if same and self.hash:
            self.hash = ours
        offset = have if same else 0
        remote.write(b"%s\n" % json.dumps({"from": offset}).encode())
        if offset < self.size:
            begins = "goes on after" if same else "starts again: it begins differently from"
            self.say(f"{self.source.name} {begins} the {gib(have)} that are on the host")
        return offset

    def stream(self, remote: _Local | _Channel | _Distro, offset: int) -> None:
        progress = Progress(f"copy of {self.source.name}", self.size, offset, self.say)
        done = offset
        for block in self.blocks(offset, self.size):
            hashed = _threads().spawn(self.hash.update, block) if self.hash else None
            remote.write(block)
            if hashed:
                hashed.get()
            done += len(block)
            progress.at(done)
        if identity(os.stat(self.source)) != identity(self.before):
            raise self.changed()
        if done > offset:
            progress.end()

    def blocks(self, start: int, end: int) -> Iterator[bytes]:
        self.file.seek(start)
        readers = _readers.setdefault(os.path.realpath(self.source), {})
        try:
            while start < end:
                readers[self] = start
                if start % DROP_EVERY < BLOCK:
                    self.drop(min(readers.values()))
                try:
                    block = self.file.read(min(BLOCK, end - start))
                except OSError as error:
                    raise TransferError(f"{self.source}: {error.strerror}") from None
                if not block:
                    raise self.changed()
                yield block
                start += len(block)
        finally:
            readers.pop(self, None)
            self.drop(min([*readers.values(), start]))

    def drop(self, end: int) -> None:
        os.posix_fadvise(self.file.fileno(), 0, end, os.POSIX_FADV_DONTNEED)

    def changed(self) -> TransferError:
        return TransferError(f"{self.source} was changed while it was sent: run again")


def _threads() -> Any:
    """Real threads, for hashing beside the other hosts' greenlets."""
    return gevent.get_hub().threadpool


class _Channel:
    """A command on the host, on a channel of the connection that pyinfra has."""

    def __init__(self, host: Any, command: str) -> None:
        self.channel = host.connector.client.get_transport().open_session(timeout=60)
        self.channel.exec_command(command)
        self.out, self.errors = self.channel.makefile("rb"), self.channel.makefile_stderr("rb")

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), PIECE):
            self.channel.sendall(data[at : at + PIECE])

    def lines(self) -> Iterator[bytes]:
        yield from self.out

    def read(self, count: int) -> bytes:
        data: bytes = self.out.read(count)
        return data

    def failure(self) -> str:
        """The sentence that the command ended with, empty when it went well."""
        self.channel.shutdown_write()
        said = self.errors.read()
        return _sentence(said, self.channel.recv_exit_status())

    def close(self) -> None:
        self.channel.close()


class _Distro:
    """The same in a distro of WSL."""

    def __init__(self, host: Any, command: str) -> None:
        self.session = host.connector.open(command)
        self.write, self.lines, self.read = self.session.write, self.session.out.lines, self.session.out.read
        self.close = self.session.close

    def failure(self) -> str:
        try:
            return _sentence(*self.session.finish())
        except WslError as e:
            return str(e)


class _Local:
    """The same on this machine."""

    def __init__(self, host: Any, command: str) -> None:
        self.process = Popen(command, shell=True, stdin=PIPE, stdout=PIPE, stderr=PIPE)

    def write(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def lines(self) -> Iterator[bytes]:
        yield from self.process.stdout

    def read(self, count: int) -> bytes:
        data: bytes = self.process.stdout.read(count)
        return data

    def failure(self) -> str:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        return _sentence(self.process.stderr.read(), self.process.wait())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


def _sentence(said: bytes, status: int) -> str:
    if status == 0:
        return ""
    lines = [line.strip() for line in said.decode("utf-8", "replace").split("\n") if line.strip()]
    if lines:
        return lines[-1]
    return "" if status < 0 else f"the receiver ended with exit status {status}"  # below 0: the connection broke
