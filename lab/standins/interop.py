"""/init, wslpath and wslinfo, as src/linux/init of microsoft/WSL has them (binfmt.cpp, util.cpp, wslpath.cpp, wslinfo.cpp).

Two things of the real /init that are easily missed:

- `/init PROGRAM ARGS…` takes its second word as argv[0] of the program (binfmt's P flag), so the first argument is lost to it:
  `/init PROGRAM PROGRAM ARGS…` is the call that works (WSL#8261). cmd.exe alone finds its switches in the whole command line.
- Without an interop socket it says nothing and ends with 1.
"""

import os
import socket
import sys

from lab.standins.machine import Call, Machine

SOCKETS = "/run/WSL"


def init(machine: Machine, argv: list[str]) -> int:
    """Start a Windows program.

    + argv: path of the program, its argv[0], its arguments
    """
    if len(argv) < 2 or not _connect():
        return 1
    path = os.path.realpath(argv[0])
    words = [os.path.basename(argv[1]) if argv[0] == argv[1] else argv[1], *argv[2:]]
    # The service passes a folder on the drive, or the share of the distro.
    cwd = machine.windows_path(os.getcwd())
    if not path.startswith(machine.drive + "/") or not os.path.exists(path):
        print(f"{argv[0]}: Invalid argument", file=sys.stderr)
        return 1
    call = Call(machine, machine.windows_path(path), words, cwd, machine.environment() | _shared())
    # Exit codes of Windows have 32 bits; a Linux program's parent sees the lowest 8.
    return call.run() & 0xFF


def _shared() -> dict[str, str]:
    """The variables that WSLENV names: nothing else of the Linux environment reaches a Windows program."""
    names = [entry.split("/")[0] for entry in os.environ.get("WSLENV", "").split(":")]
    return {name: os.environ[name] for name in names if name in os.environ}


def _connect() -> bool:
    """Reach the interop server: by WSL_INTEROP when that exists, else by the nearest parent's socket."""
    path = os.environ.get("WSL_INTEROP")
    if path is None or not os.path.exists(path):
        parent = os.getppid()
        while parent > 0:
            if os.path.exists(f"{SOCKETS}/{parent}_interop"):
                path = f"{SOCKETS}/{parent}_interop"
                break
            parent = _parent(parent)
    if path is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(path)
        except OSError as error:
            print(f"<3>WSL ({os.getpid()} - ) ERROR: UtilConnectUnix:526: connect failed {error.errno}", file=sys.stderr)
            return False
    return True


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return int(stream.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


PATH_USAGE = """wslpath usage:
    -a    force result to absolute path format
    -u    translate from a Windows path to a WSL path (default)
    -w    translate from a WSL path to a Windows path
    -m    translate from a WSL path to a Windows path, with '/' instead of '\\'"""


def wslpath(machine: Machine, argv: list[str]) -> int:
    """Translate one path; options may stand together, as in -au."""
    flags = "".join(word[1:] for word in argv if word.startswith("-"))
    paths = [word for word in argv if not word.startswith("-")]
    modes = set(flags) & set("uwm")
    if len(paths) != 1 or set(flags) - set("auwm") or len(modes) > 1:
        print("wslpath: Invalid argument", file=sys.stderr)
        print(PATH_USAGE)
        return 1
    if modes & {"w", "m"}:
        found: str | None = machine.windows_path(os.path.normpath(os.path.join(os.getcwd(), os.path.realpath(paths[0]))))
    else:
        windows = paths[0].replace("/", "\\")
        if not (windows[1:3] == ":\\" or windows.startswith("\\\\")):
            windows = machine.windows_path(os.getcwd()).rstrip("\\") + "\\" + windows
        found = machine.linux_path(windows)
    if found is None:
        print(f"wslpath: {paths[0]}: Invalid argument", file=sys.stderr)
        return 1
    print(found.replace("\\", "/") if "m" in modes else found)
    return 0


def wslinfo(machine: Machine, argv: list[str]) -> int:
    """--networking-mode, --wsl-version (or --version), --vm-id; -n leaves the line's end out."""
    vm = machine.state["vm"]
    answers = {
        "--networking-mode": vm["networking_mode"],
        "--wsl-version": machine.config["wsl_version"],
        "--version": machine.config["wsl_version"],
        "--vm-id": "{4F9E2B0C-7D14-4C57-9A36-7D1A5C2E8B11}",
    }
    wanted = [word for word in argv if word != "-n"]
    if len(wanted) != 1 or wanted[0] not in answers:
        print("Usage: wslinfo [--networking-mode|--msal-proxy-path|--vm-id|--wsl-version] [-n]", file=sys.stderr)
        return 1
    print(answers[wanted[0]], end="" if "-n" in argv else "\n")
    return 0
