"""The stages of a host's server: each is served and has to be accepted before more is asked of the machine. Pure.

text: at most 8K of context, no pictures, for this machine only. context: the context that is wanted. vision: with the
projector. lan: at the address that is wanted. A stage that would be equal to the one before it is none.

Short context and text first, because a server that fails with everything at once doesn't say which part of it was too much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wsllama.domain import server_flags

TEXT_CTX_SIZE = 8192
"""Tokens of the first stage."""


@dataclass(frozen=True)
class Stage:
    """What a stage serves. ctx_size: tokens; mmproj: the projector's file, None without pictures; host: listened on."""

    name: str
    ctx_size: int
    mmproj: str | None
    host: str

    @property
    def sentence(self) -> str:
        """For people."""
        pictures = "with pictures" if self.mmproj else "text only"
        return f"stage {self.name}: {self.ctx_size} tokens of context, {pictures}, at {self.host}"


def path(ctx_size: int, mmproj: str | None, host: str) -> list[Stage]:
    """The stages up to what is wanted, which is the last one.

    ctx_size: tokens; mmproj: the projector's file or None; host: an IP address.
    """
    inside = host if server_flags.is_loopback(host) else "::1" if ":" in host else "127.0.0.1"
    every = [
        Stage("text", min(ctx_size, TEXT_CTX_SIZE), None, inside),
        Stage("context", ctx_size, None, inside),
        Stage("vision", ctx_size, mmproj, inside),
        Stage("lan", ctx_size, mmproj, host),
    ]
    return [s for before, s in zip([None, *every], every, strict=False) if before is None or _serves(s) != _serves(before)]


def left(every: Sequence[Stage], build: str, model: Mapping[str, Any], accepted: Iterable[Mapping[str, Any]]) -> list[Stage]:
    """The stages that are to be walked still: those behind the last one that passed, always the last one of all.

    every: of `path`; build, model: of the wanted release, as it records them; accepted: releases that were accepted, as they
    record themselves. What passed with another build or another model says nothing of these.
    """
    same = [
        made_of
        for made_of in accepted
        if made_of["build"] == build and all(made_of["model"].get(key) == model[key] for key in ("file", "sha256"))
    ]
    behind = [n for n, stage in enumerate(every[:-1], 1) if any(_covers(made_of, stage) for made_of in same)]
    return list(every[max(behind, default=0) :])


def _serves(stage: Stage) -> tuple[int, str | None, str]:
    return stage.ctx_size, stage.mmproj, stage.host


def _covers(made_of: Mapping[str, Any], stage: Stage) -> bool:
    """Whether an accepted release served at least what the stage does, which is one before the last: the address is no matter."""
    enough: bool = made_of["server"]["ctx_size"] >= stage.ctx_size
    return enough and stage.mmproj in (None, made_of["model"].get("mmproj"))
