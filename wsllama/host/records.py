"""Runs on the host: keeps records of benchmarks, each in a file that is never written again, and hands them over.

<folder>/<time>-<first digits of the text's sha256>.json
"""

import hashlib
import json
import os
import re
import time
from typing import Any

NAME = re.compile(r"\d{8}T\d{6}Z-([0-9a-f]{8})")


def text_of(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def name_of(text: str, taken: float) -> str:
    """Name of a record without its suffix. taken: seconds since the epoch."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(taken)) + "-" + hashlib.sha256(text.encode()).hexdigest()[:8]


def keep(folder: str, record: dict[str, Any], taken: float) -> str:
    """Write a record under a name that nothing has yet; returns the name."""
    os.makedirs(folder, exist_ok=True)
    text = text_of(record)
    name = name_of(text, taken)
    aside, path = os.path.join(folder, f".{name}.new"), os.path.join(folder, name + ".json")
    with open(aside, "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    try:
        os.link(aside, path)  # unlike a rename it fails where a file is
    finally:
        os.unlink(aside)
    return name


def main(a: dict[str, Any]) -> None:
    """folder: of the records; known: names that the asker has already; only: the one that is asked for, if it is one.

    Prints {"records": {name: text}}.
    """
    found = {}
    for entry in sorted(os.listdir(a["folder"])) if os.path.isdir(a["folder"]) else ():
        name, suffix = os.path.splitext(entry)
        if suffix == ".json" and NAME.fullmatch(name) and name not in a["known"] and a.get("only", name) == name:
            with open(os.path.join(a["folder"], entry), encoding="utf-8") as f:
                found[name] = f.read()
    print(json.dumps({"records": found}))
