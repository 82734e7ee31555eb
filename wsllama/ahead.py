"""What a deploy would do on a host, by its own operations, without doing it; one question to the host."""

from __future__ import annotations

import logging
import runpy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wsllama import engine, guard, layout
from wsllama.domain import drift
from wsllama.facts import probe
from wsllama.guard import settings_of
from wsllama.operations import cuda
from wsllama.operations.base import NOTES, Later, Notes, Refused, failed
from wsllama.operations.release import looks, wanted
from wsllama.operations.server import Release, number_of
from wsllama.remote import Fleet, RemoteError

ROOT = Path(__file__).resolve().parents[1]
PLACES = {
    "root": layout.ROOT,
    "builds": layout.BUILDS,
    "models": layout.MODELS,
    "unit": layout.UNIT,
    "unit_file": layout.UNIT_FILE,
    "user": layout.USER,
}


@dataclass(frozen=True)
class Ahead:
    """A host as it is, and what a deploy would do with it.

    + now: what the probe says of all that the deploy looks at
    + seen: what wsllama/host/drift.py found beside the probe, with the probe's facet `packages`
    + steps: {"operation", "changes", "told", "diffs", "refused", "later"} of each operation, in order; see Notes
    + release: what the settings ask for; None while its build or model isn't there, or where that is refused
    + number: of a release on the host that is the same, if there is one
    + apt: files of apt's for CUDA that are not as we write them
    """

    now: dict[str, Any]
    seen: dict[str, Any]
    steps: list[dict[str, Any]]
    release: Release | None
    number: int | None
    apt: list[str]

    @property
    def record(self) -> Mapping[str, Any] | None:
        """The record of the current release."""
        found: Mapping[str, Any] | None = self.seen["release"]["record"]
        return found

    @property
    def settings(self) -> list[drift.Finding]:
        """Settings that differ between the current release and the wanted one."""
        if not self.record or not self.release:
            return []
        number = str(self.seen["links"]["current"]).rpartition("/")[2]
        return drift.settings(self.record, {**self.release.record, "digest": self.release.digest}, number)

    @property
    def findings(self) -> list[drift.Finding]:
        """Everything that is not as the records or the settings say."""
        changed = self.settings
        found = drift.findings(self.seen, self.steps, PLACES)
        if changed:  # that says which settings; to name the release as well says nothing more
            found = [one for one in found if one.what != "release"]
        return [*found, *changed, *(drift.apt_file(path) for path in self.apt)]


def prepare(fleet: Fleet) -> None:
    """Called once before `look`: the deploy's stages are registered, and nothing is asked while they are."""
    guard.install()
    logging.getLogger("pyinfra").addHandler(logging.NullHandler())  # what operations warn of is the deploy's to say
    fleet.state.check_for_changes = False


def look(fleet: Fleet, host: Any, deep: bool = False) -> Ahead:
    """Register the deploy for a host, ask the host once, and let the operations compare.

    deep: read every byte of build and model, which takes a minute for 20 GB, or several. Raises RemoteError.
    """
    with fleet.at(host):
        runpy.run_path(str(ROOT / "deploy.py"))
        memo, settings = probe.memo(), settings_of(host)
        probe.register(probe.together(looks(settings), {"releases": {layout.ROOT: None}}))
        answer = fleet.run(host, "drift", {**PLACES, "looks": memo.wanted, "deep": deep})
        memo.known, memo.executing = answer["now"], False
        steps = _steps(fleet.state, host)
        release, number = None, None
        try:
            with fleet.asking(host):
                now = probe.see(probe.together(looks(settings), {"releases": {layout.ROOT: None}}))
            release = wanted(now, settings)
            number = number_of(now, release.digest)
        except (Later, Refused):
            pass  # the steps say which of the two, and why
        except RuntimeError as e:
            raise RemoteError(str(e)) from e
        apt = cuda.edited(answer["now"], settings)
    seen = {**answer["seen"], "packages": answer["now"].get("packages", {})}
    return Ahead(answer["now"], seen, steps, release, number, apt)


def _steps(state: Any, host: Any) -> list[dict[str, Any]]:
    """What each operation would do: it is asked for its first command only, as pyinfra's own detection does."""
    out = []
    for name, commands in engine.operations(state, host):
        notes = host.connector_data[NOTES] = Notes()
        changes = False
        for command in commands():
            if getattr(command, "function", None) is failed:
                notes.refused.append(command.args[0])
            else:
                changes = True
            break
        out.append({"operation": name, "changes": changes or bool(notes.told), **asdict(notes)})
    del host.connector_data[NOTES]
    return out
