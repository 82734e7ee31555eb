"""Runs on the host: makes a release, switches to it, records that it was accepted, or goes back to the last good one.

    releases/<n>/build      link to the build            releases/<n>/args, env   files of the unit
    releases/<n>/model      link to the model's folder   releases/<n>/unit        the unit that it runs under
    releases/<n>/release.json   what it is made of       releases/<n>/baseline.json   when it was accepted
    current -> releases/<n>                              last-good -> releases/<n>

Every step takes a lock and is a rename. Between the steps of one run another one may have done its own: what it did isn't
undone and isn't taken for ours, the later run is told.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from wsllama.domain import flags, systemd

AGAIN = "run again when that one has ended"


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def put(path: str, text: str) -> None:
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)
    sync(os.path.dirname(path))


def link(path: str, target: str) -> None:
    aside = path + ".tmp"
    if os.path.lexists(aside):  # of a run that was killed; the lock says that nobody else is at it
        os.unlink(aside)
    os.symlink(target, aside)
    if os.path.isdir(path) and not os.path.islink(path):
        os.rename(path, f"{path}.{time.time():.0f}.moved")  # somebody's folder in our link's place: kept, out of the way
    os.replace(aside, path)
    sync(os.path.dirname(path))


def make(a: dict[str, Any]) -> None:
    """A new release folder; `links` and `files` are all that is in it besides release.json."""
    folder = os.path.join(a["root"], "releases", str(a["number"]))
    partial = os.path.join(a["root"], "releases", ".partial-{}".format(a["number"]))
    if os.path.lexists(folder):  # the number was free when this run looked
        with open(os.path.join(folder, "release.json"), encoding="utf-8") as f:
            if json.load(f)["digest"] == a["digest"]:
                return
        raise SystemExit(f"release {a['number']} was made by another run meanwhile, with other settings; {AGAIN}")
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    for name, target in a["links"].items():
        os.symlink(target, os.path.join(partial, name))
    words = understood(partial, a["words"], a["allow_tools"])
    files = {**a["files"], "args": systemd.arguments("LLAMA_SERVER_ARGS", words)}
    for name, text in files.items():
        put(os.path.join(partial, name), text)
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    record = dict(a["record"], digest=a["digest"], links=a["links"], sha256=sums, created=time.time())
    put(os.path.join(partial, "release.json"), json.dumps(record, indent=1, sort_keys=True) + "\n")
    os.rename(partial, folder)
    sync(os.path.dirname(folder))


def understood(folder: str, words: Sequence[str], allow_tools: bool) -> list[str]:
    """The arguments in the spelling of this build, which its --help tells, and tried on it: nothing was switched yet.

    llama-server reads its arguments in order: with --version as the last one it refuses a wrong one and does nothing else.
    """
    program = os.path.join(folder, "build", "bin", "llama-server")
    known = flags.parse_help(said(program, "--help")[1])
    if not known.options:
        refuse(folder, "its --help can't be read")
    resolved = flags.resolve(words, known, allow_tools)
    if resolved.problems:
        refuse(folder, "; ".join(resolved.problems))
    status, text = said(program, *resolved.words, "--version")
    if status:
        refuse(folder, next((line for line in text.splitlines() if "error" in line.lower()), text.strip()[-300:]))
    for note in resolved.notes:
        print(note)
    return resolved.words


def said(*command: str) -> tuple[int, str]:
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return p.returncode, p.stdout


def refuse(folder: str, reason: str) -> NoReturn:
    shutil.rmtree(folder)
    raise SystemExit(f"llama-server refuses the arguments of the settings: {reason}; the service was not touched")


def now(a: dict[str, Any]) -> str:
    """The number of the current release."""
    return os.readlink(os.path.join(a["root"], "current"))[len("releases/") :]


def forward(a: dict[str, Any]) -> None:
    """Switch to a release whose build and model are there: another run may have removed them since this one looked."""
    folder = os.path.join(a["root"], "releases", str(a["number"]))
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.islink(path) and not os.path.exists(path):
            raise SystemExit(f"{os.readlink(path)} is gone, which release {a['number']} needs: another run removed it; {AGAIN}")
    switch(a)
    for name in ("model", "mmproj"):  # from now on they are needed, and not awaited any more
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name, ".awaited"))


def switch(a: dict[str, Any]) -> None:
    """`current` names this release, and systemd knows its unit: another address or memory lock may need other directives."""
    with open(os.path.join(a["root"], "releases", str(a["number"]), "unit"), encoding="utf-8") as f:
        text = f.read()
    link(os.path.join(a["root"], "current"), "releases/{}".format(a["number"]))
    there = None
    if os.path.exists(a["unit_file"]):
        with open(a["unit_file"], encoding="utf-8") as f:
            there = f.read()
    if there != text:
        put(a["unit_file"], text)
        os.chmod(a["unit_file"], 0o644)
    if there != text or stale(a["unit"]):
        subprocess.run(["systemctl", "daemon-reload"], check=True)


def stale(unit: str) -> bool:
    """Whether systemd has read another unit than the one that is there: an earlier run was killed before it told systemd."""
    command = ["systemctl", "show", "--value", "-p", "NeedDaemonReload", unit]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.strip() == "yes"


def start(a: dict[str, Any]) -> None:
    """Start the service with what stands there now, then write down what that was: a run that is killed starts it again."""
    if os.path.exists(a["stamp"]):
        with open(a["stamp"], encoding="utf-8") as f:
            told = f.read().strip()
        if told == a["digest"] and subprocess.run(["systemctl", "is-active", "--quiet", a["unit"]]).returncode == 0:
            return  # another run was faster, and may be asking the server already
        os.unlink(a["stamp"])
    try:
        restart(a["unit"])
    except SystemExit as e:  # acceptance comes next: it says why and goes back; a run that ended here would leave nothing running
        print(e)
        return
    put(a["stamp"], a["digest"] + "\n")


def restart(unit: str) -> None:
    """Also one that has used up its starts: the limit is meant for a server that dies by itself, not for what a deploy mends."""
    subprocess.run(["systemctl", "reset-failed", unit], stderr=subprocess.DEVNULL)
    p = subprocess.run(["systemctl", "restart", unit], stderr=subprocess.PIPE, text=True)
    if p.returncode:
        raise SystemExit("{} did not start: {}".format(unit, " ".join(p.stderr.split())))


def accept(a: dict[str, Any]) -> None:
    """Keep the record of the first acceptance, make this release the one to go back to, and start it at boot.

    One that is on the way to what is wanted serves less: it isn't gone back to in the place of one that was no stage on the way.
    """
    if now(a) != str(a["number"]):
        raise SystemExit(f"release {a['number']} gave way to release {now(a)} of another run while it was asked; {AGAIN}")
    folder, good = os.path.join(a["root"], "releases", str(a["number"])), os.path.join(a["root"], "last-good")
    if a.get("baseline") is not None:
        put(os.path.join(folder, "baseline.json"), json.dumps(a["baseline"], indent=1, sort_keys=True) + "\n")
    if not (a.get("on_the_way") and final(good)):
        link(good, "releases/{}".format(a["number"]))
    p = subprocess.run(["systemctl", "enable", "--quiet", a["unit"]], stderr=subprocess.PIPE, text=True)
    if p.returncode:
        raise SystemExit("{} can't be enabled at boot: {}".format(a["unit"], " ".join(p.stderr.split())))
    prune(a["root"], folder, a["keep"])


def final(release: str) -> bool | None:
    """Whether this release was the last stage of its settings; None when it isn't there or its record can't be read."""
    try:
        with open(os.path.join(release, "release.json"), encoding="utf-8") as f:
            return bool(json.load(f).get("final", True))  # none of an earlier version of ours was a stage on the way
    except (OSError, ValueError):
        return None


def prune(root: str, accepted: str, keep: int) -> None:
    """Remove releases, then the builds that no release needs.

    What stays: the accepted one, which is `current` now, the one that `last-good` names, and of the others the newest `keep`
    that can be rolled back to; stages on the way take no place of theirs, and as many of them stay. What another run may be
    about to switch to stays as well: the newest release, and builds that are younger than the accepted one.
    """
    folder, builds = os.path.join(root, "releases"), os.path.join(root, "builds")
    numbers = sorted((n for n in os.listdir(folder) if re.fullmatch("[1-9][0-9]*", n)), key=int, reverse=True)
    kept = {numbers[0], os.path.basename(accepted), os.path.basename(os.readlink(os.path.join(root, "last-good")))}
    spare = [n for n in numbers if n not in kept and os.path.exists(os.path.join(folder, n, "baseline.json"))]
    on_the_way = [n for n in spare if final(os.path.join(folder, n)) is False]
    kept.update([n for n in spare if n not in on_the_way][:keep], on_the_way[:keep])
    for number in set(numbers) - kept:
        shutil.rmtree(os.path.join(folder, number))
    needed = {os.path.realpath(os.path.join(folder, n, "build")) for n in kept}
    made = os.stat(os.path.join(accepted, "release.json")).st_mtime
    for path in (os.path.join(builds, name) for name in os.listdir(builds) if not name.startswith(".")):
        if os.path.realpath(path) not in needed and os.stat(path).st_ctime < made:
            shutil.rmtree(path)


def back(a: dict[str, Any]) -> dict[str, Any]:
    """Switch to the last good release, or stop when there is none. What is accepted or another run's stays as it is.

    Returns {"serves": its number, "switched"}; what was switched to is started by `resume`, once it is known what is there.
    """
    path = os.path.join(a["root"], "last-good")
    good = os.readlink(path)[len("releases/") :] if os.path.exists(path) else None
    if now(a) != str(a["number"]):
        return {"serves": now(a), "switched": False}
    if good == now(a):
        return {"serves": good, "switched": False}
    if os.path.exists(a["stamp"]):
        os.unlink(a["stamp"])
    if good:
        switch({**a, "number": good})
    else:
        subprocess.run(["systemctl", "stop", a["unit"]], check=False)
    return {"serves": good, "switched": good is not None}


def resume(a: dict[str, Any]) -> None:
    """Start what `back` switched to, and write down what that is, so that the next run need not start it again."""
    if now(a) != str(a["number"]):
        return  # another run's: it starts that itself
    restart(a["unit"])
    if a["digest"]:
        put(a["stamp"], a["digest"] + "\n")


def main(a: dict[str, Any]) -> None:
    try:
        with open(os.path.join(a["root"], ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            actions = {"make": make, "switch": forward, "start": start, "accept": accept, "back": back, "resume": resume}
            print(json.dumps(actions[a["action"]](a) or {}))
    except OSError as e:
        raise SystemExit(f"{e.filename2 or e.filename or a['root']}: {e.strerror or e}; mend that and run again") from None
