"""The choice of a CUDA toolkit over the whole grid, against tables written down here from the releases' documents."""

from __future__ import annotations

import itertools
import json

import pytest
from typer.testing import CliRunner

from wsllama.cli import app
from wsllama.domain import build, toolkit
from wsllama.domain.toolkit import Choice, choose
from wsllama.operations import cuda as cuda_operations

# --- what is expected, independently of the code's own tables

ALL = ["12.4", "12.5", "12.6", "12.8", "12.9", "13.0", "13.1", "13.2", "13.3", "13.4", "13.5"]
THIRTEEN = ALL[5:]

# Compilers and C libraries: 22.04 GCC 11, glibc 2.35; 24.04 13, 2.39; 26.04 15.2, 2.43; Debian 12 12, 2.36; 13 14, 2.41.
# nvcc up to 12.9 clashes with glibc 2.41 and newer, 13.0 and 13.1 with 2.42 and newer; 13.2 miscompiles.
ON_DISTRO = {
    "ubuntu-22.04": "12.4 12.5 12.6 12.8 12.9 13.0 13.1 13.3 13.4 13.5",
    "ubuntu-24.04": "12.4 12.5 12.6 12.8 12.9 13.0 13.1 13.3 13.4 13.5",
    "ubuntu-26.04": "13.3 13.4 13.5",
    "debian-12": "12.4 12.5 12.6 12.8 12.9 13.0 13.1 13.3 13.4 13.5",
    "debian-13": "13.0 13.1 13.3 13.4 13.5",
}
FOR_GPUS = {
    "7.0": "12.4 12.5 12.6 12.8 12.9",
    "7.5": "12.4 12.5 12.6 12.8 12.9 13.0 13.1 13.2 13.3 13.4 13.5",
    "8.6": "12.4 12.5 12.6 12.8 12.9 13.0 13.1 13.2 13.3 13.4 13.5",
    "8.9": "12.4 12.5 12.6 12.8 12.9 13.0 13.1 13.2 13.3 13.4 13.5",
    "9.0": "12.4 12.5 12.6 12.8 12.9 13.0 13.1 13.2 13.3 13.4 13.5",
    "12.0": "12.8 12.9 13.0 13.1 13.2 13.3 13.4 13.5",
    "8.9 12.0": "12.8 12.9 13.0 13.1 13.2 13.3 13.4 13.5",
    "7.0 8.6": "12.4 12.5 12.6 12.8 12.9",
    "7.0 12.0": "12.8 12.9",
    "12.1": "12.9 13.0 13.1 13.2 13.3 13.4 13.5",
}
WITH_DRIVER = {
    "516.94": "",
    "527.41": "",
    "528.33": "12.4 12.5 12.6 12.8 12.9",
    "551.61": "12.4 12.5 12.6 12.8 12.9",
    "576.02": "12.4 12.5 12.6 12.8 12.9",
    "579.99": "12.4 12.5 12.6 12.8 12.9",
    "580.88": " ".join(ALL),
    "581.42": " ".join(ALL),
    "610.74": " ".join(ALL),
}
GCC = {"ubuntu-22.04": 11, "ubuntu-24.04": 13, "ubuntu-26.04": 15, "debian-12": 12, "debian-13": 14}
ARCHITECTURE = {"7.0": "70", "7.5": "75", "8.6": "86", "8.9": "89", "9.0": "90", "12.0": "120a", "12.1": "121a"}
GRID = list(itertools.product(ON_DISTRO, FOR_GPUS, WITH_DRIVER))


def fits(distro: str, gpus: str, driver: str) -> list[str]:
    return [c for c in ALL if all(c in t.split() for t in (ON_DISTRO[distro], FOR_GPUS[gpus], WITH_DRIVER[driver]))]


@pytest.mark.parametrize("distro", ON_DISTRO)
@pytest.mark.parametrize("gpus", FOR_GPUS)
def test_every_release_that_is_asked_for(distro: str, gpus: str) -> None:
    for driver, cuda, provider in itertools.product(WITH_DRIVER, ALL, ("apt", "wheels")):
        choice = choose(distro, driver, gpus.split(), cuda, provider)
        wanted = cuda in fits(distro, gpus, driver) and (provider == "apt" or cuda in THIRTEEN)
        assert choice.ok == wanted, (driver, cuda, provider, choice.refusals)
        check(choice, distro, gpus, driver)
        if wanted:
            assert (choice.cuda, choice.provider) == (cuda, provider)


@pytest.mark.parametrize("distro", ON_DISTRO)
@pytest.mark.parametrize("gpus", FOR_GPUS)
def test_every_choice_that_is_left_to_us(distro: str, gpus: str) -> None:
    for driver in WITH_DRIVER:
        choice = choose(distro, driver, gpus.split())
        possible = fits(distro, gpus, driver)
        assert choice.ok == bool(possible), (driver, choice.refusals)
        assert choice.cuda in possible or not possible
        assert choice.provider in ("apt", None)
        check(choice, distro, gpus, driver)
        wheels = choose(distro, driver, gpus.split(), provider="wheels")
        assert wheels.ok == bool(set(possible) & set(THIRTEEN)), (driver, wheels.refusals)
        check(wheels, distro, gpus, driver)


def check(choice: Choice, distro: str, gpus: str, driver: str) -> None:
    """What holds for each answer of the grid."""
    if choice.ok:
        assert choice.architectures == tuple(ARCHITECTURE[g] for g in sorted(gpus.split(), key=float))
        assert choice.cmake["CMAKE_CUDA_ARCHITECTURES"] == ";".join(choice.architectures)
        assert choice.host_compiler == f"g++-{GCC[distro]}"
        assert choice.host_compiler in choice.build_packages
        assert not choice.refusals
        assert choice.reasons
        said = json.dumps([choice.packages, choice.build_packages, choice.architectures, choice.cmake])
        for never in ("native", "LLAMA_CUDA", "LLAMA_CUBLAS", "LLAMA_CURL", "DMMV", "FORCE_CUBLAS", "FA_ALL_QUANTS", "driver"):
            assert never not in said
        return
    assert choice.refusals
    assert choice.nearest is not None, "every combination of the grid has one that works somewhere"
    near = choice.nearest
    again = choose(near["distro"], near["driver"], gpus.split(), near["cuda"], near["provider"])
    assert again.ok, (choice.refusals, again.refusals)
    assert near["cuda"] in choice.refusals[-1]
    assert choice.refusals[-1].startswith("nearest that works: ")
    if fits(distro, gpus, driver):
        assert (near["distro"], near["driver"]) == (distro, driver), "where the host itself can be served, it is"


# --- what is chosen


@pytest.mark.parametrize(
    ("distro", "driver", "gpus", "cuda"),
    [
        ("ubuntu-24.04", "581.42", "8.9", "13.0"),
        ("ubuntu-22.04", "581.42", "8.6", "13.0"),
        ("ubuntu-26.04", "581.42", "8.9", "13.3"),
        ("debian-13", "581.42", "8.9", "13.0"),
        ("ubuntu-24.04", "576.02", "8.9", "12.8"),
        ("ubuntu-24.04", "528.33", "12.0", "12.8"),
        ("ubuntu-24.04", "610.74", "7.0", "12.8"),
        ("ubuntu-24.04", "610.74", "7.0 12.0", "12.8"),
        ("ubuntu-24.04", "576.02", "12.1", "12.9"),
        ("debian-12", "581.42", "12.0", "13.0"),
    ],
)
def test_preferred(distro: str, driver: str, gpus: str, cuda: str) -> None:
    assert choose(distro, driver, gpus.split()).cuda == cuda


def test_by_apt() -> None:
    choice = choose("ubuntu-24.04", "581.42", ["8.9"])
    assert choice.packages == ("cuda-nvcc-13-0", "cuda-cudart-dev-13-0", "libcublas-dev-13-0")
    assert choice.root == "/usr/local/cuda-13.0"
    assert choice.cmake == {
        "GGML_CUDA": "ON",
        "GGML_CUDA_FA": "ON",
        "GGML_CUDA_FA_QUANTS": "q4_0-q4_0;q8_0-q8_0;f16-f16;bf16-bf16",
        "GGML_CUDA_GRAPHS": "ON",
        "GGML_CUDA_NCCL": "OFF",
        "CMAKE_CUDA_ARCHITECTURES": "89",
        "CMAKE_CUDA_COMPILER": "/usr/local/cuda-13.0/bin/nvcc",
        "CMAKE_CUDA_HOST_COMPILER": "/usr/bin/g++-13",
    }
    assert set(build.packages("ubuntu", "24.04").build) < set(choice.build_packages)
    assert "libssl-dev" in choice.build_packages  # 71


def test_by_wheels() -> None:
    choice = choose("debian-12", "581.42", ["8.9"], "13.0", "wheels")
    assert choice.packages == (
        "nvidia-cublas",
        "nvidia-cuda-cccl",
        "nvidia-cuda-crt",
        "nvidia-cuda-nvcc",
        "nvidia-cuda-runtime",
        "nvidia-nvvm",
    )
    assert choice.root is None
    assert "CMAKE_CUDA_COMPILER" not in choice.cmake, "the folder is known where they are laid out"
    assert choice.cmake["GGML_CUDA_NO_VMM"] == "ON", "they hold no stub of libcuda"


def test_the_distributions_nvcc_is_stepped_around() -> None:  # 62
    assert choose("ubuntu-22.04", "576.02", ["8.9"], "12.8").cmake["CMAKE_CUDA_COMPILER"] == "/usr/local/cuda-12.8/bin/nvcc"


def test_several_gpus_in_any_order_and_twice() -> None:
    choice = choose("ubuntu-24.04", "576.02", ["12.0", "8.6", "8.9", "8.6"])
    assert choice.cmake["CMAKE_CUDA_ARCHITECTURES"] == "86;89;120a"


@pytest.mark.parametrize(
    ("capability", "suffix", "name"),
    [
        ("8.9", "", "89"),
        ("8.9", "-virtual", "89-virtual"),
        ("8.6", "-real", "86-real"),
        ("12.0", "", "120a"),
        ("12.1", "-real", "121a-real"),
        ("10.0", "", "100"),
    ],
)
def test_architectures(capability: str, suffix: toolkit.Suffix, name: str) -> None:
    assert toolkit.architecture(capability, suffix) == name
    assert choose("ubuntu-24.04", "581.42", [capability], suffix=suffix).architectures == (name,)


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        ("86-real", "8.9", True),  # 61: 8.9 runs what was made for 8.6
        ("89", "8.6", False),
        ("89", "12.0", False),  # 61
        ("120a", "12.0", True),
        ("120a", "12.1", False),
        ("121a-real", "12.0", False),
        ("75;89;120a", "12.0", True),
        ("75;120a", "8.9", False),
        ("90", "9.0", True),
        ("100", "10.3", True),
        ("89-virtual", "8.9", True),
        ("", "8.9", False),
    ],
)
def test_whether_a_build_runs_on_another_gpu(built: str, capability: str, runs: bool) -> None:
    assert toolkit.covers(built.split(";"), capability) == runs


# --- conflicts, by their sentence


def refusals(distro: str, driver: str | None, gpus: str, cuda: str | None = None, provider: str | None = None) -> str:
    choice = choose(distro, driver, gpus.split(), cuda, provider)
    assert not choice.ok
    return "\n".join(choice.refusals)


def test_gcc_and_glibc() -> None:  # 65
    assert "takes GCC 14 at most, and this is GCC 15" in refusals("ubuntu-26.04", "581.42", "8.9", "12.8")
    assert [s[:9] for s in toolkit.compiler_conflicts("12.8", 15, (2, 43))] == ["CUDA 12.8", "CUDA 12.8"]
    (sentence,) = toolkit.compiler_conflicts("12.8", 14, (2, 43))  # an older compiler does not cure it
    assert "glibc 2.43, whatever the compiler" in sentence
    assert toolkit.compiler_conflicts("13.3", 15, (2, 43)) == []


@pytest.mark.parametrize(
    ("cuda", "glibc", "clashes"),
    [
        ("12.9", (2, 40), False),
        ("12.9", (2, 41), True),  # 67
        ("12.4", (2, 41), True),
        ("13.0", (2, 41), False),
        ("13.1", (2, 42), True),
        ("13.2", (2, 43), False),
        ("13.5", (2, 43), False),
    ],
)
def test_glibc(cuda: str, glibc: tuple[int, int], clashes: bool) -> None:
    assert bool(toolkit.compiler_conflicts(cuda, 12, glibc)) == clashes


@pytest.mark.parametrize(
    ("cuda", "gcc"),
    [("12.4", 13), ("12.6", 13), ("12.8", 14), ("12.9", 14), ("13.0", 15), ("13.3", 15), ("13.4", 16), ("13.5", 16)],
)
def test_newest_gcc(cuda: str, gcc: int) -> None:
    assert toolkit.compiler_conflicts(cuda, gcc, (2, 35)) == []
    assert len(toolkit.compiler_conflicts(cuda, gcc + 1, (2, 35))) == 1


def test_a_release_that_miscompiles() -> None:  # 68
    said = refusals("ubuntu-24.04", "610.74", "8.9", "13.2")
    assert "CUDA 13.2 miscompiles llama.cpp's kernels" in said
    assert "nearest that works: CUDA 13.3 by apt" in said
    choice = choose("ubuntu-24.04", "610.74", ["8.9"], "13.2", allow_miscompiling=True)
    assert choice.ok
    assert choice.cmake["CMAKE_CUDA_FLAGS"] == "-Xcicc -O1"
    assert any("13.2 miscompiles" in w for w in choice.warnings)
    assert "CMAKE_CUDA_FLAGS" not in choose("ubuntu-24.04", "610.74", ["8.9"], "13.3", allow_miscompiling=True).cmake


def test_drivers() -> None:  # 52
    choice = choose("ubuntu-24.04", "528.33", ["8.9"], "12.4")
    assert choice.ok
    assert "can't compile PTX" in choice.warnings[0]
    assert choose("ubuntu-24.04", "551.61", ["8.9"], "12.4").warnings == ()
    assert "CUDA 12.4 needs Windows driver 528.33 or newer, and this is 527.41" in refusals(
        "ubuntu-24.04", "527.41", "8.9", "12.4"
    )
    assert "528.33 or newer, and this is 516.94" in refusals("ubuntu-24.04", "516.94", "8.9", "12.4")
    said = refusals("ubuntu-24.04", "576.02", "8.9", "13.0")
    assert "CUDA 13.0 needs Windows driver 580 or newer, and this is 576.02" in said
    assert "nearest that works: CUDA 12.9 by apt" in said


@pytest.mark.parametrize(
    ("cuda", "own"), [("12.4", "551.61"), ("12.5", "555.85"), ("12.6", "560.76"), ("12.8", "570.65"), ("12.9", "576.02")]
)
def test_the_drivers_of_the_releases_themselves(cuda: str, own: str) -> None:
    older = f"{int(own[:3]) - 1}.99"
    assert choose("ubuntu-22.04", own, ["8.6"], cuda).warnings == ()
    assert own in choose("ubuntu-22.04", older, ["8.6"], cuda).warnings[0]


def test_the_long_form_of_a_driver() -> None:
    assert choose("ubuntu-24.04", "32.0.15.7602", ["8.9"]).cuda == "12.8"  # 576.02
    assert "this is 576.02" in refusals("ubuntu-24.04", "32.0.15.7602", "8.9", "13.0")
    assert choose("ubuntu-24.04", "32.0.15.8142", ["8.9"]).cuda == "13.0"


def test_a_driver_that_is_not_known() -> None:
    choice = choose("debian-12", None, ["8.9"], "13.0", "wheels")
    assert choice.ok
    assert "isn't known" in choice.warnings[0]


def test_capabilities() -> None:
    assert "compute capability 12.0 needs CUDA 12.8 or newer, and this is 12.6" in refusals(
        "ubuntu-24.04", "581.42", "12.0", "12.6"
    )
    assert "CUDA 13.0 compiles for compute capability 7.5 and newer, and this is 7.0" in refusals(
        "ubuntu-24.04", "581.42", "7.0 8.9", "13.0"
    )
    said = refusals("ubuntu-26.04", "581.42", "7.0")
    assert "nearest that works: CUDA 12.8 by apt on ubuntu-24.04" in said


@pytest.mark.parametrize(
    ("driver", "gpus", "cuda"),
    [
        ("581.42", "8.9", "12.8"),
        ("576.02", "8.9", "13.0"),
        ("576.02", "8.9", None),
        ("581.42", "7.0", "13.0"),
        ("581.42", "7.0", None),
    ],
)
def test_wheels_that_cannot_be_name_apt(driver: str, gpus: str, cuda: str | None) -> None:
    said = refusals("ubuntu-24.04", driver, gpus, cuda, "wheels")
    assert "use provider apt" in said.splitlines()[0]
    assert "by apt" in said.splitlines()[-1]


def test_both_kinds_of_conflict_are_named_when_nothing_fits() -> None:
    said = refusals("ubuntu-26.04", "576.02", "8.9")
    assert "CUDA 13.3 needs Windows driver 580" in said
    assert "CUDA 12.8 doesn't compile against glibc 2.43" in said
    assert said.endswith("nearest that works: CUDA 13.3 by apt with Windows driver 580.00 or newer")


def test_mind_debian_with_a_repository_for_ubuntu() -> None:
    assert any("on Debian prefer wheels" in w for w in choose("debian-12", "581.42", ["8.9"]).warnings)
    assert choose("debian-12", "581.42", ["8.9"], provider="wheels").warnings == ()


def test_old_pins_only_are_told_to_do_without_curl() -> None:  # 70
    assert choose("ubuntu-24.04", "581.42", ["8.9"], build_number=7700).cmake["LLAMA_CURL"] == "OFF"
    assert "LLAMA_CURL" not in choose("ubuntu-24.04", "581.42", ["8.9"], build_number=7736).cmake


# --- input that is wrong


@pytest.mark.parametrize(
    ("distro", "driver", "gpus", "cuda", "provider", "said"),
    [
        ("ubuntu-20.04", "581.42", "8.9", None, None, "ubuntu-20.04 is not supported for CUDA: use one of ubuntu-22.04"),
        ("fedora-42", "581.42", "8.9", None, None, "fedora-42 is not supported"),
        ("ubuntu-24.04", "580.65.06", "8.9", None, None, "'580.65.06' is no Windows driver version"),
        ("ubuntu-24.04", "new", "8.9", None, None, "'new' is no Windows driver version"),
        ("ubuntu-24.04", "", "8.9", None, None, "'' is no Windows driver version"),
        ("ubuntu-24.04", "581.42", "", None, None, "no GPU is named"),
        ("ubuntu-24.04", "581.42", "No devices were found", None, None, "'No' is no compute capability"),  # 64
        ("ubuntu-24.04", "581.42", "[N/A]", None, None, "'[N/A]' is no compute capability"),
        ("ubuntu-24.04", "581.42", "89", None, None, "'89' is no compute capability"),
        ("ubuntu-24.04", "581.42", "native", None, None, "'native' is no compute capability"),
        ("ubuntu-24.04", "581.42", "3.5", None, None, "'3.5' is no compute capability that CUDA compiles for"),
        ("ubuntu-24.04", "581.42", "8.9", "11.5", None, "CUDA 11.5 is none of the releases"),
        ("ubuntu-24.04", "581.42", "8.9", "12.7", None, "CUDA 12.7 is none of the releases"),
        ("ubuntu-24.04", "581.42", "8.9", "newest", None, "CUDA newest is none of the releases"),
        ("ubuntu-24.04", "581.42", "8.9", None, "conda", "provider 'conda' is unknown: use apt or wheels"),
    ],
)
def test_wrong_input(distro: str, driver: str, gpus: str, cuda: str | None, provider: str | None, said: str) -> None:
    assert said in refusals(distro, driver, gpus, cuda, provider)


def test_all_that_is_wrong_is_said_at_once() -> None:
    assert len(choose("fedora-42", "x", ["y"], "1.0", "conda").refusals) == 5


def test_a_patch_release_stands_for_its_minor_one() -> None:
    assert choose("ubuntu-24.04", "581.42", ["8.9"], "13.0.2").cuda == "13.0"


def test_each_release_here_is_one_that_builds_are_known_for() -> None:
    assert {tuple(d.split("-")) for d in toolkit.GLIBC} == set(build._RELEASES)


# --- the command

EXAMPLE = ["toolkit", "--distro", "ubuntu-24.04", "--driver", "581.42"]


def test_command_json() -> None:
    done = CliRunner().invoke(app, [*EXAMPLE, "--compute", "8.9", "--cuda", "13.0", "--json"])
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert {"ok", "cuda", "packages", "host_compiler", "architectures", "cmake", "reasons", "refusals"} <= set(said)
    assert (said["ok"], said["cuda"], said["architectures"]) == (True, "13.0", ["89"])
    assert said["refusals"] == []


@pytest.mark.parametrize("release", ["13.0", "12.8", "12.9"])
def test_command_names_the_packages_that_are_installed(release: str) -> None:
    done = CliRunner().invoke(app, [*EXAMPLE, "--compute", "8.9", "--cuda", release, "--json"])
    said = json.loads(done.stdout)["packages"]
    assert said == list(cuda_operations._packages(release))
    assert {name.format(release.replace(".", "-")) for name in toolkit.APT} <= set(said)
    assert (release in cuda_operations.pins().apt.packages) is (len(said) > len(toolkit.APT))


def test_command_refuses_with_2() -> None:
    done = CliRunner().invoke(app, [*EXAMPLE, "--compute", "8.9", "--cuda", "13.2", "--json"])
    assert done.exit_code == 2
    said = json.loads(done.stdout)
    assert said["ok"] is False
    assert "13.2" in said["refusals"][0]
    done = CliRunner().invoke(app, [*EXAMPLE, "--compute", "8.9", "--cuda", "13.2"])
    assert done.exit_code == 2
    assert done.stderr.startswith("refused: CUDA 13.2 miscompiles")
    assert "\nnearest that works: CUDA 13.3" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "given", [["--compute", "8.9,12.0"], ["--compute", "8.9", "--compute", "12.0"], ["--compute", "12.0, 8.9"]]
)
def test_command_takes_several_gpus(given: list[str]) -> None:
    done = CliRunner().invoke(app, [*EXAMPLE, *given])
    assert done.exit_code == 0
    assert "architectures  89 120a" in done.stdout
    assert "-DCMAKE_CUDA_ARCHITECTURES=89;120a" in done.stdout


def test_command_by_wheels_and_with_the_override() -> None:
    done = CliRunner().invoke(
        app, [*EXAMPLE, "--compute", "8.9", "--provider", "wheels", "--cuda", "13.2", "--allow-miscompiling"]
    )
    assert done.exit_code == 0
    assert "13.2 by wheels" in done.stdout
    assert "mind" in done.stdout


def test_command_help_has_examples() -> None:
    done = CliRunner().invoke(app, ["toolkit", "--help"])
    assert "wsllama toolkit --distro ubuntu-24.04 --driver 581.42 --compute 8.9\n" in done.stdout
