"""Changes .wslconfig and wsl.conf so that WSL reads what is wanted, and everything else as before. Pure."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Any

from wsllama.domain.wslconfig.keys import FILES, Key, Kind, find
from wsllama.domain.wslconfig.reader import Line, Reading, decode, read, units

_DNS, _DNS_IP = "wsl2.dnsTunneling", "experimental.dnsTunnelingIpAddress"
_LONE_SURROGATE = re.compile("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]")


def edit(data: bytes | None, kind: Kind, changes: Mapping[str, Any]) -> bytes:
    """The bytes that give WSL the wanted values.

    data: the file as it is, None when there is none. changes: value by full name (section.key, aliases and any case too), as
    `parse` gives values, sizes also as in "16GB"; None takes a setting out, so that WSL's default holds.
    Returns `data` itself when WSL reads all that already. Otherwise UTF-8 without BOM (wsl.conf: with LF), in which other lines
    stay; the line at which WSL stopped reading, and in wsl.conf all behind it, becomes a comment. A bad address for DNS
    switches dnsTunneling off until it is changed: a wanted dnsTunneling is written behind it.
    Raises ValueError, one sentence, for an unknown name or a value that WSL would not take.
    """
    wanted = _wanted(kind, changes)
    before = read(decode(data or b"", kind), kind)
    if all(_holds(before, key, value) for key, value in wanted.items()):
        return data or b""
    text = _writable(data or b"", kind)
    for key in sorted(wanted, key=lambda key: key.name == _DNS):  # last: an address that is changed decides over it
        text = _changed(read(text, kind), key, wanted[key])
    return _encode(text, kind)


def _wanted(kind: Kind, changes: Mapping[str, Any]) -> dict[Key, Any]:
    wanted = dict[Key, Any]()
    for name, value in changes.items():
        key = find(kind, name)
        if key is None:
            raise ValueError(f"{name}: {FILES[kind]} has no such setting; look at its name")
        if key in wanted:
            raise ValueError(f"{name}: {key.name} is wanted twice; leave one of them out")
        wanted[key] = None if value is None else key.normal(value)
    return wanted


def _holds(reading: Reading, key: Key, value: Any) -> bool:
    held = reading.parsed.values.get(key.name)
    return held is None if value is None else key.same(held, value)


def _changed(reading: Reading, key: Key, value: Any) -> str:
    """The text after one change."""
    if _holds(reading, key, value):
        return reading.text
    text, lines = reading.text, [line for line in reading.lines if line.key is key]
    forced_at = _forced_at(reading) if key.name == _DNS else 0
    if value is None and forced_at:
        lines += [line for line in reading.lines if line.key and line.key.name == _DNS_IP]
    early = [line for line in lines if value is None or line.start < forced_at]
    if not early and lines:
        first, last = lines[0].value
        return text[:first] + key.render(value) + text[last:]
    for line in sorted(early, key=lambda line: line.start, reverse=True):
        if line.key is key:
            text = text[: line.start] + (text[line.comment : line.end] if line.comment is not None else "") + text[line.end :]
        else:
            text = _commented(text, line)
    if value is None:
        return text
    if early:  # what is left of them stands behind the address, or is inserted there
        return _changed(read(text, key.kind), key, value)
    return _inserted(reading, key, key.render(value), forced_at)


def _forced_at(reading: Reading) -> int:
    """Where the address ends that WSL refuses and therefore switches dnsTunneling off, or 0."""
    for line in reading.lines:
        if line.state == "taken" and "ConfigInvalidIp" in line.warnings:
            return line.end
    return 0


def _inserted(reading: Reading, key: Key, value: str, behind: int) -> str:
    """The text with a line for a key that it has no line for, at `behind` or after it."""
    text, pair = reading.text, f"{key.name.partition('.')[2]}={value}"
    newline = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    section = key.section.lower()
    places = [line for line in reading.lines if line.clean and line.section.lower() == section and line.what != "broken"]
    if places and places[-1].end >= behind:
        place = places[-1]
        head, tail = text[: place.end], text[place.end :]
        return head + (pair + newline if place.closed else _line_end(head, newline) + pair) + tail
    at = _end(reading)
    head, tail = text[:at], text[at:]
    if head and not head.endswith("\n"):
        head += _line_end(head, newline)
    gap = newline if head.strip() and not re.search(r"\n\s*\n$", head) else ""
    return f"{head}{gap}[{key.section}]{newline}{pair}{newline}{tail}"


def _line_end(head: str, newline: str) -> str:
    # a line feed behind a carriage return would be one line end with it, and go on with what a backslash began
    return "\r\n" if head.endswith("\r") else newline


def _end(reading: Reading) -> int:
    """Where a new section goes: at the end, but before a backslash that the end cuts off, which would swallow it."""
    last = reading.lines[-1] if reading.lines else None
    if last and last.problem == "ConfigInvalidEscape" and not last.closed and reading.text.endswith("\\"):
        return last.start
    return len(reading.text)


def _writable(data: bytes, kind: Kind) -> str:
    """The text as it may be written: WSL reads it to its end, and nothing that it didn't read before."""
    plain = None
    if data.startswith(codecs.BOM_UTF16_BE):
        plain = data[2:].decode("utf-16-be", "replace")
    elif kind == "wslconf" and data.startswith(codecs.BOM_UTF16_LE):
        plain = _whole(units(data[2:]))
    if kind == "wslconf":
        return _writable_conf(data if plain is None else plain.encode("utf-8"), plain is None)
    return _writable_config(decode(data, kind) if plain is None else _as_comments(plain))


def _writable_config(text: str) -> str:
    while (stop := (reading := read(text, "wslconfig")).stop) is not None:
        text = _commented(text, stop)
    # a mark behind the one that is left out would be one itself, and its line no longer refused
    return "# " + text if reading.text.startswith("\ufeff") else text


def _writable_conf(data: bytes, readable: bool) -> str:
    text = data.decode("latin-1")
    reading = read(text, "wslconf")
    at = 0 if not readable else reading.stop.start if reading.stop else len(text)
    tail = re.sub("\r\n?", "\n", text[at:].removeprefix("\xef\xbb\xbf"))
    return _with_line_feeds(text[:at], reading.lines) + _as_comments(tail)


def _with_line_feeds(text: str, lines: list[Line]) -> str:
    for line in lines:
        for at in line.dropped:
            if at < len(text):
                text = text[:at] + '""' + text[at + 2 :]  # nothing too, wherever it stands in a value
    reading = read(re.sub("\r+\n", "\n", text), "wslconf")
    text = reading.text
    for start, end in reversed(reading.comments):
        text = text[:start] + text[start:end].replace("\r", "\n# ") + text[end:]
    return text.replace("\r", "\n")


def _commented(text: str, line: Line) -> str:
    """The text with one of its lines turned into a comment."""
    cut = line.closed and not text[: line.end].endswith("\n")  # by a carriage return, which ends no comment
    return text[: line.start] + _as_comments(text[line.start : line.end]) + "\n" * cut + text[line.end :]


def _as_comments(text: str) -> str:
    """Every line of it a comment; empty lines and comments stay."""
    parts = re.split("(\r\n|\r|\n)", text)
    parts[::2] = [part if part.strip(" \t")[:1] in ("", "#") else f"# {part}" for part in parts[::2]]
    return "".join(parts)


def _whole(text: str) -> str:
    # half a pair has no UTF-8; another character with the same low byte means the same to WSL
    halves_gone = _LONE_SURROGATE.sub(lambda found: chr(0xE000 | ord(found[0]) & 0xFF), text)
    return halves_gone.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _encode(text: str, kind: Kind) -> bytes:
    return text.encode("latin-1") if kind == "wslconf" else _whole(text).encode("utf-8")
