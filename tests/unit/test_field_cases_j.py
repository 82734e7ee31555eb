"""Field cases, section J: the service and its GPU; models that a build does not know. Rows: tests/data/field_cases.json."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.operations.fake_hosts import settings
from tests.unit.test_accept import Answer, Host, host
from tests.unit.test_build_program import FILES
from tests.unit.test_build_program import Host as BuildHost
from tests.unit.test_gguf_audit import other_architecture, report_of
from tests.unit.test_interop import asked, listener, machine
from tests.unit.test_watchdog import Host as Watched
from tests.unit.test_watchdog import host as watched
from wsllama import lock
from wsllama.domain import guest, server_log
from wsllama.domain.examine import unit
from wsllama.domain.examine.host import Seen, judge
from wsllama.domain.findings import CATALOGUE, examine
from wsllama.host import build, probe, watchdog
from wsllama.operations import release
from wsllama.settings import LOCK

__all__ = ["host", "machine", "watched"]  # fixtures

LOST = (
    "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n",
    "warning: no usable GPU found, --gpu-layers option will be ignored\n",
)
SERVES = "srv    load_model: loading model '/m/a.gguf'\nmain: model loaded\nmain: server is listening on http://127.0.0.1:8080\n"


@pytest.mark.parametrize("line", LOST)
def test_118_serving_on_the_cpu_is_seen_although_health_is_200(host: Host, line: str) -> None:
    host.log(line + SERVES)
    found = host.accept(gpu=True)
    assert (found["ok"], host.health) == (False, [(200, b'{"status":"ok"}')])
    assert f"fell back to the CPU ({line.strip()})" in found["error"]
    assert server_log.read(line + SERVES).verdict == "cpu_fallback"
    assert "start it again once" in CATALOGUE["log", "cpu_fallback"].fix


@pytest.mark.parametrize("line", LOST)
def test_118_it_is_started_again_once_at_boot_and_the_journal_says_so(watched: Watched, line: str, capsys: Any) -> None:
    watched.record(gpu=True)
    watched.runs("at-boot", line + SERVES)
    dog = watchdog.Watchdog(watched.argument)
    watched.rounds(dog)
    assert watched.restarts() == 1
    assert f"it serves on the CPU although a GPU is planned ({line.strip()}); it is restarted once" in capsys.readouterr().out
    watched.runs("again", line + SERVES)
    watched.rounds(dog)
    assert watched.restarts() == 1


def test_119_a_unit_without_the_library_path_is_found_and_ours_has_it() -> None:
    wsl = settings(platform="wsl")
    text, bare = release.unit_text(wsl), "[Service]\nExecStart=/opt/llama-server -m /a.gguf -ngl 99\n"
    assert "no_wsl_lib_path" in unit.findings(bare)
    assert CATALOGUE["unit", "no_wsl_lib_path"].fix == "Environment=LD_LIBRARY_PATH=/usr/lib/wsl/lib"
    assert "no_wsl_lib_path" in unit.findings(text)  # it stands in a file beside it
    assert unit.findings(text, {"LD_LIBRARY_PATH": "/usr/lib/wsl/lib"}) == set()


def test_121_the_wrong_libcuda_is_named_with_the_loader_s_hit() -> None:
    """nvidia-smi is content, cuInit says 100."""
    cache = "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
    problems = guest.problems(guest.Guest(ldconfig=cache + cache.replace("x86_64-linux-gnu", "wsl/lib")))
    found = judge(Seen(journal=LOST[0] + SERVES, problems=tuple(problems)))
    assert [judged.finding.id for judged in found] == ["cpu_fallback", "gpu_hidden"]
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in found[1].finding.cause


@pytest.mark.parametrize("folder", ["stubs", "x86_64-linux-gnu"])
def test_122_a_program_that_loads_another_libcuda_is_refused(tmp_path: Path, folder: str) -> None:
    """Linked as the toolkit's stub or a Linux driver would have it; ldd tells."""
    there, lib = tmp_path / folder, tmp_path / "lib"
    there.mkdir()
    lib.mkdir()
    (tmp_path / "a.c").write_text("int cuInit(void) { return 34; }\n")
    (tmp_path / "b.c").write_text("int cuInit(void);\nint cuda(void) { return cuInit(); }\n")
    cc = ["cc", "-shared", "-fPIC"]
    subprocess.run([*cc, "-Wl,-soname,libcuda.so.1", "-o", there / "libcuda.so.1", "a.c"], cwd=tmp_path, check=True)
    linked = ["-o", f"{lib}/libggml-cuda.so", "b.c", f"{there}/libcuda.so.1", f"-Wl,-rpath,{there}"]
    subprocess.run([*cc, *linked], cwd=tmp_path, check=True)
    with pytest.raises(build.BuildError, match=rf"libcuda\.so\.1 is found at {there}/libcuda\.so\.1 instead of /usr/lib/wsl/lib"):
        build.check_libraries(str(tmp_path), "lib")


def test_124_the_profile_is_found_through_init_whatever_binfmt_says(machine: Path) -> None:
    """WSLInterop is off: cmd.exe itself is no program that could be started here."""
    with pytest.raises(OSError, match=r"Permission denied|Exec format error"):
        subprocess.run([machine / "c/Windows/System32/cmd.exe"], check=False)
    with listener(machine, "1_interop"):
        assert asked(machine) == "1_interop"


@pytest.mark.parametrize("commit", ["b7911", "b7990"])
def test_125_a_build_between_the_landings_is_told_from_a_bad_file(commit: str) -> None:
    said = {"b7911": "unknown model architecture: 'qwen35moe'", "b7990": "unknown pre-tokenizer type: 'qwen35'"}[commit]
    found = examine("log", f"build: {commit[1:]} (5cf0a2e8) with GNU\nerror loading model: {said}\n".encode())
    assert found == {"verdict": "bad_arch", "build": int(commit[1:])}
    assert "PR 19468" in CATALOGUE["log", "bad_arch"].cause


@pytest.mark.parametrize(
    ("arch", "vocab", "lacks"),
    [
        ('"qwen35moe"', '"qwen2"', 'src/llama-vocab.cpp lacks "qwen35"'),  # after the first landing
        ('"qwen3moe"', '"qwen2"', 'src/llama-arch.cpp lacks "qwen35moe"'),  # after the revert
        ('"qwen35moe"', '"qwen35"', None),
    ],
)
def test_125_a_commit_between_the_landings_is_not_built(tmp_path: Path, arch: str, vocab: str, lacks: str | None) -> None:
    small = BuildHost(tmp_path)
    source = small.tar({**FILES, "src/llama-arch.cpp": f"{{ A, {arch} }},\n", "src/llama-vocab.cpp": f"pre == {vocab}\n"})
    if lacks:
        assert f"does not know Qwen3.6 ({lacks}): it needs one after" in small.refuse(source=source)
    else:
        build.unpack(source, str(tmp_path / "there"), {})
        build.check_source(str(tmp_path / "there/src"), "a" * 40)


@pytest.mark.parametrize("date", ["2026-02-09", "2026-02-10"])
def test_125_a_lock_with_a_commit_of_these_days_is_refused(tmp_path: Path, date: str) -> None:
    document = json.loads(LOCK.read_text(encoding="utf-8"))
    document["llama_cpp"]["date"] = date
    path = tmp_path / "wsllama.lock"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(lock.LockError, match=f"a commit of {date} does not know Qwen3.6"):
        lock.load(path)


def test_127_the_architecture_has_to_be_the_very_word(tmp_path: Path) -> None:
    (problem,) = report_of(other_architecture(tmp_path / "a.gguf", "qwen3next")).problems
    assert "its architecture is 'qwen3next', but that of Qwen3.6-35B-A3B is 'qwen35moe'" in problem


def test_128_a_completion_that_never_ends_fails_although_health_is_200(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    stock, over = host.answer, threading.Event()

    def hanging(path: str, given: Any) -> Answer:
        if path == "/v1/chat/completions":
            over.wait()
        return stock(path, given)

    monkeypatch.setattr(host, "answer", hanging)
    found = host.accept(request_timeout_s=0.3)
    over.set()
    assert found["ok"] is False
    assert "timed out" in found["error"]
    after = "CUDA error: out of memory\n  current device: 0, in function alloc at ggml-cuda.cu:512\n"
    assert server_log.read(SERVES + after).verdict == "oom_vram"


def test_128_a_completion_that_hangs_is_restarted_although_health_is_200(watched: Watched, capsys: Any) -> None:
    watched.stuck()
    watched.rounds(watchdog.Watchdog(watched.argument))
    assert watched.restarts() == 1
    assert "/health says ok, but nothing was computed" in capsys.readouterr().out


@pytest.mark.parametrize("trace", ["/run/WSL", "/dev/dxg"])
def test_130_wsl_is_known_by_its_traces_where_the_kernel_does_not_say_so(monkeypatch: pytest.MonkeyPatch, trace: str) -> None:
    text = probe._text
    monkeypatch.setattr(probe, "_text", lambda path: "6.6.87-custom\n" if path.endswith("osrelease") else text(path))
    monkeypatch.setattr(os.path, "isdir", lambda path: path == trace)
    monkeypatch.setattr(os.path, "exists", lambda path: path == trace)
    assert probe.system(["wsl"])["wsl"] == [trace]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_131_a_compressed_folder_is_told_by_its_code_in_any_language(encoding: str) -> None:
    said = "Die angeforderte Operation konnte nicht ausgeführt werden.\r\nFehlercode: Wsl/Service/RegisterDistro/0xc03a001a\r\n"
    found = examine("wsl-output", said.encode(encoding), command="wsl.exe --import a D:\\a a.tar", returncode=-1)
    assert found["error_id"] == "vhd_compressed"
    assert CATALOGUE["wsl-output", "vhd_compressed"].fix == "compact /u on the folder, or another folder."
