"""Files, directories, users and packages: what holds costs one question, what differs exactly the commands for it."""

from __future__ import annotations

import base64
import getpass
import grp
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from tests.operations.fake_hosts import Converge, settings
from wsllama.domain import build
from wsllama.operations import files, llama_cpp, server
from wsllama.operations.files import File

TEXT = "hello\n"
# printf 'hello\n' | sha256sum
SUM = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
FILE = {"kind": "file", "mode": "644", "user": "root", "group": "root", "sha256": SUM, "size": 6}
FOLDER = {"kind": "directory", "mode": "755", "user": "root", "group": "root"}


def test_files_hold(converge: Converge) -> None:
    got = converge(files.files, [File("/x", TEXT)], ["/gone"], seen={"files": {"/x": FILE, "/gone": None}})
    assert (got.commands, got.probes, got.changed, got.failed) == ([], 1, False, False)


@pytest.mark.parametrize(
    ("there", "data"),
    [
        (None, True),
        ({**FILE, "sha256": "0" * 64}, True),
        ({"kind": "link", "target": "/y", "mode": "777", "user": "root", "group": "root"}, True),
        ({**FOLDER}, True),
        ({**FILE, "mode": "600"}, False),
        ({**FILE, "user": "nobody"}, False),
        ({**FILE, "group": "nogroup"}, False),
    ],
)
def test_files_differ(converge: Converge, there: Any, data: bool) -> None:
    got = converge(files.files, [File("/x", TEXT)], seen={"files": {"/x": there}})
    assert got.commands == ["python3 -I -S - # apply /x"]
    (((want,)),) = got.sent
    assert (want["path"], want["kind"], want["mode"], want["user"]) == ("/x", "file", "644", "root")
    assert ("data" in want) == data, "content travels only when it differs"
    assert not data or base64.b64decode(want["data"]) == b"hello\n"
    assert got.changed


def test_several_files_are_one_command(converge: Converge) -> None:
    wanted = [File("/x", TEXT), File("/y", TEXT), File("/z", TEXT)]
    got = converge(files.files, wanted, ["/gone"], seen={"files": {"/x": None, "/y": FILE, "/z": None, "/gone": FILE}})
    assert got.commands == ["python3 -I -S - # apply /x /z", "python3 -I -S - # apply /gone"]
    assert [w["kind"] for w in got.sent[1]] == ["absent"]


def test_directories(converge: Converge) -> None:
    wanted = {"/a": {}, "/b": {"group": "llama", "mode": "750"}, "/c": {}}
    holds = {"files": {"/a": FOLDER, "/b": {**FOLDER, "group": "llama", "mode": "750"}, "/c": FOLDER}}
    got = converge(files.directories, wanted, seen=holds)
    assert (got.commands, got.probes, got.changed) == ([], 1, False)
    got = converge(files.directories, wanted, seen={"files": {"/a": FOLDER, "/b": FOLDER, "/c": None}})
    assert got.commands == ["python3 -I -S - # apply /b /c"]
    assert got.sent == [
        [
            {"path": "/b", "kind": "directory", "mode": "750", "user": "root", "group": "llama"},
            {"path": "/c", "kind": "directory", "mode": "755", "user": "root", "group": "root"},
        ]
    ]


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"kind": "link", "target": "/data/models", "mode": "777"}, "/a is a link to /data/models, not a folder"),
        ({"kind": "file", "mode": "644"}, "/a is a file, not a folder"),
    ],
)
def test_what_somebody_put_in_a_folders_place_is_left_there(converge: Converge, there: dict[str, Any], words: str) -> None:
    got = converge(files.directories, {"/a": {}, "/b": {}}, seen={"files": {"/a": {**FOLDER, **there}, "/b": None}})
    assert (got.commands, got.failed) == ([], True)
    assert words in got.log


LLAMA = {"group": "llama", "home": "/var/lib/wsllama", "shell": "/usr/sbin/nologin"}


def test_user_holds(converge: Converge) -> None:
    got = converge(files.user, "llama", "/var/lib/wsllama", seen={"users": {"llama": LLAMA}})
    assert (got.commands, got.probes, got.changed) == ([], 1, False)


def test_user_is_made(converge: Converge) -> None:
    known = {
        "/etc/group": "root:x:0:",
        "/etc/passwd": "root:x:0:0::/root:/bin/sh|root|root||x",
        "uname -s": "Linux",
        "command -v useradd": "/usr/sbin/useradd",
    }
    got = converge(files.user, "llama", "/var/lib/wsllama", seen={"users": {"llama": None}}, answers=known)
    made = [c for c in got.commands if c.startswith(("groupadd", "useradd"))]
    assert [c.split()[0] for c in made] == ["groupadd", "useradd"]
    assert all(f" {word} " in f"{made[1]} " for word in ("-r", "-d /var/lib/wsllama", "-s /usr/sbin/nologin", "-g llama"))
    assert got.changed


def test_user_of_somebody_else_is_left_alone(converge: Converge) -> None:
    theirs = {"group": "llama", "home": "/home/llama", "shell": "/bin/bash"}
    got = converge(files.user, "llama", "/var/lib/wsllama", seen={"users": {"llama": theirs}})
    assert (got.commands, got.failed) == ([], True)
    assert "there is a user llama whose home is /home/llama" in got.log


def packages(**more: str | None) -> dict[str, Any]:
    names = (
        "build-essential ccache cmake curl git libssl-dev ninja-build pkg-config"
        " ca-certificates libgcc-s1 libgomp1 libssl3 libstdc++6"
    )
    return {"packages": {**dict.fromkeys(build.every_package()), **dict.fromkeys(names.split(), "1"), **more}}


MACHINE = {"distro": "debian-12", "arch": "x86_64", "cores": 2, "cpu": {"flags": ["avx2"]}, "memory_available": 4 << 30}


def test_packages_hold(converge: Converge) -> None:
    seen = {"system": MACHINE, "builds": {"/opt/wsllama/builds": {}}, **packages()}
    got = converge(llama_cpp.packages, settings(), seen=seen)
    assert (got.commands, got.probes, got.changed, got.failed) == ([], 1, False, False)


def test_only_missing_packages_are_installed(converge: Converge) -> None:
    seen = {"system": MACHINE, "builds": {"/opt/wsllama/builds": {}}, **packages(ccache=None, cmake=None)}
    got = converge(llama_cpp.packages, settings(), seen=seen, answers={"which apt": "/usr/bin/apt"})
    (install,) = [c for c in got.commands if " install " in c]
    assert "ccache cmake" in install
    assert "git" not in install.split()
    assert "--no-install-recommends" in install


def test_a_distro_without_a_table_fails_in_words(converge: Converge) -> None:
    seen = {"system": {**MACHINE, "distro": "fedora-41"}, "builds": {"/opt/wsllama/builds": {}}, **packages()}
    got = converge(llama_cpp.packages, settings(), seen=seen)
    assert got.failed
    assert "fedora 41 is not supported for building llama.cpp; use one of Debian 12" in got.log


KEY = {**FILE, "mode": "640", "group": "llama", "size": 44}


@pytest.mark.parametrize(
    ("there", "made"),
    [(None, True), ({**KEY, "size": 0}, True), ({**KEY, "mode": "644"}, False), ({**KEY, "group": "root"}, False)],
)
def test_secret(converge: Converge, there: Any, made: bool) -> None:
    got = converge(server.secret, "/etc/wsllama/api-key", "llama", seen={"files": {"/etc/wsllama/api-key": there}})
    assert got.commands == ["python3 -I -S - # apply /etc/wsllama/api-key"]
    assert got.sent[0][0]["secret"] is made
    assert "data" not in got.sent[0][0], "the key is made on the host and never leaves it"


def test_secret_holds(converge: Converge) -> None:
    got = converge(server.secret, "/etc/wsllama/api-key", "llama", seen={"files": {"/etc/wsllama/api-key": KEY}})
    assert (got.commands, got.probes, got.changed) == ([], 1, False)


def me() -> dict[str, Any]:
    return {"user": getpass.getuser(), "group": grp.getgrgid(os.getgid()).gr_name}


def test_really_on_this_machine(converge: Converge, tmp_path: Path) -> None:
    folder, path = tmp_path / "a" / "b", tmp_path / "a" / "b" / "x"
    paths = {str(tmp_path / "a"): me(), str(folder): {**me(), "mode": "750"}}
    here = {"hosts": ("@local",), "data": {}}
    assert converge(files.directories, paths, **here).changed
    assert not converge(files.directories, paths, **here).changed
    assert folder.stat().st_mode & 0o7777 == 0o750

    wanted = [File(str(path), "Grüße\n", mode="640", **me())]
    assert converge(files.files, wanted, **here).changed
    assert not converge(files.files, wanted, **here).changed
    assert path.read_bytes() == b"Gr\xc3\xbc\xc3\x9fe\n"
    assert path.stat().st_mode & 0o7777 == 0o640
    inode = path.stat().st_ino
    assert converge(files.files, [File(str(path), "other\n", mode="640", **me())], **here).changed
    assert path.stat().st_ino != inode, "written aside and renamed"
    assert sorted(p.name for p in folder.iterdir()) == ["x"]

    assert converge(files.files, [], [str(path)], **here).changed
    assert not path.exists()
    assert not converge(files.files, [], [str(path)], **here).changed


def test_a_folder_and_a_link_in_a_files_place(converge: Converge, tmp_path: Path) -> None:
    here = {"hosts": ("@local",), "data": {}}
    folder, link, elsewhere = tmp_path / "folder", tmp_path / "link", tmp_path / "elsewhere"
    (folder / "inside").mkdir(parents=True)
    elsewhere.write_text("untouched\n")
    link.symlink_to(elsewhere)
    wanted = [File(str(folder), TEXT, **me()), File(str(link), TEXT, **me())]
    assert converge(files.files, wanted, **here).changed
    assert [hashlib.sha256(p.read_bytes()).hexdigest() for p in (folder, link)] == [SUM, SUM]
    assert not link.is_symlink()
    assert elsewhere.read_text() == "untouched\n"


def test_what_cannot_be_written_is_one_sentence(converge: Converge, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    got = converge(files.files, [File(f"{tmp_path}/file/x", TEXT, **me())], hosts=("@local",), data={})
    assert got.failed
    assert f"{tmp_path}/file/x can't be written: Not a directory" in got.log
    assert "Traceback" not in got.log
