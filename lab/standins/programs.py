"""Which stand-in plays which program of Windows."""

from lab.standins import cmd, netsh, powershell, schtasks, system, wsl
from lab.standins.machine import PROGRAMS


def register() -> None:
    """Let them be found by name."""
    PROGRAMS.update(
        {
            "cmd.exe": cmd.main,
            "wsl.exe": wsl.main,
            "schtasks.exe": schtasks.main,
            "netsh.exe": netsh.main,
            "powercfg.exe": system.powercfg,
            "reg.exe": system.reg,
            "tasklist.exe": system.tasklist,
            "whoami.exe": system.whoami,
            "powershell.exe": powershell.main,
        }
    )
