"""schtasks.exe: /Create /XML, /Query, /Delete, /Run. Texts in the console's code page, also the XML of a query.

The Task Scheduler keeps a task's XML in a form of its own: a query shows the registered name as <URI>, whatever was in the file.
A user without an administrator's rights may register a task for himself only: not with the highest rights, and no logon
trigger that is for everybody.
"""

import base64
import re
import xml.etree.ElementTree as ElementTree

from lab.standins import texts
from lab.standins.machine import Call

SPACE = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"


def main(call: Call) -> int:
    call.log()
    action = call.args[0].lower() if call.args else "/query"
    options = parse(call.args[1:])
    known = {"/create": create, "/query": query, "/delete": delete, "/run": start}
    if action not in known:
        return fail(call, f'Invalid argument/option - "{action}".\nType "SCHTASKS /?" for usage.\n')
    return known[action](call, options)


def parse(words: list[str]) -> dict[str, str]:
    """Options by lower-case name; a flag has the empty text."""
    options: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("/"):
            name = word.lower()
            options[name] = ""
        elif name:
            options[name] = word
    return options


def fail(call: Call, text: str) -> int:
    call.complain(call.machine.text(texts.ERROR) + text)
    return 1


def short(name: str) -> str:
    """A task's name without the root folder's backslash; names don't depend on the case."""
    return name.lstrip("\\")


def find(call: Call, name: str) -> str | None:
    return next((known for known in call.machine.state["tasks"] if known.lower() == short(name).lower()), None)


def create(call: Call, options: dict[str, str]) -> int:
    name = short(options.get("/tn", ""))
    if "/xml" not in options:  # the others (/SC, /TR …) are not played
        return fail(call, "Invalid syntax. Mandatory option 'sc' is missing.\nType \"SCHTASKS /CREATE /?\" for usage.\n")
    data = call.read(options["/xml"])
    if data is None:
        return fail(call, call.machine.text(texts.FILE_NOT_FOUND))
    problem = malformed(data)
    if problem:
        return fail(call, call.machine.text(texts.TASK_MALFORMED) + problem)
    if not call.elevated and (call.machine.config["schtasks"] == "denied" or needs_rights(data)):
        return fail(call, call.machine.text(texts.ACCESS_DENIED))
    if find(call, name) and "/f" not in options:
        call.write(call.machine.text(texts.TASK_EXISTS).format(name) + "\n")
        return 1
    with call.machine.change() as state:
        state["tasks"] = {key: value for key, value in state["tasks"].items() if key.lower() != name.lower()}
        state["tasks"][name] = base64.b64encode(data).decode()
    call.write(call.machine.text(texts.TASK_CREATED).format(name))
    return 0


def malformed(data: bytes) -> str:
    """Why the scheduler doesn't take a file, or the empty text: declared encoding and bytes have to agree."""
    try:
        text = decode(data)
        root = ElementTree.fromstring(re.sub(r"^<\?xml[^>]*\?>", "", text.lstrip("\ufeff")).strip())
    except (UnicodeError, ElementTree.ParseError):
        return "(1,40)::\n"
    declared = re.match(r"\ufeff?<\?xml[^>]*encoding=[\"']([\w-]+)", text)
    if declared and (declared[1].lower() == "utf-16") != data.startswith(b"\xff\xfe"):
        return "(1,40)::\n"
    missing = [name for name in ("Actions", "Principals") if root.find(SPACE + name) is None]
    return f"(2,2):{missing[0]}:\n" if root.tag != SPACE + "Task" or missing else ""


def decode(data: bytes) -> str:
    return data.decode("utf-16" if data.startswith(b"\xff\xfe") else "utf-8-sig")


def needs_rights(data: bytes) -> bool:
    root = ElementTree.fromstring(re.sub(r"^<\?xml[^>]*\?>", "", decode(data).lstrip("\ufeff")).strip())
    highest = root.findtext(f".//{SPACE}RunLevel") == "HighestAvailable"
    boot = root.find(f".//{SPACE}BootTrigger") is not None
    everybody = any(one.find(SPACE + "UserId") is None for one in root.iter(SPACE + "LogonTrigger"))
    return highest or boot or everybody


def query(call: Call, options: dict[str, str]) -> int:
    if "/tn" not in options:
        call.write("".join(f"{name}\n" for name in call.machine.state["tasks"]))
        return 0
    name = find(call, options["/tn"])
    if name is None:
        return fail(call, call.machine.text(texts.FILE_NOT_FOUND))
    if "/xml" in options:
        text = decode(base64.b64decode(call.machine.state["tasks"][name])).lstrip("\ufeff").replace("\r\n", "\n").rstrip("\n")
        text = re.sub(r"\s*<URI>.*?</URI>", "", text)
        uri = f"<URI>\\{name}</URI>"
        if "<RegistrationInfo>" in text:
            text = text.replace("</RegistrationInfo>", f"  {uri}\n  </RegistrationInfo>", 1)
        else:
            head = re.search(r"<Task [^>]*>", text)
            assert head is not None  # it was registered
            text = f"{text[: head.end()]}\n  <RegistrationInfo>\n    {uri}\n  </RegistrationInfo>{text[head.end() :]}"
        call.write(text + "\n\n")
    else:
        call.write("\nFolder: \\\nTaskName                                 Next Run Time          Status         \n")
        call.write(f"{'=' * 40} {'=' * 22} {'=' * 15}\n{name:<40} {'N/A':<22} {'Ready':<15}\n")
    return 0


def delete(call: Call, options: dict[str, str]) -> int:
    name = find(call, options.get("/tn", ""))
    if name is None:
        return fail(call, call.machine.text(texts.FILE_NOT_FOUND))
    if not call.elevated and call.machine.config["schtasks"] == "denied":
        return fail(call, call.machine.text(texts.ACCESS_DENIED))
    if "/f" not in options:
        call.write(call.machine.text(texts.TASK_CONFIRM).format(name) + "\n")
        return 1
    with call.machine.change() as state:
        del state["tasks"][name]
    call.write(call.machine.text(texts.TASK_DELETED).format(name))
    return 0


def start(call: Call, options: dict[str, str]) -> int:
    name = find(call, options.get("/tn", ""))
    if name is None:
        return fail(call, call.machine.text(texts.FILE_NOT_FOUND))
    with call.machine.change() as state:
        state["started_tasks"].append(name)
    call.write(call.machine.text(texts.TASK_STARTED).format(name))
    return 0
