"""One lab of two hosts for the whole session, converged once; a test that changes a host puts it back or says so."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # `lab` and `tests` are folders of the project, not installed packages

from lab import Lab, tiny_model
from lab.base import cache_dir
from tests.lab.deployed import Deployed

CCACHE = "/var/cache/wsllama/ccache"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the lab itself come first: some reset its hosts, which would undo the deploy."""
    items.sort(key=lambda item: any(name.startswith("deployed") for name in getattr(item, "fixturenames", ())))


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Two hosts that live as long as the session; compiler results are kept between sessions.

    They have the packages of a deploy, unless a test of the session is about hosts that have nothing.
    """
    if os.geteuid() != 0:
        pytest.fail("The lab starts systemd machines and needs root: run the tests with sudo.", pytrace=False)
    bare = any(item.get_closest_marker("bare_hosts") for item in request.session.items)
    with Lab(hosts=2, prepared=not bare, binds={cache_dir() / "ccache": CCACHE}) as shared:
        yield shared


@pytest.fixture(scope="session")
def deployed_once(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """Both hosts, converged from nothing in one run of pyinfra: `first` is that run."""
    folder = tmp_path_factory.mktemp("deployed")
    found = Deployed(lab, folder, tiny_model.write(folder / "tiny.gguf"))
    found.first = found.run(counted=True)
    return found


@pytest.fixture(scope="module")
def deployed(deployed_once: Deployed) -> Deployed:
    """Both hosts as the deploy leaves them: whatever the file of tests before did to them is put right."""
    deployed_once.restore()
    return deployed_once
