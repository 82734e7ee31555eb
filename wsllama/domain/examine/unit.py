"""A systemd unit that runs llama-server, read as systemd reads it (systemd.syntax(7), systemd.service(5)). Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wsllama.domain.flags import tool_flag
from wsllama.domain.guest import WSL_LIB
from wsllama.domain.text import decode

_TRUE = {"1", "yes", "y", "true", "t", "on"}
_WILDCARDS = {"0.0.0.0", "::", "[::]", "*", "::0", "0:0:0:0:0:0:0:0", "0"}
_REMOVED = {"--no-mmap", "--mmap", "--mlock", "-dio", "--direct-io", "-ndio", "--no-direct-io"}
_UNITS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hr": 3600.0, "d": 86400.0}
_SHORTEST_START_S = 60.0  # 20 GiB at 300 MB/s, and then some


@dataclass
class Unit:
    """A unit's settings by section, each with all of its values in their order; `orphans`: lines that belong to nothing."""

    settings: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)

    def all(self, section: str, name: str) -> list[str]:
        """Values that count: an empty one takes back what stands before it."""
        out: list[str] = []
        for value in self.settings.get((section, name), []):
            out = [*out, value] if value else []
        return out

    def last(self, section: str, name: str) -> str:
        return next(iter(self.settings.get((section, name), [""])[-1:]), "")


def parse(data: bytes | str) -> Unit:
    """Read a unit and its drop-ins, as `systemctl cat` prints them. A backslash goes on only as the very last character."""
    unit, section, pending = Unit(), "", ""
    for line in decode(data).split("\n"):
        bare = line.strip()
        if bare.startswith(("#", ";")) or (not bare and not pending):
            continue  # also between the lines of a value
        whole = pending + (line if pending else line.lstrip())
        if whole.endswith("\\"):
            pending = whole[:-1] + " "
            continue
        pending = ""
        if m := re.fullmatch(r"\[([^\]]+)\]\s*", whole):
            section = m[1]
        elif m := re.match(r"([A-Za-z][A-Za-z0-9]*)\s*=\s*(.*)", whole, re.S):
            unit.settings.setdefault((section, m[1]), []).append(m[2].strip())
        elif whole.strip():
            unit.orphans.append(whole.strip())
    return unit


def findings(data: bytes | str, environment: Mapping[str, str] | None = None) -> set[str]:
    """Ids of what is wrong in a unit of llama-server for WSL.

    environment: what its EnvironmentFile= holds, where that is known.
    """
    unit = parse(data)
    env = {**_environment(unit), **(environment or {})}
    call = _Call(unit, env)
    return {
        *(["broken_continuation"] if unit.orphans or _ends_open(unit) else []),
        *_sandbox(unit),
        *_libraries({**env, **call.env}),
        *_restart(unit),
        *_exposed(call),
        *_paths(call),
        *_memory(unit, call),
    }


def _ends_open(unit: Unit) -> bool:
    """Whether a value ends with a backslash: a blank stood behind it."""
    return any(value.endswith("\\") for values in unit.settings.values() for value in values)


def words(text: str) -> list[str]:
    """A command line in its words; one that doesn't come out is split at blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def environment(data: bytes | str) -> dict[str, str]:
    """What a unit's Environment= sets."""
    return _environment(parse(data))


def _environment(unit: Unit) -> dict[str, str]:
    pairs = (word.partition("=") for value in unit.all("Service", "Environment") for word in words(value))
    return {name: value for name, sign, value in pairs if sign}


class _Call:
    """How the server is called: its program, its arguments, what stands in its environment before that."""

    def __init__(self, unit: Unit, env: Mapping[str, str]) -> None:
        self.env: dict[str, str] = dict(env)
        line = next(iter(unit.all("Service", "ExecStart")[-1:]), "")
        said = list(_expanded(words(line.lstrip("@-:+!|")), env))
        self.open_ended = any(re.match(r"\$\{?\w", word) for word in said)  # what a file that isn't here may say
        self.started = said[0] if said else ""
        said = self._unwrapped(said)
        self.program, self.arguments = (said[0], said[1:]) if said else ("", [])

    def _unwrapped(self, said: list[str]) -> list[str]:
        """Without env, nice, a shell and the like before the server."""
        if len(said) > 2 and re.search(r"(^|/)(ba|da|z|k)?sh$", said[0]) and re.fullmatch(r"-\w*c", said[1]):
            said = list(_expanded(words(said[2]), self.env))
        for i, word in enumerate(said):
            if re.search(r"(^|/)llama[\w-]*(\.exe)?$", word) and not word.startswith("-"):
                self.env |= dict(w.split("=", 1) for w in said[:i] if re.match(r"\w+=", w))
                return said[i:]
        return said

    def value(self, *names: str) -> str | None:
        """The value of the last of these options, None when none is given."""
        found = None
        for i, word in enumerate(self.arguments):
            name, sign, value = word.partition("=")
            if name in names:
                found = value if sign else next(iter(self.arguments[i + 1 : i + 2]), "")
        return found

    def setting(self, variable: str, *names: str) -> str | None:
        """An option, or the variable that stands for it; the option wins."""
        return self.value(*names) or self.env.get(variable)

    def given(self, names: set[str]) -> bool:
        return any(word.partition("=")[0] in names for word in self.arguments)


def _expanded(said: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    """`$NAME` as a word of its own is split, `${NAME}` is not; a name that isn't known stays as it is."""
    for word in said:
        if (m := re.fullmatch(r"\$(\w+)", word)) and m[1] in env:
            yield from words(env[m[1]])
        else:
            yield re.sub(r"\$\{(\w+)\}", lambda m: env.get(m[1], m[0]), word)


def _true(value: str) -> bool:
    return value.lower() in _TRUE


def _sandbox(unit: Unit) -> Iterator[str]:
    if _true(unit.last("Service", "PrivateDevices")):
        yield "private_devices"
    allowed = unit.all("Service", "DeviceAllow")
    closed = unit.last("Service", "DevicePolicy") in ("closed", "strict") or bool(allowed)
    if closed and not any(re.match(r"/dev/dxg\b|char-dxg\b|char-\*|/dev/\*", value) for value in allowed):
        yield "devices_closed_without_dxg"
    user = unit.last("Service", "User")
    if user in ("", "root", "0") and not _true(unit.last("Service", "DynamicUser")):
        yield "root_user"


def _libraries(env: Mapping[str, str]) -> Iterator[str]:
    folders = [folder.rstrip("/") for folder in env.get("LD_LIBRARY_PATH", "").split(":")]
    if WSL_LIB not in folders:
        yield "no_wsl_lib_path"
    if any("stubs" in folder.split("/") for folder in folders):
        yield "stub_library_path"


def _restart(unit: Unit) -> Iterator[str]:
    if unit.last("Service", "Restart") in ("", "no"):
        yield "no_restart"
    elif _without_limit(unit):
        yield "restart_without_limit"
    limit = _seconds(unit.last("Service", "TimeoutStartSec") or unit.last("Service", "TimeoutSec"))
    if limit is not None and 0 < limit < _SHORTEST_START_S and _waits(unit):
        yield "start_timeout_too_short"


def _without_limit(unit: Unit) -> bool:
    intervals = [unit.last("Unit", name) for name in ("StartLimitIntervalSec", "StartLimitInterval")]
    burst = unit.last("Unit", "StartLimitBurst")
    if not any((*intervals, burst)):
        return True
    return any(_seconds(value) == 0 for value in intervals if value) or burst == "0"


def _waits(unit: Unit) -> bool:
    """Whether the start goes on until the model is loaded."""
    if unit.last("Service", "Type") in ("notify", "notify-reload"):
        return True
    after = " ".join(unit.all("Service", "ExecStartPost"))
    return re.search(r"health|curl|wget|until|while|wait|nc\b|/v1/", after) is not None


def _seconds(value: str) -> float | None:
    """A time span of systemd.time(7); infinity and what can't be read are None."""
    parts = re.findall(r"([\d.]+)\s*([a-z]*)", value.lower())
    if not parts or re.sub(r"[\d.]+\s*[a-z]*\s*", "", value.lower()):
        return None
    total = 0.0
    for number, unit in parts:
        scale = _UNITS.get(unit, _UNITS.get(unit.rstrip("s")))  # minutes are written min, hours hour
        if scale is None:
            scale = {"minute": 60.0, "hour": 3600.0, "day": 86400.0, "second": 1.0, "w": 604800.0}.get(unit.rstrip("s"))
        if scale is None or number.count(".") > 1:
            return None
        total += float(number) * scale
    return total


def _exposed(call: _Call) -> Iterator[str]:
    hosts = (call.setting("LLAMA_ARG_HOST", "--host") or "127.0.0.1").split(",")
    if any(host.strip() in _WILDCARDS for host in hosts):
        key = call.setting("LLAMA_API_KEY", "--api-key") or call.setting("LLAMA_ARG_API_KEY_FILE", "--api-key-file")
        yield "listens_everywhere" if key else "listens_everywhere_without_key"
    if call.value("--api-key"):
        yield "secret_in_argv"
    by_variable = (name for name, value in call.env.items() if value and name.startswith("LLAMA_ARG_"))
    flags = [*call.arguments, *(f"--{name[10:].lower().replace('_', '-')}" for name in by_variable)]
    if any(tool_flag(flag) for flag in flags):
        yield "tools_exposed"
    if not call.setting("LLAMA_ARG_PORT", "--port") and not call.open_ended:
        yield "no_port"


def _paths(call: _Call) -> Iterator[str]:
    model = call.setting("LLAMA_ARG_MODEL", "-m", "--model") or call.setting("LLAMA_ARG_MODELS_DIR", "--models-dir") or ""
    projector = call.setting("LLAMA_ARG_MMPROJ", "-mm", "--mmproj") or ""
    if any(re.match(r"/mnt/[a-z](/|$)", path, re.I) for path in (model, projector)):
        yield "model_on_drvfs"
    if any(path and not re.match(r"[/%$]", path) for path in (call.started, call.program, model)):
        yield "relative_path"


def _memory(unit: Unit, call: _Call) -> Iterator[str]:
    if call.given(_REMOVED):
        yield "removed_flag"
    mode = call.setting("LLAMA_ARG_LOAD_MODE", "-lm", "--load-mode") or ""
    if ("mlock" in mode or call.given({"--mlock"})) and not unit.last("Service", "LimitMEMLOCK"):
        yield "mlock_without_limit"
