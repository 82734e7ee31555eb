"""What a followed unit runs, without the unit: how a program's end becomes the result. Units themselves need systemd: lab."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wsllama.host import follow


class Task:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, program: str, argument: Any = None, **environment: str) -> "subprocess.CompletedProcess[bytes]":
        a = {"unit": "x", "key": "k", "program": program, "argument": argument, "environment": environment}
        path = self.folder / "x.py"
        path.write_text(follow.task_text({**a, "run": str(self.folder)}), encoding="utf-8")
        return subprocess.run([sys.executable, "-I", "-S", path], capture_output=True)

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "x.result.json").read_bytes())
        return found


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


def test_the_last_line_is_the_result_and_the_others_are_the_log(task: Task) -> None:
    program = 'import json\ndef main(a):\n    print("one", "two")\n    print(json.dumps({"got": a}))\n'
    ran = task.run(program, {"name": "grüße \"'\\ \n"})
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.startswith(b"one two\n")
    assert task.result() == {
        "key": "k",
        "ok": True,
        "error": None,
        "result": {"got": {"name": "grüße \"'\\ \n"}},
        "seconds": task.result()["seconds"],
    }


def test_what_was_handed_over_is_gone_once_it_runs_and_the_result_is_private(task: Task) -> None:
    task.run("import os\ndef main(a):\n    print(int(os.path.exists(a)))\n", str(task.folder / "x.py"))
    assert task.result()["result"] == 0
    assert [p.name for p in task.folder.iterdir()] == ["x.result.json"]
    assert (task.folder / "x.result.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('sys.exit("cannot do it: no")', "cannot do it: no"),
        ('print("said before"); print("one sentence", file=sys.stderr); sys.exit(1)', "one sentence"),
        ("sys.exit(7)", "it ended with status 7"),
        ('raise OSError(28, "No space left on device", "/x")', "OSError: [Errno 28] No space left on device: '/x'"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
    ],
)
def test_a_failure_is_its_sentence(task: Task, body: str, error: str) -> None:
    ran = task.run(f"import sys\ndef main(a):\n    {body}\n")
    assert ran.returncode == 1
    assert (task.result()["ok"], task.result()["error"]) == (False, error)


def test_a_program_that_cannot_be_compiled_fails_too(task: Task) -> None:
    task.run("def main(a)\n")
    assert task.result()["error"].startswith("SyntaxError: ")


def test_status_0_and_no_json_is_a_success_without_result(task: Task) -> None:
    task.run('import sys\ndef main(a):\n    print("done")\n    sys.exit(0)\n')
    assert (task.result()["ok"], task.result()["result"]) == (True, None)


def test_the_environment_and_the_character_set_reach_the_program(task: Task) -> None:
    ran = task.run(
        'import os, subprocess\ndef main(a):\n    print("ä\\udcff", os.environ["PROXY"], flush=True)\n'
        '    subprocess.run(["sh", "-c", "echo $PROXY $LC_ALL"])\n',
        PROXY="http://p:1",
    )
    assert ran.stdout.decode() == "ä\\udcff http://p:1\nhttp://p:1 C.UTF-8\n"


@pytest.mark.skipif(not shutil.which("systemctl"), reason="needs systemctl")
def test_the_result_counts_only_for_its_key(task: Task) -> None:
    """A result of other work, left from before, is never taken for this one's."""
    task.run("def main(a):\n    print(1)\n")
    (task.folder / "log").write_text("")
    running = {"key": "k", "log": str(task.folder / "log"), "offset": 0, "limit_s": 0, "started": 0.0}
    ours = {"unit": "x", "run": str(task.folder)}
    assert follow.judge({**ours, "key": "k"}, running)["result"] == 1
    other = follow.judge({**ours, "key": "other"}, {**running, "key": "other"})
    assert (other["ok"], other["error"].startswith("x was ended from outside")) == (False, True)


def test_a_failure_brings_the_lines_that_matter_without_its_own_sentence(task: Task) -> None:
    log = task.folder / "log"
    log.write_bytes(b"an older run: error: old\n")
    offset = log.stat().st_size
    ran = task.run('import sys\ndef main(a):\n    print("a.c:1: error: \\xff no")\n    sys.exit("error: cannot do it")\n')
    log.write_bytes(log.read_bytes() + ran.stdout.replace("ÿ".encode(), b"\xff") + ran.stderr)
    running = {"key": "k", "log": str(log), "offset": offset, "limit_s": 0, "started": 0.0}
    document = follow.judge({"unit": "x", "run": str(task.folder), "key": "k"}, running)
    assert document == {
        "ok": False,
        "key": "k",
        "log": str(log),
        "error": "error: cannot do it",
        "lines": ["a.c:1: error: \ufffd no"],
    }
