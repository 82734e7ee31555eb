"""What canned hosts take from a bundle, and what they don't ask for then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.operations import test_op_cuda as cuda_hosts
from tests.operations.fake_hosts import Converge, settings
from tests.operations.test_op_artifacts import A, stage_of
from tests.operations.test_op_release import BUILDS, MACHINE, NAMES, build_id, host
from tests.unit.test_bundle import DEB, fill, flip, hold
from wsllama import artifacts
from wsllama.bundle_maker import Maker
from wsllama.operations import cuda, llama_cpp, preflight
from wsllama.operations.base import Refused
from wsllama.settings import LOCK

PLAN = "python3 -I -S - # debs"
LACKS = {**dict.fromkeys(NAMES, "1"), "cmake": None}
PLANNED = {"# debs": json.dumps({"files": [DEB]})}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A bundle for Debian 12, with a build of the canned host."""
    maker = Maker(tmp_path / "bundle", LOCK, print)
    fill(maker, tmp_path)
    name = build_id(host())
    hold(name)
    maker.build(name)
    maker.finish()
    shutil.rmtree(tmp_path / "cache" / "wsllama" / "artifacts")
    return maker.out


def of(made: Path, **more: Any) -> Any:
    return settings(**{"llama_cpp": {"source": "bundle"}, "bundle": {"path": str(made)}, **more})


def test_a_ready_host_needs_nothing_of_it(converge: Converge, made: Path) -> None:
    for path in made.rglob("*.deb"):
        flip(path)
    got = converge(preflight.ready, of(made), seen=host())
    assert (got.commands, got.probes, got.changed, got.failed) == ([], 1, False, False)


def test_nothing_outside_is_tried(converge: Converge, made: Path) -> None:
    got = converge(preflight.ready, of(made), seen=host(packages=LACKS))
    assert (got.commands, got.failed) == ([], False), got.log


def test_a_bundle_for_another_distro_is_refused(converge: Converge, made: Path) -> None:
    got = converge(preflight.ready, of(made), seen=host(packages=LACKS, system={**MACHINE, "distro": "debian-13"}))
    assert (got.commands, got.failed) == ([], True)
    assert f"the bundle {made} has packages only for debian-12: make it with a host that has debian-13" in got.log


def test_every_wrong_file_that_the_host_needs_is_named_once(converge: Converge, made: Path) -> None:
    paths = [made / "debs" / "debian-12" / DEB, next((made / "sources").iterdir()), *(made / "builds").glob("*.gz")]
    for path in paths:
        flip(path)
    got = converge(preflight.ready, of(made), seen=host(packages=LACKS, builds={BUILDS: {}}))
    assert (got.commands, got.failed) == ([], True)
    for path in paths:
        assert got.log.count(f"{path} has sha256 ") == 1, got.log


def test_packages_are_planned_on_the_host_and_sent(converge: Converge, made: Path) -> None:
    got = converge(llama_cpp.packages, of(made), seen=host(packages=LACKS), answers=PLANNED)
    assert got.commands == [PLAN]
    assert got.sent[0]["packages"] == ["cmake"]
    assert f"./{DEB}" in got.sent[0]["index"]
    assert "1 packages come from the bundle, 0 MB" in got.log
    assert "files can't be sent" in got.log  # to a host that isn't there; the lab's is


def test_a_wrong_package_is_not_sent(converge: Converge, made: Path) -> None:
    flip(made / "debs" / "debian-12" / DEB)
    got = converge(llama_cpp.packages, of(made), seen=host(packages=LACKS), answers=PLANNED)
    assert got.failed
    assert f"{made}/debs/debian-12/{DEB} has sha256 " in got.log
    assert "can't be sent" not in got.log


def test_packages_that_are_there_are_left_alone(converge: Converge, made: Path) -> None:
    got = converge(llama_cpp.packages, of(made), seen=host())
    assert (got.commands, got.changed, got.failed) == ([], False, False)


def test_a_build_of_it_is_sent(converge: Converge, made: Path) -> None:
    got = converge(stage_of(of(made)), hosts=(A,), seen=host(builds={BUILDS: {}}))
    assert got.commands == []
    assert f"build {build_id(host())} comes from this machine" in got.log
    assert not artifacts.default_cache().exists()


def test_a_wrong_build_of_it_is_refused(converge: Converge, made: Path) -> None:
    for path in made.glob("builds/*.tar.gz"):
        flip(path)

    def until_build() -> Any:
        llama_cpp.announce(of(made))
        return llama_cpp.build(of(made))

    got = converge(until_build, hosts=(A,), seen=host(builds={BUILDS: {}}))
    assert (got.commands, got.failed) == ([], True)
    assert f"{made}/builds/{build_id(host())}.tar.gz has sha256 " in got.log


# CUDA


def building(made: Path, **wanted: Any) -> Any:
    more = {"version": "13.0", "compute": ["8.9"], "require_gpu": False, **wanted}
    return of(made, llama_cpp={"backend": "cuda", "source": "bundle"}, cuda=more)


def test_wheels_that_are_not_in_it_are_named(converge: Converge, made: Path) -> None:
    now = cuda_hosts.seen(smi=None)
    wanted = building(made, provider="wheels")
    pin = cuda.wheels_to_bring(now, wanted)
    assert pin
    got = converge(cuda_hosts.toolkit, wanted, seen=now)
    assert (got.commands, got.failed) == ([], True)
    assert "holds no wheels/nvidia_c" in got.log


def test_packages_of_cuda_come_from_it_without_key_or_repository(converge: Converge, made: Path) -> None:
    now = cuda_hosts.seen(smi=None, distro="debian-12")
    got = converge(cuda_hosts.toolkit, building(made, provider="apt"), seen=now, answers=PLANNED)
    assert got.commands == [PLAN]
    assert got.sent[0]["packages"] == [f"{name}={version}" for name, version in cuda_hosts.PINNED.items()]


def test_what_it_brought_is_not_taken_for_the_hosts_own(made: Path) -> None:
    """The build would get another id otherwise, and be made again."""
    root = f"{cuda.LOCAL}/cuda-13.0"
    before = cuda_hosts.seen(smi=None)
    after = cuda_hosts.seen(smi=None, packages=cuda_hosts.PINNED, local={root: cuda_hosts.WHOLE})
    wanted = building(made, provider="apt")
    assert not cuda.toolkit_of(before, wanted).there
    assert cuda.toolkit_of(after, wanted).there
    assert cuda.toolkit_of(after, wanted).versions == cuda.toolkit_of(before, wanted).versions


def test_a_bundle_that_is_gone_is_one_sentence(made: Path) -> None:
    wanted = of(made)
    shutil.rmtree(made)
    with pytest.raises(Refused, match=r"there is no bundle in .*: make it with `wsllama bundle`"):
        llama_cpp.source_of(wanted)
