"""Labs and their hosts: throw-away machines with a real systemd and a real sshd."""

import os
import pprint
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from lab import base, cgroup, network, registry
from lab.tools import LabError, failure, require_root, run, say, write

# Far beyond what each takes: machines boot beside builds and other labs, and a limit that is too short ends a run of tests.
BOOT_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 300.0
PATIENT = {"timeout": 120, "banner_timeout": 120, "auth_timeout": 120}  # seconds for a connection, as paramiko calls them
# Puts itself into the groups that are named before "--", then becomes the command after it.
ENTER_GROUPS = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 1; shift; done; shift; exec "$@"'


class Host:
    """One machine of a lab.

    + name: its host name, also its name in inventories
    + address: IPv4 address on the lab's bridge
    """

    ssh_user = "root"
    ssh_port = 22

    def __init__(self, record: registry.Record, name: str) -> None:
        self._record = record
        self.name = name
        self.address = record.hosts[name]
        self.folder = record.folder / "hosts" / name
        self.root = self.folder / "root"
        self.key = record.folder / "key"
        self.known_hosts = record.folder / "known_hosts"

    @property
    def leader(self) -> int:
        """Process id of its PID 1, seen from outside. Raises LabError when the machine doesn't run."""
        pid = cgroup.leader(self._record.id, self.name)
        if pid is None:
            raise LabError(f"The machine {self.name} of lab {self._record.id} isn't running: start it first.")
        return pid

    @property
    def running(self) -> bool:
        """True when the machine's PID 1 lives."""
        return cgroup.leader(self._record.id, self.name) is not None

    def ssh_argv(self, user: str = "root") -> list[str]:
        """The ssh command line to this host, without a command; nothing of the user's own ssh setup is used."""
        options = {
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": "60",
            "LogLevel": "ERROR",
        }
        flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return ["ssh", "-F", "/dev/null", "-i", str(self.key), *flags, "-l", user, self.address]

    def run(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        input: str | None = None,
        timeout: float = 600,
        user: str = "root",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host over ssh.

        + command: words, or one string for the host's shell
        + check: raise when the exit code is not 0 (255: ssh itself failed)
        + input: text for its stdin
        + timeout: seconds
        + user: root, deploy (may sudo without a password) or plain (may not)

        Returns the finished process with stdout and stderr as text. Raises LabError (check) or
        subprocess.TimeoutExpired.
        """
        line = command if isinstance(command, str) else shlex.join(command)
        return self._finish([*self.ssh_argv(user), "--", line], check, input, timeout)

    def nsenter(
        self, argv: Sequence[str], *, check: bool = True, input: str | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine's namespaces with this machine's privileges, past ssh. As `run` otherwise."""
        return self._finish(["nsenter", "-t", str(self.leader), "-a", *argv], check, input, timeout)

    def _finish(self, argv: list[str], check: bool, input: str | None, timeout: float) -> subprocess.CompletedProcess[str]:
        feed: dict[str, Any] = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout, **feed)
        if check and done.returncode != 0:
            raise LabError(f"{self.name}: {failure(argv[-1:], done)}")
        return done

    def start(self) -> None:
        """Boot the machine and wait until its system is up and its sshd answers. Nothing is done when it runs.

        Raises LabError when that takes longer than BOOT_TIMEOUT_S; the sentence names the console's log.
        """
        if self.running:
            return
        self._launch()
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        self._wait("start", lambda: self.running, deadline)
        self._wait("finish booting", self._booted, deadline)
        cgroup.delegate(self.leader)
        self._wait("go on with its own groups", self._booted, deadline)  # its systemd began anew, and answers nobody meanwhile
        self._wait("answer on port 22", self._answers, deadline)

    def stop(self, *, kill: bool = False) -> None:
        """Shut the machine down in order, or (kill) as if the power failed. Its disk stays, also seen from outside."""
        pid = cgroup.leader(self._record.id, self.name)
        if pid is not None and not kill:
            os.kill(pid, signal.SIGRTMIN + 4)  # systemd(1): poweroff.target
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while self.running and time.monotonic() < deadline:
                time.sleep(0.05)
        cgroup.remove(self._record.id, self.name)

    def reboot(self) -> None:
        """Shut down and boot again. (`reboot` inside only shuts down: nspawn can't start it again here.)"""
        self.stop()
        self.start()

    def reset(self) -> None:
        """Throw away everything that was changed on the machine and boot it fresh, with the same address and keys."""
        self.stop(kill=True)
        base.harvest_archives(self._record.suite, self._record.machine(self.name))
        run(["umount", self.root])
        shutil.rmtree(self.folder)
        self.prepare()
        self.start()

    def prepare(self) -> None:
        """Mount the machine's disk and write who it is: name, address, keys, resolver."""
        record, upper = self._record, self.folder / "upper"
        for path in (upper, self.folder / "work", self.root):
            path.mkdir(parents=True)
        options = f"lowerdir={record.base},upperdir={upper},workdir={self.folder / 'work'}"
        run(["mount", "-t", "overlay", f"lab-{record.machine(self.name)}", "-o", options, self.root])
        write(self.root / "etc/machine-id", secrets.token_hex(16) + "\n", 0o444)
        write(self.root / "etc/hostname", f"{self.name}\n")
        self.write_names()
        write(self.root / "etc/resolv.conf", resolv_conf())
        # Must sort before Debian's 80-container-host0.network, which asks for DHCP.
        write(
            self.root / "etc/systemd/network/10-lab.network",
            f"[Match]\nName=host0\n\n[Network]\nAddress={self.address}/24\n"
            f"Gateway={network.address(record.subnet, 1)}\nIPv6AcceptRA=no\nLinkLocalAddressing=no\n",
        )
        public = (record.folder / "key.pub").read_text()
        for home, user in (("root", "root"), ("home/deploy", "deploy"), ("home/plain", "plain")):
            self._own_ssh(home, user, public)
        for suffix, mode in (("", 0o600), (".pub", 0o644)):
            text = (record.folder / f"host-{self.name}{suffix}").read_text()
            write(self.root / f"etc/ssh/ssh_host_ed25519_key{suffix}", text, mode)

    def write_names(self) -> None:
        """Tell the machine the names of all hosts of its lab."""
        names = "".join(f"{address} {name}\n" for name, address in self._record.hosts.items())
        write(self.root / "etc/hosts", f"127.0.0.1 localhost\n::1 localhost\n{names}")

    def _own_ssh(self, home: str, user: str, public: str) -> None:
        """authorized_keys of a user, owned by it: sshd refuses it otherwise. Numbers are the machine's own."""
        entries = (line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines())
        uid, gid = next((int(entry[2]), int(entry[3])) for entry in entries if entry[0] == user)
        path = self.root / home / ".ssh/authorized_keys"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write(path, public, 0o600)
        for owned in (path.parent, path):
            os.chown(owned, uid, gid)

    def _launch(self) -> None:
        """Start systemd-nspawn in the machine's own groups, in a session of its own: a signal to ours spares it."""
        record = self._record
        binds = {str(base.seed_archives(record.suite, record.machine(self.name))): "/var/cache/apt/archives"}
        binds |= record.binds
        if record.dxg:
            binds["/dev/null"] = "/dev/dxg"
        groups = cgroup.create(record.id, self.name, record.memory_bytes)
        nspawn = [
            *("systemd-nspawn", "--quiet", "--boot", "--settings=no", "--register=no", "--keep-unit"),
            *("--link-journal=no", "--timezone=off", "--resolv-conf=off", f"--hostname={self.name}"),
            *(f"--machine={record.machine(self.name)}", f"--directory={self.root}"),
            f"--network-bridge={network.bridge_name(record.id)}",
            *(f"--bind={escape(outside)}:{escape(inside)}" for outside, inside in binds.items()),
            *cgroup.nspawn_options(),
        ]
        # Into the groups first: what is forked then is in them from its beginning, so that `stop` finds it at any time.
        enter = ["sh", "-c", ENTER_GROUPS, "sh", *(str(group / "cgroup.procs") for group in groups), "--"]
        with (self.folder / "console.log").open("ab") as log:
            subprocess.run(
                [*enter, "setsid", "--fork", *nspawn],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
                cwd="/",
                # /tmp of Debian 12 and of WSL is on the disk; nspawn's own would be a small tmpfs
                env={**os.environ, "SYSTEMD_NSPAWN_TMPFS_TMP": "0"},
            )

    def _wait(self, what: str, condition: Callable[[], bool], deadline: float) -> None:
        while not condition():
            if time.monotonic() > deadline or not (what == "start" or self.running):
                log = self.folder / "console.log"
                lines = log.read_text(errors="replace").strip().splitlines() or ["(empty)"]
                raise LabError(f"{self.name} didn't {what}: see {log}, whose last line is: {lines[-1]}")
            time.sleep(0.05)

    def _booted(self) -> bool:
        state = run(["nsenter", "-t", str(self.leader), "-a", "systemctl", "is-system-running"], check=False)
        return state.stdout.strip() in ("running", "degraded")

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.address, self.ssh_port), timeout=2) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False


class Lab:
    """Throw-away hosts that are gone when the block ends, or, after a kill, at the next use of any lab.

    + hosts: how many
    + suite: release, `bookworm` or `trixie`; by default this machine's own
    + name: hosts are called <name>-1, <name>-2, …
    + prepared: the hosts have the packages that a deploy installs, which saves its slowest part
    + binds: folder on this machine -> folder in every host, read-write; made when missing
    + memory_bytes: most memory that one host may use
    + internet: False refuses whatever the hosts send beyond the bridge (`set_internet` switches)
    + dxg: a stand-in for WSL's /dev/dxg

    **Example:**

        with Lab(hosts=2, binds={cache / "ccache": "/var/cache/ccache"}) as lab:
            lab.hosts[0].run(["systemctl", "is-system-running"])
            inventory = lab.inventory(tmp_path / "inventory", {"lab-1": {"port": 8081}})
    """

    def __init__(
        self,
        hosts: int = 1,
        suite: str | None = None,
        *,
        name: str = "lab",
        prepared: bool = False,
        binds: Mapping[str | Path, str | Path] | None = None,
        memory_bytes: int | None = None,
        internet: bool = True,
        dxg: bool = False,
    ) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,29}", name):
            raise LabError(f"{name!r} can't start host names: use up to 30 lower-case letters, digits and hyphens.")
        self._count = hosts
        self._suite = suite or base.default_suite()
        self._name = name
        self._prepared = prepared
        self._binds = {str(Path(outside).absolute()): str(inside) for outside, inside in (binds or {}).items()}
        self._memory_bytes = memory_bytes
        self._internet = internet
        self._dxg = dxg
        self._record: registry.Record | None = None
        self.hosts: list[Host] = []

    @classmethod
    def attach(cls, record: registry.Record) -> "Lab":
        """A lab that is there already, from its record."""
        lab = cls(len(record.hosts), record.suite, name=record.name)
        lab._record = record
        lab.hosts = [Host(record, name) for name in record.hosts]
        return lab

    @property
    def record(self) -> registry.Record:
        """What is kept of it on disk. Raises LabError when the lab isn't open."""
        if self._record is None:
            raise LabError("This lab isn't open: use it in a with block.")
        return self._record

    @property
    def id(self) -> str:
        """Six hexadecimal digits that everything of this lab carries in its name."""
        return self.record.id

    def open(self) -> "Lab":
        """Register the lab, make its network, boot its hosts in parallel. Whatever fails, nothing is left behind."""
        require_root()
        for outside in self._binds:
            Path(outside).mkdir(parents=True, exist_ok=True)
        self._record = registry.register(
            self._name,
            self._suite,
            prepared=self._prepared,
            internet=self._internet,
            memory_bytes=self._memory_bytes,
            dxg=self._dxg,
            binds=self._binds,
        )
        try:
            make_key(self.record.folder / "key", f"lab {self.id}")
            self.add(self._count)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Remove everything of the lab. Nothing is done when it isn't open."""
        if self._record is not None:
            registry.remove(self._record)
        self._record, self.hosts = None, []

    def __enter__(self) -> "Lab":
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def host(self, name: str) -> Host:
        """The host with a name. Raises LabError when there is none."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise LabError(f"Lab {self.id} has no host {name!r}: it has {', '.join(h.name for h in self.hosts)}.")

    def add(self, count: int) -> list[Host]:
        """Boot more hosts in parallel; returns them."""
        record, first = self.record, len(self.record.hosts) + 1
        names = [f"{record.name}-{number}" for number in range(first, first + count)]
        for number, name in enumerate(names, first):
            record.hosts[name] = network.address(record.subnet, 10 + number)
            make_key(record.folder / f"host-{name}", name)
        record.save()  # before anything of them is made, so that a sweep finds it
        lines = (f"{address} {(record.folder / f'host-{name}.pub').read_text()}" for name, address in record.hosts.items())
        write(record.folder / "known_hosts", "".join(lines))
        added = [Host(record, name) for name in names]
        for host in self.hosts:
            host.write_names()
        for host in added:
            host.prepare()
        self.hosts += added
        in_parallel(Host.start, added)
        return added

    def reset(self) -> None:
        """`Host.reset` for all hosts at once."""
        in_parallel(Host.reset, self.hosts)

    def set_internet(self, on: bool) -> None:
        """Let the hosts out to the internet, or refuse it at once ("connection refused"), while they run."""
        network.set_internet(self.id, self.record.subnet, on)

    def inventory(
        self, path: Path, data: Mapping[str, Mapping[str, Any]] | None = None, hosts: Iterable[Host] | None = None
    ) -> Path:
        """Write a pyinfra inventory of this lab; it works with and without a suffix.

        + path: file to write
        + data: more data of a host, by its name (literals only)
        + hosts: only these
        """
        chosen = self.hosts if hosts is None else list(hosts)
        entries = [(h.name, {**connection_data(h), **(data or {}).get(h.name, {})}) for h in chosen]
        write(path, f"lab = {pprint.pformat(entries, width=110, sort_dicts=False)}\n")
        return path

    def keep(self) -> None:
        """Leave the lab to the user: it outlives this process, until `python -m lab down`."""
        self.record.keep = True
        self.record.save()


def make_key(path: Path, comment: str) -> None:
    """A fresh key pair without a passphrase: <path> and <path>.pub."""
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])


def connection_data(host: Host) -> dict[str, Any]:
    """What pyinfra needs to reach a host as root."""
    return {
        "ssh_hostname": host.address,
        "ssh_port": host.ssh_port,
        "ssh_user": host.ssh_user,
        "ssh_key": str(host.key),
        "ssh_known_hosts_file": str(host.known_hosts),
        "ssh_strict_host_key_checking": "yes",
        "ssh_paramiko_connect_kwargs": PATIENT,
        "platform": "linux",
    }


def in_parallel(action: Callable[[Host], None], hosts: Sequence[Host]) -> None:
    """Do something with several hosts at once; the first failure is raised when all have ended."""
    with ThreadPoolExecutor(max_workers=max(1, len(hosts))) as pool:
        for done in [pool.submit(action, host) for host in hosts]:
            done.result()


def resolv_conf() -> str:
    """Name servers for a machine: this machine's, or what systemd-resolved asks when it is a loopback address."""
    text = Path("/etc/resolv.conf").read_text()
    real = Path("/run/systemd/resolve/resolv.conf")
    if "nameserver 127." in text and real.exists():
        return real.read_text()
    if "nameserver 127." in text:
        say("/etc/resolv.conf names a loopback address: hosts of the lab may not resolve names")
    return text


def escape(path: str) -> str:
    """A path as systemd-nspawn's --bind wants it: a colon would end it."""
    return path.replace("\\", "\\\\").replace(":", "\\:")


def dump(lab: Lab) -> dict[str, Any]:
    """A lab for programs: what `list --json` and `up --json` print."""
    record = lab.record
    hosts = [
        {
            "name": host.name,
            "address": host.address,
            "ssh_user": host.ssh_user,
            "ssh_port": host.ssh_port,
            "ssh_key": str(host.key),
            "ssh_known_hosts_file": str(host.known_hosts),
            "root": str(host.root),
            "running": host.running,
        }
        for host in lab.hosts
    ]
    inventory = record.folder / "inventory.py"
    return {
        "id": record.id,
        "name": record.name,
        "suite": record.suite,
        "keep": record.keep,
        "inventory": str(inventory) if inventory.exists() else None,
        "hosts": hosts,
    }
