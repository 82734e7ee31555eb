"""powershell.exe 5.1. It can't run PowerShell: it recognises the statements of the table below and does what they would do.

`-File SCRIPT`: the script and the .json of the same name beside it are logged. Windows runs no script files unless
`-ExecutionPolicy` says so. Comments are dropped, then, in this order:

- `Start-Process` and `RunAs`, not elevated: the UAC prompt, see `elevated` of the machine. "yes": the script that the JSON names
  (a string ending in .ps1), or the text itself, or else the same one, runs elevated; its exit code is this one's.
- `New-NetFirewallHyperVRule`: every object in the JSON with a "VMCreatorId" becomes a rule; elevated only, a taken
  name fails.
- `Remove-NetFirewallHyperVRule`: a rule goes whose name stands in the JSON in a string or list under a key that
  starts with "remove".
- `Get-NetFirewallHyperVRule`, without the two above: the rules as JSON, one array.
- `&` or `Start-Process` with a program: every list in the JSON whose first word ends in .exe runs, the first that fails ends the
  script with its exit code.
- `TotalPhysicalMemory`: the machine's memory in bytes.

`-Command TEXT` (`-`: from stdin) is read in the same way, without a JSON. A text with none of them ends with 97, which no
PowerShell does: a test sees that the table lacks something. A test may also give the whole outcome of a script by its file
name, `scripts={"name.ps1": {"stdout": "…", "stderr": "…", "exit": 0}}`, or a Python file that plays it,
`plays={"name.ps1": PATH}`. Its `play(call: Call, script: str, document: Any) -> int` gets the call, the script's Windows path
and the JSON, and returns the exit code; `prompt` of this module is the UAC prompt.
"""

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import PureWindowsPath
from typing import Any

from lab.standins import texts
from lab.standins.machine import Call

UNKNOWN = 97
NO_SCRIPT = 0xFFFD0000


def main(call: Call) -> int:
    options = {word.lower(): at for at, word in enumerate(call.args)}
    file = next((at for word, at in options.items() if word in ("-file", "-f")), None)
    command = next((at for word, at in options.items() if word in ("-command", "-c")), None)
    if file is not None and file + 1 < len(call.args):
        return run_file(call, call.args[file + 1])
    text = " ".join(call.args[command + 1 :]) if command is not None else ""
    stdin = sys.stdin.buffer.read() if text == "-" else b""
    call.log(stdin=stdin)
    return obey(call, stdin.decode(call.code_page) if text == "-" else text, None, None)


def run_file(call: Call, script: str) -> int:
    data = call.read(script)
    name = PureWindowsPath(script).name
    beside = re.sub(r"\.ps1$", "", script, flags=re.IGNORECASE) + ".json"
    settings = call.read(beside)
    files = {name: data, PureWindowsPath(beside).name: settings}
    call.log(files={key: value for key, value in files.items() if value is not None})
    if data is None:
        call.complain(call.machine.text(texts.NO_SCRIPT).format(script))
        return NO_SCRIPT
    words = [word.lower() for word in call.words]
    policy = next(
        (words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-executionpolicy", "-ep", "-ex")), "restricted"
    )
    if call.machine.config["powershell"] == "blocked" or policy in ("restricted", "allsigned", "default"):
        call.complain(call.machine.text(texts.SCRIPTS_DISABLED).format(script))
        return 1
    if given := call.machine.config["scripts"].get(name):
        call.write(given.get("stdout", ""))
        call.complain(given.get("stderr", ""))
        return int(given.get("exit", 0))
    document = json.loads(settings) if settings is not None else None
    if (played := call.machine.folder / "plays" / f"{name}.py").is_file():
        return int(runpy.run_path(str(played))["play"](call, script, document))
    return obey(call, re.sub(r"<#.*?#>|#[^\n]*", "", data.decode("utf-8-sig"), flags=re.DOTALL), document, script)


def obey(call: Call, text: str, document: Any, script: str | None) -> int:
    """Ask for elevation where a text does that, else do what it says."""
    if "Start-Process" not in text or "RunAs" not in text or call.elevated:
        return answer(call, text, document)
    inside = re.search(r"'([^']+\.ps1)'|\"([^\"$]+\.ps1)\"", text)
    named = next((one for one in strings(document) if one.lower().endswith(".ps1")), None)
    found = named or (inside and (inside[1] or inside[2])) or script
    return prompt(call, found) if found else UNKNOWN


def prompt(call: Call, script: str) -> int:
    """Start-Process -Verb RunAs: somebody agrees, somebody refuses, or nobody is there."""
    if call.machine.config["elevated"] == "yes":
        words = ["powershell.exe", "-NoProfile", "-ExecutionPolicy", "Bypass", "-File", script]
        return call.child(call.path, words, elevated=True).run()
    reason = texts.UAC_CANCELLED if call.machine.config["elevated"] == "cancelled" else texts.UAC_NOBODY
    call.complain(f"Start-Process : This command cannot be run due to the error: {call.machine.text(reason)}\n")
    return 1


def answer(call: Call, text: str, document: Any) -> int:
    """Do what the recognised statements of a text do."""
    known = False
    if "New-NetFirewallHyperVRule" in text or "Remove-NetFirewallHyperVRule" in text:
        known = True
        if not call.elevated:
            call.complain(f"New-NetFirewallHyperVRule : {call.machine.text(texts.ACCESS_DENIED)}")
            return 1
        if not change_rules(call, text, document):
            return 1
    elif "Get-NetFirewallHyperVRule" in text:
        known = True
        call.write(json.dumps(call.machine.state["hyperv_rules"]) + "\n")
    if re.search(r"^\s*&|[;{(=]\s*&|Start-Process", text, re.MULTILINE):
        for words in commands(document):
            known = True
            path = call.find(words[0])
            code = call.child(path, words).run() if path else 1
            if code:
                return code
    if "TotalPhysicalMemory" in text:
        known = True
        call.write(f"{call.machine.config['memory_bytes']}\n")
    return 0 if known else UNKNOWN


def change_rules(call: Call, text: str, document: Any) -> bool:
    """First remove, then make: a script that replaces a rule has both. False when a name is taken."""
    removes, makes = ("Remove-NetFirewallHyperVRule" in text, "New-NetFirewallHyperVRule" in text)
    gone = {name for key, value in pairs(document) if removes and key.lower().startswith("remove") for name in strings(value)}
    made = [one for one in objects(document) if makes and "VMCreatorId" in one]
    with call.machine.change() as state:
        left = [one for one in state["hyperv_rules"] if one["Name"] not in gone]
        taken = {one["Name"] for one in left} & {one["Name"] for one in made}
        state["hyperv_rules"] = left + ([] if taken else made)
    if taken:
        call.complain("New-NetFirewallHyperVRule : Cannot create a file when that file already exists.\n")
    return not taken


def objects(document: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document, at any depth."""
    if isinstance(document, dict):
        yield document
        for value in document.values():
            yield from objects(value)
    elif isinstance(document, list):
        for value in document:
            yield from objects(value)


def pairs(document: Any) -> Iterator[tuple[str, Any]]:
    for one in objects(document):
        yield from one.items()


def strings(document: Any) -> Iterator[str]:
    """Every string in a document, at any depth."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, (dict, list)):
        for value in document.values() if isinstance(document, dict) else document:
            yield from strings(value)


def commands(document: Any) -> Iterator[list[str]]:
    """Every list of strings in a document that starts with a program."""
    if isinstance(document, list) and document and all(isinstance(one, str) for one in document):
        if document[0].lower().endswith(".exe"):
            yield document
    elif isinstance(document, (dict, list)):
        for value in document.values() if isinstance(document, dict) else document:
            yield from commands(value)
