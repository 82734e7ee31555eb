"""A rollout over a fleet of eight; a smaller one stands in test_fleet_build.py, whose three hosts are there already."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import Lab, tiny_model
from lab.base import cache_dir
from tests.lab import rollouts
from tests.lab.deployed import Deployed, answers
from wsllama.domain.rollout import State

pytestmark = pytest.mark.full


def test_eight_hosts_of_which_three_go_wrong(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One fails acceptance, one loses its power in the middle, one is off; those that had it serve again what they served."""
    with Lab(hosts=8, prepared=True, binds={cache_dir() / "ccache": "/var/cache/wsllama/ccache"}) as lab:
        fleet = Deployed(lab, tmp_path_factory.mktemp("eight"), tiny_model.write(tmp_path / "tiny.gguf"))
        fleet.pyinfra(fleet.inventory(), timeout=3600).green()
        bad, lost, off = lab.hosts[3], lab.hosts[4], lab.hosts[5]
        data = {host.name: {"server": {"cache_ram": 517}} for host in lab.hosts}
        inventory = fleet.inventory(data, name="rollout")
        off.stop()
        rollouts.cannot_start_with(bad, "517")
        rollouts.slow_to_start(lost)
        words, report = ("--batch", "4", "--max-failures", "1"), tmp_path / "report.json"
        back = rollouts.apply(fleet, inventory, report, *words, "--on-failure", "rollback", on_line=rollouts.lose(lost))
        expected: dict[str, State] = {host.name: "rolled_back" for host in lab.hosts[:3]}
        expected |= {bad.name: "failed", lost.name: "vanished", off.name: "offline"}
        expected |= {host.name: "waiting" for host in lab.hosts[6:]}
        # the canary, a batch of four; both that go wrong are in it, so the last two are not begun
        assert (back.states, back.returncode) == (expected, 1), back.stderr
        for host in lab.hosts:
            entry = back.report["hosts"][host.name]
            if host in (lost, off):
                continue
            assert answers(host)
            assert entry.get("after", "1") == "1", "what it served before"
        for host in (bad, lost):
            rollouts.as_before(host)
        off.start()
        again = rollouts.apply(fleet, inventory, report, *words)
        assert (set(again.states.values()), again.returncode, again.report["left"]) == ({"done"}, 0, []), again.stderr
        fleet.pyinfra(inventory).unchanged()
