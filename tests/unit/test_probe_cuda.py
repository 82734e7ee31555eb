"""What the probe says of GPU, guest and CUDA toolkits: against programs and folders of these tests, and this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from wsllama.domain import guest, nvidia_smi
from wsllama.host import probe

NVCC = 'echo "nvcc: NVIDIA (R) Cuda compiler driver"; echo "Cuda compilation tools, release 13.0, V13.0.88"'


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def toolkit(folder: Path, nvcc: str = NVCC) -> Path:
    """A folder as NVIDIA's packages leave it, but for the content."""
    program(folder / "bin/nvcc", nvcc)
    for path in ("include/cuda_runtime.h", "include/cublas_v2.h", "targets/lib/stubs/libcuda.so"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    (folder / "lib64").symlink_to("targets/lib")
    for name, version in (("libcublas", "13.1.1.3"), ("libcublasLt", "13.1.1.3"), ("libcudart", "13.0.96")):
        (folder / "lib64" / f"{name}.so.{version}").touch()
        (folder / "lib64" / f"{name}.so.13").symlink_to(f"{name}.so.{version}")
        (folder / "lib64" / f"{name}.so").symlink_to(f"{name}.so.13")
    return folder


def found(root: Path) -> Any:
    return probe.toolkits([str(root)])[str(root)]


def test_a_whole_toolkit(tmp_path: Path) -> None:
    here = toolkit(tmp_path / "cuda-13.0")
    (tmp_path / "cuda").symlink_to("cuda-13.0")
    (tmp_path / "bin").mkdir()
    assert found(tmp_path) == {
        str(here): {
            "release": "13.0",
            "version": "13.0.88",
            "libraries": ["libcublas.so.13.1.1.3", "libcublasLt.so.13.1.1.3", "libcudart.so.13.0.96"],
            "whole": True,
            "stub": True,
        }
    }
    assert found(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("gone", ["include/cublas_v2.h", "lib64/libcublasLt.so", "lib64/libcudart.so"])
def test_a_part_that_is_missing(tmp_path: Path, gone: str) -> None:
    here = toolkit(tmp_path / "cuda-13.0")
    (here / gone).unlink()
    assert not found(tmp_path)[str(here)]["whole"]


def test_a_record_spares_starting_the_compiler(tmp_path: Path) -> None:
    ours, theirs = (toolkit(tmp_path / name, "echo started >&2; exit 9") for name in ("ours", "theirs"))
    (ours / "toolkit.json").write_text(json.dumps({"version": "V13.3.73", "release": "13.3"}))
    (theirs / "version.json").write_text(json.dumps({"cuda": {"version": "12.8.1"}, "cuda_nvcc": {"version": "12.8.93"}}))
    said = found(tmp_path)
    assert [(said[str(f)]["release"], said[str(f)]["version"]) for f in (ours, theirs)] == [
        ("13.3", "13.3.73"),
        ("12.8", "12.8.93"),
    ]


@pytest.mark.parametrize("nvcc", ["exit 139", "echo nothing", "printf 'release \\377, V\\377'", "echo 'release 13, V13'"])
def test_a_compiler_that_does_not_say_its_version(tmp_path: Path, nvcc: str) -> None:
    here = toolkit(tmp_path / "cuda-13.0", nvcc)
    (here / "version.json").write_text('{"cuda_nvcc": 5}')
    assert (found(tmp_path)[str(here)]["release"], found(tmp_path)[str(here)]["version"]) == (None, None)


def test_nvidia_smi_is_passed_on_as_it_is(tmp_path: Path) -> None:
    text = "name, memory.total [MiB], compute_cap, driver_version\\nNVIDIA GeForce RTX 4090, 24564 MiB, 8.9, 581.42"
    smi = program(tmp_path / "nvidia-smi", f"printf '{text}\\n'; printf 'caf\\351' >&2")
    crashed = program(tmp_path / "crashed", "kill -SEGV $$")
    said = probe.gpu([str(smi), str(crashed), str(tmp_path / "none")])
    assert said[str(tmp_path / "none")] is None
    reading = nvidia_smi.read(**{k: said[str(smi)][k] for k in ("text", "returncode", "command")})
    assert (reading.status, reading.driver_windows, reading.gpus[0].compute_cap) == ("ok", "581.42", "8.9")
    assert nvidia_smi.read(said[str(crashed)]["text"], said[str(crashed)]["returncode"]).status == "crashed"


def test_a_program_that_hangs_or_cannot_be_started(tmp_path: Path) -> None:
    hangs = program(tmp_path / "hangs", "exec sleep 86400")
    assert probe._said([str(hangs)], 0.2) == (124, f"{hangs} said nothing for 0.2 s")
    assert probe._said([str(tmp_path)], 600) == (127, f"{tmp_path}: Permission denied")


def test_this_machine_as_a_guest() -> None:
    keys = ["packages", "ldconfig", "real_paths", "ld_so_conf", "dxg", "gpu_enabled"]
    said = json.loads(json.dumps(probe.guest(keys)))
    assert said["dxg"] == os.path.exists("/dev/dxg")
    assert "/etc/ld.so.conf" in said["ld_so_conf"]
    assert any("/dev/dxg is missing" in p for p in guest.problems(guest.Guest(**said))) != said["dxg"]


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        ("", None),
        ("[gpu]\nenabled=false\n", False),
        ("[boot]\nsystemd=true\n\n[GPU]\n# comment\nenabled = True\n", True),
        ("[gpu]\nappendWindowsPath=x\n[interop]\nenabled=false\n", None),
    ],
)
def test_whether_wsl_conf_turns_the_gpu_off(monkeypatch: pytest.MonkeyPatch, text: str, enabled: bool | None) -> None:
    read = probe._text
    monkeypatch.setattr(probe, "_text", lambda path: text if path == "/etc/wsl.conf" else read(path))
    assert probe.guest(["gpu_enabled"]) == {"gpu_enabled": enabled}
