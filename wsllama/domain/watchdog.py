"""When a server that runs does nothing any more. Pure; wsllama/host/watchdog.py looks and acts.

/health comes from a thread of its own and says 200 while completions hang (ggml-org/llama.cpp#13085). /metrics goes through the
queue of the main loop, which answers also while a batch is decoded, and counts batches and tokens (server-context.cpp:3659,4053
at the pin): a long prompt moves them, a hang doesn't. A completion of our own would cost a user the cached prompt of a slot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Answer = Literal["ok", "silent", "other"]
"""Of a request: with status 200, none in time, or anything else (loading, refused, switched off)."""


@dataclass(frozen=True)
class Seen:
    """One look. at: seconds of a clock that never jumps; invocation: systemd's id of this start, empty while it doesn't run;
    steady: what serves was accepted, and isn't being tried by a deploy; computed: a count from 0 at the start that grows
    with the work; metrics: as health where that isn't ok; busy: requests that are worked on or wait, by
    the metrics."""

    at: float
    invocation: str = ""
    steady: bool = True
    health: Answer = "ok"
    metrics: Answer = "ok"
    computed: int = 0
    busy: int = 0


@dataclass
class Watch:
    """What is remembered between looks.

    timeout_s: how long a server may show no sign of life; restarted: the start that was ended last because it hung, until the one
    after it has computed something; told: the start of which it was said that it is left alone
    """

    timeout_s: float
    restarted: str = ""
    since: float = 0.0
    invocation: str = ""
    computed: int = 0
    told: str = ""

    def look(self, seen: Seen) -> str | None:
        """A sentence when the server hangs: what was seen, and for how long. None while it doesn't."""
        if seen.invocation != self.invocation or not seen.steady:
            self.invocation, self.since, self.computed = seen.invocation, seen.at, 0
            return None
        worked = seen.metrics == "ok" and seen.computed != self.computed
        if worked and seen.invocation != self.restarted:
            self.restarted = ""
        if worked or _alive(seen):
            self.since, self.computed = seen.at, seen.computed
            return None
        silent = seen.at - self.since
        return _said(seen, silent) if silent >= self.timeout_s else None

    def may_restart(self) -> bool:
        """Whether a restart may help: after one that didn't, systemd's own limits and a person come next."""
        return not self.restarted


def _alive(seen: Seen) -> bool:
    """Also one that is stopped, starting or loading: systemd and acceptance look after that."""
    return not seen.invocation or not ("silent" in (seen.health, seen.metrics) or seen.busy)


def _said(seen: Seen, seconds: float) -> str:
    if seen.health == "silent":
        return f"/health has not answered for {seconds:.0f} s"
    if seen.metrics == "silent":
        return f"/health says ok, but the main loop has not answered for {seconds:.0f} s"
    return f"/health says ok, but nothing was computed for {seconds:.0f} s while {seen.busy} requests wait"


def counters(text: str) -> tuple[int, int]:
    """Of the text of /metrics: a count of batches and tokens, and the requests that are worked on or wait.

    Pictures are no batches (they aren't in `n_decode_total`), so tokens are counted too.
    """
    found = {name: float(value) for name, value in re.findall(r"^llamacpp:(\w+) ([\d.e+]+)$", text, re.M)}
    computed = sum(found.get(name, 0) for name in ("n_decode_total", "prompt_tokens_total", "tokens_predicted_total"))
    return int(computed), int(found.get("requests_processing", 0) + found.get("requests_deferred", 0))
