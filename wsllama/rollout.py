"""A rollout over a fleet: batches of hosts, each deployed by one pyinfra process, and a report that is whole at every moment."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

from wsllama import layout, model_files, whole
from wsllama.bench import short_benchmark
from wsllama.domain import rollout as rules
from wsllama.guard import EXIT_PENDING, settings_of
from wsllama.releases import roll_back
from wsllama.remote import Fleet, RemoteError
from wsllama.settings import LOCK, Settings

ROOT = Path(__file__).resolve().parents[1]
FORMAT = 1
GRACE_S = 20
"""Time that pyinfra gets to end after Ctrl-C; it takes none to speak of."""


class RolloutError(Exception):
    """One sentence: why there is no rollout."""


def digest_of(hosts: Sequence[Any]) -> str:
    """What a rollout brings: sha256 of wsllama.lock, of the settings of these hosts, and of what tells that the models on this
    machine are the same files still; another one is another rollout."""
    of = {host.name: settings_of(host) for host in hosts}
    files = {name: _models_here(settings) for name, settings in of.items()}
    whole = [hashlib.sha256(LOCK.read_bytes()).hexdigest(), {n: s.model_dump(mode="json") for n, s in of.items()}, files]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _models_here(settings: Settings) -> list[Any]:
    """Size and time of each file of the model that is sent from this machine; a file that isn't there has none."""
    model = settings.model
    if model.way in ("hub", "url") or model.on_host:
        return []
    places = [file.place for file in model_files.wanted(settings).every]
    return [[place, os.path.exists(place) and [os.stat(place).st_size, os.stat(place).st_mtime_ns]] for place in places]


@dataclass
class Report:
    """What became of each host; `save` writes it aside and renames it, so that it can be gone on from whenever a run ends."""

    path: Path
    document: dict[str, Any]

    @classmethod
    def begun(cls, path: Path, hosts: Sequence[Any], options: dict[str, Any]) -> Report:
        names: dict[str, Any] = {host.name: {"state": "waiting"} for host in hosts}
        return cls(path, {"format": FORMAT, "digest": digest_of(hosts), "options": options, "began": now(), "hosts": names})

    @classmethod
    def resumed(cls, path: Path) -> Report:
        """The report of an earlier run, to be gone on with; see `fits`. Raises RolloutError when it is none."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            known = {name: host["state"] for name, host in document["hosts"].items()}
            options, digest = dict(document["options"]), str(document["digest"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise RolloutError(f"{path} is no report of a rollout that could be gone on with: {e!r}") from None
        if document.get("format") != FORMAT or not set(known.values()) <= set(get_args(rules.State)):
            raise RolloutError(f"{path} was written by another version of wsllama: begin a new rollout, without --resume")
        return cls(path, {**document, "options": options, "digest": digest})

    def fits(self, hosts: Sequence[Any]) -> None:
        """Raises RolloutError when these hosts would get something else than those of the report that have it."""
        if set(self.states) != {host.name for host in hosts} or self.document["digest"] != digest_of(hosts):
            raise RolloutError(
                f"since {self.path} was written, wsllama.lock, a model's file or the hosts' settings or names have changed, so"
                " its hosts would get another release than those that have it: begin a new rollout, without --resume"
            )

    @property
    def options(self) -> dict[str, Any]:
        """What the rollout was asked for, by the names of the options."""
        found: dict[str, Any] = self.document["options"]
        return found

    @property
    def states(self) -> dict[str, rules.State]:
        """Host -> what became of it."""
        return {name: host["state"] for name, host in self.document["hosts"].items()}

    @property
    def exit_code(self) -> int:
        """Of the states; 5 when all is well but something waits for a person, as after a deploy."""
        code = rules.exit_code(self.states.values())
        return code or (EXIT_PENDING if any(host.get("pending") for host in self.document["hosts"].values()) else 0)

    def set(self, name: str, **known: Any) -> None:
        self.document["hosts"][name] |= known
        self.save()

    def save(self) -> None:
        """Raises RolloutError when it can't be written."""
        self.document |= {"exit_code": self.exit_code, "left": rules.left(self.states), "written": now()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            whole.text(self.path, json.dumps(self.document, indent=1, ensure_ascii=False) + "\n")
        except OSError as e:
            raise RolloutError(f"the report {self.path} can't be written: {e.strerror}: give --report another place") from None


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def release_of(fleet: Fleet, host: Any) -> str | None:
    """The release that a host serves and that was accepted; None when it has none, or can't be asked."""
    try:
        there = fleet.run(host, "probe", {"releases": {layout.ROOT: None}})["releases"][layout.ROOT]
    except RemoteError:
        return None
    number: str | None = there["last-good"]
    return number if number and there["current"] == number else None


def measured(fleet: Fleet, host: Any) -> dict[str, Any] | str:
    """A short benchmark of what a host serves, or why there is none to be had: that is no failure of a deploy."""
    try:
        return short_benchmark(fleet, host)
    except RemoteError as e:
        return str(e)


@dataclass
class Batch:
    """One pyinfra process for these hosts; `run` returns when it has ended."""

    inventory: str
    hosts: list[str]
    say: Callable[[str], None]
    reasons: dict[str, list[str]] = field(default_factory=dict)  # host -> the last lines that it said
    results: dict[str, Any] | None = None

    def run(self) -> None:
        """Deploy; pyinfra's lines go to `say` as they come. KeyboardInterrupt ends pyinfra too, before it is raised again."""
        limits = [word for name in self.hosts for word in ("--limit", name)]
        words = [str(Path(sys.executable).parent / "pyinfra"), "--config", str(ROOT / "config.py"), self.inventory]
        process = subprocess.Popen(
            [*words, str(ROOT / "deploy.py"), "-y", "--json", *limits],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            import gevent

            said = gevent.spawn(self._hear, process)
            out = process.stdout.read() if process.stdout else ""
            said.join()
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
        try:
            self.results = json.loads(out)["results"]
        except (ValueError, KeyError):
            self.results = None  # pyinfra prints nothing when no host remains

    def _hear(self, process: subprocess.Popen[str]) -> None:
        told = True
        for line in process.stderr or ():
            told &= not line.startswith("--> Results:")  # behind it stands how to connect to each host
            if told:
                self.say(line.rstrip("\n"))
            # further in stand lines of the server's log, behind the sentence that they belong to
            if found := re.match(r"\s*\[(?P<host>[^\]]+)\] {1,4}(?P<text>\S.*)", line.rstrip()):
                self.reasons[found["host"]] = [*self.reasons.get(found["host"], ()), found["text"]][-12:]

    def succeeded(self, name: str) -> bool:
        """Whether a host was deployed: it took part, and nothing failed."""
        if not self.results or name in self.results["failed_hosts"]:
            return False
        operations = self.results["operations"]
        return any(name in o["success"] + o["no_change"] for o in operations) and not any(name in o["error"] for o in operations)

    def changes(self, name: str) -> int:
        """Operations that changed something on a host."""
        return sum(name in o["success"] for o in self.results["operations"]) if self.results else 0

    def pending(self, name: str) -> list[str]:
        """What somebody has to do before all is in effect on a host."""
        found: list[str] = (self.results or {}).get("pending", {}).get(name, [])
        return found

    def reason(self, name: str) -> str:
        """The sentence that a host failed with."""
        noise = re.compile(r"(?:Success|No changes|Error|Starting|Connected|Executed)\b.*", re.I)
        lines = [line for line in self.reasons.get(name, ()) if not noise.fullmatch(line)]
        return lines[-1] if lines else "pyinfra ended without a word of this host"


@dataclass
class Rollout:
    """Batches one after the other, until all had their turn or too many failed.

    + connect: the hosts of an inventory with these names, connected as far as they can be; the caller of it closes them
    + measure: a short benchmark of a host, or why it has none; None where nobody wants one
    + slower: what got slower from one benchmark to the other beyond what is allowed, as sentences
    """

    inventory: str
    report: Report
    max_failures: int
    roll_back: bool
    connect: Callable[[list[str]], Fleet]
    measure: Callable[[Fleet, Any], dict[str, Any] | str | None]
    slower: Callable[[dict[str, Any], dict[str, Any]], list[str]]
    say: Callable[[str], None]

    def run(self, canaries: Sequence[str], batches: Sequence[Sequence[str]]) -> None:
        """Deploy the canaries, which are measured before and after, then these batches. The report says what came of it."""
        steps = [(rules.CANARY, canaries)] if canaries else []
        steps += [(f"batch {number} of {len(batches)}", names) for number, names in enumerate(batches, 1)]
        for done, (title, names) in enumerate(steps, 1):
            measured = title == rules.CANARY
            self.say(f"==> {title}: {', '.join(names)}")
            self._batch(list(names), title, measured)
            bad = rules.failures(self.report.states[name] for _, step in steps[:done] for name in step)
            if bad > (0 if measured else self.max_failures):
                waiting = sum(len(step) for _, step in steps[done:])
                if waiting:
                    self.say(f"stopped: {bad} of the hosts so far failed; {waiting} were not begun")
                break
        if self.roll_back and rules.failures(self.report.states.values()):
            self._back()

    def _batch(self, names: list[str], title: str, measured: bool) -> None:
        fleet, began = self.connect(names), time.monotonic()
        try:
            doubtful = {host.name: self._begin(fleet, host, title, measured) for host in fleet.hosts}
        finally:
            fleet.close()
        for name, why in fleet.unreachable.items():
            self.report.set(name, batch=title, state="offline", reason=why)
        if not doubtful:
            return
        batch = Batch(self.inventory, list(doubtful), self.say)
        batch.run()
        fleet = self.connect(batch.hosts)
        try:
            there = {host.name: host for host in fleet.hosts}
            for name in batch.hosts:
                known = self._became(fleet, batch, name, there.get(name))
                if measured and (known["state"] == "done" or (doubtful[name] and known["state"] == "unchanged")):
                    known |= self._slower(fleet, there[name])
                self.report.set(name, seconds=round(time.monotonic() - began, 1), **known)
                self.say(f"    {name}: {known['state']}" + (f": {known['reason']}" if "reason" in known else ""))
        finally:
            fleet.close()

    def _begin(self, fleet: Fleet, host: Any, title: str, measured: bool) -> bool:
        """Note what a host serves and, of a canary, how fast, but for what an earlier run of this rollout noted: that was before.

        Returns whether that one noted how fast: then a host that has nothing left to change may still be too slow.
        """
        entry = self.report.document["hosts"][host.name]
        carried = "bench_before" in entry
        kept = {key: entry[key] for key in ("before", "bench_before") if key in entry}
        if "before" not in kept:
            kept["before"] = release_of(fleet, host)
        if measured and kept["before"] and not carried:
            kept |= self._measured(fleet, host, "bench_before")
        entry.clear()
        self.report.set(host.name, state="running", batch=title, **kept)
        return carried

    def _became(self, fleet: Fleet, batch: Batch, name: str, host: Any) -> dict[str, Any]:
        """What the report says of a host after its deploy; host: None when it can't be reached any more."""
        changes = batch.changes(name)
        known: dict[str, Any] = {"state": rules.outcome(batch.succeeded(name), changes, host is not None), "changes": changes}
        if host is None:
            why = fleet.unreachable.get(name, batch.reason(name))
            return {**known, "reason": f"the connection was lost and did not come back: {why}"}
        known["after"] = release_of(fleet, host)
        if known["state"] == "failed":
            known["reason"] = batch.reason(name)
        if pending := batch.pending(name):
            known["pending"] = pending
        return known

    def _measured(self, fleet: Fleet, host: Any, key: str) -> dict[str, Any]:
        """A short benchmark for the report, under this key; or why there is none, which is said as well."""
        found = self.measure(fleet, host)
        if isinstance(found, str):
            self.say(f"    {host.name} was not measured: {found}")
            return {"not_measured": found}
        return {key: found} if found else {}

    def _slower(self, fleet: Fleet, host: Any) -> dict[str, Any]:
        """How fast a canary is now; it has failed when that is too slow against what it served before."""
        before, known = self.report.document["hosts"][host.name].get("bench_before"), self._measured(fleet, host, "bench_after")
        after = known.get("bench_after")
        if not before or not after:
            return known
        if others := before["disturbed"] or after["disturbed"]:  # what others made slower is no fault of the release
            self.say(f"    {host.name}: its speed is not judged: {others}")
            return {**known, "not_measured": others}
        if worse := self.slower(before, after):
            known |= {"state": "failed", "reason": "; ".join(worse), "regression": True}
        return known

    def _back(self) -> None:
        """Hosts that this rollout gave another release serve again what they served before."""
        changed = [
            name
            for name, host in self.report.document["hosts"].items()
            if (host["state"] == "done" or host.get("regression")) and host.get("before") not in (None, host.get("after"))
        ]
        kept = [n for n, host in self.report.document["hosts"].items() if host["state"] == "done" and host.get("before") is None]
        if kept:
            self.say(f"served nothing before, and keep what they have: {', '.join(kept)}")
        if not changed:
            return
        self.say(f"==> back to what they served before: {', '.join(changed)}")
        fleet = self.connect(changed)
        try:
            for host in fleet.hosts:
                to = self.report.document["hosts"][host.name]["before"]
                try:
                    roll_back(fleet, host, int(to))
                    self.report.set(host.name, state="rolled_back", after=to)
                    self.say(f"    {host.name}: release {to} serves again")
                except RemoteError as e:
                    self.report.set(host.name, state="failed", reason=f"not rolled back: {e}")
                    self.say(f"    {host.name}: not rolled back: {e}")
        finally:
            fleet.close()
        for name, why in fleet.unreachable.items():
            self.report.set(name, state="vanished", reason=f"not rolled back, it can't be reached: {why}")
