"""What @wsl and @wslssh share: a command for a shell in a distro that `wsl.exe` starts, and what `wsl.exe` itself says.

cmd.exe, PowerShell and wsl.exe each read quotes, `$` and `%` in their own way, so nothing of a command is given to them: they
see fixed words that start `/bin/sh`, and the command goes to its stdin. What the command reads there follows it:

    echo MARK …                 behind it on stdout and stderr is what the command says; before it what wsl.exe says
    { read up to END; eval …; }
    padding                     dash and busybox read their script in blocks, so a part of this is lost to them
    END
    the input, byte for byte
"""

from __future__ import annotations

import abc
import itertools
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Protocol

import gevent
from pyinfra import logger
from pyinfra.api import QuoteString, StringCommand
from pyinfra.api.exceptions import ConnectError, InventoryError
from pyinfra.api.output import echo
from pyinfra.api.util import get_file_io
from pyinfra.connectors.base import BaseConnector, DataMeta
from pyinfra.connectors.util import (
    CommandOutput,
    OutputLine,
    execute_command_with_sudo_retry,
    extract_control_arguments,
    make_unix_command_for_host,
    read_output_buffers,
)

MARK = b"wsl-connector: output\n"
END = "wsl-connector: input"
READ_AHEAD = 8192  # bytes: BUFSIZ of glibc, what dash 0.5.12 and busybox read at once; musl's and bash's are less
BLOCK = 256 * 1024
BROKE = "WSL, or the connection to it, ended while the command ran: run again"

INSTALLED = r"C:\Program Files\WSL\wsl.exe"
META = {
    "wsl_distro": DataMeta("Name of the distro"),
    "wsl_exe": DataMeta("Path of wsl.exe"),
    "wsl_start_timeout": DataMeta("Seconds that the distro may take to start", 120),
}


class WslError(Exception):
    """Why no command ran in the distro, in one sentence."""


def distro_name(name: str) -> str:
    """The name, when it can be a word of a command line everywhere; raises InventoryError otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9._][A-Za-z0-9._-]*", name):
        raise InventoryError(
            f"{name!r} can't be passed as the name of a distro: only A-Z a-z 0-9 . _ - can; import the distro under such a name"
        )
    return name


def frame(command: str, *, takes_input: bool = False, pty: bool = False) -> bytes:
    """What goes to stdin of /bin/sh so that it runs `command`; with takes_input what follows is the stdin of the command."""
    if pty:  # in the distro: one on Windows' side would rewrite the bytes that pass
        command = f"SHELL=/bin/sh script -qec {shlex.quote(command)} /dev/null"
    mark = MARK.decode().strip()
    skip = f"while read -r wsl_line && [ \"$wsl_line\" != '{END}' ]; do :; done; " if takes_input else ""
    script = (
        f"echo '{mark}'\necho '{mark}' >&2\ncd 2>/dev/null || cd /\n"
        f"{{ {skip}eval {shlex.quote(command)}{'' if takes_input else ' </dev/null'}\nexit; }}\n"
    ).encode("utf-8", "surrogateescape")
    return script + (b"#" * 63 + b"\n") * (READ_AHEAD // 64) + f"{END}\n".encode() if takes_input else script


def decode(said: bytes) -> str:
    """Text of wsl.exe, which is UTF-16LE whatever the language, or of cmd.exe, whose ASCII at least can be read."""
    text = said.decode("utf-16-le" if b"\0" in said else "utf-8", "replace")
    return "\n".join(line for line in (raw.strip("\ufeff\ufffd \t") for raw in text.splitlines()) if line)


# What wsl.exe says is in the language of Windows; codes and commands in it are not. Texts of issues 4, 9231, 9221, 11336, 13766
# of microsoft/WSL. The first that is found counts.
KNOWN = (
    (
        r"WSL_E_DISTRO_NOT_FOUND",
        "there is no distro {distro} for the user of this session: `wsl.exe --list` run as that user shows which there are",
    ),
    (
        r"0x80070422|0x80070426|ERROR_SERVICE_\w+",
        "WSL is stopped, its service is off: run `sc.exe config WSLService start= demand` as administrator, then start it",
    ),
    (
        r"0x80070780|ERROR_CANT_ACCESS_FILE|cannot be accessed by the system|kann auf die Datei nicht zugreifen"
        r"|系统无法访问此文件|系統無法存取該檔案",
        "{exe} belongs to the Store, which does not start programs without a desktop (session 0): set wsl_exe to " + INSTALLED,
    ),
    (
        r"WSL_E_WSL_OPTIONAL_COMPONENT_REQUIRED|REGDB_E_CLASSNOTREG|0x80040154|0x8007019e|aka\.ms/wslinstall|wsl\.exe --install",
        "WSL is not installed there: run `wsl.exe --install --no-distribution` as administrator and restart Windows",
    ),
    (
        r"HCS_E_\w+|0x80370102|WSL_E_VIRTUAL_MACHINE_PLATFORM_REQUIRED",
        "WSL can't start its virtual machine: switch on virtualisation in the firmware and the Virtual Machine Platform feature",
    ),
    (
        r"E_ACCESSDENIED|0x80070005",
        "Windows refuses WSL to this user: distros belong to the user who imported them, so log in as that one",
    ),
    (
        r"\bUnexpectedToken\b",
        "the shell of the SSH server there is PowerShell, which needs a path of wsl.exe without spaces: set wsl_exe to one,"
        r" or the server's DefaultShell to C:\Windows\System32\cmd.exe",
    ),
)


def explain(said: str, *, exe: str, distro: str) -> str:
    """Why no shell began, in one sentence; said: what wsl.exe or the shell before it said, in any language."""
    code = re.search(r"\bWsl/[\w/.]+", said)
    ending = f" ({code[0]})" if code else ""
    for pattern, sentence in KNOWN:
        if re.search(pattern, said):
            return sentence.format(exe=exe, distro=distro) + ending
    first = said.partition("\n")[0] or "it said nothing"
    if code:
        return f"WSL did not start {distro}: {first}{ending}"
    if exe.lower().endswith(r"\wsl\wsl.exe"):
        return f"{exe} did not start there ({first}): install WSL with `wsl.exe --install`, or set wsl_exe to where wsl.exe is"
    return f"{exe} did not start there ({first}): if it belongs to the Store, it needs a desktop; set wsl_exe to {INSTALLED}"


class Pipes(Protocol):
    """A wsl.exe that was started."""

    out: IO[bytes]
    err: IO[bytes]

    def write(self, data: bytes) -> None:
        """Raises OSError when the other side has gone."""

    def end_input(self) -> None: ...

    def wait(self) -> int:
        """Exit status; outside of 0 to 255 when not the command gave it."""

    def close(self) -> None:
        """End it, if it still runs."""


class _Output:
    """stdout or stderr: `before` is what came before the mark, reading gives what comes after it."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw, self.before, self.begun = raw, b"", False

    def begin(self) -> bool:
        while not self.begun:
            line = self.raw.readline()
            if not line:
                break
            self.begun = line.endswith(MARK)  # UTF-16's last byte is in the same line
            self.before += line.removesuffix(MARK)
        return self.begun

    def lines(self) -> Iterator[bytes]:
        if self.begin():
            yield from self.raw

    def text(self) -> Iterator[str]:
        for line in self.lines():
            yield line.decode("utf-8", "replace")

    def read(self, count: int) -> bytes:
        return self.raw.read(count) if self.begin() else b""


class Session:
    """A command that runs in the distro. `out` and `err` are what it says, without what wsl.exe says before."""

    def __init__(self, pipes: Pipes, frame: bytes, exe: str, distro: str) -> None:
        self.pipes, self.frame, self.exe, self.distro = pipes, frame, exe, distro
        self.out, self.err = _Output(pipes.out), _Output(pipes.err)
        self.unread: Exception | None = None

    def write(self, data: bytes) -> None:
        """Give the command some of its stdin. Raises OSError when it has ended."""
        data, self.frame = self.frame + data, b""
        self.pipes.write(data)

    def feed(self, data: Iterable[bytes]) -> None:
        """Give the command all of its stdin, and end it. Why the data could not be read is kept in `unread`."""
        try:
            for block in itertools.chain([b""], data):
                try:
                    self.write(block)
                except OSError:  # the command ended without it, as it may
                    break
        except Exception as e:
            self.unread = e
        self.pipes.end_input()

    def warnings(self) -> list[str]:
        """Lines that wsl.exe said though all went well."""
        return [line for output in (self.out, self.err) for line in decode(output.before).splitlines()]

    def wait(self) -> int:
        """The exit status of the command, -1 when WSL or the connection ended before. Raises WslError when it never began."""
        status = self.pipes.wait()
        if not self.out.begin():
            self.err.begin()
            raise WslError(explain("\n".join(self.warnings()), exe=self.exe, distro=self.distro))
        return status if 0 <= status <= 255 else -1

    def finish(self) -> tuple[bytes, int]:
        """End the command's stdin; all that it said on stderr, and its exit status as `wait`."""
        self.pipes.end_input()
        return b"".join(self.err.lines()), self.wait()

    def close(self) -> None:
        self.pipes.close()


class WslShell(BaseConnector):  # type: ignore[misc]
    """All of a connector but how wsl.exe is started. Its own data are `wsl_distro`, `wsl_exe` and `wsl_start_timeout`."""

    handles_execution = True
    data: dict[str, Any]

    @abc.abstractmethod
    def exe(self) -> str:
        """Path of wsl.exe where it runs. Raises WslError when there is none."""

    @abc.abstractmethod
    def start(self, words: list[str]) -> Pipes:
        """Run wsl.exe, the first of the words. Raises OSError or what the connection raises."""

    def open(self, command: str, *, takes_input: bool = True, pty: bool = False) -> Session:
        """Start a command, as /bin/sh reads it, as root in the distro. Raises as `exe` and `start`."""
        exe, distro = self.exe(), self.data["wsl_distro"]
        pipes = self.start([exe, "-d", distro, "-u", "root", "--exec", "/bin/sh"])
        return Session(pipes, frame(command, takes_input=takes_input, pty=pty), exe, distro)

    def start_distro(self) -> None:
        """Run nothing in the distro, which starts it. Raises ConnectError with one sentence."""
        limit = self.data["wsl_start_timeout"]
        try:
            session, _, _ = self._run("true", timeout=limit)
        except TimeoutError:
            name = self.data["wsl_distro"]
            raise ConnectError(
                f"{name} did not start within {limit} s: look why on Windows, or raise wsl_start_timeout"
            ) from None
        except (WslError, OSError) as e:
            raise ConnectError(str(e)) from None
        for line in session.warnings():
            logger.warning("%s%s", self.host.print_prefix, line)

    def _run(
        self,
        command: str,
        data: Iterable[bytes] | None = None,
        *,
        timeout: float | None = None,
        print_output: bool = False,
        pty: bool = False,
    ) -> tuple[Session, int, CommandOutput]:
        session = self.open(command, takes_input=data is not None, pty=pty)
        feeding = gevent.spawn(session.feed, data or ())  # beside reading: either side may wait for the other
        try:
            output = read_output_buffers(
                session.out.text(), session.err.text(), timeout, print_output, print_prefix=self.host.print_prefix
            )
            status = session.wait()
            if session.unread:
                raise session.unread
        finally:
            feeding.kill()
            session.close()
        if status < 0:
            output.combined_lines.append(self._line(BROKE, print_output))
        return session, status, output

    def run_shell_command(
        self, command: StringCommand, print_output: bool = False, print_input: bool = False, **arguments: Any
    ) -> tuple[bool, CommandOutput]:
        """Run a command, with sudo, su, environment and the rest as pyinfra defines them."""
        control = extract_control_arguments(arguments)
        stdin = control.get("_stdin")

        def execute() -> tuple[int, CommandOutput]:
            unix = self._unix(command, print_input, arguments)
            try:
                _, status, output = self._run(
                    unix,
                    stdin_blocks(stdin) if stdin else None,
                    timeout=control.get("_timeout"),
                    print_output=print_output,
                    pty=bool(control.get("_get_pty")),
                )
            except WslError as e:
                return -1, CommandOutput([self._line(str(e), print_output)])
            return status, output

        return self._judged(execute, control, arguments)

    def put_file(
        self,
        filename_or_io: Any,
        remote_filename: str,
        remote_temp_filename: str | None = None,
        print_output: bool = False,
        print_input: bool = False,
        **arguments: Any,
    ) -> bool:
        """Write a file in the distro, in blocks, as the user that the arguments name; what is there keeps its mode and owner."""
        target = QuoteString(remote_filename)
        with get_file_io(filename_or_io) as file:
            size = file.seek(0, os.SEEK_END)
            command = StringCommand("cat", ">", target, "&&", "test", "$(wc -c <", target, ")", "-eq", str(size))
            control = {
                **extract_control_arguments(arguments),
                "_get_pty": False,
                "_stdin": Blocks(file),
                "_success_exit_codes": None,
            }
            ok, output = self.run_shell_command(command, print_output, print_input, **arguments, **control)
        return self._told(ok, output, "upload", remote_filename, print_output)

    def get_file(
        self,
        remote_filename: str,
        filename_or_io: Any,
        remote_temp_filename: str | None = None,
        print_output: bool = False,
        print_input: bool = False,
        **arguments: Any,
    ) -> bool:
        """Read a file in the distro, in blocks, as the user that the arguments name."""
        control = extract_control_arguments(arguments)
        command = StringCommand("cat", "<", QuoteString(remote_filename))

        def execute() -> tuple[int, CommandOutput]:
            unix = self._unix(command, print_input, arguments)
            try:
                with gevent.Timeout(control.get("_timeout"), TimeoutError()), get_file_io(filename_or_io, "wb") as file:
                    return self._fetch(unix, file)
            except WslError as e:
                return -1, CommandOutput([OutputLine("stderr", str(e))])

        ok, output = self._judged(execute, {}, arguments)
        return self._told(ok, output, "download", remote_filename, print_output)

    def _fetch(self, command: str, file: IO[bytes]) -> tuple[int, CommandOutput]:
        session = self.open(command, takes_input=False)
        feeding, errors = gevent.spawn(session.feed, ()), gevent.spawn(lambda: list(session.err.text()))
        try:
            for block in iter(lambda: session.out.read(BLOCK), b""):
                file.write(block)
            lines = errors.get()
            status = session.wait()
        finally:
            gevent.killall([feeding, errors])
            session.close()
        return status, CommandOutput(
            [OutputLine("stderr", line.rstrip("\n")) for line in [*lines, *([BROKE] if status < 0 else [])]]
        )

    def _line(self, sentence: str, print_output: bool) -> OutputLine:
        """One more line of stderr, which is ours."""
        if print_output:
            echo(f"{self.host.print_prefix}{sentence}", err=True)
        return OutputLine("stderr", sentence)

    def _unix(self, command: StringCommand, print_input: bool, arguments: Any) -> str:
        unix = make_unix_command_for_host(self.state, self.host, command, **arguments)
        logger.debug("Running command in the distro of %s: %s", self.host.name, unix)
        if print_input:
            echo(f"{self.host.print_prefix}>>> {unix}", err=True)
        raw: str = unix.get_raw_value()
        return raw

    def _judged(
        self, execute: Callable[[], tuple[int, CommandOutput]], control: Any, arguments: Any
    ) -> tuple[bool, CommandOutput]:
        status, output = execute_command_with_sudo_retry(self.host, arguments, execute)
        return status in (control.get("_success_exit_codes") or (0,)), output

    def _told(self, ok: bool, output: CommandOutput, what: str, name: str, print_output: bool) -> bool:
        if not ok:
            logger.error("%sFile %s error: %s: %s", self.host.print_prefix, what, name, output.stderr or "it did not come whole")
        elif print_output:
            echo(f"{self.host.print_prefix}file {what}ed: {name}", err=True)
        return ok


class Blocks:
    """A file as blocks of bytes, from its start each time that it is asked for them."""

    def __init__(self, file: IO[Any]) -> None:
        self.file = file

    def __iter__(self) -> Iterator[bytes]:
        self.file.seek(0)
        while block := self.file.read(BLOCK):
            yield block.encode() if isinstance(block, str) else block


def stdin_blocks(stdin: Any) -> Iterable[bytes]:
    """pyinfra's `_stdin` as it goes to a command: text in lines, each with its end; bytes as they are."""
    if isinstance(stdin, Blocks):
        return stdin
    if hasattr(stdin, "readlines"):
        stdin = stdin.readlines()
    lines = stdin if isinstance(stdin, (list, tuple)) else [stdin]
    whole = [one if isinstance(one, bytes) else (one if one.endswith("\n") else f"{one}\n").encode() for one in lines]
    return [b"".join(whole)]
