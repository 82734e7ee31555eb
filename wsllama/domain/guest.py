"""What in a WSL guest would keep programs from the GPU, judged over what a probe found. Pure.

The driver is Windows'; its Linux side is mounted read-only at /usr/lib/wsl/lib, and the device is /dev/dxg. A Linux driver in
the guest puts its own libcuda before that one, which ends in "GPU access blocked by the operating system" or error 100.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from wsllama.domain.nvidia_smi import Reading

WSL_LIB = "/usr/lib/wsl/lib"
NVIDIA_SMI = f"{WSL_LIB}/nvidia-smi"

# Packages of NVIDIA's Linux driver, in Ubuntu's, Debian's and NVIDIA's own repositories. None of it: the CUDA toolkit, the
# container toolkit (libnvidia-container*), what belongs to Mesa (libnvidia-egl-*), and metapackages like cuda-12-8, which
# bring a driver only where they are taken from another repository than WSL's, and then the driver itself is named.
_DRIVER = re.compile(
    r"nvidia-(driver|utils|compute-utils|dkms|kernel|headless|firmware|open|smi|persistenced|legacy|alternative|fabricmanager"
    r"|opencl-icd|vulkan-icd|egl-icd|[0-9]{3})(-.*)?"
    r"|libnvidia-(?!container|egl-|.*-dev$).*"
    r"|libcuda1(-.*)?|libcudadebugger1|libnvcuvid1|libnvoptix1|cuda-drivers(-.*)?"
    r"|xserver-xorg-video-nvidia(-.*)?|linux-(modules|objects|signatures)-nvidia-.*"
)
_OLDEST_KERNEL = (5, 10, 43)  # of WSL 2 with GPU support (Microsoft's page on CUDA in WSL 2)


@dataclass(frozen=True)
class Guest:
    """What a probe found; each default is the healthy answer."""

    packages: tuple[str, ...] = ()  # installed ones, as dpkg names them, also with :arch
    ldconfig: str = ""  # what `ldconfig -p` printed
    real_paths: Mapping[str, str] = field(default_factory=dict)  # links resolved: path in ldconfig's list -> where it ends
    library_path: str = ""  # LD_LIBRARY_PATH at run time
    ld_so_conf: Mapping[str, str] = field(default_factory=dict)  # /etc/ld.so.conf and /etc/ld.so.conf.d/*: path -> text
    dxg: bool = True  # /dev/dxg exists
    kernel: str = ""  # uname -r
    gpu_support: bool | None = None  # wsl2.gpuSupport of .wslconfig where it could be read
    gpu_enabled: bool | None = None  # gpu.enabled of /etc/wsl.conf where it is set
    nvidia_smi: Reading | None = None


def problems(facts: Guest) -> list[str]:
    """What has to be put right before anything is built or served, one sentence each; an empty list when all is well."""
    return [*_packages(facts.packages), *_libraries(facts), *_stubs(facts), *_device(facts), *_reading(facts)]


def driver_packages(installed: Iterable[str]) -> list[str]:
    """Those of the installed packages that belong to a Linux driver of NVIDIA's, or that pull one in."""
    return sorted(name for name in installed if _DRIVER.fullmatch(name.split(":", 1)[0]))


def _packages(installed: Iterable[str]) -> list[str]:
    if not (found := driver_packages(installed)):
        return []
    names = " ".join(found)
    return [f"a Linux driver of NVIDIA's is installed in the guest, where Windows' is used: remove it with apt-get purge {names}"]


def _libraries(facts: Guest) -> list[str]:
    out = []
    for name, path in re.findall(r"^\s*(lib(?:cuda|nvidia-ml)\.so\.1) \([^)]*\) => (\S+)", facts.ldconfig, re.M):
        real = facts.real_paths.get(path, "")  # Windows' own files stand beside that folder, in /usr/lib/wsl/drivers
        if not path.startswith(WSL_LIB + "/") and not real.startswith("/usr/lib/wsl/"):
            out.append(
                f"{name} is found at {path} instead of in {WSL_LIB}: remove what owns it (dpkg -S {path}), then run ldconfig"
            )
    return list(dict.fromkeys(out))


def _stubs(facts: Guest) -> list[str]:
    """The toolkit's stub of libcuda is for linking; programs that load it end with error 34."""
    out = []
    for folder in facts.library_path.split(":"):
        if _is_stub(folder):
            out.append(f"LD_LIBRARY_PATH holds {folder}, whose libcuda is only for linking: take it out")
    for path, text in sorted(facts.ld_so_conf.items()):
        for line in text.splitlines():
            if _is_stub(folder := line.partition("#")[0].strip()):
                out.append(f"{path} names {folder}, whose libcuda is only for linking: take the line out, then run ldconfig")
    for path in re.findall(r"=> (\S+)", facts.ldconfig):
        if _is_stub(folder := path.rpartition("/")[0]) and not any(folder in said for said in out):
            out.append(f"the loader's cache holds {path}, which is only for linking: take {folder} out of its configuration")
    return out


def _is_stub(folder: str) -> bool:
    return "stubs" in folder.split("/")


def _device(facts: Guest) -> list[str]:
    if facts.dxg:
        return []
    return [f"/dev/dxg is missing, so the guest sees no GPU: {_why_no_device(facts)}"]


def _why_no_device(facts: Guest) -> str:
    if re.search(r"^[34]\.\d+\.\d+.*-Microsoft$", facts.kernel):
        return "this is WSL 1; run wsl --set-version DISTRO 2 on Windows"
    if facts.gpu_support is False:
        return "gpuSupport=false in .wslconfig; set it to true and run wsl --shutdown"
    if facts.gpu_enabled is False:
        return "[gpu] enabled=false in /etc/wsl.conf; set it to true and run wsl --terminate DISTRO"
    version = re.match(r"(\d+)\.(\d+)\.(\d+)", facts.kernel)
    if version and tuple(map(int, version.groups())) < _OLDEST_KERNEL:
        return f"WSL's kernel {facts.kernel} is too old for a GPU; run wsl --update on Windows"
    return (
        "GPU paravirtualisation is off (gpuSupport=false in .wslconfig, an old WSL, or WSL 1), or Windows has no driver for the"
        " GPU; look at .wslconfig, run wsl --update and wsl --shutdown on Windows"
    )


def _reading(facts: Guest) -> list[str]:
    """A crash of nvidia-smi says nothing about the GPU (drivers 555 to 560 did that), so only clear answers count."""
    status = facts.nvidia_smi.status if facts.nvidia_smi else "ok"
    if status == "blocked":
        return [
            f"{NVIDIA_SMI} says that access to the GPU is blocked by the operating system: switch the GPU from TCC to WDDM on"
            " Windows (nvidia-smi -dm 0), and remove any Linux driver in the guest"
        ]
    if status == "no_driver":
        return [f"{NVIDIA_SMI} finds no driver: install NVIDIA's driver on Windows, then run wsl --shutdown"]
    if status == "no_device":
        return [f"{NVIDIA_SMI} finds no GPU: Windows must show an NVIDIA GPU that works"]
    return []
