"""Power settings as Windows prints them in its languages, and the findings with their commands."""

from __future__ import annotations

import pytest

from wsllama.domain.power import HIBERNATE, LID, STANDBY, findings, plugged, registry_number

# `powercfg /q` of an English Windows 11, cut to these settings; the German one has other words and the same numbers.
ENGLISH = """\
Power Scheme GUID: 381b4222-f694-41f0-9685-ff5bb260df2e  (Balanced)
  GUID Alias: SCHEME_BALANCED
  Subgroup GUID: 238c9fa8-0aad-41ed-83f4-97be242c8f20  (Sleep)
    GUID Alias: SUB_SLEEP
    Power Setting GUID: 29f6c1db-86da-48c5-9fdb-f2b67b1f44da  (Sleep after)
      GUID Alias: STANDBYIDLE
      Minimum Possible Setting: 0x00000000
      Maximum Possible Setting: 0xffffffff
      Possible Settings increment: 0x00000001
      Possible Settings units: Seconds
    Current AC Power Setting Index: {standby:#010x}
    Current DC Power Setting Index: 0x00000384

    Power Setting GUID: 9d7815a6-7ee4-497e-8888-515a05f02364  (Hibernate after)
      GUID Alias: HIBERNATEIDLE
      Minimum Possible Setting: 0x00000000
      Maximum Possible Setting: 0xffffffff
      Possible Settings increment: 0x00000001
      Possible Settings units: Seconds
    Current AC Power Setting Index: {hibernate:#010x}
    Current DC Power Setting Index: 0x00002a30

  Subgroup GUID: 4f971e89-eebd-4455-a8de-9e59040e7347  (Power buttons and lid)
    GUID Alias: SUB_BUTTONS
    Power Setting GUID: 5ca83367-6e45-459f-a27b-476b1d01c936  (Lid close action)
      GUID Alias: LIDACTION
      Possible Setting Index: 000
      Possible Setting Friendly Name: Do nothing
      Possible Setting Index: 001
      Possible Setting Friendly Name: Sleep
    Current AC Power Setting Index: {lid:#010x}
    Current DC Power Setting Index: 0x00000001
"""
WORDS = {
    "Power Scheme GUID": "GUID des Energieschemas",
    "Subgroup GUID": "GUID der Untergruppe",
    "Power Setting GUID": "GUID der Energieeinstellung",
    "Current AC Power Setting Index": "Index der aktuellen Wechselstromeinstellung",
    "Current DC Power Setting Index": "Index der aktuellen Gleichstromeinstellung",
    "Possible Setting Index": "Index der möglichen Einstellung",
}
REGISTRY = """
HKEY_LOCAL_MACHINE\\SYSTEM\\CurrentControlSet\\Control\\Session Manager\\Power
    HiberbootEnabled    REG_DWORD    {value:#x}

"""


def text(language: str, standby: int = 0, hibernate: int = 0, lid: int = 0) -> str:
    out = ENGLISH.format(standby=standby, hibernate=hibernate, lid=lid)
    for english, german in WORDS.items() if language == "de" else ():
        out = out.replace(english, german)
    return out


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_numbers_for_plugged_in_are_read_in_any_language(language: str) -> None:
    assert plugged(text(language, 1800, 10800, 2)) == {STANDBY: 1800, HIBERNATE: 10800, LID: 2}
    assert plugged("powercfg: Zugriff verweigert") == {}


def test_fast_startup_is_read_from_the_registry() -> None:
    assert registry_number(REGISTRY.format(value=1), "HiberbootEnabled") == 1
    assert registry_number(REGISTRY.format(value=0), "HiberbootEnabled") == 0
    assert (
        registry_number("ERROR: The system was unable to find the specified registry key or value.", "HiberbootEnabled") is None
    )


@pytest.mark.parametrize("language", ["en", "de"])
def test_each_finding_has_its_one_command(language: str) -> None:
    found = findings(text(language, 1800, 10800, 1), REGISTRY.format(value=1), -7200.4, "Debian")
    assert {f.id: f.command for f in found} == {
        "standby": "powercfg /change standby-timeout-ac 0",
        "hibernate": "powercfg /change hibernate-timeout-ac 0",
        "lid": "powercfg /setacvalueindex scheme_current sub_buttons lidaction 0 && powercfg /setactive scheme_current",
        "fast-startup": 'reg add "HKLM\\SYSTEM\\CurrentControlSet\\Control\\Session Manager\\Power" /v HiberbootEnabled'
        " /t REG_DWORD /d 0 /f",
        "clock": "wsl -d Debian -u root --exec hwclock --hctosys",
    }
    says = {f.id: f.says for f in found}
    assert "after 30 minutes" in says["standby"]
    assert "7200 s behind" in says["clock"]
    assert [f.id for f in found if f.admin] == ["fast-startup"]


def test_a_machine_that_stays_awake_has_no_findings_and_what_was_not_asked_is_no_finding() -> None:
    assert findings(text("en"), REGISTRY.format(value=0), 0.4) == []
    assert findings(None, None, None) == []
