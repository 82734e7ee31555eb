"""The end state that all sides make: read from a host that our deploy made, so that it is written down nowhere a second time.

FOLDER/spec.json    what plain pyinfra operations and Ansible make of a host
FOLDER/files/…       the content of its files
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from lab import LabError
from lab.lab import Host
from wsllama import artifacts, layout
from wsllama.domain import build

# What our operations note for themselves, and what nobody serves from: the other sides have no use for it.
NOTES = re.compile(
    rf"({re.escape(layout.STARTED_WITH)}"
    rf"|{layout.RELEASES}/1/(baseline|release)\.json"
    rf"|{layout.ROOT}/(last-good|\.lock)"
    rf"|.*/\.incoming(/.*)?|{layout.MODELS}/.*\.(stamp|awaited|lock))"
)
PLACES = (layout.ROOT, layout.ETC, layout.STATE, layout.APT_CONF, layout.UNIT_FILE, layout.WATCHDOG_UNIT_FILE)
UNITS = (layout.UNIT, layout.WATCHDOG_UNIT)

# Runs on the host: every path below the places, and what systemd and dpkg say.
LOOK = """
import base64, grp, hashlib, json, os, pwd, stat, subprocess, sys
places, units, packages, small = json.loads(sys.argv[1])

def entry(path):
    s = os.lstat(path)
    owner = {"user": pwd.getpwuid(s.st_uid).pw_name, "group": grp.getgrgid(s.st_gid).gr_name}
    if stat.S_ISLNK(s.st_mode):
        return {"kind": "link", "target": os.readlink(path)}
    mode = {"mode": "%o" % stat.S_IMODE(s.st_mode), **owner}
    if stat.S_ISDIR(s.st_mode):
        return {"kind": "directory", **mode}
    data = open(path, "rb").read()
    text = {"data": base64.b64encode(data).decode()} if len(data) <= small else {}
    return {"kind": "file", "sha256": hashlib.sha256(data).hexdigest(), **mode, **text}

found = {}
for place in places:
    for path in [place, *(os.path.join(f, n) for f, ds, ns in os.walk(place) for n in ds + ns)]:
        if os.path.lexists(path):
            found[path] = entry(path)

def said(*words):
    return sorted(subprocess.run(words, capture_output=True, text=True).stdout.splitlines())

state = {u: said("systemctl", "show", "-p", "ActiveState,UnitFileState", u) for u in units}
there = said("dpkg-query", "-Wf", "${Package} ${db:Status-Status}\\n", *packages)
print(json.dumps({"paths": found, "units": state, "packages": there}))
"""


def package_names() -> list[str]:
    """Debian packages that a host of the lab gets."""
    found = build.packages("debian", "12")
    return sorted({*found.build, *found.run})


def look(host: Host) -> dict[str, Any]:
    """What stands on a host: paths, units, packages. Without what is only ours to note. Raises LabError."""
    words = json.dumps([PLACES, UNITS, package_names(), 1 << 20])
    seen: dict[str, Any] = json.loads(host.run(["python3", "-", words], input=LOOK).stdout)
    paths = {p: e for p, e in seen["paths"].items() if not NOTES.fullmatch(p)}
    return {**seen, "paths": paths}


def without_data(seen: dict[str, Any]) -> dict[str, Any]:
    """The same, to be compared."""
    bare = {p: {k: v for k, v in e.items() if k != "data"} for p, e in seen["paths"].items()}
    return {"paths": bare, "units": seen["units"], "packages": seen["packages"]}


def differences(host: Host, wanted: dict[str, Any]) -> list[str]:
    """What stands on a host otherwise than on the one that the end state was read from, one name each."""
    seen, out = without_data(look(host)), []
    for part, of in without_data(wanted).items():
        if isinstance(of, dict):
            out += [f"{part} {k}" for k in sorted({*of, *seen[part]}) if of.get(k) != seen[part].get(k)]
        elif of != seen[part]:
            out.append(part)
    return out


def write(seen: dict[str, Any], model: Path, alias: str, port: int, folder: Path) -> Path:
    """Write the end state down for the other sides; returns the path of spec.json. Raises LabError without the build.

    seen: what `look` found on a host; model: the GGUF on this machine.
    """
    builds = [p for p, e in seen["paths"].items() if p.startswith(f"{layout.BUILDS}/") and p.count("/") == 4]
    artifact = artifacts.known(Path(builds[0]).name) if len(builds) == 1 else None
    if artifact is None:
        raise LabError("the host's build is not in the cache of artifacts: deploy once more, on two fresh hosts")
    of_build = f"{builds[0]}/"
    spec: dict[str, Any] = {
        "user": {"name": layout.USER, "home": layout.STATE},
        "packages": package_names(),
        "apt_conf": [],
        "directories": [],
        "links": [],
        "files": [],
        "build": {"folder": builds[0], "archive": str(artifact.path)},
        "unit": layout.UNIT,
        "watchdog": layout.WATCHDOG_UNIT,
        "accept": accept(alias, port),
    }
    (folder / "files").mkdir(parents=True, exist_ok=True)
    for path, entry in sorted(seen["paths"].items()):
        if path.startswith(of_build):
            continue
        owner = {k: entry[k] for k in ("mode", "user", "group") if k in entry}
        if "mode" in owner:
            owner["mode"] = owner["mode"].rjust(4, "0")
        if entry["kind"] == "link":
            spec["links"].append({"path": path, "target": entry["target"]})
        elif entry["kind"] == "directory":
            spec["directories"].append({"path": path, **owner})
        else:
            source = model if path.endswith(".gguf") else folder / "files" / path[1:].replace("/", "_")
            if source != model:
                source.write_bytes(base64.b64decode(entry["data"]))
            kind = "apt_conf" if path == layout.APT_CONF else "files"
            spec[kind].append({"path": path, "source": str(source), **owner})
    out = folder / "spec.json"
    out.write_text(json.dumps({"spec": spec}, indent=1))
    return out


def accept(alias: str, port: int) -> str:
    """One line for a shell that asks what our acceptance asks of a server that was accepted before: health, name, a reply."""
    url = f"http://127.0.0.1:{port}"
    asked = {
        "model": alias,
        "messages": [{"role": "user", "content": "Reply with the single word READY."}],
        "max_tokens": 64,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    return (
        f"curl -fsS --retry 120 --retry-delay 1 --retry-all-errors {url}/health >/dev/null"
        f" && curl -fsS {url}/v1/models | grep -q '{alias}'"
        f" && curl -fsS -H 'Content-Type: application/json' -d '{json.dumps(asked)}' {url}/v1/chat/completions | grep -q READY"
    )
