"""Runs on the host as a service: restarts a llama-server that hangs, once, and one that came up without its GPU, once a boot.

It changes nothing while a deploy is at work: then the current release wasn't accepted yet, or the releases' lock is taken.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from typing import Any

from wsllama.domain import server_log
from wsllama.domain.client import base_url
from wsllama.domain.watchdog import Answer, Seen, Watch, counters
from wsllama.host.api import Server

LOG_BYTES = 2 << 20  # of a start: it says within the first thousands of lines whether it has the GPU


class Watchdog:
    """argument: root, unit, key_file, state (a file that a reboot takes away), timeout_s."""

    def __init__(self, argument: dict[str, Any]) -> None:
        self.a = argument
        self.known: dict[str, str] = {"restarted": "", "on_cpu": "", "judged": ""}
        if os.path.exists(argument["state"]):
            with open(argument["state"], encoding="utf-8") as f:
                self.known.update(json.load(f))
        self.watch = Watch(argument["timeout_s"], self.known["restarted"])
        self.patience = min(10.0, max(1.0, argument["timeout_s"] / 3))  # for one answer

    def remember(self, **known: str) -> None:
        self.known.update(known)
        with open(self.a["state"] + ".tmp", "w", encoding="utf-8") as f:
            json.dump(self.known, f)
        os.replace(self.a["state"] + ".tmp", self.a["state"])

    def release(self) -> "dict[str, Any] | None":
        """What serves, when it was accepted once: one that is being tried is acceptance's affair."""
        current = os.path.realpath(os.path.join(self.a["root"], "current"))
        try:
            with open(os.path.join(current, "release.json"), encoding="utf-8") as f:
                record: dict[str, Any] = json.load(f)
        except (OSError, ValueError):
            return None
        return record if os.path.exists(os.path.join(current, "baseline.json")) else None

    def invocation(self) -> str:
        """Of a unit that is active; empty while it isn't."""
        command = ["systemctl", "show", "-p", "ActiveState,InvocationID", self.a["unit"]]
        shown = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
        found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        return found.get("InvocationID", "") if found.get("ActiveState") == "active" else ""

    def look(self, record: "dict[str, Any] | None") -> Seen:
        invocation = self.invocation()
        if record is None or not invocation:
            return Seen(time.monotonic(), invocation, steady=record is not None, health="other", metrics="other")
        of = record["server"]
        key_file = self.a["key_file"] if of["api_key"] else None
        server = Server({"url": base_url(of["host"], of["port"]), "key_file": key_file})
        health, _ = self.ask(server, "/health")
        metrics, text = self.ask(server, "/metrics") if health == "ok" else (health, "")
        return Seen(time.monotonic(), invocation, True, health, metrics, *counters(text))

    def ask(self, server: Server, path: str) -> "tuple[Answer, str]":
        status, text = server.ask(path, timeout=self.patience)
        if status == 0:
            return ("silent" if "timed out" in str(text) else "other"), ""
        return ("ok" if status == 200 else "other"), str(text)

    def restart(self, invocation: str, **known: str) -> bool:
        """Whether it was done: not when a deploy is at work, or when what was seen is gone meanwhile."""
        with open(os.path.join(self.a["root"], ".lock"), encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            if self.release() is None or self.invocation() != invocation:
                return False
            self.remember(**known)
            subprocess.run(["systemctl", "restart", "--no-block", self.a["unit"]], check=False)
        return True

    def hang(self, seen: Seen, sentence: str) -> None:
        unit = self.a["unit"]
        if not self.watch.may_restart():
            if self.watch.told != seen.invocation:
                print(f"{unit}: {sentence}; it was restarted and has computed nothing since, so it is left alone", flush=True)
            self.watch.told = seen.invocation
        elif self.restart(seen.invocation, restarted=seen.invocation):
            self.watch.restarted = seen.invocation
            print(f"{unit}: {sentence}; it is restarted", flush=True)

    def gpu(self, record: "dict[str, Any]", seen: Seen) -> None:
        """A driver that isn't there yet when the distro starts leaves a server on the CPU with /health 200 (llama.cpp#27923)."""
        if not record["gpu"] or seen.health != "ok" or self.known["judged"] == seen.invocation:
            return
        found = server_log.read(self.log(seen.invocation))
        if found.verdict != "cpu_fallback":
            self.remember(judged=seen.invocation)
            return
        said = f"{self.a['unit']}: it serves on the CPU although a GPU is planned ({found.line.strip()})"
        if self.known["on_cpu"]:
            print(f"{said}, also after a restart: run `wsllama doctor`", flush=True)
            self.remember(judged=seen.invocation)
        elif self.restart(seen.invocation, on_cpu=seen.invocation, judged=seen.invocation):
            print(f"{said}; it is restarted once", flush=True)

    def log(self, invocation: str) -> bytes:
        command = ["journalctl", "-q", "-o", "cat", "--no-pager", f"_SYSTEMD_INVOCATION_ID={invocation}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as p:
            assert p.stdout
            text = p.stdout.read(LOG_BYTES)
            p.terminate()
        return text

    def round(self) -> None:
        record = self.release()
        seen = self.look(record)
        sentence = self.watch.look(seen)
        if self.watch.restarted != self.known["restarted"]:  # it has computed something since
            self.remember(restarted=self.watch.restarted)
        if sentence:
            self.hang(seen, sentence)
        elif record:
            self.gpu(record, seen)


def main(argument: dict[str, Any]) -> None:
    """Until another program stands in its own file: systemd then starts that."""
    try:
        own, watchdog = os.stat(sys.argv[0]), Watchdog(argument)
        while os.path.samestat(os.stat(sys.argv[0]), own):
            watchdog.round()
            time.sleep(min(30.0, argument["timeout_s"] / 10))
    except (OSError, ValueError, KeyError) as e:
        raise SystemExit(f"the watchdog ends, systemd starts it again: {type(e).__name__} {e}") from None
