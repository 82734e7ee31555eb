"""Runs on the host: what it serves now, in one look. It changes nothing and asks the server for its health only.

The last line is {"now": what the probe says, "release", "accepted", "unit", "rss", "health": {"status", "text"}}.
"""

import json
import os
import re
import subprocess
from typing import Any

from wsllama.domain import client
from wsllama.host import api, probe

SHOWN = "LoadState,ActiveState,SubState,UnitFileState,ActiveEnterTimestamp,MainPID,NRestarts,Result"
TIMEOUT_S = 5.0


def health(server: dict[str, Any]) -> dict[str, Any]:
    """HTTP status of /health, 0 when nobody answers; 503 is what a server says while it loads."""
    url = client.base_url(server["host"], server["port"])
    status, said = api.Server({"url": url}).ask("/health", timeout=TIMEOUT_S)
    return {"status": status, "text": said if isinstance(said, str) else ""}


def main(a: dict[str, Any]) -> None:
    """looks (the probe's); root, unit (where things are)."""
    try:
        now = {facet: getattr(probe, facet)(keys) for facet, keys in a["looks"].items() if keys}
    except PermissionError as e:
        raise SystemExit(f"{e.filename} needs root: log in as root, or set _sudo to True for this host") from None
    folder = os.path.join(a["root"], "current")
    release, baseline = (probe._json(os.path.join(folder, name)) or {} for name in ("release.json", "baseline.json"))
    p = subprocess.run(["systemctl", "show", "-p", SHOWN, a["unit"]], stdout=subprocess.PIPE, text=True)
    unit = dict(line.split("=", 1) for line in p.stdout.splitlines() if "=" in line)
    resident = re.search(r"^VmRSS:\s+(\d+) kB", probe._text(f"/proc/{unit.get('MainPID')}/status"), re.M)
    document = {
        "now": now,
        "release": release or None,
        "accepted": baseline.get("accepted"),
        "unit": unit,
        "rss": int(resident[1]) * 1024 if resident else None,
        "health": health(release["server"]) if release and unit.get("ActiveState") == "active" else None,
    }
    print(json.dumps(document))
