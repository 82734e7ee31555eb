"""scripts/setup, run as a normal user in a copy of what it reads: links, words, refusals. What it installs is CI's to try."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = "/usr/local/bin:/usr/bin:/bin"
# What scripts/setup writes down when it has made .venv, of this tree and this python.
STAMP = '(cat requirements.lock pyproject.toml; "$(command -v python3)" --version; pwd -P) | sha256sum >.venv/.made-of'


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.tree, self.home = folder / "checkout", folder / "home"
        (self.tree / "scripts").mkdir(parents=True)
        self.home.mkdir()
        for name in ("scripts/setup", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, self.tree / name)
        (self.tree / ".venv/bin").mkdir(parents=True)
        subprocess.run(["bash", "-c", STAMP], cwd=self.tree, env={"PATH": PATH}, check=True)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        if os.geteuid() == 0:  # root's links go to /usr/local/bin, which isn't ours to touch here
            nobody = pwd.getpwnam("nobody")
            for path in (self.tree, self.home, *self.tree.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)

    def setup(self, *words: str, path: str = PATH) -> subprocess.CompletedProcess[str]:
        user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
        environment = {"PATH": path, "HOME": str(self.home)}
        command = [*user, str(self.tree / "scripts/setup"), *words]
        return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def link(self, name: str) -> Path:
        return self.home / ".local/bin" / name


@pytest.fixture
def checkout() -> Iterator[Checkout]:
    folder = Path(tempfile.mkdtemp(prefix="wsllama-setup-"))  # pytest's own folders are closed to other users
    yield Checkout(folder)
    shutil.rmtree(folder)


def test_links_are_made_once(checkout: Checkout) -> None:
    p = checkout.setup()
    assert p.returncode == 0, p.stderr
    for name in ("pyinfra", "wsllama"):
        assert os.readlink(checkout.link(name)) == f"{checkout.tree}/.venv/bin/{name}"
    assert f"setup: {checkout.home}/.local/bin is not on your PATH" in p.stderr
    again = checkout.setup(path=f"{PATH}:{checkout.home}/.local/bin")
    assert again.stderr == "setup: done: pyinfra inventory deploy.py\n"


def test_a_foreign_file_stays(checkout: Checkout) -> None:
    checkout.setup("--no-path")
    bin = checkout.link("pyinfra").parent
    (checkout.home / "mine").write_text("mine\n")
    os.makedirs(bin)
    checkout.link("pyinfra").write_text("mine\n")
    checkout.link("wsllama").symlink_to(checkout.home / "mine")
    for path in (bin.parent, bin):
        path.chmod(0o777)
    p = checkout.setup()
    assert p.returncode == 0
    assert checkout.link("pyinfra").read_text() == "mine\n"
    assert checkout.link("wsllama").read_text() == "mine\n"
    assert f"{bin}/pyinfra is there and not ours, so it stays: use {checkout.tree}/.venv/bin/pyinfra" in p.stderr


def test_a_link_of_an_earlier_checkout_gives_way(checkout: Checkout) -> None:
    os.makedirs(checkout.link("pyinfra").parent)
    checkout.link("pyinfra").symlink_to("/srv/old/wsllama/.venv/bin/pyinfra")
    for path in (checkout.home / ".local", checkout.home / ".local/bin"):
        path.chmod(0o777)
    assert checkout.setup().returncode == 0
    assert os.readlink(checkout.link("pyinfra")) == f"{checkout.tree}/.venv/bin/pyinfra"


def test_no_path_leaves_the_home_alone(checkout: Checkout) -> None:
    p = checkout.setup("--no-path")
    assert (p.returncode, p.stderr) == (0, "")
    assert list(checkout.home.iterdir()) == []


def test_help(checkout: Checkout) -> None:
    p = checkout.setup("--help")
    assert p.returncode == 0
    assert "usage: scripts/setup" in p.stdout
    assert "examples:" in p.stdout
    assert list(checkout.home.iterdir()) == []


def test_an_unknown_option(checkout: Checkout) -> None:
    p = checkout.setup("--nonsense")
    assert p.returncode == 1
    assert "setup: unknown option --nonsense" in p.stderr
    assert list(checkout.home.iterdir()) == []


@pytest.mark.skipif(not os.access("/mnt", os.W_OK), reason="needs a folder under /mnt")
@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_checkout_on_a_windows_drive_is_refused(tmp_path: Path, through_a_link: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix="wsllama-test-", dir="/mnt"))
    try:
        (folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/setup", folder / "scripts/setup")
        called = folder
        if through_a_link:
            called = tmp_path / "link"
            called.symlink_to(folder)
        p = subprocess.run([called / "scripts/setup"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert p.returncode == 1
        assert f"setup: this checkout lies on a Windows drive ({folder})" in p.stderr
        assert "clone it into your Linux home" in p.stderr
        assert [x.name for x in folder.iterdir()] == ["scripts"], "nothing was made there"
    finally:
        shutil.rmtree(folder)
