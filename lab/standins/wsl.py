"""wsl.exe: its list, status, version, shutdown, and running a program in the distro, which is this machine itself.

Texts are UTF-16LE without BOM on stdout, unless WSL_UTF8=1 is in its environment; its own errors end with -1.
"""

import os
import pwd
import subprocess

from lab.standins import settings, texts
from lab.standins.machine import Call

FAILED = 0xFFFFFFFF


def say(call: Call, text: str) -> None:
    """Text as wsl.exe writes it."""
    lines = text.replace("\n", "\r\n")
    os.write(1, lines.encode("utf-8" if call.environment.get("WSL_UTF8") == "1" else "utf-16-le"))


def fail(call: Call, message: dict[str, str], code: str) -> int:
    """An error with its code, which no language changes. Returns the exit code."""
    say(call, call.machine.text(message) + call.machine.text(texts.ERROR_CODE).format(code))
    return FAILED


def main(call: Call) -> int:
    """`wsl.exe [OPTIONS] [--exec PROGRAM ARGS… | -- COMMAND…]`."""
    call.log()
    kind = call.machine.config["wsl"]
    in_system32 = call.path.lower().startswith("c:\\windows\\")
    if kind == "missing":
        say(call, call.machine.text(texts.NOT_INSTALLED))
        return 50
    if kind == "store" and in_system32 and call.environment.get("SESSIONNAME") == "Services":
        call.complain(call.machine.text(texts.ALIAS_IN_SESSION_0))
        return 1
    if kind == "stopped":
        return fail(call, texts.SERVICE_DISABLED, "Wsl/0x80070422")
    for names, action in ACTIONS:
        if call.args and call.args[0] in names:
            return action(call)
    return launch(call)


def listing(call: Call) -> int:
    """-l, with -v, -q, --running, --all."""
    distros, options = call.machine.state["distros"], set(call.args[1:])
    shown = {name: one for name, one in distros.items() if one["running"] or not options & {"--running"}}
    if not shown:
        say(call, call.machine.text(texts.NONE_RUNNING))
        return FAILED
    default = call.machine.config["distro"]
    ordered = sorted(shown, key=lambda name: name != default)
    if options & {"-q", "--quiet"}:
        say(call, "".join(f"{name}\n" for name in ordered))
    elif options & {"-v", "--verbose"}:
        width = max(len(name) for name in [*ordered, "NAME"]) + 4
        say(call, f"  {'NAME'.ljust(width)}{'STATE'.ljust(16)}VERSION\n")
        for name in ordered:
            state = "Running" if shown[name]["running"] else "Stopped"
            say(call, f"{'*' if name == default else ' '} {name.ljust(width)}{state.ljust(16)}2\n")
    else:
        say(call, call.machine.text(texts.LIST_HEADING))
        for name in ordered:
            say(call, call.machine.text(texts.LIST_DEFAULT).format(name) if name == default else f"{name}\n")
    return 0


def status(call: Call) -> int:
    say(call, call.machine.text(texts.STATUS).format(call.machine.config["distro"]))
    return 0


def version(call: Call) -> int:
    config = call.machine.config
    say(call, call.machine.text(texts.VERSIONS).format(config["wsl_version"], "6.6.87.2-1", config["windows_version"]))
    return 0


def shutdown(call: Call) -> int:
    """Every distro stops; the virtual machine takes its settings at the next start."""
    with call.machine.change() as state:
        for one in state["distros"].values():
            one["running"] = False
        state["shutdowns"] += 1
    return 0


def terminate(call: Call) -> int:
    with call.machine.change() as state:
        one = state["distros"].get(call.args[1]) if len(call.args) > 1 else None
        if one is not None:
            one["running"] = False
    if one is None:
        return fail(call, texts.DISTRO_NOT_FOUND, "Wsl/Service/WSL_E_DISTRO_NOT_FOUND")
    say(call, call.machine.text(texts.DONE))
    return 0


ACTIONS = (
    (("-l", "--list"), listing),
    (("--status",), status),
    (("-v", "--version"), version),
    (("--shutdown",), shutdown),
    (("-t", "--terminate"), terminate),
)


def launch(call: Call) -> int:
    """-d DISTRO, -u USER, --cd FOLDER, then --exec PROGRAM ARGS… or a line for the user's shell."""
    options, words = {"-d": call.machine.config["distro"], "-u": "root", "--cd": ""}, list(call.args)
    long = {"--distribution": "-d", "--user": "-u"}
    while len(words) > 1 and long.get(words[0], words[0]) in options:
        options[long.get(words[0], words[0])] = words[1]
        words = words[2:]
    if options["-d"].lower() not in [name.lower() for name in call.machine.state["distros"]]:
        return fail(call, texts.DISTRO_NOT_FOUND, "Wsl/Service/WSL_E_DISTRO_NOT_FOUND")
    try:
        user = pwd.getpwnam(options["-u"])
    except KeyError:
        return fail(call, texts.USER_NOT_FOUND, "Wsl/Service/CreateInstance/WSL_E_USER_NOT_FOUND")
    if words and words[0] in ("-e", "--exec"):
        argv = words[1:]
    elif not words:
        argv = [user.pw_shell, "-l"]
    elif words[0] == "--" or not words[0].startswith("-"):
        argv = [user.pw_shell, "-c", " ".join(words[1:] if words[0] == "--" else words)]
    else:
        say(call, call.machine.text(texts.BAD_ARGUMENT).format(words[0]))
        return FAILED
    started(call)
    return run(call, user, argv, options["--cd"])


def started(call: Call) -> None:
    """The distro runs; a machine that was shut down reads .wslconfig now."""
    with call.machine.change() as state:
        if not any(one["running"] for one in state["distros"].values()):
            settings.apply(call.machine, state)
        state["distros"][call.machine.config["distro"]]["running"] = True


def run(call: Call, user: pwd.struct_passwd, argv: list[str], folder: str) -> int:
    """The program in the distro: this call's own streams, byte for byte, and WSL's variables for it."""
    cwd = user.pw_dir if folder == "~" else folder or call.machine.linux_path(call.cwd) or user.pw_dir
    environment = {
        "HOME": user.pw_dir,
        "LANG": "C.UTF-8",
        "LOGNAME": user.pw_name,
        "NAME": "LABPC",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games:/usr/local/games:/usr/lib/wsl/lib:"
        f"{call.machine.drive}/Windows/system32:{call.machine.drive}/Windows",
        "SHELL": user.pw_shell,
        "TERM": "xterm-256color",
        "USER": user.pw_name,
        "WSL2_GUI_APPS_ENABLED": "1",
        "WSLENV": "",
        "WSL_DISTRO_NAME": call.machine.config["distro"],
        "WSL_INTEROP": "/run/WSL/1_interop",
    }
    try:
        done = subprocess.run(argv, cwd=cwd, env=environment, user=user.pw_uid, group=user.pw_gid, extra_groups=[], check=False)
    except OSError as error:
        # init's own message, UTF-8, from inside the distro
        text = f"<3>WSL ({os.getpid()} - Relay) ERROR: CreateProcessCommon:725: execvpe({argv[0]}) failed: {error.strerror}\n"
        os.write(2, text.encode())
        return 1
    return done.returncode if done.returncode >= 0 else 128 - done.returncode
