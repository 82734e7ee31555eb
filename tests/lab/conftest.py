"""One lab of two hosts for the whole session; a test that changes a host's system resets it or says so."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # `lab` is a folder of the project, not an installed package

from lab import Lab
from lab.base import cache_dir

CCACHE = "/var/cache/wsllama/ccache"


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Two hosts that live as long as the session; compiler results are kept between sessions."""
    if os.geteuid() != 0:
        pytest.fail("The lab starts systemd machines and needs root: run the tests with sudo.", pytrace=False)
    with Lab(hosts=2, binds={cache_dir() / "ccache": CCACHE}) as shared:
        yield shared
