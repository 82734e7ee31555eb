"""parse() and lint(): Microsoft's parser in vectors, recorded files, the field's cases, and what the tables claim."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from wsllama.domain.wslconfig import Kind, advise, edit, find, lint, look_alikes, parse
from wsllama.domain.wslconfig.keys import KEYS

DATA = Path(__file__).parents[1] / "data"
KINDS: tuple[Kind, ...] = ("wslconfig", "wslconf")
FIXTURES = [one for one in json.loads((DATA / "fixtures" / "index.json").read_text()) if one["kind"] in KINDS]
SERVICE = b"[wsl2]\nvmIdleTimeout=-1\n[general]\ninstanceIdleTimeout=-1\n"


@pytest.mark.parametrize(("kind", "count"), [("wslconfig", 974), ("wslconf", 301)])
def test_every_vector_of_microsofts_parser(kind: Kind, count: int) -> None:
    vectors = json.loads((DATA / "wslconfig" / f"{kind}_vectors.json").read_text())
    wrong = []
    for vector in vectors:
        got = parse(base64.b64decode(vector["input_b64"]), kind)
        expect = vector["expect"]
        if (got.rc, got.values, [w._asdict() for w in got.warnings]) != (expect["rc"], expect["values"], expect["warnings"]):
            wrong.append((vector["id"], vector["note"], got))
    assert (wrong, len(vectors)) == ([], count)


@pytest.mark.parametrize("fixture", FIXTURES, ids=[fixture["file"] for fixture in FIXTURES])
def test_every_recorded_file(fixture: dict[str, Any]) -> None:
    data = (DATA / "fixtures" / fixture["file"]).read_bytes()
    found = lint(data, fixture["kind"], fixture.get("path", fixture["file"]))
    assert sorted({finding.id for finding in found}) == fixture["expect"]["findings"]
    lines = data.count(b"\n") + 1
    assert all(finding.line is None or 1 <= finding.line <= lines for finding in found)
    assert all(finding.text.endswith(".") and finding.fix for finding in found)


# Inputs that the vectors don't have: what is read, and the kinds of the warnings.
READ: list[tuple[Kind, bytes, dict[str, Any], list[str]]] = [
    ("wslconfig", b"[wsl2]\nmemory=-1\nswap=+1KB\n", {"wsl2.memory": 2**64 - 1, "wsl2.swap": 1024}, []),
    ("wslconfig", b"[wsl2]\nmemory=-8GB\n", {"wsl2.memory": 2**64 - (8 << 30)}, []),
    ("wslconfig", b"[wsl2]\nmemory=0x10\n", {}, ["InvalidNumberString"]),
    ("wslconfig", b'[wsl2]\nmemory=" 0"\n', {}, ["InvalidNumberString"]),
    ("wslconfig", b"[wsl2]\nprocessors=\\t-010\n", {"wsl2.processors": -8}, []),
    (
        "wslconfig",
        b"[experimental]\nignoredPorts=+80x, 22,0,99999,,\n",
        {"experimental.ignoredPorts": [22, 80]},
        ["ConfigInvalidInteger"] * 2,
    ),
    ("wslconfig", b"[wsl2]\nmacAddress=00-15-5d-aa-bb-cc", {"wsl2.macAddress": "00:15:5D:AA:BB:CC"}, []),
    (
        "wslconfig",
        b"[wsl2]\ndnsTunneling=true\n[experimental]\ndnsTunnelingIpAddress=1.2.3\n",
        {"wsl2.dnsTunneling": False},
        ["ConfigInvalidIp"],
    ),
    (
        "wslconfig",
        b"[experimental]\ndnsTunnelingIpAddress=1.2.3\ndnsTunneling=true\n",
        {"wsl2.dnsTunneling": True},
        ["ConfigInvalidIp"],
    ),
    (
        "wslconfig",
        b"[wsl2]\n[wsl2-x]\nswap=0\n[]\nmemory=1B\n",
        {"wsl2.swap": 0, "wsl2.memory": 1},
        ["ConfigExpected(])", "ConfigInvalidSection"],
    ),
    ("wslconfig", b"\xfe\xff\x00[\x00w", {}, []),
    ("wslconfig", "[wsl2]\nkernel=一x\n".encode(), {"wsl2.kernel": ""}, []),
    ("wslconfig", "ģ[wsl2]\n#\r[wsl2]\r\n".encode(), {}, ["ConfigInvalidKey"]),
    ("wslconf", b"[boot]\r\nsystemd=true # on\r\ninitTimeout=4294967296\r\n", {"boot.systemd": True}, ["ConfigInvalidInteger"]),
    ("wslconf", b"[boot]\nsystemd=true\n;\n[user]\ndefault=ada\n", {"boot.systemd": True}, ["ConfigInvalidKey"]),
]


@pytest.mark.parametrize(("kind", "data", "values", "warnings"), READ)
def test_reads_as_wsl(kind: Kind, data: bytes, values: dict[str, Any], warnings: list[str]) -> None:
    parsed = parse(data, kind)
    assert (parsed.values, [warning.kind for warning in parsed.warnings]) == (values, warnings)


def test_lines_of_warnings_are_those_that_wsl_counts() -> None:
    parsed = parse(b"[boot]\r\n# c\r\nfoo=1\r\nbar=\\\n  2\nbaz\n", "wslconf")
    assert ([warning.line for warning in parsed.warnings], parsed.rc) == ([4, 7, 8], -1)


# Findings of files that nobody recorded. In .wslconfig both idle keys stand in front, so that each is judged alone.
FINDINGS: list[tuple[Kind, bytes, list[str]]] = [
    ("wslconfig", b"", []),
    ("wslconfig", b"[experimental]\nsparseVhd=1\n", ["sparse_vhd"]),
    ("wslconfig", b"[wsl2]\nsparseVhd=true\n", ["wrong_section"]),
    ("wslconfig", b"[general]\nguiApplications=false\n", ["wrong_section"]),
    ("wslconfig", b"[wsl2]\nsystemd=true\n", ["unknown_key"]),
    ("wslconfig", b"[boot]\nsystemd=true\n", ["wrong_file"]),
    ("wslconfig", b"[system-distro-env]\nA=1\n", ["unknown_section"]),
    ("wslconfig", b"[wsl2] ; mine\nmemory=32GB\n", ["semicolon_comment"]),
    ("wslconfig", b"[ab-c]\nmemory=32GB\n", ["unknown_section"]),
    ("wslconfig", b'[general-x]\n[]\nfoo:\n"\n', []),
    ("wslconfig", b"[wsl2]\nmemory=0\n", []),
    ("wslconfig", b"[wsl2]\nmemory=8193MB\nmemory=1GB\n", ["duplicate_key"]),
    ("wslconfig", b"[wsl2]\nmemory=32GB\nMEMORY=1GB\n", ["duplicate_key"]),
    ("wslconfig", b"[wsl2]\nmemory=8192MB\n", ["memory_too_small_for_model"]),
    ("wslconfig", b"[experimental]\nautoProxy=true\n[wsl2]\nautoProxy=true\n", ["alias_conflict"]),
    ("wslconfig", b"[wsl2]\nkernel=C:\\new\n", ["control_characters"]),
    ("wslconfig", b"[wsl2]\nkernelCommandLine=a\\tb ; c\n", []),
    ("wslconfig", b"[wsl2]\nkernel=C:/k ; mine\n", ["semicolon_comment"]),
    ("wslconfig", b'[wsl2]\nkernel="C:/a ; b"\n', []),
    ("wslconfig", "[wsl2]\nmemory=３2GB\n".encode(), ["bad_size", "non_ascii_value"]),
    ("wslconfig", "# für alle\n[wsl2]\nswap=0 # ü\n".encode(), []),
    ("wslconf", b"[boot]\nsystemd=1\ncommand=a; b ; c\n", []),
    ("wslconf", b"[boot]\nsystemd=true ; on\n", ["bad_bool", "semicolon_comment", "systemd_off"]),
    ("wslconf", b"[boot]\nsystemd=true\n[network]\nhostname=box ; mine\n", ["semicolon_comment"]),
    ("wslconf", b"[boot]\nsystemd=true\n[network]\nhost-name=h\n[gpu]\nenabled=false\n", ["stops_parsing"]),
    ("wslconf", "[boot]\nsystemd=true\n".encode("utf-16"), ["stops_parsing", "systemd_off", "utf16"]),
    ("wslconf", b"[boot]\nsystemd=true\n[automount]\nroot=C:\\tmp\n", ["control_characters"]),
    ("wslconf", "[boot]\nsystemd=true\n[user]\ndefault=jürgen\n".encode(), []),
    ("wslconf", b"[interop]\nenabled=false\nenabled=true\n[boot]\nsystemd=1", ["duplicate_key", "interop_disabled"]),
]


@pytest.mark.parametrize(("kind", "data", "ids"), FINDINGS)
def test_finds(kind: Kind, data: bytes, ids: list[str]) -> None:
    before = SERVICE if kind == "wslconfig" else b""
    assert sorted({finding.id for finding in lint(before + data, kind)}) == ids


def test_settings_below_a_first_header_that_wsl_refuses_are_orphans() -> None:
    data = b"[ wsl2 ]\nvmIdleTimeout=-1\n" + SERVICE
    assert [(f.id, f.line) for f in lint(data, "wslconfig")] == [("orphan_key", 2)]
    assert [(f.id, f.line) for f in advise(data, "wslconfig")] == [("refused_line", 1)]


def test_utf16_without_a_mark_is_named() -> None:
    assert "utf16" in {finding.id for finding in lint("[wsl2]\r\n".encode("utf-16-le"), "wslconfig")}


def test_the_line_that_stops_wsl_is_a_finding_and_no_advice() -> None:
    assert advise(b"[boot]\nsystemd\n", "wslconf") == []


def test_a_section_is_found_in_any_case() -> None:
    assert _after(b"[FILEserver]\nenabled=1\n", {"fileServer.logLevel": 4}, "wslconf") == b"[FILEserver]\nenabled=1\nlogLevel=4\n"


def test_both_idle_keys_must_be_negative_and_in_their_sections() -> None:
    for data in (b"[wsl2]\nvmIdleTimeout=-1\n", SERVICE.replace(b"=-1", b"=0"), b""):
        assert [finding.id for finding in lint(data, "wslconfig")] == ["idle_keys_missing_for_service"]


def test_says_which_line_and_what_to_write() -> None:
    found = lint(SERVICE + b"\r\n[wsl2]\r# c\n\nmemory= '16 gb'\n", "wslconfig")
    assert [(finding.line, finding.fix.partition(":")[0]) for finding in found] == [(9, "Write 16GB")]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("16gb", "16GB"),
        ("16 GB", "16GB"),
        ("1.5GB", "1536MB"),
        ("16GiB", "16GB"),
        ("'8GB'", "8GB"),
        ("50%", "a size like 16GB"),
        ("00", "0"),
        ("8,5", "8704MB"),
        ("0.5K", "0"),
        ("32GB ; half", "32GB"),
        ("", "a size like 16GB"),
    ],
)
def test_bad_sizes_come_with_the_right_spelling(written: str, meant: str) -> None:
    found = lint(SERVICE + f"[wsl2]\nmemory={written}\n".encode(), "wslconfig")
    assert [finding.fix for finding in found if finding.id == "bad_size"] == [
        f"Write {meant}: a whole number, an upper-case unit, no blank."
    ]


def test_look_alike_names() -> None:
    alike = [".wslconf", ".wslconfig.txt", "wslconfig", ".WSLConf.txt", "wsl.conf", "_wslconfig", ".wslconfig.ini"]
    other = [".wslconfig", ".WSLCONFIG", ".wslgconfig", ".bashrc", "good.wslconfig", ".wslconfig.bak", "NTUSER.DAT"]
    assert [finding.text.split()[0] for finding in look_alikes([*alike, *other])] == alike
    assert [f.id for f in lint(SERVICE, "wslconfig", r"C:\Users\ada\.wslconfig.txt")] == ["wrong_file"]
    assert lint(SERVICE, "wslconfig", "/mnt/c/Users/ada/.wslconfig") == []
    assert look_alikes(["wsl.conf"], "wslconf") == []
    assert [finding.id for finding in look_alikes(["wslconf", ".wslconfig"], "wslconf")] == ["wrong_file"] * 2


@pytest.mark.parametrize(
    ("data", "ids", "word"),
    [
        (b"[wsl2]\nprocessors=8.0\n", ["refused_value"], "8.0"),
        (b"[experimental]\nautoMemoryReclaim=true\n", ["refused_value"], "none of the words"),
        (b"[experimental]\ndnsTunnelingIpAddress=::1\n", ["refused_value"], "switched off"),
        (b"[wsl2]\nmacAddress=1\n", ["refused_value"], "does not start"),
        (b"[wsl2]\nmemory: 8GB\n", ["refused_line"], "no ="),
        (b"// note\n", ["refused_line"], "begins with"),
        (b'[wsl2]\nkernel="C:/k\n', ["refused_line"], "quote"),
        (b"[wsl2] x\n[[wsl2]]\n[wsl-2]\n", ["refused_line"] * 3, "header"),
        (b"[wsl2]\nnetworkingMode=mirrored\nfirewall=0\n", [], ""),
        (b"[wsl2]\nnetworkingMode=mirrored\n", ["mirrored"], "firewall"),
        (b"[wsl2]\nnetworkingMode=mirrored\nfirewall=0\nlocalhostForwarding=true\n", ["mirrored"], "no effect"),
        (b"[experimental]\nhostAddressLoopback=true\n", ["mirrored"], "only"),
        (b"[experimental]\nnetworkingMode=mirrored\nhostAddressLoopback=true\nfirewall=false\n", [], ""),
    ],
)
def test_advice(data: bytes, ids: list[str], word: str) -> None:
    found = advise(data, "wslconfig")
    assert [finding.id for finding in found] == ids
    assert all(word in finding.text for finding in found)


# --- the field's cases

GB = 1 << 30


def _after(data: bytes | None, wanted: dict[str, Any], kind: Kind = "wslconfig") -> bytes:
    return edit(data, kind, wanted)


def test_a1_a2_a_misspelt_header_stays_and_the_real_one_is_added() -> None:
    for name in (b"ws12", b"wls2"):
        data = b"[" + name + b"]\nmemory=4GB\n"
        assert [f.id for f in lint(SERVICE + data, "wslconfig")] == ["unknown_section"]
        assert parse(data, "wslconfig").values == {}
        assert _after(data, {"wsl2.memory": 16 * GB}) == data + b"\n[wsl2]\nmemory=16GB\n"


def test_a4_utf16_becomes_utf8_only_when_something_is_written() -> None:
    data = b"\xff\xfe" + "[wsl2]\r\nmemory=16GB\r\n# größer\r\n".encode("utf-16-le")
    assert _after(data, {"wsl2.memory": 16 * GB}) == data
    assert _after(data, {"wsl2.memory": "32GB"}) == "[wsl2]\r\nmemory=32GB\r\n# größer\r\n".encode()


def test_a5_backslashes_are_escaped() -> None:
    data = b"[wsl2]\nswapFile=C:\\temp\\swap.vhdx\nprocessors=4\n"
    assert (parse(data, "wslconfig").values, [w.kind for w in parse(data, "wslconfig").warnings]) == (
        {"wsl2.processors": 4},
        ["ConfigInvalidEscape"],
    )
    assert _after(data, {"wsl2.swapFile": "C:\\temp\\swap.vhdx"}) == data + b"swapFile=C:\\\\temp\\\\swap.vhdx\n"


def test_a7_no_swap_is_a_bare_zero_and_0gb_is_the_same() -> None:
    assert _after(None, {"wsl2.swap": 0}) == b"[wsl2]\nswap=0\n"
    assert _after(b"[wsl2]\nswap=0GB\n", {"wsl2.swap": 0}) == b"[wsl2]\nswap=0GB\n"


def test_a10_nothing_is_inserted_after_a_broken_header() -> None:
    data = b"; note\n[wsl2]\nmemory=8GB\n[system-distro-env]\nA=1\n"
    assert _after(data, {"wsl2.swap": 0}) == data.replace(b"8GB\n", b"8GB\nswap=0\n")
    data = b"[wsl2]\n[wsl2-x]\nmemory=8GB\n"
    assert _after(data, {"wsl2.swap": 0}) == data.replace(b"[wsl2]\n", b"[wsl2]\nswap=0\n")


def test_a11_an_orphan_stays_and_the_key_is_written_below_its_section() -> None:
    data = b"memory=8GB\n[wsl2]\n"
    assert "orphan_key" in {f.id for f in lint(data, "wslconfig")}
    assert _after(data, {"wsl2.memory": 8 * GB}) == data + b"memory=8GB\n"


def test_a14_the_idle_keys_go_into_their_own_sections() -> None:
    wanted = {"wsl2.vmIdleTimeout": -1, "general.instanceIdleTimeout": -1}
    assert _after(None, wanted) == b"[wsl2]\nvmIdleTimeout=-1\n\n[general]\ninstanceIdleTimeout=-1\n"
    swapped = (DATA / "fixtures" / "wslconfig" / "idle-keys-swapped.wslconfig").read_bytes()
    assert "idle_keys_missing_for_service" not in {f.id for f in lint(_after(swapped, wanted), "wslconfig")}


def test_a16_slashes_and_backslashes_are_the_same_path() -> None:
    data = b"[wsl2]\nswapFile=C:/a/b\n"
    assert _after(data, {"wsl2.swapFile": "C:\\a\\b"}) == data
    assert parse(_after(data, {"wsl2.swapFile": "C:\\a\\c"}), "wslconfig").values == {"wsl2.swapFile": "C:\\a\\c"}


def test_b19_b20_wsl_conf_is_written_with_lf_and_without_a_mark() -> None:
    crlf = b"[boot]\r\ncommand=a # b\r\n\r\n"
    assert _after(crlf, {"boot.systemd": True}, "wslconf") == b"[boot]\ncommand=a # b\nsystemd=true\n\n"
    mark = b"\xef\xbb\xbf[boot]\nsystemd=true\n"
    out = _after(mark, {"boot.systemd": True}, "wslconf")
    assert out == b"# [boot]\n# systemd=true\n\n[boot]\nsystemd=true\n"
    assert _after(out, {"boot.systemd": True}, "wslconf") == out


def test_b22_a_continuation_that_was_none_does_not_become_one() -> None:
    data = b"[boot]\r\ncommand=echo a \\\r\nsystemd=true\r\n b\r\n"
    assert parse(data, "wslconf").values == {"boot.command": "echo a ", "boot.systemd": True}
    out = _after(data, {"user.default": "ada"}, "wslconf")
    assert out == b'[boot]\ncommand=echo a ""\nsystemd=true\n#  b\n\n[user]\ndefault=ada\n'


def test_b23_b25_what_wsl_did_not_read_is_not_activated() -> None:
    data = b"[user]\ndefault=ada\n# [boot]\nsystemd=true\nhost-name=h\n[gpu]\nenabled=false\n"
    out = _after(data, {"boot.systemd": True}, "wslconf")
    assert out == data.replace(b"host-name", b"# host-name").replace(b"[gpu]\nen", b"# [gpu]\n# en") + b"\n[boot]\nsystemd=true\n"
    assert parse(out, "wslconf").values == {"user.default": "ada", "boot.systemd": True}


def test_a_removed_line_leaves_its_comment() -> None:
    data = b"[wsl2]\n  memory=8GB # half\nswap=0\nmemory=9GB\n"
    assert _after(data, {"wsl2.memory": None}) == b"[wsl2]\n# half\nswap=0\n"


def test_the_first_occurrence_is_changed_where_it_stands() -> None:
    data = b"[experimental]\r\nfirewall = yes  # why\r\n[wsl2]\r\nfirewall=true\r\n"
    assert _after(data, {"wsl2.firewall": False}) == data.replace(b"yes", b"false")
    assert _after(b"[wsl2]\nmemory= # none\n", {"wsl2.memory": GB}) == b"[wsl2]\nmemory=1GB # none\n"


@pytest.mark.parametrize(
    ("data", "out"),
    [
        # a backslash that the end cuts off would go on with what is added
        (b"[general]\nfoo=a\\", b"[general]\n\n[wsl2]\nswap=0\nfoo=a\\"),
        (b"[wsl2]\nkernel=a\\\r", b"[wsl2]\nkernel=a\\\r\r\nswap=0"),
        (b"[general]\nfoo=a\\\r", b"[general]\nfoo=a\\\r\r\n\n[wsl2]\nswap=0\n"),
        # a comment goes on over a carriage return
        (b"[wsl2]\nmacAddress=zz\rmemory=1GB\n", b"[wsl2]\n# macAddress=zz\r\nmemory=1GB\nswap=0\n"),
        (b"[general]\nfoo=1", b"[general]\nfoo=1\n\n[wsl2]\nswap=0\n"),
        (b"\r\n[general]\r\nfoo=1\n", b"\r\n[general]\r\nfoo=1\n\r\n[wsl2]\r\nswap=0\r\n"),
        (b"[wsl2]\r\nfoo=1\r\n\r\n", b"[wsl2]\r\nfoo=1\r\nswap=0\r\n\r\n"),
        # half a character of UTF-16: WSL takes its low byte
        ("\ufeff[wsl2]\nvmSwitch=\ud83dx\n".encode("utf-16-le", "surrogatepass"), "[wsl2]\nvmSwitch=\ue03dx\nswap=0\n".encode()),
        (b"[wsl2]\n# a\rmemory=1GB", b"[wsl2]\nswap=0\n# a\rmemory=1GB"),
        (b"\xef\xbb\xbf\xef\xbb\xbf[wsl2]\nmemory=1GB\n", "# \ufeff[wsl2]\nmemory=1GB\n\n[wsl2]\nswap=0\n".encode()),
    ],
)
def test_what_is_added_stands_by_itself(data: bytes, out: bytes) -> None:
    assert _after(data, {"wsl2.swap": 0}) == out
    before, after = parse(data, "wslconfig").values, parse(out, "wslconfig").values
    assert after.pop("wsl2.swap") == 0
    assert before.items() <= after.items()


def test_a_carriage_return_in_a_comment_of_wsl_conf_activates_nothing() -> None:
    data = b"[boot]\rcommand=a # b\rsystemd=true\n#\r[gpu]\renabled=false\r\n"
    out = _after(data, {"user.default": "ada"}, "wslconf")
    assert out == b"[boot]\ncommand=a # b\n# systemd=true\n#\n# [gpu]\n# enabled=false\n\n[user]\ndefault=ada\n"


def test_dns_tunnelling_that_a_bad_address_switches_off() -> None:
    on, address = b"[wsl2]\ndnsTunneling=true # on\n", b"[experimental]\ndnsTunnelingIpAddress=1.2.3\n"
    wanted = {"wsl2.dnsTunneling": True, "experimental.dnsTunnelingIpAddress": "1.2.3.4"}
    assert _after(on + address, wanted) == (on + address).replace(b"1.2.3", b"1.2.3.4")
    assert _after(on + address, {"wsl2.dnsTunneling": True}) == (b"[wsl2]\n# on\n" + address + b"\n[wsl2]\ndnsTunneling=true\n")
    assert _after(address + on, {"wsl2.dnsTunneling": True}) == address + on
    assert _after(on + address, {"wsl2.dnsTunneling": None}) == b"[wsl2]\n# on\n" + address.replace(b"dns", b"# dns")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wsl2.memory", value)
        for value in ("16gb", "16 GB", "1.5GB", "16GiB", "50%", "'8GB'", "", "08GB", -1, 1.5, 2**64, True, "99999999999TB")
    ]
    + [("wsl2.processors", value) for value in ("8", 2**31, True, 8.0)]
    + [("wsl2.firewall", value) for value in ("true", 1, "yes")]
    + [("wsl2.networkingMode", value) for value in ("bridge", "", 1)]
    + [("wsl2.swapFile", value) for value in ("C:\\Users\\José\\s.vhdx", "C:\temp\\swap.vhdx", 1)]
    + [("experimental.ignoredPorts", value) for value in ([], [0], [65536], "80", [True])]
    + [("experimental.dnsTunnelingIpAddress", "1.2.3"), ("wsl2.macAddress", "00:15"), ("wsl2.kernelCommandLine", "a\rb")]
    + [("wsl2.instanceIdleTimeout", -1), ("boot.systemd", True), ("", 1)],
)
def test_a8_a17_refused_before_anything_is_written(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name or "no such setting") as raised:
        edit(b"", "wslconfig", {name: value})
    assert "\n" not in str(raised.value)


def test_one_setting_by_two_names_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        edit(b"", "wslconfig", {"wsl2.firewall": True, "experimental.firewall": False})


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_found_in_any_case_and_by_alias(kind: Kind) -> None:
    assert {find(kind, name.upper()) for key in KEYS[kind] for name in (key.name, key.alias) if name} == set(KEYS[kind])
    assert len({key.name.lower() for key in KEYS[kind]}) == len(KEYS[kind]) == {"wslconfig": 55, "wslconf": 25}[kind]
