"""CUDA on a host without a GPU: the toolkit from NVIDIA's wheels, llama.cpp really compiled by nvcc and linked, and served.

The quick form: one virtual architecture, the device compiler's optimiser off, no flash attention; all of it is in the build id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Lab, tiny_model
from lab.base import cache_dir
from lab.lab import Host
from tests.lab.deployed import Deployed
from wsllama import index
from wsllama.settings import merge

QUICK = {
    "provider": "wheels",
    "version": "13.0",
    "compute": ["8.9"],
    "architectures": ["89-virtual"],
    "flags": ["-Xcicc", "-O0"],
    "flash_attention": False,
    "require_gpu": False,
}
LIMIT_S = 3300  # cold, on two cores, beside other tests; with the compiler's cache it takes a minute and a half


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """One fresh host; the wheels are those that were fetched before, if they were."""
    folder = tmp_path_factory.mktemp("cuda")
    with Lab(hosts=1, name="cuda", prepared=True, binds={cache_dir() / "ccache": "/var/cache/wsllama/ccache"}) as lab:
        found = Deployed(lab, folder, tiny_model.write(folder / "tiny.gguf"))
        index.cache_of("wheels").mkdir(parents=True, exist_ok=True)
        (found.cache / "wsllama/wheels").symlink_to(index.cache_of("wheels"))
        found.base = merge([found.base, {"llama_cpp": {"backend": "cuda", "time_limit_minutes": LIMIT_S // 60}, "cuda": QUICK}])
        yield found


def untouched(host: Host) -> bool:
    return host.run("! getent passwd llama && ! test -e /opt/wsllama && ! test -e /etc/wsllama", check=False).returncode == 0


def test_no_gpu_where_one_is_asked_for(builder: Deployed) -> None:
    run = builder.run({"cuda-1": {"cuda": {"require_gpu": True}}})
    assert run.returncode == 1
    assert "no GPU of NVIDIA's is seen here: set llama_cpp.backend to cpu, or cuda.require_gpu to False" in run.stderr
    assert untouched(builder.lab.hosts[0]), "refused before the first change"


@pytest.mark.parametrize(
    ("cuda", "said"),
    [
        ({"version": "13.2"}, "13.2"),  # miscompiles: facts, llama.cpp#21255
        ({"version": "12.8"}, "apt"),  # the -cu12 wheels carry no nvcc
        ({"compute": ["7.0"], "architectures": []}, "7.5"),  # CUDA 13 dropped it
    ],
)
def test_a_toolkit_that_does_not_fit(builder: Deployed, cuda: dict[str, object], said: str) -> None:
    run = builder.run({"cuda-1": {"cuda": cuda}})
    assert run.returncode == 1
    assert said in run.stderr
    assert untouched(builder.lab.hosts[0])


def test_built_by_nvcc_and_served(builder: Deployed) -> None:
    host = builder.lab.hosts[0]
    first = builder.pyinfra(builder.inventory(), timeout=LIMIT_S).green()
    assert "build" in first.changed()
    builder.run().unchanged()
    record = json.loads(host.run("cat /opt/wsllama/current/build/build.json").stdout)
    options = record["inputs"]["options"]
    assert (options["GGML_CUDA"], options["CMAKE_CUDA_ARCHITECTURES"], options["GGML_CUDA_FA"]) == ("ON", "89-virtual", "OFF")
    assert options["CMAKE_CUDA_FLAGS"].split()[-2:] == ["-Xcicc", "-O0"]
    assert any(name.startswith("nvidia-cuda-nvcc") for name in record["inputs"]["toolkit"])
    library = "/opt/wsllama/current/build/lib/libggml-cuda.so"
    found = host.run(f"ldd {library}").stdout
    here = str(Path(host.run("readlink -f /opt/wsllama/current/build").stdout.strip()) / "lib")
    for name in ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"):
        line = next(line for line in found.splitlines() if name in line)
        assert f"=> {here}/" in line or "current/build/" in line, f"the artifact brings {name} itself: {line}"
    assert ".nv_fatbin" in host.run(f"readelf -SW {library}").stdout, "code for a GPU is in it"
    devices = host.run("/opt/wsllama/current/build/bin/llama-server --list-devices 2>&1").stdout
    assert "CUDA" not in devices.split("Available devices")[-1], "there is no GPU in a container"
    assert not host.run("ls /usr/lib/wsl 2>/dev/null", check=False).stdout, "nothing is written where WSL's libraries are"


@pytest.mark.full
def test_a_rebuilt_host_needs_no_toolkit(builder: Deployed) -> None:
    host = builder.lab.hosts[0]
    host.reset()
    run = builder.run().green()
    assert "receive" in run.changed()
    assert "build" not in run.changed()
    assert host.run("test -e /opt/wsllama/toolkits", check=False).returncode, "the artifact carries what it needs of CUDA"
    builder.run().unchanged()


FULL_LIMIT_S = 7000
SHIPPED = {
    "cuda": {"architectures": [], "flags": [], "flash_attention": True},
    "llama_cpp": {"portable": True, "time_limit_minutes": 115},
}


@pytest.mark.full
def test_the_whole_backend_with_all_kinds_of_cpu(builder: Deployed) -> None:
    """As it is shipped: every kernel, optimised, for one kind of GPU; a CPU backend for each kind of processor."""
    host = builder.lab.hosts[0]
    inventory = builder.inventory({host.name: SHIPPED})
    builder.pyinfra(inventory, timeout=FULL_LIMIT_S).green()
    builder.pyinfra(inventory).unchanged()
    record = json.loads(host.run("cat /opt/wsllama/current/build/build.json").stdout)
    options = record["inputs"]["options"]
    assert (options["GGML_CUDA_GRAPHS"], options["GGML_BACKEND_DL"], options["GGML_CPU_ALL_VARIANTS"]) == ("ON", "ON", "ON")
    assert options.get("GGML_CUDA_FA", "ON") == "ON"
    assert "-O0" not in options["CMAKE_CUDA_FLAGS"]
    assert options["CMAKE_CUDA_ARCHITECTURES"] == "89", "code for the GPU itself, and PTX"
    names = {name for name in record["files"] if name.startswith("bin/libggml-")}
    assert {"bin/libggml-cuda.so", "bin/libggml-cpu-x64.so", "bin/libggml-cpu-haswell.so", "bin/libggml-cpu-zen4.so"} <= names
    kernels = host.run("strings -n 12 /opt/wsllama/current/build/bin/libggml-cuda.so | grep -c flash_attn_ext").stdout
    assert int(kernels) > 0
    print(json.dumps({"seconds": record["seconds"], "bytes": {n: record["files"][n]["size"] for n in sorted(names)}}))
