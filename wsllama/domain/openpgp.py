"""Whose a public OpenPGP key is: the fingerprint, out of the bytes of the key itself. Pure.

Only the frame of packets is read (RFC 9580, section 4) and the fingerprint computed (5.5.4.2): no signature in a key is
checked, because whoever knows the fingerprint needs none.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

PUBLIC_KEY, SUBKEY = 6, 14
ALLOWED = frozenset(
    {PUBLIC_KEY, SUBKEY, 2, 12, 13, 17}
)  # and signatures, trust, user ids and attributes: what a public key holds
LARGEST = 1 << 20
"""Bytes; NVIDIA's key has 1.7 kB."""

_ARMOR = re.compile(rb"-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\n(.*?)^-----END PGP PUBLIC KEY BLOCK-----", re.S | re.M)


class KeyFormatError(ValueError):
    """These bytes are no public OpenPGP key that is understood: one sentence."""


def dearmored(data: bytes) -> bytes:
    """The packets of a key, whether it comes as they are or as text. Raises KeyFormatError."""
    if len(data) > LARGEST:
        raise KeyFormatError(f"it has {len(data)} bytes, and a key has a few thousand")
    if data[:1] and data[0] & 0x80:
        return data
    blocks = _ARMOR.findall(data.replace(b"\r\n", b"\n"))
    if len(blocks) != 1:
        raise KeyFormatError(f"it holds {len(blocks)} blocks that begin with BEGIN PGP PUBLIC KEY BLOCK, and one is wanted")
    _, blank, body = (b"\n" + blocks[0]).partition(b"\n\n")
    lines = body.split()
    if lines and re.fullmatch(rb"=[A-Za-z0-9+/]{4}", lines[-1]):
        lines.pop()  # a checksum that the standard tells readers to pass over
    try:
        packets = base64.b64decode(b"".join(lines), validate=True)
    except binascii.Error:
        packets = b""
    if not (blank and packets):
        raise KeyFormatError("its text is damaged")
    return packets


def armored(packets: bytes) -> str:
    """The same packets as text, with its checksum: what apt takes in a file that ends in .asc."""
    crc = 0xB704CE
    for byte in packets:
        crc ^= byte << 16
        for _ in range(8):
            crc = (crc << 1) ^ (0x1864CFB if crc & 0x800000 else 0)
    text = base64.b64encode(packets).decode()
    lines = [text[i : i + 64] for i in range(0, len(text), 64)]
    check = "=" + base64.b64encode(crc.to_bytes(3, "big")).decode()
    begin, end = (f"-----{word} PGP PUBLIC KEY BLOCK-----" for word in ("BEGIN", "END"))
    return "\n".join([begin, "", *lines, check, end, ""])


def fingerprints(packets: bytes) -> list[str]:
    """40 hexadecimal digits for each primary key in there: apt trusts all that a file holds.

    Raises KeyFormatError for anything that isn't public keys of version 4 and what belongs to them.
    """
    found = []
    for number, (tag, body, _) in enumerate(_packets(packets)):
        if tag not in ALLOWED or (number == 0 and tag != PUBLIC_KEY):
            raise KeyFormatError(f"it is no public key: its packet {number + 1} is of kind {tag}")
        if tag == PUBLIC_KEY:
            if body[:1] != b"\x04":
                raise KeyFormatError("it holds a key of another version than 4")
            framed = b"\x99" + len(body).to_bytes(2, "big") + body if len(body) < 65536 else b""
            if not framed:
                raise KeyFormatError("it holds a key that is too large")
            found.append(hashlib.sha1(framed, usedforsecurity=False).hexdigest().upper())
    if not found:
        raise KeyFormatError("it is empty")
    return found


def without_subkeys(packets: bytes) -> bytes:
    """The first primary key with its user ids and signatures: a fingerprint says nothing about what follows them."""
    end = 0
    for tag, _, after in _packets(packets):
        if tag == SUBKEY or (tag == PUBLIC_KEY and end):
            break
        end = after
    return packets[:end]


def _packets(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Kind, body and end of each packet, in both of the forms that the standard has."""
    at = 0
    while at < len(data):
        first = data[at]
        if not first & 0x80:
            raise KeyFormatError(f"it is no OpenPGP key, or is damaged at byte {at}")
        tag, size, start = (_new if first & 0x40 else _old)(data, at)
        if start + size > len(data):
            raise KeyFormatError("it is cut off")
        at = start + size
        yield tag, data[start:at], at


def _new(data: bytes, at: int) -> tuple[int, int, int]:
    """Kind, size and start of the body of a packet of the form of 1998."""
    tag, first = data[at] & 0x3F, data[at + 1 : at + 2]
    if first and first[0] < 192:
        return tag, first[0], at + 2
    if first and first[0] < 224:
        return tag, ((first[0] - 192) << 8) + int.from_bytes(data[at + 2 : at + 3], "big") + 192, at + 3
    if first == b"\xff":
        return tag, int.from_bytes(data[at + 2 : at + 6], "big"), at + 6
    raise KeyFormatError("it is cut off" if not first else "it comes in parts, as no key does")


def _old(data: bytes, at: int) -> tuple[int, int, int]:
    tag, kind = (data[at] >> 2) & 0x0F, data[at] & 3
    if kind == 3:
        raise KeyFormatError("it holds a packet without a size, as no key does")
    width = 1 << kind
    return tag, int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
