"""The programs that run on a host: source text that needs nothing there but python3, sent on stdin."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

# Programs that use other modules of ours, in an order in which each only imports earlier ones. The others stand alone.
PARTS = {
    "release": ("wsllama.domain.flags", "wsllama.domain.systemd", "wsllama.host.release"),
    "accept": ("wsllama.host.api", "wsllama.host.accept"),
    "artifact": ("wsllama.host.receive", "wsllama.host.build", "wsllama.host.artifact"),
    "ask": ("wsllama.host.api", "wsllama.host.ask"),
    "model": ("wsllama.domain.gguf", "wsllama.host.receive", "wsllama.host.probe", "wsllama.host.model"),
}

# Makes each part importable by the next under its real name, and `main` the last one's.
BUNDLE = """\
import json, sys, types
for name, text in json.loads({texts}):
    for package in ("wsllama", "wsllama.domain", "wsllama.host"):
        sys.modules.setdefault(package, types.ModuleType(package))
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
main = module.main
"""


@cache
def text(name: str) -> str:
    """Source of wsllama/host/<name>.py with all that it imports of ours; it defines `main`, which takes one argument."""
    if name not in PARTS:
        return _source(f"wsllama.host.{name}")
    return BUNDLE.format(texts=repr(json.dumps([(part, _source(part)) for part in PARTS[name]])))


def call(name: str, argument: Any) -> str:
    """The same, and behind it a call of `main` with this JSON-able argument.

    What it makes is readable for the service's user, whatever umask root has there; secrets get their mode from their program.
    """
    return f"{text(name)}\nimport json, os\nos.umask(0o022)\nmain(json.loads({json.dumps(json.dumps(argument))}))\n"


def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    return resources.files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
