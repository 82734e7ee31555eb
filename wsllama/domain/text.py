"""Text out of bytes that somebody saved or pasted, whatever wrote them. Pure."""

from __future__ import annotations

import codecs
import re

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_ESCAPES = re.compile(
    r"(?:\x1b|#033|\^\[)\[[0-?]*[ -/]*[@-~]"  # colours; journald and cat -v write the escape character in their own way
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_]"
)


def decode(data: bytes | str) -> str:
    """The text without its mark and with line feeds only. UTF-16 is told by its mark or its NULs; what is no UTF-8 either is
    read as Windows' western code page, so that nothing raises."""
    if isinstance(data, bytes):
        data = _decoded(data)
    return data.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def plain(data: bytes | str) -> str:
    """The same without terminal escape codes."""
    return _ESCAPES.sub("", decode(data))


def is_utf16(data: bytes) -> bool:
    """Whether bytes without a mark are UTF-16LE: Latin text has NULs, and any text has line ends of two bytes each."""
    return data[1::2].count(0) >= max(1, data[0::2].count(0))


def _decoded(data: bytes) -> str:
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    if is_utf16(data):
        return data.decode("utf-16-le", "replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")
