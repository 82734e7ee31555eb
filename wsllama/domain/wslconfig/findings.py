"""What is wrong in a .wslconfig or wsl.conf, in words for whoever wrote it. Pure.

Judged is what WSL does with the file, and whether a server in WSL can live with it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from wsllama.domain.wslconfig.keys import FILES, SECTIONS, Key, Kind, find
from wsllama.domain.wslconfig.reader import Line, Reading, decode, read

GIB = 1 << 30
_OTHER: dict[Kind, Kind] = {"wslconfig": "wslconf", "wslconf": "wslconfig"}
_LOOK_ALIKE: dict[Kind, re.Pattern[str]] = {
    "wslconfig": re.compile(r"(?!\.wslconfig$)[._]?wsl[._-]?conf(ig)?(\.(txt|ini|conf|config|cfg))*", re.I),
    "wslconf": re.compile(r"(?!wsl\.conf$)[._]?wsl[._-]?conf(ig)?(\.(txt|ini|conf|config|cfg))*", re.I),
}
# For a name that is wanted: why it is refused. Not in `Key.normal`, because what a user has may have to be put back.
UNSOUND = {"experimental.sparseVhd": "sparseVhd has damaged file systems, and new versions of WSL pass over it: leave it out"}
_COMMANDS = ("boot.command", "wsl2.kernelCommandLine")  # a ; is at home in them


@dataclass(frozen=True)
class Finding:
    """`line`: 1-based, of the file as an editor shows it, None for the file as a whole. `text`: what; `fix`: what to do."""

    id: str
    line: int | None
    text: str
    fix: str


def lint(data: bytes, kind: Kind, path: str | None = None) -> list[Finding]:
    """What keeps WSL from doing what a file says, and what a server in WSL can't live with; in the order of the lines.

    path: the file's name or path, of either system; a name that only looks like the right one is a finding.
    """
    text = decode(data, kind)
    reading = read(text, kind)
    found = [*look_alikes([re.split(r"[\\/]", path)[-1]] if path else [], kind), *_encoding(data, kind)]
    for line in reading.lines:
        at = _place(text, line.start)
        found += [Finding(name, at, what, fix) for name, what, fix in _line(line, reading, kind)]
    return found + [Finding(name, _line_of(reading, key), what, fix) for name, key, what, fix in _effects(reading, kind)]


def look_alikes(names: Iterable[str], kind: Kind = "wslconfig") -> list[Finding]:
    """Files among these names (a folder's listing) that somebody takes for the one that WSL reads."""
    right = FILES[kind]
    return [
        Finding("wrong_file", None, f"{name} is not a name that WSL looks for: it reads {right} only.", f"Rename it to {right}.")
        for name in names
        if _LOOK_ALIKE[kind].fullmatch(name)
    ]


def advise(data: bytes, kind: Kind) -> list[Finding]:
    """What else is worth knowing: values that WSL refuses and for which `lint` has no name, and settings without effect."""
    text = decode(data, kind)
    reading = read(text, kind)
    found = []
    for line in reading.lines:
        at = _place(text, line.start)
        for what, fix in (_REFUSED[warned] for warned in dict.fromkeys(line.warnings) if warned in _REFUSED):
            found.append(Finding("refused_value", at, f"{line.name}: WSL does not take {_shown(line)}: {what}.", fix))
        if line.problem in _MALFORMED and line is not reading.stop:
            what, fix = _MALFORMED[line.problem]
            found.append(Finding("refused_line", at, f"WSL passes over this line: {what}.", fix))
    return found + [Finding("mirrored", _line_of(reading, key), what, fix) for key, what, fix in _mirrored(reading)]


_REFUSED = {
    "ConfigInvalidInteger": ("it is not a whole number in range", "Write digits only; a port is 1 to 65535."),
    "ConfigInvalidEnum": ("it is none of the words that this setting has", "Look up the setting's words, or take the line out."),
    "ConfigInvalidIp": ("it is no IPv4 address, so DNS tunnelling is switched off", "Write an address like 10.255.255.254."),
    "ConfigMacAddress": ("it is no MAC address, so WSL does not start at all", "Write an address like 00:15:5D:01:02:03."),
}


_MALFORMED = {
    "ConfigInvalidKey": ("it begins with what no setting begins with", "Begin comments with #."),
    "ConfigExpected(=)": ("there is no = behind the setting's name, which has letters and digits only", "Write name=value."),
    'ConfigExpected(")': ("a quote is open at its end", 'Close the quote, or write \\" for one that belongs to the value.'),
    **dict.fromkeys(
        ("ConfigInvalidSection", "ConfigExpected(])", "ConfigExpected(eol)"),
        ("a header is a bare name in brackets, and nothing else stands in its line", "Write it as in [wsl2]."),
    ),
}


def _mirrored(reading: Reading) -> Iterator[tuple[str, str, str]]:
    """What to know about mirrored networking: the setting, what, fix."""
    values = reading.parsed.values
    if values.get("wsl2.networkingMode") != "Mirrored":
        for key in ("experimental.hostAddressLoopback", "experimental.ignoredPorts"):
            if key in values:
                yield key, f"{key} has an effect in mirrored networking only.", "Take it out, or write networkingMode=mirrored."
        return
    if "wsl2.localhostForwarding" in values:
        what = "localhostForwarding has no effect in mirrored networking, where localhost is shared anyway."
        yield "wsl2.localhostForwarding", what, "Take the line out."
    if values.get("wsl2.firewall") is not False:
        what = "In mirrored networking Windows' Hyper-V firewall keeps other machines out until a rule lets them in."
        fix = (
            "Add a rule for a port that other machines shall reach; this machine needs none. Where a rule is there and 0.0.0.0"
            " can't be reached all the same, run `wsl --update`, or take networkingMode=mirrored out."
        )
        yield "wsl2.networkingMode", what, fix


def _encoding(data: bytes, kind: Kind) -> Iterator[Finding]:
    fix = "Save it as UTF-8 without a mark (in Notepad: UTF-8, not UTF-8 with BOM)."
    if data.startswith(codecs.BOM_UTF8):
        ends = "it ends WSL's reading in the first line" if kind == "wslconf" else "old versions of WSL pass over the whole file"
        yield Finding("bom", 1, f"The file begins with a byte order mark: {ends}.", fix)
    elif data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data[:2]:
        what = "WSL can't read it" if kind == "wslconf" else "old versions of WSL pass over the whole file"
        yield Finding("utf16", 1, f"The file is UTF-16, as PowerShell 5.1 writes with >: {what}.", fix)
    if kind == "wslconf" and b"\r\n" in data:
        what = "The lines end as on Windows: versions of WSL up to 2.3 pass over the whole file."
        yield Finding("crlf_old_builds", 1, what, "Save it with LF, as Linux does: sed -i 's/\\r$//' /etc/wsl.conf")


def _line(line: Line, reading: Reading, kind: Kind) -> Iterator[tuple[str, str, str]]:
    """Findings of one line: id, what, fix."""
    raw = reading.text[line.start : line.end]
    if line.what == "broken":
        yield from _broken(line, raw, kind)
    elif line.what == "header":
        yield from _section(line.name, kind)
    elif line.state == "unknown":
        yield from _unknown(line, kind)
    elif line.state == "duplicate" and line.key:
        yield from _again(line, next(other for other in reading.lines if other.key is line.key))
    elif line.key:
        yield from _taken(line, line.key, reading)
    if line is reading.stop and kind == "wslconf":
        yield (
            "stops_parsing",
            "WSL stops reading here: everything from this line on has no effect.",
            "Repair this line, or put # before it.",
        )


def _broken(line: Line, raw: str, kind: Kind) -> Iterator[tuple[str, str, str]]:
    if raw.lstrip(" \t").startswith(";"):
        yield (
            "semicolon_comment",
            "A ; does not begin a comment here: WSL takes the line for a setting.",
            "Begin comments with #.",
        )
    elif line.problem == "ConfigInvalidEscape":
        what = "A backslash stands before a character that it can't stand before, so WSL drops the whole line."
        yield "bad_escape", what, "Write each backslash twice, or use / in paths: C:\\\\vm\\\\swap.vhdx or C:/vm/swap.vhdx"
    elif line.header and re.search(r"\]\s*;", raw):
        what = "A ; does not begin a comment here: WSL refuses the header, and its settings with it."
        yield "semicolon_comment", what, "Begin comments with #."
    elif line.header and line.section and line.section.lower() not in SECTIONS[kind] and kind == "wslconfig":
        what = f"WSL refuses the header {raw.strip()}, and what stands below it belongs to no section that it knows."
        yield "unknown_section", what, f"Write the bare name in brackets, one of {_sections(kind)}."


def _section(name: str, kind: Kind) -> Iterator[tuple[str, str, str]]:
    if name.lower() in SECTIONS[kind]:
        return
    other = _OTHER[kind]
    if name.lower() in SECTIONS[other]:
        yield (
            "wrong_file",
            f"[{name}] belongs to {FILES[other]}: here WSL passes over its settings.",
            f"Move it to {FILES[other]}.",
        )
    else:
        yield (
            "unknown_section",
            f"WSL knows no section [{name}], so its settings have no effect.",
            f"Write one of {_sections(kind)}.",
        )


def _unknown(line: Line, kind: Kind) -> Iterator[tuple[str, str, str]]:
    section, dot, name = line.name.rpartition(".")
    if not line.section:
        what = f"{line.name} stands above the first section that WSL accepts, so it has no effect."
        yield "orphan_key", what, f"Move it below its section: {_homes(name, kind) or _sections(kind)}."
    elif dot and section.lower() in SECTIONS[kind]:
        if homes := _homes(name, kind):
            yield "wrong_section", f"{name} has no effect in [{section}]: it belongs to {homes}.", f"Move it to {homes}."
        else:
            there = f"; it belongs to {FILES[_OTHER[kind]]}" if _homes(name, _OTHER[kind]) else ""
            yield (
                "unknown_key",
                f"WSL knows no {name} in [{section}]{there}, so it has no effect.",
                "Correct its name, or take it out.",
            )


def _again(line: Line, first: Line) -> Iterator[tuple[str, str, str]]:
    if first.name.lower() == line.name.lower():
        what = f"{line.name} was set before: WSL takes the first one, even when its value is refused."
        yield "duplicate_key", what, "Keep one of them."
    else:
        what = f"{line.name} and {first.name} are the same setting: WSL takes the first one, {first.name}."
        yield "alias_conflict", what, "Keep one of them, best in [wsl2]."


def _taken(line: Line, key: Key, reading: Reading) -> Iterator[tuple[str, str, str]]:
    written, shown = reading.text[slice(*line.value)], _shown(line)
    if "InvalidNumberString" in line.warnings:
        what = f"{line.name}: WSL does not take {shown} for a size and uses its default."
        yield "bad_size", what, f"Write {_size(line.raw)}: a whole number, an upper-case unit, no blank."
    if "ConfigInvalidBoolean" in line.warnings:
        yield "bad_bool", f"{line.name}: WSL does not take {shown} and uses its default.", "Write true or false."
    if key.type in ("path", "file") and any(c in line.raw for c in "\b\n\t"):
        what = f"{line.name}: a backslash with the letter after it became a control character, so the path is another one."
        yield "control_characters", what, "Write each backslash twice, or use / in paths."
    if key.kind == "wslconfig" and not written.isascii():
        kept = line.raw.encode("latin-1").decode("utf-8", "replace")
        what = f"{line.name}: WSL keeps one byte of each character, so {written} becomes {kept}."
        yield "non_ascii_value", what, "Use a name or a path of plain ASCII."
    if _semicolon(key, written):
        what = f"{line.name}: a ; does not begin a comment here: it became part of the value."
        yield "semicolon_comment", what, "Begin comments with #."


def _semicolon(key: Key, written: str) -> bool:
    bare = re.sub(r'"[^"]*"', "", written)
    if key.type in ("path", "file", "string"):
        return key.name not in _COMMANDS and re.search(r"\s;", bare) is not None
    return ";" in bare


def _effects(reading: Reading, kind: Kind) -> Iterator[tuple[str, str, str, str]]:
    """Findings about what WSL takes from the whole file: id, the setting, what, fix."""
    values = reading.parsed.values
    if kind == "wslconf":
        if values.get("interop.enabled") is False:
            fix = "Take the line out, or give the Windows profile's path in the settings."
            yield "interop_disabled", "interop.enabled", "Windows programs can't be started from this distro.", fix
        if values.get("automount.ldconfig") is False:
            what = "The GPU's libraries in /usr/lib/wsl/lib are not made known to programs."
            yield "ldconfig_disabled", "automount.ldconfig", what, "Take the line out."
        if values.get("gpu.enabled") is False:
            yield "gpu_disabled", "gpu.enabled", "The distro does not get the GPU.", "Take the line out."
        if values.get("boot.systemd") is not True:
            what = "systemd is not switched on, so no service runs."
            yield "systemd_off", "boot.systemd", what, "Write systemd=true below [boot]."
        return
    if values.get("wsl2.gpuSupport") is False:
        yield "gpu_disabled", "wsl2.gpuSupport", "No distro gets the GPU.", "Take the line out."
    if values.get("experimental.sparseVhd") is True:
        what = "sparseVhd has damaged file systems: new versions of WSL pass over it."
        yield "sparse_vhd", "experimental.sparseVhd", what, "Take the line out."
    if 0 < values.get("wsl2.memory", 0) <= 8 * GIB:
        what = "WSL gets 8 GB or less, which is too little for the model."
        yield "memory_too_small_for_model", "wsl2.memory", what, "Give it more, as in memory=24GB."
    if not all(values.get(name, 0) < 0 for name in ("wsl2.vmIdleTimeout", "general.instanceIdleTimeout")):
        what = "WSL ends a distro soon after its last window is closed, and the server with it; it needs two settings to stay."
        yield (
            "idle_keys_missing_for_service",
            "",
            what,
            "Write vmIdleTimeout=-1 below [wsl2] and instanceIdleTimeout=-1 below [general].",
        )


def _place(text: str, offset: int) -> int:
    return len(re.findall(r"\r\n|\r|\n", text[:offset])) + 1


def _line_of(reading: Reading, name: str) -> int | None:
    lines = (line for line in reading.lines if line.state == "taken" and line.key and line.key.name == name)
    return next((_place(reading.text, line.start) for line in lines), None)


def _shown(line: Line) -> str:
    return repr(line.raw) if line.raw else "an empty value"


def _size(raw: str) -> str:
    """The right spelling of a size that somebody meant."""
    meant = re.fullmatch(r"[\s'\"]*(\d+(?:[.,]\d+)?)\s*([kmgt]?)i?b?[\s'\"]*", raw.partition(";")[0], re.I)
    if not meant:
        return "a size like 16GB"
    number, unit = float(meant[1].replace(",", ".")), meant[2].upper() or "G"
    if number != int(number) and unit != "K":
        number, unit = number * 1024, {"T": "G", "G": "M", "M": "K"}[unit]
    return f"{int(number)}{unit}B" if int(number) else "0"


def _sections(kind: Kind) -> str:
    return ", ".join(f"[{name}]" for name in SECTIONS[kind].values())


def _homes(name: str, kind: Kind) -> str:
    keys = [find(kind, f"{section}.{name}") for section in SECTIONS[kind]]
    return " or ".join(dict.fromkeys(f"[{key.section}]" for key in keys if key))
