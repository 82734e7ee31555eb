"""What a failed build says: the causes that a CPU build can have, each with what to do.

Which lines of a log are shown is decided where the log is, in wsllama/host/follow.py.
"""

import re
from typing import NamedTuple


class Finding(NamedTuple):
    id: str
    sentence: str  # what is wrong and what to do


# The first that fits is the cause: what stands below it may follow from it.
_FINDINGS = (
    ("disk_full", r"no space left on device", "the disk is full; make room on it and run again"),
    (
        "compiler_killed_oom",
        r"killed signal terminated program|signal 9|internal compiler error: Killed|\bKilled$",
        "the compiler was killed, likely because memory ran out; lower llama_cpp.jobs or give the host more memory",
    ),
    (
        "network_fetch_failed",
        r"could not resolve (host|proxy)|failed to connect to|unable to access '|connection (timed out|refused|reset)",
        "the source could not be fetched; check the host's network and network.proxy, or use llama_cpp.source sdist",
    ),
    (
        "cmake_too_old",
        r"CMake \d[\d.]* or higher is required",
        "cmake is too old for this commit; use a newer release of the distribution",
    ),
    (
        "ninja_missing",
        r'unable to find a build program corresponding to "Ninja"',
        "ninja is missing; install ninja-build",
    ),
    (
        "fatal_option",
        r"CMake Error at [^\n]*\n\s+\w+ is deprecated, use \w+ instead",
        "a build option has an old name that this commit refuses; use the name that the message gives",
    ),
)


def diagnose(text: str) -> Finding | None:
    """The cause of a failed build in its log, or in the lines of it that matter; None when it is not a known one."""
    for name, pattern, sentence in _FINDINGS:
        if re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
            return Finding(name, sentence)
    return None
