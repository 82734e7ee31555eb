"""Reads .wslconfig and wsl.conf character by character, as WSL does, and keeps where everything stands. Pure.

WSL's reader isn't line based: a value goes on after a backslash at a line's end, a lone carriage return ends a value but not a
comment, and a header that it refuses leaves a piece of its name in front of later keys. Source: microsoft/WSL,
src/shared/configfile/configfile.cpp (August 2026).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from wsllama.domain.wslconfig.keys import Key, Kind, find

_ESCAPES = {"\\": "\\", '"': '"', "b": "\b", "n": "\n", "t": "\t", "\r": "", "\n": ""}
_DNS, _DNS_IP = "wsl2.dnsTunneling", "experimental.dnsTunnelingIpAddress"


class Warned(NamedTuple):
    """One warning of WSL; `line` as WSL counts, which is not always the line of an editor."""

    kind: str
    line: int


@dataclass(frozen=True)
class Parsed:
    """What WSL has read. `values`: by full name, only keys that were taken; sizes in bytes; text of wsl.conf that isn't UTF-8
    as {"bytes_b64": ...}. `rc`: 0; -1: the reading stopped at a line (wsl.conf); -2: WSL doesn't start (a bad macAddress)."""

    values: dict[str, Any]
    warnings: list[Warned]
    rc: int


@dataclass
class Line:
    """A header, a `key = value`, or what WSL refuses as neither. Offsets are places in the text that was read."""

    start: int
    what: Literal["header", "key", "broken"] = "broken"
    section: str = ""  # what stands in front of keys from here on
    clean: bool = False  # the last header was a good one
    name: str = ""  # of a header, or the full name that a key is looked up by
    raw: str = ""  # the value, one character a byte
    value: tuple[int, int] = (0, 0)  # the value as written, without the blanks after it
    dropped: list[int] = field(default_factory=list)  # places of a backslash with a carriage return, which WSL drops
    comment: int | None = None  # place of a trailing comment's #
    number: int = 0  # as WSL counts
    end: int = 0  # behind what ends it
    closed: bool = False  # something ends it, not only the text
    problem: str = ""  # kind of the warning, when broken
    header: bool = False  # when broken: it starts as a header
    key: Key | None = None
    state: Literal["", "unknown", "duplicate", "taken"] = ""
    warnings: tuple[str, ...] = ()


@dataclass
class Reading:
    """A text with its lines, its whole-line and trailing comments (from # up to the line feed), and what WSL made of it."""

    text: str
    lines: list[Line]
    comments: list[tuple[int, int]]
    stop: Line | None  # the line at which WSL stopped
    parsed: Parsed


def decode(data: bytes, kind: Kind) -> str:
    """The characters that WSL's reader gets: UTF-16 units of a .wslconfig, bytes of a wsl.conf (as Latin-1)."""
    if kind == "wslconf":
        return data.decode("latin-1")
    if data.startswith(codecs.BOM_UTF16_BE):
        return ""  # the C library refuses to open it
    if data.startswith(codecs.BOM_UTF16_LE):
        return units(data[2:])
    return units(data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").encode("utf-16-le"))


def units(data: bytes) -> str:
    """UTF-16LE as one character a unit: surrogates stay apart."""
    return "".join(chr(data[i] | data[i + 1] << 8) for i in range(0, len(data) - 1, 2))


class _Cursor:
    """A place in the text. On Windows a CRLF is one line feed; in wsl.conf they are two characters."""

    def __init__(self, text: str, kind: Kind) -> None:
        self.text, self.crlf, self.at = text, kind == "wslconfig", 0

    @property
    def char(self) -> str:
        """What stands here; empty at the end."""
        if self.crlf and self.text.startswith("\r\n", self.at):
            return "\n"
        return self.text[self.at : self.at + 1]

    def step(self) -> str:
        char = self.char
        self.at += 2 if char == "\n" and self.text[self.at] == "\r" else len(char)
        return char

    def blanks(self) -> None:
        while self.char in (" ", "\t"):
            self.at += 1

    def name(self) -> str:
        """Letters and digits of ASCII from here on; the caller has seen that the first is a letter."""
        start = self.at
        while self.char.isascii() and self.char.isalnum():
            self.at += 1
        return self.text[start : self.at]

    def rest(self) -> bool:
        """Go behind the next line feed, or to the end; whether there was a line feed."""
        found = self.text.find("\n", self.at)
        self.at = found + 1 if found >= 0 else len(self.text)
        return found >= 0


def _letter(char: str) -> bool:
    return char.isascii() and char.isalpha()


class _Lines:
    """The lines of a text one by one, and its comments on the way."""

    def __init__(self, text: str, kind: Kind) -> None:
        self.cursor, self.number, self.comments = _Cursor(text, kind), 1, list[tuple[int, int]]()
        self.section, self.clean = "", False

    def __iter__(self) -> Iterator[Line]:
        here = self.cursor
        while here.at < len(here.text):
            line = Line(here.at)
            here.blanks()
            char = here.char
            if char == "#":
                self._comment()
            elif char == "\r":  # alone it ends an empty line, which isn't counted
                here.step()
            elif char == "\n":
                here.step()
                self.number += 1
            elif char:
                line.problem = self._header(line) if char == "[" else self._pair(line)
                self._finish(line)
                yield line

    def _comment(self) -> bool:
        start = self.cursor.at
        closed = self.cursor.rest()
        self.comments.append((start, self.cursor.at - closed))
        self.number += closed
        return closed

    def _header(self, line: Line) -> str:
        here, line.header, self.clean = self.cursor, True, False
        here.step()
        if not _letter(here.char):
            return "ConfigInvalidSection"
        line.name = here.name()
        before = self.section
        self.section = line.name[: len(before)].ljust(len(before), "\0")  # what stays of it when it's refused from here on
        if here.char != "]":
            return "ConfigExpected(])"
        here.step()
        here.blanks()
        if here.char not in ("", "\n", "\r", "#"):
            return "ConfigExpected(eol)"
        line.what, self.section, self.clean = "header", line.name, True
        return ""

    def _pair(self, line: Line) -> str:
        here = self.cursor
        if not _letter(here.char):
            return "ConfigInvalidKey"
        line.name = (self.section + ".") * bool(self.section) + here.name()
        here.blanks()
        if here.char != "=":
            return "ConfigExpected(=)"
        here.step()
        start = here.at
        here.blanks()
        if problem := self._value(line):
            return problem
        written = here.text[start : here.at].strip(" \t")
        first = start if not written else here.text.index(written, start)
        line.what, line.value = "key", (first, first + len(written))
        return ""

    def _value(self, line: Line) -> str:
        here, out, kept, quoted = self.cursor, "", 0, False
        while (char := here.char) not in ("", "\n", "\r") and (quoted or char != "#"):
            here.step()
            if char == "\\":
                if here.char == "\r":
                    line.dropped.append(here.at - 1)
                if here.char not in _ESCAPES:  # the character that was refused is passed over, even a #
                    here.step()
                    return "ConfigInvalidEscape"
                self.number += here.char == "\n"
                out += _ESCAPES[here.step()]
            elif char == '"':
                quoted = not quoted
            else:
                out += chr(ord(char) & 0xFF)  # only the low byte of a UTF-16 unit is kept
            if char not in (" ", "\t"):
                kept = len(out)
        line.raw = out[:kept].partition("\0")[0]
        return 'ConfigExpected(")' if quoted else ""

    def _finish(self, line: Line) -> None:
        here, line.number = self.cursor, self.number
        line.section, line.clean = self.section, self.clean
        if line.problem:
            line.what, line.closed = "broken", here.rest()
            self.number += 1
        elif here.char == "#":
            line.comment = here.at
            line.closed = self._comment()
        else:
            line.closed = bool(here.step())
            self.number += 1
        line.end = here.at


def read(text: str, kind: Kind) -> Reading:
    """Read the characters that `decode` gives."""
    lines, found, stop = _Lines(text, kind), list[Line](), None
    values, warnings, rc, first = dict[str, Any](), list[Warned](), 0, set[str]()
    for line in lines:
        found.append(line)
        if line.what == "key":
            _take(line, kind, values, first)
        else:
            line.warnings = (line.problem,) if line.problem else ()
        warnings += [Warned(warned, line.number) for warned in line.warnings]
        rc = -2 if "ConfigMacAddress" in line.warnings else -1 if line.problem and kind == "wslconf" else 0
        if rc:
            stop = line
            break
    return Reading(text, found, lines.comments, stop, Parsed(values, warnings, rc))


def _take(line: Line, kind: Kind, values: dict[str, Any], first: set[str]) -> None:
    key = line.key = find(kind, line.name)
    if key is None:
        line.state, line.warnings = "unknown", ("ConfigUnknownKey",)
    elif key.name in first:
        line.state, line.warnings = "duplicate", ("ConfigKeyDuplicated",)
    else:
        line.state, (value, line.warnings) = "taken", key.meaning(line.raw)
        first.add(key.name)
        if value is not None:
            values[key.name] = value
        elif key.name == _DNS_IP:
            values[_DNS] = False
