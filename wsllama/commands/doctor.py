"""`wsllama doctor`: what is wrong on hosts, or in a file that somebody pasted, and what to do about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wsllama import recovery
from wsllama.commands.common import FAILED, UNREACHABLE, Json, Limit, connected, refuse
from wsllama.commands.doctor_apply import Applied, cannot_apply, climb_down, deployed
from wsllama.domain import ladder, server_log
from wsllama.domain.examine.unit import words
from wsllama.domain.findings import KINDS, Finding, examine, named

if TYPE_CHECKING:
    from wsllama.domain.examine.host import Judged
    from wsllama.remote import Fleet

_CUT, _RELEASE = "--- environment ---", "--- release ---"

# The end, and of a server that has run for long also the start of this run, where it says what is put where.
JOURNAL = (
    "run=$(systemctl show --value -p InvocationID {unit});"
    ' [ -z "$run" ] || journalctl -q -o short-iso --no-pager _SYSTEMD_INVOCATION_ID=$run | head -n 1500;'
    f" echo {_CUT}; journalctl -q -u {{unit}} -n 4000 -o short-iso --no-pager"
)

EPILOG = f"""\b
Examples:
  wsllama doctor inventory
  wsllama doctor inventory --limit desk-1 --apply
  wsllama doctor log saved.log
  journalctl -u llama-server | wsllama doctor --json log -
  wsllama doctor --json wsl-output out.bin --command 'wsl.exe -l -v' --returncode 0

Kinds of files: {", ".join(KINDS)}.

--apply deploys a host whose server died of memory with less and less, in the ladder's order, until it serves. What it gave up
then stands in INVENTORY.recovery.json, which every run reads and says; take the host out of it to get all again.

Exit codes: 0 nothing is wrong on any host, or the file was read; 1 something is wrong on a host, or what --apply tried did not
serve; 2 refused, 4 a host can't be reached."""


def doctor(
    subject: Annotated[str, typer.Argument(metavar="INVENTORY | KIND", help="Hosts, as pyinfra takes them, or a file's kind.")],
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="With a kind: the file, or - for standard input.")] = None,
    limit: Limit = None,
    apply: Annotated[bool, typer.Option("--apply", help="Give up what the ladder says until the server starts.")] = False,
    most: Annotated[int, typer.Option("--rungs", min=1, max=50, metavar="N", help="With --apply: try no more than N.")] = 20,
    command: Annotated[str | None, typer.Option(metavar="TEXT", help="The command that printed the file.")] = None,
    returncode: Annotated[int | None, typer.Option(metavar="N", help="How that command ended.")] = None,
    codepage: Annotated[int | None, typer.Option(metavar="N", help="Code page of the Windows console.")] = None,
    path: Annotated[str | None, typer.Option(metavar="PATH", help="Where the file lay (wslconfig, wslconf).")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="max_tokens of the request (response).")] = None,
    n_ctx: Annotated[int | None, typer.Option(metavar="N", help="Context of the slot in tokens (response).")] = None,
    http_status: Annotated[int | None, typer.Option(metavar="N", help="HTTP status of the reply (response).")] = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong, why, what to do, and how to see that it helped; changes nothing without --apply.

    On hosts: who else holds the card's memory, the log of the last start, the GPU, the unit, .wslconfig and wsl.conf. Or in one
    file: the log of a server or of a build, a unit, an output of nvidia-smi or wsl.exe, the body of a reply.
    """
    if subject not in KINDS:
        if file is not None:
            refuse([f"{subject} is no kind of file: give one of {', '.join(KINDS)}"], as_json)
        _hosts(subject, limit, as_json, most if apply else 0)
    if apply:
        refuse([f"--apply changes hosts: give an inventory instead of {subject}"], as_json)
    if file is None:
        refuse([f"{subject} needs a FILE, or - for standard input"], as_json)
    data = _bytes(str(file), as_json)
    given = {"command": command, "returncode": returncode, "codepage": codepage, "path": path}
    found = examine(subject, data, **given, max_tokens=max_tokens, n_ctx=n_ctx, http_status=http_status)  # type: ignore[arg-type]
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    for line in file_lines(subject, found, data):
        typer.echo(line)


def _bytes(name: str, as_json: bool) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as e:
        refuse([f"{name} can't be read: {e.strerror}; give a file, or - for standard input"], as_json)
        raise


def file_lines(kind: str, found: Mapping[str, Any], data: bytes) -> Iterator[str]:
    """A document of `examine` for people."""
    for key, value in found.items():
        if key not in ("findings", "verdict") and value not in (None, [], {}):
            yield f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
    log = server_log.read(data) if kind == "log" else None
    entries = named(kind, found)
    for entry in entries:
        yield from _entry(entry, log.line.strip() if log else "")
    if not entries:
        yield "Nothing is known to be wrong."
    if log and (short := ladder.short_of(log.verdict)):
        yield "The recovery ladder; stop where it loads:"
        said = {"ctx_size": log.n_ctx, "parallel": log.n_slots}
        yield from ladder.commands(ladder.rungs(short, said))


def _entry(entry: Finding, detail: str) -> Iterator[str]:
    yield f"{entry.severity}: {entry.id}: {entry.symptom}"
    if detail:
        yield f"  here:  {detail}"
    if entry.severity != "good":
        yield f"  cause: {entry.cause}"
        yield f"  fix:   {entry.fix}"
        yield f"  check: {entry.check}"


# Hosts


@dataclass(frozen=True)
class Report:
    """What was found on one host, and what is left to give up where memory is too small."""

    found: list[Judged]
    verdict: server_log.Verdict
    last_line: str  # of the journal, with its time
    rungs: list[ladder.Rung]
    commands: list[str]
    on_the_way: bool = False  # what was started last is a stage before the settings' last one

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "verdict": self.verdict,
            "findings": [{**judged.finding._asdict(), "detail": judged.detail} for judged in self.found],
            "ladder": self.commands,
        }

    def lines(self, name: str) -> Iterator[str]:
        """For people."""
        yield f"{name}: the last start: {self.verdict}; {len(self.found) or 'nothing'} found"
        for line in [*(line for judged in self.found for line in _entry(judged.finding, judged.detail)), *self.commands]:
            yield f"  {line}"


def _hosts(inventory: str, limit: list[str] | None, as_json: bool, most: int) -> None:
    if most and (problem := cannot_apply(inventory)):
        refuse([problem], as_json)
    reports: dict[str, Report] = {}
    applied: dict[str, Applied] = {}
    failed: dict[str, str] = {}
    with connected(inventory, limit, as_json) as fleet:
        import gevent

        from wsllama.remote import RemoteError

        def look(host: Any) -> None:
            try:
                reports[host.name] = report(fleet, host, inventory)
            except RemoteError as e:
                failed[host.name] = str(e)

        def deploy(name: str, server: dict[str, Any]) -> bool:
            return deployed(inventory, name, server, as_json)

        gevent.joinall([gevent.spawn(look, host) for host in fleet.hosts], raise_error=True)
        for host in [host for host in fleet.hosts if most and host.name in reports and reports[host.name].rungs]:
            applied[host.name] = _apply(inventory, host, reports, look, deploy, most)
    if as_json:
        shown = {
            name: {**of.document(), **({"applied": applied[name].document()} if name in applied else {})}
            for name, of in reports.items()
        }
        typer.echo(json.dumps({"hosts": shown, "failed": failed, "unreachable": fleet.unreachable}, ensure_ascii=False))
    for name, of in sorted(reports.items()):
        for line in [] if as_json else [*of.lines(name), *(applied[name].lines(name) if name in applied else ())]:
            typer.echo(line)
    for name, reason in {**failed, **{name: f"can't be reached: {why}" for name, why in fleet.unreachable.items()}}.items():
        typer.echo(f"{name}: {reason}", err=True)
    wrong = failed or any(judged.finding.severity == "error" for of in reports.values() for judged in of.found)
    raise typer.Exit(UNREACHABLE if fleet.unreachable else FAILED if wrong else 0)


def _apply(inventory: str, host: Any, reports: dict[str, Report], look: Any, deploy: Any, most: int) -> Applied:
    def again() -> tuple[str, str]:
        look(host)
        of = reports[host.name]
        return "loading" if of.on_the_way and of.verdict == "ok" else of.verdict, of.last_line

    before = reports[host.name]
    rungs = [rung for rung in before.rungs if rung.server][:most]
    done = climb_down(rungs, (before.verdict, before.last_line), lambda rung: deploy(host.name, rung.server), again)
    if done.served:
        recovery.keep(inventory, host.name, done.tried[-1].server)
    return done


def report(fleet: Fleet, host: Any, inventory: str) -> Report:
    """Look at one host. Raises RemoteError."""
    from wsllama import planning
    from wsllama.domain.examine.host import judge
    from wsllama.guard import settings_of

    settings = settings_of(host)
    seen = collect(fleet, host, settings)
    verdict = server_log.read(seen.journal).verdict
    short = ladder.short_of(verdict)
    least, server = planning.wanted_of(settings).least_ctx_size, settings.server.model_dump(mode="json")
    rungs = ladder.rungs(short, server, seen.running, least, settings.backend == "cuda") if short else []
    last_line = seen.journal.rstrip().rpartition("\n")[2]
    return Report(judge(seen), verdict, last_line, rungs, ladder.commands(rungs, inventory, host.name), seen.on_the_way)


# What a host shows


def collect(fleet: Fleet, host: Any, settings: Any) -> Any:
    """All that a host shows of its server, in three commands; changes nothing. Raises RemoteError."""
    from wsllama import layout
    from wsllama.domain import guest, windows
    from wsllama.domain.examine.host import Seen
    from wsllama.domain.wslconfig import FILES
    from wsllama.facts import probe
    from wsllama.operations import cuda
    from wsllama.operations import windows as operations

    wsl, gpu = settings.platform == "wsl", settings.backend == "cuda"
    journal = joined(*fleet.shell(host, JOURNAL.format(unit=layout.UNIT))[1].split(f"{_CUT}\n", 1))
    files_of = (
        f"systemctl cat {layout.UNIT} 2>/dev/null; echo {_CUT}; cat {layout.CURRENT}/env {layout.CURRENT}/args 2>/dev/null;"
        f" echo {_RELEASE}; cat {layout.CURRENT}/release.json 2>/dev/null"
    )
    unit_text, _, rest = fleet.shell(host, files_of)[1].partition(f"{_CUT}\n")
    environment, _, release = rest.partition(f"{_RELEASE}\n")
    looks = probe.together(operations.look(settings) if wsl else {}, cuda.guard_looks(settings))
    now = fleet.run(host, "probe", looks) if looks else {}
    smi = cuda.reading(now, settings) if gpu else None
    problems = guest.problems(guest.Guest(**now["guest"], kernel=now["system"]["kernel"])) if wsl and gpu else []
    side = now["windows"]["side"] if wsl else {}
    files = {kind: (str(side[kind]["path"]), data) for kind in FILES if (data := windows.held(side.get(kind)))}
    return Seen(
        journal, unit_text or None, _environment(environment), smi, files, tuple(problems), wsl, gpu, *_of_release(release)
    )


def joined(head: str, tail: str) -> str:
    """A journal of its start and its end, which may overlap: no line twice, because sizes in it are added up."""
    lines, first, last = tail.splitlines(), head.partition("\n")[0], head.rstrip().rpartition("\n")[2]
    if not first or first in lines:
        return tail
    return "\n".join([*head.splitlines(), *(lines[lines.index(last) + 1 :] if last in lines else lines)]) + "\n"


def _environment(text: str) -> dict[str, str]:
    """What files for EnvironmentFile= hold."""
    pairs = (word.partition("=") for word in words(text))
    return {name: value for name, sign, value in pairs if sign}


def _of_release(text: str) -> tuple[dict[str, Any], bool]:
    """The server that a release was made with, and whether it is a stage on the way, as release.json says."""
    try:
        release = json.loads(text)
        return dict(release["server"]), release.get("final") is False
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}, False
