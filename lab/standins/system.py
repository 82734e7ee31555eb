"""powercfg.exe, reg.exe, tasklist.exe, whoami.exe: what they answer to the questions that people ask about power and sessions."""

from lab.standins import texts
from lab.standins.machine import Call

SCHEME = "381b4222-f694-41f0-9685-ff5bb260df2e"
POWER = {
    ("238c9fa8-0aad-41ed-83f4-97be242c8f20", "29f6c1db-86da-48c5-9fdb-f2b67b1f44da"): "standby",
    ("238c9fa8-0aad-41ed-83f4-97be242c8f20", "9d7815a6-7ee4-497e-8888-515a05f02364"): "hibernate",
    ("4f971e89-eebd-4455-a8de-9e59040e7347", "5ca83367-6e45-459f-a27b-476b1d01c936"): "lid",
}
ALIASES = {
    "scheme_current": SCHEME,
    "sub_sleep": "238c9fa8-0aad-41ed-83f4-97be242c8f20",
    "standbyidle": "29f6c1db-86da-48c5-9fdb-f2b67b1f44da",
    "hibernateidle": "9d7815a6-7ee4-497e-8888-515a05f02364",
    "sub_buttons": "4f971e89-eebd-4455-a8de-9e59040e7347",
    "lidaction": "5ca83367-6e45-459f-a27b-476b1d01c936",
}
INDEX = {
    "en": ("Current AC Power Setting Index", "Current DC Power Setting Index"),
    "de": ("Index der aktuellen Wechselstromeinstellung", "Index der aktuellen Gleichstromeinstellung"),
    "zh": ("当前交流电源设置索引", "当前直流电源设置索引"),
}


def powercfg(call: Call) -> int:
    """/q (or /query) SCHEME SUBGROUP SETTING, by GUID or alias: only the two index lines carry values."""
    call.log()
    words = [ALIASES.get(word.lower(), word.lower()) for word in call.args]
    if words[:1] not in (["/q"], ["/query"], ["-q"], ["-query"], ["/qh"]) or tuple(words[2:4]) not in POWER:
        call.complain('Invalid Parameters -- try "/?" for help\n')
        return 1
    values = call.machine.state["power"][POWER[tuple(words[2:4])]]  # type: ignore[index]
    call.write(f"Power Scheme GUID: {SCHEME}  (Balanced)\n  GUID Alias: SCHEME_BALANCED\n  Subgroup GUID: {words[2]}\n")
    call.write(f"    Power Setting GUID: {words[3]}\n")
    for label, value in zip(INDEX[call.machine.config["language"]], values, strict=True):
        call.write(f"    {label}: 0x{value:08x}\n")
    call.write("\n")
    return 0


def reg(call: Call) -> int:
    """query KEY /v NAME, and query KEY, from the state's "registry": {key: {name: [type, value]}}."""
    call.log()
    words = [word.lower() for word in call.args]
    if len(words) < 2 or words[0] != "query":
        call.complain(call.machine.text(texts.ERROR) + 'Invalid syntax.\nType "REG /?" for usage.\n')
        return 1
    hives = {"hklm": "HKEY_LOCAL_MACHINE", "hkcu": "HKEY_CURRENT_USER"}
    hive, _, rest = call.args[1].partition("\\")
    key = f"{hives.get(hive.lower(), hive)}\\{rest}"
    known = {name.lower(): (name, values) for name, values in call.machine.state["registry"].items()}
    shown, values = known.get(key.lower(), (key, {}))
    if "/v" in words:
        values = {name: value for name, value in values.items() if [name.lower()] == words[words.index("/v") + 1 :][:1]}
    if not values:
        call.complain(call.machine.text(texts.ERROR) + call.machine.text(texts.NO_KEY))
        return 1
    call.write(f"\n{shown}\n" + "".join(f"    {name}    {kind}    {value}\n" for name, (kind, value) in values.items()) + "\n")
    return 0


def tasklist(call: Call) -> int:
    """Running programs, those of the state's "processes"; /FI "IMAGENAME eq NAME" and /FO CSV /NH as they are usually asked."""
    call.log()
    line = " ".join(call.args)
    wanted = [word.lower().removeprefix("imagename eq ") for word in call.args if word.lower().startswith("imagename eq ")]
    names = [name for name in call.machine.state["processes"] if not wanted or name.lower() in wanted]
    if not names:
        call.write("INFO: No tasks are running which match the specified criteria.\n")
        return 0
    for number, name in enumerate(names):
        if "csv" in line.lower():
            call.write(f'"{name}","{4000 + number}","Console","1","10,240 K"\n')
        else:
            call.write(f"{name:<25} {4000 + number:>8} Console                    1     10,240 K\n")
    return 0


def whoami(call: Call) -> int:
    """DOMAIN\\user in lower case; /user adds the SID; /groups says whether the rights are an administrator's."""
    call.log()
    name = f"{call.machine.config['domain']}\\{call.machine.config['user']}".lower()
    words = [word.lower() for word in call.args]
    if "/user" in words and "csv" in words:
        call.write(f'"{name}","{call.machine.config["sid"]}"\n')
    elif "/groups" in words:
        level = ("High", "S-1-16-12288") if call.elevated else ("Medium", "S-1-16-8192")
        call.write(f'"Mandatory Label\\{level[0]} Mandatory Level","Label","{level[1]}",""\n')
    else:
        call.write(name + "\n")
    return 0
