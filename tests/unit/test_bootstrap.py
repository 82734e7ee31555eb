"""bootstrap.ps1 is what the templates render, carries the right numbers, and takes nothing that could break out of its data."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from wsllama import cli
from wsllama.commands.bootstrap import TEMPLATES, script
from wsllama.domain import bootstrap, toolkit
from wsllama.domain.bootstrap import IMAGES, Settings, driver_floor, parameters

ROOT = Path(__file__).parents[2]


def carried(text: str) -> dict[str, object]:
    """The parameters that a script carries, read as PowerShell does: all between @' and '@ at the start of a line."""
    found = re.search(r"^\$Settings = @'\n(.*?)\n'@ \| ConvertFrom-Json$", text, re.M | re.S)
    assert found
    return json.loads(found[1])  # type: ignore[no-any-return]


def test_the_file_in_the_root_is_the_rendering_with_the_defaults() -> None:
    assert (ROOT / "bootstrap.ps1").read_bytes() == script(Settings()).encode("ascii")


@pytest.mark.parametrize(
    ("distro", "url", "sha256"),  # microsoft/WSL, distributions/DistributionInfo.json of 2026-08-06
    [
        ("22.04", "jammy/ubuntu-22.04.5-wsl-amd64.wsl", "4499c4fe257f2fc83145b429ce211a0a43fd590e70d6261ede616210947d9f8f"),
        ("24.04", "24.04.4/ubuntu-24.04.4-wsl-amd64.wsl", "9b2f7730dc68227dd04a9f3e5eab86ad85caf556b8606ad94f1f29ff5c4fd3f5"),
        ("26.04", "26.04/ubuntu-26.04-wsl-amd64.wsl", "96c7f5fb28a7fe28245331f9bfbe4375f18dd29a4850116ad3c4f60f6700c55c"),
    ],
)
def test_root_file_systems_are_those_of_the_list_of_distributions(distro: str, url: str, sha256: str) -> None:
    image = carried(script(Settings(distro=distro)))["image"]
    assert image == {"url": f"https://releases.ubuntu.com/{url}", "sha256": sha256}


def test_every_release_with_an_image_is_one_that_llama_cpp_can_be_compiled_on() -> None:
    assert {f"ubuntu-{distro}" for distro in IMAGES} == {name for name in toolkit.GLIBC if name.startswith("ubuntu-")}


def test_floors_are_the_published_ones() -> None:
    told = carried(script(Settings()))
    assert (told["windows_build"], told["windows_build_mirrored"]) == (19041, 22621)
    assert (told["wsl_floor"], told["wsl_idle"]) == ("2.4.4", "2.5.8")
    assert told["features"] == ["Microsoft-Windows-Subsystem-Linux", "VirtualMachinePlatform"]


@pytest.mark.parametrize(("distro", "floor"), [("22.04", "528.33"), ("24.04", "528.33"), ("26.04", "580.00")])
def test_a_driver_is_refused_exactly_where_no_toolkit_works(distro: str, floor: str) -> None:
    assert driver_floor(distro) == floor
    major, minor = map(int, floor.split("."))
    below = f"{major}.{minor - 1:02d}" if minor else f"{major - 1}.99"
    assert toolkit.choose(f"ubuntu-{distro}", floor, ["8.9"]).ok
    assert not toolkit.choose(f"ubuntu-{distro}", below, ["8.9"]).ok


# The device manager's number and NVIDIA's own for the same driver, of NVIDIA's downloads.
@pytest.mark.parametrize(
    ("pnp", "driver"),
    [
        ("32.0.15.7602", "576.02"),
        ("31.0.15.2833", "528.33"),
        ("31.0.15.3667", "536.67"),
        ("32.0.15.8097", "580.97"),
        ("30.0.14.7212", "472.12"),
    ],
)
def test_the_script_reads_a_driver_s_number_as_the_toolkit_does(pnp: str, driver: str) -> None:
    found = re.search(
        r"\$Pnp -match '([^']+)'.*?-f (\$Matches\[\d\], \$Matches\[\d\], \$Matches\[\d\])", text := script(Settings()), re.S
    )
    assert found, text
    m = re.search(found[1], pnp)
    assert m
    parts = [m[int(group)] for group in re.findall(r"\d", found[2])]
    assert "{}{}.{}".format(*parts) == driver
    assert toolkit.choose("ubuntu-24.04", pnp, ["8.9"]) == toolkit.choose("ubuntu-24.04", driver, ["8.9"])


@pytest.mark.parametrize("pnp", ["", "576.02", "32.0.15", "32.0.15.760", "27.20.100.9664x", "10.0.19041.1"])
def test_another_number_is_no_driver_of_nvidia(pnp: str) -> None:
    found = re.search(r"\$Pnp -match '([^']+)'", script(Settings()))
    assert found
    assert re.search(found[1], pnp) is None
    assert not toolkit.choose("ubuntu-24.04", pnp, ["8.9"]).ok or pnp == "576.02"


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text())))
def test_no_value_breaks_out_of_the_data(values: dict[str, object]) -> None:
    text = bootstrap._json(values)
    assert text.isascii()
    assert "'" not in text
    assert json.loads(text) == values


folders = st.lists(st.text(min_size=1), min_size=1).map(lambda parts: "D:\\" + "\\".join(parts))


@given(location=st.none() | st.text() | folders, git_url=st.none() | st.text() | st.text().map("https://{}".format))
def test_settings_are_refused_or_arrive_as_they_are(location: str | None, git_url: str | None) -> None:
    try:
        settings = Settings(location=location, git_url=git_url)
    except ValueError:
        return
    told = carried(script(settings))
    assert told == json.loads(json.dumps(parameters(settings)))
    assert (told["location"] or None, told["git_url"] or None) == (location, git_url)
    for argument in (location, git_url):  # what no argument of a program survives in Windows PowerShell
        assert argument is None or not set(argument) & {'"', "\n", "\r", "\0"}
    assert git_url is None or not git_url.endswith("\\")


@pytest.mark.parametrize("location", ["D:\\wsl", "D:\\wsl\\", "d:\\Käse und Brot\\it's", "C:\\a.b\\c-d_e (1)"])
def test_folders_that_windows_can_make_are_taken(location: str) -> None:
    assert Settings(location=location).location == location


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"distro": "20.04"}, "distro '20.04' is none of 22.04, 24.04, 26.04"),
        ({"name": "Ubuntü"}, "name 'Ubuntü': WSL takes ASCII letters"),
        ({"name": "a b"}, "name 'a b'"),
        ({"name": "-d"}, "name '-d'"),
        ({"name": ""}, "name ''"),
        ({"user": "root"}, "user 'root'"),
        ({"user": "Ada"}, "user 'Ada'"),
        ({"user": "a\n"}, "user 'a\\n'"),
        ({"location": "wsl"}, "location 'wsl' is no folder on a drive of Windows"),
        ({"location": "D:\\"}, "location 'D:\\\\'"),
        ({"location": 'D:\\a"b'}, "location"),
        ({"location": "D:\\a\nb"}, "location"),
        ({"location": "\\\\server\\share"}, "location"),
        ({"location": "D:\\..\\x "}, "location"),
        ({"git_url": "git@host:x"}, "git-url 'git@host:x' has to look like https://... or ssh://..."),
        ({"git_url": "https://user:secret@h/x.git"}, "without quotes, a password or a token"),
        ({"git_url": "https://token@h/x.git"}, "without quotes, a password or a token"),
        ({"git_url": "ssh://git:secret@h/x.git"}, "without quotes, a password or a token"),
        ({"git_url": "--upload-pack=x"}, "git-url"),
        ({"git_url": "https://h/a b"}, "git-url"),
        ({"git_url": 'https://h/"'}, "git-url"),
    ],
)
def test_what_can_not_be_is_refused(wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Settings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["https://h/a@b", "https://h:8443/x.git", "ssh://git@h/x.git", "ssh://git@h:22/x:y@z.git"])
def test_repositories_that_git_takes_are_taken(url: str) -> None:
    assert Settings(git_url=url).git_url == url


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"distro '1' is none of .*; name '': .*; user '': ") as e:
        Settings(distro="1", name="", user="")
    assert "\n" not in str(e.value)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["bootstrap", *map(str, words)])


def test_the_command_writes_a_script_for_other_settings(tmp_path: Path) -> None:
    out = tmp_path / "mine.ps1"
    words = [
        "--distro",
        "26.04",
        "--name",
        "llama",
        "--user",
        "ada",
        "--location",
        "D:\\it's",
        "--git-url",
        "https://h/r.git",
        "--mirrored",
    ]
    result = run("--out", out, *words)
    assert result.exit_code == 0, result.output
    assert "-File mine.ps1 -WhatIf" in result.stdout
    told = carried(out.read_text("ascii"))
    assert {key: told[key] for key in ("distro", "name", "user", "location", "git_url", "mirrored", "driver_floor")} == {
        "distro": "26.04",
        "name": "llama",
        "user": "ada",
        "location": "D:\\it's",
        "git_url": "https://h/r.git",
        "mirrored": True,
        "driver_floor": "580.00",
    }
    assert list(tmp_path.iterdir()) == [out]


def test_the_command_refuses_and_writes_nothing(tmp_path: Path) -> None:
    result = run("--out", tmp_path / "x.ps1", "--distro", "20.04", "--name", "ü")
    assert result.exit_code == 2
    assert result.stderr.startswith("refused: distro '20.04' is none of 22.04, 24.04, 26.04; name 'ü'")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["absent/x.ps1", "folder"])
def test_a_file_that_can_not_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    result = run("--out", tmp_path / name)
    assert result.exit_code == 2
    assert re.fullmatch(r"refused: \S+ can't be written: [^;]+; nothing was changed\n", result.stderr)
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def inside(*words: str, line_end: bytes = b"\n") -> subprocess.CompletedProcess[bytes]:
    """What is carried out in the distro, as PowerShell hands it to bash: on stdin, with CR and LF behind its end."""
    found = re.search(r"^\$Inside = @'\n(.*?)\n'@$", script(Settings()), re.M | re.S)
    assert found
    text = found[1].encode().replace(b"\n", line_end).replace(b"\r", b"")  # as Invoke-Inside does
    return subprocess.run(["bash", "-s", *words], input=text + b"\r\n", capture_output=True)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_looking_into_a_distro_names_what_is_to_be_done_and_does_nothing(line_end: bytes) -> None:
    p = inside("look", "nobody-of-this-name", "C:\\a b", "-", line_end=line_end)
    assert (p.returncode, p.stderr) == (0, b"")
    said = [(line[:14].strip(), line[14:]) for line in p.stdout.decode().splitlines()]
    assert said[1:] == [
        ("would change", "user nobody-of-this-name"),
        ("would change", "sudo without a password for nobody-of-this-name"),
        ("would change", "project in /home/nobody-of-this-name/wsllama"),
        ("would change", "scripts/setup of the project"),
        ("would change", "/etc/wsl.conf: systemd, and nobody-of-this-name as the default user"),
    ]
    assert said[0][1] == "packages python3 python3-venv git sudo"
    assert subprocess.run(["id", "nobody-of-this-name"], capture_output=True).returncode == 1


def test_the_templates_are_ascii_with_lf() -> None:
    for name in ("bootstrap.ps1", "inside.sh"):
        data = (TEMPLATES / name).read_bytes()
        assert data.isascii(), name
        assert b"\r" not in data, name
        assert b"\t" not in data, name
