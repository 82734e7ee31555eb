"""Runs on the host: builds llama.cpp from a verified source into a folder of its own, which appears whole or never.

WORK/lock                     one build at a time on a host
WORK/src  WORK/out            source and build tree: the same paths for every build, so that a compiler cache filled
                              by one build serves the next; removed at the end, whatever the end was
BUILDS/.partial-<id>/         what is being put together
BUILDS/<id>/bin  lib          programs, and their libraries that are found at $ORIGIN/../lib; backends that are loaded at
                              the start lie beside the programs, where they are looked for
BUILDS/<id>/build.json        what it was made from, its files with sha256; it says that the build is whole
"""

import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from typing import Any

BUILDS = "/opt/wsllama/builds"
WORK = "/var/cache/wsllama/build"
CUDA_LIBRARIES = ("libcudart", "libcublas", "libcublasLt")  # what a CUDA build needs of its toolkit to run
WSL_LIB = "/usr/lib/wsl/lib"
# Of a shell, of gcc and of nvcc whose child was killed.
KILLED = re.compile(rb"^Killed\b|\bKilled signal\b|died due to signal 9\b|\bsignal 9\b")


class BuildError(Exception):
    """One sentence: what failed, where, what to do."""


def main(argument: dict[str, Any]) -> None:
    """Make the build `build_id` unless it is there; the last line is {"build_id", "changed", "version", "seconds"}.

    argument: build_id; source {"kind": "tar", "path", "sha256"} or {"kind": "git", "url", "commit", "tree" or null};
    commit (full hash); options (of cmake); targets; jobs; work_bytes (what it takes while it runs: has to be free); inputs
    (kept in build.json); ccache_dir; environment (added to the own one: proxies and the like). For CUDA also toolkit
    {"root": its folder, "release": like "13.0"}, and require_gpu: fail where the programs see no GPU. builds and work are
    other folders than the usual ones, for tests.
    """
    try:
        print(json.dumps(build(argument)), flush=True)
    except (BuildError, OSError) as e:
        sys.exit(f"cannot build llama.cpp: {e}")


def stage(text: str) -> None:
    print(f"==> {text}", flush=True)


def build(a: dict[str, Any]) -> dict[str, Any]:
    builds, work = a.get("builds", BUILDS), a.get("work", WORK)
    os.makedirs(builds, exist_ok=True)
    os.makedirs(work, exist_ok=True)
    final, partial = os.path.join(builds, a["build_id"]), os.path.join(builds, ".partial-" + a["build_id"])
    started = time.monotonic()
    with open(os.path.join(work, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = whole(final, a["build_id"])
        if record:
            return {"build_id": a["build_id"], "changed": False, "version": record["version"], "seconds": 0}
        clear(work, builds)  # also what a run that was killed has left
        check_space(a["work_bytes"], work, builds)
        try:
            unpack(a["source"], work, a["environment"])
            check_source(os.path.join(work, "src"), a["commit"])
            compile_(a, work)
            collect(os.path.join(work, "out"), partial, a)
            clear(work)  # before the programs are tried: they must not need it
            version = ask_version(partial, a["options"])
            devices = ask_devices(partial, a) if a.get("toolkit") else []
            seconds = round(time.monotonic() - started)
            write_record(
                partial,
                {
                    **{k: a[k] for k in ("build_id", "commit", "options", "targets", "inputs")},
                    "source": a["source"]["kind"],
                    "version": version,
                    "devices": devices,
                    "seconds": seconds,
                },
            )
            publish(partial, final)
        finally:
            clear(work, builds)
    return {"build_id": a["build_id"], "changed": True, "version": version, "seconds": seconds}


def whole(folder: str, build_id: str) -> dict[str, Any] | None:
    """The record of a build that is there with all its files, else None."""
    try:
        with open(os.path.join(folder, "build.json"), encoding="utf-8") as f:
            record = json.load(f)
        good = record["build_id"] == build_id and all(
            os.path.getsize(os.path.join(folder, name)) == of["size"] for name, of in record["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if good else None


def clear(work: str, builds: str | None = None) -> None:
    """Remove what a build leaves half done; the lock on `work` says that nobody else is at it."""
    halves = glob.glob(os.path.join(builds, ".partial-*")) if builds else []
    for folder in (os.path.join(work, "src"), os.path.join(work, "out"), *halves):
        if os.path.lexists(folder):
            shutil.rmtree(folder)


def check_space(needed: int, *folders: str) -> None:
    for folder in folders:
        free = shutil.disk_usage(folder).free
        if free < needed:
            have, need = f"{free / 1e9:.1f} GB", f"{needed / 1e9:.1f} GB"
            raise BuildError(f"{folder} has {have} of disk space left and a build needs {need}; make room there")


def environment_of(a: dict[str, Any], work: str) -> dict[str, str]:
    """A known environment for tools: what the host's shell exports must not reach the bytes of a build."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": os.path.join(work, "out"),
        "CCACHE_DIR": a["ccache_dir"],
        "CCACHE_COMPILERCHECK": "content",
        "NINJA_STATUS": "[%p] ",
        **a["environment"],
    }


def call(what: str, command: list[str], environment: dict[str, str]) -> None:
    """Run a tool with all that it says on our stdout, so that stderr holds our one sentence."""
    status = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT).returncode
    if status:
        raise BuildError(f"{what} failed with status {status}; the lines that matter are in the log")


def unpack(source: dict[str, Any], work: str, environment: dict[str, str]) -> None:
    src = os.path.join(work, "src")
    os.makedirs(src)
    if source["kind"] == "git":
        fetch_commit(source, src, environment)
        return
    stage(f"unpack {source['path']}")
    try:
        found = sha256_of(source["path"])
        if found != source["sha256"]:
            raise BuildError(f"{source['path']} has sha256 {found} instead of {source['sha256']}; send it again")
        with tarfile.open(source["path"], "r:gz") as tar:
            # named, because Pythons from 3.12 on warn without; those before 3.10.12 have none
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, folder: member)
            for member in tar:  # made by our controller and verified, but a name that leads out is refused all the same
                if not member.isreg() or member.name.startswith("/") or ".." in member.name.split("/"):
                    raise BuildError(f"{source['path']} holds {member.name!r}, which is no plain file inside it")
                tar.extract(member, src, set_attrs=True, numeric_owner=True)
    except (tarfile.TarError, EOFError) as e:
        raise BuildError(f"{source['path']} cannot be unpacked ({e}); send it again") from e


# Qwen3.6 landed with PR 19435, was taken out again by 19453 (9 February 2026) and landed with its own pre-tokenizer by 19468.
KNOWN_BY = {"src/llama-arch.cpp": '"qwen35moe"', "src/llama-vocab.cpp": '"qwen35"'}


def check_source(src: str, commit: str) -> None:
    """That it can load the model. Raises BuildError: before minutes of compiling, and long before the service is touched."""

    def text_of(name: str) -> "str | None":
        path = os.path.join(src, name)
        if not os.path.exists(path):
            return None
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()

    why = too_old(commit, text_of)
    if why:
        raise BuildError(why)


def too_old(commit: str, text_of: Callable[[str], "str | None"]) -> "str | None":
    """Why a build of this source could not load the model, a sentence. text_of: a file of it, None for one that it hasn't."""
    for name, word in KNOWN_BY.items():
        text = text_of(name)
        if text is not None and word not in text:
            return (
                f"commit {commit} does not know Qwen3.6 ({name} lacks {word}): it needs one after llama.cpp's PR 19468 of"
                " February 2026, such as that of wsllama.lock"
            )
    return None


def fetch_commit(source: dict[str, Any], src: str, environment: dict[str, str]) -> None:
    """A bare commit: no branch and no tag is asked for, and what came is compared with the pin."""
    stage(f"fetch {source['commit']} from {source['url']}")
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ADVICE": "0",
        **environment,
    }
    call("git init", ["git", "init", "--quiet", src], env)
    call(
        f"fetching {source['commit']} from {source['url']}",
        ["git", "-C", src, "fetch", "--quiet", "--depth", "1", "--", source["url"], source["commit"]],
        env,
    )
    call(
        "git checkout",
        ["git", "-C", src, "-c", "core.autocrlf=false", "checkout", "--quiet", "--detach", source["commit"]],
        env,
    )
    for name, wanted in (("HEAD", source["commit"]), ("HEAD^{tree}", source["tree"])):
        said = subprocess.run(["git", "-C", src, "rev-parse", name], env=env, stdout=subprocess.PIPE)
        found = said.stdout.decode().strip()
        if wanted and found != wanted:
            raise BuildError(f"{source['url']} gave {found} as {name} of {source['commit']} instead of {wanted}")
    shutil.rmtree(os.path.join(src, ".git"))  # the build is then the same as from an archive


def compile_(a: dict[str, Any], work: str) -> None:
    src, out = os.path.join(work, "src"), os.path.join(work, "out")
    os.makedirs(out)
    env = environment_of(a, work)
    options = options_here(a, src, out)
    only_this_cpu(a, env)
    stage("configure")
    call("configuring", ["cmake", "-S", src, "-B", out, "-G", "Ninja", *(f"-D{k}={v}" for k, v in options.items())], env)
    check_cache(os.path.join(out, "CMakeCache.txt"), options)
    stage(f"compile {', '.join(a['targets'])} with {a['jobs']} jobs")
    compile_targets(out, a["targets"], a["jobs"], env)


def options_here(a: dict[str, Any], src: str, out: str) -> dict[str, str]:
    """The options with what is true on this host only: where the toolkit is, and folders that no file of ours may name."""
    given, mapped = a["options"], (f"-ffile-prefix-map={src}/=", f"-ffile-prefix-map={out}/=build/")
    options = {**given, **{k: f"{given.get(k, '')} {' '.join(mapped)}".strip() for k in ("CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS")}}
    if toolkit := a.get("toolkit"):
        root = toolkit["root"]
        options["CMAKE_CUDA_COMPILER"] = f"{root}/bin/nvcc"  # not the one that PATH happens to lead to
        options["CUDAToolkit_ROOT"] = root
        options["CMAKE_CUDA_FLAGS"] = f"{given.get('CMAKE_CUDA_FLAGS', '')} -Xcompiler={','.join(mapped)}".strip()
        for kind in ("EXE", "SHARED"):  # the libraries that ours need are found while linking, and leave no trace
            options[f"CMAKE_{kind}_LINKER_FLAGS"] = f"-Wl,-rpath-link,{root}/lib64"
    return options


def compile_targets(out: str, targets: list[str], jobs: int, env: dict[str, str]) -> None:
    """Compile; when the kernel kills a compiler for lack of memory, go on once with half as many at a time."""
    tried = jobs
    while True:
        status, killed = watched(["cmake", "--build", out, "-j", str(jobs), "--target", *targets], env)
        if not status:
            return
        if not killed:
            raise BuildError(f"compiling failed with status {status}; the lines that matter are in the log")
        fewer = max(1, jobs // 2)
        if jobs == 1 or jobs < tried:
            advice = f"set llama_cpp.jobs to {fewer} or " if fewer < jobs else ""
            raise BuildError(f"a compiler was killed for lack of memory with {jobs} at once; {advice}give the host more memory")
        jobs = fewer
        stage(f"a compiler was killed for lack of memory; go on with {jobs} at once")


def watched(command: list[str], environment: dict[str, str]) -> tuple[int, bool]:
    """Run a tool, pass on what it says, and return its status and whether it told of something that was killed."""
    killed = False
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as p:
        assert p.stdout
        for line in p.stdout:
            sys.stdout.write(line.decode("utf-8", "replace"))
            sys.stdout.flush()
            killed = killed or bool(KILLED.search(line))
    return p.returncode, killed


def only_this_cpu(a: dict[str, Any], environment: dict[str, str]) -> None:
    """To ccache `-march=native` is the same on every CPU: objects that were made for another one have to go."""
    flags, stamp = " ".join(a["inputs"].get("cpu_flags", ())), os.path.join(a["ccache_dir"], "wsllama-cpu")
    if not flags:
        return
    os.makedirs(a["ccache_dir"], exist_ok=True)
    with open(stamp, "a+", encoding="utf-8") as f:
        f.seek(0)
        known = f.read()
        if known and known != flags:
            call("clearing the compiler cache", ["ccache", "--clear"], environment)
        f.truncate(0)
        f.write(flags)


def check_cache(path: str, options: dict[str, str]) -> None:
    """CMake warns and goes on when it can't do what it was asked for: what counts is what it wrote down."""
    with open(path, encoding="utf-8") as f:
        cache = dict(re.findall(r"^([A-Za-z0-9_]+):[A-Z]+=(.*)$", f.read(), re.M))
    for key, wanted in options.items():
        if cache.get(key) != wanted:
            raise BuildError(f"cmake made {key}={cache.get(key)} of {key}={wanted}")
    if options.get("LLAMA_OPENSSL") == "ON" and cache.get("OPENSSL_SSL_LIBRARY", "-NOTFOUND").endswith("-NOTFOUND"):
        raise BuildError("cmake did not find OpenSSL, so the server could not speak HTTPS; install libssl-dev")


def collect(out: str, partial: str, a: dict[str, Any]) -> None:
    """Copy what runs; `cmake --install` can't, after a build of some targets only."""
    stage(f"install into {partial}")
    made = os.path.join(out, "bin")
    libraries = sorted(n for n in os.listdir(made) if re.search(r"\.so(\.\d+)*$", n))
    loaded = [n for n in libraries if re.match(r"libggml-(?!base\.)", n)] if a["options"].get("GGML_BACKEND_DL") == "ON" else []
    for folder, names in (("bin", [*a["targets"], *loaded]), ("lib", [n for n in libraries if n not in loaded])):
        os.makedirs(os.path.join(partial, folder))
        for name in names:
            link = os.path.join(made, name)
            target = os.path.join(partial, folder, name)
            if os.path.islink(link):  # libllama.so.0 -> libllama.so.0.5.0, in the same folder
                os.symlink(os.path.basename(os.readlink(link)), target)
            else:
                put(link, target)
    if toolkit := a.get("toolkit"):
        for name in CUDA_LIBRARIES:  # by the name that others ask for; in a toolkit it may be a link
            name = f"{name}.so.{toolkit['release'].split('.')[0]}"
            put(os.path.join(toolkit["root"], "lib64", name), os.path.join(partial, "lib", name))
        check_libraries(partial, "bin" if loaded else "lib")


def put(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    os.chmod(target, 0o755)


def check_libraries(partial: str, folder: str) -> None:
    """The CUDA backend finds all that it needs in the build itself, and the driver where WSL puts it, if anywhere."""
    path = os.path.join(partial, folder, "libggml-cuda.so")
    said = subprocess.run(["ldd", path], env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}, stdout=subprocess.PIPE)
    found = dict(re.findall(r"^\s*(\S+) => (not found|\S+)", said.stdout.decode("utf-8", "replace"), re.M))
    if said.returncode or not found:
        raise BuildError(f"ldd cannot read {path}")
    driver = found.pop("libcuda.so.1", "not found")
    if driver != "not found" and os.path.dirname(driver) != WSL_LIB:
        raise BuildError(f"libcuda.so.1 is found at {driver} instead of {WSL_LIB}; remove what brought it there")
    for name, where in found.items():
        ours = name.startswith(CUDA_LIBRARIES)
        if where == "not found" or (ours and not os.path.realpath(where).startswith(os.path.realpath(partial) + "/")):
            raise BuildError(f"{path} needs {name}, which is {'at ' if ours and where != 'not found' else ''}{where}")


def ask(partial: str, question: str) -> tuple[int, str]:
    """What the server answers, started as a unit would start it; it prints some of it to stderr."""
    server = os.path.join(partial, "bin", "llama-server")
    try:
        p = subprocess.run(
            [server, question],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
    except subprocess.TimeoutExpired as e:
        raise BuildError(f"{server} {question} did not end within 60 s") from e
    return p.returncode, p.stdout.decode("utf-8", "replace").strip()


def ask_version(partial: str, options: dict[str, str]) -> str:
    """What the program says of itself."""
    status, text = ask(partial, "--version")
    number, commit = options["LLAMA_BUILD_NUMBER"], options["LLAMA_BUILD_COMMIT"]
    if status or not re.search(rf"\bbuild {number}\b", text) or commit not in text:
        said = f"(status {status}): {text[-300:]}"
        server = os.path.join(partial, "bin", "llama-server")
        raise BuildError(f"{server} --version does not name build {number} and commit {commit} {said}")
    return text


def ask_devices(partial: str, a: dict[str, Any]) -> list[str]:
    """The GPUs that the programs see, a line each. It exits 0 without any, so that counts where one is required."""
    status, text = ask(partial, "--list-devices")
    said = f"llama-server --list-devices says (status {status}): {' '.join(text[-300:].split())}"
    devices = [line.strip() for line in text.partition("Available devices:")[2].splitlines() if ": " in line]
    if status:
        raise BuildError(f"the programs cannot list their devices; {said}")
    if a.get("require_gpu") and not any(device.startswith("CUDA") for device in devices):
        raise BuildError(f"the programs see no GPU and would compute on the CPU; {said}")
    return devices


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def write_record(partial: str, record: dict[str, Any]) -> None:
    files = {}
    for folder in ("bin", "lib"):
        for name in sorted(os.listdir(os.path.join(partial, folder))):
            path = os.path.join(partial, folder, name)
            # of a link: what it leads to
            files[f"{folder}/{name}"] = {"size": os.path.getsize(path), "sha256": sha256_of(path)}
    with open(os.path.join(partial, "build.json"), "w", encoding="utf-8") as f:
        json.dump({**record, "files": files}, f, indent=1, sort_keys=True)
        f.write("\n")


def publish(partial: str, final: str) -> None:
    for folder, _, names in os.walk(partial):
        for path in (*(os.path.join(folder, n) for n in names), folder):
            sync(path)
    if os.path.lexists(final):  # not whole, or we wouldn't be here
        shutil.rmtree(final)
    os.rename(partial, final)
    sync(os.path.dirname(final))


def sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
