"""Runs on the host: the newest sample of the GPU watch. The last line is {"sample": or None, "now", "unit": its state}."""

import json
import os
import subprocess
import time
from typing import Any


def main(argument: dict[str, Any]) -> None:
    """folder: of the samples; unit: that makes them."""
    try:
        with open(os.path.join(argument["folder"], "sample.json"), encoding="utf-8") as f:
            sample = json.load(f)
    except (OSError, ValueError):
        sample = None
    state = "active"
    if sample is None or time.time() - sample["at"] > sample["interval_s"]:
        command = ["systemctl", "show", "--value", "-p", "ActiveState", argument["unit"]]
        state = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.strip()
    print(json.dumps({"sample": sample, "now": int(time.time()), "unit": state}))
