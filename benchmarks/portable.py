"""How fast the portable CPU build is against the native one: llama-bench of both by turns, on one throw-away host.

JSON goes to stdout; progress, and at the end the two ratios, to stderr. Needs root, as the lab does. Builds that are in this
user's cache are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import model
from lab import Lab, LabError, tiny_model
from lab.base import cache_dir
from lab.demo import DemoError, deploy
from lab.lab import Host

EXAMPLES = """\
examples:
  python -m benchmarks.portable >portable.json
  python -m benchmarks.portable --rounds 10 --prompt 512 --generate 128 --threads 2
  python -m benchmarks.portable --model ~/Qwen3.6-35B-A3B-Q4_K_M.gguf
"""
BUILDS = {"native": {}, "portable": {"llama_cpp": {"portable": True}}}
LIMIT_S = 1800


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def built(lab: Lab) -> dict[str, str]:
    """Deploy each of both builds on the lab's host; returns their folders there."""
    host, folder = lab.hosts[0], lab.record.folder
    small = tiny_model.write(folder / "tiny.gguf")
    found = {}
    for name, more in BUILDS.items():
        say(f"== the {name} build")
        data: dict[str, Any] = {"model": {"path": str(small)}, "server": {"threads": 1}, **more}
        if deploy(lab.inventory(folder / name, {host.name: data}))["failed"]:
            raise DemoError(f"the deploy of the {name} build failed; the reason stands above")
        found[name] = host.run(["readlink", "-f", "/opt/wsllama/current/build"]).stdout.strip()
    host.run(["systemctl", "stop", "llama-server"])
    return found


def measured(host: Host, build: str, file: str, options: argparse.Namespace) -> dict[str, Any]:
    """One start of llama-bench: tokens a second for a prompt and for generation, and which code of the CPU it has loaded."""
    words = [f"{build}/bin/llama-bench", "-m", file, "-p", str(options.prompt), "-n", str(options.generate), "-r", "1"]
    done = host.run([*words, "-t", str(options.threads), "-o", "json", "-v"], timeout=LIMIT_S)
    speeds = {"generate" if test["n_gen"] else "prompt": test["avg_ts"] for test in json.loads(done.stdout)}
    loaded = re.search(r"loaded CPU backend from \S*/(\S+)", done.stderr)
    return {**speeds, "loaded": loaded[1] if loaded else "linked"}


def compared(rounds: list[dict[str, dict[str, Any]]], what: str) -> dict[str, Any]:
    """Of each build the median in tokens a second; of the rounds' ratios portable/native the median, the least and the most."""
    ratios = [r["portable"][what] / r["native"][what] for r in rounds]
    return {
        **{name: round(statistics.median(r[name][what] for r in rounds), 2) for name in BUILDS},
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


def run(options: argparse.Namespace, file: Path) -> dict[str, Any]:
    """The whole benchmark with this GGUF; returns the document. Raises DemoError or LabError, one sentence."""
    binds: dict[Path | str, Path | str] = {cache_dir() / "ccache": "/var/cache/wsllama/ccache", file.parent: "/srv/bench"}
    with Lab(hosts=1, name="bench", binds=binds) as lab:
        host, builds = lab.hosts[0], built(lab)
        rounds: list[dict[str, dict[str, Any]]] = []
        for number in range(options.rounds):
            turn = list(BUILDS) if number % 2 else list(reversed(BUILDS))  # what the machine does meanwhile hits both alike
            rounds.append({name: measured(host, builds[name], f"/srv/bench/{file.name}", options) for name in turn})
            say(f"round {number + 1} of {options.rounds}: {json.dumps(rounds[-1])}")
        cpu = re.search(r"^model name\s*: (.*)$", host.run(["cat", "/proc/cpuinfo"]).stdout, re.M)
    return {
        "cpu": cpu[1] if cpu else "unknown",
        "threads": options.threads,
        "model_bytes": file.stat().st_size,
        "prompt_tokens": options.prompt,
        "generated_tokens": options.generate,
        "builds": {name: Path(folder).name for name, folder in builds.items()},
        "rounds": rounds,
        **{what: compared(rounds, what) for what in ("prompt", "generate")},
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.portable",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7, help="starts of each build (7)")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt (256)")
    parser.add_argument("--generate", type=int, default=64, help="tokens that are generated (64)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads (one for each CPU)")
    parser.add_argument("--model", type=Path, metavar="FILE", help="a GGUF instead of random weights of Qwen3.6's architecture")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="bench-") as folder:
            file = options.model.resolve(strict=True) if options.model else model.write(Path(folder) / "bench.gguf")
            found = run(options, file)
    except (DemoError, LabError) as error:
        say(f"portable: {error}")
        return 1
    except OSError as error:
        say(f"portable: {error.filename}: {error.strerror}")
        return 1
    print(json.dumps(found, indent=1))
    for what in ("prompt", "generate"):
        at = found[what]
        say(
            f"{what}: portable/native {at['ratio']} ({at['least']} to {at['most']} in {options.rounds} rounds;"
            f" {at['portable']} and {at['native']} tokens a second)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
