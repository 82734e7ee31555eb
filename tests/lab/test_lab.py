"""The lab itself: what its hosts are, what binds inside them, and that nothing of it stays."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab import Lab, LabError, cgroup, network, registry
from lab.base import archive, archives_of, cache_dir, default_suite, read_sources, suites

ROOT = Path(__file__).parents[2]
# The arguments: the folder of all labs, which is one of the test's own where other labs must not come to it.
OPEN_AND_WAIT = """
import sys, time
from pathlib import Path
from lab import Lab, registry
registry.STATE = Path(sys.argv[1])
with Lab(hosts=1) as lab:
    print(lab.id, flush=True)
    time.sleep(86400)
"""
COMMAND = """
import sys
from pathlib import Path
from lab import __main__, registry
registry.STATE = Path(sys.argv.pop(1))
sys.exit(__main__.main())
"""


def traces(lab_id: str) -> list[str]:
    """Everything on this machine that carries a lab's id: processes, mounts, links, tables, groups, folders."""
    found = [f"process {pid}" for pid in cgroup.processes(lab_id)]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            if f"--machine={lab_id}-".encode() in words:
                found.append(f"process {folder.name}")
    found += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if lab_id in line]
    found += [f"link {p.name}" for p in Path("/sys/class/net").iterdir() if lab_id in p.name]
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    found += [f"table {line}" for line in tables.splitlines() if lab_id in line]
    found += [f"group {path}" for path in cgroup.groups(lab_id) if path.exists()]
    found += [f"folder {path}" for path in registry.STATE.glob(f"{lab_id}*")]
    found += [f"folder {path}" for path in archives_of("").glob(f"{lab_id}*")]
    return found


def python_m_lab(*words: str) -> subprocess.CompletedProcess[str]:
    """`python -m lab`, with the folder of labs that this process has."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND, str(registry.STATE), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


@pytest.fixture
def orphan(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Id of a lab whose owner was killed with SIGKILL, in a folder of labs of its own: any lab that begins sweeps those of its
    folder, and other tests begin some at any time."""
    monkeypatch.setattr(registry, "STATE", tmp_path / "labs")
    words = [sys.executable, "-c", OPEN_AND_WAIT, str(registry.STATE)]
    owner = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    lab_id = owner.stdout.readline().strip()
    assert lab_id, "the owner ended before its lab was up"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    yield lab_id
    registry.sweep()


# Where the base comes from

DEB822 = """\
Types: deb
URIs: http://off.test/debian
Suites: bookworm
Components: main
Enabled: no

# comment: with a colon
Types: deb
# a comment inside
URIs: http://mirror.test/debian
Suites: bookworm
 bookworm-updates
Components: main
 contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: mirror+file:{mirrors}
Suites: bookworm-security
Components: main
"""
ONE_LINE = """\
# deb http://commented.test/debian bookworm main
deb-src http://source.test/debian bookworm main
deb [arch=amd64 signed-by=/etc/apt/keyrings/vendor.gpg] https://vendor.test/debian bookworm main
deb https://docker.test/linux/debian bookworm stable
deb https://node.test/node_20.x nodistro main
deb cdrom:[Debian]/ bookworm main
"""


def etc_apt(folder: Path, sources: str, lines: str = "") -> Path:
    (folder / "sources.list.d").mkdir(parents=True)
    (folder / "sources.list").write_text(lines)
    (folder / "mirrors").write_text("https://first.test/debian-security\nhttps://second.test/debian-security\n")
    (folder / "sources.list.d/debian.sources").write_text(sources.format(mirrors=folder / "mirrors"))
    (folder / "sources.list.d/old.sources.save").write_text(sources.replace("mirror.test", "backup.test"))
    return folder


def test_the_official_archive_is_found_among_others(tmp_path: Path) -> None:
    mirror, entries = archive(read_sources(etc_apt(tmp_path / "apt", DEB822, ONE_LINE)), "debian", "trixie")
    assert mirror == "http://mirror.test/debian"
    assert [(e.uri, e.suite, e.components) for e in entries] == [
        ("http://mirror.test/debian", "trixie", ("main", "contrib")),
        ("https://first.test/debian-security", "trixie-security", ("main",)),
        ("http://mirror.test/debian", "trixie-updates", ("main", "contrib")),
    ]


def test_one_line_sources_of_ubuntu_are_read(tmp_path: Path) -> None:
    lines = "deb http://mirror.test/ubuntu noble main universe # own\ndeb http://mirror.test/ubuntu noble-security main\n"
    _, entries = archive(read_sources(etc_apt(tmp_path / "apt", "", lines)), "ubuntu", "noble")
    assert [(e.suite, e.components) for e in entries] == [("noble", ("main", "universe")), ("noble-security", ("main",))]


def test_a_machine_without_an_official_archive_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"No official debian archive was found in /etc/apt/sources.list"):
        archive(read_sources(etc_apt(tmp_path / "apt", "", ONE_LINE)), "debian", "bookworm")


# What a host is


def test_a_host_is_a_whole_system_with_sshd(lab: Lab) -> None:
    for host in lab.hosts:
        assert host.run(["systemctl", "is-system-running"]).stdout.strip() == "running"
        assert host.run(["hostname"]).stdout.strip() == host.name
    first, second = lab.hosts
    assert first.run(["cat", "/etc/machine-id"]).stdout != second.run(["cat", "/etc/machine-id"]).stdout
    assert first.run(["getent", "hosts", second.name]).stdout.split()[0] == second.address
    assert f"VERSION_CODENAME={default_suite()}" in first.run(["cat", "/etc/os-release"]).stdout


def test_words_input_and_exit_codes_pass_through_ssh(lab: Lab) -> None:
    host = lab.hosts[0]
    assert host.run(["printf", "%s|", "a b", "$HOME", "'"]).stdout == "a b|$HOME|'|"
    assert host.run("cat; exit 7", input="text\n", check=False).returncode == 7
    with pytest.raises(LabError, match=r"lab-1: .*exit code 3: no luck"):
        host.run("echo no luck >&2; exit 3")


def test_deploy_may_sudo_and_plain_may_not(lab: Lab) -> None:
    host = lab.hosts[0]
    assert host.run(["sudo", "-n", "id", "-un"], user="deploy").stdout.strip() == "root"
    refused = host.run(["sudo", "-n", "id", "-un"], user="plain", check=False)
    assert refused.returncode != 0
    assert "password is required" in refused.stderr


def test_sshd_takes_the_labs_key_and_no_other(lab: Lab, tmp_path: Path) -> None:
    host = lab.hosts[0]
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    argv = [str(tmp_path / "other") if word == str(host.key) else word for word in host.ssh_argv()]
    refused = subprocess.run([*argv, "true"], capture_output=True, text=True, check=False)
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr


def test_a_bound_folder_is_shared_by_all_hosts(lab: Lab) -> None:
    marker = cache_dir() / "ccache" / f"test-{os.getpid()}"
    inside = f"/var/cache/wsllama/ccache/{marker.name}"
    try:
        lab.hosts[0].run(["touch", inside])
        assert marker.exists()
        lab.hosts[1].run(["test", "-f", inside])
    finally:
        marker.unlink(missing_ok=True)


def test_root_is_the_hosts_disk_seen_from_outside(lab: Lab) -> None:
    host = lab.hosts[0]
    host.run("echo inside >/opt/seen")
    assert (host.root / "opt/seen").read_text() == "inside\n"


def test_pyinfra_reaches_the_hosts_through_the_inventory(lab: Lab, tmp_path: Path) -> None:
    path = lab.inventory(tmp_path / "inventory", {"lab-2": {"greeting": "hello"}})
    namespace: dict[str, list[tuple[str, dict[str, object]]]] = {}
    exec(path.read_text(), namespace)
    assert namespace["lab"][1][1]["greeting"] == "hello"
    pyinfra = [sys.executable, "-m", "pyinfra", "-y", str(path), "exec", "--", "hostname"]
    done = subprocess.run(pyinfra, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    assert "[lab-1] lab-1" in done.stdout + done.stderr
    assert "[lab-2] lab-2" in done.stdout + done.stderr


# What binds inside


def test_a_memory_limit_of_a_unit_binds(lab: Lab) -> None:
    eat = ["python3", "-c", "print(len(b'a' * 200_000_000))"]
    small = lab.hosts[0].run(["systemd-run", "--wait", "--pipe", "-p", "MemoryMax=50M", *eat], check=False)
    large = lab.hosts[0].run(["systemd-run", "--wait", "--pipe", "-p", "MemoryMax=500M", *eat], check=False)
    assert small.returncode != 0
    assert "200000000" not in small.stdout
    assert large.stdout.strip() == "200000000", large.stderr


def test_a_device_rule_of_a_unit_binds(lab: Lab) -> None:
    read = ["dd", "if=/dev/net/tun", "of=/dev/null", "count=0"]
    closed = ["systemd-run", "--wait", "--pipe", "-p", "DevicePolicy=closed"]
    refused = lab.hosts[0].run([*closed, *read], check=False)
    assert "Operation not permitted" in refused.stderr
    allowed = lab.hosts[0].run([*closed, "-p", "DeviceAllow=/dev/net/tun rw", *read], check=False)
    assert allowed.returncode == 0, allowed.stderr


@pytest.mark.parametrize("suite", [name for name in suites() if name != default_suite()])
def test_the_other_release_boots_and_its_limits_bind(suite: str) -> None:
    with Lab(hosts=1, suite=suite) as other:
        host = other.hosts[0]
        assert f"VERSION_CODENAME={suite}" in host.run(["cat", "/etc/os-release"]).stdout
        assert host.run(["systemctl", "is-system-running"]).stdout.strip() == "running"
        test_a_memory_limit_of_a_unit_binds(other)
        test_a_device_rule_of_a_unit_binds(other)


def test_memory_of_a_host_and_the_stand_in_for_dxg() -> None:
    eat = "python3 -c \"print(len(b'a' * 400_000_000))\"; echo $?"
    with Lab(hosts=1, memory_bytes=256 * 2**20, dxg=True) as small:
        host = small.hosts[0]
        assert host.run(eat).stdout.strip() == "137"  # 128 + SIGKILL, and no length
        host.run(["test", "-c", "/dev/dxg"])
        hidden = host.run(["systemd-run", "--wait", "-p", "PrivateDevices=yes", "test", "-c", "/dev/dxg"], check=False)
        assert hidden.returncode != 0


# The network


def test_apt_get_works_on_two_hosts_at_once(lab: Lab) -> None:
    def install(number: int) -> str:
        lab.hosts[number].run("apt-get -q update --error-on=any && apt-get install -qy jq", timeout=1800)
        return lab.hosts[number].run("echo '{\"a\": 5}' | jq .a").stdout.strip()

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(install, range(2))) == ["5", "5"]


CONNECT = "import socket; socket.create_connection(('192.0.2.1', 80))"  # an address that nobody has


def test_the_internet_can_be_refused_while_a_host_runs(lab: Lab) -> None:
    host = lab.hosts[0]
    update = ["apt-get", "update", "--error-on=any", "-o", "Acquire::Retries=0"]
    lab.set_internet(False)
    try:
        assert host.run(update, check=False).returncode != 0
        refused = host.run(["python3", "-c", CONNECT], check=False)
        assert refused.returncode != 0
        assert "timed out" not in refused.stderr
        host.run("true")
    finally:
        lab.set_internet(True)
    host.run(update)


# Stopping, starting, starting over


def test_stop_is_an_orderly_shutdown_and_start_brings_the_same_disk(lab: Lab) -> None:
    host = lab.hosts[1]
    host.run(["systemd-run", "--unit=witness", "-p", "ExecStop=touch /var/tmp/stopped", "sleep", "600"])
    host.stop()
    try:
        assert not host.running
        with pytest.raises(LabError, match="port 22"):
            host.run("true")
        with pytest.raises(LabError, match="isn't running"):
            host.nsenter(["true"])
        assert lab.hosts[0].running
    finally:
        host.start()
    host.run(["test", "-f", "/var/tmp/stopped"])


def test_reset_gives_a_clean_host(lab: Lab) -> None:
    host, other = lab.hosts
    for each in lab.hosts:
        each.run("useradd dirt && touch /etc/dirt /var/lib/dirt && rm /etc/debian_version")
    host.reset()
    assert host.run("id dirt; ls /etc/dirt /var/lib/dirt", check=False).stdout == ""
    assert (host.root / "etc/debian_version").exists()
    assert host.run(["systemctl", "is-system-running"]).stdout.strip() == "running"
    other.run(["test", "-f", "/etc/dirt"])
    lab.reset()
    assert other.run(["test", "-f", "/etc/dirt"], check=False).returncode == 1


# Nothing stays


def test_two_labs_at_once_and_nothing_stays(lab: Lab) -> None:
    with Lab(hosts=1, prepared=True) as second:
        second_id = second.id
        assert second.record.subnet != lab.record.subnet
        assert second.hosts[0].run(["hostname"]).stdout == lab.hosts[0].run(["hostname"]).stdout
        assert second.hosts[0].run("cmake --version && dpkg --audit").stdout.startswith("cmake version 3.")
        assert not Path(second.record.base.split(":")[-1], "usr/bin/cmake").exists(), "other hosts begin without it"
        assert len(traces(second_id)) >= 5  # it does look where a lab leaves things
    assert traces(second_id) == []
    lab.hosts[0].run("true")


def test_a_failure_while_opening_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.lab.BOOT_TIMEOUT_S", 0.2)
    monkeypatch.setattr("lab.lab.Host._booted", lambda host: False)
    with pytest.raises(LabError, match=r"lab-1 didn't .*console.log") as caught:
        Lab(hosts=1).open()
    found = re.search(r"/([0-9a-f]{6})/hosts/lab-1/", str(caught.value))
    assert found
    assert traces(found[1]) == []


def test_the_next_lab_sweeps_what_a_killed_one_left(lab: Lab, orphan: str) -> None:
    assert traces(orphan), "the killed owner must leave something, or this test shows nothing"
    with Lab(hosts=1):
        assert traces(orphan) == []
        lab.hosts[0].run("true")


def test_down_sweeps_a_killed_lab_and_spares_the_living(lab: Lab, orphan: str) -> None:
    assert traces(orphan)
    done = python_m_lab("down", orphan)
    assert done.returncode == 0, done.stderr
    assert orphan in done.stderr
    assert traces(orphan) == []
    assert all(host.running for host in lab.hosts)
    lab.hosts[0].run(["apt-get", "-q", "update"])  # its way out is still there


def test_a_reused_process_id_is_not_an_owner(lab: Lab) -> None:
    record = registry.Record(**{**vars(lab.record), "owner_start": "1"})
    assert lab.record.alive
    assert not record.alive
    record.keep = True
    assert record.alive
    record.boot_id = "another boot"
    assert not record.alive


def test_up_list_sh_and_down(lab: Lab) -> None:
    up = python_m_lab("up", "1", "--name", "cli", "--json")
    assert up.returncode == 0, up.stderr
    lab_id = json.loads(up.stdout)["id"]
    try:
        assert json.loads(up.stdout)["hosts"][0]["running"] is True
        assert Path(json.loads(up.stdout)["inventory"]).is_file()
        assert lab_id in {entry["id"] for entry in json.loads(python_m_lab("list", "--json").stdout)}
        assert python_m_lab("sh", "cli-1", "printf", "%s", "a  b").stdout == "a  b"
        assert python_m_lab("sh", "cli-1", "echo $((6 * 7)); exit 9").returncode == 9
        assert python_m_lab("sh", f"{lab.id}/lab-1", "hostname").stdout.strip() == "lab-1"
        registry.sweep()
        assert traces(lab_id), "a lab of `up` outlives its process"
    finally:
        down = python_m_lab("down", lab_id)
    assert down.returncode == 0, down.stderr
    assert traces(lab_id) == []
    assert lab.hosts[0].running


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["up", "0"], "from 1 to 50"),
        (["up", "1", "--suite", "sarge"], "can't build 'sarge' on this machine"),
        (["up", "1", "--name", "a b"], "'a b' can't start host names"),
        (["sh", "nowhere-1"], "no host 'nowhere-1'"),
        (["down", "ffffff"], "no lab 'ffffff'"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], sentence: str) -> None:
    done = python_m_lab(*words)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_ip_forward_is_put_back_by_the_last_lab_and_only_when_a_lab_turned_it_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a registry and a switch of its own: this machine's real switch belongs to the labs that run."""
    switch = tmp_path / "switch"
    monkeypatch.setattr(network, "IP_FORWARD", switch)
    for before in ("0", "1"):
        switch.write_text(before)
        monkeypatch.setattr(registry, "STATE", tmp_path / before)
        with Lab(hosts=1) as first:
            assert switch.read_text().strip() == "1"
            with Lab(hosts=1) as second:
                assert second.id != first.id
            assert switch.read_text().strip() == "1"
        assert switch.read_text().strip() == before
