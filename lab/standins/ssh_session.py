"""What Windows' OpenSSH server does with a client's command: one string for `cmd.exe /c`, in session 0, in the user's folder."""

from lab.standins import cmd
from lab.standins.machine import Call, Machine


def main(machine: Machine, line: str) -> int:
    """Run a command line. Returns Windows' exit code (32 bits); a session without a command prints cmd's greeting."""
    environment = machine.environment() | {"SESSIONNAME": "Services"}
    path = environment["ComSpec"]
    elevated = machine.config["elevated"] == "yes"  # an administrator's session has all rights, without a prompt
    call = Call(machine, path, [path, "/c", line], machine.profile, environment, elevated)
    call.log()
    return cmd.execute(call, line or "ver")
