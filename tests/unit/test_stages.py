"""The stages of a host's server: which there are, and which are to be walked still after what was accepted."""

from __future__ import annotations

from typing import Any

import pytest

from wsllama.domain import stages
from wsllama.domain.stages import Stage

PROJECTOR = "mmproj-cd/mmproj-F16.gguf"
MODEL = {"file": "a-ab/a.gguf", "sha256": "ab" * 32}


def names(ctx_size: int = 16384, mmproj: str | None = None, host: str = "127.0.0.1") -> list[str]:
    return [stage.name for stage in stages.path(ctx_size, mmproj, host)]


def test_text_first_then_the_context_then_pictures_then_the_others() -> None:
    assert stages.path(32768, PROJECTOR, "0.0.0.0") == [
        Stage("text", 8192, None, "127.0.0.1"),
        Stage("context", 32768, None, "127.0.0.1"),
        Stage("vision", 32768, PROJECTOR, "127.0.0.1"),
        Stage("lan", 32768, PROJECTOR, "0.0.0.0"),
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ctx_size": 8192}, ["text"]),
        ({"ctx_size": 256}, ["text"]),
        ({"ctx_size": 8193}, ["text", "context"]),
        ({"ctx_size": 4096, "mmproj": PROJECTOR}, ["text", "vision"]),
        ({"ctx_size": 4096, "host": "192.0.2.1"}, ["text", "lan"]),
        ({"host": "::"}, ["text", "context", "lan"]),
        ({"mmproj": PROJECTOR, "host": "127.0.0.2"}, ["text", "context", "vision"]),
    ],
)
def test_stages_that_would_be_equal_are_one(given: dict[str, Any], expected: list[str]) -> None:
    assert names(**given) == expected


@pytest.mark.parametrize(
    ("host", "inside"), [("127.0.0.2", "127.0.0.2"), ("::1", "::1"), ("::", "::1"), ("192.0.2.1", "127.0.0.1")]
)
def test_before_the_last_stage_only_this_machine_gets_in(host: str, inside: str) -> None:
    first, *_, last = stages.path(16384, PROJECTOR, host)
    assert (first.host, last.host) == (inside, host)


def test_a_small_context_is_never_made_larger() -> None:
    assert [stage.ctx_size for stage in stages.path(512, PROJECTOR, "0.0.0.0")] == [512, 512, 512]


def accepted(ctx_size: int, mmproj: str | None = None, host: str = "127.0.0.1", build: str = "b", **model: str) -> dict[str, Any]:
    """A release as it records itself."""
    served = {**MODEL, "alias": "a", **({"mmproj": mmproj} if mmproj else {}), **model}
    return {"build": build, "model": served, "server": {"ctx_size": ctx_size, "host": host, "threads": 4}}


FULL = accepted(16384, PROJECTOR, "0.0.0.0")


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([], ["text", "context", "vision", "lan"]),
        # begins behind the stage that passed
        ([accepted(8192)], ["context", "vision", "lan"]),
        ([accepted(16384), accepted(8192)], ["vision", "lan"]),
        ([accepted(16384, PROJECTOR)], ["lan"]),
        # nothing that a stage is about has changed
        ([FULL], ["lan"]),
        # more context is wanted than was served, or less of it
        ([accepted(12288, PROJECTOR, "0.0.0.0")], ["context", "vision", "lan"]),
        ([accepted(65536)], ["vision", "lan"]),
        ([accepted(4096)], ["text", "context", "vision", "lan"]),
        # another projector, another address
        ([accepted(16384, "other/mmproj-F16.gguf", "0.0.0.0")], ["vision", "lan"]),
        ([accepted(16384, PROJECTOR, "192.0.2.1")], ["lan"]),
        # another build or model
        ([accepted(16384, PROJECTOR, "0.0.0.0", build="other")], ["text", "context", "vision", "lan"]),
        ([accepted(16384, PROJECTOR, "0.0.0.0", file="a-cd/a.gguf")], ["text", "context", "vision", "lan"]),
        ([accepted(16384, PROJECTOR, "0.0.0.0", sha256="cd" * 32)], ["text", "context", "vision", "lan"]),
    ],
)
def test_which_stages_are_left(there: list[dict[str, Any]], expected: list[str]) -> None:
    every = stages.path(16384, PROJECTOR, "0.0.0.0")
    assert [stage.name for stage in stages.left(every, "b", MODEL, there)] == expected


def test_a_server_whose_address_alone_is_another_on_this_machine_walks_nothing() -> None:
    every = stages.path(16384, None, "127.0.0.2")
    assert [stage.name for stage in stages.left(every, "b", MODEL, [accepted(16384)])] == ["context"]


def test_a_stage_in_words() -> None:
    text, *_, lan = stages.path(16384, PROJECTOR, "0.0.0.0")
    assert text.sentence == "stage text: 8192 tokens of context, text only, at 127.0.0.1"
    assert lan.sentence == "stage lan: 16384 tokens of context, with pictures, at 0.0.0.0"
