"""The stages on the way to what is wanted: each is a release like any other, made, served and accepted before the next."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pyinfra import state

from wsllama import layout
from wsllama.domain import stages
from wsllama.domain.stages import Stage
from wsllama.facts import probe
from wsllama.operations import release, server
from wsllama.operations.base import Later, inside, resource, tell
from wsllama.settings import Settings


def on_the_way(now: Any, settings: Settings) -> list[Stage]:
    """The stages that have to be accepted before what the settings ask for is tried; none when what passed covers them.

    Raises Later while the build or the model isn't there.
    """
    last = release.wanted(now, settings)
    made_of, model = last.record["server"], last.record["model"]
    every = stages.path(made_of["ctx_size"], model.get("mmproj"), made_of["host"])
    accepted = [of for of in now["releases"][layout.ROOT]["numbers"].values() if of["accepted"]]
    return stages.left(every, last.record["build"], model, accepted)[:-1]


def looks(settings: Settings) -> probe.Looks:
    """What `walked` looks at."""
    return probe.together(release.looks(settings), {"releases": {layout.ROOT: None}})


@resource(looks)
def walked(now: Any, settings: Settings) -> Iterator[Any]:
    """What is wanted may be tried: less of it was accepted before, with the same build and model.

    The loop is that of the last stage, whose operations follow this one by themselves. A stage that isn't accepted gives way
    to the last good release; the next run begins behind the stage that passed.

    + settings: of the host
    """
    inputs, looked_at = server.read_at_start(settings.server.api_key), release.looks(settings)
    for stage in on_the_way(now, settings):
        if not state.is_executing:
            raise Later(f"{stage.sentence}, comes first")
        tell(stage.sentence)
        of_stage = partial(release.wanted, settings=settings, stage=stage)
        yield from inside(server.release, looked_at, of_stage)
        yield from inside(server.service, inputs, looked_at, of_stage)
        yield from inside(server.accepted)
