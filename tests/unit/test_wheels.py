"""The wheels are made here and fetched with the real pip from a folder; the real ones are fetched in the lab."""

import json
import os
from pathlib import Path

import pytest

from tests.unit.made_wheels import PACKAGES, release
from wsllama import lock, wheels
from wsllama.index import SourceError
from wsllama.lock import CudaWheels

CUDA = lock.load(Path(__file__).parents[2] / "wsllama.lock").cuda
LOCKED = CUDA.wheels


@pytest.fixture
def made(tmp_path: Path) -> CudaWheels:
    return release(tmp_path / "index")


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index"), "PIP_CONFIG_FILE": os.devnull}


NOWHERE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "/nowhere"}


def test_they_are_fetched_once_and_kept_under_their_names(made: CudaWheels, offline: dict[str, str], tmp_path: Path) -> None:
    got = wheels.fetch(made, cache=tmp_path / "cache", environment=offline)
    assert set(got) == set(PACKAGES)
    for name, path in got.items():
        assert path.read_bytes() == (tmp_path / "index" / made.packages[name].file).read_bytes()
    assert wheels.fetch(made, cache=tmp_path / "cache", environment=NOWHERE) == got
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == sorted(
        ["digests.json", "lock", *(p.name for p in got.values())]
    )


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_only_what_is_damaged_is_fetched_again(made: CudaWheels, offline: dict[str, str], tmp_path: Path, damage: str) -> None:
    got = wheels.fetch(made, cache=tmp_path / "cache", environment=offline)
    bad, *others = got.values()
    whole, before = bad.read_bytes(), [p.stat().st_ino for p in others]
    if damage == "missing":
        bad.unlink()
    else:
        bad.write_bytes(whole[:-1] if damage == "cut" else whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    wheels.fetch(made, cache=tmp_path / "cache", environment=offline)
    assert bad.read_bytes() == whole
    assert [p.stat().st_ino for p in others] == before


def test_another_sha256_is_refused_and_nothing_is_kept(made: CudaWheels, offline: dict[str, str], tmp_path: Path) -> None:
    data = made.model_dump()
    data["packages"]["nvidia-nvvm"]["sha256"] = "0" * 64
    with pytest.raises(SourceError, match=r"nvidia-nvvm 13\.0\.1 with another sha256 than wsllama.lock has"):
        wheels.fetch(CudaWheels.model_validate(data), cache=tmp_path / "cache", environment=offline)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["lock"]


def test_a_file_of_another_name_is_refused(made: CudaWheels, offline: dict[str, str], tmp_path: Path) -> None:
    data = made.model_dump()
    data["packages"]["nvidia-nvvm"]["file"] = "nvidia_nvvm-13.0.1-py3-none-manylinux2010_x86_64.whl"
    with pytest.raises(SourceError, match=r"brought nvidia-nvvm 13\.0\.1 under another name than nvidia_nvvm-"):
        wheels.fetch(CudaWheels.model_validate(data), cache=tmp_path / "cache", environment=offline)


def test_without_a_network_one_sentence_says_so(made: CudaWheels, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="the Python index cannot be reached for nvidia-cuda-nvcc"):
        wheels.fetch(made, cache=tmp_path / "cache", environment=NOWHERE)
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="cannot keep the wheels in"):
        wheels.fetch(made, cache=tmp_path / "file", environment=NOWHERE)


def test_a_release_without_wheels_is_refused_with_those_that_have_some() -> None:
    assert wheels.pinned(CUDA, "13.0") is LOCKED["13.0"]
    with pytest.raises(SourceError, match=r"of CUDA 13\.0 and 13\.3, and not of 13\.4; set cuda\.version to one of them"):
        wheels.pinned(CUDA, "13.4")


def test_the_name_of_a_toolkit_stands_for_its_wheels() -> None:
    names = {release: wheels.toolkit_name(release, pin) for release, pin in LOCKED.items()}
    assert all(name.startswith(f"cuda-{release}-") for release, name in names.items())
    pin = LOCKED["13.0"]
    data = pin.model_dump()
    data["packages"]["nvidia-nvvm"]["sha256"] = "0" * 64
    assert wheels.toolkit_name("13.0", CudaWheels.model_validate(data)) != names["13.0"]
    backwards = CudaWheels(toolkit=pin.toolkit, packages=dict(reversed(pin.packages.items())))
    assert wheels.toolkit_name("13.0", backwards) == names["13.0"]


def test_what_a_host_gets_names_files_and_their_sha256() -> None:
    argument = wheels.for_host("13.0", LOCKED["13.0"], "/var/cache/x")
    assert json.loads(json.dumps(argument)) == argument
    assert {w["path"] for w in argument["wheels"]} == {f"/var/cache/x/{w.file}" for w in LOCKED["13.0"].packages.values()}


def test_every_locked_release_is_one_that_has_a_compiler_and_does_not_miscompile() -> None:
    """12.x has no nvcc on the index, 13.2 miscompiles; crt, nvcc and nvvm are parts of one compiler."""
    assert set(LOCKED) == {"13.0", "13.3"}
    for release_, pin in LOCKED.items():
        assert set(pin.packages) == {
            "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl", "nvidia-cublas",
        }  # fmt: skip
        compiler = {pin.packages[f"nvidia-{part}"].version for part in ("cuda-nvcc", "cuda-crt", "nvvm")}
        assert len(compiler) == 1
        assert compiler.pop().startswith(release_ + ".")
        assert pin.versions["nvidia-nvvm"].endswith(pin.packages["nvidia-nvvm"].sha256)
        assert 500_000_000 < pin.size < 600_000_000
