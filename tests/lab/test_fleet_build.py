"""Three hosts of one kind: one of them compiles, the others receive, and the controller keeps what was made."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Lab, tiny_model
from lab.base import cache_dir
from lab.lab import Host
from tests.lab import rollouts
from tests.lab.deployed import Deployed, Run, answers, wsllama
from wsllama import artifacts

CCACHE = "/var/cache/wsllama/ccache"
LOG = "var/log/wsllama/build.log"  # a host that never compiled has none


class Fleet(Deployed):
    """Three hosts, and a cache on this side that held no build when the first run began."""

    @property
    def kept(self) -> Path:
        return self.cache / "wsllama" / "artifacts"

    def files(self, host: Host) -> dict[str, str]:
        """sha256 of each file of the host's one build, links followed; its build.json has to list just them."""
        (folder,) = (host.root / "opt/wsllama/builds").glob("[!.]*")
        record = json.loads((folder / "build.json").read_text())
        assert record["build_id"] == folder.name
        found = {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*")
            if path.is_file()
        }
        assert {k: v for k, v in found.items() if k != "build.json"} == {k: f["sha256"] for k, f in record["files"].items()}
        return found

    @property
    def artifact(self) -> artifacts.Artifact:
        """The one in the cache, with all its bytes read."""
        (manifest,) = self.kept.glob("*.json")
        found = artifacts.verified(manifest.stem, self.kept)
        assert found
        return found

    def compiled(self) -> list[str]:
        """Hosts that compiled since this was asked last."""
        there = [host for host in self.lab.hosts if (host.root / LOG).exists()]
        for host in there:
            (host.root / LOG).unlink()
        return [host.name for host in there]

    def without_builds(self, *hosts: Host) -> None:
        for host in hosts:
            host.run("rm -rf /opt/wsllama/builds/*")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with Lab(hosts=3, prepared=True, binds={cache_dir() / "ccache": CCACHE}) as lab:
        found = Fleet(lab, folder, tiny_model.write(folder / "tiny.gguf"))
        found.first = found.run()
        yield found


def done(run: Run) -> dict[str, list[str]]:
    """Of the operations that bring a build: on which hosts each changed something."""
    return {
        name.rpartition(" | ")[2]: sorted(o["success"])
        for o in run.results["operations"]
        if (name := o["name"]).rpartition(" | ")[2] in ("what is lacking", "build", "receive")
    }


def test_one_of_three_compiles_and_all_have_the_same(fleet: Fleet) -> None:
    one, *others = fleet.lab.hosts
    assert done(fleet.first.green()) == {
        "what is lacking": [],
        "build": [one.name],
        "receive": [host.name for host in others],
    }, fleet.first.stderr
    assert fleet.compiled() == [one.name]
    assert fleet.files(one) == fleet.files(others[0]) == fleet.files(others[1])
    assert len(fleet.files(one)) > 8
    assert all(answers(host) for host in fleet.lab.hosts)
    assert fleet.artifact.record == json.loads(next(one.root.glob("opt/wsllama/builds/*/build.json")).read_text())
    for host in others:
        assert not list(host.root.glob("opt/wsllama/builds/.*/*.part"))
        assert host.run(["stat", "-c", "%a %U", f"/opt/wsllama/builds/{fleet.artifact.build_id}"]).stdout == "755 root\n"


def test_a_second_run_changes_nothing(fleet: Fleet) -> None:
    fleet.run().unchanged()


@pytest.mark.full
def test_a_rebuilt_machine_skips_the_compile_and_comes_to_the_same(fleet: Fleet, tmp_path: Path) -> None:
    host, other, _ = fleet.lab.hosts
    asked = ("rebuild-check", str(fleet.inventory()), "--limit", host.name)
    p = wsllama(*asked, "--record", str(tmp_path / "before.json"))
    assert p.returncode == 0, p.stderr
    host.reset()
    p = wsllama(*asked, "--against", str(tmp_path / "before.json"))
    assert (p.returncode, p.stderr.splitlines()[-1]) == (1, f"{host.name}: no release is there yet: deploy first")
    assert done(fleet.run().green()) == {"what is lacking": [], "build": [], "receive": [host.name]}
    assert fleet.compiled() == []
    assert fleet.files(host) == fleet.files(other)
    assert answers(host)
    p = wsllama(*asked, "--against", str(tmp_path / "before.json"), "--deep")
    assert p.returncode == 0, p.stdout + p.stderr


@pytest.mark.full
def test_a_damaged_entry_is_refused_and_built_again(fleet: Fleet) -> None:
    one, two, three = fleet.lab.hosts
    fleet.without_builds(one, two, three)
    path, was = fleet.artifact.path, fleet.artifact.sha256
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    run = fleet.run().green()
    assert f"{path} has sha256 {hashlib.sha256(data).hexdigest()} instead of {was}, so it was removed" in run.stderr
    assert done(run) == {"what is lacking": [], "build": [one.name], "receive": [two.name, three.name]}
    assert fleet.compiled() == [one.name]
    assert fleet.artifact.path == path  # it is there again, and right
    assert fleet.files(one) == fleet.files(two)


def test_who_has_it_gives_it_when_the_cache_has_lost_it(fleet: Fleet) -> None:
    one, two, three = fleet.lab.hosts
    build_id, files = fleet.artifact.build_id, fleet.files(one)
    fleet.without_builds(one, three)
    shutil.rmtree(fleet.kept)
    run = fleet.run().green()
    assert f"[{one.name}] build {build_id} is on {two.name}\n" in run.stderr
    assert done(run) == {"what is lacking": [], "build": [], "receive": [one.name, three.name]}
    assert fleet.compiled() == []
    assert fleet.artifact.build_id == build_id
    assert fleet.files(one) == fleet.files(three) == files
    assert run.changed(two.name) == []


def test_a_rollout_says_of_each_host_what_became_of_it_and_goes_on(fleet: Fleet, tmp_path: Path) -> None:
    """One fails acceptance, one loses its power in the middle, one is away from the beginning."""
    one, two, three = fleet.lab.hosts
    data = {host.name: {"server": {"cache_ram": 517}} for host in fleet.lab.hosts}
    inventory = rollouts.with_an_absent_host(fleet.inventory(data, name="rollout"))
    rollouts.cannot_start_with(two, "517")
    rollouts.slow_to_start(three)
    report = tmp_path / "report.json"
    first = rollouts.apply(fleet, inventory, report, "--batch", "4", on_line=rollouts.lose(three))
    expected = {one.name: "done", two.name: "failed", three.name: "vanished", "gone": "offline"}
    assert (first.states, first.returncode) == (expected, 1), first.stderr
    assert "is not accepted: llama-server.service " in first.report["hosts"][two.name]["reason"]
    assert first.report["hosts"][two.name]["reason"].endswith("serves again")
    assert first.report["hosts"][one.name]["bench_after"]["release"] == first.report["hosts"][one.name]["after"]
    assert first.report["left"] == [two.name, three.name, "gone"]
    assert answers(two), "what it served before serves again"
    for host in (two, three):
        rollouts.as_before(host)
    second = rollouts.apply(fleet, inventory, report)
    expected |= {two.name: "done", three.name: "done"}
    assert (second.states, second.returncode, second.report["left"]) == (expected, 4, ["gone"]), second.stderr
    fleet.run(data).unchanged()
    fleet.run().green()


def test_who_waits_for_a_builder_that_fails_names_it(fleet: Fleet) -> None:
    one, two, three = fleet.lab.hosts
    build_id = fleet.artifact.build_id
    fleet.without_builds(one, two)
    shutil.rmtree(fleet.kept)
    one.run("rm -rf /var/cache/wsllama/build && touch /var/cache/wsllama/build")
    # The third has a build of which one byte is wrong, so nobody is given it.
    three.run(f"echo x | dd of=/opt/wsllama/builds/{build_id}/bin/llama-bench bs=1 count=1 conv=notrunc status=none")
    run = fleet.run()
    assert run.returncode == 1
    assert re.search(rf"/bin/llama-bench is not as it was built: .*; it is not taken from {three.name}\n", run.stderr), run.stderr
    assert sorted(run.results["failed_hosts"]) == [one.name, two.name]
    assert run.operations("error", one.name)[0] == "llama.cpp | build"  # pyinfra counts those that it then left out as well
    assert f"[{one.name}] cannot build llama.cpp: [Errno 17] File exists: '/var/cache/wsllama/build'\n" in run.stderr
    assert run.operations("error", two.name)[0] == "llama.cpp | receive"
    assert f"[{two.name}] build {build_id} failed on {one.name}: see there\n" in run.stderr
    assert not list((two.root / "opt/wsllama/builds").glob("[!.]*"))
    assert fleet.compiled() == [one.name]  # it tried, the other didn't
    assert run.changed(three.name) == []
    assert answers(three)
