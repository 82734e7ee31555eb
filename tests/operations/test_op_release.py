"""Build, model, preflight, release, unit, service and acceptance: what a canned host makes of them."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lab import tiny_model
from tests.operations.fake_hosts import PROBE, Converge, settings
from wsllama import host_venv
from wsllama.domain import build, models
from wsllama.operations import llama_cpp, model, preflight, release, server
from wsllama.operations.files import File

NAMES = build.every_package()
MACHINE = {
    "distro": "debian-12",
    "arch": "x86_64",
    "cores": 2,
    "cpu": {"model": "", "flags": ["avx2"]},
    "memory_available": 4 << 30,
    "memory_total": 24 << 30,
    "systemd": True,
    "wsl": [],
    "root": True,
    "python": "3.11.2",
}
BUILDS, MODELS, ROOT, UNIT = "/opt/wsllama/builds", "/var/lib/wsllama/models", "/opt/wsllama", "llama-server.service"
CURRENT = f"{ROOT}/current"
ORIGINAL = {"path": "/srv/a.gguf", "size": 100, "mtime_ns": 5, "inode": 7}
OWNED = {"mode": "640", "user": "root", "group": "llama"}
STAMP = {
    "sha256": "ab" * 32, "size": 100, "mtime_ns": 6, "inode": 8, "intact": True, "source": {"on": "host", **ORIGINAL}, **OWNED,
    "summary": asdict(models.estimate(100)), "awaited_s": None,
}  # fmt: skip
COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
BUILT = {"commit": COMMIT, "version": "b1", "made": [1, 2]}


def host(**more: Any) -> dict[str, Any]:
    """A probe's answer of a machine that has everything but a release."""
    now: dict[str, Any] = {
        "system": MACHINE,
        "packages": dict.fromkeys(NAMES, "1"),
        "builds": {BUILDS: {}},
        "models": {MODELS: {"ab/a.gguf": STAMP}},
        "incoming": {MODELS: {}},
        "originals": {"/srv/a.gguf": ORIGINAL},
        "ports": {"8080": None},
        "disk": dict.fromkeys([ROOT, "/var/cache/wsllama", MODELS], 10**12),
        "releases": {ROOT: {"numbers": {}, "highest": 0, "current": None, "last-good": None}},
        "units": {UNIT: {"ActiveState": "inactive"}},
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


def test_what_came_before_a_cut_needs_no_room_again(converge: Converge) -> None:
    disk = {ROOT: 10**12, "/var/cache/wsllama": 10**12, MODELS: 500_000_040}
    for part, fails in (("a.gguf-100.part", False), ("b.gguf-100.part", True)):
        seen = host(models={MODELS: {}}, disk=disk, incoming={MODELS: {part: {"size": 60}}})
        assert converge(preflight.ready, settings(), seen=seen).failed == fails


def test_wsl_is_wanted_but_not_there(converge: Converge) -> None:
    seen = host(windows={"side": {"free_bytes": None}})
    got = converge(preflight.ready, settings(platform="wsl", llama_cpp={"backend": "cpu"}), seen=seen)
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
    assert got.sent == [{"apt": True, "git": None, "model": None, "proxy": None, "ca": None}]
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
    assert got.sent[0]["argument"] == {
        "files": [{"name": "a.gguf", "path": "/srv/a.gguf", "sha256": None, "size": None}], "mmproj": None,
        "root": MODELS, "group": "llama", "allow_unofficial": False,
    }  # fmt: skip
    assert got.changed


def test_a_model_that_others_may_read_or_write(converge: Converge) -> None:
    for key, value in (("mode", "644"), ("user", "llama"), ("group", "root")):
        got = converge(model.installed, settings(), seen=host(models={MODELS: {"ab/a.gguf": {**STAMP, key: value}}}))
        assert got.sent == [[{"path": f"{MODELS}/ab/a.gguf", "kind": "file", **OWNED}]]


def test_with_a_sha256_only_that_counts(converge: Converge) -> None:
    right = settings(model={"sha256": "ab" * 32})
    moved = host(originals={"/srv/a.gguf": None})
    assert converge(model.installed, right, seen=moved).commands == []
    other = settings(model={"sha256": "cd" * 32})
    got = converge(model.installed, other, seen=host())
    assert got.sent[0]["argument"]["files"][0]["sha256"] == "cd" * 32


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
    entry = {"digest": new.digest, "accepted": True, **new.record}
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
    assert make["record"]["model"] == {"file": "ab/a.gguf", "sha256": "ab" * 32, "alias": "qwen3.6-35b-a3b", "bytes": 100}


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


def of_unit(there: Any, unit: Any, text: str = UNIT_FILE.text) -> tuple[Any, ...]:
    """What `server.unit` takes where a release wants this text, and what is seen."""
    release = server.Release(links={}, files={"unit": text}, record={}, words=[])
    return {}, lambda now: release, {"files": {UNIT_FILE.path: there}, "units": {UNIT: unit}}


def test_unit_holds(converge: Converge) -> None:
    *given, seen = of_unit(THERE, LOADED)
    got = converge(server.unit, *given, seen=seen)
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
    *given, seen = of_unit(there, unit)
    assert converge(server.unit, *given, seen=seen).commands == commands


def test_unit_is_the_release_s_with_limits_from_its_plan(converge: Converge) -> None:
    *given, seen = of_unit(THERE, LOADED, "[Service]\nMemoryMax=9G\n")
    got = converge(server.unit, *given, seen=seen)
    assert base64.b64decode(got.sent[0][0]["data"]).decode() == "[Service]\nMemoryMax=9G\n"


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
CHECKS = [
    {"check": "health", "result": "ok", "says": "after 0.1 s", "seconds": 0.1},
    {"check": "tool call", "result": "warning", "says": "the model answered in words", "seconds": 0.1},
]
FOUND = {"ok": True, "baseline": {"version": "1"}, "checks": CHECKS}


def run_accepted(converge: Converge, found: dict[str, Any], answers: dict[str, Any] | None = None, **more: Any) -> Any:
    now = {**with_release(host(), **more), "units": {UNIT: LOADED}}
    return converge(server.accepted, seen=now, answers={"# accept": json.dumps(found), **(answers or {})}, data=DATA)


def test_an_accepted_server_is_only_asked(converge: Converge) -> None:
    got = run_accepted(converge, FOUND)
    assert got.commands == ["python3 -I -S - # accept"]
    assert got.sent[0]["whole"] is False
    assert (got.probes, got.changed, got.failed) == (1, False, False)
    assert "accepted in " in got.log
    assert "tool call: the model answered in words" in got.log, "what is odd is told"


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
        ("3", "release 3, which another run made meanwhile, is current"),
        (
            "1",
            "it was accepted before, so it stays and nothing was switched: look at the settings of acceptance, if what they ask"
            " is new, else at the log of llama-server.service",
        ),
        (None, "the service is stopped, there is no earlier release"),
    ],
)
def test_a_failed_acceptance_goes_back_and_fails(converge: Converge, serves: str | None, said: str) -> None:
    found = {"ok": False, "error": "/v1/models names no model", "log": ["main: boom"]}
    done = json.dumps({"serves": serves, "switched": False})
    got = run_accepted(converge, found, {"# release back": done}, **{"last-good": "3"})
    assert got.failed
    assert got.commands == ["python3 -I -S - # accept", "python3 -I -S - # release back"]
    assert "release 1 is not accepted: /v1/models names no model" in got.log
    assert said in got.log
    assert "main: boom" in got.log


@pytest.mark.parametrize("api_key", [True, False])
def test_what_serves_again_needs_no_start_by_the_next_run(converge: Converge, api_key: bool) -> None:
    """What it was started with is written down: the same as the next run finds. It is said to serve once it has answered."""
    now = serving()
    now["files"][UNIT_FILE.path] = {"sha256": "22", "mtime_ns": 1}
    now["releases"][ROOT]["numbers"]["1"]["server"]["api_key"] = api_key
    (start,) = converge(server.service, server.read_at_start(api_key), {}, no_look_ahead, seen=now).sent
    asked = []

    def on_the_host(name: str, argument: Any, note: str) -> Any:
        asked.append((name, note, argument))
        return {"back": {"serves": "1", "switched": True}, "resume": {}, "": now if name == "probe" else answer}[note]

    answer: dict[str, Any] = {"ok": True}
    assert server.go_back(on_the_host, "2", settings()) == "release 1 serves again"
    steps = [("release", "back"), ("probe", ""), ("release", "resume"), ("accept", "")]
    assert [(name, note) for name, note, _ in asked] == steps
    resume, question = asked[2][2], asked[3][2]
    assert (question["release"], question["whole"], bool(question["key_file"])) == (f"{ROOT}/releases/1", False, api_key)
    assert (resume["action"], resume["number"], resume["digest"]) == ("resume", "1", start["digest"])
    answer = {"ok": False, "error": "/health got status 503"}
    said = server.go_back(on_the_host, "2", settings())
    assert said == "release 1 was started again, but does not serve either: /health got status 503"


def test_what_serves_again_but_is_damaged_is_left_to_the_next_run(converge: Converge) -> None:
    now = serving()
    now["releases"][ROOT]["numbers"] = {}
    answers = {"back": {"serves": "1", "switched": True}, "": now, "resume": {}}
    sent: dict[str, Any] = {}
    said = server.go_back(lambda name, argument, note: sent.update({note: argument}) or answers[note], "2", settings())
    assert sent["resume"]["digest"] is None
    assert said == "release 1 was started again, but it is not whole any more: run again"


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


# models of the lock


SHIPPED = "Qwen3.6-35B-A3B-UD-Q4_K_M"


def locked(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Settings that name a model of a lock, with a projector."""
    document = json.loads((Path(__file__).parents[2] / "wsllama.lock").read_text())
    sums = {"bytes": 5, "bytes_from": "hub", "sha256": "cd" * 32, "sha256_from": "hub", "why_no_sha256": None}
    document["models"][SHIPPED]["mmproj"] = {"path": "mmproj-F16.gguf", **sums}
    path = tmp_path / "models.lock"
    path.write_text(json.dumps(document))
    return {"name": SHIPPED, "path": None, "on": "controller", "lock_file": str(path), **more}


def its_stamps(with_projector: bool = True) -> dict[str, Any]:
    pin = json.loads((Path(__file__).parents[2] / "wsllama.lock").read_text())["models"][SHIPPED]["files"][0]
    found = {f"m/{SHIPPED}.gguf": {**STAMP, "sha256": pin["sha256"], "size": pin["bytes"], "inode": 1}}
    return {**found, "p/mmproj-F16.gguf": {**STAMP, "sha256": "cd" * 32, "inode": 2}} if with_projector else found


def test_a_model_of_the_lock_that_is_there_needs_neither_hub_nor_venv(converge: Converge, tmp_path: Path) -> None:
    wanted = settings(model=locked(tmp_path, mmproj=True))
    got = converge(model.installed, wanted, seen=host(models={MODELS: its_stamps()}))
    assert (got.commands, got.probes, got.changed) == ([], 1, False)


def test_a_token_is_no_part_of_the_work_s_key(converge: Converge, tmp_path: Path) -> None:
    """The venv is there; what lacks is asked for by one unit, whose key tells the work and no secret."""
    keys = []
    venv = host_venv.wanted("3.11.2", "x86_64").key
    for word in ("hf_one", "hf_two"):
        (tmp_path / "token").write_text(f"{word}\n")
        wanted = settings(model=locked(tmp_path, mmproj=True, token_file=str(tmp_path / "token"), endpoint="http://hub:1"))
        seen = host(models={MODELS: its_stamps(with_projector=False)}, stamps={f"/opt/wsllama/venv/{venv}/whole": "3.11.2"})
        got = converge(model.installed, wanted, seen=seen)
        assert got.commands == ["python3 -I -S - # follow wsllama-fetch"]
        (task,) = got.sent
        where = task["argument"]["hub"]
        assert (where["token"], where["endpoint"]) == (word, "http://hub:1")
        assert where["site"] == f"/opt/wsllama/venv/{venv}/lib/python3.11/site-packages"
        assert task["argument"]["mmproj"]["place"] == "mmproj-F16.gguf"
        compile(task["program"], "fetch", "exec")
        keys.append(task["key"])
    assert keys[0] == keys[1]


def test_preflight_counts_what_the_hub_will_send(converge: Converge, tmp_path: Path) -> None:
    wanted = settings(model=locked(tmp_path))
    seen = host(models={MODELS: {}}, disk={ROOT: 10**12, "/var/cache/wsllama": 10**12, MODELS: 20 * 10**9})
    got = converge(preflight.ready, wanted, seen=seen, answers={"# reach": json.dumps({"blocked": []})})
    assert "no disk space for /var/lib/wsllama/models: 22.1 GB" in got.log
    (tmp_path / "token").write_text("two words")
    got = converge(preflight.ready, settings(model=locked(tmp_path, token_file=str(tmp_path / "token"))), seen=host())
    assert "holds no token" in got.log


def test_a_model_that_is_to_be_downloaded_is_tried_first_by_one_request(converge: Converge, tmp_path: Path) -> None:
    """Of the first file that lacks, with the token that the download will have; of one that is there nothing is asked."""
    (tmp_path / "token").write_text("hf_word\n")
    of_hub = locked(tmp_path, mmproj=True, token_file=str(tmp_path / "token"), endpoint="http://hub:1/")
    of_url = locked(tmp_path, url="http://mirror:8766/")
    pin = json.loads((tmp_path / "models.lock").read_text())["models"][SHIPPED]
    place = f"http://hub:1/{pin['repo']}/resolve/{pin['revision']}/"
    blocked = {"# reach": json.dumps({"blocked": ["model: it is gated"]})}
    for wanted, there, tried in (
        (of_hub, {}, {"hub": True, "url": f"{place}{SHIPPED}.gguf", "token": "hf_word"}),
        (of_hub, its_stamps(with_projector=False), {"hub": True, "url": f"{place}mmproj-F16.gguf", "token": "hf_word"}),
        (of_url, {}, {"hub": False, "url": f"http://mirror:8766/{SHIPPED}.gguf", "token": None}),
        (of_hub, its_stamps(), None),
    ):
        got = converge(preflight.ready, settings(model=wanted), seen=host(models={MODELS: there}), answers=blocked)
        assert [asked["model"] for asked in got.sent] == ([tried] if tried else [])
        assert ("model: it is gated" in got.log, got.failed) == (tried is not None,) * 2


def test_a_projector_that_nothing_says_is_of_the_model_s_revision_is_minded(converge: Converge, tmp_path: Path) -> None:
    projector = {"/srv/mmproj-F16.gguf": {**ORIGINAL, "path": "/srv/mmproj-F16.gguf"}, "/srv/a.gguf": ORIGINAL}
    for name, said in ((SHIPPED, True), (None, False)):
        given = {"path": "/srv/a.gguf", "on": "host", "mmproj": "/srv/mmproj-F16.gguf"}
        wanted = settings(model={**locked(tmp_path), **given} if name else given)
        got = converge(model.installed, wanted, seen=host(models={MODELS: {}}, originals=projector))
        assert ("warning: model.mmproj: nothing tells that /srv/mmproj-F16.gguf is of unsloth/" in got.log) == said


def test_a_file_of_another_size_than_the_lock_s(converge: Converge, tmp_path: Path) -> None:
    wanted = settings(model=locked(tmp_path, path="/srv/a.gguf", on="host"))
    got = converge(preflight.ready, wanted, seen=host(models={MODELS: {}}))
    assert got.failed
    assert "/srv/a.gguf has 100 bytes where the lock has 22134528992: it is cut off, or another file" in got.log


def test_a_release_with_a_projector(tmp_path: Path) -> None:
    now = host(models={MODELS: its_stamps()})
    made = wanted_release(now, model=locked(tmp_path, mmproj=True))
    assert made.links["mmproj"] == f"{MODELS}/p"
    assert made.words[-2:] == ["--mmproj", "/opt/wsllama/current/mmproj/mmproj-F16.gguf"]
    assert server.files_of(made.record["model"]) == [f"m/{SHIPPED}.gguf", "p/mmproj-F16.gguf"]
    without = wanted_release(now, model=locked(tmp_path))
    assert "mmproj" not in without.links
    assert "--mmproj" not in without.words


def test_another_projector_starts_the_service_again(converge: Converge) -> None:
    """Replaced in place: the running server has the old one open."""
    now = serving()
    now["releases"][ROOT]["numbers"]["1"]["model"] = {"file": "ab/a.gguf", "others": ["p/p.gguf"]}
    now["models"] = {MODELS: {"ab/a.gguf": STAMP, "p/p.gguf": STAMP}}
    before = digest_of(converge, now)
    now["models"] = {MODELS: {"ab/a.gguf": STAMP, "p/p.gguf": {**STAMP, "inode": 99}}}
    assert digest_of(converge, now) != before


def test_old_models_are_looked_at_only_when_some_are_to_go(converge: Converge) -> None:
    seen = {
        **with_release(host()),
        "models": {MODELS: {f"{f}/a.gguf": {**STAMP, "architecture": "qwen35moe"} for f in ("ab", "cd")}},
    }
    assert converge(model.kept, settings(), seen=seen).commands == []
    got = converge(model.kept, settings(model={"keep_models": 0}), seen=seen)
    assert got.sent == [{"root": ROOT, "models": MODELS, "folders": ["cd"], "incoming": []}]
    assert converge(model.kept, settings(model={"keep_models": 1}), seen=seen).commands == []


def test_what_another_run_may_need_stays_and_what_nobody_needs_goes(converge: Converge) -> None:
    """One that another run has just installed, and is to switch to; an unfinished file that nobody has touched for days."""
    days = 3 * 24 * 3600
    for waits, folders in ((days - 1, []), (days, ["cd"])):
        stamps = {"ab/a.gguf": STAMP, "cd/a.gguf": {**STAMP, "awaited_s": waits}}
        files = {f"{name}-9.part": {"size": 10**9, "age_s": age, "busy": False} for name, age in (("x", days), ("y", days - 1))}
        seen = {
            **with_release(host()),
            "models": {MODELS: {place: {**stamp, "architecture": "qwen35moe"} for place, stamp in stamps.items()}},
            "incoming": {MODELS: files},
        }
        got = converge(model.kept, settings(model={"keep_models": 0}), seen=seen)
        assert got.sent == [{"root": ROOT, "models": MODELS, "folders": folders, "incoming": ["x-9.part"]}]
        assert "unfinished files removed: x-9.part: 1.0 GB are free again" in got.log


def test_a_shard_in_another_folder_is_lacking(converge: Converge) -> None:
    names = [f"a-0000{n}-of-00002.gguf" for n in (1, 2)]
    originals = {f"/srv/{name}": {**ORIGINAL, "path": f"/srv/{name}", "inode": n} for n, name in enumerate(names)}
    stamps = {name: {**STAMP, "source": {"on": "host", **originals[f"/srv/{name}"]}} for name in names}
    wanted = settings(model={"path": f"/srv/{names[0]}"})
    for folder, changes in (("m", False), ("other", True)):
        models = {f"m/{names[0]}": stamps[names[0]], f"{folder}/{names[1]}": stamps[names[1]]}
        got = converge(model.installed, wanted, seen=host(models={MODELS: models}, originals=originals))
        assert got.changed == changes
