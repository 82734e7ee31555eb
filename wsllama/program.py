"""The programs that run on a host: source text that needs nothing there but python3, sent on stdin."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

# Programs that use other modules of ours, in an order in which each only imports earlier ones. The others stand alone.
_SIDE = ("wsllama.host.interop", "wsllama.host.windows")
_KEPT = (*_SIDE, "wsllama.host.windows_side", "wsllama.host.keep_alive")
_PROBE = (*_KEPT, "wsllama.domain.spelling", "wsllama.host.probe")
_AUDIT = ("wsllama.domain.gguf", "wsllama.domain.gguf_audit", "wsllama.domain.model_policy", "wsllama.domain.models")
_LOG = ("wsllama.domain.text", "wsllama.domain.server_log")
_MODEL = (*_AUDIT, "wsllama.host.receive", *_PROBE, "wsllama.host.model")
_FLAGS = ("wsllama.domain.flags", "wsllama.domain.server_flags", "wsllama.domain.client")
_JUDGE = ("wsllama.domain.text", "wsllama.domain.examine.response", "wsllama.domain.acceptance")
_ASK = (*_JUDGE, "wsllama.host.api")
PARTS = {
    "probe": _PROBE,
    "windows": _SIDE,
    "windows_side": (*_SIDE, "wsllama.host.windows_side"),
    "keep_alive": _KEPT,
    "uninstall": (*_KEPT, "wsllama.host.lean", "wsllama.host.uninstall"),
    "prune": (*_PROBE, "wsllama.host.prune"),
    "release": ("wsllama.domain.flags", "wsllama.domain.systemd", "wsllama.host.release"),
    "accept": (*_LOG, "wsllama.domain.plan_drift", "wsllama.host.interop", *_ASK, "wsllama.host.checks", "wsllama.host.accept"),
    "status": (
        *_PROBE,
        "wsllama.host.api",
        "wsllama.domain.flags",
        "wsllama.domain.server_flags",
        "wsllama.domain.client",
        "wsllama.host.status",
    ),
    "spell": ("wsllama.domain.flags", "wsllama.domain.systemd", "wsllama.host.release", "wsllama.host.spell"),
    "artifact": ("wsllama.host.receive", "wsllama.host.build", "wsllama.host.artifact"),
    "ask": (*_ASK, "wsllama.host.ask"),
    "drift": ("wsllama.host.receive", *_PROBE, "wsllama.host.deep", "wsllama.host.drift"),
    "deep": ("wsllama.host.receive", *_PROBE, "wsllama.host.deep"),
    "model": _MODEL,
    "watchdog": (
        "wsllama.domain.spelling",
        *_FLAGS,
        *_LOG,
        "wsllama.domain.watchdog",
        "wsllama.host.api",
        "wsllama.host.watchdog",
    ),
    "fetch": (*_MODEL, "wsllama.hub", "wsllama.host.fetch"),
}
# The same, but of a GPU and of a server's counters.
PARTS["watch"] = (
    "wsllama.domain.spelling",
    *_FLAGS,
    "wsllama.domain.nvidia_smi",
    "wsllama.domain.watch",
    "wsllama.host.api",
    "wsllama.host.smi",
    "wsllama.host.watch",
)
_RECORD = (
    "wsllama.domain.nvidia_smi",
    "wsllama.domain.record",
    "wsllama.domain.scenarios",
    "wsllama.host.records",
    "wsllama.host.smi",
)
# Waits for the service and reads its log as acceptance does.
PARTS["bench"] = (*PARTS["accept"], *_RECORD, "wsllama.host.bench")

# Makes each part importable under its real name, and `main` the last one's. A part is read when it is imported and not before:
# most hosts need few of the probe's, and to compile the others takes longer than all that it looks at.
BUNDLE = """\
import json, sys, types

class Parts:
    texts = dict(json.loads({texts}))

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return type(sys.__spec__)(name, cls) if name in cls.texts else None

    @staticmethod
    def create_module(spec):
        return None

    @classmethod
    def exec_module(cls, module):
        exec(compile(cls.texts[module.__name__], module.__name__, "exec"), module.__dict__)

for name in ("wsllama", "wsllama.domain", "wsllama.domain.examine", "wsllama.host"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = []
sys.meta_path.insert(0, Parts)
from {last} import main
"""


# Behind it: when nobody reads its output any more, the run that wanted it is gone, by Ctrl-C, a crash or a cut, and so it ends
# too. What has to outlive a run is a unit (follow), and programs that it started, as apt, end by themselves. One that answered
# gets ten seconds for its end: on a busy host it may not be its turn for some, and what was done would count as failed.
ATTENDED = """\

def _attended():
    import _thread, atexit, os, select

    ending, end = os.pipe()
    watched, over = select.poll(), _thread.allocate_lock()
    watched.register(1, 0)  # errors only: a pipe that was closed at its other end; a file never has any
    watched.register(ending, select.POLLIN)

    def watch():
        watched.poll()
        watched.unregister(1)
        if not watched.poll(10000):  # ms; who has the whole answer closes the pipe, maybe before this program has ended
            os._exit(1)
        over.release()

    over.acquire()
    _thread.start_new_thread(watch, ())
    # A thread that wakes up while Python is taken down may crash it, so it ends before.
    atexit.register(lambda: (os.write(end, b"."), over.acquire(timeout=9)))

_attended()
"""


@cache
def text(name: str) -> str:
    """Source of wsllama/host/<name>.py with all that it imports of ours; it defines `main`, which takes one argument."""
    if name not in PARTS:
        return _source(f"wsllama.host.{name}")
    parts = PARTS[name]
    return BUNDLE.format(texts=repr(json.dumps([(part, _source(part)) for part in parts])), last=parts[-1])


def call(name: str, argument: Any, attended: bool = True) -> str:
    """The same, and behind it a call of `main` with this JSON-able argument.

    attended: it ends when nobody reads its output any more; one that gets a file sees the end of that, and keeps what came
    before. What it makes is readable for the service's user, whatever umask root has there; secrets get their mode from their
    program.
    """
    watched = ATTENDED if attended else ""
    return f"{text(name)}\n{watched}import json, os\nos.umask(0o022)\nmain(json.loads({json.dumps(json.dumps(argument))}))\n"


def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    return resources.files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
