"""Hosts of an inventory, outside of a deploy: connected as pyinfra connects them, asked one program at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any


class RemoteError(Exception):
    """A host did not do what it was asked: one sentence."""


class Fleet:
    """The hosts of an inventory that a limit leaves; `unreachable` has those that could not be connected, with the reason.

    inventory: pyinfra's, as `engine.read_inventory` gives it; limit: groups or patterns of names, none for all.
    """

    def __init__(self, inventory: Any, limit: Sequence[str] = ()) -> None:
        from pyinfra.api import Config, State
        from pyinfra.api.state import BaseStateCallback

        from wsllama.guard import Callbacks, limited, quiet

        quiet()
        self.unreachable: dict[str, str] = {}

        class Errors(BaseStateCallback):  # type: ignore[misc]
            @staticmethod
            def host_connect_error(state: Any, host: Any, error: Any) -> None:
                self.unreachable[host.name] = str(error)

        self.state = State(inventory, Config())
        self.state.add_callback_handler(Errors())
        self.state.add_callback_handler(Callbacks())
        self.wanted = limited(inventory, limit)

    def connect(self) -> Fleet:
        """Connect all at once."""
        for greenlet in [self.state.pool.spawn(host.connect) for host in self.wanted]:
            greenlet.get()
        return self

    @property
    def hosts(self) -> list[Any]:
        """Those that are connected."""
        return [h for h in self.wanted if h.connected]

    def reconnect(self, host: Any) -> None:
        """Drop what is left of a host's connection, and connect it anew; `unreachable` says why where that fails."""
        self.unreachable[host.name] = "the connection was lost"
        _disconnect(host)
        host.connect(show_errors=False)
        if host.connected:
            del self.unreachable[host.name]

    def close(self) -> None:
        for host in self.hosts:
            _disconnect(host)

    @contextmanager
    def at(self, host: Any) -> Iterator[None]:
        """Make `host` the one that our probe and operations speak of."""
        from pyinfra.context import ctx_host, ctx_state

        with ctx_state.use(self.state), ctx_host.use(host):
            yield

    @contextmanager
    def asking(self, host: Any) -> Iterator[None]:
        """As `at`, and a connection that is lost meanwhile, or can't be used, is a RemoteError: others are asked beside it."""
        from paramiko.ssh_exception import SSHException

        with self.at(host):
            try:
                yield
            except (EOFError, OSError, SSHException) as e:
                raise RemoteError(f"the connection is lost: {str(e) or type(e).__name__}") from e
            except RuntimeError as e:  # of the probe: one sentence, as that sudo wants a password
                raise RemoteError(str(e)) from e

    def watch(self, host: Any, name: str, argument: Any, note: str = "") -> None:
        """Run wsllama/host/<name>.py on a host and show its lines on stderr as they come, with the host's name before each.

        Raises RemoteError when the host can't be asked; what the program says of itself is in its lines.
        """
        from wsllama.facts import probe

        _echo()
        with self.asking(host):
            probe.run(name, argument, note, print_output=True)

    def run(self, host: Any, name: str, argument: Any, note: str = "", show: bool = False) -> dict[str, Any]:
        """Run wsllama/host/<name>.py on a host and return the JSON document in its last line. Raises RemoteError.

        note: stands behind the program's name in logs; show: print its lines on stderr as they come, as `watch` does.
        """
        from wsllama.facts import probe

        if show:
            _echo()
        with self.asking(host):
            ok, out = probe.run(name, argument, note, print_output=show)
        if not ok or not out.stdout_lines:
            raise RemoteError(" ".join(out.stderr_lines[-3:]) or "the host gave no answer")
        try:
            document: dict[str, Any] = json.loads(out.stdout_lines[-1])
        except ValueError:
            raise RemoteError(f"the host's answer can't be read: it ends with {out.stdout_lines[-1][:80]!r}") from None
        return document

    def shell(self, host: Any, command: str) -> tuple[int, str, str]:
        """Run a shell command as the deploy would (sudo and the rest); its exit status, stdout and stderr. Raises RemoteError."""
        from pyinfra.api import StringCommand

        from wsllama.facts import probe

        with self.asking(host):
            # pyinfra tells good from bad only; the status itself comes as a line of its own
            ok, out = host.run_shell_command(StringCommand(f"( {command}\n); status=$?; echo; echo $status"), **probe.arguments())
        lines = out.stdout_lines
        if not ok or not lines or not lines[-1].isdigit():
            raise RemoteError(" ".join(out.stderr_lines[-3:]) or f"no answer to {command!r}")
        text = lines[:-2] if lines[-2:-1] == [""] else lines[:-1]
        return int(lines[-1]), "".join(f"{line}\n" for line in text), "".join(f"{line}\n" for line in out.stderr_lines)


def _disconnect(host: Any) -> None:
    """Also a host that is gone, where pyinfra would take its own file away first."""
    from paramiko.ssh_exception import SSHException

    with suppress(EOFError, OSError, SSHException):
        host.disconnect()
    host.connected = False


def _echo() -> None:
    """Let pyinfra print: its command does that, and without it nothing is shown."""
    import click
    from pyinfra.api.output import set_echo

    set_echo(click.echo)
