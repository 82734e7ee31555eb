"""What `wsllama doctor --apply` gave up on hosts, in a file beside the inventory that every run reads.

`inventory.recovery.json` is {"about": "…", "hosts": {"desk-1": {"server": {"ctx_size": 8192}}}}. It comes over what the inventory
says and under `--data`. Who takes a host out of it gets what the inventory says again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wsllama import whole
from wsllama.domain.text import decode

ABOUT = (
    "Written by `wsllama doctor --apply`: what these hosts gave up because memory ran out. It comes over the inventory's own"
    " settings. Take a host out, or remove this file, to get what the inventory says again."
)


def file_of(inventory: str) -> Path | None:
    """The file that belongs to an inventory; None for one that is no file, such as hosts with commas between them."""
    return Path(f"{inventory}.recovery.json") if os.path.isfile(inventory) else None


def read(inventory: str) -> dict[str, dict[str, Any]]:
    """Settings by host; empty where there is no such file. Raises ValueError, one sentence, for what can't be read."""
    path = file_of(inventory)
    if path is None or not path.exists():
        return {}
    try:
        hosts = json.loads(decode(path.read_bytes()))["hosts"]
        return {str(name): {str(topic): dict(values) for topic, values in data.items()} for name, data in hosts.items()}
    except OSError as e:
        raise ValueError(f"{path} can't be read: {e.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        form = '{"hosts": {"NAME": {"server": {"NAME": VALUE}}}}'
        raise ValueError(f"{path} is not as `wsllama doctor --apply` writes it, {form}: repair or remove it") from None


def keep(inventory: str, host: str, server: Mapping[str, Any]) -> Path:
    """Write down what a host gave up, beside what others did. Raises ValueError as `read`; OSError."""
    path = file_of(inventory)
    assert path
    hosts = read(inventory)
    hosts[host] = {**hosts.get(host, {}), "server": {**hosts.get(host, {}).get("server", {}), **server}}
    text = json.dumps({"about": ABOUT, "hosts": hosts}, indent=1, ensure_ascii=False)
    whole.text(path, text + "\n")
    return path


def lines(inventory: str, names: set[str]) -> list[str]:
    """What is said of these hosts at the end of a run, so that nobody wonders. Raises ValueError as `read`."""
    return [
        f"{name}: {file_of(inventory)} keeps it at {_said(data)}, whatever the inventory says; take it out of there to end that"
        for name, data in sorted(read(inventory).items())
        if name in names
    ]


def _said(data: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{topic}.{key} {value}" for topic, values in data.items() for key, value in values.items())
