"""Field cases, section E: whether the GPU is seen, and with which driver. The rows: tests/data/field_cases.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.operations.fake_hosts import Converge, converge, settings
from tests.operations.test_op_cuda import RTX_4090, seen, toolkit, trusted
from tests.operations.test_op_release import BUILDS, host
from tests.unit.test_openpgp import TEXT
from tests.unit.test_unit_file import findings
from wsllama.domain import build, guest, nvidia_smi
from wsllama.domain.examine import build_log
from wsllama.domain.toolkit import choose, covers
from wsllama.host import build as build_program
from wsllama.host import cuda_apt, follow, probe
from wsllama.operations import cuda, llama_cpp, release, server

__all__ = ["converge", "trusted"]  # fixtures

ON_WSL: dict[str, Any] = {"platform": "wsl", "cuda": {"version": "13.0"}}
NOISE = "/sbin/ldconfig.real: /usr/lib/wsl/lib/libcuda.so.1 is not a symbolic link\n\n"
CACHE = "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/wsl/lib/libcuda.so.1\n"


def test_47_a_linux_driver_is_found_among_the_packages_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, converge: Converge
) -> None:
    """From a table as dpkg keeps it to the host that fails."""
    table, state = tmp_path / "status", "Status: install ok installed\nVersion: 1\n"
    table.write_text("".join(f"Package: {name}\n{state}\n" for name in ("bash", "nvidia-utils-535", "libnvidia-compute-535")))

    def opened(path: str, *how: Any, **more: Any) -> Any:
        return open(table if path == "/var/lib/dpkg/status" else path, *how, **more)

    monkeypatch.setattr(probe, "open", opened, raising=False)
    found = probe.guest(["packages"])
    assert found == {"packages": ["nvidia-utils-535", "libnvidia-compute-535"]}
    got = converge(cuda.guards, settings(**ON_WSL), seen=seen(guest=found))
    assert got.failed
    assert got.commands == []
    assert "remove it with apt-get purge libnvidia-compute-535 nvidia-utils-535" in got.log


def test_49_a_library_of_an_earlier_driver_is_named() -> None:
    path = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    facts = guest.Guest(
        ldconfig=f"\tlibcuda.so.1 (libc6,x86-64) => {path}\n{CACHE}",
        real_paths={path: "/usr/lib/x86_64-linux-gnu/libcuda.so.418.226.00"},
    )
    (sentence,) = guest.problems(facts)
    assert sentence.startswith(f"libcuda.so.1 is found at {path} instead of in /usr/lib/wsl/lib: remove what owns it")


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [s for key, inner in value.items() for s in (*strings(key), *strings(inner))]
    if isinstance(value, list):
        return [s for inner in value for s in strings(inner)]
    return [value] if isinstance(value, str) else []


def test_50_nothing_is_written_below_wsls_folder(converge: Converge, trusted: None, tmp_path: Path) -> None:
    """Of all that the programs on a bare WSL machine are told, only the service's environment names it; and the service
    itself may not write outside of its own folders."""
    key = tmp_path / "key.asc"
    key.write_text(TEXT)
    sent = converge(toolkit, settings(platform="wsl", cuda={"key_file": str(key)}), seen=seen()).sent
    on_cpu = settings(platform="wsl", llama_cpp={"backend": "cpu", "source": "git"})
    sent += converge(llama_cpp.build, on_cpu, seen=host(builds={BUILDS: {}})).sent
    sent += converge(server.release, release.looks(on_cpu), lambda now: release.wanted(now, on_cpu), seen=host()).sent
    told = [argument.get("argument", argument) if isinstance(argument, dict) else argument for argument in sent]
    assert len(told) == 5, "key and preferences, packages, build, release, its switch"
    lines = {line for text in strings(told) for line in text.splitlines()}
    assert [line for line in lines if "/usr/lib/wsl" in line] == ['LD_LIBRARY_PATH="/usr/lib/wsl/lib"']
    assert "\nProtectSystem=strict\n" in release.unit_text(on_cpu)
    assert "ReadWritePaths" not in release.unit_text(on_cpu)


@pytest.mark.parametrize(
    ("driver", "cuda_version", "said"),
    [
        ("527.41", "12.4", "CUDA 12.4 needs Windows driver 528.33 or newer, and this is 527.41"),
        ("516.94", "12.4", "CUDA 12.4 needs Windows driver 528.33 or newer, and this is 516.94"),
        ("576.02", "13.0", "CUDA 13.0 needs Windows driver 580 or newer, and this is 576.02"),
        ("576.02", "13.3", "CUDA 13.3 needs Windows driver 580 or newer, and this is 576.02"),
    ],
)
def test_52_an_old_driver_is_refused(driver: str, cuda_version: str, said: str) -> None:
    choice = choose("ubuntu-24.04", driver, ["8.9"], cuda_version)
    assert not choice.ok
    assert said in choice.refusals


def test_52_minor_releases_are_compatible_and_ptx_is_warned_of() -> None:
    choice = choose("ubuntu-24.04", "528.33", ["8.9"], "12.4")
    assert choice.ok, choice.refusals
    assert ["PTX" in warning for warning in choice.warnings] == [True]


@pytest.mark.parametrize("returncode", [1, 9, 17, 255])
def test_53_blocked_access_is_said_as_such(converge: Converge, returncode: int) -> None:
    text = "Failed to initialize NVML: GPU access blocked by the operating system\n"
    got = converge(cuda.guards, settings(**ON_WSL), seen=seen(smi={**RTX_4090, "returncode": returncode, "text": text}))
    assert got.failed
    assert "access to the GPU is blocked by the operating system: switch the GPU from TCC to WDDM on Windows" in got.log


def test_55_the_noise_of_ldconfig_is_no_failure() -> None:
    """A program that says it and ends with 0, as apt runs it; a log that holds it; what ldconfig prints before its list."""
    assert cuda_apt.run(["sh", "-c", f"echo '{NOISE.strip()}' >&2"]) == (0, NOISE.rstrip("\n") + "\n")
    assert build_log.read(NOISE) == (frozenset(), None)
    assert not build_program.KILLED.search(NOISE.encode())
    assert follow.lines_that_matter(f"{NOISE}a.cpp:1:1: error: no\n") == ["a.cpp:1:1: error: no"]
    assert guest.problems(guest.Guest(ldconfig=NOISE + CACHE)) == []


def test_56_a_hardened_unit_has_the_device() -> None:
    unit = release.unit_text(settings(platform="wsl"))
    assert "\nDevicePolicy=closed\nDeviceAllow=/dev/dxg rw\n" in unit
    environment, words = 'LD_LIBRARY_PATH="/usr/lib/wsl/lib"\n', ["--port", "8080"]
    assert findings(unit, environment, words, wsl=True) == []
    without = unit.replace("DeviceAllow=/dev/dxg rw\n", "")
    assert findings(without, environment, words, wsl=True) == ["devices_closed_without_dxg"]
    hidden = unit.replace("PrivateTmp=yes", "PrivateTmp=yes\nPrivateDevices=yes")
    assert findings(hidden, environment, words, wsl=True) == ["private_devices"]


def test_58_what_is_not_available_is_no_number() -> None:
    row = nvidia_smi.read("79, [N/A]\n", 0, "nvidia-smi --query-gpu=memory.total,memory.used --format=csv,noheader,nounits")
    assert row.gpus == (nvidia_smi.Gpu("", 79, None),)
    row = nvidia_smi.read("[N/A], 79\n", 0, "nvidia-smi --query-gpu=memory.total,memory.used --format=csv,noheader,nounits")
    assert row.gpus == ()
    processes = "pid, used_gpu_memory [MiB]\n79, [N/A]\n"
    assert nvidia_smi.read(processes, 0, "nvidia-smi --query-compute-apps=pid,used_memory --format=csv").gpus == ()


def test_59_a_missing_device_has_its_likely_reason(converge: Converge) -> None:
    got = converge(cuda.guards, settings(**ON_WSL), seen=seen(guest={"dxg": False}))
    assert got.failed
    said = "GPU paravirtualisation is off (gpuSupport=false in .wslconfig, an old WSL, or WSL 1)"
    assert f"/dev/dxg is missing, so the guest sees no GPU: {said}" in got.log


@pytest.mark.parametrize(("built", "capability", "runs"), [("86-real", "8.9", True), ("89", "12.0", False)])
def test_61_whether_a_build_has_code_for_a_gpu(built: str, capability: str, runs: bool) -> None:
    assert covers([built], capability) is runs


def test_61_another_gpu_gets_another_build() -> None:
    def made_for(capability: str) -> dict[str, str]:
        smi = {**RTX_4090, "text": RTX_4090["text"].replace(" 8.9,", f" {capability},")}
        wanted = settings(platform="wsl", cuda={"version": "13.0"})
        chosen = cuda.options(cuda.toolkit_of(seen(smi=smi), wanted), wanted)
        return build.cmake_options("0" * 40, 1, backend="cuda", cuda=chosen)

    old, new = made_for("8.9"), made_for("12.0")
    assert (old["CMAKE_CUDA_ARCHITECTURES"], new["CMAKE_CUDA_ARCHITECTURES"]) == ("89", "120a")
    ids = {build.build_id({"options": options}) for options in (old, new)}
    assert len(ids) == 2
