"""Which models go; hashing again; the mirror; the host's venv."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.unit import small_gguf
from wsllama import host_venv, lock, mirror, program
from wsllama.domain import housekeeping, readiness
from wsllama.host import model, probe, venv

ROOT = Path(lock.__file__).parents[1]
WSLLAMA = str(Path(sys.executable).parent / "wsllama")


def stamp(mtime: int, size: int = 10, architecture: str = "qwen35moe", awaited_s: int | None = None) -> dict[str, Any]:
    return {"mtime_ns": mtime, "size": size, "architecture": architecture, "awaited_s": awaited_s}


MODELS = {
    "a/a.gguf": stamp(1),
    "b/b.gguf": stamp(3),
    "c/c-1.gguf": stamp(2),
    "c/c-2.gguf": stamp(9),
    "p/p.gguf": stamp(8, 5, "clip"),
}
RELEASES: dict[str, Any] = {
    "numbers": {"1": {"model": {"file": "a/a.gguf"}}, "2": {"model": {"file": "b/b.gguf", "others": ["p/p.gguf"]}}},
    "current": "2",
    "last-good": "1",
    "highest": 2,
}
DAY = 24 * 3600


def test_what_the_current_and_the_last_good_release_need() -> None:
    assert housekeeping.needed(RELEASES) == {"a", "b", "p"}
    assert housekeeping.needed({**RELEASES, "last-good": None}) == {"b", "p"}
    assert housekeeping.needed({"numbers": {}, "current": None, "last-good": "7", "highest": 9}) == set()


def test_what_another_run_may_be_about_to_switch_to_is_needed() -> None:
    """It has made its release, or it has installed the model, which may be three days before that: a run waits for all hosts."""
    coming = {**RELEASES, "numbers": {**RELEASES["numbers"], "3": {"model": {"file": "c/c-1.gguf"}}}, "highest": 3}
    assert housekeeping.needed(coming) == {"a", "b", "c", "p"}
    coming["numbers"]["3"]["accepted"] = True
    assert housekeeping.needed(coming) == {"a", "b", "p"}, "it was served, and is an old one now"
    there = {f"{name}/x": stamp(1, awaited_s=age) for name, age in (("a", 0), ("b", 3 * DAY - 1), ("c", 3 * DAY), ("d", None))}
    assert housekeeping.awaited(there) == {"a", "b"}


def test_unfinished_files_that_no_run_can_need() -> None:
    def file(age_s: int, busy: bool = False) -> dict[str, Any]:
        return {"size": 1, "age_s": age_s, "busy": busy}

    there = {
        "a-1.part": file(3 * DAY),
        "b-1.part": file(3 * DAY, busy=True),
        "c-1.part": file(3 * DAY - 1),
        "d.whole": file(9 * DAY),
    }
    assert housekeeping.abandoned(there) == ["a-1.part", "d.whole"]


@pytest.mark.parametrize(
    ("kept", "keep", "gone"),
    [
        ({"a", "b", "p"}, 0, ["c"]),
        ({"a", "b", "p"}, 1, []),
        (set(), 0, ["a", "b", "c", "p"]),
        (set(), 1, ["a", "b", "p"]),
        (set(), 2, ["a", "p"]),
        (set(), 9, ["p"]),
        ({"b"}, 1, ["a", "p"]),
    ],
)
def test_the_newest_stay(kept: set[str], keep: int, gone: list[str]) -> None:
    assert housekeeping.to_remove(MODELS, kept, keep) == gone


def test_sums() -> None:
    assert (housekeeping.total(MODELS), housekeeping.total(MODELS, ["c", "p"])) == (45, 25)


def test_what_is_removed_is_asked_of_the_links_again(tmp_path: Path) -> None:
    names = ("models/a", "models/b", "models/c", "models/d", "outside", *(f"root/releases/{n}" for n in (1, 2, 9, 10)))
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "root/releases/10/model").symlink_to(tmp_path / "models/d")
    (tmp_path / "root/releases/1/model").symlink_to(tmp_path / "models/a")
    (tmp_path / "root/releases/2/mmproj").symlink_to(tmp_path / "models/b")
    (tmp_path / "root/current").symlink_to("releases/1")
    (tmp_path / "root/last-good").symlink_to("releases/2")
    prune(tmp_path, folders=["a", "b", "c", "d", "../outside"])
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == ["a", "b", "d"]
    assert (tmp_path / "outside").is_dir()
    (tmp_path / "root/releases/10/baseline.json").touch()
    prune(tmp_path, folders=["d"])
    assert not (tmp_path / "models/d").exists(), "that release was accepted once, so nobody is about to switch to it"


def prune(tmp_path: Path, folders: Sequence[str] = (), incoming: Sequence[str] = ()) -> None:
    argument = {"root": str(tmp_path / "root"), "models": str(tmp_path / "models"), "folders": folders, "incoming": incoming}
    subprocess.run([sys.executable, "-I", "-S", "-"], input=program.call("prune", argument), text=True, check=True)


def test_what_is_unfinished_is_seen_with_who_is_at_it_and_removed_when_nobody_is(tmp_path: Path) -> None:
    root, incoming = str(tmp_path / "models"), tmp_path / "models/.incoming"
    incoming.mkdir(parents=True)
    (tmp_path / "root").mkdir()
    names = [f"a.gguf-{'0' * 64}.whole", "b.gguf-100.part", "c.gguf-100.part"]
    for name in names:
        (incoming / name).write_bytes(b"x" * 7)
        os.utime(incoming / name, (1, 1))
    with (incoming / "c.gguf.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        seen = probe.incoming([root])[root]
        assert {name: (file["size"], file["busy"]) for name, file in seen.items()} == {n: (7, n == names[2]) for n in names}
        assert min(file["age_s"] for file in seen.values()) > 3 * DAY
        prune(tmp_path, incoming=[*names, "gone-1.part", "../../root"])
    assert [path.name for path in incoming.iterdir() if path.suffix != ".lock"] == [names[2]]
    assert (tmp_path / "root").is_dir()
    prune(tmp_path, incoming=names)
    assert probe.incoming([root])[root] == {}


# one stat a file, and hashing again


def installed(tmp_path: Path) -> Path:
    source = small_gguf.model(tmp_path / "m.gguf")
    argument = {"path": str(source), "root": str(tmp_path / "models")}
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-"], input=program.call("model", argument), text=True, capture_output=True
    )
    return Path(json.loads(said.stdout.splitlines()[-1])["file"])


def deep(tmp_path: Path) -> Any:
    text = program.call("deep", {"root": str(tmp_path / "models")})
    said = subprocess.run([sys.executable, "-I", "-S", "-"], input=text, text=True, capture_output=True, check=True)
    return json.loads(said.stdout.splitlines()[-1])


def test_a_look_at_a_model_is_one_stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, stock, asked = installed(tmp_path), os.stat, list[str]()

    def counted(path: Any, **more: Any) -> Any:
        asked.append(str(path))
        return stock(path, **more)

    monkeypatch.setattr(os, "stat", counted)
    assert probe.models([str(tmp_path / "models")])
    assert asked.count(str(file)) == 1


def test_bytes_that_changed_behind_size_and_time(tmp_path: Path) -> None:
    file = installed(tmp_path)
    assert deep(tmp_path) == {"ok": True, "checked": file.stat().st_size, "files": 1, "wrong": []}
    was = file.stat()
    with file.open("r+b") as out:
        out.seek(-4, os.SEEK_END)
        out.write(b"\xff\xff\xff\xff")
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    root = str(tmp_path / "models")
    assert all(s["intact"] for s in probe.models([root])[root].values())
    (sentence,) = deep(tmp_path)["wrong"]
    assert sentence.startswith(f"{file}: it has sha256 {hashlib.sha256(file.read_bytes()).hexdigest()} where ")
    assert probe.models([root])[root] == {}
    assert deep(tmp_path) == {"ok": True, "checked": 0, "files": 0, "wrong": []}


def test_a_file_that_was_touched_or_is_gone(tmp_path: Path) -> None:
    file = installed(tmp_path)
    os.utime(file)
    assert "its bytes are right, but it was touched" in deep(tmp_path)["wrong"][0]
    file.unlink()
    assert "it is gone" in deep(tmp_path)["wrong"][0]


def test_a_waiting_file_is_not_a_model(tmp_path: Path) -> None:
    """What is verified and waits for the rest has no place among the models."""
    incoming = tmp_path / "models/.incoming"
    incoming.mkdir(parents=True)
    (incoming / "a.gguf-00.whole").write_bytes(b"x")
    assert probe.models([str(tmp_path / "models")])[str(tmp_path / "models")] == {}
    assert model.Model({"root": str(tmp_path / "models")}, [{"name": "a.gguf", "sha256": "00"}]).lacks() == []


# the drive of Windows


def test_room_on_the_drive_of_windows() -> None:
    assert readiness.windows_space(20 * 10**9, 5 * 10**9)[0].startswith("no disk space on the drive of Windows that holds")
    assert readiness.windows_space(20 * 10**9, 20 * 10**9 + readiness.MARGIN) == []
    assert readiness.windows_space(20 * 10**9, 20 * 10**9 + readiness.MARGIN - 1)
    assert readiness.windows_space(0, 0) == readiness.windows_space(5, None) == []


# the mirror


@pytest.fixture
def served(tmp_path: Path) -> Any:
    path = small_gguf.model(tmp_path / "a.gguf")
    words = """
import sys
from pathlib import Path
from wsllama import mirror
server = mirror.server([Path(sys.argv[1])], "127.0.0.1", 0)
print(server.server_port, flush=True)
server.serve_forever()
"""
    process = subprocess.Popen([sys.executable, "-c", words, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    yield f"http://127.0.0.1:{process.stdout.readline().strip()}/", path
    process.kill()
    process.communicate()


def asked(url: str, part: str) -> tuple[int, bytes, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Range": part} if part else {}), timeout=300) as said:
            return said.status, said.read(), said.headers.get("Content-Range", "")
    except urllib.error.HTTPError as e:
        return e.code, b"", ""


def test_a_mirror_has_ranges_and_nothing_else(served: Any) -> None:
    url, path = served
    data = path.read_bytes()
    assert asked(f"{url}a.gguf", "")[:2] == (200, data)
    assert asked(f"{url}a.gguf", "bytes=100-199") == (206, data[100:200], f"bytes 100-199/{len(data)}")
    assert asked(f"{url}a.gguf", f"bytes={len(data) - 3}-") == (
        206,
        data[-3:],
        f"bytes {len(data) - 3}-{len(data) - 1}/{len(data)}",
    )
    for other in ("", "b.gguf", "../a.gguf", "%2e%2e/a.gguf", "etc/passwd"):
        assert asked(url + other, "")[0] == 404


def test_several_take_from_a_mirror_at_once(served: Any) -> None:
    url, path = served
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(asked(f"{url}a.gguf", "")[1])) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [path.read_bytes()] * 5


@pytest.mark.parametrize(
    ("address", "shown"), [("192.0.2.7", "192.0.2.7"), ("localhost", "localhost"), ("0.0.0.0", None), ("::", None)]
)
def test_a_mirror_s_address_is_one_that_hosts_can_ask(address: str, shown: str | None) -> None:
    """Of all addresses one that this machine has: what it hasn't can't be listened on."""
    found = mirror.reached(address)
    assert found == shown or (shown is None and found not in ("0.0.0.0", "::"))
    if found not in (shown, socket.gethostname()):
        with socket.socket(socket.AF_INET6 if ":" in found else socket.AF_INET) as listener:
            listener.bind((found, 0))


def test_a_projector_that_the_lock_has_no_sum_of_is_left_out_and_told(tmp_path: Path) -> None:
    """The model itself can be served; as a process, with its copy in the cache already."""
    document = json.loads((ROOT / "wsllama.lock").read_text())
    source = small_gguf.model(tmp_path / "a.gguf")
    name, pin = next((n, p) for n, p in document["models"].items() if p["mmproj"])
    sums = {"bytes": source.stat().st_size, "bytes_from": "hub", "sha256_from": "hub", "why_no_sha256": None}
    pin["files"] = [{"path": "a.gguf", "sha256": hashlib.sha256(source.read_bytes()).hexdigest(), **sums}]
    pin["mmproj"].update(sha256=None, sha256_from=None, why_no_sha256="nobody said it")
    (tmp_path / "a.lock").write_text(json.dumps(document))
    argument = {"path": str(source), "root": str(tmp_path / "wsllama/models")}
    subprocess.run([sys.executable, "-I", "-S", "-"], input=program.call("model", argument), text=True, check=True)
    words = [WSLLAMA, "mirror", name, "--lock", str(tmp_path / "a.lock"), "--port", "0", "--address", "127.0.0.1", "--json"]
    process = subprocess.Popen(words, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert process.stdout
        assert process.stderr
        assert json.loads(process.stdout.readline())["files"] == ["a.gguf"]
        assert process.stderr.readline().startswith("its projector is not served: ")
        process.send_signal(signal.SIGINT)  # at once: it may not have begun to wait for hosts
        assert (process.wait(timeout=900), process.stderr.read()) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_only_what_the_lock_has_is_served(tmp_path: Path) -> None:
    path = small_gguf.model(tmp_path / "a.gguf")
    held = lock.load(Path(lock.__file__).parents[1] / "wsllama.lock").models
    with pytest.raises(mirror.MirrorError, match="which no model of the lock has"):
        mirror.verified([path], held, print)
    with pytest.raises(mirror.MirrorError, match="can't be read: No such file"):
        mirror.verified([tmp_path / "b.gguf"], held, print)
    name, pin = next(iter(held.items()))
    sums = {"bytes": 5, "bytes_from": "hub", "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "sha256_from": "hub"}
    for called in ("a.gguf", "b.gguf"):
        file = lock.ModelFile(path=called, why_no_sha256=None, **sums)  # type: ignore[arg-type]
        known = {name: pin.model_copy(update={"files": (file,), "mmproj": None})}
        if called == "a.gguf":
            assert mirror.verified([path], known, print) == [path]
        else:
            with pytest.raises(mirror.MirrorError, match=r"is b\.gguf of the lock: give it back that name"):
                mirror.verified([path], known, print)


# the host's venv


def closure(name: str) -> set[str]:
    """All that a package needs here."""
    found, todo = set[str](), [name]
    while todo:
        now = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if now in found or now in host_venv.LEFT_OUT:
            continue
        found.add(now)
        for text in metadata.requires(now) or []:
            needed = Requirement(text)
            if not needed.marker or needed.marker.evaluate({"extra": ""}):
                todo.append(needed.name)
    return found


def test_the_venv_has_all_that_the_hub_s_client_needs() -> None:
    lines = host_venv.wanted("3.11.2", "x86_64").lines
    assert {line.split("==")[0] for line in lines} == closure("huggingface-hub")
    assert all("--hash=sha256:" in line for line in lines)


def test_a_venv_is_of_its_python_and_of_its_lines(tmp_path: Path) -> None:
    keys = {
        host_venv.wanted(python, machine).key for python in ("3.10.12", "3.11.2", "3.13.1") for machine in ("x86_64", "aarch64")
    }
    assert len(keys) == 6
    assert host_venv.wanted("3.11.2", "x86_64").key == host_venv.wanted("3.11.9", "x86_64").key
    other = tmp_path / "requirements.lock"
    other.write_text(host_venv.REQUIREMENTS.read_text().replace("huggingface-hub==2", "huggingface-hub==1"))
    assert host_venv.wanted("3.11.2", "x86_64", other).key not in keys
    assert "exceptiongroup" in {line.split("==")[0] for line in host_venv.wanted("3.10.12", "x86_64").lines}


def test_the_newest_venvs_stay(tmp_path: Path) -> None:
    """A run with another requirements.lock may use one of them just now."""
    for number, name in enumerate("abcd", 1):
        (tmp_path / name).mkdir()
        (tmp_path / name / "whole").touch()
        os.utime(tmp_path / name / "whole", (number, number))
    (tmp_path / "half").mkdir()
    venv.main({"root": str(tmp_path), "key": "a", "python": "3", "archive": str(tmp_path / "no archive")})
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["a", "c", "d"]
