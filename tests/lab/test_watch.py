"""The GPU watch beside a real llama-server: the GPU is a real library of NVIDIA's name, or a script of its tool."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import nvml
from lab.lab import Host
from tests.lab.deployed import BIN, LIMIT_S, ROOT, Deployed, main_pid, wait_for, wsllama
from tests.lab.test_unit_on_systemd import journal, put

UNIT, SMI, LIBRARY = "llama-watch.service", "/usr/bin/nvidia-smi", "/usr/lib/x86_64-linux-gnu"
LINK = "/var/lib/prometheus/node-exporter/wsllama.prom"
DATA: dict[str, Any] = {"watch": {"enabled": True, "interval_s": 1, "low_utilization_s": 2, "textfile": LINK}}
CARD: dict[str, Any] = {
    "name": "NVIDIA GeForce RTX 4070",
    "total": 12282 << 20,
    "used": 5000 << 20,
    "power": 35200,
    "temperature": 44,
}
# As a field report has it of a laptop (nvidia-smi's CSV): utilisation is not there.
SAID = "#!/bin/sh\necho 'NVIDIA GeForce MX450, 2048 MiB, 11 MiB, [Not Supported], [N/A], 41, 512.78'\n"
# Several, so that the server is at work also between two requests of one.
BUSY = """
import json, threading, urllib.request
body = json.dumps({"prompt": "Once", "n_predict": 2000, "ignore_eos": True}).encode()
def ask():
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8080/completion", body)).read()
        except OSError:
            pass
for _ in range(3):
    threading.Thread(target=ask).start()
"""


class Watched:
    """A host whose watch runs, and its GPU."""

    def __init__(self, deployed: Deployed, host: Host, library: Path) -> None:
        self.deployed, self.host, self.library = deployed, host, library
        self.inventory = deployed.inventory({host.name: DATA}, [host], "watched")

    def gpu(self, **values: Any) -> None:
        nvml.say(Path(f"{self.host.root}{LIBRARY}"), **values)

    def sample(self) -> dict[str, Any]:
        """The newest one; the first comes some time after the deploy."""
        text = wait_for(lambda: self.host.run("cat /run/llama-watch/sample.json", check=False).stdout, "a sample")
        found: dict[str, Any] = json.loads(text)
        return found

    def told(self) -> list[str]:
        """Warnings in the journal, by its own level for them."""
        command = ["journalctl", "-q", "-o", "cat", "-u", UNIT, "-p", "warning", "SYSLOG_IDENTIFIER=python3"]
        return self.host.run(command, check=False).stdout.splitlines()


@pytest.fixture(scope="module")
def watched(deployed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    host = deployed.lab.hosts[0]
    made = Watched(deployed, host, nvml.build(tmp_path_factory.mktemp("nvml")))
    shutil.copy(made.library / nvml.NAME, f"{host.root}{LIBRARY}")
    made.gpu(**CARD, utilization=90)
    server = main_pid(host)
    run = deployed.pyinfra(made.inventory).green()
    assert (run.changed(host.name), main_pid(host)) == (["GPU watch"], server), "the server goes on"
    put(host, "/run/busy.py", BUSY)
    host.run(["systemd-run", "--quiet", "--unit=busy", "/usr/bin/python3", "/run/busy.py"])
    yield made
    host.run(f"systemctl stop busy; rm -f {LIBRARY}/{nvml.NAME}* {SMI} /run/busy.py")


def test_a_gpu_that_works_is_no_warning_and_one_that_rests_is_one(watched: Watched) -> None:
    wait_for(lambda: watched.sample()["working"] and watched.sample()["tokens_per_second"])
    assert (watched.sample()["source"], watched.sample()["gpus"][0]["utilization_percent"]) == ("nvml", 90)
    assert watched.told() == []
    watched.gpu(**CARD, utilization=0)
    wait_for(watched.told)
    before = watched.sample()["at"]
    wait_for(lambda: watched.sample()["at"] >= before + 4)
    (line,) = watched.told()  # still one, some samples later
    assert re.match(r"the GPU was used 0% at most during \d+ s of work: the server computes on the processor", line)
    assert 'wsllama_gpu_warning{kind="utilisation"} 1\n' in watched.host.run(["cat", LINK]).stdout


def test_a_fleet_is_shown_once_and_live(watched: Watched) -> None:
    p = wsllama("watch", str(watched.inventory))
    assert p.returncode == 1, p.stderr
    assert re.search(
        rf"^{watched.host.name} +warns +NVIDIA GeForce RTX 4070 +0% +4\.9 of 12\.0 GiB +35 W +44 °C +[1-3] ", p.stdout, re.M
    )
    assert re.search(rf"^{watched.host.name}: since \d\d:\d\d: the GPU was used 0%", p.stdout, re.M)
    watched.gpu(**CARD, utilization=90)
    wait_for(lambda: not watched.sample()["warnings"])
    said, status = live([str(BIN / "wsllama"), "watch", str(watched.inventory), "--every", "1"], watched.host)
    assert (status, "works" in said) == (0, True)
    wait_for(lambda: watched.sample()["working"])
    document = json.loads(wsllama("watch", str(watched.inventory), "--json").stdout)
    assert document["hosts"][watched.host.name]["state"] == "works"


def live(command: list[str], host: Host) -> tuple[str, int]:
    """What a command shows on a terminal until its connection to the host was cut and is there again, then Ctrl-C; its status."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    with subprocess.Popen(
        command, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    ) as p:
        os.close(slave)
        said, deadline = "", time.monotonic() + 900

        def until(text: str, since: int) -> int:
            nonlocal said
            while text not in said[since:]:
                assert time.monotonic() < deadline, said[-2000:]
                said += os.read(master, 65536).decode(errors="replace")
            return len(said)

        try:
            shown = until("RTX 4070", until("RTX 4070", 0))
            host.nsenter(["pkill", "-f", "^sshd: root@notty"])
            until("RTX 4070", until("no answer", shown))
            p.send_signal(2)
            return said, p.wait(LIMIT_S)
        finally:
            p.kill()
            os.close(master)


def test_what_is_not_reported_is_no_warning(watched: Watched) -> None:
    before = watched.told()
    put(watched.host, SMI, SAID, "0755")
    watched.gpu()  # nothing is supported any more
    wait_for(lambda: watched.sample()["source"] == "nvidia-smi")
    assert watched.sample()["gpus"][0] == {
        "name": "NVIDIA GeForce MX450", "total": 2048 << 20, "used": 11 << 20, "utilization_percent": None, "power_w": None,
        "temperature_c": 41,
    }  # fmt: skip
    watched.host.run(["rm", SMI])
    wait_for(lambda: watched.sample()["source"] == "none")
    assert set(watched.sample()["states"].values()) == {"not reported"}
    assert watched.told() == before
    assert "the GPU is told of by nvidia-smi (NVML: it reports nothing of any GPU)\n" in journal(watched.host, UNIT)


def test_a_second_deploy_has_nothing_to_do_and_without_the_setting_nothing_is_left(watched: Watched) -> None:
    again = watched.deployed.pyinfra(watched.inventory, counted=True).unchanged()
    assert len(again.commands[watched.host.name]) == 2
    p = watched.host.run(["systemd-analyze", "security", "--threshold=20", UNIT], check=False)
    assert p.returncode == 0, p.stdout[-300:]
    run = watched.deployed.run(hosts=[watched.host]).green()
    assert run.changed() == ["GPU watch"]
    left = [
        "/opt/wsllama/watch.py",
        "/opt/wsllama/pynvml.py",
        f"/etc/systemd/system/{UNIT}",
        LINK,
        "/var/lib/wsllama/watch.textfile",
    ]
    assert [path for path in left if watched.host.run(["test", "-e", path], check=False).returncode == 0] == []
