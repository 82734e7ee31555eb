"""Time for loading and the limit of memory, from the model's size and from a plan."""

from __future__ import annotations

import re

import pytest

from tests.operations.fake_hosts import settings
from wsllama.domain import limits
from wsllama.operations.release import unit_text

RAM = {
    "weights": 12 << 30,
    "kv": 1 << 30,
    "recurrent": 0,
    "compute": 0,
    "mmproj": 0,
    "output": 0,
    "cache_ram": 1 << 30,
    "checkpoints": 0,
}


@pytest.mark.parametrize(("size", "seconds"), [(0, 300), (22_000_000_000, 740), (10**12, 7200)])
def test_a_larger_model_gets_more_time(size: int, seconds: int) -> None:
    assert limits.start_timeout_s(size) == seconds


def limit_of(text: str) -> list[str]:
    return re.findall(r"^Memory(?:Max|SwapMax)=.*$", text, re.M)


def test_without_a_plan_and_without_a_setting_there_is_no_limit() -> None:
    assert limit_of(unit_text(settings())) == []
    assert limit_of(unit_text(settings(server={"memory_max": "infinity"}), RAM)) == []


def test_a_plan_gets_a_tenth_and_a_gigabyte_on_top() -> None:
    # 14 GiB planned: 15.4 of it with a tenth, 16.4 GiB with the program itself, so 16.5
    assert limit_of(unit_text(settings(), {**RAM, "system": 99 << 30, "free": 99 << 30})) == [
        "MemoryMax=16896M",
        "MemorySwapMax=0",
    ]


def test_what_the_settings_say_wins() -> None:
    assert limit_of(unit_text(settings(server={"memory_max": "9G"}), RAM)) == ["MemoryMax=9G", "MemorySwapMax=0"]
