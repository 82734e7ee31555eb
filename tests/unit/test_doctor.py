"""`wsllama doctor`: a file that was pasted, what it makes of all that a host showed, and the ladder."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.operations.fake_hosts import settings
from tests.unit.test_findings import FIXTURES, INDEX, inputs
from wsllama import engine, guard, recovery
from wsllama.cli import app
from wsllama.commands.doctor import joined
from wsllama.commands.doctor_apply import Applied, cannot_apply, climb_down
from wsllama.domain import ladder, planner
from wsllama.domain.examine.host import Seen, judge
from wsllama.domain.nvidia_smi import Gpu, Reading
from wsllama.settings import merge

ROOT = Path(__file__).parents[2]
LOG, UNIT = FIXTURES / "log", FIXTURES / "unit"
HEALTHY = (LOG / "mmproj-loaded.log").read_text(encoding="utf-8")  # 20846.75 + 160.0 + 62.81 + 298.02 MiB on CUDA0
GOOD = (UNIT / "good-plain.service").read_text(encoding="utf-8")


def run(*words: str, stdin: bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["doctor", *words], input=stdin)


@pytest.mark.parametrize("entry", INDEX[::9], ids=lambda entry: str(entry["file"]))
def test_the_command_gives_what_the_function_gives(entry: dict[str, Any]) -> None:
    """Every ninth file: each kind is among them."""
    given = {f"--{name.replace('_', '-')}": str(value) for name, value in inputs(entry).items()}
    found = run("--json", entry["kind"], str(FIXTURES / entry["file"]), *(word for pair in given.items() for word in pair))
    assert (found.exit_code, json.loads(found.stdout)) == (0, entry["expect"])


def test_every_kind_is_among_them() -> None:
    assert len({entry["kind"] for entry in INDEX[::9]}) == 8


def test_people_get_cause_fix_check_and_the_line_that_decided() -> None:
    found = run("log", "-", stdin=(LOG / "port-current.log").read_bytes())
    assert found.exit_code == 0
    assert found.stdout.splitlines()[:3] == [
        "build: 11302",
        "error: port: couldn't bind HTTP server socket.",
        "  here:  0.00.035.582 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080",
    ]
    assert "  fix:   End that program, or set server.port." in found.stdout
    assert "ladder" not in found.stdout
    good = run("unit", str(UNIT / "good-plain.service"))
    assert good.stdout == "Nothing is known to be wrong.\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["log"], "refused: log needs a FILE, or - for standard input"),
        (["dmesg", "a"], "refused: dmesg is no kind of file: give one of log, unit, "),
        (["log", "/nowhere"], "refused: /nowhere can't be read: No such file or directory; give a file, "),
        (["/no/such/inventory.py"], "refused: "),
    ],
)
def test_what_is_refused(words: list[str], sentence: str) -> None:
    command = [str(Path(sys.executable).parent / "wsllama"), "doctor", *words]
    found = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    assert (found.returncode, found.stderr[: len(sentence)]) == (2, sentence)


# What a host showed


def ids(**more: Any) -> list[str]:
    return [judged.finding.id for judged in judge(Seen(**{"journal": HEALTHY, "unit": GOOD, **more}))]


def gpu(used: int, total: int = 24564) -> Reading:
    return Reading("ok", (Gpu("NVIDIA GeForce RTX 4090", total, used),))


def test_a_healthy_host_has_nothing() -> None:
    assert ids(smi=gpu(22600)) == []


def test_what_a_server_put_where_is_seen_however_long_it_has_run_since() -> None:
    start, requests = [f"{n} a" for n in range(1500)], [f"{n} b" for n in range(9000)]
    both = [*start, *requests]
    for shown in (both, both[:4700], both[:4000], both[:1400]):
        head, tail = ("".join(f"{line}\n" for line in lines) for lines in (shown[:1500], shown[-4000:]))
        whole = joined(head, tail).splitlines()
        assert whole == [*shown[: max(0, min(1500, len(shown) - 4000))], *shown[-4000:]]
    assert joined("", "x\n") == "x\n"  # it doesn't run, or no journal was kept


def test_whoever_else_holds_the_cards_memory_comes_first() -> None:
    slow = Seen(journal=HEALTHY, unit=GOOD.replace("User=llama", "User=root"), smi=gpu(24300))
    first, second = judge(slow)
    assert (first.finding.id, second.finding.id) == ("vram_taken_by_others", "root_user")
    assert first.detail == "NVIDIA GeForce RTX 4090: others hold about 2932 MiB of 24564, 264 MiB are free"
    failed = (LOG / "kv-cache-does-not-fit.log").read_text(encoding="utf-8")
    assert ids(journal=failed, smi=gpu(6000)) == ["vram_taken_by_others", "oom_vram"]
    assert ids(journal=failed, smi=gpu(900)) == ["oom_vram"]
    assert ids(smi=Reading("ok", (Gpu("a", 24564, None),))) == []


def test_weights_in_ram_where_a_gpu_was_planned_are_a_fall_back_although_no_line_says_so() -> None:
    on_cpu = "main: loading model\nload_tensors:   CPU_Mapped model buffer size = 21120.27 MiB\nmain: model loaded\n"
    assert ids(journal=on_cpu) == ["cpu_fallback"]
    assert ids(journal=on_cpu, gpu=False) == []


def test_what_belongs_to_wsl_is_asked_of_wsl_only() -> None:
    linux = GOOD.replace("Environment=LD_LIBRARY_PATH=/usr/lib/wsl/lib\n", "DevicePolicy=closed\n")
    assert ids(unit=linux) == ["devices_closed_without_dxg", "no_wsl_lib_path"]
    assert ids(unit=linux, wsl=False) == []
    assert ids(unit=linux, environment={"LD_LIBRARY_PATH": "/usr/lib/wsl/lib"}) == ["devices_closed_without_dxg"]


def test_files_of_wsl_and_what_hides_the_gpu_are_said_with_their_place() -> None:
    seen = Seen(
        journal=HEALTHY,
        files={"wslconf": ("/etc/wsl.conf", b"[boot]\nsystemd=no\n")},
        problems=("libcuda.so.1 is found at /usr/lib/x86_64-linux-gnu instead: remove what owns it",),
        smi=Reading("blocked"),
    )
    found = judge(seen)
    assert [judged.finding.id for judged in found] == ["blocked", "gpu_hidden", "bad_bool", "systemd_off"]
    assert found[1].finding.fix == "remove what owns it"
    assert found[2].detail.startswith("/etc/wsl.conf:2: boot.systemd: WSL does not take 'no'")


# The ladder

FIRST: dict[planner.Short, int] = {"vram": 1, "ram": 2}
"""How many there are before those of the plan: what costs nothing."""


def carried(rungs: list[ladder.Rung], server: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [merge([{"server": dict(server)}, {"server": rung.server}])["server"] for rung in rungs]


@pytest.mark.parametrize("short_of", ["vram", "ram"])
def test_each_rung_can_be_deployed_and_gives_up_more_than_the_one_before(short_of: Any) -> None:
    server = settings(server={"parallel": 4, "ctx_size": 65536}).server.model_dump()
    rungs = [rung for rung in ladder.rungs(short_of, server, gpu=short_of == "vram") if rung.server]
    assert len(rungs) >= 6
    before: dict[str, Any] = {}
    for rung in rungs:
        assert set(before) <= set(rung.server)
        assert rung.server != before
        settings(server={**server, **rung.server})  # refuses what can't be
        before = rung.server
    assert before["ctx_size"] == 8192


@pytest.mark.parametrize(
    ("short_of", "gpu", "names"),
    [
        ("vram", True, ["slots", "experts to RAM", "micro-batch", "KV cache to q8_0", "context", "layers to RAM"]),
        ("ram", False, ["slots", "host caches", "micro-batch", "KV cache to q8_0", "context"]),
        ("ram", True, ["slots", "host caches", "micro-batch"]),  # the cache and most of the context are the card's
    ],
)
def test_a_recovery_goes_the_way_of_plans(short_of: Any, gpu: bool, names: list[str]) -> None:
    found = ladder.rungs(short_of, {"parallel": 2, "ctx_size": 32768}, gpu=gpu)[FIRST[short_of] : -1]
    begins = {rung.name: rung.says.partition("{")[0] for rung in planner.RUNGS}
    said = [next(name for name, begin in begins.items() if rung.why.startswith(begin)) for rung in found]
    assert list(dict.fromkeys(said)) == names
    assert [name for name in begins if name in names] == names


def test_what_a_step_frees_is_said() -> None:
    """62.8125 MiB of recurrent state a slot; 20480 against 10880 bytes a token of KV cache."""
    found = {rung.why for rung in ladder.rungs("vram", {"parallel": 2, "ctx_size": 32768})}
    assert "One slot (frees about 63 MiB)" in found
    assert "The KV cache as q8_0 (frees about 300 MiB)" in found


def test_a_shortest_context_of_the_settings_is_kept() -> None:
    last, more, _ = ladder.rungs("ram", {"ctx_size": 65536}, least_ctx_size=32768, gpu=False)[-3:]
    assert last.server["ctx_size"] == 32768
    assert (more.server, "plan.least_ctx_size" in more.why) == ({}, True)


def test_what_was_given_up_already_is_no_rung() -> None:
    given = {
        "parallel": 1,
        "n_gpu_layers": 1,
        "n_cpu_moe": 40,
        "ubatch_size": 128,
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
    }
    assert [rung.server for rung in ladder.rungs("vram", {**given, "ctx_size": 8192})] == [{}, {}]
    more = ladder.rungs("vram", {**given, "ctx_size": 16384, "n_gpu_layers": 99})
    assert [rung.server for rung in more[:2]] == [{}, {"ctx_size": 8192}]


def test_what_a_plan_has_given_up_is_where_it_begins() -> None:
    """The settings leave it open and the plan had put 20 layers' experts into RAM."""
    planned = {"parallel": 1, "ctx_size": 16384, "n_gpu_layers": 41, "n_cpu_moe": 20, "ubatch_size": 512, "threads": None}
    found = ladder.rungs("vram", {"ctx_size": 32768, "n_cpu_moe": None}, planned)
    assert found[1].server == {"ctx_size": 16384, "n_gpu_layers": 99, "n_cpu_moe": 30}
    lower = ladder.rungs("vram", {"ctx_size": 8192}, planned)  # the settings ask for less than what ran
    assert lower[1].server == {"n_gpu_layers": 99, "n_cpu_moe": 30}


def test_commands_are_what_a_shell_takes() -> None:
    rungs = [ladder.Rung("Why", {"parallel": 1}), ladder.Rung("By hand", {})]
    lines = ladder.commands(rungs, "my hosts", "desk-1")
    assert [lines[0], lines[2]] == ["# 1. Why", "# 2. By hand"]
    words = shlex.split(lines[1])
    assert words[:6] == ["pyinfra", "my hosts", "deploy.py", "-y", "--limit", "desk-1"]
    assert json.loads(words[-1].removeprefix("server=")) == {"parallel": 1}
    assert ladder.short_of("oom_host") == "ram"
    assert ladder.short_of("port") is None


def test_a_log_that_ran_out_of_memory_shows_the_ladder_from_its_own_context() -> None:
    found = run("log", str(LOG / "kv-cache-does-not-fit.log"))
    assert "# 1. End other programs that use the card" in found.stdout
    assert '"ctx_size": 131072' in found.stdout
    assert "wsl --shutdown" in run("log", str(LOG / "memcg-oom.log")).stdout


# --apply

RUNGS = [ladder.Rung(f"rung {n}", {"ctx_size": n}) for n in (3, 2, 1)]
LOST = ("oom_host", "the first start")


def climbed(*starts: tuple[bool, str, str]) -> tuple[Applied, list[int]]:
    """What comes of it when these follow on the tries: whether the deploy succeeds, the verdict, the journal's last line."""
    deployed, left = [], list(starts)

    def deploy(rung: ladder.Rung) -> bool:
        deployed.append(rung.server["ctx_size"])
        return left[0][0]

    def look() -> tuple[str, str]:
        return left.pop(0)[1:]

    return climb_down(RUNGS, LOST, deploy, look), deployed


def test_the_first_rung_that_serves_is_the_last_that_is_tried() -> None:
    found, deployed = climbed((False, "oom_host", "b"), (True, "ok", "c"))
    assert (deployed, found.served, found.tried) == ([3, 2], True, RUNGS[:2])
    assert list(found.lines("a")) == ["a: tried 1: rung 3", "a: tried 2: rung 2", 'a: it serves with {"ctx_size": 2}']


@pytest.mark.parametrize(
    ("starts", "tries", "why"),
    [
        ([(False, "oom_host", "b"), (False, "loading", "c"), (False, "oom_host", "d")], 3, "none of it served"),
        ([(False, "oom_host", "the first start")], 1, "failed before the server was started"),
        ([(False, "port", "b")], 1, "now the last start says port"),
        ([(False, "ok", "b")], 1, "what was accepted before serves again"),
    ],
)
def test_it_ends_where_another_rung_would_not_help(starts: list[tuple[bool, str, str]], tries: int, why: str) -> None:
    found, deployed = climbed(*starts)
    assert (len(deployed), found.served) == (tries, False)
    assert why in found.ended
    assert list(found.lines("a"))[-1] == f"a: {found.ended}"


def test_what_is_kept_is_read_by_every_run_and_comes_over_the_inventory(tmp_path: Path) -> None:
    inventory = tmp_path / "fleet"
    inventory.write_text('hosts = [("@fake/a", {"server": {"ctx_size": 65536, "parallel": 2}}), ("@fake/b", {})]\n')
    recovery.keep(str(inventory), "@fake/a", {"ctx_size": 32768})
    kept = recovery.keep(str(inventory), "@fake/a", {"ubatch_size": 128})
    assert kept == tmp_path / "fleet.recovery.json"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet", "fleet.recovery.json"]
    read = engine.read_inventory(str(inventory), str(tmp_path), {"server": {"ubatch_size": 256}, "model": {"path": "/a.gguf"}})
    one, two = (guard.settings_of(host).server for host in guard.with_recovery(read, str(inventory)))
    assert (one.ctx_size, one.parallel, one.ubatch_size) == (32768, 2, 256)  # --data comes last
    assert (two.ctx_size, two.parallel) == (16384, 1)
    (said,) = recovery.lines(str(inventory), {"@fake/a", "@fake/b"})
    assert said.startswith(f"@fake/a: {kept} keeps it at server.ctx_size 32768, server.ubatch_size 128")


def test_a_kept_file_that_was_spoiled_is_refused_before_anything_connects(tmp_path: Path) -> None:
    inventory = tmp_path / "fleet"
    inventory.write_text('hosts = [("@fake/a", {"model": {"path": "/a.gguf", "on": "host"}})]\n')
    kept = tmp_path / "fleet.recovery.json"
    check = ["wsllama", "check", str(inventory)]
    for text, command in (
        ("{", check),
        ("[]", ["pyinfra", str(inventory), "deploy.py", "-y"]),
        ('{"hosts": {"@fake/a": 3}}', check),
    ):
        kept.write_text(text)
        program = str(Path(sys.executable).parent / command[0])
        found = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert found.returncode == 2, found.stderr
        assert f"refused: {kept} is not as `wsllama doctor --apply` writes it" in found.stderr


def test_what_can_not_be_kept_is_not_begun() -> None:
    assert "but @local is no file" in str(cannot_apply("@local"))
    assert "--apply changes hosts" in run("--apply", "log", str(LOG / "memcg-oom.log")).stderr
