"""Copy of a model on the host, verified as it goes, against `cp`, `sha256sum` and both after each other: ratios of one run.

Aim: no slower than the slower of plain cp and plain sha256sum, plus 10 per cent, with less than 128 MiB of memory of its own.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit import small_gguf
from wsllama import program

EXAMPLES = """examples:
  python -m benchmarks.model_copy >copy.json
  python -m benchmarks.model_copy --gib 1 --rounds 3 --folder /var/tmp"""
AIM = 1.10
MEMORY = 128 << 20  # bytes


def write(path: Path, size: int) -> None:
    """A GGUF of random bytes, about as large."""
    small_gguf.model(path, rows=size // (small_gguf.WIDTH * 4))


def timed(command: list[str], stdin: str | None = None) -> float:
    """Seconds that a command takes, with a last sync of what it wrote; from a cold cache."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    began = time.monotonic()
    subprocess.run(command, input=stdin, text=True, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def copied(source: Path, root: Path) -> float:
    """Our program, run as on a host."""
    shutil.rmtree(root, ignore_errors=True)
    return timed([sys.executable, "-I", "-S", "-"], program.call("model", {"path": str(source), "root": str(root)}))


def memory_of(source: Path, root: Path) -> int:
    """Bytes of memory that our program takes at most, by its own /proc entry: what is inherited from here doesn't count."""
    shutil.rmtree(root, ignore_errors=True)
    text = program.call("model", {"path": str(source), "root": str(root)}) + "print(open('/proc/self/status').read())\n"
    said = subprocess.run([sys.executable, "-I", "-S", "-"], input=text, text=True, check=True, stdout=subprocess.PIPE).stdout
    return int(said.partition("VmHWM:")[2].split()[0]) * 1024


def rounds(source: Path, target: Path, root: Path, count: int) -> list[dict[str, float]]:
    """Seconds of each way, by turns. Each copy ends with what it wrote on the disk."""
    ways: dict[str, Callable[[], float]] = {
        "wsllama": lambda: copied(source, root),
        "cp": lambda: timed(["sh", "-c", f"cp {source} {target} && sync {target}"]),
        "sha256sum": lambda: timed(["sha256sum", str(source)]),
        "cp_then_sha256sum": lambda: timed(["sh", "-c", f"cp {source} {target} && sync {target} && sha256sum {target}"]),
    }
    out = []
    for number in range(count):
        names = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        out.append({name: ways[name]() for name in names})
        print(f"round {number + 1}: {', '.join(f'{n} {s:.1f} s' for n, s in out[-1].items())}", file=sys.stderr)
    return out


def report(seconds: list[dict[str, float]], size: int, memory: int) -> dict[str, Any]:
    """Ratios of each round, and what they come to."""

    def ratio(of: Callable[[dict[str, float]], float]) -> dict[str, float]:
        each = [round_["wsllama"] / of(round_) for round_ in seconds]
        return {"median": round(statistics.median(each), 3), "least": round(min(each), 3), "most": round(max(each), 3)}

    ratios = {
        "to_slower_of_cp_and_sha256sum": ratio(lambda r: max(r["cp"], r["sha256sum"])),
        "to_cp": ratio(lambda r: r["cp"]),
        "to_cp_then_sha256sum": ratio(lambda r: r["cp_then_sha256sum"]),
    }
    fast = ratios["to_slower_of_cp_and_sha256sum"]["median"] <= AIM
    return {"bytes": size, "seconds": seconds, "ratios": ratios, "memory": memory, "ok": fast and memory < MEMORY}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python -m benchmarks.model_copy",
    )
    parser.add_argument("--gib", type=float, default=4, help="size of the file (default: 4)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is taken (default: 3)")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="where there is room for three times that")
    options = parser.parse_args()
    if os.geteuid():
        parser.error("it empties the page cache, which needs root")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write(folder / "source.gguf", int(options.gib * 2**30))
        memory = memory_of(folder / "source.gguf", folder / "models")
        found = rounds(folder / "source.gguf", folder / "target.gguf", folder / "models", options.rounds)
        size = (folder / "source.gguf").stat().st_size
    print(json.dumps(document := report(found, size, memory), indent=1))
    print(
        f"ratios {document['ratios']}, memory {memory / 2**20:.0f} MiB: {'as aimed' if document['ok'] else 'not as aimed'}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
