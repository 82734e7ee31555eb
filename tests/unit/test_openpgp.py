"""Fingerprints of keys that gpg made, as gpg says them; and bytes that are no key."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsllama.domain.openpgp import KeyFormatError, armored, dearmored, fingerprints, without_subkeys

# Made for this test, its private part thrown away: gpg --quick-gen-key "wsllama test <test@example.invalid>" ed25519
FINGERPRINT = "CDE3D42F1001F27F3F69648479205C89E64E59E5"
TEXT = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEaw10rxYJKwYBBAHaRw8BAQdA/cZ0SUz80X2gt4LzM6SXq78wMtFy7DgpNk4+
OAl5UlO0I3dzbGxhbWEgdGVzdCA8dGVzdEBleGFtcGxlLmludmFsaWQ+iJAEExYI
ADgWIQTN49QvEAHyfz9pZIR5IFyJ5k5Z5QUCaw10rwIbAwULCQgHAgYVCgkICwIE
FgIDAQIeAQIXgAAKCRB5IFyJ5k5Z5XKCAP9l88Fm3caD9HpTLcSyirVKrXzqZuSa
PBOIW9Wob3QTMwEAxEGJjxfhTIElX8Vcy8GvzRGfI3hSP8eF2KCcm0NunwE=
=1j8R
-----END PGP PUBLIC KEY BLOCK-----
"""
KEY = dearmored(TEXT.encode())


def old_form(tag: int, body: bytes) -> bytes:
    return bytes([0x80 | tag << 2 | 1]) + len(body).to_bytes(2, "big") + body


def new_form(tag: int, body: bytes) -> bytes:
    return bytes([0xC0 | tag, 0xFF]) + len(body).to_bytes(4, "big") + body


BODY = KEY[2 : 2 + KEY[1]]


def test_a_key_of_gpg() -> None:
    assert fingerprints(KEY) == [FINGERPRINT]
    assert dearmored(KEY) == KEY


@pytest.mark.parametrize("framed", [old_form(6, BODY), new_form(6, BODY), bytes([0x98, len(BODY)]) + BODY])
def test_every_form_of_a_packet(framed: bytes) -> None:
    assert fingerprints(framed) == [FINGERPRINT]


def test_text_as_others_write_it() -> None:
    assert armored(KEY) == TEXT, "the checksum too is gpg's"
    for text in (
        TEXT.replace("\n", "\r\n"),
        "a note before\n\n" + TEXT + "and after\n",
        TEXT.replace("BLOCK-----\n\n", "BLOCK-----\nVersion: 1\nComment: x\n\n"),
        "\n".join(line for line in TEXT.split("\n") if not (len(line) == 5 and line[0] == "=")),
    ):
        assert dearmored(text.encode()) == KEY


def test_all_keys_that_apt_would_trust() -> None:
    other = BODY[:-1] + bytes([BODY[-1] ^ 1])
    assert len(set(fingerprints(KEY + new_form(6, other)))) == 2
    assert fingerprints(KEY + new_form(14, other)) == [FINGERPRINT], "a subkey is none of its own"
    assert without_subkeys(KEY + new_form(14, other) + new_form(2, b"x")) == KEY
    assert without_subkeys(KEY + new_form(6, other)) == KEY


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it holds 0 blocks"),
        (b"<!DOCTYPE html><html></html>", "it holds 0 blocks"),
        (TEXT.encode() * 2, "it holds 2 blocks"),
        (TEXT.replace("BLOCK-----\n\n", "BLOCK-----\n").encode(), "its text is damaged"),
        (TEXT.replace("\n\n", "\n\n!").encode(), "its text is damaged"),
        (b"\x99" * ((1 << 20) + 1), "it has 1048577 bytes"),
        (KEY[:20], "it is cut off"),
        (KEY[:1], "it is cut off"),
        (new_form(5, BODY), "its packet 1 is of kind 5"),
        (new_form(13, b"x") + KEY, "its packet 1 is of kind 13"),
        (KEY + new_form(11, b"x"), "is of kind 11"),
        (new_form(6, b"\x06" + BODY[1:]), "another version than 4"),
        (new_form(6, b"\x04" + bytes(70000)), "too large"),
        (KEY + b"Packages", "is damaged at byte"),
        (bytes([0xC6, 0xE0]) + BODY, "it comes in parts"),
        (bytes([0x9B]) + BODY, "without a size"),
    ],
)
def test_what_is_no_key(data: bytes, said: str) -> None:
    with pytest.raises(KeyFormatError, match=said) as e:
        fingerprints(dearmored(data))
    assert "\n" not in str(e.value)


@given(st.binary(max_size=200), st.integers(0, len(KEY)), st.integers(0, 80))
def test_damage_is_refused_or_shows_in_the_fingerprint(noise: bytes, at: int, cut: int) -> None:
    for data in (noise, KEY[:at] + noise + KEY[at + cut :], TEXT.encode()[: at // 2] + noise + TEXT.encode()[at // 2 + cut :]):
        try:
            found = fingerprints(dearmored(data))
        except KeyFormatError:
            continue
        assert all(len(f) == 40 for f in found)
        assert FINGERPRINT not in found or BODY in dearmored(data)


def test_as_gpg_reads_it(tmp_path: Path) -> None:
    if not shutil.which("gpg"):
        pytest.skip("gpg is not installed")
    (tmp_path / "key.asc").write_text(armored(KEY))
    quiet = ["gpg", "--homedir", str(tmp_path), "--batch", "--with-colons", "--show-keys", str(tmp_path / "key.asc")]
    out = subprocess.run(quiet, capture_output=True, text=True, check=True).stdout
    assert f"fpr:::::::::{FINGERPRINT}:" in out
