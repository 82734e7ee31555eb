"""Plays templates/windows/elevated.ps1 on a lab host: no PowerShell can be had here. Its text becomes a part of the stand-in for
powershell.exe there. It follows the script statement by statement; the script itself is parsed in tests/unit/test_powershell.py.
"""

PLAY = """
played_by_table = run_file


def run_file(call, script):
    if PureWindowsPath(script).name != "elevated.ps1" or call.machine.config["powershell"] == "blocked":
        return played_by_table(call, script)
    folder = script.rpartition("\\\\")[0]
    data = {name: call.read(folder + "\\\\" + name) for name in ("elevated.ps1", "elevated.json")}
    call.log(files=data)
    order = json.loads(data["elevated.json"])
    state, steps, why = "done", [], ""
    if not call.elevated:
        meets = call.machine.config["elevated"]
        if meets == "yes":
            words = ["powershell.exe", "-NoProfile", "-ExecutionPolicy", "Bypass", "-File", script]
            call.child(call.path, words, elevated=True).run()
            return 0
        state = meets
        why = call.machine.text(texts.UAC_CANCELLED if meets == "cancelled" else texts.UAC_NOBODY)
    else:
        steps = [play(call, step) for step in order["steps"]]
    path = call.machine.linux_path(folder + "\\\\elevated.result.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"run": order["run"], "state": state, "why": why, "steps": steps}, f)
    return {"done": 0, "nobody": 3, "cancelled": 4}[state]


def play(call, step):
    if step["kind"] == "hyperv":
        with call.machine.change() as state:
            there = [rule for rule in state["hyperv_rules"] if rule["Name"] == step["name"]]
            if bool(there) == step["present"]:
                return {"id": step["id"], "state": "unchanged", "why": ""}
            others = [rule for rule in state["hyperv_rules"] if rule["Name"] != step["name"]]
            new = {"Name": step["name"], "LocalPorts": step["port"], "RemoteAddresses": "LocalSubnet"}
            state["hyperv_rules"] = others + ([new] if step["present"] else [])
        return {"id": step["id"], "state": "changed", "why": ""}
    program = {"netsh": "netsh.exe", "schtasks": "schtasks.exe", "powercfg": "powercfg.exe"}[step["kind"]]
    if step.get("look"):
        found = call.child(call.find(program), [program, *step["look"]]).run() == 0
        if found == step["present"]:
            return {"id": step["id"], "state": "unchanged", "why": ""}
    code = call.child(call.find(program), [program, *step["words"]]).run()
    return {"id": step["id"], "state": "failed" if code else "changed", "why": f"exit code {code}" if code else ""}
"""
