"""The program that lays wheels out as a toolkit, run as a host runs it, on small wheels of NVIDIA's shape."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.made_wheels import NVCC, release, wheel
from wsllama import wheels
from wsllama.host import toolkit as program
from wsllama.lock import CudaWheels


class Host:
    """The folders of a host, with the wheels on it, and the argument that a deploy would give."""

    def __init__(self, root: Path) -> None:
        self.sent, self.toolkits = root / "sent", root / "toolkits"
        self.pin = release(self.sent)

    def argument(self, pin: CudaWheels | None = None, **changed: Any) -> dict[str, Any]:
        return {**wheels.for_host("13.0", pin or self.pin, str(self.sent)), "toolkits": str(self.toolkits), **changed}

    def with_(self, name: str, files: dict[str, str], links: tuple[str, ...] = ()) -> CudaWheels:
        """The release with one wheel more or another one."""
        packages = {**self.pin.packages, name: wheel(self.sent, name, files, links)}
        return CudaWheels(toolkit="13.0.1", packages=packages)

    def run(self, pin: CudaWheels | None = None, **changed: Any) -> "subprocess.CompletedProcess[str]":
        argument = json.dumps(self.argument(pin, **changed))
        text = f"{Path(program.__file__).read_text(encoding='utf-8')}\nmain(json.loads({argument!r}))\n"
        return subprocess.run([sys.executable, "-I", "-S", "-"], input=text, capture_output=True, text=True, timeout=900)

    def make(self, pin: CudaWheels | None = None) -> dict[str, Any]:
        ran = self.run(pin)
        assert ran.returncode == 0, ran.stderr
        result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return result

    def refuse(self, pin: CudaWheels | None = None, **changed: Any) -> str:
        """Run what must fail: one sentence, status 1, nothing half done is left."""
        ran = self.run(pin, **changed)
        assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran.stderr
        assert "Traceback" not in ran.stderr
        assert [p.name for p in self.toolkits.iterdir()] == ["lock"]
        return ran.stderr


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_wheels_become_a_toolkit(host: Host) -> None:
    made = host.make()
    root = host.toolkits / wheels.toolkit_name("13.0", host.pin)
    assert made == {
        "name": root.name,
        "root": str(root),
        "changed": True,
        "version": "V13.0.88",
        "bytes": sum(
            p.lstat().st_size for p in root.rglob("*") if p.is_file() and p.name != "toolkit.json" and "lib64" not in p.parts
        ),
    }
    assert sorted(p.name for p in root.iterdir()) == ["bin", "include", "lib", "lib64", "nvvm", "toolkit.json"]
    assert os.readlink(root / "lib64") == "lib"
    assert (root / "lib64" / "libcudart.so").read_text() == "library\n"
    assert (root / "bin" / "nvcc").stat().st_mode & 0o777 == 0o755  # the wheels let only their owner run it
    assert (root / "bin" / "nvcc.profile").stat().st_mode & 0o777 == 0o644
    assert sorted(p.name for p in host.toolkits.iterdir()) == [root.name, "lock"]


def test_a_whole_one_is_left_alone(host: Host) -> None:
    root = Path(host.make()["root"])
    before = root.stat().st_ino
    for path in host.sent.iterdir():
        path.unlink()
    assert host.make()["changed"] is False
    assert root.stat().st_ino == before


@pytest.mark.parametrize("damage", ["cut", "missing", "record", "link", "more", "others"])
def test_a_damaged_one_is_made_again(host: Host, damage: str) -> None:
    root = Path(host.make()["root"])
    if damage == "cut":
        (root / "bin" / "nvcc").write_text("")
    elif damage == "missing":
        (root / "include" / "cuda.h").unlink()
    elif damage == "record":
        (root / "toolkit.json").write_text('{"release": ')
    elif damage == "link":
        (root / "lib" / "libcudart.so").unlink()
    elif damage == "others":
        text = (root / "toolkit.json").read_text()
        (root / "toolkit.json").write_text(text.replace(host.pin.packages["nvidia-nvvm"].sha256, "0" * 64))
    else:
        (root / "lib" / "libother.so").touch()
    assert host.make()["changed"] is True
    assert host.make()["changed"] is False


def test_one_changed_byte_in_a_wheel_is_refused(host: Host) -> None:
    path = host.sent / host.pin.packages["nvidia-nvvm"].file
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    assert f"{path} has sha256 " in (said := host.refuse())
    assert f" instead of {host.pin.packages['nvidia-nvvm'].sha256}; send it again" in said


@pytest.mark.parametrize("name", ["nvidia/cu13/../../evil", "/etc/evil", "nvidia/cu13//evil"])
def test_a_name_that_leads_out_is_refused(host: Host, name: str) -> None:
    pin = host.with_("nvidia-evil", {name: "x"})
    assert f"holds {name!r}, which is no plain file inside it" in host.refuse(pin)
    assert not list(host.toolkits.parent.rglob("evil"))


def test_a_link_in_a_wheel_is_refused(host: Host) -> None:
    pin = host.with_("nvidia-evil", {"nvidia/cu13/lib/libx.so.1": "/etc/passwd"}, links=("nvidia/cu13/lib/libx.so.1",))
    assert "which is no plain file inside it" in host.refuse(pin)


def test_what_is_no_wheel_is_refused(host: Host) -> None:
    path = host.sent / host.pin.packages["nvidia-nvvm"].file
    path.write_bytes(b"no zip")
    sha256 = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout[:64]
    data = host.pin.model_dump()
    data["packages"]["nvidia-nvvm"]["sha256"] = sha256
    assert f"{path} cannot be read as a wheel" in host.refuse(CudaWheels.model_validate(data))


@pytest.mark.parametrize(
    ("nvcc", "said"),
    [
        (NVCC.replace("13.0", "13.2"), "does not name release 13.0 (status 0): Cuda compilation tools, release 13.2"),
        (NVCC + "exit 3\n", "does not name release 13.0 (status 3): Cuda compilation tools, release 13.0"),
        ("#!/bin/sh\necho broken\n", "does not name release 13.0 (status 0): broken"),
    ],
)
def test_a_compiler_that_does_not_name_the_release_is_refused(host: Host, nvcc: str, said: str) -> None:
    assert said in host.refuse(host.with_("nvidia-cuda-nvcc", {"nvidia/cu13/bin/nvcc": nvcc}))


def test_wheels_without_a_compiler_or_a_library_are_refused(host: Host) -> None:
    packages = dict(host.pin.packages)
    del packages["nvidia-cuda-nvcc"]
    assert "No such file or directory" in host.refuse(CudaWheels(toolkit="13.0.1", packages=packages))
    del packages["nvidia-cuda-runtime"]
    assert "hold no lib" in host.refuse(CudaWheels(toolkit="13.0.1", packages=packages))


def test_too_little_disk_is_said_with_the_sizes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SPARE", 10**15)
    with pytest.raises(SystemExit, match=r"GB of disk space left and the toolkit needs 1000000\.0 GB; make room there"):
        program.main(host.argument())
    assert [p.name for p in host.toolkits.iterdir()] == ["lock"]


def test_what_a_killed_run_left_is_cleared(host: Host) -> None:
    half = host.toolkits / f".partial-{wheels.toolkit_name('13.0', host.pin)}"
    (half / "bin").mkdir(parents=True)
    (half / "bin" / "old").touch()
    root = Path(host.make()["root"])
    assert not (root / "bin" / "old").exists()
    assert not half.exists()
