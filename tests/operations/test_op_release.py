"""Build, model, preflight, release, unit, service and acceptance: what a canned host makes of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from lab import tiny_model
from tests.operations.fake_hosts import PROBE, Converge, settings
from wsllama.domain import build
from wsllama.operations import llama_cpp, model, preflight, release, server
from wsllama.operations.files import File

NAMES = build.every_package()
MACHINE = {
    "distro": "debian-12",
    "arch": "x86_64",
    "cores": 2,
    "cpu": {"model": "", "flags": ["avx2"]},
    "memory_available": 4 << 30,
    "systemd": True,
    "wsl": [],
    "root": True,
    "python": "3.11.2",
}
BUILDS, MODELS, ROOT, UNIT = "/opt/wsllama/builds", "/var/lib/wsllama/models", "/opt/wsllama", "llama-server.service"
CURRENT = f"{ROOT}/current"
ORIGINAL = {"path": "/srv/a.gguf", "size": 100, "mtime_ns": 5, "inode": 7}
STAMP = {"sha256": "ab" * 32, "size": 100, "mtime_ns": 6, "inode": 8, "intact": True, "source": {"on": "host", **ORIGINAL}}
COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
BUILT = {"commit": COMMIT, "version": "b1", "made": [1, 2]}


def host(**more: Any) -> dict[str, Any]:
    """A probe's answer of a machine that has everything but a release."""
    now: dict[str, Any] = {
        "system": MACHINE,
        "packages": dict.fromkeys(NAMES, "1"),
        "builds": {BUILDS: {}},
        "models": {MODELS: {"ab/a.gguf": STAMP}},
        "originals": {"/srv/a.gguf": ORIGINAL},
        "ports": {"8080": None},
        "disk": dict.fromkeys([ROOT, "/var/cache/wsllama", MODELS], 10**12),
        "releases": {ROOT: {"numbers": {}, "highest": 0, "current": None, "last-good": None}},
    }
    now["builds"] = {BUILDS: {build_id(now): BUILT}}
    now.update(more)
    return now


def build_id(now: dict[str, Any], **given: Any) -> str:
    return llama_cpp.build_id(now, settings(**given))


# preflight


def test_a_ready_host(converge: Converge) -> None:
    got = converge(preflight.ready, settings(), seen=host())
    assert (got.commands, got.probes, got.changed, got.failed) == ([], 1, False, False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"system": {**MACHINE, "systemd": False}}, "systemd does not run here"),
        ({"system": {**MACHINE, "root": False}}, "the deploy needs root here"),
        ({"system": {**MACHINE, "distro": "arch-"}}, "is not supported for building llama.cpp"),
        ({"ports": {"8080": "nginx (pid 3)"}}, "port 8080 is taken by nginx (pid 3): stop that, or set server.port"),
        ({"models": {MODELS: {}}, "originals": {"/srv/a.gguf": None}}, "model.path: there is no file /srv/a.gguf on the host"),
        (
            {"models": {MODELS: {}}, "disk": {ROOT: 10**12, "/var/cache/wsllama": 10**12, MODELS: 500_000_099}},
            "no disk space for /var/lib/wsllama/models",
        ),
    ],
)
def test_a_host_that_is_not_ready_fails_before_any_change(converge: Converge, more: dict[str, Any], said: str) -> None:
    got = converge(preflight.ready, settings(), seen=host(**more))
    assert got.failed
    assert got.commands == []
    assert said in got.log


def test_wsl_is_wanted_but_not_there(converge: Converge) -> None:
    got = converge(preflight.ready, settings(platform="wsl", llama_cpp={"backend": "cpu"}), seen=host())
    assert got.failed
    assert "this is no WSL machine" in got.log


def test_sources_are_tried_only_when_something_is_to_be_fetched(converge: Converge) -> None:
    lacking = {**dict.fromkeys(NAMES, "1"), "cmake": None}
    got = converge(
        preflight.ready,
        settings(),
        seen=host(packages=lacking),
        answers={"# reach": json.dumps({"blocked": ["apt can't reach http://192.0.2.1/debian (timed out): check the network"]})},
    )
    assert got.commands == ["python3 -I -S - # reach"]
    assert got.sent == [{"apt": True, "git": None, "proxy": None, "ca": None}]
    assert got.failed
    assert "apt can't reach http://192.0.2.1/debian (timed out)" in got.log


# build


def test_a_build_that_is_there_is_not_made_again(converge: Converge) -> None:
    got = converge(llama_cpp.build, settings(), seen=host())
    assert (got.commands, got.probes, got.changed) == ([], 1, False)


@pytest.mark.parametrize("there", [{}, None])
def test_a_build_that_is_absent_or_not_whole_is_made_as_a_unit(converge: Converge, there: Any) -> None:
    wanted = settings(llama_cpp={"source": "git"})
    name = build_id(host(), llama_cpp={"source": "git"})
    builds = {BUILDS: {} if there == {} else {name: None}}
    got = converge(llama_cpp.build, wanted, seen=host(builds=builds))
    assert got.commands == ["python3 -I -S - # follow wsllama-build"]
    (task,) = got.sent
    assert (task["unit"], task["key"], task["limit_s"]) == ("wsllama-build", name, 7200)
    argument = task["argument"]
    assert argument["commit"] == COMMIT
    assert argument["jobs"] == 2
    assert argument["source"]["kind"] == "git"
    compile(task["program"], "build", "exec")
    assert f"build {name} is {'absent' if there == {} else 'not whole'}" in got.log


def test_the_id_follows_what_determines_the_bytes() -> None:
    now = host()
    before = build_id(now)
    assert build_id(now, llama_cpp={"jobs": 1, "time_limit_minutes": 5}) == before
    assert build_id(now, llama_cpp={"native": False}) != before
    assert build_id({**now, "packages": {**now["packages"], "g++-12": "2"}}) != before
    assert build_id({**now, "system": {**MACHINE, "cpu": {"flags": ["avx512f"]}}}) != before
    assert build_id({**now, "system": {**MACHINE, "memory_available": 1, "cores": 9}}) == before


def test_without_a_toolchain_the_build_fails_its_host(converge: Converge) -> None:
    got = converge(llama_cpp.build, settings(), seen=host(packages={**dict.fromkeys(NAMES, "1"), "cmake": None}))
    assert got.failed
    assert "the toolchain is not installed yet (cmake)" in got.log


# model


def test_a_model_that_is_installed(converge: Converge) -> None:
    got = converge(model.installed, settings(), seen=host())
    assert (got.commands, got.probes, got.changed) == ([], 1, False)


@pytest.mark.parametrize(
    ("stamp", "original"),
    [
        ({**STAMP, "intact": False}, ORIGINAL),
        (STAMP, {**ORIGINAL, "mtime_ns": 9}),
        (STAMP, {**ORIGINAL, "inode": 9}),
        (STAMP, {**ORIGINAL, "size": 101}),
    ],
)
def test_a_model_that_is_to_be_installed(converge: Converge, stamp: Any, original: Any) -> None:
    seen = host(models={MODELS: {"ab/a.gguf": stamp}}, originals={"/srv/a.gguf": original})
    got = converge(model.installed, settings(), seen=seen)
    assert got.commands == ["python3 -I -S - # follow wsllama-model"]
    assert got.sent[0]["argument"] == {"path": "/srv/a.gguf", "sha256": None, "root": MODELS}
    assert got.changed


def test_with_a_sha256_only_that_counts(converge: Converge) -> None:
    right = settings(model={"sha256": "ab" * 32})
    moved = host(originals={"/srv/a.gguf": None})
    assert converge(model.installed, right, seen=moved).commands == []
    other = settings(model={"sha256": "cd" * 32})
    got = converge(model.installed, other, seen=host())
    assert got.sent[0]["argument"]["sha256"] == "cd" * 32


def test_an_original_that_is_gone_leaves_what_was_installed(converge: Converge) -> None:
    assert converge(model.installed, settings(), seen=host(originals={"/srv/a.gguf": None})).commands == []


def test_a_model_of_the_controller(converge: Converge, tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "a.gguf")
    s = path.stat()
    source = {"on": "controller", "path": str(path), "size": s.st_size, "mtime_ns": s.st_mtime_ns, "inode": s.st_ino}
    wanted = settings(model={"path": str(path), "on": "controller"})
    seen = host(models={MODELS: {"ab/a.gguf": {**STAMP, "source": source}}})
    assert not converge(model.installed, wanted, seen=seen).changed
    path.touch()
    got = converge(model.installed, wanted, seen=seen)
    assert got.changed or got.failed, "another file now, so it is sent"


# release


def wanted_release(now: dict[str, Any], **given: Any) -> server.Release:
    return release.wanted(now, settings(**given))


def with_release(now: dict[str, Any], number: str = "1", **more: Any) -> dict[str, Any]:
    new = wanted_release(now)
    entry = {"digest": new.digest, "accepted": True, **{key: new.record[key] for key in ("model", "server", "build")}}
    there = {"numbers": {number: entry}, "highest": int(number), "current": number, "last-good": number, **more}
    return {**now, "releases": {ROOT: there}}


def run_release(converge: Converge, seen: dict[str, Any], **given: Any) -> Any:
    wanted = settings(**given)
    return converge(server.release, release.looks(wanted), lambda now: release.wanted(now, wanted), seen=seen)


def test_a_release_that_is_current(converge: Converge) -> None:
    got = run_release(converge, with_release(host()))
    assert (got.commands, got.probes, got.changed) == ([], 1, False)


def test_the_first_release(converge: Converge) -> None:
    got = run_release(converge, host())
    assert got.commands == ["python3 -I -S - # release make", "python3 -I -S - # release switch"]
    make, switch = got.sent
    assert (make["action"], make["number"], switch["action"], switch["number"]) == ("make", 1, "switch", 1)
    assert make["links"] == {"build": f"{BUILDS}/{build_id(host())}", "model": f"{MODELS}/ab"}
    assert make["words"][:2] == ["--model", "/opt/wsllama/current/model/a.gguf"]
    assert make["files"].keys() == {"env", "unit"}
    assert make["record"]["commit"] == COMMIT
    assert make["record"]["model"] == {"file": "ab/a.gguf", "sha256": "ab" * 32, "alias": "qwen3.6-35b-a3b"}


def test_other_settings_are_another_release(converge: Converge) -> None:
    got = run_release(converge, with_release(host(), number="4"), server={"ctx_size": 8192})
    assert [a["number"] for a in got.sent] == [5, 5]


def test_a_link_that_was_moved_is_put_back(converge: Converge) -> None:
    got = run_release(converge, with_release(host(), current="9"))
    assert got.commands == ["python3 -I -S - # release switch"]
    assert got.sent[0]["number"] == 1


def test_settings_of_an_earlier_release_go_back_to_it(converge: Converge) -> None:
    now = with_release(host(), number="2")
    now["releases"][ROOT]["numbers"]["3"] = {**now["releases"][ROOT]["numbers"]["2"], "digest": "other"}
    now["releases"][ROOT].update(current="3", highest=3)
    places = {"root": ROOT, "unit": UNIT, "unit_file": f"/etc/systemd/system/{UNIT}", "stamp": STARTED}
    assert run_release(converge, now).sent == [{"action": "switch", "number": 2, **places}]


@pytest.mark.parametrize(("gone", "said"), [("builds", "is not there yet"), ("models", "the model is not there yet")])
def test_no_release_of_what_is_not_there(converge: Converge, gone: str, said: str) -> None:
    got = run_release(converge, host(**{gone: {BUILDS if gone == "builds" else MODELS: {}}}))
    assert got.failed
    assert got.commands == []
    assert said in got.log


def test_the_libraries_of_wsl_are_found_on_wsl_only() -> None:
    wsl = wanted_release(host(), platform="wsl", llama_cpp={"backend": "cpu"})
    assert wsl.files["env"] == 'LD_LIBRARY_PATH="/usr/lib/wsl/lib"\n'
    assert wanted_release(host()).files["env"] == ""


def test_another_address_is_another_unit() -> None:
    assert "IPAddressDeny=any\n" in wanted_release(host()).files["unit"]
    assert "IPAddressDeny" not in wanted_release(host(), server={"host": "192.0.2.1", "api_key": True}).files["unit"]


# unit and service

UNIT_FILE = File("/etc/systemd/system/llama-server.service", "[Service]\n")
THERE = {"kind": "file", "mode": "644", "user": "root", "group": "root", "sha256": UNIT_FILE.sha256}
LOADED = {"LoadState": "loaded", "NeedDaemonReload": "no", "ActiveState": "active", "UnitFileState": "enabled"}


def test_unit_holds(converge: Converge) -> None:
    got = converge(server.unit, UNIT_FILE, seen={"files": {UNIT_FILE.path: THERE}, "units": {UNIT: LOADED}})
    assert (got.commands, got.probes, got.changed) == ([], 1, False)


@pytest.mark.parametrize(
    ("there", "unit", "commands"),
    [
        (None, LOADED, [f"python3 -I -S - # apply {UNIT_FILE.path}", "systemctl daemon-reload"]),
        ({**THERE, "sha256": "0"}, LOADED, [f"python3 -I -S - # apply {UNIT_FILE.path}", "systemctl daemon-reload"]),
        (THERE, {**LOADED, "NeedDaemonReload": "yes"}, ["systemctl daemon-reload"]),
        (THERE, {**LOADED, "LoadState": "not-found"}, ["systemctl daemon-reload"]),
    ],
)
def test_unit_differs(converge: Converge, there: Any, unit: Any, commands: list[str]) -> None:
    got = converge(server.unit, UNIT_FILE, seen={"files": {UNIT_FILE.path: there}, "units": {UNIT: unit}})
    assert got.commands == commands


def no_look_ahead(now: Any) -> Any:
    raise AssertionError("only a look ahead asks for the release that will be served")


KEY, STARTED = "/etc/wsllama/api-key", "/var/lib/wsllama/llama-server.service.started-with"


def serving(**more: Any) -> dict[str, Any]:
    now = with_release(host())
    now.update(
        files={KEY: {"sha256": "11", "mtime_ns": 1}, CURRENT: {"mtime_ns": 1}},
        units={UNIT: LOADED},
        stamps={STARTED: None},
        **more,
    )
    return now


def digest_of(converge: Converge, now: dict[str, Any]) -> str:
    got = converge(server.service, [KEY], {}, no_look_ahead, seen=now)
    assert got.commands == ["python3 -I -S - # release start"], "never started by us, so it is started"
    (argument,) = got.sent
    assert (argument["action"], argument["unit"], argument["stamp"]) == ("start", UNIT, STARTED)
    return str(argument["digest"])


def test_service_holds_once_it_was_started(converge: Converge) -> None:
    now = serving()
    now["stamps"] = {STARTED: digest_of(converge, now)}
    got = converge(server.service, [KEY], {}, no_look_ahead, seen=now)
    assert (got.commands, got.probes, got.changed) == ([], 1, False)


def test_service_that_was_stopped_is_started(converge: Converge) -> None:
    now = serving()
    now["stamps"] = {STARTED: digest_of(converge, now)}
    now["units"] = {UNIT: {**LOADED, "ActiveState": "inactive"}}
    assert converge(server.service, [KEY], {}, no_look_ahead, seen=now).commands == ["python3 -I -S - # release start"]


@pytest.mark.parametrize(
    "what", ["key", "file in place", "link to the release, and back", "model in place", "build in place", "release"]
)
def test_service_is_started_again_when_what_it_runs_with_changed(converge: Converge, what: str) -> None:
    now = serving()
    before = digest_of(converge, now)
    if what == "key":
        now["files"][KEY] = {"sha256": "22", "mtime_ns": 1}
    elif what == "file in place":
        now["files"][KEY] = {"sha256": "11", "mtime_ns": 2}
    elif what == "link to the release, and back":
        now["files"][CURRENT] = {"mtime_ns": 2}
    elif what == "model in place":
        now["models"] = {MODELS: {"ab/a.gguf": {**STAMP, "inode": 9}}}
    elif what == "build in place":
        now["builds"] = {BUILDS: {build_id(now): {**BUILT, "made": [1, 3]}}}
    else:
        now["releases"][ROOT]["numbers"]["1"]["digest"] = "other"
    assert digest_of(converge, now) != before


@pytest.mark.parametrize("what", ["key", "release", "model"])
def test_service_waits_for_what_is_missing(converge: Converge, what: str) -> None:
    now = serving()
    if what == "key":
        now["files"][KEY] = None
    elif what == "release":
        now["releases"][ROOT]["current"] = None
    else:
        now["models"] = {MODELS: {}}
    got = converge(server.service, [KEY], {}, no_look_ahead, seen=now)
    assert got.failed
    assert got.commands == []


# acceptance

DATA = {"platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}}
FOUND = {"ok": True, "baseline": {"version": "1"}}


def run_accepted(converge: Converge, found: dict[str, Any], answers: dict[str, Any] | None = None, **more: Any) -> Any:
    now = {**with_release(host(), **more), "units": {UNIT: LOADED}}
    return converge(server.accepted, seen=now, answers={"# accept": json.dumps(found), **(answers or {})}, data=DATA)


def test_an_accepted_server_is_only_asked(converge: Converge) -> None:
    got = run_accepted(converge, FOUND)
    assert got.commands == ["python3 -I -S - # accept"]
    assert got.sent[0]["whole"] is False
    assert (got.probes, got.changed, got.failed) == (1, False, False)
    assert "accepted in " in got.log


def test_a_new_release_is_asked_everything_and_recorded(converge: Converge) -> None:
    got = run_accepted(converge, FOUND, **{"last-good": None})
    assert got.commands == ["python3 -I -S - # accept", "python3 -I -S - # release accept"]
    assert got.sent[0]["whole"] is True
    assert (got.sent[1]["baseline"], got.sent[1]["keep"]) == ({"version": "1"}, 5)


def test_a_server_that_is_not_enabled_is_enabled(converge: Converge) -> None:
    now = {**with_release(host()), "units": {UNIT: {**LOADED, "UnitFileState": "disabled"}}}
    got = converge(server.accepted, seen=now, answers={"# accept": json.dumps(FOUND)}, data=DATA)
    assert got.commands[1:] == ["python3 -I -S - # release accept"]
    assert got.sent[1]["baseline"] is None, "the record of the first acceptance stays"


@pytest.mark.parametrize(
    ("serves", "said"),
    [
        ("3", "release 3 serves again"),
        ("1", "it was accepted before and is left as it is"),
        (None, "the service is stopped, there is no earlier release"),
    ],
)
def test_a_failed_acceptance_goes_back_and_fails(converge: Converge, serves: str | None, said: str) -> None:
    found = {"ok": False, "error": "/v1/models names no model", "log": ["main: boom"]}
    got = run_accepted(converge, found, {"# release back": json.dumps({"serves": serves})}, **{"last-good": "3"})
    assert got.failed
    assert got.commands == ["python3 -I -S - # accept", "python3 -I -S - # release back"]
    assert "release 1 is not accepted: /v1/models names no model" in got.log
    assert said in got.log
    assert "main: boom" in got.log


def test_the_question_that_fails_itself(converge: Converge) -> None:
    got = converge(
        server.accepted,
        seen={**with_release(host()), "units": {UNIT: LOADED}},
        answers={"# accept": {"success": False, "stderr": "python3: out of memory"}},
        data=DATA,
    )
    assert got.failed
    assert "python3: out of memory" in got.log


def test_the_digest_of_a_release_is_of_all_that_is_in_it() -> None:
    first = server.Release(links={"a": "b"}, files={"args": "x"}, record={"k": 1}, words=[])
    others = [
        server.Release(links={"a": "c"}, files={"args": "x"}, record={"k": 1}, words=[]),
        server.Release(links={"a": "b"}, files={"args": "y"}, record={"k": 1}, words=[]),
        server.Release(links={"a": "b"}, files={"args": "x"}, record={"k": 2}, words=[]),
        server.Release(links={"a": "b"}, files={"args": "x"}, record={"k": 1}, words=["--metrics"]),
    ]
    assert len({r.digest for r in [first, *others]}) == 5
    assert (
        first.digest
        == hashlib.sha256(b'{"files": {"args": "x"}, "links": {"a": "b"}, "record": {"k": 1}, "words": []}').hexdigest()
    )


def test_a_release_needs_the_probe(converge: Converge) -> None:
    wanted = settings()
    down = {PROBE: {"success": False, "stderr": "Connection lost"}}
    got = converge(server.release, release.looks(wanted), lambda now: release.wanted(now, wanted), answers=down)
    assert got.failed
    assert "the host can't be looked at: Connection lost" in got.log
