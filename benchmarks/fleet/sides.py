"""The three ways to the same end state: our deploy, pyinfra's own operations, Ansible; and pyinfra that does next to nothing.
Each is one command."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import LabError
from lab.base import cache_dir

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYINFRA = str(Path(sys.executable).parent / "pyinfra")
ANSIBLE = "2.19.14"
LIMIT_S = 3600  # of one run; a first run of many hosts takes long where cores are few
SIDES = ("ours", "stock", "ansible")
BARE = "bare"


@dataclass(frozen=True)
class Target:
    """A host as a side reaches it: itself, or through a proxy that takes longer."""

    name: str
    address: str
    port: int
    key: Path
    known_hosts: Path


@dataclass(frozen=True)
class Run:
    """One run of a side: wall and CPU seconds of this machine's side (without what runs on hosts), and what it changed."""

    seconds: float
    cpu_s: float
    changed: int


@dataclass(frozen=True)
class Bench:
    """What all sides need. data: settings of our deploy; spec: the end state for the others."""

    folder: Path
    data: Mapping[str, Any]
    spec: Path


def ansible() -> Path:
    """The ansible-playbook of a venv of its own, made when it isn't there. Raises LabError."""
    venv = cache_dir() / f"ansible-{ANSIBLE}"
    program = venv / "bin" / "ansible-playbook"
    if not program.exists():
        for words in (
            [sys.executable, "-m", "venv", str(venv)],
            [str(venv / "bin/pip"), "install", "-q", f"ansible-core=={ANSIBLE}"],
        ):
            if subprocess.run(words, check=False, stdout=sys.stderr).returncode:
                raise LabError(f"ansible-core {ANSIBLE} could not be installed into {venv}; the reason stands above")
    return program


def inventory(targets: Sequence[Target], bench: Bench, data: Mapping[str, Any], name: str) -> str:
    """Write an inventory of pyinfra; returns its path."""
    hosts = [
        (
            t.name,
            {
                "ssh_hostname": t.address,
                "ssh_port": t.port,
                "ssh_user": "root",
                "ssh_key": str(t.key),
                "ssh_known_hosts_file": str(t.known_hosts),
                "ssh_strict_host_key_checking": "yes",
                **data,
            },
        )
        for t in targets
    ]
    path = bench.folder / f"{name}.py"
    path.write_text(f"lab = {hosts!r}\n")
    return str(path)


def _ansible(targets: Sequence[Target], bench: Bench) -> str:
    """Write an inventory of Ansible; returns its path."""
    hosts = {
        t.name: {
            "ansible_host": t.address,
            "ansible_port": t.port,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(t.key),
            "ansible_ssh_common_args": f"-F /dev/null -o UserKnownHostsFile={t.known_hosts} -o GlobalKnownHostsFile=/dev/null",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        for t in targets
    }
    path = bench.folder / "ansible.json"
    path.write_text(json.dumps({"all": {"hosts": hosts}}))
    return str(path)


def command(side: str, targets: Sequence[Target], bench: Bench) -> tuple[list[str], Path, dict[str, str]]:
    """Words, folder and environment of a side's run."""
    if side == "ours":
        return [PYINFRA, inventory(targets, bench, bench.data, "ours"), "deploy.py", "-y", "--json"], ROOT, {}
    if side in ("stock", BARE):
        data = {"spec": str(bench.spec)}
        return [PYINFRA, inventory(targets, bench, data, side), f"{side}.py", "-y", "--json"], HERE, {}
    tuned = {
        "ANSIBLE_CONFIG": str(HERE / "ansible.cfg"),
        "ANSIBLE_HOME": str(bench.folder / "ansible"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(bench.folder / "cp"),
    }
    words = [str(ansible()), "-i", _ansible(targets, bench), str(HERE / "playbook.yml"), "-e", f"@{bench.spec}"]
    return words, HERE, tuned


def run(side: str, targets: Sequence[Target], bench: Bench) -> Run:
    """Run a side on hosts and judge it. Raises LabError when it failed on any."""
    words, folder, more = command(side, targets, bench)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    p = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    changed = _recap(p.stdout, len(targets)) if side == "ansible" else _results(p.stdout, len(targets))
    if p.returncode or changed is None:
        raise LabError(f"{side} failed with exit code {p.returncode}:\n{p.stdout[-3000:]}\n{p.stderr[-3000:]}")
    return Run(round(seconds, 3), round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3), changed)


def _results(text: str, hosts: int) -> int | None:
    """Changes by pyinfra's document; None when not all hosts are through. A shell operation always counts as a change."""
    try:
        results = json.loads(text)["results"]
    except (ValueError, KeyError):
        return None
    if results["failed_hosts"] or results["totals"]["error"] or results["operations"][-1]["hosts"] != hosts:
        return None
    by_name = {o["name"]: len(o["success"]) for o in results["operations"]}
    return sum(count for name, count in by_name.items() if name != "accepted")


def _recap(text: str, hosts: int) -> int | None:
    """Changes by Ansible's recap; None when not all hosts are through."""
    lines = re.findall(r"ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", text)
    if len(lines) != hosts or any(int(unreachable) or int(failed) for _, _, unreachable, failed in lines):
        return None
    return sum(int(changed) for _, changed, _, _ in lines)
