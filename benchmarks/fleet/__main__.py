"""Our deploy beside pyinfra's own operations and Ansible: the same end state, the same hosts, the same run, by turns.

JSON goes to stdout, progress and a table to stderr. Needs root, as the lab does. Ratios count: seconds are those of this machine,
which plays all hosts, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.fleet import end_state, replay, sides
from benchmarks.fleet.sides import BARE, ROOT, SIDES, Bench, Run, Target
from lab import Lab, LabError, registry, tiny_model
from lab.base import cache_dir
from lab.lab import Host, in_parallel
from wsllama.settings import Model, Server

EXAMPLES = """\
examples:
  python -m benchmarks.fleet >fleet.json                      1, 4 and 16 hosts, and 4 that are 20 ms further away
  python -m benchmarks.fleet --first --hosts 1 4              also from fresh hosts, each side
  python -m lab up 4 --name fleet                             a lab that stays, for one try after the other:
  python -m benchmarks.fleet --lab fleet --hosts 1 4 --rounds 3
"""
CCACHE: dict[str | Path, str | Path] = {cache_dir() / "ccache": "/var/cache/wsllama/ccache"}
SHORT = ("ours", BARE, "stock") * 3  # a run of these is short, so what else goes on weighs more: a round has the median of three
FIGURES = ("seconds", "cpu_s", "commands", "load")
# So that every command on a host is in the host's own journal, whoever sends it.
SSHD = "LogLevel VERBOSE\n"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def the_lab(name: str | None, hosts: int, bare: bool) -> Iterator[Lab]:
    """A lab of so many hosts: one that runs, by its name or id, or one for this run. Raises LabError.

    bare: without the packages that a deploy installs, which only first runs are about
    """
    if name is None:
        with Lab(hosts=hosts, name="fleet", binds=CCACHE, prepared=not bare) as lab:
            yield lab
        return
    found = [Lab.attach(record) for record in registry.records() if name in (record.id, record.name)]
    if len(found) != 1 or len(found[0].hosts) < hosts:
        raise LabError(f"there is no one lab {name} with {hosts} hosts: start it with `python -m lab up {hosts} --name {name}`")
    yield found[0]


def near(host: Host) -> Target:
    """A host as it is."""
    return Target(host.name, host.address, host.ssh_port, host.key, host.known_hosts)


@contextlib.contextmanager
def far(hosts: Sequence[Host], ms: float, folder: Path) -> Iterator[list[Target]]:
    """These hosts behind a proxy that makes a round trip so many milliseconds longer."""
    words = [sys.executable, "-m", "benchmarks.fleet.delay", str(ms), *(f"{h.address}:{h.ssh_port}" for h in hosts)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout
        try:
            ports = json.loads(proxy.stdout.readline())
            keys = dict(line.split(" ", 1) for line in hosts[0].known_hosts.read_text().splitlines())
            known = folder / "known_hosts_far"
            known.write_text("".join(f"[127.0.0.1]:{port} {keys[h.address]}\n" for h, port in zip(hosts, ports, strict=True)))
            yield [Target(h.name, "127.0.0.1", port, h.key, known) for h, port in zip(hosts, ports, strict=True)]
        finally:
            proxy.terminate()


def log_sessions(host: Host) -> None:
    """Have the host's sshd write down every command and transfer."""
    (host.root / "etc/ssh/sshd_config.d/benchmark.conf").write_text(SSHD)
    host.nsenter(["systemctl", "reload", "ssh"])


def sessions(host: Host) -> int:
    """How many commands and transfers over SSH the host has seen: by the journal of its sshd."""
    shown = host.nsenter(["journalctl", "-q", "-o", "cat", "-t", "sshd"]).stdout
    return len(re.findall(r"^Starting session: ", shown, re.M))


def fresh(hosts: Sequence[Host]) -> None:
    """Throw away all that is on these hosts."""
    in_parallel(Host.reset, hosts)
    in_parallel(log_sessions, hosts)


def one(side: str, hosts: Sequence[Host], targets: Sequence[Target], bench: Bench) -> dict[str, Any]:
    """One run of a side, with the commands that the first host saw, and the load average of the last minute before."""
    load, before = os.getloadavg()[0], sessions(hosts[0])
    done: Run = sides.run(side, targets, bench)
    return {**asdict(done), "commands": sessions(hosts[0]) - before, "load": round(load, 1)}


def first_runs(hosts: Sequence[Host], bench: Bench, wanted: dict[str, Any]) -> dict[str, Any]:
    """From fresh hosts, once a side, ours last, because a no-op of ours needs what ours notes. Raises LabError."""
    found = {}
    for side in reversed(SIDES):
        fresh(hosts)
        found[side] = one(side, hosts, [near(h) for h in hosts], bench)
        say(f"first run, {len(hosts)} hosts, {side}: {found[side]['seconds']} s")
        for host in hosts:
            if wrong := end_state.differences(host, wanted):
                raise LabError(f"after {side} {host.name} has another end state: {', '.join(wrong[:10])}")
    return {"runs": found, **{f"{side}/ours": round(found[side]["seconds"] / found["ours"]["seconds"], 2) for side in SIDES[1:]}}


def no_ops(hosts: Sequence[Host], targets: Sequence[Target], bench: Bench, rounds: int, what: str) -> dict[str, Any]:
    """Rounds of all sides by turns, on hosts where nothing is left to do. Raises LabError when one changes something."""
    found: list[dict[str, Any]] = []
    for number in range(rounds):
        order = [*SHORT, "ansible"] if number % 2 else ["ansible", *reversed(SHORT)]  # what else goes on hits all alike
        runs = [(side, one(side, hosts, targets, bench)) for side in order]
        if changed := sorted({side for side, run in runs if run["changed"]}):
            raise LabError(f"{', '.join(changed)} changed something where nothing was to be done")
        found.append({side: medians([run for by, run in runs if by == side]) for side in (*SIDES, BARE)})
        say(f"no-op, {what}, round {number + 1}: " + ", ".join(f"{s} {of['seconds']} s" for s, of in found[-1].items()))
    return {"rounds": found, **compared(found)}


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of each figure the median of these runs."""
    return {key: round(statistics.median(run[key] for run in runs), 2) for key in FIGURES}


def compared(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each side; of the rounds' ratios the median, the least and the most, of wall and of CPU time.

    Against bare pyinfra too: no deploy of pyinfra can do better.
    """
    out: dict[str, Any] = {side: medians([r[side] for r in rounds]) for side in rounds[0]}
    for side, to in [("stock", "ours"), ("ansible", "ours"), ("ours", BARE), ("ansible", BARE)]:
        for key in ("seconds", "cpu_s"):
            ratios = [r[side][key] / r[to][key] for r in rounds]
            out[f"{side}/{to} {key}"] = [round(f(ratios), 2) for f in (statistics.median, min, max)]
    return out


def prepared(hosts: Sequence[Host], folder: Path) -> tuple[Bench, dict[str, Any]]:
    """Deploy all hosts, read the end state of the first one, and write it down for the other sides. Raises LabError."""
    model = tiny_model.write(folder / "tiny.gguf")
    data = {
        "platform": "linux",
        "model": {"path": str(model)},
        "server": {"threads": 1, "ctx_size": 8192},  # one thread: several wait for each other by spinning
        "acceptance": {"long_prompt_s": 0},
    }
    bench = Bench(folder, data, folder / "spec.json")
    in_parallel(log_sessions, hosts)
    targets = [near(h) for h in hosts]
    done = sides.run("ours", targets, bench)
    say(f"{len(hosts)} hosts deployed in {done.seconds:.0f} s, {done.changed} changes")
    wanted = end_state.look(hosts[0])
    end_state.write(wanted, model, Model.model_fields["alias"].default, Server.model_fields["port"].default, folder)
    for side in ("stock", "ansible", "ours"):  # what one wrote anew has another time for the next
        say(f"{side} on top of it: {sides.run(side, targets, bench).changed} changes")
    return bench, wanted


def control_side(host: Host, bench: Bench, counts: Sequence[int]) -> dict[str, Any]:
    """What a no-op takes on this machine alone, by hosts: @fake ones that answer as a real one did. Raises LabError."""
    try:
        real = replay.watched(Path(sides.inventory([near(host)], bench, bench.data, "real")), bench.folder)
        runs = {n: replay.watched(replay.fakes(n, real.answers, dict(bench.data), bench.folder), bench.folder) for n in counts}
    except subprocess.CalledProcessError as e:
        raise LabError(f"a run on hosts that are not there failed:\n{e.stderr[-3000:]}") from None
    if wrong := [n for n, of in runs.items() if of.unchanged != n]:
        raise LabError(f"something was to be done on hosts that answer as one where nothing is: {wrong}")
    first, last = (runs[n] for n in (min(counts), max(counts)))
    more = max(counts) - min(counts)
    return {
        "runs": {n: {"cpu_s": round(of.cpu_s, 2), "memory": of.memory} for n, of in runs.items()},
        "cpu_s a host": round((last.cpu_s - first.cpu_s) / more, 4),
        "memory a host": round((last.memory - first.memory) / more),
    }


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole benchmark; returns the document. Raises LabError."""
    sides.ansible()
    document: dict[str, Any] = {"cores": os.cpu_count(), "ansible": sides.ANSIBLE, "first": {}, "no_op": {}}
    with the_lab(options.lab, max(options.hosts), bare=options.first) as lab:
        bench, wanted = prepared(lab.hosts[: max(options.hosts)], folder)
        document["control_side"] = control_side(lab.hosts[0], bench, (1, 64))
        say(f"64 hosts that are not there: {document['control_side']}")
        for count in options.hosts:
            hosts = lab.hosts[:count]
            if options.first:
                document["first"][str(count)] = first_runs(hosts, bench, wanted)
            document["no_op"][str(count)] = no_ops(hosts, [near(h) for h in hosts], bench, options.rounds, f"{count} hosts")
        if options.delay_ms:
            hosts, what = lab.hosts[: options.delayed], f"{options.delayed} hosts, {options.delay_ms} ms"
            with far(hosts, options.delay_ms, folder) as targets:
                document["no_op"][what] = no_ops(hosts, targets, bench, options.rounds, what)
    return document


def table(document: dict[str, Any]) -> str:
    """The document as a table in Markdown."""
    lines = [
        "| no-op | ours | stock/ours | Ansible/ours | ours/bare | Ansible/bare | commands a host: ours, stock, Ansible | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for what, of in document["no_op"].items():
        pairs = ("stock/ours", "ansible/ours", f"ours/{BARE}", f"ansible/{BARE}")
        ratios = " | ".join("{} ({} to {})".format(*of[f"{pair} seconds"]) for pair in pairs)
        counts = ", ".join(f"{of[side]['commands']:.0f}" for side in SIDES)
        lines.append(f"| {what} | {of['ours']['seconds']} s | {ratios} | {counts} | {of['ours']['load']} |")
    if document["first"]:
        lines += ["", "| first run | ours | stock/ours | Ansible/ours | commands on the first host |", "|---|---|---|---|---|"]
    for what, of in document["first"].items():
        counts = ", ".join(str(of["runs"][side]["commands"]) for side in SIDES)
        seconds = of["runs"]["ours"]["seconds"]
        lines.append(f"| {what} | {seconds:.0f} s | {of['stock/ours']} | {of['ansible/ours']} | {counts} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 4, 16], metavar="N", help="numbers of hosts (1 4 16)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of no-ops of each number of hosts (3)")
    parser.add_argument("--first", action="store_true", help="also first runs, from fresh hosts: minutes each")
    parser.add_argument("--delay-ms", type=float, default=20, metavar="MS", help="more time of a round trip (20); 0: none")
    parser.add_argument("--delayed", type=int, default=4, metavar="N", help="hosts that are so far away (4)")
    parser.add_argument("--lab", metavar="NAME", help="a lab that runs, which stays; without it one for this run")
    options = parser.parse_args(arguments)
    options.delayed = min(options.delayed, max(options.hosts))
    try:
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="fleet-") as folder:
            document = run(options, Path(folder))
    except LabError as error:
        say(f"fleet: {error}")
        return 1
    json.dump(document, sys.stdout, indent=1)
    print()
    say(table(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
