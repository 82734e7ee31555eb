"""`scripts/demo`: one throw-away machine on this computer, from nothing to a chat reply."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lab import Lab, LabError, tiny_model
from lab.base import cache_dir

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "Are you ready?"
EXAMPLES = """\
examples:
  scripts/demo
  scripts/demo --keep                     leave the machine running, to look around
  scripts/demo --model ~/Qwen3.6-35B-A3B-Q4_K_M.gguf
  scripts/demo --json demo.json           write what happened
"""


class DemoError(Exception):
    """One sentence: what went wrong."""


def heading(text: str) -> None:
    print(f"\n\033[1m== {text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def call(program: str, *words: str) -> dict[str, Any]:
    """Run one of the venv's programs in the project's folder; its progress goes to the terminal, its JSON is returned."""
    p = subprocess.run([str(ROOT / ".venv" / "bin" / program), *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        document: dict[str, Any] = json.loads(p.stdout)
    except ValueError:
        raise DemoError(f"{program} ended with status {p.returncode} and no result; the reason stands above") from None
    return document


def deploy(inventory: Path) -> dict[str, Any]:
    """`pyinfra INVENTORY deploy.py`, counted."""
    began = time.monotonic()
    results = call("pyinfra", str(inventory), "deploy.py", "-y", "--json")["results"]
    totals, failed = results["totals"], results["failed_hosts"]
    counted = {"changed": totals["success"], "failed": totals["error"] + len(failed)}
    return {**counted, "seconds": round(time.monotonic() - began, 1)}


def show(lab: Lab, model: Path, scripted: bool) -> dict[str, Any]:
    """The whole demonstration on an open lab; raises DemoError when something isn't as it has to be."""
    host = lab.hosts[0]
    # The small model needs no second thread, and threads that wait for each other spin where cores are busy.
    server = {"server": {"threads": 1}, "acceptance": {"long_prompt_s": 2}} if scripted else {}
    inventory = lab.inventory(lab.record.folder / "demo", {host.name: {"model": {"path": str(model)}, **server}})
    heading(f"first run: pyinfra {inventory} deploy.py")
    first = deploy(inventory)
    if first["failed"]:
        raise DemoError("the first run failed; the reason stands above")
    heading("the end state: wsllama verify")
    endstate = call("wsllama", "verify", str(inventory), "--json")
    print(f"{endstate['passed']} checks passed, {endstate['failed']} failed")
    heading(f'one question: wsllama ask {inventory} "{QUESTION}"')
    if scripted:
        print("(the model here is a small one that plays a script: whatever it is asked, it thinks, then answers READY)")
    reply = call("wsllama", "ask", str(inventory), QUESTION, "--json")["replies"].get(host.name)
    if not reply:
        raise DemoError("the server gave no reply; the reason stands above")
    print(f"it thinks:  {reply['reasoning'].strip()}\nit answers: {reply['content'].strip()}")
    heading("second run: nothing is left to do")
    second = deploy(inventory)
    print(f"{second['changed']} changes, {second['failed']} failures, {second['seconds']} s")
    version = host.run(["/opt/wsllama/current/build/bin/llama-server", "--version"]).stderr.strip()
    if second["changed"] or second["failed"] or endstate["failed"] or not endstate["passed"]:
        raise DemoError("the second run or the end state is not as it has to be; see above")
    return {
        "first_run": first,
        "second_run": second,
        "reply": {"reasoning": reply["reasoning"].strip(), "content": reply["content"].strip()},
        "version": version,
        "endstate": {"passed": endstate["passed"], "failed": endstate["failed"]},
    }


def look_next(lab: Lab, kept: bool) -> None:
    heading("what to look at next")
    if kept:
        print(f"  .venv/bin/python -m lab sh {lab.hosts[0].name}      a shell on the machine, which goes on running")
        print("  .venv/bin/python -m lab down                remove it")
    print("  deploy.py                                   the whole provisioning, a line a stage")
    print("  docs/architecture.md                        how it is built")
    print("  README.md                                   the same on a WSL machine, or on twenty")


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="leave the machine running")
    parser.add_argument("--model", type=Path, metavar="FILE", help="a real GGUF instead of the small model that plays a script")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what happened as JSON")
    options = parser.parse_args()
    try:
        if options.model and not options.model.is_file():
            raise DemoError(f"there is no file {options.model}")
        heading("a throw-away machine (the first time its system is fetched, about a minute and a half)")
        lab = Lab(hosts=1, name="demo", binds={cache_dir() / "ccache": "/var/cache/wsllama/ccache"}).open()
        try:
            folder = lab.record.folder  # what is in it stays as long as the machine
            model = options.model.resolve() if options.model else tiny_model.write(folder / "Qwen3.6-35B-A3B-tiny.gguf")
            happened = show(lab, model, scripted=options.model is None)
            if options.json:
                options.json.write_text(json.dumps(happened, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            look_next(lab, options.keep)
        finally:
            if options.keep:
                lab.keep()
            else:
                lab.close()
        return 0
    except (DemoError, LabError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; the machine is removed", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
