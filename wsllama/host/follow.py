"""Runs on the host: something long as a transient systemd unit, one of a name at a time, and follows its log.

The unit goes on when this program or its controller goes away; who comes next, or at the same time, follows it.

    RUN/<unit>.lock          held while it is decided who starts, not while it runs
    RUN/<unit>.py            0600, the program with its argument and environment: nothing of them is in a process list;
                             it removes itself as it starts
    RUN/<unit>.json          what runs or ran last: its key, when it started, where its lines begin in which log
    RUN/<unit>.result.json   how it ended, with its key: what counts, whatever the exit status was
"""

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from typing import Any, BinaryIO

RUN = "/var/lib/wsllama/run"
STEP = 5  # percent between two lines of progress

# What the unit runs. Its last line on stdout is the result, its last line on stderr or its sys.exit text the error.
TASK = r'''
import io, json, os, sys, time, traceback


class Tee(io.TextIOBase):
    """Passes on to the log and remembers the last whole line."""

    def __init__(self, stream):
        self.stream, self.rest, self.last = stream, "", ""

    def write(self, text):
        self.stream.write(text)
        self.stream.flush()
        *whole, self.rest = (self.rest + text).split("\n")
        self.last = next((line for line in reversed(whole) if line.strip()), self.last)
        return len(text)

    def fileno(self):
        return self.stream.fileno()


def run(task):
    os.unlink(__file__)
    os.environ.update(task["environment"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout, sys.stderr = Tee(sys.stdout), Tee(sys.stderr)
    started, error = time.time(), None
    try:
        space = {"__name__": "wsllama_task"}
        exec(compile(task["program"], task["unit"], "exec"), space)
        space["main"](task["argument"])
    except SystemExit as e:
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
        if e.code not in (None, 0):
            error = sys.stderr.last or "it ended with status %s" % e.code
    except BaseException as e:
        traceback.print_exc()
        error = "%s: %s" % (type(e).__name__, e)
    result = None
    if error is None:
        try:
            result = json.loads(sys.stdout.last)
        except ValueError:
            pass
    document = {"key": task["key"], "ok": error is None, "error": error, "result": result,
                "seconds": round(time.time() - started)}
    with open(task["answer"] + ".new", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        json.dump(document, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(task["answer"] + ".new", task["answer"])
    sys.exit(0 if error is None else 1)
'''


def main(argument: dict[str, Any]) -> None:
    """Run `program`'s main(argument) in the unit, or follow the unit that does it already, until it ends.

    argument: unit (a name without suffix); key (what the result is judged by: the same for the same work); limit_s
    (then the unit is ended); program (source text with a `main`); argument (for it, JSON-able); log (file on the host,
    is appended to); environment (for the program). run: another folder than the usual one, for tests.

    Prints the stages (lines that begin with `==>`) and every few percent of the lines that begin with `[ 12%]`, with
    the time since the start. The last line is {"ok": true, "key", "result": the program's last line if it is JSON,
    "seconds", "log"} or, with exit status 1 and the same on stderr for people, {"ok": false, "key", "error": one
    sentence, "lines": those that matter, "log"}. A unit of another key is followed first, then ours is started.
    """
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    try:
        document = follow({"run": RUN, **argument})
    except (OSError, RuntimeError) as e:
        sys.exit(f"cannot run {argument['unit']}: {e}")
    if not document["ok"]:
        where = f"the whole log is {document['log']} on the host"
        print("\n".join([document["error"], *document["lines"], where]), file=sys.stderr)
    if not argument.get("quiet"):
        print(json.dumps(document), flush=True)
    sys.exit(0 if document["ok"] else 1)


def follow(a: dict[str, Any]) -> dict[str, Any]:
    os.makedirs(a["run"], mode=0o700, exist_ok=True)
    os.makedirs(os.path.dirname(a["log"]), exist_ok=True)
    while True:
        running = begin(a)
        if running["key"] != a["key"]:
            print(f"==> {a['unit']} is busy with something else ({running['key']}); waiting for its end", flush=True)
        watch(a["unit"], running)
        if running["key"] == a["key"]:
            return judge(a, running)


def begin(a: dict[str, Any]) -> dict[str, Any]:
    """What the unit does now: ours, unless something runs already."""
    known = file_of(a, ".json")
    with open(file_of(a, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if alive(a["unit"]):
            unknown = {"key": None, "log": a["log"], "limit_s": 0, "started": time.time(), "offset": 0}
            return read_json(known) or unknown
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file_of(a, ".result.json"))
        running = {**{k: a[k] for k in ("key", "log", "limit_s")}, "started": time.time(), "offset": size(a["log"])}
        write(known, json.dumps(running))
        write(file_of(a, ".py"), task_text(a))
        start(a)
        return running


def task_text(a: dict[str, Any]) -> str:
    """The unit's program: ours around the caller's, with the argument and the environment."""
    task = {k: a[k] for k in ("unit", "key", "program", "argument")}
    task["answer"] = file_of(a, ".result.json")
    task["environment"] = {"LC_ALL": "C.UTF-8", **a["environment"]}
    return f"{TASK}\nrun(json.loads({json.dumps(json.dumps(task))}))\n"


def start(a: dict[str, Any]) -> None:
    unit = a["unit"] + ".service"
    subprocess.run(["systemctl", "reset-failed", unit], stderr=subprocess.DEVNULL)
    try:
        p = subprocess.run(
            ["systemd-run", "--quiet", "--unit", unit, "-p", f"RuntimeMaxSec={a['limit_s']}", "-p", "TimeoutStopSec=15",
             "-p", f"StandardOutput=append:{a['log']}", "-p", f"StandardError=append:{a['log']}", "-p", "UMask=0022",
             "-p", "OOMPolicy=continue",  # a compiler that was killed is the program's affair: it goes on with fewer
             "-p", "Environment=LC_ALL=C.UTF-8", "python3", "-I", "-S", file_of(a, ".py")],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    except FileNotFoundError as e:
        raise RuntimeError("this host has no systemd-run; systemd has to be its init") from e
    if p.returncode:
        os.unlink(file_of(a, ".py"))
        raise RuntimeError(p.stderr.decode("utf-8", "replace").strip() or f"systemd-run ended with status {p.returncode}")


def watch(unit: str, running: dict[str, Any]) -> None:
    """Print the progress in the unit's lines until it is over."""
    meter, rest = Meter(running["started"]), b""
    with open_log(running["log"]) as log:
        log.seek(running["offset"])
        while True:
            going = alive(unit)  # asked before reading, so that the last lines are read
            *lines, rest = (rest + log.read()).split(b"\n")
            for line in lines:
                if shown := meter.shown(line.decode("utf-8", "replace"), time.time()):
                    print(shown, flush=True)
            if not going:
                return
            time.sleep(0.5)


class Meter:
    """Which lines are worth showing, and how."""

    def __init__(self, started: float) -> None:
        self.started, self.percent = started, -STEP

    def shown(self, line: str, now: float) -> str | None:
        since = int(max(0, now - self.started))
        elapsed = f"{since // 60}:{since % 60:02d}"
        if line.startswith("==> "):
            self.percent = -STEP
            return f"{line.rstrip()} ({elapsed})"
        if found := re.match(r"\[ {0,2}(\d{1,3})%\]", line):
            percent = int(found[1])
            if percent >= self.percent + STEP or (percent == 100 > self.percent):
                self.percent = percent
                return f"[{percent:3d}%] {elapsed}"
        return None


def judge(a: dict[str, Any], running: dict[str, Any]) -> dict[str, Any]:
    result = read_json(file_of(a, ".result.json"))
    if result and result["key"] == a["key"]:
        ok, error = result["ok"], result["error"]
    else:  # it was ended before it could say anything
        ok, error, result = False, ended(a["unit"], running), None
    document = {"ok": ok, "key": a["key"], "log": running["log"]}
    if ok and result:
        return {**document, "result": result["result"], "seconds": result["seconds"]}
    return {**document, "error": error, "lines": lines_that_matter(log_text(running).replace(str(error), ""))}


def ended(unit: str, running: dict[str, Any]) -> str:
    why = show(unit, "Result")
    if why == "timeout" or 0 < running["limit_s"] <= time.time() - running["started"]:
        return f"{unit} was stopped at its time limit of {running['limit_s']} s; raise the limit and run again"
    if why == "oom-kill":
        return f"{unit} was ended because the host ran out of memory; run fewer jobs at once or give it more memory"
    return f"{unit} was ended from outside ({why or 'no trace of it is left'}); run again"


def log_text(running: dict[str, Any]) -> str:
    with open_log(running["log"]) as log:
        log.seek(max(running["offset"], size(running["log"]) - 4_000_000))
        return log.read().decode("utf-8", "replace")


CAUSE = re.compile(
    r"\berror\b(?=[ :,(]|$)|\bfatal\b|^FAILED: |no space left on device|\bkilled\b|undefined reference|cannot find -l"
    r"|could not resolve|out of memory|^\w+(Error|Exception)\b|not permitted|permission denied",
    re.IGNORECASE,
)
MISSING = re.compile(r"could not find", re.IGNORECASE)  # of optional things, too: only where there is room
CONSEQUENCE = re.compile(
    r"^(ninja: build stopped|g?make(\[\d+\])?: |-- Configuring incomplete|compilation terminated|CMake Generate step )"
)


def lines_that_matter(text: str, limit: int = 12) -> list[str]:
    """The lines of a failed log that say why, in their order; its last lines when none does. Long ones are cut.

    What only follows from another error (ninja stopping, make passing it on) is shown when there is nothing else. Of
    CMake's errors the text counts, which stands indented below.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    causes, missing, below = [], [], False
    for i, line in enumerate(lines):
        below = below and line.startswith("  ")
        if CONSEQUENCE.search(line):
            continue
        if below or CAUSE.search(line):
            below = below or line.startswith("CMake Error")
            causes.append(i)
        elif MISSING.search(line):
            missing.append(i)
    picked = causes[:limit]
    picked += missing[: limit - len(picked)]
    return [lines[i][:300] for i in sorted(picked)] or [line[:300] for line in lines[-limit:]]


def alive(unit: str) -> bool:
    return show(unit, "ActiveState") in ("active", "activating", "deactivating", "reloading")


def show(unit: str, name: str) -> str:
    try:
        command = ["systemctl", "show", "--value", "-p", name, unit + ".service"]
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError as e:
        raise RuntimeError("this host has no systemctl; systemd has to be its init") from e
    return str(p.stdout, "utf-8").strip()


def file_of(a: dict[str, Any], ending: str) -> str:
    return os.path.join(str(a["run"]), a["unit"] + ending)


def size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def open_log(path: str) -> BinaryIO:
    return open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_CREAT, 0o644))


def read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as f:
            found: dict[str, Any] = json.load(f)
            return found
    except (OSError, ValueError):
        return None


def write(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".new", path)
