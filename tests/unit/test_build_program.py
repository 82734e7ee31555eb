"""The program that builds on a host, run on this machine with real tools on a project that has llama.cpp's shape but
compiles in a second. The real llama.cpp is built in the lab."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from wsllama.domain.build import TARGETS, cmake_options
from wsllama.host import build as program

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("cmake", "ninja", "cc", "git"))), reason="needs cmake, ninja, cc and git on this machine"
)

COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
CMAKE = """
cmake_minimum_required(VERSION 3.14)
project(small C)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(OPENSSL_SSL_LIBRARY libssl.so CACHE STRING "")
add_library(part SHARED part.c)
set_target_properties(part PROPERTIES VERSION 0.5.0 SOVERSION 0)
foreach(name llama-server llama-fit-params llama-bench llama-gguf-split)
  add_executable(${name} main.c)
  target_link_libraries(${name} part)
endforeach()
target_compile_definitions(part PRIVATE "SAYS=\\"build ${LLAMA_BUILD_NUMBER}, commit ${LLAMA_BUILD_COMMIT}\\"")
"""
FILES = {
    "CMakeLists.txt": CMAKE,
    "part.c": "const char *says(void) { return SAYS; }\nconst char *file(void) { return __FILE__; }\n",
    "main.c": '#include <stdio.h>\nconst char *says(void);\nint main(void) { return fprintf(stderr, "%s\\n", says()) < 0; }\n',
}


class Host:
    """The folders of a host, and the argument that a deploy would give."""

    def __init__(self, root: Path) -> None:
        self.root, self.builds, self.work = root, root / "builds", root / "work"
        options = {k: v for k, v in cmake_options(COMMIT, 11434).items() if "LAUNCHER" not in k}
        self.argument: dict[str, Any] = {
            "build_id": "a" * 16,
            "commit": COMMIT,
            "options": options,
            "targets": list(TARGETS),
            "jobs": 2,
            "work_bytes": 10**6,
            "inputs": {},
            "ccache_dir": str(root / "ccache"),
            "environment": {},
            "builds": str(self.builds),
            "work": str(self.work),
            "source": self.tar(FILES),
        }

    def tar(self, files: dict[str, str]) -> dict[str, str]:
        path = self.root / "source.tar.gz"
        with tarfile.open(path, "w:gz") as out:
            for name, text in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(text)
                out.addfile(member, io.BytesIO(text.encode()))
        return {"kind": "tar", "path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}

    def text(self, **changed: Any) -> str:
        """The program as it is sent to a host."""
        argument = json.dumps({**self.argument, **changed})
        source = Path(program.__file__).read_text(encoding="utf-8")
        return f"{source}\nmain(json.loads({argument!r}))\n"

    def run(self, **changed: Any) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-I", "-S", "-"]
        return subprocess.run(command, input=self.text(**changed), capture_output=True, text=True, timeout=900)

    def refuse(self, **changed: Any) -> str:
        """Run what must fail: one sentence, status 1, nothing left and nothing touched."""
        before = sorted(self.builds.rglob("*"))
        ran = self.run(**changed)
        assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran.stderr
        assert "Traceback" not in ran.stderr
        assert sorted(self.builds.rglob("*")) == before
        assert [p.name for p in self.work.iterdir()] == ["lock"]
        return ran.stderr


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_build_appears_whole_and_is_not_made_again(host: Host) -> None:
    ran = host.run()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    assert (said["changed"], said["version"]) == (True, "build 11434, commit 0c1e57098")
    folder = host.builds / ("a" * 16)
    record = json.loads((folder / "build.json").read_text())
    assert sorted(record["files"]) == sorted(
        [*(f"bin/{t}" for t in TARGETS), "lib/libpart.so", "lib/libpart.so.0", "lib/libpart.so.0.5.0"]
    )
    for name, of in record["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == of["sha256"]
    assert os.readlink(folder / "lib" / "libpart.so.0") == "libpart.so.0.5.0"
    assert [p.name for p in host.builds.iterdir()] == ["a" * 16]
    again = host.run()
    assert json.loads(again.stdout.splitlines()[-1])["changed"] is False
    assert "==>" not in again.stdout


def test_it_runs_wherever_it_is_moved_and_names_no_folder_of_the_build(host: Host) -> None:
    assert host.run().returncode == 0
    moved = (host.builds / ("a" * 16)).rename(host.root / "elsewhere")
    said = subprocess.run([moved / "bin" / "llama-server"], env={}, capture_output=True, text=True)
    assert said.stderr == "build 11434, commit 0c1e57098\n"
    library = (moved / "lib" / "libpart.so.0").read_bytes()
    assert b"\0part.c\0" in library
    assert str(host.work).encode() not in library


def test_the_stages_and_the_percents_are_there_to_follow(host: Host) -> None:
    lines = host.run().stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("==> ")] == ["unpack", "configure", "compile", "install"]
    assert any(line.startswith("[100%] ") for line in lines)


@pytest.mark.parametrize("damage", ["cut", "missing", "record"])
def test_a_damaged_build_is_made_again(host: Host, damage: str) -> None:
    assert host.run().returncode == 0
    library = host.builds / ("a" * 16) / "lib" / "libpart.so.0.5.0"
    whole = library.read_bytes()
    if damage == "cut":
        library.write_bytes(whole[:-1])
    elif damage == "missing":
        library.unlink()
    else:
        (host.builds / ("a" * 16) / "build.json").write_text('{"build_id": ')
    ran = host.run()
    assert json.loads(ran.stdout.splitlines()[-1])["changed"] is True
    assert library.read_bytes() == whole


def test_a_source_with_one_changed_byte_is_refused(host: Host) -> None:
    path = Path(host.argument["source"]["path"])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert f"instead of {host.argument['source']['sha256']}; send it again" in host.refuse()


def test_a_name_that_leads_out_is_refused(host: Host) -> None:
    assert "no plain file inside it" in host.refuse(source=host.tar({**FILES, "../evil": "x"}))
    assert not list(host.root.rglob("evil"))


def test_a_compile_error_leaves_the_builds_that_are_there(host: Host) -> None:
    assert host.run().returncode == 0
    broken = host.tar({**FILES, "part.c": "#error no\n"})
    assert "compiling failed" in host.refuse(source=broken, build_id="b" * 16)
    assert "configuring failed" in host.refuse(source=host.tar({"CMakeLists.txt": "nonsense("}), build_id="b" * 16)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("${LLAMA_BUILD_NUMBER}", "1", "(status 0): build 1, commit 0c1e57098"),
        ("${LLAMA_BUILD_NUMBER}", "114340", "(status 0): build 114340, commit 0c1e57098"),
        ("${LLAMA_BUILD_COMMIT}", "unknown", "(status 0): build 11434, commit unknown"),
        ("main.c)", "fails.c)", "(status 3): build 11434, commit 0c1e57098"),
    ],
)
def test_programs_that_do_not_name_the_pin_are_refused(host: Host, old: str, new: str, said: str) -> None:
    files = {**FILES, "CMakeLists.txt": CMAKE.replace(old, new), "fails.c": FILES["main.c"].replace("< 0", "< 0 ? 0 : 3")}
    assert f"does not name build 11434 and commit 0c1e57098 {said}" in host.refuse(source=host.tar(files))


def test_what_cmake_did_not_do_is_noticed(host: Host) -> None:
    forced = CMAKE + 'set(GGML_NATIVE OFF CACHE BOOL "" FORCE)\n'
    assert "cmake made GGML_NATIVE=OFF of GGML_NATIVE=ON" in host.refuse(source=host.tar({**FILES, "CMakeLists.txt": forced}))
    without = CMAKE.replace("libssl.so CACHE", "OPENSSL_SSL_LIBRARY-NOTFOUND CACHE")
    assert "install libssl-dev" in host.refuse(source=host.tar({**FILES, "CMakeLists.txt": without}))


def test_too_little_disk_is_said_before_anything_is_done(host: Host) -> None:
    with pytest.raises(SystemExit, match=r"GB of disk space left and a build needs 1000000\.0 GB; make room there"):
        program.main({**host.argument, "work_bytes": 10**15})
    assert [p.name for p in host.work.iterdir()] == ["lock"]


@pytest.mark.skipif(not shutil.which("ccache"), reason="needs ccache on this machine")
def test_the_compiler_cache_serves_the_next_build_but_not_another_cpu(host: Host) -> None:
    options = cmake_options(COMMIT, 11434)

    def hits(build_id: str, *flags: str) -> int:
        ran = host.run(build_id=build_id, options=options, inputs={"cpu_flags": flags})
        assert ran.returncode == 0, ran.stderr
        env = {"PATH": os.environ["PATH"], "CCACHE_DIR": host.argument["ccache_dir"]}
        said = subprocess.run(["ccache", "--print-stats"], env=env, check=True, capture_output=True, text=True).stdout
        counts = dict(line.split("\t") for line in said.splitlines())
        return int(counts["direct_cache_hit"]) + int(counts["preprocessed_cache_hit"])

    first = hits("a" * 16, "avx2", "fma")
    served = hits("b" * 16, "avx2", "fma") - first
    assert served > first, "cmake tries the compiler with the same few lines in every build; the rest is served besides"
    assert hits("c" * 16, "avx2", "avx512f") - first - served < served


def commit_of(repository: Path, files: dict[str, str]) -> str:
    repository.mkdir()
    for name, text in files.items():
        (repository / name).write_text(text)
    git = ["git", "-C", str(repository), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"], ["commit", "-q", "--allow-empty", "-m", "y"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD~"], check=True, capture_output=True, text=True).stdout.strip()


def test_a_bare_commit_is_fetched_and_compared(host: Host) -> None:
    """Not the tip of a branch: what a pin is."""
    repository = host.root / "repository"
    commit = commit_of(repository, FILES)
    source = {"kind": "git", "url": f"file://{repository}", "commit": commit, "tree": None}
    ran = host.run(source=source)
    assert ran.returncode == 0, ran.stderr
    assert "==> fetch" in ran.stdout
    assert f"instead of {'2' * 40}" in host.refuse(source={**source, "tree": "2" * 40}, build_id="b" * 16)
    said = host.refuse(source={**source, "commit": "1" * 40}, build_id="b" * 16)
    assert f"fetching {'1' * 40} from file://{repository} failed" in said


def test_a_build_that_was_killed_is_finished_by_the_next_run(host: Host) -> None:
    waits = host.root / "waits"  # while it is there: what ninja starts has a process group of its own and outlives it
    waits.write_text(f"while test -e {waits}; do sleep 0.1; done\n")
    slow = CMAKE.replace("add_library", f"add_custom_command(OUTPUT part.c COMMAND sh {waits})\nadd_library")
    source = host.tar({**FILES, "CMakeLists.txt": slow})
    command = [sys.executable, "-I", "-S", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, text=True) as p:
        assert p.stdin
        p.stdin.write(host.text(source=source))
        p.stdin.close()
        while not (host.work / "out" / "build.ninja").exists():
            assert p.poll() is None
            time.sleep(0.05)
        os.killpg(p.pid, 9)
    waits.unlink()
    (host.builds / ".partial-of-another").mkdir()
    ran = host.run(source=host.tar(FILES))
    assert ran.returncode == 0, ran.stderr
    assert [p.name for p in host.builds.iterdir()] == ["a" * 16]
    assert [p.name for p in host.work.iterdir()] == ["lock"]
