"""cmd.exe: switches, the rule for quotes behind /C, %VARIABLES%, & && ||, > and a few commands of its own.

Also what the login shell of Windows' OpenSSH server does with the one string that a client sends.
"""

import os
import re
import subprocess

from lab.standins import texts
from lab.standins.machine import Call, insensitive

WINDOWS_VERSION = "10.0.26200.8120"


def main(call: Call) -> int:
    """`cmd.exe [/U] [/D] [/Q] [/S] /C COMMAND`: without /C or /K it would be interactive, and ends here."""
    call.log()
    line = subprocess.list2cmdline(call.words)
    # It looks for switches in its whole command line; only a first word that isn't one is its own name.
    position = 0 if line.startswith("/") else re.match(r'"[^"]*"|\S*', line).end()  # type: ignore[union-attr]
    command, keep_quotes = None, True
    while switch := re.compile(r"\s*/([A-Za-z?])(:\S*)?").match(line, position):
        position, letter = switch.end(), switch[1].lower()
        call.unicode |= letter == "u"
        keep_quotes &= letter != "s"
        if letter in "ckr":
            command = line[position:].lstrip()
            break
    if call.cwd.startswith("\\\\"):
        call.complain(call.machine.text(texts.UNC_BANNER).format(call.cwd))
        call.cwd = "C:\\Windows"
    return execute(call, strip_quotes(call, command, keep_quotes)) if command else 0


def strip_quotes(call: Call, command: str, keep_quotes: bool) -> str:
    """Behind /C (cmd /?): quotes stay when there are exactly two around a program's path, else first and last go."""
    if not command.startswith('"'):
        return command
    inner = command[1:].partition('"')[0]
    plain = command.count('"') == 2 and not set("&<>()@^|") & set(inner) and " " in inner
    if keep_quotes and plain and call.find(inner):
        return command
    first, last = command.find('"'), command.rfind('"')
    return command[first + 1 : last] + command[last + 1 :] if last > first else command[1:]


def execute(call: Call, line: str) -> int:
    """Run one line; returns the exit code of its last command."""
    names = {name.lower(): value for name, value in call.environment.items()}
    line = re.sub(r"%([^%=\s]+)%", lambda found: names.get(found[1].lower(), found[0]), line)
    code, before = 0, "&"
    for command, operator in split(line):
        if operator == "|":
            call.complain("lab: this cmd.exe has no pipes\n")
            return 97
        if not ((before == "&&" and code) or (before == "||" and not code)):
            code = one(call, command)
        before = operator
    return code


def split(line: str) -> list[tuple[str, str]]:
    """A line's commands, each with the operator behind it; none of them counts inside quotes or behind ^."""
    found, word, quoted, position = [], "", False, 0
    while position < len(line):
        letter = line[position]
        operator = re.compile(r"&&|\|\||&|\|").match(line, position)
        if letter == "^" and not quoted:
            word += line[position + 1 : position + 2]
            position += 2
        elif operator and not quoted:
            found.append((word, operator[0]))
            word, position = "", operator.end()
        else:
            quoted ^= letter == '"'
            word += letter
            position += 1
    return [*found, (word, "")]


def one(call: Call, command: str) -> int:
    """Run one command, with its redirections to files or NUL."""
    command, targets = redirections(command.lstrip())
    saved = {number: os.dup(number) for number in targets}
    try:
        for number, (target, append) in targets.items():
            path = "/dev/null" if target.lower() == "nul" else call.machine.linux_path(target)
            if path is None:
                call.complain(call.machine.text(texts.PATH_NOT_FOUND))
                return 1
            flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
            descriptor = os.open(path, flags, 0o666)
            os.dup2(descriptor, number)
            os.close(descriptor)
        return command_of(call, command)
    finally:
        for number, descriptor in saved.items():
            os.dup2(descriptor, number)
            os.close(descriptor)


def redirections(command: str) -> tuple[str, dict[int, tuple[str, bool]]]:
    """Take `>FILE`, `2>FILE`, `>>FILE` out of a command: what is left, and file (and whether to append) a stream."""
    targets: dict[int, tuple[str, bool]] = {}

    def take(found: re.Match[str]) -> str:
        if found["quoted"]:
            return found[0]
        targets[int(found["number"] or 1)] = (found["file"].strip('"'), found["how"] == ">>")
        return ""

    pattern = r'(?P<quoted>"[^"]*")|(?P<number>(?<=\s)[12])?(?P<how>>>?)\s*(?P<file>"[^"]+"|[^\s&>]+)'
    return re.sub(pattern, take, command), targets


def command_of(call: Call, command: str) -> int:
    """One of cmd's own commands, or a program."""
    word = re.match(r'"[^"]*"|[^\s/=,;(]+', command)
    if word is None:
        return 0
    name, rest = word[0], command[word.end() :]
    lower = name.lower()
    if lower.startswith("echo") and not re.match(r"[\w-]", lower[4:5]):
        call.write((command[5:] or "") + "\n")
    elif lower == "ver":
        call.write(call.machine.text(texts.VER).format(WINDOWS_VERSION))
    elif lower == "exit":
        return int(rest.replace("/b", "").replace("/B", "").strip() or 0)
    elif lower in ("cd", "chdir"):
        return change_folder(call, rest.strip())
    elif lower == "set":
        chosen = {key: value for key, value in call.environment.items() if key.lower().startswith(rest.strip().lower())}
        call.write("".join(f"{key}={value}\n" for key, value in sorted(chosen.items())))
    elif lower == "type":
        data = call.read(rest.strip().strip('"'))
        if data is None:
            call.complain(call.machine.text(texts.FILE_NOT_FOUND))
            return 1
        os.write(1, data)
    elif path := call.find(name.strip('"')):
        return call.child(path, [name.strip('"'), *arguments(rest)]).run()
    else:
        folder = call.machine.linux_path(name.strip('"').rpartition("\\")[0])
        missing = folder is not None and insensitive(folder) is None
        call.complain(call.machine.text(texts.PATH_NOT_FOUND if missing else texts.NOT_A_COMMAND).format(name))
        return 1
    return 0


def change_folder(call: Call, folder: str) -> int:
    """`cd` alone prints, `cd /d C:\\…` changes."""
    target = re.sub(r"^/[dD]\s*", "", folder).strip('"')
    if not target:
        call.write(call.cwd + "\n")
        return 0
    path = call.machine.linux_path(target if ":" in target else f"{call.cwd}\\{target}")
    if path is None or not os.path.isdir(path):
        call.complain(call.machine.text(texts.PATH_NOT_FOUND))
        return 1
    call.cwd = call.machine.windows_path(os.path.normpath(path))
    return 0


def arguments(line: str) -> list[str]:
    """Split a command line's rest as Microsoft's C runtime does: backslashes count before a quote only."""
    words, word, quoted, started, position = [], "", False, False, 0
    while position < len(line):
        letter = line[position]
        if letter == "\\":
            run = len(line) - position - len(line[position:].lstrip("\\"))
            position += run
            if line[position : position + 1] == '"':
                word, started = word + "\\" * (run // 2), True
                if run % 2:
                    word, position = word + '"', position + 1
            else:
                word, started = word + "\\" * run, True
            continue
        if letter == '"':
            if quoted and line[position + 1 : position + 2] == '"':
                word, position = word + '"', position + 1
            else:
                quoted = not quoted
            started = True
        elif letter in " \t" and not quoted:
            if started:
                words.append(word)
            word, started = "", False
        else:
            word, started = word + letter, True
        position += 1
    return [*words, word] if started else words
