"""The base of our operations: look, compare, yield only what differs, forget after a change; an error fails one host."""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand, operation
from pyinfra.api.arguments import all_argument_meta

from wsllama import engine, program, transfer
from wsllama.facts import probe


class Later(Exception):
    """Not to be known before an earlier stage ran: in the detection it counts as a change, when executing it fails the host."""


class Refused(Exception):
    """The host's state, or a file that belongs to it, is refused: one sentence that says what, where and what to do."""


def failed(state: Any, host: Any, text: str) -> bool:
    """Log the lines of `text` as an error of the host and return False, as a failing command does."""
    for line in text.splitlines():
        host.log_styled(line, fg="red", log_func=logger.error)
    return False


@dataclass
class Notes:
    """What a look ahead finds of one operation, instead of printing it; see wsllama/ahead.py.

    + told: {"text", "of", "now", "wanted"} as `tell` has them
    + diffs: lines of files as a unified diff
    + refused, later: why the operation would fail, and what is not known before an earlier stage ran
    """

    told: list[dict[str, str]] = field(default_factory=list)
    diffs: list[list[str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)


NOTES = "wsllama.notes"  # in a host's connector_data: the Notes of the look ahead that goes on


def notes() -> Notes | None:
    """The Notes of the look ahead that goes on, if one does."""
    found: Notes | None = host.connector_data.get(NOTES)
    return found


def tell(text: str, of: str = "", now: str = "", wanted: str = "") -> None:
    """Say what differs, once: in the detection with --dry, else when it is done.

    of: the file, package or other thing that it is about; now, wanted: what is there and what should be, in words.
    """
    if ahead := notes():
        ahead.told.append({"text": text, "of": of, "now": now, "wanted": wanted})
    else:
        host.log(text, log_func=logger.info)


def fail(text: str) -> FunctionCommand:
    """A command that fails this host: an exception out of a generator would end the run of all hosts."""
    return FunctionCommand(failed, (text,), {})


def on_host(name: str, argument: Any, note: str = "", show: bool = False) -> FunctionCommand:
    """A command: wsllama/host/<name>.py on the host. `show` streams its lines; otherwise they are shown when it fails."""

    def call(state: Any, host: Any) -> bool:  # with these names pyinfra calls it in the host's own greenlet
        ok, out = probe.run(name, argument, note, print_output=show)
        return ok or failed(state, host, "" if show else _sentence(out))

    return FunctionCommand(call, (), {})


def ask_host(name: str, argument: Any, note: str = "", show: bool = False) -> dict[str, Any]:
    """Run wsllama/host/<name>.py and return the JSON document in its last line; Refused with its last words when it fails."""
    ok, out = probe.run(name, argument, note, print_output=show)
    if not ok or not out.stdout_lines:
        raise Refused(_sentence(out))
    document: dict[str, Any] = json.loads(out.stdout_lines[-1])
    return document


def follow(name: str, argument: Any, *, key: str, limit_s: int, environment: Mapping[str, str] | None = None) -> FunctionCommand:
    """A command that takes long: wsllama/host/<name>.py as a transient unit on the host, whose progress is shown.

    The unit outlives the run; a run that comes later, or at the same time, follows it. key: what the result is judged by, the
    same for the same work; limit_s: seconds after which the unit is ended; environment: of the program.
    """
    unit = f"wsllama-{name}"
    task = {"unit": unit, "key": key, "limit_s": limit_s, "program": program.text(name), "argument": argument}
    return on_host(
        "follow",
        {**task, "log": f"/var/log/wsllama/{name}.log", "environment": dict(environment or {}), "quiet": True},
        unit,
        show=True,
    )


def send(action: Callable[..., Any], *what: Any, **more: Any) -> FunctionCommand:
    """A command that sends a file: `action` is send_file or send_model of wsllama/transfer.py, the rest its arguments."""

    def call(state: Any, host: Any) -> bool:
        try:
            action(host, *what, **more, say=lambda text: host.log(text), arguments=probe.arguments())
        except transfer.TransferError as e:
            return failed(state, host, str(e))
        return True

    return FunctionCommand(call, (), {})


def in_thread(call: Callable[..., Any], *given: Any) -> Any:
    """`call` in a thread of its own, for work that would hold up the other hosts; returns and raises what it does."""

    def safe() -> tuple[Any, Exception | None]:  # gevent prints a traceback of what is raised there
        try:
            return call(*given), None
        except Exception as e:
            return None, e

    result, error = gevent.get_hub().threadpool.apply(safe)
    if error:
        raise error
    return result


def _sentence(out: Any) -> str:
    return "\n".join(out.stderr_lines or out.stdout_lines[-20:]) or "the host gave no answer"


def resource(looks: Callable[..., probe.Looks]) -> Callable[[Callable[..., Iterator[Any]]], Callable[..., Any]]:
    """Make an operation of `body(now, …)`. `looks(…)` takes the same arguments and says what `now` is to hold."""

    def decorate(body: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Iterator[Any]:
            changing = False
            try:
                for command in body(probe.see(looks(*args, **kwargs)), *args, **kwargs):
                    changing = True
                    yield command
            except Exception as e:
                logger.debug(traceback.format_exc())
                text = str(e) if isinstance(e, (Refused, Later, RuntimeError)) else f"{type(e).__name__}: {e}"
                if ahead := notes():
                    (ahead.later if isinstance(e, Later) else ahead.refused).append(text)
                elif state.is_executing or isinstance(e, Later):
                    yield fail(text)
                elif not failed(state, host, text):
                    state.fail_hosts({state.inventory.get_host(host.name)})  # `host` is a proxy
            finally:  # also after a command that failed, and before a retry
                if changing and state.is_executing:
                    probe.drop()

        own = inspect.Signature(list(inspect.signature(body).parameters.values())[1:])
        inner.__name__, inner.__doc__, inner.__module__ = body.__name__, body.__doc__, body.__module__
        inner.__signature__ = own  # type: ignore[attr-defined]
        op = operation()(inner)

        def call(*args: Any, **kwargs: Any) -> Any:
            mine = {k: v for k, v in kwargs.items() if k not in all_argument_meta}
            own.bind(*args, **mine)
            probe.register(looks(*args, **mine))
            meta = op(*args, **kwargs)
            probe.memo().own.add(engine.operation_hash(meta))
            return meta

        call.__name__, call.__doc__ = body.__name__, body.__doc__
        call._inner = inner  # type: ignore[attr-defined]
        return call

    return decorate


def inside(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
    """The commands of one of our operations inside of another; it looks for itself, at what is there as they are reached."""
    commands: Iterator[Any] = op._inner(*args, **kwargs)  # type: ignore[attr-defined]
    return commands


@contextmanager
def deferred_detection() -> Iterator[None]:
    """Around the stages in deploy.py: pyinfra looks for changes (not under -y) when all operations are registered."""
    detect = engine.hold_detection(state)
    yield
    if detect:
        engine.detect(state, host)
