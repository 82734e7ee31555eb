"""A lab host that plays a WSL machine, and one that plays the Windows machine around it.

The real Windows is simulated at its outermost edge only: programs (lab/standins) that answer as the real ones do and write down
every call. They know nothing of what is tested with them. What each can do, and what not, stands in docs/lab.md.
"""

import base64
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from lab.lab import PATIENT, Host, make_key
from lab.standins.machine import FOLDER, Machine
from lab.standins.settings import BOOT_ID
from lab.tools import LabError, write

STANDINS = Path(__file__).parent / "standins"
RUN = f"{FOLDER}/lab/standins/run.py"
GIB = 1024**3
SYSTEM32 = "Windows/System32"
PROGRAMS = (
    *(f"{SYSTEM32}/{name}.exe" for name in ("cmd", "schtasks", "netsh", "powercfg", "reg", "tasklist", "whoami", "wsl")),
    f"{SYSTEM32}/WindowsPowerShell/v1.0/powershell.exe",
)
MSI_WSL = "Program Files/WSL/wsl.exe"
STARTUP = "AppData/Roaming/Microsoft/Windows/Start Menu/Programs/Startup"
# below FOLDER/proc -> where the distro sees it
SHOWN = {
    "meminfo": "/proc/meminfo",
    "swaps": "/proc/swaps",
    "cpuinfo": "/proc/cpuinfo",
    "osrelease": "/proc/sys/kernel/osrelease",
    "binfmt": "/proc/sys/fs/binfmt_misc",
    "mounts": "/proc/mounts",
}
# /proc/mounts is a link to the reader's own list: mounting over the link itself needs a target that was opened without following.
MOUNT_OVER_LINK = """
import ctypes, os, sys
call = ctypes.CDLL(None, use_errno=True).syscall
OPEN_TREE, MOVE_MOUNT, AT_FDCWD, CLONE, EMPTY_PATHS = 428, 429, -100, 1, 0x44
tree = call(OPEN_TREE, AT_FDCWD, sys.argv[1].encode(), CLONE | os.O_CLOEXEC)
target = os.open(sys.argv[2], os.O_PATH | os.O_NOFOLLOW)
if tree < 0 or call(MOVE_MOUNT, tree, b"", target, b"", EMPTY_PATHS) < 0:
    sys.exit(f"cannot mount over {sys.argv[2]}: {os.strerror(ctypes.get_errno())}")
"""


@dataclass(frozen=True)
class Call:
    """One start of a stand-in.

    + program: file name, lower case
    + argv: command line as words, the program's own name first
    + cwd: Windows path
    + elevated: ran with an administrator's rights
    + stdin: what it read of its stdin
    + files: name -> bytes of a script and the JSON beside it
    """

    program: str
    argv: list[str]
    cwd: str
    elevated: bool
    stdin: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)


class WslMachine:
    """A running lab host as WSL's distro, with the programs of its Windows machine; all is undone when the block ends.

    + host: a lab host that runs; don't reboot or reset it inside the block
    + distro: its name
    + user, domain: the Windows user
    + folder: its folder below Users, the profile; by default the user's name
    + profiles: the folders below Users that are there, beside Public, Default and the like; by default that one
    + interop: "works"; "no-binfmt" (programs start through /init only), "dead-socket" (1_interop is dead, another socket lives),
      "dead-sockets" (none lives), "off" (interop.enabled=false: no socket, no program starts)
    + language: of Windows, which decides texts and code page
    + networking_mode: where .wslconfig says nothing
    + memory_bytes, processors: of the Windows machine
    + elevated: what a UAC prompt meets: "yes", "cancelled", "nobody" (no desktop)
    + schtasks: "denied" lets no task be registered without an administrator's rights
    + powershell: "blocked" lets no script file run, whatever the arguments
    + root: automount.root of wsl.conf; the drive is <root>/c
    + drive_bytes: size of the C: drive
    + filesystem: how /proc/mounts shows the drive, "9p" or "virtiofs"
    + wsl: "msi"; "store" (only the alias in System32, which fails in session 0), "missing", "stopped" (service disabled)
    + others: further distros, name -> running
    + scripts: whole outcomes of PowerShell scripts by file name (lab/standins/powershell.py)
    + plays: Python files that play a PowerShell script, by the script's file name (the same)
    """

    def __init__(
        self,
        host: Host,
        *,
        distro: str = "Ubuntu-24.04",
        user: str = "Ada",
        domain: str = "LABPC",
        folder: str | None = None,
        profiles: Sequence[str] | None = None,
        interop: Literal["works", "off", "no-binfmt", "dead-socket", "dead-sockets"] = "works",
        language: Literal["en", "de", "zh"] = "en",
        networking_mode: str = "nat",
        memory_bytes: int = 32 * GIB,
        processors: int = 8,
        elevated: Literal["yes", "cancelled", "nobody"] = "yes",
        schtasks: Literal["works", "denied"] = "works",
        powershell: Literal["works", "blocked"] = "works",
        root: str = "/mnt",
        drive_bytes: int = 64 * 1024**2,
        filesystem: Literal["9p", "virtiofs"] = "9p",
        wsl: Literal["msi", "store", "missing", "stopped"] = "msi",
        others: Mapping[str, bool] | None = None,
        scripts: Mapping[str, Mapping[str, Any]] | None = None,
        plays: Mapping[str, Path] | None = None,
    ) -> None:
        self.host = host
        self.drive = f"{root.rstrip('/')}/c"
        folder = folder or user
        self.profile = f"{self.drive}/Users/{folder}"
        self.profile_windows = f"C:\\Users\\{folder}"
        self._root, self._profiles, self._interop = root, (folder,) if profiles is None else tuple(profiles), interop
        self._drive_bytes, self._filesystem = drive_bytes, filesystem
        self._distros = {distro: True, **(others or {})}
        self._config = {
            "distro": distro,
            "domain": domain,
            "drive": self.drive,
            "elevated": elevated,
            "folder": folder,
            "language": language,
            "memory_bytes": memory_bytes,
            "networking_mode": networking_mode,
            "powershell": powershell,
            "processors": processors,
            "schtasks": schtasks,
            "scripts": {name: dict(one) for name, one in (scripts or {}).items()},
            "sid": "S-1-5-21-1004336348-1177238915-682003330-1001",
            "user": user,
            "windows_version": "10.0.26200.8120",
            "wsl": wsl,
            "wsl_version": "2.7.9.0",
        }
        self._has_binfmt = interop in ("works", "dead-socket", "dead-sockets")
        self._boot_id = ""
        self._plays = dict(plays or {})
        self._leader = 0
        self._mounted: list[str] = []
        self._sockets: list[socket.socket] = []
        self._wslconf: bytes | None = None

    @property
    def seen(self) -> Path:
        """The host's file system as it sees it itself, with its mounts, from this machine."""
        return Path(f"/proc/{self._leader}/root")

    def path(self, inside: str) -> Path:
        """A path of the host, from this machine."""
        return self.seen / inside.lstrip("/")

    def __enter__(self) -> "WslMachine":
        self._leader = self.host.leader
        if self.path(str(FOLDER)).exists():
            raise LabError(f"{self.host.name} plays a WSL machine already: end that block first.")
        try:
            self._install()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _install(self) -> None:
        conf = self.path("etc/wsl.conf")
        self._wslconf = conf.read_bytes() if conf.exists() else None
        if self._root != "/mnt":
            write(conf, f"[automount]\nroot={self._root}\n")
        self._install_programs()
        self._install_drive()
        self._install_sockets()
        self._install_proc()

    def _install_programs(self) -> None:
        """The stand-ins, their configuration and state, and the three programs of Linux: /init and two links to it."""
        folder = self.path(str(FOLDER))
        for source in STANDINS.glob("*.py"):
            write(folder / "lab/standins" / source.name, source.read_text(), 0o755)
        for script, play in self._plays.items():
            write(folder / "plays" / f"{script}.py", play.read_text())
        (folder / "proc").mkdir()
        folder.chmod(0o777)  # programs of any user change the state
        for name in ("meminfo", "cpuinfo"):
            write(folder / f"proc/{name}.real", self.path(f"proc/{name}").read_text())
        write(folder / "config.json", json.dumps(self._config))
        write(folder / "state.json", json.dumps(self._first_state()), 0o666)
        write(folder / "lock", "", 0o666)
        write(folder / "calls.jsonl", "", 0o666)
        write(self.path("init"), (STANDINS / "run.py").read_text(), 0o755)
        for name in ("wslpath", "wslinfo"):
            self.path(f"usr/bin/{name}").symlink_to("/init")

    def _first_state(self) -> dict[str, Any]:
        return {
            "distros": {name: {"running": running} for name, running in self._distros.items()},
            "firewall": [],
            "hyperv_rules": [],
            "portproxy": [],
            "power": {"standby": [1800, 900], "hibernate": [0, 0], "lid": [1, 1]},
            "processes": [],
            "registry": {
                r"HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Control\Session Manager\Power": {
                    "HiberbootEnabled": ["REG_DWORD", "0x1"]
                }
            },
            "shutdowns": 0,
            "started_tasks": [],
            "tasks": {},
            "vm": {},
        }

    def _install_drive(self) -> None:
        """C: with its programs and the users' folders, on a file system of its own so that it can be full."""
        self.path(self.drive).mkdir(parents=True, exist_ok=True)
        self._nsenter("mount", "-t", "tmpfs", "-o", f"size={self._drive_bytes},mode=0777", "lab-drive", self.drive)
        self._mounted.append(self.drive)
        drive = self.path(self.drive)
        # Where Linux starts Windows' programs through binfmt_misc the kernel runs /init with them; else it sees foreign bytes.
        program = b"#!/init --binfmt\n" if self._has_binfmt else b"MZ\x90\0" + bytes(508)
        for name in [*PROGRAMS, *([MSI_WSL] if self._config["wsl"] in ("msi", "stopped") else [])]:
            file = drive / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(program)
            file.chmod(0o777)
        users = drive / "Users"
        for name in ("Public", "Default", *self._profiles):
            (users / name / STARTUP).mkdir(parents=True)
            (users / name / "AppData/Local/Temp").mkdir(parents=True)
            (users / name / "NTUSER.DAT").write_bytes(b"regf")
        (drive / "ProgramData").mkdir()
        (users / "All Users").symlink_to(f"{self.drive}/ProgramData")
        (users / "Default User").symlink_to(f"{self.drive}/Users/Default")

    def _install_sockets(self) -> None:
        """Interop sockets: 1_interop is what services find; a socket whose file stayed when its listener ended is dead."""
        folder = self.path("run/WSL")
        folder.mkdir()
        alive = {"works": ["1"], "no-binfmt": ["1"], "dead-socket": ["412"]}.get(self._interop, [])
        dead = {"dead-socket": ["1"], "dead-sockets": ["1", "412"]}.get(self._interop, [])
        for name in [*dead, *alive]:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(folder / f"{name}_interop"))
            (folder / f"{name}_interop").chmod(0o777)
            if name in dead:
                listener.close()
                continue
            listener.listen(64)
            self._sockets.append(listener)
            threading.Thread(target=accept_all, args=(listener,), daemon=True).start()

    def _install_proc(self) -> None:
        """What the distro sees of its virtual machine, and that /mnt/c is a drive of Windows."""
        folder = self.path(f"{FOLDER}/proc")
        write(folder / "osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
        self._boot_id = self.path(str(BOOT_ID)).read_text()
        (folder / "binfmt").mkdir()
        if self._has_binfmt:
            write(folder / "binfmt/WSLInterop", "enabled\ninterpreter /init\nflags: PF\noffset 0\nmagic 4d5a\n")
        shown = self.path("proc/1/mounts").read_text().splitlines()
        lines = [line for line in shown if line.split(" ")[1] != self.drive]
        write(folder / "mounts", "\n".join([*lines, self._drive_line()]) + "\n")
        self._mounted += SHOWN.values()
        self.restart()
        binds = "".join(f"mount --bind {name} {target}; " for name, target in SHOWN.items() if name != "mounts")
        # systemd-nspawn mounted a file over the boot id that nothing can be mounted over: it is written to instead.
        script = f'set -e; cd "$1"; {binds} mount -o remount,bind,rw {BOOT_ID}; python3 -IS -c "$2" mounts {SHOWN["mounts"]}'
        self._nsenter("sh", "-c", script, "sh", f"{FOLDER}/proc", MOUNT_OVER_LINK)

    def _drive_line(self) -> str:
        if self._filesystem == "virtiofs":
            return f"drvfsC {self.drive} virtiofs rw,noatime 0 0"
        options = (
            f"rw,noatime,aname=drvfs;path=C:\\;uid=1000;gid=1000;symlinkroot={self._root.rstrip('/')}/,cache=5,access=client"
        )
        return f"C:\\134 {self.drive} 9p {options},msize=65536,trans=fd,rfd=5,wfd=5 0 0"

    def _nsenter(self, *argv: str) -> None:
        self.host.nsenter(list(argv))

    def _remove(self) -> None:
        """Take all of it out again. A host that was stopped in between has lost its mounts itself."""
        for listener in self._sockets:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._sockets.clear()
        if self.host.running and self.host.leader == self._leader:
            if self._boot_id:
                self._nsenter(
                    "sh", "-c", f'echo "$1" >{BOOT_ID}; mount -o remount,bind,ro {BOOT_ID}', "sh", self._boot_id.strip()
                )
            # What was to be mounted may not be, when setting up failed in the middle.
            script = f'for target; do umount -lq "$target" || :; done; rm -rf {FOLDER} /run/WSL'
            self._nsenter("sh", "-c", script, "sh", *reversed(self._mounted))
        self._mounted.clear()
        disk = self.host.root
        for name in ("init", "usr/bin/wslpath", "usr/bin/wslinfo"):
            (disk / name).unlink(missing_ok=True)
        with suppress(OSError):
            (disk / self.drive.lstrip("/")).rmdir()
        conf = disk / "etc/wsl.conf"
        if self._wslconf is None:
            conf.unlink(missing_ok=True)
        else:
            conf.write_bytes(self._wslconf)

    def restart(self, values: Mapping[str, Any] | None = None) -> None:
        """`wsl --shutdown` and a new start: what WSL reads in .wslconfig shows in /proc/meminfo, swaps, cpuinfo and wslinfo,
        and the kernel's boot id is another one.

        + values: "memory" and "swap" in bytes, "processors", "networking_mode"; those left out are read from the user's file
          by the lab's own small reader, which knows plain files
        """
        self._nsenter("python3", "-IS", RUN, "--restart", json.dumps(dict(values or {})))

    def calls(self, program: str | None = None) -> list[Call]:
        """Every start of a stand-in since the last `forget`, or those of one program."""
        whole, _, _ = self.path(f"{FOLDER}/calls.jsonl").read_text().rpartition("\n")  # behind it stands what is being written
        found = [json.loads(line) for line in whole.splitlines()]
        return [
            Call(
                one["program"],
                one["argv"],
                one["cwd"],
                one["elevated"],
                base64.b64decode(one["stdin"]),
                {name: base64.b64decode(data) for name, data in one["files"].items()},
            )
            for one in found
            if program in (None, one["program"])
        ]

    def forget(self) -> None:
        """Start the list of calls again."""
        self.path(f"{FOLDER}/calls.jsonl").write_text("")

    def state(self) -> dict[str, Any]:
        """The Windows side: tasks (name -> XML as it was registered), portproxy, firewall, hyperv_rules, startup, distros, …"""
        state: dict[str, Any] = json.loads(self.path(f"{FOLDER}/state.json").read_text())
        state["tasks"] = {name: base64.b64decode(data) for name, data in state["tasks"].items()}
        state["startup"] = sorted(file.name for file in self.path(f"{self.profile}/{STARTUP}").iterdir())
        return state

    @contextmanager
    def change(self) -> Iterator[dict[str, Any]]:
        """The raw state to change by hand: somebody else's rule, a task (base64), "power", "processes", "registry"."""
        with Machine(self.path(str(FOLDER))).change() as state:
            yield state

    def lock(self, inside: str) -> None:
        """Nothing may write, replace or remove a file, as when a Windows program holds it; `unlock` ends that."""
        self._nsenter("chattr", "+i", inside)

    def unlock(self, inside: str) -> None:
        """Undo `lock`."""
        self._nsenter("chattr", "-i", inside)

    def fill(self, left: int = 0) -> None:
        """Use up the C: drive but for so many bytes."""
        with self.path(f"{self.drive}/pagefile.sys").open("wb") as stream:
            room = os.fstatvfs(stream.fileno())
            os.posix_fallocate(stream.fileno(), 0, room.f_bavail * room.f_frsize - left)

    def controller_wsl_exe(self, folder: Path) -> Path:
        """Write a `wsl.exe` for this machine, which then is a Windows machine (or a distro beside) in front of the same distro.

        + folder: where to; put it first on PATH

        Returns its path. Bytes of stdin and stdout pass unchanged.
        """
        path = folder / "wsl.exe"
        windows = "C:\\Program Files\\WSL\\wsl.exe"
        text = f"#!/bin/sh\nexec nsenter -t {self._leader} -a /usr/bin/python3 -IS {RUN} --windows '{windows}' \"$@\"\n"
        write(path, text, 0o755)
        return path


class WindowsMachine(WslMachine):
    """The Windows machine itself: Windows' OpenSSH server on a port of its own, in front of the same distro.

    It takes the same key as the host's own sshd. Its arguments are those of WslMachine.
    """

    ssh_user = "root"
    ssh_port = 2200
    _unit = "lab-windows-sshd"

    @property
    def address(self) -> str:
        """IPv4 address."""
        return self.host.address

    @property
    def known_hosts(self) -> Path:
        """A file with its host key, which isn't the distro's."""
        return self.host.folder / "windows_known_hosts"

    def __enter__(self) -> "WindowsMachine":
        super().__enter__()
        return self

    def _install(self) -> None:
        super()._install()
        key = self.host.folder / "windows_key"
        make_key(key, "windows")
        write(self.known_hosts, f"[{self.address}]:{self.ssh_port} {key.with_suffix('.pub').read_text()}")
        write(self.path(f"{FOLDER}/ssh_host_key"), key.read_text(), 0o600)
        options = {
            "Port": str(self.ssh_port),
            "HostKey": f"{FOLDER}/ssh_host_key",
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "PrintMotd": "no",
            "ForceCommand": f"exec /usr/bin/python3 -IS {RUN} --ssh",
        }
        write(self.path(f"{FOLDER}/sshd_config"), "".join(f"{name} {value}\n" for name, value in options.items()))
        start = ("systemd-run", "--quiet", "--collect", f"--unit={self._unit}")
        self._nsenter(*start, "--property=Type=notify", "/usr/sbin/sshd", "-D", "-f", f"{FOLDER}/sshd_config")

    def _remove(self) -> None:
        if self.host.running and self.host.leader == self._leader:
            self.host.nsenter(["systemctl", "stop", self._unit], check=False)
        for name in ("windows_key", "windows_key.pub", "windows_known_hosts"):
            (self.host.folder / name).unlink(missing_ok=True)
        super()._remove()

    def connection_data(self) -> dict[str, Any]:
        """What pyinfra's ssh connector needs to reach it."""
        return {
            "ssh_hostname": self.address,
            "ssh_port": self.ssh_port,
            "ssh_user": self.ssh_user,
            "ssh_key": str(self.host.key),
            "ssh_known_hosts_file": str(self.known_hosts),
            "ssh_strict_host_key_checking": "yes",
            "ssh_paramiko_connect_kwargs": PATIENT,
        }

    def ssh(self, line: str, *, input: bytes = b"", timeout: float = 600) -> subprocess.CompletedProcess[bytes]:
        """Send one command line as an ssh client does; bytes in and out, the exit code's lowest 8 bits."""
        argv = [word.replace(str(self.host.known_hosts), str(self.known_hosts)) for word in self.host.ssh_argv(self.ssh_user)]
        return subprocess.run(
            [*argv, "-p", str(self.ssh_port), "--", line], input=input, capture_output=True, timeout=timeout, check=False
        )


def accept_all(listener: socket.socket) -> None:
    """Take connections until the socket is closed: a client only has to find somebody there."""
    with suppress(OSError):
        while True:
            listener.accept()[0].close()
