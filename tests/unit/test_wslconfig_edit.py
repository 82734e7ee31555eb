"""edit(): each sentence that it promises is a property, tried on made-up files. `--full`: 10,000 examples of each."""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wsllama.domain.wslconfig import Kind, edit, find, parse
from wsllama.domain.wslconfig.keys import INT_MAX, INT_MIN, KEYS, SECTIONS, U64, Key
from wsllama.domain.wslconfig.reader import decode, read

KINDS: tuple[Kind, ...] = ("wslconfig", "wslconf")
STRANGE = "é漢Ģ一😀\ufeff\u00a0"
DNS, DNS_IP = "wsl2.dnsTunneling", "experimental.dnsTunnelingIpAddress"  # a bad address switches the other one off


# --- files as people, programs and accidents leave them

VALUES = (
    *("8GB", "16gb", "1.5GB", "0", "00", "-1", "0x10", "08", "true", "FALSE", "yes", "", "mirrored", "nat", "gradual", "v1"),
    *(r"C:\\vm\\swap.vhdx", r"C:\temp\swap", r"C:\new", "C:/vm", '"a # b"', '"open', "a ; b", "a b ", '" a "', "80,443", "80,x"),
    *(
        "1.2.3.4",
        "1.2.3",
        "00:15:5d:01:02:03",
        "zz",
        "a\\\n  b",
        "a\\\r\nb",
        "a\\\rb",
        "a\\",
        'x"',
        "é",
        "用户",
        "Ģ",
        "a\0b",
        "😀",
    ),
)
BROKEN_HEADERS = ("[ wsl2]", "[wsl2] x", "[wsl2-x]", "[ab-c]", "[]", "[wsl2", "[[wsl2]]", "[general] ; c", "[wsl2]memory=8GB")
JUNK = ("; note", "// note", "memory", "foo bar", "memory: 8GB", "host-name=h", "\ufeff[wsl2]", "=1", "é=1", "\\", "a=\\", "\0")
BLANK = ("", "  ", "\t")
KNOTS = ("[experimental]\ndnsTunnelingIpAddress=1.2.3", "[wsl2]\nmacAddress=zz", "[wsl2]\ndnsTunneling=true", "[boot]\nsystemd=1")
COMMENTS = ("# note", "#", "  # memory=1GB", "# a\\", "# é", "# a\rmemory=2GB", "# [boot]")


@functools.cache
def names(kind: Kind) -> st.SearchStrategy[str]:
    known = [name for key in KEYS[kind] for name in (key.name, key.alias) if name]
    dns = (
        [DNS, DNS_IP, "experimental.dnsTunneling", "wsl2.macAddress", "wsl2.memory"] if kind == "wslconfig" else ["boot.systemd"]
    )
    return st.sampled_from([*known, *dns * (len(known) // len(dns))])


@functools.cache
def blocks(kind: Kind) -> st.SearchStrategy[str]:
    headers = [
        f"[{name}]{end}" for name in (*SECTIONS[kind].values(), "WSL2", "boot", "general", "ws12") for end in ("", " # c", " ")
    ]
    own, value = (
        st.booleans(),
        st.sampled_from([value + end for value in VALUES for end in ("", "", " # c", "#c", " # a\rb=1", " ")]),
    )
    sign, spelling = st.sampled_from(("=", " = ", "=\t", " =")), st.sampled_from((str, str, str.lower, str.upper))
    pair = st.builds(_pair, names(kind), own, spelling, sign, value)
    other = st.sampled_from([*BROKEN_HEADERS, *COMMENTS, *BLANK, *JUNK, *KNOTS * 3])
    return st.one_of(st.sampled_from(headers), pair, pair, other)


def _pair(name: str, own: bool, spelling: Callable[[str], str], sign: str, value: str) -> str:
    section, _, name = name.partition(".")
    return (f"[{section}]\n" if own else "") + spelling(name) + sign + value


@functools.cache
def texts(kind: Kind) -> st.SearchStrategy[str]:
    end = st.sampled_from(("\n", "\n", "\r\n", "\r", "\r\r\n", ""))
    lines = st.lists(st.builds(str.__add__, blocks(kind), end), max_size=9).map("".join)
    soup = st.lists(st.sampled_from([*'[]=#"\\\r\n \t', "wsl2", "memory", "8GB", "[wsl2]", "\\\r\n", *STRANGE]), max_size=25)
    windows = lines.map(lambda text: text.replace("\r\n", "\n").replace("\n", "\r\n"))
    return st.one_of(lines, lines, windows, windows, soup.map("".join))


def _encoded(text: str, how: str) -> bytes:
    marks = {"mark": codecs.BOM_UTF8, "twice": codecs.BOM_UTF8 * 2}
    if how == "utf16":
        return codecs.BOM_UTF16_LE + text.encode("utf-16-le", "surrogatepass")
    if how == "utf16be":
        return codecs.BOM_UTF16_BE + text.encode("utf-16-be", "surrogatepass")
    return marks.get(how, b"") + text.encode("latin-1" if how == "ansi" else "utf-8", "replace")


@functools.cache
def files(kind: Kind) -> st.SearchStrategy[bytes]:
    hows = st.sampled_from(("plain", "plain", "plain", "mark", "twice", "utf16", "utf16be", "ansi"))
    whole = st.builds(_encoded, texts(kind), hows)
    halves = texts(kind).map(lambda text: _encoded(text + "\ud83d=\udc00", "utf16"))
    return st.one_of(*[whole] * 6, halves, st.binary(max_size=40))


# --- what may be wanted

WORDS = st.text(st.sampled_from("aZ09 #\"\\'/;=[]:.%-"), max_size=12)
WANTED: dict[str, Callable[[Key], st.SearchStrategy[Any]]] = {
    "bool": lambda _: st.booleans(),
    "int": lambda _: st.integers(INT_MIN, INT_MAX) | st.just(-1),
    "octal": lambda _: st.integers(INT_MIN, INT_MAX) | st.just(0o22),
    "size": lambda _: st.integers(0, U64 - 1) | st.sampled_from(("16GB", "0", "8192MB", "1TB")),
    "enum": lambda key: st.sampled_from(
        {"wsl2": ("nat", "VirtioProxy"), "experimental": ("Gradual", "disabled")}.get(key.section, ("V1",))
    ),
    "ports": lambda _: st.lists(st.integers(1, 65535), min_size=1, max_size=4),
    "ip": lambda _: st.sampled_from(("10.255.255.254", "1.2.3.4")),
    "mac": lambda _: st.just("00-15-5d-01-02-03"),
    "path": lambda _: WORDS,
    "file": lambda _: WORDS,
    "string": lambda _: st.one_of(WORDS, st.just("a\tb\nc\b")),
}


@functools.cache
def changes(kind: Kind) -> st.SearchStrategy[dict[str, Any]]:
    # one entry for every name, from as few strategies as there are types: hypothesis is slow to make them
    knotty = [[DNS, "experimental.dnsTunneling"], [DNS_IP], ["wsl2.macAddress"]] if kind == "wslconfig" else [["boot.systemd"]]
    wanted = st.one_of([_named(kind, known) for known in (*_by_type(kind), *knotty, *knotty)])
    return st.lists(wanted, max_size=4, unique_by=lambda pair: _key(kind, pair[0]).name).map(dict)


def _by_type(kind: Kind) -> list[list[str]]:
    out = dict[tuple[str, str], list[str]]()
    for key in KEYS[kind]:
        names_of = out.setdefault((key.type, key.section if key.type == "enum" else ""), [])
        names_of += [name for name in (key.name, key.alias) if name]
    return list(out.values())


def _named(kind: Kind, known: list[str]) -> st.SearchStrategy[tuple[str, Any]]:
    key = _key(kind, known[0])
    return st.tuples(st.sampled_from(known), st.none() | WANTED[key.type](key))


def _key(kind: Kind, name: str) -> Key:
    key = find(kind, name)
    assert key
    return key


def _normal(kind: Kind, wanted: dict[str, Any]) -> dict[str, Any]:
    return {_key(kind, n).name: None if v is None else _key(kind, n).normal(v) for n, v in wanted.items()}


def _held(kind: Kind, data: bytes, wanted: dict[str, Any]) -> bool:
    values = parse(data, kind).values
    return all(
        values.get(n) is None if v is None else _key(kind, n).same(values.get(n), v) for n, v in _normal(kind, wanted).items()
    )


def cases(*only: Kind) -> st.SearchStrategy[tuple[Kind, bytes, dict[str, Any]]]:
    return st.one_of([st.tuples(st.just(kind), files(kind), changes(kind)) for kind in only or KINDS])


def _property(strategy: st.SearchStrategy[Any]) -> Callable[[Callable[[Any], None]], Any]:
    """A test of one property: 100 examples in the plain suite, 10,000 more in the full one."""

    def decorate(check: Callable[[Any], None]) -> Any:
        @pytest.mark.parametrize("examples", [100, pytest.param(10_000, marks=pytest.mark.full)])
        def test(examples: int) -> None:
            quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much]
            settings(max_examples=examples, deadline=None, database=None, suppress_health_check=quiet)(given(strategy)(check))()

        test.__doc__ = check.__doc__
        return test

    return decorate


# --- the promises


@_property(cases())
def test_the_wanted_values_hold_when_wsl_reads_the_result_whatever_the_input_was(case: Any) -> None:
    kind, data, wanted = case
    out = edit(data, kind, wanted)
    assert _held(kind, out, wanted)
    assert out == data or parse(out, kind).rc == 0


def _others(kind: Kind, values: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    changed = {_key(kind, name).name for name in wanted}
    # a bad address switches dnsTunneling off; that isn't a value that was read, and ends with the address
    return {n: v for n, v in values.items() if n not in changed and not (n == DNS and DNS_IP in changed)}


@_property(cases())
def test_nothing_else_that_wsl_read_before_changes(case: Any) -> None:
    kind, data, wanted = case
    before, after = parse(data, kind), parse(edit(data, kind, wanted), kind)
    held = _others(kind, before.values, wanted)
    if before.rc == -2:  # a bad address for DNS may stand behind the bad macAddress, where WSL now gets to
        held.pop(DNS, None)
    assert held.items() <= _others(kind, after.values, wanted).items()


@_property(cases())
def test_nothing_that_wsl_did_not_read_becomes_active(case: Any) -> None:
    kind, data, wanted = case
    out = edit(data, kind, wanted)
    if parse(data, kind).rc != -2:  # what stands behind a bad macAddress is the user's and stays; WSL didn't start at all
        before, after = parse(data, kind).values, parse(out, kind).values
        assert _others(kind, after, wanted).keys() <= before.keys()


@_property(cases())
def test_the_bytes_come_back_as_they_were_when_the_wanted_values_hold(case: Any) -> None:
    kind, data, wanted = case
    out = edit(data, kind, wanted)
    assert edit(out, kind, wanted) == out
    if _held(kind, data, wanted):
        assert out == data


@_property(cases())
def test_the_values_of_a_file_are_no_change_to_it(case: Any) -> None:
    kind, data, _ = case
    legal = {name: value for name, value in parse(data, kind).values.items() if _legal(_key(kind, name), value)}
    assert edit(data, kind, legal) == data


def _legal(key: Key, value: Any) -> bool:
    try:
        return key.normal(value) is not None
    except ValueError:
        return False


def _untouched(kind: Kind, text: str, wanted: dict[str, Any]) -> str:
    """The text without the lines about a wanted key (their comments stay), and up to where WSL stops reading."""
    reading, changed = read(text, kind), {_key(kind, name) for name in wanted}
    for line in reversed(reading.lines):
        about = line.key in changed or line is reading.stop
        about |= bool(line.key and line.key.name == DNS_IP and any(key.name == DNS for key in changed))
        if about:
            comment = text[line.comment : line.end] if line.comment is not None else "\x01"
            text = text[: line.start] + comment + text[line.end if line is not reading.stop else len(text) :]
    return text


@_property(st.tuples(texts("wslconfig"), st.sampled_from(("plain", "mark", "utf16")), changes("wslconfig")))
def test_other_lines_comments_order_line_ends_and_unknown_sections_stay(case: Any) -> None:
    text, how, wanted = case
    data = _encoded(text, how)
    text, out = decode(data, "wslconfig"), decode(edit(data, "wslconfig", wanted), "wslconfig")
    at = 0
    for piece in re.findall("[^\r\n\x01]*(?:\r\n|\r|\n|$)", _untouched("wslconfig", text, wanted)):
        found = out.find(piece, at)
        assert found >= 0, (piece, out)
        at = found + len(piece)


@_property(st.tuples(texts("wslconf"), changes("wslconf")))
def test_other_lines_of_wsl_conf_stay_in_order(case: Any) -> None:
    text, wanted = case
    data = _encoded(text, "plain")
    out = edit(data, "wslconf", wanted).decode("utf-8")
    at = 0
    for piece in re.split("[\r\n\x01]+", _untouched("wslconf", data.decode("latin-1"), wanted).encode("latin-1").decode("utf-8")):
        found = out.find(piece.removesuffix("\\"), at)  # a backslash with a carriage return is nothing to WSL
        assert found >= 0, (piece, out)
        at = found + len(piece.removesuffix("\\"))


@_property(cases())
def test_what_is_written_is_utf8_without_a_mark(case: Any) -> None:
    kind, data, wanted = case
    out = edit(data, kind, wanted)
    if out != data:
        assert not out.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if kind == "wslconfig" or data.startswith(codecs.BOM_UTF16_LE) or _is_utf8(data):  # else WSL's values are not UTF-8
            assert _is_utf8(out)


def _is_utf8(data: bytes) -> bool:
    try:
        return data.decode("utf-8") is not None
    except UnicodeDecodeError:
        return False


@_property(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), texts(kind), changes(kind))))
def test_what_is_added_is_ascii(case: Any) -> None:
    kind, text, wanted = case
    plain = text.encode("ascii", "ignore").decode("ascii")
    for data in (_encoded(plain, how) for how in ("plain", "mark", "utf16", "utf16be")):
        out = edit(data, kind, wanted)
        assert out == data or out.isascii()


@_property(cases("wslconf"))
def test_wsl_conf_has_line_feeds_only_and_is_read_to_its_end(case: Any) -> None:
    kind, data, wanted = case
    out = edit(data, kind, wanted)
    if out != data:
        assert b"\r" not in out
        assert parse(out, kind).rc == 0
        assert parse(out + b"\n[a]\nb=1\n", kind).warnings[-1].kind == "ConfigUnknownKey"


@_property(cases("wslconf"))
def test_the_line_that_stops_wsl_and_all_behind_it_become_comments(case: Any) -> None:
    kind, data, wanted = case
    out, stop = edit(data, kind, wanted), read(decode(data, kind), kind).stop
    if out == data or not stop or data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return
    lines, at = re.split(b"\r\n|\r|\n", data[stop.start :].removeprefix(codecs.BOM_UTF8)), 0
    for line in filter(bytes.strip, lines):
        kept = line if line.lstrip(b" \t").startswith(b"#") or not line.strip(b" \t") else b"# " + line
        found = out.find(kept, at)
        assert found >= 0, (kept, out)
        at = found + len(kept)


@_property(st.tuples(texts("wslconfig"), st.sampled_from(("plain", "mark", "utf16")), changes("wslconfig")))
def test_a_bad_mac_address_becomes_a_comment_and_what_stands_behind_it_stays(case: Any) -> None:
    text, how, wanted = case
    kind: Kind = "wslconfig"
    data = _encoded(text, how)
    out, stop = edit(data, kind, wanted), read(decode(data, kind), kind).stop
    if out == data or not stop or "wsl2.macAddress" in wanted:
        return
    assert parse(out, kind).rc == 0
    whole = decode(data, kind)
    line = re.split("\r\n|\r|\n", whole[stop.start : stop.end])[0]
    assert f"# {line}" in decode(out, kind)
    without = _encoded(whole[: stop.start] + whole[stop.end :], "utf16")
    if parse(without, kind).rc == 0:
        assert _others(kind, parse(without, kind).values, wanted) == _others(kind, parse(out, kind).values, wanted)


@_property(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), changes(kind))))
def test_a_missing_file_is_an_empty_one_and_only_what_is_wanted_stands_in_it(case: Any) -> None:
    kind, wanted = case
    out = edit(None, kind, wanted)
    assert out == edit(b"", kind, wanted)
    parsed = parse(out, kind)
    assert (parsed.warnings, parsed.rc) == ([], 0)
    assert parsed.values == {name: value for name, value in _normal(kind, wanted).items() if value is not None}


@_property(cases())
def test_what_was_added_can_be_taken_out_again(case: Any) -> None:
    kind, data, wanted = case
    before = parse(data, kind)
    added = {n: v for n, v in _normal(kind, wanted).items() if v is not None and n not in before.values}
    out = edit(edit(data, kind, added), kind, dict.fromkeys(added))
    if before.rc != -2:
        assert _others(kind, parse(out, kind).values, added) == _others(kind, before.values, added)
    assert not parse(out, kind).values.keys() & (added.keys() - {DNS})
