"""What apt says, in one sentence; the texts are apt's own of Debian 12 and 13 and Ubuntu 24.04."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wsllama.host import cuda_apt

URI = "https://mirror.example/cuda/"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "W: GPG error: https://mirror.example/cuda  InRelease: The following signatures couldn't be verified because the"
            " public key is not available: NO_PUBKEY A4B469963BF863CC\n"
            "E: The repository 'https://mirror.example/cuda  InRelease' is not signed.\n",
            f"{URI} is not signed with NVIDIA's key (NO_PUBKEY A4B469963BF863CC), so nothing of it is taken",
        ),
        (
            "Err:1 https://mirror.example/cuda  InRelease\n  Sub-process /usr/bin/sqv returned an error code (1), error message"
            " is: Missing key EB693B3035CD5710E231E123A4B469963BF863CC, which is needed to verify signature.\n",
            "(Missing key EB693B3035CD5710E231E123A4B469963BF863CC)",
        ),
        (
            "E: The repository 'https://mirror.example/cuda  Release' does not have a Release file.\n",
            f"{URI} is no apt repository",
        ),
        (
            "E: Failed to fetch https://mirror.example/cuda/InRelease  Could not resolve 'mirror.example'\n"
            "E: Some index files failed to download.\n",
            f"{URI} cannot be read (Failed to fetch https://mirror.example/cuda/InRelease  Could not resolve 'mirror.example')",
        ),
        (
            "E: Failed to fetch https://mirror.example/cuda/InRelease  Certificate verification failed: The certificate is NOT"
            " trusted. The certificate chain uses expired certificate.\n",
            f"{URI} cannot be read (Failed to fetch",
        ),
        ("", f"{URI} cannot be read (it said nothing)"),
    ],
)
def test_a_repository_that_is_not_read(text: str, said: str) -> None:
    assert said in cuda_apt.unread(text, URI)
    assert "\n" not in cuda_apt.unread(text, URI)


UNMET = """\
Some packages could not be installed. This may mean that you have requested an impossible situation.
The following packages have unmet dependencies:
 cuda-nvcc-13-0 : Depends: {needed} (>= 580) but it is not installable
                  Depends: cuda-crt-13-0 but it is not going to be installed
E: Unable to correct problems, you have held broken packages.
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (UNMET.format(needed="nvidia-driver-580"), "cuda-nvcc-13-0 depends on nvidia-driver-580, a Linux driver, which would"),
        (UNMET.format(needed="libfoo1"), "cuda-nvcc-13-0 depends on libfoo1, which apt cannot install: Unable to correct"),
        ("E: You don't have enough free space in /var/cache/apt/archives/.\n", "the disk is full; make room and run again"),
        ("dpkg: error: cannot write: No space left on device\nE: Sub-process /usr/bin/dpkg returned (1)\n", "the disk is full"),
        ("E: Packages need to be removed but remove is disabled.\n", "Packages need to be removed but remove is disabled."),
        ("Killed\n", "Killed"),
    ],
)
def test_packages_that_are_not_installed(text: str, said: str) -> None:
    assert cuda_apt.why_not(text, {"forbidden": ["nvidia-[df][aikr]*"]}).startswith(said)


def test_who_holds_a_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    monkeypatch.setattr(cuda_apt, "LOCKS", (str(tmp_path / "none"), str(path)))
    assert cuda_apt.holds() == ""
    hold = (
        f"import fcntl, sys; f = open({str(path)!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        name = Path(f"/proc/{other.pid}/comm").read_text().strip()
        assert cuda_apt.holds() == f"{name} (process {other.pid}), which holds {path}"
        with pytest.raises(cuda_apt.AptError, match="others use it for too long"):
            cuda_apt.wait(0)
        other.communicate()
    assert cuda_apt.holds() == ""


def test_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "a.sources"
    cuda_apt.write(str(path), "x\n")
    first = path.stat().st_ino
    cuda_apt.write(str(path), "x\n")
    assert path.stat().st_ino == first
    path.write_bytes(b"\xff")
    cuda_apt.write(str(path), "x\n")
    assert path.read_text() == "x\n"
    assert [p.name for p in tmp_path.iterdir()] == ["a.sources"]
