"""The programs for hosts run from stdin with a bare python3, wherever they are started, and take any argument unharmed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wsllama import program

HOST = Path(program.__file__).parent / "host"
NAMES = sorted(p.stem for p in HOST.glob("*.py") if "\ndef main(" in p.read_text(encoding="utf-8"))
NASTY = {"a": "'\"\\ \n\t$HOME `id` %s {x} \u2028 grün 😀 \x7f", "b": [None, True, -1.5e300, 10**30], "": {}}


def run(text: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"]}
    return subprocess.run([sys.executable, "-I", "-S", "-"], input=text, cwd=cwd, env=environment, capture_output=True, text=True)


def test_there_are_programs() -> None:
    assert {"probe", "apply", "accept", "ask", "release", "reach", "build", "model", "follow"} <= set(NAMES)
    assert set(program.PARTS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_needs_nothing_but_python(name: str, tmp_path: Path) -> None:
    p = run(program.text(name) + "\nprint(callable(main))\n", tmp_path)
    assert (p.returncode, p.stdout, p.stderr) == (0, "True\n", ""), "and does nothing before main is called"


@pytest.mark.parametrize("name", NAMES)
def test_each_reads_as_the_oldest_python_that_we_support(name: str) -> None:
    ast.parse((HOST / f"{name}.py").read_text(encoding="utf-8"), feature_version=(3, 10))


def test_an_argument_arrives_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "text", lambda name: "def main(argument):\n    import json\n    print(json.dumps(argument))")
    p = run(program.call("echo", NASTY), tmp_path)
    assert json.loads(p.stdout) == NASTY


def test_a_hosts_umask_hides_nothing_from_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "text", lambda name: "def main(argument):\n    import os\n    os.makedirs(argument)")
    before = os.umask(0o077)
    try:
        run(program.call("make", "made"), tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o755


def test_a_failure_is_one_sentence_without_a_traceback(tmp_path: Path) -> None:
    argument = [{"path": f"{tmp_path}/no/x", "kind": "file", "mode": "644", "user": "root", "group": "root", "data": ""}]
    p = run(program.call("apply", argument), tmp_path)
    assert p.returncode == 1
    assert p.stderr == f"{tmp_path}/no/x can't be written: No such file or directory\n"


def test_a_part_that_is_not_asked_for_is_not_read(tmp_path: Path) -> None:
    names = "print([n.rpartition('.')[2] for n in sys.modules if n.startswith('wsllama.host.')])"
    for asked, read in (
        ({"files": {}}, []),
        ({"windows": {}}, []),
        ({"windows": {"s": {"profile": None, "windows": False}}}, ["interop", "windows"]),
    ):
        p = run(program.call("probe", asked) + f"import sys\n{names}\n", tmp_path)
        assert p.returncode == 0, p.stderr
        assert sorted(ast.literal_eval(p.stdout.splitlines()[-1])) == [*read[:1], "probe", *read[1:]]


def test_a_program_that_has_answered_ends_well_whoever_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader closes the pipe when it has the answer; here the program's end always comes after that."""
    answers = "def main(argument):\n    import select\n    print('{}', flush=True)\n    closed = select.poll()\n"
    answers += "    closed.register(1, 0)\n    closed.poll()"
    monkeypatch.setattr(program, "text", lambda name: answers)
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", program.call("answers", {})], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"{}\n"
    process.stdout.close()
    assert process.wait(timeout=600) == 0


def test_a_program_ends_with_the_run_that_wanted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C and a cut end remote work that says nothing either: sshd closes the pipe, as here."""
    waits = "def main(argument):\n    import time\n    print('waits', flush=True)\n    time.sleep(86400)"
    monkeypatch.setattr(program, "text", lambda name: waits)
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", program.call("waits", {})], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"waits\n"
    assert process.poll() is None
    process.stdout.close()
    try:
        assert process.wait(timeout=600) == 1
    finally:
        process.kill()
