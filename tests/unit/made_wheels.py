"""Small wheels in the shape of NVIDIA's, for tests: a toolkit whose compiler only says its name."""

import hashlib
import zipfile
from pathlib import Path

from wsllama.lock import CudaWheels, Wheel

NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"
PACKAGES = {
    "nvidia-cuda-nvcc": {"nvidia/cu13/bin/nvcc": NVCC, "nvidia/cu13/bin/nvcc.profile": "TOP = $(_HERE_)/..\n"},
    "nvidia-cuda-runtime": {"nvidia/cu13/include/cuda.h": "/* */\n", "nvidia/cu13/lib/libcudart.so.13": "library\n"},
    "nvidia-nvvm": {"nvidia/cu13/nvvm/bin/cicc": "#!/bin/sh\n"},
}


def wheel(folder: Path, name: str, files: dict[str, str], links: tuple[str, ...] = ()) -> Wheel:
    """Write a wheel of version 13.0.1 and return its pin; `links` are names that are stored as links."""
    plain = name.replace("-", "_")
    path = folder / f"{plain}-13.0.1-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    about = f"{plain}-13.0.1.dist-info/"
    described = {
        about + "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 13.0.1\n",
        about + "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-manylinux2014_x86_64\n",
        about + "RECORD": "",
    }
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for inside, text in {**files, **described}.items():
            member = zipfile.ZipInfo(inside)
            mode = 0o120777 if inside in links else 0o100744 if text.startswith("#!") else 0o100644
            member.external_attr = mode << 16
            out.writestr(member, text)
    return Wheel(file=path.name, version="13.0.1", sha256=hashlib.sha256(path.read_bytes()).hexdigest(), size=path.stat().st_size)


def release(folder: Path) -> CudaWheels:
    """All packages, in `folder`."""
    return CudaWheels(toolkit="13.0.1", packages={name: wheel(folder, name, files) for name, files in PACKAGES.items()})
