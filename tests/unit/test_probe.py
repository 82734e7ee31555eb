"""The probe against real files, the real kernel, the real dpkg; and records of builds, models and releases in every state."""

from __future__ import annotations

import getpass
import grp
import hashlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wsllama import program
from wsllama.host import probe

ME = {"user": getpass.getuser(), "group": grp.getgrgid(os.getgid()).gr_name}


def test_it_runs_alone_and_prints_one_line(tmp_path: Path) -> None:
    """As it runs on a host: a bare python3, its own text on stdin."""
    text = program.call("probe", {"stamps": {str(tmp_path): None}, "users": {}})
    p = subprocess.run([sys.executable, "-I", "-S", "-"], input=text, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(p.stdout) == {"stamps": {str(tmp_path): None}}
    assert p.stdout.count("\n") == 1


def test_files(tmp_path: Path) -> None:
    file, folder, link, pipe = (str(tmp_path / name) for name in ("file", "folder", "link", "pipe"))
    Path(file).write_bytes(b"hello\n")
    os.chmod(file, 0o640)
    os.mkdir(folder, 0o750)
    os.symlink("/nowhere", link)
    os.mkfifo(pipe)
    found = probe.files(dict.fromkeys([file, folder, link, pipe, f"{folder}/no", f"{file}/no"]))
    sha256 = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout.split()[0]
    assert {k: found[file][k] for k in ("kind", "mode", "size", "sha256")} == {
        "kind": "file",
        "mode": "640",
        "size": 6,
        "sha256": sha256,
    }
    assert {k: found[file][k] for k in ("user", "group")} == ME
    assert (found[folder]["kind"], found[folder]["mode"]) == ("directory", "750")
    assert (found[link]["kind"], found[link]["target"]) == ("link", "/nowhere")
    assert found[pipe]["kind"] == "other"
    assert found[f"{folder}/no"] is None
    assert found[f"{file}/no"] is None


def test_a_file_of_somebody_without_a_name(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    path = tmp_path / "file"
    path.write_text("")
    os.chown(path, 54321, 54322)
    found = probe.files({str(path): None})[str(path)]
    assert (found["user"], found["group"]) == ("54321", "54322")


def test_text_only_of_a_small_file_that_differs(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    Path(path).write_bytes(b"gr\xfcn\n")
    right = hashlib.sha256(b"gr\xfcn\n").hexdigest()
    assert "text" not in probe.files({path: right})[path]
    assert "text" not in probe.files({path: None})[path]
    assert probe.files({path: "0" * 64})[path]["text"] == "gr\ufffdn\n"
    Path(path).write_bytes(bytes(probe.SMALL + 1))
    assert "sha256" not in probe.files({path: right})[path]


def test_originals_follow_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"1234")
    link.symlink_to(real)
    found = probe.originals([str(link), str(tmp_path), str(tmp_path / "no")])
    s = real.stat()
    assert found[str(link)] == {"path": str(real), "size": 4, "mtime_ns": s.st_mtime_ns, "inode": s.st_ino}
    assert found[str(tmp_path)] is None
    assert found[str(tmp_path / "no")] is None


def test_packages_as_dpkg_says() -> None:
    lines = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status}\t${Package}\t${Version}\n"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    installed: dict[str, set[str]] = {}
    for line in lines:
        status, name, version = line.split("\t")
        if status == "installed":
            installed.setdefault(name, set()).add(version)
    found = probe.packages([*installed, "no-such-package", "lib", "dpkg.*"])
    assert {name for name, version in found.items() if version is None} == {"no-such-package", "lib", "dpkg.*"}
    assert {name: v for name, v in found.items() if v and v not in installed[name]} == {}


def test_users() -> None:
    found = probe.users(["root", "nobody", "no-such-user"])
    assert found["root"] == {"group": "root", "home": "/root", "shell": pwd.getpwuid(0).pw_shell}
    assert found["nobody"]["group"] == "nogroup"
    assert found["no-such-user"] is None


def test_disk(tmp_path: Path) -> None:
    found = probe.disk([str(tmp_path), str(tmp_path / "a/b/c"), "/proc"])
    df = subprocess.run(["df", "-B1", "--output=avail", tmp_path], capture_output=True, text=True, check=True).stdout.split()
    assert abs(found[str(tmp_path)] - int(df[-1])) < 1 << 30
    assert abs(found[str(tmp_path)] - found[str(tmp_path / "a/b/c")]) < 1 << 30
    assert found["/proc"] == 0


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")],
)
def test_who_listens_on_a_port(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as listener, socket.socket(family) as other:
        listener.bind((address, 0))
        other.bind((address, 0))  # bound, but nobody listens
        listener.listen()
        port, quiet = (str(s.getsockname()[1]) for s in (listener, other))
        comm = Path("/proc/self/comm").read_text().strip()
        found = probe.ports([port, quiet])
        assert found[quiet] is None
        assert found[port] == f"{comm} (pid {os.getpid()})" or found[port].endswith(".service")


def test_system() -> None:
    keys = ["systemd", "wsl", "distro", "codename", "arch", "cores", "cpu", "memory_total", "memory_available", "python", "root"]
    found = probe.system(keys)
    shell = "unset ID VERSION_ID; . /etc/os-release; echo $ID-$VERSION_ID; uname -m; nproc; free -b | awk '/^Mem/ {print $2}'"
    distro, arch, cores, memory = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.split()
    assert list(found) == keys
    assert (found["distro"], found["arch"], found["cores"], found["memory_total"]) == (distro, arch, int(cores), int(memory))
    assert 0 < found["memory_available"] <= found["memory_total"]
    assert found["cpu"]["flags"] == sorted(found["cpu"]["flags"])
    assert len(found["cpu"]["flags"]) > 3
    assert found["root"] == (os.geteuid() == 0)
    assert found["systemd"] == os.path.isdir("/run/systemd/system")
    assert found["python"].startswith("3.")


# what a build, a model, a release leaves


def build(root: Path, name: str, **more: Any) -> Path:
    folder = root / name
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/llama-server").write_bytes(b"12345")
    record = {"commit": "c", "version": "v", "files": {"bin/llama-server": {"size": 5}}, **more}
    (folder / "build.json").write_text(json.dumps(record))
    return folder


def test_builds(tmp_path: Path) -> None:
    good, cut, gone, half, none = (build(tmp_path, name) for name in ("good", "cut", "gone", "half", "none"))
    (cut / "bin/llama-server").write_bytes(b"1234")
    (gone / "bin/llama-server").unlink()
    (half / "build.json").write_text('{"commit": "c", "fi')
    (none / "build.json").unlink()
    build(tmp_path, ".partial-good")
    (tmp_path / "a file").write_text("")
    s = (good / "build.json").stat()
    assert probe.builds([str(tmp_path)])[str(tmp_path)] == {
        "good": {"commit": "c", "version": "v", "made": [s.st_ino, s.st_mtime_ns]},
        "cut": None,
        "gone": None,
        "half": None,
    }
    assert probe.builds([str(tmp_path / "no")]) == {str(tmp_path / "no"): {}}


def model(root: Path, folder: str) -> tuple[Path, Path]:
    (root / folder).mkdir(parents=True)
    file, stamp = root / folder / "a.gguf", root / folder / "a.gguf.stamp"
    file.write_bytes(b"12345")
    s = file.stat()
    stamp.write_text(
        json.dumps({"size": s.st_size, "mtime_ns": s.st_mtime_ns, "inode": s.st_ino, "sha256": folder, "source": {}})
    )
    return file, stamp


def test_models(tmp_path: Path) -> None:
    model(tmp_path, "good")
    cut, touched, replaced, gone = (model(tmp_path, name)[0] for name in ("cut", "touched", "replaced", "gone"))
    cut.write_bytes(b"1234")
    os.utime(touched, ns=(1, 1))
    s = replaced.stat()
    replaced.rename(replaced.with_suffix(".old"))
    replaced.write_bytes(b"54321")
    os.utime(replaced, ns=(s.st_mtime_ns, s.st_mtime_ns))
    gone.unlink()
    model(tmp_path, "unstamped")[1].unlink()
    model(tmp_path, "half")[1].write_text('{"size"')
    model(tmp_path, ".partial")
    found = probe.models([str(tmp_path)])[str(tmp_path)]
    assert {name: seen["intact"] for name, seen in found.items() if seen["intact"]} == {"good/a.gguf": True}
    assert {"cut/a.gguf", "touched/a.gguf", "replaced/a.gguf"} <= set(found)
    assert not {"unstamped/a.gguf", "half/a.gguf", ".partial/a.gguf"} & set(found)
    assert found["good/a.gguf"]["sha256"] == "good"


def release(root: Path, number: str, accepted: bool = False, **more: Any) -> Path:
    folder = root / "releases" / number
    folder.mkdir(parents=True)
    (folder / "args").write_text("x")
    (folder / "build").symlink_to("/builds/b")
    record = {
        "digest": f"d{number}",
        "model": "m",
        "server": {"port": 1},
        "gpu": False,
        "build": "b",
        "links": {"build": "/builds/b"},
        "sha256": {"args": hashlib.sha256(b"x").hexdigest()},
        **more,
    }
    (folder / "release.json").write_text(json.dumps(record))
    if accepted:
        (folder / "baseline.json").write_text("{}")
    return folder


def test_releases(tmp_path: Path) -> None:
    release(tmp_path, "1", accepted=True)
    release(tmp_path, "2", stage="text", final=False, plan={"key": "k"})
    (release(tmp_path, "3") / "args").write_text("edited by hand")
    moved = release(tmp_path, "4") / "build"
    moved.unlink()
    moved.symlink_to("/builds/other")
    (release(tmp_path, "5") / "build").unlink()
    (release(tmp_path, "6") / "release.json").write_text('{"digest":')
    (release(tmp_path, "7") / "release.json").write_text('{"digest": "d7", "links": {}, "sha256": {}}')
    (release(tmp_path, "9") / "release.json").unlink()
    release(tmp_path, ".partial-10")
    for no_number in ("²", "٣", "08", "0", "12.moved", "x"):
        release(tmp_path, no_number)
    (tmp_path / "current").symlink_to("releases/2")
    (tmp_path / "last-good").symlink_to("releases/1")
    found = probe.releases([str(tmp_path)])[str(tmp_path)]
    made_of = {"model": "m", "server": {"port": 1}, "gpu": False, "build": "b"}
    assert found["numbers"] == {
        "1": {"digest": "d1", "accepted": True, **made_of, "plan": None, "stage": None, "final": True},
        "2": {"digest": "d2", "accepted": False, **made_of, "plan": {"key": "k"}, "stage": "text", "final": False},
    }
    assert (found["current"], found["last-good"], found["highest"]) == ("2", "1", 9)


@pytest.mark.parametrize("kind", ["absent", "a folder", "elsewhere"])
def test_a_current_that_is_not_ours(tmp_path: Path, kind: str) -> None:
    release(tmp_path, "1")
    if kind == "a folder":
        (tmp_path / "current").mkdir()
    elif kind == "elsewhere":
        (tmp_path / "current").symlink_to("/srv/mine")
    found = probe.releases([str(tmp_path)])[str(tmp_path)]
    assert (found["current"], found["last-good"]) == (None, None)


def test_a_host_that_has_nothing_yet(tmp_path: Path) -> None:
    root = str(tmp_path / "no")
    assert probe.releases([root]) == {root: {"numbers": {}, "highest": 0, "current": None, "last-good": None}}
    assert probe.models([root]) == {root: {}}


@pytest.mark.skipif(not shutil.which("systemctl") or not os.path.isdir("/run/systemd/system"), reason="no systemd runs here")
def test_units() -> None:
    found = probe.units(["dbus.service", "no-such-thing.service"])
    assert found["dbus.service"]["LoadState"] == "loaded"
    assert found["no-such-thing.service"]["LoadState"] == "not-found"


@pytest.mark.parametrize(("state", "lines"), [("active", 2), ("failed", 0)])
def test_buffers_of_the_start_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, lines: int) -> None:
    log = "load_tensors:  CUDA0 model buffer size = 10.00 MiB\nlistening\nsched_reserve:  CUDA0 compute buffer size = 1.00 MiB\n"
    for name, text in (("systemctl", f"Id=a.service\nActiveState={state}\nInvocationID=0123\n"), ("journalctl", log)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho \"$@\" >>{tmp_path}/asked\ncat <<'END'\n{text}END\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(
        probe, "_said", lambda command, limit_s: (0, subprocess.run(command, capture_output=True, text=True).stdout)
    )
    found = probe.buffers(["a.service"])["a.service"]
    assert found.count(" buffer size = ") == len(found.splitlines()) == lines
    assert ("_SYSTEMD_INVOCATION_ID=0123" in (tmp_path / "asked").read_text()) is (lines > 0)
