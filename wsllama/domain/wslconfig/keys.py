"""The keys that WSL knows in .wslconfig and wsl.conf: how it turns their text into values, and how values are written. Pure.

Sources: microsoft/WSL, src/windows/common/WslCoreConfig.cpp, src/linux/init/config.cpp and src/shared/configfile (August 2026).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["wslconfig", "wslconf"]
Type = Literal["bool", "int", "octal", "size", "enum", "ports", "ip", "mac", "path", "file", "string"]
FILES: dict[Kind, str] = {"wslconfig": ".wslconfig", "wslconf": "wsl.conf"}

INT_MIN, INT_MAX, U64 = -(2**31), 2**31 - 1, 2**64
UNITS = {"": 0, "B": 0, "K": 10, "KB": 10, "M": 20, "MB": 20, "G": 30, "GB": 30, "T": 40, "TB": 40}

_SPACES = r"[ \t-\r]*"  # what C's isspace takes
_INT = re.compile(_SPACES + r"([+-]?)(0[xX][0-9A-Fa-f]+|0[0-7]*|[1-9][0-9]*)")
_SIZE = re.compile(_SPACES + r"([+-]?)([0-9]+)([A-Z]{0,2})")
_PORT = re.compile(_SPACES + r"([+-]?[0-9]+)")
_MAC = re.compile(r"[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}")
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_QUAD = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")
_NETWORKING = {"none": "None", "nat": "Nat", "bridged": "Bridged", "mirrored": "Mirrored", "consomme": "Consomme"}
_ENUMS = {
    "wsl2.networkingMode": {**_NETWORKING, "virtioproxy": "Consomme"},  # its name until June 2026
    "experimental.autoMemoryReclaim": {"gradual": "Gradual", "dropcache": "DropCache", "disabled": "Disabled"},
    "automount.cgroups": {"v1": "v1", "v2": "v2"},
}


class Meaning(NamedTuple):
    """What WSL makes of a value's text: `value` is None when nothing of it is taken; `warnings`: kinds, in their order."""

    value: Any
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """One setting. `name`: as section.key; `alias`: another name for the same setting, or empty."""

    kind: Kind
    name: str
    type: Type
    alias: str = ""

    @property
    def section(self) -> str:
        return self.name.partition(".")[0]

    def meaning(self, raw: str) -> Meaning:
        """Read a value as WSL does. raw: one character a byte, quotes and escapes already taken out."""
        return _READERS[self.type](self, raw)

    def normal(self, value: Any) -> Any:
        """The value as `parse` gives it back, for a wanted one: sizes may be text with a unit, enums in any case.

        Raises ValueError, one sentence, when WSL would not take it or would change it.
        """
        if isinstance(value, bool) != (self.type == "bool"):
            raise ValueError(f"{self.name} = {value!r}: {_WANTED[self.type]} is wanted")
        normal = _CHECKS[self.type](self, value)
        if normal is None:
            choice = f"one of {', '.join(dict.fromkeys(_ENUMS[self.name].values()))}" if self.type == "enum" else ""
            raise ValueError(f"{self.name} = {value!r}: {choice or _WANTED[self.type]} is wanted")
        return normal

    def render(self, normal: Any) -> str:
        """The text after `=` that WSL reads as this value, which comes from `normal`; plain ASCII."""
        if self.type == "bool":
            return "true" if normal else "false"
        if self.type == "octal":
            return f"0{normal:o}" if normal > 0 else str(normal)
        if self.type == "size":
            unit = next((u for u in ("TB", "GB", "MB", "KB") if normal and normal % (1 << UNITS[u]) == 0), "")
            return f"{normal >> UNITS[unit]}{unit}"
        if self.type == "ports":
            return ",".join(str(port) for port in normal)
        text = str(normal)
        for plain, letter in ("\\\\", '""', "\bb", "\nn", "\tt"):
            text = text.replace(plain, "\\" + letter)
        return f'"{text}"' if "#" in text or text != text.strip(" ") else text

    def same(self, held: Any, normal: Any) -> bool:
        """Whether two values of this key, as `parse` gives them, mean the same to Windows."""
        if self.type == "path" and isinstance(held, str):
            return held.replace("/", "\\") == str(normal).replace("/", "\\")
        return bool(held == normal)


def _bool(_key: Key, raw: str) -> Meaning:
    value = {"true": True, "1": True, "false": False, "0": False}.get(raw.lower())
    return Meaning(value, () if value is not None else ("ConfigInvalidBoolean",))


def _int(key: Key, raw: str) -> Meaning:
    match = _INT.fullmatch(raw)
    if not match:
        return Meaning(None, ("ConfigInvalidInteger",))
    sign, digits = match.groups()
    base = 16 if digits[1:2] in ("x", "X") else 8 if digits.startswith("0") else 10
    number = int(digits, base) * (-1 if sign == "-" else 1)
    if key.kind == "wslconf" and not INT_MIN <= number <= INT_MAX:
        return Meaning(None, ("ConfigInvalidInteger",))
    return Meaning(min(max(number, INT_MIN), INT_MAX))  # a long has 32 bits on Windows, and strtol stops at its ends


def _size(_key: Key, raw: str) -> Meaning:
    match = _SIZE.fullmatch(raw)
    if not match or match[3] not in UNITS or (not int(match[2]) and raw != "0" + match[3]):
        return Meaning(None, ("InvalidNumberString",))
    number = int(match[2])
    if number >= U64:
        number = U64 - 1
    elif match[1] == "-":
        number = U64 - number
    return Meaning((number << UNITS[match[3]]) % U64)


def _enum(key: Key, raw: str) -> Meaning:
    value = _ENUMS[key.name].get(raw.lower())
    return Meaning(value, () if value else ("ConfigInvalidEnum",))


def _ports(_key: Key, raw: str) -> Meaning:
    good, bad = set(), 0
    for item in filter(None, raw.split(",")):
        match = _PORT.match(item)
        if match and 1 <= int(match[1]) <= 65535:
            good.add(int(match[1]))
        else:
            bad += 1
    return Meaning(sorted(good) or None, ("ConfigInvalidInteger",) * bad)


def _ip(_key: Key, raw: str) -> Meaning:
    return Meaning(raw) if _QUAD.fullmatch(raw) else Meaning(None, ("ConfigInvalidIp",))


def _mac(_key: Key, raw: str) -> Meaning:
    if not _MAC.fullmatch(raw):
        return Meaning(None, ("ConfigMacAddress",))
    return Meaning(raw.upper().replace("-", ":"))


def _text(key: Key, raw: str) -> Meaning:
    held = raw.encode("latin-1")
    try:
        return Meaning(held.decode("utf-8"))
    except UnicodeDecodeError:
        if key.kind == "wslconfig":
            return Meaning(held.decode("utf-8", "replace"))
        return Meaning({"bytes_b64": base64.b64encode(held).decode("ascii")})


_READERS: dict[str, Callable[[Key, str], Meaning]] = {
    "bool": _bool,
    "int": _int,
    "octal": _int,
    "size": _size,
    "enum": _enum,
    "ports": _ports,
    "ip": _ip,
    "mac": _mac,
    **dict.fromkeys(("path", "file", "string"), _text),
}


def _want_size(_key: Key, value: Any) -> int | None:
    if isinstance(value, str):
        match = re.fullmatch(r"(0|[1-9][0-9]{0,19})([A-Z]{0,2})", value)
        value = int(match[1]) << UNITS[match[2]] if match and match[2] in UNITS else None
    return value if isinstance(value, int) and 0 <= value < U64 else None


def _want_ports(_key: Key, value: Any) -> list[int] | None:
    good = isinstance(value, list | tuple) and all(type(port) is int and 1 <= port <= 65535 for port in value)
    return sorted(set(value)) or None if good else None


def _want_text(key: Key, value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    if not value.isascii():
        raise ValueError(f"{key.name} = {value!r}: only ASCII survives in WSL's settings; use a name without other letters")
    legal = "" if key.type in ("path", "file") else "\b\n\t"
    if any(c not in legal and (c < " " or c == "\x7f") for c in value):
        raise ValueError(f"{key.name} = {value!r}: control characters are not allowed; in a path write \\\\ or /")
    return value


_CHECKS: dict[str, Callable[[Key, Any], Any]] = {
    "bool": lambda _key, value: value,
    **dict.fromkeys(("int", "octal"), lambda _key, value: value if type(value) is int and INT_MIN <= value <= INT_MAX else None),
    "size": _want_size,
    "ports": _want_ports,
    **dict.fromkeys(("enum", "ip", "mac"), lambda key, value: key.meaning(value).value if isinstance(value, str) else None),
    **dict.fromkeys(("path", "file", "string"), _want_text),
}
_WANTED = {
    "bool": "true or false",
    "int": "a whole number of at most 32 bits",
    "octal": "a whole number of at most 32 bits",
    "size": "a whole number with an upper-case unit and no blank, as in 16GB (B, KB, MB, GB or TB)",
    "enum": "a word",
    "ports": "a list of ports from 1 to 65535",
    "ip": "an IPv4 address, as in 10.255.255.254,",
    "mac": "an address like 00:15:5D:01:02:03",
    **dict.fromkeys(("path", "file", "string"), "text"),
}

_WSLCONFIG: dict[Type, str] = {
    "path": "wsl2.kernel wsl2.kernelModules wsl2.swapFile wsl2.systemDistro wsl2.debugConsoleLogFile wsl2.crashDumpFolder"
    " general.distributionInstallPath",
    "string": "wsl2.kernelCommandLine wsl2.vmSwitch wsl2.loadKernelModules",
    "size": "wsl2.memory wsl2.swap wsl2.defaultVhdSize experimental.swiotlb",
    "int": "wsl2.processors wsl2.kernelDebugPort wsl2.vmIdleTimeout wsl2.kernelBootTimeout wsl2.distributionStartTimeout"
    " wsl2.mountDeviceTimeout wsl2.dhcpTimeout wsl2.maxCrashDumpCount general.instanceIdleTimeout"
    " experimental.initialAutoProxyTimeout",
    "bool": "wsl2.localhostForwarding wsl2.nestedVirtualization wsl2.gpuSupport wsl2.guiApplications wsl2.telemetry wsl2.virtio"
    " wsl2.hostFileSystemAccess wsl2.hardwarePerformanceCounters wsl2.dhcp wsl2.dnsProxy wsl2.loadDefaultKernelModules"
    " wsl2.isolateDistroCgroup wsl2.dnsTunneling wsl2.firewall wsl2.autoProxy wsl2.debugConsole wsl2.earlyBootLogging"
    " wsl2.virtio9p wsl2.virtiofs wsl2.ipv6 wsl2.safeMode experimental.sparseVhd experimental.bestEffortDnsParsing"
    " experimental.hostAddressLoopback experimental.setVersionDebug experimental.virtioFsAggregateShares",
    "enum": "wsl2.networkingMode experimental.autoMemoryReclaim",
    "ports": "experimental.ignoredPorts",
    "ip": "experimental.dnsTunnelingIpAddress",
    "mac": "wsl2.macAddress",
}
_WSLCONF: dict[Type, str] = {
    "bool": "automount.enabled automount.mountFsTab automount.ldconfig interop.enabled interop.appendWindowsPath"
    " network.generateHosts network.generateResolvConf time.useWindowsTimezone fileServer.enabled fileServer.logTruncate"
    " gpu.enabled gpu.appendLibPath boot.systemd boot.protectBinfmt general.guiApplications",
    "file": "automount.root fileServer.logFile",
    "string": "automount.options network.hostname user.default boot.command",
    "enum": "automount.cgroups",
    "octal": "filesystem.umask",
    "int": "fileServer.logLevel boot.initTimeout",
}
_ALIASED = ("networkingMode", "dnsTunneling", "firewall", "autoProxy")


def _table(kind: Kind, types: dict[Type, str]) -> tuple[Key, ...]:
    aliases = {f"wsl2.{name}": f"experimental.{name}" for name in _ALIASED}
    return tuple(Key(kind, name, of, aliases.get(name, "")) for of, names in types.items() for name in names.split())


KEYS: dict[Kind, tuple[Key, ...]] = {"wslconfig": _table("wslconfig", _WSLCONFIG), "wslconf": _table("wslconf", _WSLCONF)}
SECTIONS: dict[Kind, dict[str, str]] = {kind: {k.section.lower(): k.section for k in of} for kind, of in KEYS.items()}
_BY_NAME = {kind: {name.lower(): key for key in of for name in (key.name, key.alias) if name} for kind, of in KEYS.items()}


def find(kind: Kind, name: str) -> Key | None:
    """The key that a full name (section.key, any case, alias or not) stands for in a file of this kind, or None."""
    return _BY_NAME[kind].get(name.lower())
