import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsllama.domain import build

COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"


def inputs(**changed: Any) -> dict[str, object]:
    given: dict[str, Any] = {
        "commit": COMMIT,
        "options": build.cmake_options(COMMIT, 11434),
        "targets": build.TARGETS,
        "versions": {"cmake": "3.25.1-1", "gcc-12": "12.2.0-14+deb12u1"},
        "architecture": "amd64",
        "distro": "debian",
        "release": "12",
        "cpu_flags": ["fpu", "avx2"],
    }
    return build.inputs(**{**given, **changed})


ID = build.build_id(inputs())


CHOSEN = {
    "GGML_CUDA_FA": "ON",
    "GGML_CUDA_NCCL": "OFF",
    "CMAKE_CUDA_ARCHITECTURES": "89",
    "CMAKE_CUDA_HOST_COMPILER": "/usr/bin/g++-12",
}


def cuda_inputs(**changed: Any) -> dict[str, object]:
    """Of a CUDA build; what differs goes to `cuda_options`, or to `inputs` for the toolkit."""
    toolkit = changed.pop("toolkit", {"nvidia-cuda-nvcc": "13.0.88 sha256:" + "1" * 64})
    cuda = build.cuda_options({**CHOSEN, **changed.pop("chosen", {})}, **changed)
    return inputs(options=build.cmake_options(COMMIT, 11434, backend="cuda", cuda=cuda), toolkit=toolkit)


def test_the_id_is_the_same_for_the_same_inputs_in_any_order() -> None:
    options = build.cmake_options(COMMIT, 11434)
    shuffled = dict(random.Random(1).sample(list(options.items()), len(options)))
    same = inputs(options=shuffled, targets=build.TARGETS[::-1], cpu_flags=["avx2", "fpu", "fpu"])
    assert build.build_id(same) == ID
    assert len(ID) == 16
    int(ID, 16)


@pytest.mark.parametrize(
    "changed",
    [
        {"commit": "1" * 40},
        {"options": build.cmake_options(COMMIT, 11435)},
        {"options": build.cmake_options(COMMIT, 11434, native=False)},
        {"targets": build.TARGETS[:3]},
        {"versions": {"cmake": "3.25.1-1", "gcc-12": "12.2.0-14+deb12u2"}},
        {"architecture": "arm64"},
        {"distro": "ubuntu"},
        {"release": "13"},
        {"cpu_flags": ["fpu", "avx2", "avx512f"]},
    ],
)
def test_everything_that_determines_the_bytes_changes_the_id(changed: dict[str, Any]) -> None:
    assert build.build_id(inputs(**changed)) != ID


def test_what_leaves_the_bytes_alone_leaves_the_id_alone() -> None:
    options = build.cmake_options(COMMIT, 11434)
    without_ccache = {k: v for k, v in options.items() if "LAUNCHER" not in k}
    assert build.build_id(inputs(options=without_ccache)) == ID
    portable = build.cmake_options(COMMIT, 11434, native=False)
    on_one, on_another = (inputs(options=portable, cpu_flags=flags) for flags in (["fpu"], ["fpu", "avx512f"]))
    assert build.build_id(on_one) == build.build_id(on_another)


@pytest.mark.parametrize(
    "changed",
    [
        {"toolkit": {"nvidia-cuda-nvcc": "13.0.88 sha256:" + "2" * 64}},
        {"toolkit": {"nvidia-cuda-nvcc": "13.0.88 sha256:" + "1" * 64, "nvidia-nvvm": "13.0.88 sha256:" + "1" * 64}},
        {"architectures": ["89-virtual"]},
        {"architectures": ["89", "120a-real"]},
        {"chosen": {"CMAKE_CUDA_HOST_COMPILER": "/usr/bin/g++-11"}},
        {"flags": ["-Xcicc", "-O0"]},
        {"flash_attention": False},
        {"without_driver": True},
    ],
)
def test_all_of_a_cuda_build_is_in_its_id(changed: dict[str, Any]) -> None:
    assert build.build_id(cuda_inputs(**changed)) != build.build_id(cuda_inputs())
    assert build.build_id(cuda_inputs()) != ID


def test_settings_change_what_was_chosen_for_a_cuda_build() -> None:
    chosen = {**CHOSEN, "CMAKE_CUDA_FLAGS": "-Xcicc -O1"}
    cuda = build.cuda_options(chosen, architectures=["86", "89"], flags=["-lineinfo"], flash_attention=False)
    options = build.cmake_options(COMMIT, 11434, backend="cuda", cuda=cuda)
    expected = {
        "GGML_CUDA": "ON",
        "GGML_CUDA_FA": "OFF",
        "GGML_CUDA_NCCL": "OFF",
        "GGML_CUDA_NO_VMM": "OFF",
        "CMAKE_CUDA_ARCHITECTURES": "86;89",
        "CMAKE_CUDA_FLAGS": "-Xcicc -O1 -lineinfo",
        "CMAKE_CUDA_HOST_COMPILER": "/usr/bin/g++-12",
    }
    assert expected.items() <= options.items()
    assert build.cuda_options({**CHOSEN, "GGML_CUDA_NO_VMM": "ON"})["GGML_CUDA_NO_VMM"] == "ON"  # of a toolkit without a stub
    assert build.cuda_options(CHOSEN)["GGML_CUDA_FA"] == "ON"


def test_a_cuda_build_names_its_architectures() -> None:
    for wrong in ({"CMAKE_CUDA_ARCHITECTURES": ""}, {"CMAKE_CUDA_ARCHITECTURES": "native"}):
        with pytest.raises(ValueError, match=r"by number, like 89; set cuda\.compute"):
            build.cuda_options({**CHOSEN, **wrong})
    with pytest.raises(ValueError, match="by number"):
        build.cuda_options(CHOSEN, architectures=["89", "native-real"])


def test_a_portable_build_has_code_for_every_cpu_and_is_the_same_on_all() -> None:
    options = build.cmake_options(COMMIT, 11434, native=True, portable=True)
    assert (options["GGML_NATIVE"], options["GGML_BACKEND_DL"], options["GGML_CPU_ALL_VARIANTS"]) == ("OFF", "ON", "ON")
    assert options["BUILD_SHARED_LIBS"] == "ON"
    on_one, on_another = (inputs(options=options, cpu_flags=flags) for flags in (["fpu"], ["fpu", "avx512f"]))
    assert build.build_id(on_one) == build.build_id(on_another) != ID


def test_nothing_is_downloaded_while_it_builds_and_nothing_deprecated_is_given() -> None:
    options = build.cmake_options(COMMIT, 11434)
    assert options["LLAMA_USE_PREBUILT_UI"] == "OFF"  # on by default
    assert not {"LLAMA_CURL", "LLAMA_CUDA", "LLAMA_CUBLAS", "LLAMA_NATIVE"} & set(options)


@pytest.mark.parametrize(
    ("cores", "gib", "wanted"), [(2, 24, 2), (16, 8, 8), (16, 7.99, 7), (32, 64, 32), (4, 0.5, 1), (4, 0, 1), (1, 64, 1)]
)
def test_jobs_are_bounded_by_cores_and_by_memory(cores: int, gib: float, wanted: int) -> None:
    assert build.jobs(cores, int(gib * 1024**3)) == wanted
    assert build.jobs(16, 64 * 1024**3, bytes_per_job=16 * 1024**3) == 4


@pytest.mark.parametrize(
    ("distro", "release", "openssl", "compiler"),
    [
        ("debian", "12", "libssl3", "g++-12"),
        ("debian", "13", "libssl3t64", "g++-14"),
        ("ubuntu", "22.04", "libssl3", "g++-11"),
        ("ubuntu", "24.04", "libssl3t64", "g++-13"),
        ("ubuntu", "26.04", "libssl3t64", "g++-15"),
    ],
)
def test_packages_have_the_names_of_their_release(distro: str, release: str, openssl: str, compiler: str) -> None:
    found = build.packages(distro, release)
    assert openssl in found.run
    assert compiler in found.toolchain
    assert {"libssl-dev", "cmake", "ninja-build", "ccache", "build-essential"} <= set(found.build)


def test_another_release_is_refused_with_those_that_work() -> None:
    with pytest.raises(ValueError, match=r"^ubuntu 20\.04 is not supported .*Debian 12, .*Ubuntu 26\.04$"):
        build.packages("ubuntu", "20.04")


def test_git_hashes_of_known_objects() -> None:
    """The empty blob and the empty tree have the same names in every repository of the world."""
    assert build.git_blob(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert build.git_tree({}) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@settings(max_examples=25)  # two processes each
@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "a.b", "a-b", "a0", "é", "B"]), min_size=1, max_size=3).map("/".join),
        st.tuples(st.binary(max_size=8), st.booleans()),
        max_size=6,
    )
)
def test_a_tree_has_the_name_that_git_gives_it(tmp_path_factory: Any, files: dict[str, tuple[bytes, bool]]) -> None:
    """Against git itself; the names are such that a folder sorts otherwise than a file (`a.b` < `a/` < `a0`)."""
    files = {p: f for p, f in files.items() if not any(other.startswith(p + "/") for other in files)}
    folder: Path = tmp_path_factory.mktemp("tree")
    for name, (data, executable) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if executable else 0o644)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    subprocess.run(["sh", "-c", "git init -q . && git add -A -f ."], cwd=folder, env=env, check=True)
    said = subprocess.run(["git", "write-tree"], cwd=folder, env=env, check=True, capture_output=True, text=True)
    modes = {True: "100755", False: "100644"}
    assert build.git_tree({n: (modes[x], build.git_blob(data)) for n, (data, x) in files.items()}) == said.stdout.strip()
