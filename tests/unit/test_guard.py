"""The real pyinfra command, with inventories that must be refused before anything connects, and with some that must not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from wsllama import engine, guard

ROOT = Path(__file__).parents[2]
PYINFRA = str(Path(sys.executable).parent / "pyinfra")
QUICK = '"fake_delay": 0, "fake_delay_jitter": 0'
GOOD = '"platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}'


def pyinfra(*words: str | Path, cwd: Path = ROOT) -> tuple[int, list[str], str]:
    """Exit code, the sentences of a refusal, and everything that was said."""
    p = subprocess.run(
        [PYINFRA, *map(str, words)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    refused = [line.removeprefix("refused: ") for line in p.stdout.splitlines() if line.startswith("refused: ")]
    assert "Traceback" not in p.stdout
    return p.returncode, refused, p.stdout


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """One host whose settings are right and two whose settings are not."""
    path = tmp_path / "fleet"
    bad_1 = f'("@fake/bad-1", {{{QUICK}, {GOOD}, "port": 1}})'
    bad_2 = f'("@fake/bad-2", {{{QUICK}, "server": {{"ctx": 1, "port": 0}}}})'
    path.write_text(f'good = [("@fake/good", {{{QUICK}, {GOOD}}})]\nbad = [{bad_1}, {bad_2}]\n')
    return path


def test_everything_that_is_wrong_is_said_at_once_and_nothing_connects(fleet: Path) -> None:
    code, refused, out = pyinfra(
        fleet, "deploy.py", "--no-wait", "--limit", "nobody-*", "--limit", "bad", "--limit", "@fake/good"
    )
    assert code == 2
    assert [r.split(":")[0] for r in refused[:3]] == [
        "--limit nobody-* matches no host and no group of the inventory",
        "--no-wait reports success for hosts that failed",
        "there is no terminal to ask on",
    ]
    assert refused[3:] == [
        "@fake/bad-1: unknown setting port: did you mean server.port?",
        "@fake/bad-2: server.port = 0: Input should be greater than or equal to 1",
        "@fake/bad-2: unknown setting server.ctx: did you mean server.ctx_size?",
    ]
    assert not re.search(r"\] +Connected", out)


def test_an_inventory_that_is_not_there(tmp_path: Path) -> None:
    code, refused, _ = pyinfra(tmp_path / "nothing", "deploy.py", "-y")
    assert code == 2
    assert refused == [f"there is no inventory {tmp_path}/nothing: give a file that is there, or hosts with commas between them"]


def test_a_name_that_means_nothing() -> None:
    code, refused, out = pyinfra("inventry", "deploy.py", "-y")
    assert code == 2
    assert refused == ["the inventory inventry holds no host: give a file that lists some, or hosts with commas between them"]
    assert "neither an inventory file" in out


def test_an_inventory_that_goes_wrong(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("desks = [\n")
    code, refused, _ = pyinfra(tmp_path / "broken", "deploy.py", "-y")
    assert code == 2
    assert refused[0].startswith(f"the inventory {tmp_path}/broken can't be read: SyntaxError: ")


def test_an_empty_inventory_and_an_ad_hoc_command(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("desks = []\n")
    code, refused, _ = pyinfra(tmp_path / "empty", "exec", "--", "true")
    assert code == 2
    assert refused[0].startswith(f"the inventory {tmp_path}/empty holds no host")


def test_limit_and_exclude_that_leave_nobody(fleet: Path) -> None:
    code, refused, _ = pyinfra(fleet, "deploy.py", "-y", "--limit", "good", "--exclude", "@fake/g*")
    assert (code, refused) == (2, ["--limit and --exclude leave no host"])


def test_what_is_wrong_with_others_is_not_in_the_way_and_a_dry_run_asks_nobody(fleet: Path) -> None:
    code, refused, out = pyinfra(fleet, "deploy.py", "--dry", "--limit", "good")
    assert refused == []
    assert re.search(r"\[@fake/good\] +Connected", out)
    assert "the host can't be looked at: no answer" in out  # a @fake host answers nothing
    assert code == 1


def test_an_ad_hoc_command_needs_no_settings(fleet: Path) -> None:
    code, refused, out = pyinfra(fleet, "exec", "-y", "--", "true")
    assert (code, refused) == (0, [])
    assert len(re.findall(r"\] +Success", out)) == 3


def test_from_another_folder(fleet: Path, tmp_path: Path) -> None:
    code, _, out = pyinfra(fleet, ROOT / "deploy.py", "-y", "--limit", "good", cwd=tmp_path)
    assert code != 0
    assert "config.py was not read: run pyinfra in the project's own folder, or give --chdir" in out
    assert "# probe" not in out


def test_ctrl_c_is_no_success(tmp_path: Path) -> None:
    path = tmp_path / "slow"
    path.write_text('desks = [("@fake/slow", {"fake_delay": 86400})]\n')
    p = subprocess.Popen(
        [PYINFRA, str(path), "exec", "-y", "--", "true"], cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert p.stderr is not None
    said = []
    for line in p.stderr:  # until the operation runs
        said.append(line)
        if "Starting operation" in line:
            break
    p.send_signal(signal.SIGINT)
    said.append(p.communicate(timeout=900)[1])  # not only when the operation has ended
    assert p.returncode == 130, said
    assert "interrupted: what runs as a unit on a host goes on there, and the next run follows it" in said[-1]


def test_a_pyinfra_that_lacks_our_packages_names_the_way_out(tmp_path: Path) -> None:
    installed = Path(sysconfig.get_path("purelib"))
    for entry in installed.iterdir():
        if not entry.name.startswith(("pydantic", "__editable__")) and entry.suffix != ".pth":
            (tmp_path / entry.name).symlink_to(entry)
    p = subprocess.run(
        [sys.executable, "-S", "-c", "from pyinfra_cli.main import main; main()", "@fake", "exec", "--", "true"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert p.returncode == 1
    assert p.stderr.strip().endswith("lacks pydantic: run scripts/setup and use the pyinfra that it makes")
    assert "Traceback" not in p.stderr


def test_levels_of_a_real_inventory(tmp_path: Path) -> None:
    (tmp_path / "group_data").mkdir()
    (tmp_path / "group_data/all.py").write_text('model = {"path": "/all", "on": "host"}\nserver = {"port": 1, "ctx_size": 256}\n')
    (tmp_path / "group_data/desks.py").write_text('server = {"port": 2}\nplatform = "linux"\n')
    (tmp_path / "fleet").write_text(
        'desks = [("@fake/a", {"server": {"port": 3}, "model": {"alias": "a"}}), ("@fake/b", {})]\nothers = ["@fake/c"]\n'
    )

    def seen(name: str, given: dict[str, object]) -> tuple[str, int, int, str, str]:
        inventory = engine.read_inventory(str(tmp_path / "fleet"), str(tmp_path), given)
        found = guard.settings_of(inventory.get_host(name))
        return found.platform, found.server.port, found.server.ctx_size, str(found.model.path), found.model.alias

    assert seen("@fake/c", {}) == ("wsl", 1, 256, "/all", "qwen3.6-35b-a3b")
    assert seen("@fake/b", {}) == ("linux", 2, 256, "/all", "qwen3.6-35b-a3b")
    assert seen("@fake/a", {}) == ("linux", 3, 256, "/all", "a")
    assert seen("@fake/a", {"server": {"port": 4}, "platform": "wsl"}) == ("wsl", 4, 256, "/all", "a")


def test_the_projects_own_inventory_needs_only_a_model() -> None:
    inventory = engine.read_inventory(str(ROOT / "inventory"), str(ROOT))
    errors = guard.settings_errors(inventory, inventory)
    assert [h.name for h in inventory] == ["@local"]
    assert errors == [
        '@local: settings: model.path is not set: give the GGUF, as in model = {"path": "/path/of/file.gguf"}, or model.name'
    ]


def test_a_fleet_as_the_comment_in_the_inventory_has_it(tmp_path: Path) -> None:
    text = (ROOT / "inventory").read_text(encoding="utf-8")
    commented = ("# desktops", "#     (", "# ]")
    lines = [line[2:] if line.startswith(commented) else line for line in text.splitlines()]
    (tmp_path / "inventory").write_text("\n".join(lines) + "\n")
    shutil.copytree(ROOT / "group_data", tmp_path / "group_data")
    inventory = engine.read_inventory(
        str(tmp_path / "inventory"), str(tmp_path), {"model": {"path": "/srv/a.gguf", "on": "host"}}
    )
    assert guard.settings_errors(inventory, inventory) == []
    assert sorted(h.name for h in guard.limited(inventory, ["desktops"])) == ["desk-1", "desk-2"]
    assert guard.settings_of(inventory.get_host("desk-2")).server.ctx_size == 32768


def test_what_is_pending_is_said_last_and_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guard, "_pending", {})
    monkeypatch.setattr(guard, "_last_words", ["how to connect"])
    guard._exit(failed=False)
    guard.pending("b", ["pending: this"])
    guard.pending("a", ["pending: that"])
    guard._exit(failed=True)
    with pytest.raises(SystemExit) as ended:
        guard._exit(failed=False)
    assert ended.value.code == 5
    guard._farewell()
    assert capsys.readouterr().err.splitlines() == ["how to connect", "a: pending: that", "b: pending: this"]
