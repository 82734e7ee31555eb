"""What nvidia-smi says on this machine now, for programs that run on a host."""

import os
import subprocess

from wsllama.domain import nvidia_smi

TOOLS = ("/usr/lib/wsl/lib/nvidia-smi", "/usr/bin/nvidia-smi")  # by its path: services and ssh don't have WSL's folder on theirs
QUERY = "name,memory.total,memory.used,utilization.gpu,power.draw,temperature.gpu,driver_version"
TIMEOUT_S = 30


def ask() -> nvidia_smi.Reading:
    """Each GPU with memory, utilisation, power and temperature as far as they are told; no GPUs and the reason otherwise."""
    tool = next((path for path in TOOLS if os.path.exists(path)), None)
    if not tool:
        return nvidia_smi.Reading("no_driver")
    command = [tool, "--query-gpu=" + QUERY, "--format=csv,noheader"]
    try:
        p = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return nvidia_smi.Reading("unknown")
    return nvidia_smi.read(p.stdout, p.returncode, " ".join(command))
