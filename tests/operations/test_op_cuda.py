"""CUDA on @fake hosts: what is refused before the first change, which toolkit is taken, and what brings it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.operations.fake_hosts import Converge, settings
from tests.operations.test_op_release import BUILDS, MACHINE
from tests.operations.test_op_release import host as machine
from tests.unit.test_openpgp import FINGERPRINT, TEXT
from wsllama import lock, transfer, wheels
from wsllama.domain import build as rules
from wsllama.domain import guest
from wsllama.domain import toolkit as choices
from wsllama.host.toolkit import TOOLKITS
from wsllama.operations import cuda, llama_cpp
from wsllama.operations.base import Refused, resource
from wsllama.operations.files import render

SMI = guest.NVIDIA_SMI
HEAD = "name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], compute_cap, driver_version\n"
RTX_4090: dict[str, Any] = {
    "command": f"{SMI} -x",
    "returncode": 0,
    "text": f"{HEAD}NVIDIA GeForce RTX 4090, 24564 MiB, 79 MiB, [N/A], 8.9, 581.42\n",
}
CRASHED = {"command": SMI, "returncode": 139, "text": "Segmentation fault\n"}
HEALTHY = {"packages": [], "ldconfig": "", "real_paths": {}, "ld_so_conf": {}, "dxg": True, "gpu_enabled": None}
OLD = {"release": "12.0", "version": "12.0.140", "libraries": [], "whole": True, "stub": True}
WHOLE = {
    "release": "13.0",
    "version": "13.0.72",
    "libraries": ["libcublas.so.13.0.2.14", "libcublasLt.so.13.0.2.14", "libcudart.so.13.0.72"],
    "whole": True,
    "stub": True,
}
PINNED = cuda.pins().apt.packages["13.0"]
LAID_OUT = f"{TOOLKITS}/{wheels.toolkit_name('13.0', cuda.pins().wheels['13.0'])}"


def seen(
    *, smi: Any = RTX_4090, distro: str = "ubuntu-24.04", kernel: str = "6.6.87.2-microsoft-standard-WSL2", **more: Any
) -> Any:
    """What the probe says of a healthy guest with an RTX 4090 and no toolkit."""
    names = {name for release in choices.RELEASES for name in cuda._packages(release)}
    return {
        "system": {"distro": distro, "kernel": kernel},
        "gpu": dict.fromkeys(cuda.NVIDIA_SMI.values(), smi),
        "guest": {**HEALTHY, **more.pop("guest", {})},
        "toolkits": {cuda.LOCAL: more.pop("local", {}), TOOLKITS: more.pop("laid_out", {})},
        "packages": {**dict.fromkeys(names), **more.pop("packages", {})},
        "files": {path: more.get(path) for path in (cuda.SOURCES, cuda.KEYRING, cuda.PREFERENCES)},
    }


def on_wsl(**data: Any) -> Any:
    return settings(platform="wsl", **data)


def builder(**wanted: Any) -> Any:
    """Settings of a Linux machine without a GPU that builds for one."""
    more = {"version": "13.0", "compute": ["8.9"], "require_gpu": False, **wanted}
    return settings(llama_cpp={"backend": "cuda"}, cuda=more)


# Guards


def test_a_host_for_the_processor_is_not_even_asked(converge: Converge) -> None:
    got = converge(cuda.guards, settings(), seen={})
    assert (got.probes, got.commands, got.changed, got.failed) == (0, [], False, False)
    assert cuda.looks(settings()) == {}


def test_a_healthy_guest(converge: Converge) -> None:
    got = converge(cuda.guards, on_wsl(), seen=seen())
    assert (got.probes, got.commands, got.changed, got.failed) == (1, [], False, False)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"guest": {"packages": ["nvidia-driver-580"]}}, "remove it with apt-get purge nvidia-driver-580"),
        ({"guest": {"dxg": False}}, "/dev/dxg is missing"),
        ({"guest": {"ldconfig": "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1"}}, "found at /usr/lib/libcuda.so.1"),
        ({"smi": None}, f"{SMI} finds no driver"),
        ({"smi": {**CRASHED, "returncode": 1, "text": "GPU access blocked by the operating system"}}, "blocked"),
        ({"smi": CRASHED}, "does not tell this host's compute capability (crashed): set cuda.compute"),
        ({"smi": {**RTX_4090, "text": RTX_4090["text"].replace("8.9", "6.1")}, "distro": "ubuntu-26.04"}, "6.1"),
    ],
)
def test_what_hides_the_gpu_fails_the_host(converge: Converge, found: dict[str, Any], said: str) -> None:
    got = converge(cuda.guards, on_wsl(), seen=seen(**found))
    assert got.failed
    assert got.commands == []
    assert said in got.log


@pytest.mark.parametrize(
    "wanted", [{"compute": ["12.0"]}, {"architectures": ["120"]}, {"compute": ["7.5"], "architectures": ["75-real"]}]
)
def test_a_build_without_code_for_the_gpu_that_is_here(converge: Converge, wanted: dict[str, Any]) -> None:
    got = converge(cuda.guards, on_wsl(cuda=wanted), seen=seen())
    assert got.failed
    assert "has no code for the NVIDIA GeForce RTX 4090 here, whose compute capability is 8.9" in got.log
    assert not converge(cuda.guards, on_wsl(cuda={**wanted, "require_gpu": False}), seen=seen()).failed, "it builds for others"


def test_one_cause_is_one_sentence(converge: Converge) -> None:
    got = converge(cuda.guards, on_wsl(), seen=seen(smi=None))
    assert got.failed
    assert "cuda.compute" not in got.log, "that it isn't known follows from the driver that is missing"


def test_a_gpu_that_nvidia_smi_crashes_on_is_none_the_less_there(converge: Converge) -> None:
    assert not converge(cuda.guards, on_wsl(cuda={"compute": ["8.9"]}), seen=seen(smi=CRASHED)).failed


def test_a_builder_without_a_gpu(converge: Converge) -> None:
    nothing = seen(smi=None, guest={"dxg": False})
    assert not converge(cuda.guards, on_wsl(cuda={"compute": ["8.9"], "require_gpu": False}), seen=nothing).failed
    assert not converge(cuda.guards, builder(), seen=nothing).failed
    got = converge(cuda.guards, builder(require_gpu=True), seen=nothing)
    assert got.failed
    assert "no GPU of NVIDIA's is seen here" in got.log


def test_a_driver_in_the_guest_is_in_a_builders_way_too(converge: Converge) -> None:
    found = seen(smi=None, guest={"dxg": False, "packages": ["libnvidia-compute-535"]})
    assert converge(cuda.guards, on_wsl(cuda={"compute": ["8.9"], "require_gpu": False}), seen=found).failed


# Choice


def test_without_a_toolkit_it_comes_by_apt_at_its_pins() -> None:
    kit = cuda.toolkit_of(seen(), on_wsl())
    assert (kit.release, kit.provider, kit.root, kit.there) == ("13.0", "apt", "/usr/local/cuda-13.0", False)
    assert kit.packages == kit.versions == PINNED
    assert cuda.space(kit) == {cuda.LOCAL: cuda.APT_BYTES}


def test_a_release_without_pins_comes_by_name() -> None:
    kit = cuda.toolkit_of(seen(), on_wsl(cuda={"version": "12.9"}))
    assert set(kit.packages.values()) == {None}
    assert all("12-9" in name for name in kit.packages)
    assert set(kit.versions.values()) == {"the newest"}


def test_a_toolkit_that_was_there_is_used() -> None:
    local = {"/usr/local/cuda-13.0": WHOLE, "/usr/local/cuda-12.0": OLD}
    kit = cuda.toolkit_of(seen(local=local), on_wsl())
    assert (kit.provider, kit.root, kit.there, kit.stub) == ("present", "/usr/local/cuda-13.0", True, True)
    assert kit.cmake["CMAKE_CUDA_COMPILER"] == "/usr/local/cuda-13.0/bin/nvcc"
    assert kit.versions["nvcc"] == "13.0.72"
    assert "libcudart.so.13.0.72" in kit.versions["libraries"]
    assert cuda.space(kit) == {}


@pytest.mark.parametrize(
    "local",
    [
        {"/usr/local/cuda-12.0": OLD},
        {"/usr/local/cuda-13.0": {**WHOLE, "whole": False}},
        {"/usr/local/cuda-x": {**WHOLE, "release": None, "version": None}},
        {"/usr/local/cuda-13.2": {**WHOLE, "release": "13.2"}},
    ],
)
def test_a_toolkit_that_does_not_do_is_not(local: dict[str, Any]) -> None:
    kit = cuda.toolkit_of(seen(local=local), on_wsl())
    assert (kit.provider, kit.release, kit.there) == ("apt", "13.0", False)


def test_another_release_than_asked_for_is_left_alone() -> None:
    kit = cuda.toolkit_of(seen(local={"/usr/local/cuda-13.0": WHOLE}), on_wsl(cuda={"version": "12.8"}))
    assert (kit.provider, kit.release) == ("apt", "12.8")


def test_what_we_brought_is_kept_at_its_pins() -> None:
    found: dict[str, Any] = {cuda.SOURCES: {"kind": "file"}, "local": {"/usr/local/cuda-13.0": WHOLE}}
    kit = cuda.toolkit_of(seen(**found, packages=PINNED), on_wsl())
    assert (kit.provider, kit.there, kit.versions) == ("apt", True, PINNED)
    older = {**PINNED, "cuda-nvcc-13-0": "13.0.48-1"}
    assert not cuda.toolkit_of(seen(**found, packages=older), on_wsl()).there
    assert not cuda.toolkit_of(seen(**{**found, "local": {}}, packages=PINNED), on_wsl()).there, "its folder was removed"


def test_wheels() -> None:
    wanted = on_wsl(cuda={"provider": "wheels"})
    local = {"/usr/local/cuda-13.0": WHOLE}
    kit = cuda.toolkit_of(seen(local=local), wanted)
    assert (kit.provider, kit.root, kit.there, kit.stub) == ("wheels", LAID_OUT, False, False)
    assert kit.versions == cuda.pins().wheels["13.0"].versions
    assert cuda.options(kit, wanted)["GGML_CUDA_NO_VMM"] == "ON"
    assert set(cuda.space(kit)) == {cuda.WHEELS, TOOLKITS}
    assert cuda.toolkit_of(seen(laid_out={LAID_OUT: WHOLE}), wanted).there
    assert not cuda.toolkit_of(seen(laid_out={LAID_OUT: {**WHOLE, "whole": False}}), wanted).there


@pytest.mark.parametrize(
    ("wanted", "found", "said"),
    [
        ({"version": "13.2"}, {}, "miscompiles"),
        ({"provider": "wheels", "driver": "560.94"}, {}, "needs Windows driver 580"),
        ({"version": "13.1", "provider": "wheels"}, {}, "13.1"),
        ({}, {"distro": "fedora-41"}, "fedora-41 is not supported for CUDA"),
    ],
)
def test_no_toolkit_in_words(wanted: dict[str, Any], found: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=re.escape(said)):
        cuda.toolkit_of(seen(**found), on_wsl(cuda=wanted))


def test_options_are_those_of_the_choice_and_the_settings() -> None:
    wanted = builder(architectures=["89-virtual"], compute=[], flags=["-Xcicc", "-O0"], flash_attention=False)
    found = cuda.options(cuda.toolkit_of(seen(smi=None), wanted), wanted)
    assert found["CMAKE_CUDA_ARCHITECTURES"] == "89-virtual"
    assert found["CMAKE_CUDA_FLAGS"] == "-Xcicc -O0"
    assert found["CMAKE_CUDA_HOST_COMPILER"] == "/usr/bin/g++-13"
    assert (found["GGML_CUDA_FA"], found["GGML_CUDA_NO_VMM"]) == ("OFF", "ON")
    assert cuda.options(cuda.toolkit_of(seen(), on_wsl()), on_wsl())["GGML_CUDA_NO_VMM"] == "OFF"


def test_room_for_a_build_and_its_toolkit() -> None:
    now, wanted = {**seen(smi=None), "system": {"distro": "debian-12", "kernel": ""}}, builder(provider="wheels")
    size = cuda.pins().wheels["13.0"].size
    assert llama_cpp.space(now, wanted) == {
        "/var/cache/wsllama": rules.CUDA_WORK_BYTES + size,
        "/opt/wsllama": rules.CUDA_RESULT_BYTES + size * cuda.UNPACKED,
    }
    assert llama_cpp.space(now, wanted, made=False) == {"/opt/wsllama": rules.CUDA_RESULT_BYTES}


def test_a_builder_is_told_the_room_of_a_cuda_build(converge: Converge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = settings(
        llama_cpp={"backend": "cuda", "source": "git"}, cuda={"version": "13.0", "compute": ["8.9"], "require_gpu": False}
    )
    of_cuda = seen(smi=None, local={f"{cuda.LOCAL}/cuda-13.0": WHOLE})
    now = {**machine(builds={BUILDS: {}}), **of_cuda, "system": {**MACHINE, "kernel": ""}}
    now["packages"] = {**of_cuda["packages"], **dict.fromkeys(rules.every_package(), "1")}
    (task,) = converge(llama_cpp.build, wanted, seen=now).sent
    assert task["argument"]["work_bytes"] == rules.CUDA_WORK_BYTES


# What brings it


@resource(lambda settings: cuda.looks(settings))
def toolkit(now: Any, settings: Any) -> Iterator[Any]:
    """What a build does first."""
    yield from cuda.toolkit_commands(now, settings)


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of test_openpgp.py in the place of NVIDIA's, whose text is not ours to ship."""
    pins = cuda.pins()
    ours = lock.Cuda(apt=pins.apt.model_copy(update={"key": FINGERPRINT}), wheels=pins.wheels)
    monkeypatch.setattr(cuda, "pins", lambda: ours)


def test_packages_are_brought_with_key_and_preferences(converge: Converge, trusted: None, tmp_path: Path) -> None:
    key = tmp_path / "key.asc"
    key.write_text(TEXT)
    got = converge(toolkit, builder(key_file=str(key)), seen=seen(smi=None))
    assert got.commands == [
        f"python3 -I -S - # apply {cuda.KEYRING} {cuda.PREFERENCES}",
        "python3 -I -S - # follow wsllama-cuda_apt",
    ]
    argument = got.sent[1]["argument"]
    assert argument["packages"] == PINNED
    assert argument["uri"] == "https://developer.download.nvidia.com/compute/cuda/repos/wsl-ubuntu/x86_64/"
    assert argument["compiler"] == "/usr/local/cuda-13.0/bin/nvcc"
    assert f"\nURIs: {argument['uri']}\nSuites: /\n" in argument["text"]
    assert argument["text"].endswith(f"Signed-By: {cuda.KEYRING}\n")


def test_apts_files_that_somebody_edited_are_named(converge: Converge, trusted: None, tmp_path: Path) -> None:
    """What the deploy sent is as it should be, whatever else is not."""
    key = tmp_path / "key.asc"
    key.write_text(TEXT)
    wanted = builder(key_file=str(key))
    files, task = converge(toolkit, wanted, seen=seen(smi=None)).sent
    preferences = base64.b64decode(next(one["data"] for one in files if one["path"] == cuda.PREFERENCES))
    sums = [{"sha256": hashlib.sha256(text).hexdigest()} for text in (preferences, task["argument"]["text"].encode())]
    there: dict[str, Any] = {"packages": PINNED, "local": {f"{cuda.LOCAL}/cuda-13.0": WHOLE}, "smi": None}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, []),
        ({cuda.PREFERENCES: sums[0], cuda.SOURCES: sums[1]}, []),
        ({cuda.PREFERENCES: sums[1], cuda.SOURCES: sums[1]}, [cuda.PREFERENCES]),
        ({cuda.PREFERENCES: sums[0], cuda.SOURCES: sums[0]}, [cuda.SOURCES]),
        ({cuda.SOURCES: sums[1]}, [cuda.PREFERENCES]),
    ]
    for now, named in cases:
        assert cuda.edited(seen(**there, **now), wanted) == named
    assert cuda.edited(seen(**there), settings()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT, f"its fingerprint is {FINGERPRINT} instead of EB693B3035CD5710E231E123A4B469963BF863CC"),
        ("<html>Sign in</html>", "is not NVIDIA's signing key: it holds 0 blocks"),
        (None, "cannot be had from"),
    ],
)
def test_another_key_is_refused_and_nothing_written(converge: Converge, tmp_path: Path, text: str | None, said: str) -> None:
    key = tmp_path / "key.asc"
    if text is not None:
        key.write_text(text)
    got = converge(toolkit, builder(key_file=str(key)), seen=seen(smi=None))
    assert got.failed
    assert got.commands == []
    assert said in got.log
    assert str(key) in got.log


def test_a_repository_that_cannot_be_reached(converge: Converge) -> None:
    got = converge(toolkit, builder(repository="http://127.0.0.1:9/cuda"), seen=seen(smi=None))
    assert got.failed
    assert got.commands == []
    assert "cannot be had from http://127.0.0.1:9/cuda/3bf863cc.pub (" in got.log
    assert "set cuda.key_file" in got.log


def test_a_toolkit_that_is_there_costs_nothing(converge: Converge) -> None:
    got = converge(toolkit, builder(), seen=seen(smi=None, local={"/usr/local/cuda-13.0": WHOLE}))
    assert (got.probes, got.commands, got.changed) == (1, [], False)


def test_preferences_forbid_what_the_guards_refuse() -> None:
    text = render("cuda.preferences.j2", forbidden=cuda.FORBIDDEN, pins={"cuda-nvcc-13-0": "13.0.88-1"})
    stanzas = [dict(line.split(": ", 1) for line in s.splitlines() if line[0] != "#") for s in text.strip().split("\n\n")]
    assert stanzas[-1] == {"Package": "cuda-nvcc-13-0", "Pin": "version 13.0.88-1", "Pin-Priority": "1001"}
    assert (stanzas[0]["Pin"], stanzas[0]["Pin-Priority"]) == ("version *", "-1")
    refused = stanzas[0]["Package"].split(" ")
    driver = [
        "nvidia-driver",
        "nvidia-driver-580",
        "nvidia-driver-580-open",
        "nvidia-driver-libs",
        "nvidia-utils-535",
        "nvidia-dkms-550-open",
        "nvidia-kernel-dkms",
        "nvidia-headless-no-dkms-535",
        "nvidia-firmware-580-580.65.06",
        "nvidia-open",
        "nvidia-open-580",
        "nvidia-smi",
        "nvidia-340",
        "nvidia-fabricmanager-570",
        "libnvidia-compute-535",
        "libnvidia-gl-535",
        "libnvidia-ml1",
        "libnvidia-cfg1-535",
        "libnvidia-common-580",
        "libnvidia-eglcore",
        "libnvidia-encode-535",
        "libnvidia-extra-535",
        "libnvidia-ptxjitcompiler1",
        "libcuda1",
        "libcuda1-340",
        "libnvcuvid1",
        "cuda-drivers",
        "cuda-drivers-580",
        "xserver-xorg-video-nvidia-535",
        "linux-modules-nvidia-580-generic",
    ]
    others = [
        "cuda-toolkit-13-0",
        "cuda-nvcc-13-0",
        "cuda-13-0",
        "cuda",
        "libcublas-13-0",
        "libnvvm-13-0",
        "nvidia-container-toolkit",
        "nvidia-docker2",
        "nvidia-cuda-dev",
        "nvidia-settings",
        "nvidia-modprobe",
        "libnvidia-container1",
        "libnvidia-container-tools",
        "libnvidia-egl-wayland1",
        "nvidia-cuda-toolkit",
        "libnvidia-ml-dev",
        "nvidia-prime",
        "linux-image-generic",
        "libcudart12",
    ]
    assert guest.driver_packages([*driver, *others]) == sorted(driver)
    assert [name for name in [*driver, *others] if any(fnmatchcase(name, p) for p in refused)] == driver


def test_wheels_are_sent_and_laid_out(converge: Converge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With small wheels in the cache of this machine, so that nothing is fetched."""
    cache = tmp_path / "wsllama" / "wheels"
    cache.mkdir(parents=True)
    small = {}
    for name, wheel in cuda.pins().wheels["13.0"].packages.items():
        (cache / wheel.file).write_text(name)
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        small[name] = wheel.model_copy(update={"sha256": sha256, "size": len(name)})
    ours = lock.Cuda(apt=cuda.pins().apt, wheels={"13.0": lock.CudaWheels(toolkit="13.0.3", packages=small)})
    monkeypatch.setattr(cuda, "pins", lambda: ours)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr(transfer, "send_file", lambda host, source, target, **more: sent.append((source, target, more)))
    got = converge(toolkit, builder(provider="wheels"), seen=seen(smi=None))
    assert not got.failed, got.log
    assert [(source.name, target, more["sha256"]) for source, target, more in sent] == [
        (wheel.file, f"{cuda.WHEELS}/{wheel.file}", wheel.sha256) for wheel in small.values()
    ]
    assert got.commands == ["python3 -I -S - # follow wsllama-toolkit"]
    argument = got.sent[0]["argument"]
    assert (argument["release"], len(argument["wheels"])) == ("13.0", len(small))
