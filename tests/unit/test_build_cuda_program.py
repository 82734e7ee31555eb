"""The program that builds, with CUDA: on a project of llama.cpp's shape and a stand-in for the toolkit, whose libraries are
real ones. nvcc itself compiles llama.cpp in the lab."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_build_program import CMAKE, COMMIT, FILES, Host
from wsllama.domain.build import cmake_options, cuda_options
from wsllama.host import build as program

DEVICES = "Available devices:\n  CUDA0: NVIDIA GeForce RTX 4090 (24563 MiB, 22994 MiB free)\n"
CUDA = """
add_library(ggml-base SHARED base.c)
add_library(ggml-cpu-haswell MODULE base.c)
add_library(ggml-cuda SHARED cuda.c)
find_library(CUDA_cublas cublas PATHS "${CUDAToolkit_ROOT}/lib64" NO_DEFAULT_PATH REQUIRED)
target_link_libraries(ggml-cuda PRIVATE ${CUDA_cublas})
target_link_libraries(part ggml-base ggml-cuda)
foreach(name llama-server llama-fit-params llama-bench llama-gguf-split)
  add_dependencies(${name} ggml-cpu-haswell)
endforeach()
"""
SERVER = """#include <stdio.h>
#include <string.h>
const char *says(void);
int cuda(void);
int main(int count, char **words) {
  if (count > 1 && !strcmp(words[1], "--list-devices")) return printf("%s", getenv_devices()) < 0;
  return fprintf(stderr, "%s %d\\n", says(), cuda()) < 0;
}
"""


class CudaHost(Host):
    """A host with a toolkit of three libraries: cublas needs cublasLt, as NVIDIA's does."""

    def __init__(self, root: Path, devices: str = DEVICES) -> None:
        super().__init__(root)
        self.toolkit = root / "toolkit"
        (self.toolkit / "lib").mkdir(parents=True)
        (self.toolkit / "lib64").symlink_to("lib")
        self.library("cudart", "int cudart(void) { return 1; }")
        self.library("cublasLt", "int lt(void) { return 1; }")
        self.library("cublas", "int lt(void);\nint cublas(void) { return lt(); }", "-lcublasLt")
        cuda = cuda_options({"CMAKE_CUDA_ARCHITECTURES": "89-virtual", "CMAKE_CUDA_HOST_COMPILER": "/usr/bin/g++"})
        options = cmake_options(COMMIT, 11434, backend="cuda", cuda=cuda)
        self.argument["options"] = {k: v for k, v in options.items() if "LAUNCHER" not in k}
        self.argument["toolkit"] = {"root": str(self.toolkit), "release": "13.0"}
        self.argument["require_gpu"] = False
        server = SERVER.replace("getenv_devices()", json.dumps(devices))
        self.files = {
            **FILES,
            "CMakeLists.txt": CMAKE + CUDA,
            "base.c": "int base(void) { return 1; }\n",
            "cuda.c": "int cublas(void);\nint cuda(void) { return cublas(); }\n",
            "main.c": server,
        }
        self.argument["source"] = self.tar(self.files)

    def library(self, name: str, code: str, *more: str) -> None:
        folder = self.toolkit / "lib"
        (folder / f"{name}.c").write_text(code)
        made = [
            "cc",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,lib{name}.so.13",
            "-o",
            f"lib{name}.so.13",
            f"{name}.c",
            "-L.",
            "-Wl,-rpath,$ORIGIN",
        ]
        subprocess.run([*made, *more], cwd=folder, check=True)
        (folder / f"lib{name}.so").symlink_to(f"lib{name}.so.13")

    def with_(self, **files: str) -> dict[str, str]:
        """A source with other files; `_` in their names stands for the dot."""
        return self.tar({**self.files, **{name.replace("_", "."): text for name, text in files.items()}})

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.builds / ("a" * 16) / "build.json").read_text())
        return found


@pytest.fixture
def host(tmp_path: Path) -> CudaHost:
    return CudaHost(tmp_path)


def test_the_build_carries_the_libraries_and_needs_no_toolkit(host: CudaHost) -> None:
    ran = host.run()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    carried = {"lib/libcudart.so.13", "lib/libcublas.so.13", "lib/libcublasLt.so.13", "lib/libggml-cuda.so"}
    assert carried <= set(host.record()["files"])
    assert host.record()["devices"] == ["CUDA0: NVIDIA GeForce RTX 4090 (24563 MiB, 22994 MiB free)"]
    host.toolkit.rename(host.root / "gone")
    moved = (host.builds / ("a" * 16)).rename(host.root / "elsewhere")
    said = subprocess.run([moved / "bin" / "llama-server"], env={}, capture_output=True, text=True)
    assert said.stderr == "build 11434, commit 0c1e57098 1\n"


def test_cmake_gets_the_toolkit_by_its_full_path(host: CudaHost, tmp_path: Path) -> None:
    """Whatever nvcc comes first in PATH; and no file of ours names our folders."""
    src, out, root = "/w/src", "/w/out", str(host.toolkit)
    options = program.options_here(host.argument, src, out)
    assert options["CMAKE_CUDA_COMPILER"] == f"{root}/bin/nvcc"
    assert options["CMAKE_CUDA_FLAGS"] == f"-Xcompiler=-ffile-prefix-map={src}/=,-ffile-prefix-map={out}/=build/"
    assert options["CMAKE_EXE_LINKER_FLAGS"] == f"-Wl,-rpath-link,{root}/lib64"
    with_flags = {**host.argument, "options": {**host.argument["options"], "CMAKE_CUDA_FLAGS": "-Xcicc -O0"}}
    assert program.options_here(with_flags, src, out)["CMAKE_CUDA_FLAGS"].startswith("-Xcicc -O0 -Xcompiler=")
    cpu = {k: v for k, v in host.argument.items() if k != "toolkit"}
    assert not any(root in value for value in program.options_here(cpu, src, out).values())


def test_backends_that_are_loaded_lie_beside_the_programs(host: CudaHost) -> None:
    """ggml looks for them in the folder of the program; their own libraries are in lib."""
    cmake = (CMAKE + CUDA).replace("add_library(ggml-cuda SHARED", "add_library(ggml-cuda MODULE").replace(" ggml-cuda)", ")")
    cmake = cmake.replace("add_dependencies(${name} ", "add_dependencies(${name} ggml-cuda ")
    server = host.files["main.c"].replace("int cuda(void);", "static int cuda(void) { return 1; }")
    options = {**host.argument["options"], "GGML_BACKEND_DL": "ON"}
    ran = host.run(options=options, source=host.with_(CMakeLists_txt=cmake, main_c=server))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {"bin/libggml-cuda.so", "bin/libggml-cpu-haswell.so", "lib/libggml-base.so"} <= set(host.record()["files"])
    assert not {"lib/libggml-cuda.so", "bin/libggml-base.so"} & set(host.record()["files"])


@pytest.mark.parametrize("devices", ["Available devices:\n  (none)\n", "Available devices:\n  Vulkan0: llvmpipe (1 MiB)\n"])
def test_no_gpu_where_one_is_required_is_refused(tmp_path: Path, devices: str) -> None:
    """The programs end with 0 then, and would compute on the CPU."""
    host = CudaHost(tmp_path, devices)
    said = f"would compute on the CPU; llama-server --list-devices says (status 0): {' '.join(devices.split())}\n"
    assert said in host.refuse(require_gpu=True)
    ran = host.run()
    assert ran.returncode == 0, ran.stderr
    assert host.record()["devices"] == [line.strip() for line in devices.splitlines() if "Vulkan" in line]


def test_a_driver_that_is_a_stub_is_refused(host: CudaHost) -> None:
    """What the linker got must not be what the programs load: the build would say "CUDA driver is a stub library"."""
    stubs = host.toolkit / "lib" / "stubs"
    stubs.mkdir()
    (stubs / "stub.c").write_text("int cuInit(void) { return 34; }")
    made = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", "stub.c"]
    subprocess.run(made, cwd=stubs, check=True)
    linked = f'target_link_libraries(ggml-cuda PRIVATE "{stubs}/libcuda.so.1")\ntarget_link_options(ggml-cuda PRIVATE '
    cuda = "int cublas(void);\nint cuInit(void);\nint cuda(void) { return cublas() + cuInit(); }\n"
    cmake = CMAKE + CUDA + linked + f'"-Wl,-rpath,{stubs}")\n'
    said = host.refuse(source=host.with_(CMakeLists_txt=cmake, cuda_c=cuda))
    assert f"libcuda.so.1 is found at {stubs}/libcuda.so.1 instead of /usr/lib/wsl/lib" in said


def test_a_toolkit_without_a_library_is_refused(host: CudaHost) -> None:
    (host.toolkit / "lib" / "libcudart.so.13").unlink()
    assert "libcudart.so.13" in host.refuse()


def test_a_library_that_would_come_from_elsewhere_is_refused(host: CudaHost) -> None:
    rpath = f'target_link_options(ggml-cuda PRIVATE "-Wl,--disable-new-dtags,-rpath,{host.toolkit}/lib")\n'
    said = host.refuse(source=host.with_(CMakeLists_txt=CMAKE + CUDA + rpath))
    assert f"needs libcublas.so.13, which is at {host.toolkit}/lib/libcublas.so.13" in said


def killed(host: CudaHost, times: int) -> dict[str, str]:
    """A source whose compiler is killed that often, as the kernel does it when there is no memory."""
    counter = host.root / "counter"
    script = f"echo >> {counter}; test $(wc -l < {counter}) -gt {times} || kill -9 $$; cp $1 part.c"
    command = "add_custom_command(OUTPUT part.c COMMAND sh ${CMAKE_SOURCE_DIR}/kill.sh ${CMAKE_SOURCE_DIR}/real.c)\n"
    cmake = (CMAKE + CUDA).replace("add_library(part ", command + "add_library(part ")
    files = {name: text for name, text in host.files.items() if name != "part.c"}
    return host.tar({**files, "CMakeLists.txt": cmake, "real.c": FILES["part.c"], "kill.sh": script})


def test_after_a_compiler_was_killed_fewer_run(host: CudaHost) -> None:
    ran = host.run(source=killed(host, 1), jobs=4)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "==> a compiler was killed for lack of memory; go on with 2 at once" in ran.stdout


@pytest.mark.parametrize(
    ("times", "jobs", "said"),
    [
        (2, 4, "killed for lack of memory with 2 at once; set llama_cpp.jobs to 1 or give the host more memory"),
        (1, 1, "killed for lack of memory with 1 at once; give the host more memory"),
    ],
)
def test_what_is_killed_again_is_said_as_such(host: CudaHost, times: int, jobs: int, said: str) -> None:
    assert said in host.refuse(source=killed(host, times), jobs=jobs)


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        (b"Killed\n", True),
        (b"g++: fatal error: Killed signal terminated program cc1plus\n", True),
        (b"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n", True),
        (b"nvcc error   : 'cudafe++' died due to signal 11 (Invalid memory reference)\n", False),
        (b"part.c:3:1: error: Killed was not declared\n", False),
    ],
)
def test_who_was_killed_is_read_from_what_tools_say(line: bytes, counts: bool) -> None:
    assert bool(program.KILLED.search(line)) is counts


def test_the_environment_has_no_path_of_windows(host: CudaHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"/mnt/c/Windows/System32:{os.environ['PATH']}")
    assert program.environment_of(host.argument, "/w")["PATH"] == "/usr/local/bin:/usr/bin:/bin"


def test_a_library_that_would_be_missing_is_refused(host: CudaHost) -> None:
    """On a builder whose toolkit has more than the build takes along."""
    host.library("nccl", "int nccl(void) { return 1; }")
    more = 'target_link_libraries(ggml-cuda PRIVATE "${CUDAToolkit_ROOT}/lib64/libnccl.so")\n'
    cuda = "int cublas(void);\nint nccl(void);\nint cuda(void) { return cublas() + nccl(); }\n"
    assert "needs libnccl.so.13, which is not found" in host.refuse(
        source=host.with_(CMakeLists_txt=CMAKE + CUDA + more, cuda_c=cuda)
    )
