"""Settings of WSL: every key that WSL knows has one, and what WSL would refuse is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from wsllama.domain.wslconfig import Kind, edit, parse
from wsllama.domain.wslconfig.keys import KEYS
from wsllama.settings_wsl import Section, Wsl


def _sections(model: BaseModel) -> list[Section]:
    parts = [part for name in type(model).model_fields if isinstance(part := getattr(model, name), BaseModel)]
    return [s for p in parts for s in ([p] if isinstance(p, Section) else _sections(p))]


@pytest.mark.parametrize("kind", ["wslconfig", "wslconf"])
def test_every_key_has_a_setting_with_its_meaning(kind: Kind) -> None:
    fields = [(s, name, f) for s in _sections(Wsl()) if s.kind == kind for name, f in type(s).model_fields.items()]
    assert {f"{s.section}.{name}" for s, name, _ in fields} == {key.name for key in KEYS[kind]}
    assert all(field.description and field.default is None for _, _, field in fields)


EXAMPLES: dict[str, Any] = {"bool": False, "int": -1, "octal": 0o27, "size": "16GB", "ports": [80, 22], "ip": "1.2.3.4"}
EXAMPLES |= {"mac": "00:15:5D:01:02:03", "path": "C:\\vm\\a", "file": "/tmp/a", "string": "a b"}
ENUMS = {"wsl2.networkingMode": "virtioproxy", "experimental.autoMemoryReclaim": "disabled", "automount.cgroups": "v2"}


@pytest.mark.parametrize("kind", ["wslconfig", "wslconf"])
def test_every_setting_is_one_that_wsl_reads(kind: Kind) -> None:
    data: dict[str, dict[str, Any]] = {}
    for key in KEYS[kind]:
        section, _, name = key.name.partition(".")
        data.setdefault(section, {})[name] = ENUMS.get(key.name, EXAMPLES.get(key.type))
    wsl = Wsl.model_validate(data if kind == "wslconfig" else {"conf": data})
    parsed = parse(edit(None, kind, wsl.changes(kind)), kind)
    assert (set(parsed.values), parsed.warnings) == ({key.name for key in KEYS[kind]}, [])


def test_what_is_left_out_is_no_change() -> None:
    assert (Wsl().changes("wslconfig"), Wsl().changes("wslconf")) == ({}, {})
    some = Wsl.model_validate({"wsl2": {"memory": "48GB"}, "conf": {"boot": {"systemd": True}}})
    assert some.changes("wslconfig") == {"wsl2.memory": "48GB"}
    assert some.changes("wslconf") == {"boot.systemd": True}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        *(({"wsl2": {"memory": size}}, "16GB") for size in ("16gb", "16 GB", "1.5GB", "16GiB", "50%", "'8GB'", -1)),
        ({"wsl2": {"swapFile": "C:\temp\\swap.vhdx"}}, "control characters"),
        ({"wsl2": {"swapFile": "C:\\Users\\José\\s.vhdx"}}, "only ASCII"),
        ({"wsl2": {"processors": 2**31}}, "32 bits"),
        ({"wsl2": {"firewall": "true"}}, "boolean"),
        ({"wsl2": {"networkingMode": "bridge"}}, "mirrored"),
        ({"wsl2": {"instanceIdleTimeout": -1}}, "Extra inputs"),
        ({"experimental": {"ignoredPorts": [0]}}, "1 to 65535"),
        ({"experimental": {"sparseVhd": True}}, "damaged"),
        ({"conf": {"filesystem": {"umask": 0o1000}}}, "511"),
        ({"conf": {"user": {"default": "jürgen"}}}, "only ASCII"),
        ({"conf": {"network": {"hostname": "a\rb"}}}, "control characters"),
    ],
)
def test_refuses_what_wsl_would_not_take(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Wsl.model_validate(data)


@pytest.mark.parametrize("path", ["/mnt/c/Users/José", "C:\\Users\\José.DOMAIN", "d:/Users/x"])
def test_a_profile_may_have_any_letters_and_either_form(path: str) -> None:
    assert Wsl(profile=path).profile == path


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"profile": "Users\\Ada"}, "given whole"),
        ({"profile": "~"}, "given whole"),
        ({"profile": "C:\temp"}, "control characters"),
        ({"distro": "Übuntu"}, "ASCII"),
        ({"distro": "my distro"}, "ASCII"),
        ({"distro": ""}, "at least 1"),
        ({"distro": "-d"}, "ASCII"),
        ({"keep_alive": "service"}, "startup"),
    ],
)
def test_refuses_what_is_no_name_of_a_profile_or_distro(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Wsl.model_validate(data)


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(ValidationError) as raised:
        Wsl.model_validate({"wsl2": {"memory": "1gb", "swap": "2gb"}, "general": {"distributionInstallPath": "é"}})
    text = str(raised.value)
    assert all(name in text for name in ("wsl2.memory", "wsl2.swap", "general.distributionInstallPath"))
