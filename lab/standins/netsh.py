"""netsh.exe: `interface portproxy` and `advfirewall firewall`, adding, deleting and showing. It prints errors on stdout too."""

from lab.standins import texts
from lab.standins.machine import Call


def main(call: Call) -> int:
    call.log()
    words = [word.lower() for word in call.args]
    options = dict(word.split("=", 1) for word in call.args if "=" in word)
    options = {name.lower(): value for name, value in options.items()}
    if words[:2] == ["interface", "portproxy"] and words[3:4] == ["v4tov4"] and words[2] in ("add", "delete", "show"):
        return {"add": add_proxy, "delete": delete_proxy, "show": show_proxies}[words[2]](call, options)
    if words[:2] == ["interface", "portproxy"] and words[2:4] == ["show", "all"]:
        return show_proxies(call, options)
    if words[:2] == ["advfirewall", "firewall"] and words[3:4] == ["rule"] and words[2] in ("add", "delete", "show"):
        return {"add": add_rule, "delete": delete_rules, "show": show_rules}[words[2]](call, options)
    call.write(f"The following command was not found: {' '.join(call.args)}.\n")
    return 1


def denied(call: Call) -> bool:
    """Changes need an administrator's rights: say so when they are missing."""
    if not call.elevated:
        call.write(call.machine.text(texts.NO_RIGHTS) + "\n")
    return not call.elevated


def listens(proxy: dict[str, str], options: dict[str, str]) -> bool:
    address = options.get("listenaddress", "*")
    return (proxy["listenaddress"], proxy["listenport"]) == (address, options.get("listenport"))


def add_proxy(call: Call, options: dict[str, str]) -> int:
    """Adding one that is there replaces it."""
    if denied(call):
        return 1
    new = {
        "listenaddress": options.get("listenaddress", "*"),
        "listenport": options["listenport"],
        "connectaddress": options.get("connectaddress", "127.0.0.1"),
        "connectport": options.get("connectport", options["listenport"]),
    }
    with call.machine.change() as state:
        state["portproxy"] = [*(one for one in state["portproxy"] if not listens(one, options)), new]
    call.write("\n")
    return 0


def delete_proxy(call: Call, options: dict[str, str]) -> int:
    if denied(call):
        return 1
    with call.machine.change() as state:
        left = [one for one in state["portproxy"] if not listens(one, options)]
        gone = len(state["portproxy"]) - len(left)
        state["portproxy"] = left
    call.write("\n" if gone else call.machine.text(texts.FILE_NOT_FOUND) + "\n")
    return 0 if gone else 1


def show_proxies(call: Call, options: dict[str, str]) -> int:
    proxies = call.machine.state["portproxy"]
    lines = ["", *texts.NETSH_PROXY_HEAD[call.machine.config["language"]]] if proxies else []
    if proxies:
        lines.insert(2, "")
        lines.append("--------------- ----------  --------------- ----------")
    for one in proxies:
        lines.append(f"{one['listenaddress']:<15} {one['listenport']:<10}  {one['connectaddress']:<15} {one['connectport']:<10}")
    call.write("\n".join(lines) + "\n" + ("\n" if proxies else ""))
    return 0


def add_rule(call: Call, options: dict[str, str]) -> int:
    """Rules may have the same name: adding twice makes two."""
    if denied(call):
        return 1
    with call.machine.change() as state:
        state["firewall"].append(options)
    call.write(call.machine.text(texts.NETSH_OK))
    return 0


def matches(rule: dict[str, str], options: dict[str, str]) -> bool:
    wanted = options.get("name", "").lower()
    return wanted in ("all", rule["name"].lower())


def delete_rules(call: Call, options: dict[str, str]) -> int:
    if denied(call):
        return 1
    with call.machine.change() as state:
        left = [one for one in state["firewall"] if not matches(one, options)]
        gone = len(state["firewall"]) - len(left)
        state["firewall"] = left
    call.write(call.machine.text(texts.NETSH_DELETED).format(gone) if gone else call.machine.text(texts.NETSH_NO_RULE))
    return 0 if gone else 1


def show_rules(call: Call, options: dict[str, str]) -> int:
    found = [one for one in call.machine.state["firewall"] if matches(one, options)]
    if not found:
        call.write(call.machine.text(texts.NETSH_NO_RULE))
        return 1
    labels = call.machine.text(texts.NETSH_RULE_LABELS).split("|")
    values = texts.NETSH_RULE_VALUES[call.machine.config["language"]]
    for rule in found:
        profile = "Domain,Private,Public" if rule.get("profile", "any") == "any" else rule["profile"].title()
        shown = [
            rule["name"],
            values[rule.get("enable", "yes").lower()],
            values[rule.get("dir", "in").lower()],
            profile,
            "",
            values.get(rule.get("localip", "any").lower(), rule.get("localip", "")),
            address(values, rule.get("remoteip", "any")),
            rule.get("protocol", "any").upper(),
            values.get(rule.get("localport", "any").lower(), rule.get("localport", "")),
            values["any"],
            values["no"],
            values[rule.get("action", "allow").lower()],
        ]
        lines = [f"{label + ':':<38}{value}" for label, value in zip(labels, shown, strict=True)]
        call.write("\n" + "\n".join([lines[0], "-" * 70, *lines[1:]]) + "\n")
    call.write(call.machine.text(texts.NETSH_OK))
    return 0


def address(values: dict[str, str], text: str) -> str:
    known = {"any": values["any"], "localsubnet": "LocalSubnet"}
    return known.get(text.lower(), text)
