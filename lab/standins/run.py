#!/usr/bin/python3 -IS
"""Starts a stand-in, by the name that it was started under.

/init PROGRAM ARGV0 ARGS…              from Linux, by path
/init --binfmt PROGRAM ARGS…           from a program's `#!` line: what the kernel's binfmt entry does
wslpath …, wslinfo …                   links to /init, as in WSL
run.py --windows PROGRAM ARGS…         a program of Windows that was started on Windows (Windows path)
run.py --ssh                           the login shell of Windows' OpenSSH server
"""

import json
import os
import sys

sys.path.insert(0, "/run/lab-windows")

from lab.standins import programs, settings, ssh_session
from lab.standins.interop import init, wslinfo, wslpath
from lab.standins.machine import Call, Machine


def main(argv: list[str]) -> int:
    """Returns the exit code for this process."""
    machine = Machine()
    programs.register()
    name = os.path.basename(argv[0])
    if name in ("wslpath", "wslinfo"):
        return {"wslpath": wslpath, "wslinfo": wslinfo}[name](machine, argv[1:])
    if argv[1:2] == ["--binfmt"]:
        return init(machine, [argv[2], argv[2], *argv[3:]])
    if argv[1:2] == ["--windows"]:
        environment = machine.environment() | {key: os.environ[key] for key in ("WSL_UTF8",) if key in os.environ}
        return Call(machine, argv[2], argv[2:], machine.profile, environment).run() & 0xFF
    if argv[1:2] == ["--restart"]:
        with machine.change() as state:
            settings.apply(machine, state, json.loads(argv[2]))
            state["distros"][machine.config["distro"]]["running"] = True
        return 0
    if argv[1:2] == ["--ssh"]:
        return ssh_session.main(machine, os.environ.get("SSH_ORIGINAL_COMMAND", "")) & 0xFF
    return init(machine, argv[1:])


sys.exit(main(sys.argv))
