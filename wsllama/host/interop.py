"""Runs on the host: starts Windows programs from inside a WSL distro, through /init, whatever state interop is in.

Sources: microsoft/WSL, src/linux/init/binfmt.cpp (/init runs a program when given its path and its argv[0], also when binfmt_misc
lost WSL's entry; it asks the socket that WSL_INTEROP names, and says nothing when there is none); cloud-init's DataSourceWSL,
which finds Windows' drive the same way.
"""

import errno
import glob
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping

INIT = "/init"
SOCKETS = "/run/WSL"
# What /init says itself on stderr: <3>WSL (123 - Relay) ERROR: UtilConnectUnix:483: connect failed 111
_OF_INIT = re.compile(rb"^(<3>)?(WSL|init)[: ]+\(\d+[^)]*\) ERROR: ", re.M)


class NoInterop(Exception):
    """Windows programs can't be started, or this one can't: one sentence."""


class Windows:
    """The Windows that this distro runs on. drives: where each letter is mounted, as in {"C": "/mnt/c"}."""

    def __init__(self, drive: str, drives: Mapping[str, str]) -> None:
        self.drive, self.drives = drive, drives
        self.system = f"{drive}/Windows/System32"

    def run(self, program: str, *args: str, timeout: float = 30, cwd: str | None = None) -> tuple[int, bytes, bytes]:
        """Run a program: a name below System32, or an absolute Linux path.

        timeout: in seconds; cwd: a folder on a Windows drive, by default its root, because cmd.exe complains of others.
        Returns exit status, stdout and stderr as they are; `decode` reads them. Raises NoInterop when it did not run or end.
        """
        path = program if program.startswith("/") else f"{self.system}/{program}"
        if not os.path.exists(path):
            raise NoInterop(f"Windows has no {path}")
        said, live = b"", _live()
        for found in live or [""]:
            done = _run([INIT, path, path, *args], timeout, cwd or self.drive, found)
            if not (done.returncode and _is_init(done.stderr, path)) and (live or not done.returncode):
                return done.returncode, done.stdout, done.stderr
            said = said or done.stderr
        raise NoInterop(_why((decode(said).strip().splitlines() or [f"nobody listens on a socket in {SOCKETS}"])[-1]))

    def linux(self, path: str) -> str | None:
        """Where a Windows path such as C:\\Users\\Ada is in the distro; None when its drive isn't mounted."""
        found = re.fullmatch(r"([A-Za-z]):[\\/]*(.*)", path, re.S)
        root = self.drives.get(found[1].upper()) if found else None
        return f"{root.rstrip('/')}/{found[2]}".replace("\\", "/").rstrip("/") if found and root else None

    def windows(self, path: str) -> str | None:
        """What Windows calls a Linux path on one of its drives; None for any other."""
        for letter, root in self.drives.items():
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return f"{letter}:\\" + path[len(root) :].strip("/").replace("/", "\\")
        return None


def find(mounts: str = "/proc/mounts") -> Windows | None:
    """The Windows of this distro, by the drives that are mounted; None when no drive with Windows on it is."""
    drives = dict(_mounted(mounts)) or dict(_automounted())
    for root in drives.values():
        if os.path.exists(f"{root}/Windows/System32/cmd.exe"):
            return Windows(root, drives)
    return None


def decode(data: bytes) -> str:
    """Text of a Windows program, which may be UTF-16LE, UTF-8 or of an old code page; without NULs, marks, carriage returns."""
    wide = data.startswith(b"\xff\xfe") or b"\r\0\n" in data
    if not wide:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:  # text without a line end, in which no byte need be NUL
            wide, text = len(data) % 2 == 0 and _is_wide(data), data.decode("utf-8", "replace")
        wide = wide or (len(data) > 1 and data[1::2].count(0) * 2 > len(data) // 2)
    if wide:
        text = data[: len(data) // 2 * 2].decode("utf-16-le", "replace")
    return text.replace("\0", "").replace("\ufeff", "").replace("\r\n", "\n").replace("\r", "\n")


def blocked() -> str | None:
    """Why no Windows program can be started, as far as that is seen without starting one: one sentence, or None."""
    if not os.path.exists(INIT):
        return _why(f"there is no {INIT}")
    return None if _live() else _why(f"nobody listens on a socket in {SOCKETS}")


def _is_init(said: bytes, path: str) -> bool:
    """Whether this is what /init says when it can't start the program."""
    return bool(_OF_INIT.search(said)) or said.startswith((f"{path}: ".encode(), f"{INIT}: ".encode()))


def _is_wide(data: bytes) -> bool:
    try:
        return data.decode("utf-16-le").isprintable()
    except UnicodeDecodeError:
        return False


def _mounted(mounts: str) -> Iterator[tuple[str, str]]:
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as f:
            lines = f.read().splitlines()
    except OSError:
        return
    for line in lines:
        device, point, kind, options = [_plain(word) for word in line.split()[:4]]
        if kind in ("drvfs", "virtiofs") or (kind == "9p" and "aname=drvfs" in options):
            letter = re.search(r"(?<![A-Za-z])([A-Za-z]):(?=[\\/;,]|$)", f"{device}\n{options}", re.M)
            if letter or re.fullmatch("[A-Za-z]", os.path.basename(point)):
                yield (letter[1] if letter else os.path.basename(point)).upper(), point


def _plain(word: str) -> str:
    """A word of /proc/mounts, in which blanks and backslashes are octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _automounted() -> Iterator[tuple[str, str]]:
    """What lies where WSL mounts drives, by their letters."""
    try:
        with open("/etc/wsl.conf", encoding="utf-8", errors="replace") as f:
            found = re.search(r'^[ \t]*\[automount\][^\[]*?^[ \t]*root[ \t]*=[ \t]*"?([^\s"#]+)', f.read(), re.M | re.I)
    except OSError:
        found = None
    root = (found[1] if found else "/mnt").rstrip("/")
    for path in sorted(glob.glob(f"{root}/[a-z]")):
        yield os.path.basename(path).upper(), path


def _live() -> list[str]:
    """Sockets of interop on which somebody listens, the best first: a session's own, that of systemd's boot, the newest."""
    others = sorted(glob.glob(f"{SOCKETS}/*_interop"), key=_born, reverse=True)
    named = [os.environ.get("WSL_INTEROP", ""), f"{SOCKETS}/1_interop", *others]
    return [path for path in dict.fromkeys(named) if path and _listens(path)]


def _born(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0


def _listens(path: str) -> bool:
    """Sockets of sessions that ended stay in the folder."""
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.settimeout(2)
            s.connect(path)
        except OSError:
            return False
    return True


def _run(command: list[str], timeout: float, cwd: str, interop: str) -> "subprocess.CompletedProcess[bytes]":
    """interop: the socket to ask; empty: /init looks for its parents' sockets."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **({"WSL_INTEROP": interop} if interop else {})}
    try:
        return subprocess.run(
            command, cwd=cwd, env=environment, timeout=timeout, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoInterop(f"{command[1]} did not end within {timeout:g} s") from None
    except FileNotFoundError:
        raise NoInterop(_why(f"there is no {INIT}")) from None
    except OSError as e:
        raise NoInterop(_why(f"{INIT}: {os.strerror(e.errno or errno.EIO)}")) from None


def _why(said: str) -> str:
    return (
        f"Windows programs can't be started from this distro: {said} (is interop off in /etc/wsl.conf, below [interop],"
        " or was the session that it belongs to ended?)"
    )
