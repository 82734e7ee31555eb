"""A stand-in for NVIDIA's library at its boundary: a real libnvidia-ml.so.1, compiled here, that answers from a file beside it.

NVIDIA's own module loads and calls it as it does the real one. The file is read at each call, so a test changes what the GPU does
while the service runs; a value that it lacks is NVML_ERROR_NOT_SUPPORTED, as WSL's library has it for what it can't know.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

NAME = "libnvidia-ml.so.1"
# Return codes and structs: nvml.h of CUDA 12 and 13 (nvmlReturn_t, nvmlMemory_t, nvmlUtilization_t).
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

/* The value behind "key " in the file; 0 when it isn't there. */
static int said(const char *key, char *value, size_t size) {
    Dl_info own;
    char path[PATH_MAX], line[512];
    size_t length = strlen(key);
    int found = 0;
    dladdr((void *)said, &own);
    snprintf(path, sizeof path, "%s.says", own.dli_fname);
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) == 0 && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            found = snprintf(value, size, "%s", line + length + 1) < (int)size;
        }
    }
    if (file) fclose(file);
    return found;
}

static int number(const char *key, unsigned long long *out) {
    char value[64];
    if (!said(key, value, sizeof value)) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 10);
    return OK;
}

static int small(const char *key, unsigned int *out) {
    unsigned long long value;
    int status = number(key, &value);
    if (status == OK) *out = (unsigned int)value;
    return status;
}

int nvmlInitWithFlags(unsigned int flags) {
    char value[8];
    (void)flags;
    if (said("crash", value, sizeof value)) raise(SIGSEGV);
    return OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int status) { return status == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) { static int card; (void)index; *device = &card; return OK; }
int nvmlDeviceGetName(void *device, char *name, unsigned int length) {
    char value[256];
    (void)device;
    if (!said("name", value, sizeof value)) return NOT_SUPPORTED;
    return snprintf(name, length, "%s", value) < (int)length ? OK : INSUFFICIENT_SIZE;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) { /* total, free, used */
    (void)device;
    if (number("total", &memory[0]) || number("used", &memory[2])) return NOT_SUPPORTED;
    memory[1] = memory[0] - memory[2];
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned int *rates) { /* gpu, memory */
    (void)device;
    rates[1] = 0;
    return small("utilization", &rates[0]);
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) { (void)device; return small("power", milliwatts); }
int nvmlDeviceGetTemperature(void *device, unsigned int sensor, unsigned int *celsius) {
    (void)device;
    (void)sensor;
    return small("temperature", celsius);
}
"""


def build(folder: Path) -> Path:
    """Compile it into a folder, which is returned: LD_LIBRARY_PATH has to name it. Raises CalledProcessError."""
    source = folder / "nvml.c"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-o", folder / NAME, source, "-ldl"], check=True)
    return folder


def say(folder: Path, **values: str | int | None) -> None:
    """What its one GPU is from now on: name; total, used in bytes; utilization in percent; power in mW; temperature in degrees
    Celsius; crash. None, and what isn't given, is not supported."""
    aside = folder / f"{NAME}.new"
    aside.write_text("".join(f"{key} {value}\n" for key, value in values.items() if value is not None))
    aside.replace(folder / f"{NAME}.says")
