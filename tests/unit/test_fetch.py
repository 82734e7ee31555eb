"""The program that downloads a model, run as on a host: the real client against the lab's Hub, and plain addresses."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lab.hub import Fault, Hub, portal
from tests.unit import small_gguf
from wsllama import program
from wsllama.host import fetch, probe, receive

REPO, NAME = "unsloth/Qwen3.6-35B-A3B-GGUF", "Qwen3.6-35B-A3B-Q8_0.gguf"
CARD = {"license": "apache-2.0", "base_model": ["Qwen/Qwen3.6-35B-A3B"]}
SMALL = 1 << 20  # what is asked of a Hub beside a file is less


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Downloads:
    """A repository with one model and a projector, and a folder that models are downloaded to."""

    def __init__(self, hub: Hub, folder: Path, made: Path) -> None:
        self.hub, self.folder, self.root = hub, folder, folder / "models"
        self.file, self.projector = made / "model.gguf", made / "mmproj.gguf"
        self.files: dict[str, bytes | Path] = {NAME: self.file, "mmproj-F16.gguf": self.projector}
        self.commit = hub.add(REPO, self.files, card=CARD)

    def entry(self, name: str, source: Path, **more: Any) -> dict[str, Any]:
        data = source.read_bytes()
        return {"name": name.rpartition("/")[2], "place": name, "size": len(data), "sha256": sha256(data), **more}

    def argument(self, **more: Any) -> dict[str, Any]:
        where = {"repo": REPO, "revision": self.commit, "endpoint": self.hub.url, "token": None, "site": None}
        return {"root": str(self.root), "files": [self.entry(NAME, self.file)], "hub": where, **more}

    def by_url(self, **more: Any) -> dict[str, Any]:
        """From the same place as from an office's mirror."""
        return self.argument(files=[self.entry(NAME, self.file, place=self.address)], hub=None, **more)

    @property
    def address(self) -> str:
        return f"{self.hub.url}/{REPO}/resolve/{self.commit}/{NAME}"

    def start(self, argument: dict[str, Any], before: list[str] | None = None) -> subprocess.Popen[str]:
        (self.folder / "program.py").write_text(program.call("fetch", argument))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {"HOME": str(self.folder)}
        words = [*(before or []), sys.executable, "-I", str(self.folder / "program.py")]
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, argument: dict[str, Any]) -> dict[str, Any]:
        process = self.start(argument)
        out, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result

    def refusal(self, argument: dict[str, Any]) -> str:
        process = self.start(argument)
        _, err = process.communicate(timeout=900)
        assert (process.returncode, err.count("\n")) == (1, 1), err
        assert self.installed() == {}
        return err.strip()

    def installed(self) -> dict[str, Any]:
        """Whole files, each of which is what its stamp says."""
        found = {f: s for f, s in probe.models([str(self.root)])[str(self.root)].items() if s["intact"]}
        for file, stamp in found.items():
            assert sha256((self.root / file).read_bytes()) == stamp["sha256"]
        return found

    def arrived(self) -> int:
        """Bytes of the partial file."""
        return sum(path.stat().st_size for path in (self.root / ".incoming").glob("*.part"))

    def wait_for(self, count: int, process: subprocess.Popen[str]) -> None:
        """Until so many bytes have arrived."""
        deadline = time.monotonic() + 600
        while self.arrived() != count:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, self.arrived()
            time.sleep(0.001)

    def sent(self) -> int:
        """Bytes of the model that went out, without the first few by which runs look at a mirror's file."""
        looks = sum((path, start, end) == (NAME, 0, fetch.HEAD) for path, start, end in self.hub.ranges)
        return self.hub.sent[REPO, NAME] - fetch.HEAD * looks


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    small_gguf.model(folder / "model.gguf", rows=190_000)  # 24 MB, so that a kill finds it in the middle
    small_gguf.projector(folder / "mmproj.gguf")
    return folder


@pytest.fixture
def downloads(hub: Hub, tmp_path: Path, made: Path) -> Downloads:
    return Downloads(hub, tmp_path, made)


@pytest.fixture(params=["hub", "url"])
def way(request: pytest.FixtureRequest, downloads: Downloads) -> dict[str, Any]:
    """The argument that downloads it either way."""
    return downloads.argument() if request.param == "hub" else downloads.by_url()


def test_downloads_and_stamps(downloads: Downloads, way: dict[str, Any]) -> None:
    result = downloads.run(way)
    (place, stamp), *more = downloads.installed().items()
    assert (more, result["changed"], result["file"]) == ([], True, f"{downloads.root}/{place}")
    assert stamp["source"]["on"] == ("hub" if way["hub"] else "url")
    assert downloads.sent() == downloads.file.stat().st_size
    before = len(downloads.hub.requests)
    assert downloads.run(way)["changed"] is False
    assert not [path for _, path, _ in downloads.hub.requests[before:] if "/cdn/" in path]


@pytest.mark.parametrize("way", ["hub", pytest.param("url", marks=pytest.mark.full)], indirect=True)
def test_killed_at_ten_offsets_and_gone_on(downloads: Downloads, hub: Hub, way: dict[str, Any]) -> None:
    """Never a name that holds unverified bytes; each run asks for the rest only, so all is sent once, to the byte."""
    size, there = downloads.file.stat().st_size, 0
    for offset in range(size // 11, size, size // 11):
        offset += random.Random(offset).randrange(-500_000, 500_000)
        with held(hub, offset - there, cut=True):
            process = downloads.start(way)
            downloads.wait_for(offset, process)
            process.kill()
            process.communicate()
        there = downloads.arrived()
        assert (there, downloads.installed()) == (offset, {})
    hub.faults = []
    downloads.run(way)
    assert list(downloads.installed())
    assert downloads.sent() == size
    assert not list((downloads.root / ".incoming").glob("*.part"))


@contextmanager
def held(hub: Hub, after: int, cut: bool = False) -> Iterator[None]:
    """Of a file so many bytes come, and the rest, or the end of the connection, when this is left."""
    fault = Fault("/cdn/", methods=("GET",), hold_after=after, cut_after=after if cut else None)
    hub.faults = [fault]
    try:
        yield
    finally:
        fault.hold.set()


def test_a_resumed_download_asks_for_the_rest(downloads: Downloads, way: dict[str, Any]) -> None:
    """To the byte: a partial file of a given length, then one run."""
    size = downloads.file.stat().st_size
    incoming = downloads.root / ".incoming"
    incoming.mkdir(parents=True)
    (incoming / f"{NAME}-{size}.part").write_bytes(downloads.file.read_bytes()[:12_345_678])
    downloads.run(way)
    assert downloads.sent() == size - 12_345_678
    assert list(downloads.installed())


def test_cut_connections_are_gone_on_with(downloads: Downloads, way: dict[str, Any]) -> None:
    size = downloads.file.stat().st_size
    part = "/cdn/"
    downloads.hub.faults = [Fault(part, times=3, methods=("GET",), cut_after=3_000_001)]
    downloads.run(way)
    assert downloads.sent() == size
    downloads.hub.faults = [Fault(part, methods=("GET",), cut_after=0)]
    shutil.rmtree(downloads.root)
    said = downloads.refusal(way)
    assert "; what came is kept, and the next run goes on from there" in said


def test_a_flipped_byte_is_found_and_the_next_run_is_right(downloads: Downloads, way: dict[str, Any]) -> None:
    downloads.hub.faults = [Fault("/cdn/", methods=("GET",), flip_at=20_000_000)]
    assert "has sha256 " in downloads.refusal(way)
    downloads.hub.faults = []
    assert downloads.arrived() == 0
    downloads.run(way)
    assert list(downloads.installed())


def test_what_was_swapped_is_fetched_again(downloads: Downloads, way: dict[str, Any]) -> None:
    file = Path(downloads.run(way)["file"])
    before = file.open("rb")  # as a server has it
    file.unlink()
    file.write_bytes(b"x" * 100)
    assert downloads.installed() == {}
    downloads.run(way)
    assert list(downloads.installed())
    assert sha256(before.read()) == sha256(file.read_bytes())


@pytest.mark.parametrize("how", ["touched", "no stamp"])
def test_right_bytes_are_not_downloaded_again(downloads: Downloads, way: dict[str, Any], how: str) -> None:
    file = Path(downloads.run(way)["file"])
    os.utime(file) if how == "touched" else Path(f"{file}.stamp").unlink()
    assert downloads.installed() == {}
    before = downloads.sent()
    downloads.run(way)
    assert downloads.sent() == before
    assert list(downloads.installed())


@pytest.fixture
def small(downloads: Downloads, tmp_path: Path) -> Iterator[Path]:
    """A file system with a little more room than the model takes."""
    if os.geteuid():
        pytest.skip("needs root to mount")
    size = downloads.file.stat().st_size
    image, small = tmp_path / "disk", tmp_path / "small"
    image.write_bytes(b"")
    os.truncate(image, size + (14 << 20))
    small.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)], check=True)
    loop = subprocess.run(["mount", "-o", "loop", str(image), str(small)], capture_output=True, text=True)
    if loop.returncode:  # a kernel without loop devices
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size + (6 << 20)}", "none", str(small)], check=True)
    downloads.root = small / "models"
    try:
        yield small
    finally:
        subprocess.run(["umount", str(small)], check=True)


FULL = "No space left on device: free some space and run again"
FILL = ["dd", "if=/dev/zero", "bs=64k"]


def fill(small: Path) -> None:
    assert b"No space left" in subprocess.run([*FILL, f"of={small / 'other'}"], capture_output=True).stderr


def test_a_full_disk_in_the_middle(downloads: Downloads, hub: Hub, way: dict[str, Any], small: Path) -> None:
    """There was room when it began."""
    way["root"] = str(downloads.root)
    with held(hub, 5_000_000):
        process = downloads.start(way)
        downloads.wait_for(5_000_000, process)
        fill(small)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 1, "the disk was full before the end"
    assert err.strip().endswith(FULL)
    assert downloads.installed() == {}
    (small / "other").unlink()
    hub.faults = []
    there, before = downloads.arrived(), downloads.sent()
    downloads.run(way)
    assert there >= 5_000_000
    assert downloads.sent() - before == downloads.file.stat().st_size - there
    assert list(downloads.installed())


def test_a_full_disk_in_the_middle_of_a_copy(downloads: Downloads, small: Path) -> None:
    """Of a path on the host; the disk fills behind the check for room, before the sixth block is written."""
    filling = f"""
import os, subprocess
stock, left = os.write, [5]
def write(fd, data):
    left[0] -= 1
    if left[0] == 0:
        subprocess.run({FILL!r} + ["of={small / "other"}"], stderr=subprocess.DEVNULL)
    return stock(fd, data)
os.write = write
"""
    text = program.call("model", {"path": str(downloads.file), "root": str(downloads.root)})
    ran = subprocess.run([sys.executable, "-I", "-S", "-"], input=filling + text, text=True, capture_output=True)
    assert (ran.returncode, ran.stderr.strip().endswith(FULL), downloads.installed()) == (1, True, {}), ran.stderr
    (small / "other").unlink()
    there = downloads.arrived()
    assert there >= 4 << 20
    ran = subprocess.run([sys.executable, "-I", "-S", "-"], input=text, text=True, capture_output=True)
    assert f"model.gguf goes on after the {receive.gib(there)} that are there" in ran.stdout
    assert list(downloads.installed())


def test_a_full_disk_in_the_middle_of_a_stream(downloads: Downloads, small: Path) -> None:
    """From the controller; the sender keeps to what the module says of the talk."""
    data = downloads.file.read_bytes()
    text = program.call("model", {"name": NAME, "size": len(data), "sha256": None, "source": {}, "root": str(downloads.root)})
    start = f"import sys; i = sys.stdin.buffer; exec(i.read({len(text.encode())}))"

    def begun() -> Any:
        words = [sys.executable, "-I", "-S", "-c", start]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin
        process.stdin.write(text.encode())
        process.stdin.flush()
        return process

    process = begun()
    process.stdin.write(data[: 5 << 20])
    process.stdin.flush()
    downloads.wait_for(5 << 20, process)
    fill(small)
    with suppress(BrokenPipeError):
        process.stdin.write(data[5 << 20 :])
    assert process.wait(900) == 1
    assert process.stderr.read().decode().strip().endswith(FULL)
    (small / "other").unlink()
    there = downloads.arrived()
    process = begun()
    have, begins = (json.loads(process.stdout.readline()) for _ in range(2))
    assert (have["have"], begins["sha256"]) == (there, sha256(data[:there]))
    out, err = process.communicate(
        b'{"from": %d}\n%s{"sha256": "%s"}\n' % (there, data[there:], sha256(data).encode()), timeout=900
    )
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["sha256"] == sha256(data)
    assert list(downloads.installed())


def test_no_room_is_said_before_a_byte_of_it(downloads: Downloads, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root to mount")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=True)
    try:
        downloads.root = small
        assert downloads.refusal(downloads.argument()).startswith(f"no space: {NAME} needs {downloads.file.stat().st_size} bytes")
        assert downloads.sent() == 0
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_two_at_once(downloads: Downloads, way: dict[str, Any]) -> None:
    """The second waits, then finds it there."""
    both = [downloads.start(way) for _ in range(2)]
    results = [json.loads(process.communicate(timeout=900)[0].splitlines()[-1]) for process in both]
    assert sorted(result["changed"] for result in results) == [False, True]
    assert downloads.sent() == downloads.file.stat().st_size


def test_shards_and_projector_all_or_none(downloads: Downloads, hub: Hub, tmp_path: Path) -> None:
    first, second = split(tmp_path)
    names = [f"Q4/{path.name}" for path in (first, second)]
    downloads.files = {names[0]: first, names[1]: second, "mmproj-F16.gguf": downloads.projector}
    downloads.commit = hub.add(REPO, downloads.files, card=CARD)
    argument = downloads.argument(
        files=[downloads.entry(name, path) for name, path in zip(names, (first, second), strict=True)],
        mmproj=downloads.entry("mmproj-F16.gguf", downloads.projector),
    )
    hub.faults = [Fault("mmproj", times=None, methods=("GET",), status=503)]
    assert "the Hub has a fault of its own (503)" in downloads.refusal(argument)
    hub.faults = []
    assert downloads.run(argument)["changed"]
    found = downloads.installed()
    assert len(found) == 3
    assert len({place.split("/")[0] for place in found}) == 2, "shards lie together, the projector apart"
    assert hub.sent[REPO, names[0]] == first.stat().st_size, "what was verified before is not downloaded again"


def test_a_shard_lies_beside_the_first(downloads: Downloads, hub: Hub, tmp_path: Path) -> None:
    """One of the same bytes in another model's folder is of no use to llama-server."""
    first, second = split(tmp_path)
    other, _ = split(tmp_path / "other", words="<think>other{{ messages }}")
    entries = []
    for path in (first, other):
        downloads.commit = hub.add(REPO, {f"{path.name}": path, second.name: second}, card=CARD)
        entries = [downloads.entry(path.name, path), downloads.entry(second.name, second)]
        downloads.run(downloads.argument(files=entries))
    folders = [place.split("/")[0] for place in downloads.installed()]
    assert sorted(folders.count(folder) for folder in set(folders)) == [2, 2]


def split(folder: Path, words: str = "<think>{{ messages }}") -> list[Path]:
    """A model of two shards; the first has `words` as its template."""
    import gguf as library
    import numpy as np

    folder.mkdir(exist_ok=True)
    paths = [folder / f"Qwen3.6-35B-A3B-Q4_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    for number, path in enumerate(paths):
        writer = library.GGUFWriter(path, "qwen35moe")
        if number == 0:
            for name, text in small_gguf.BASE.items():
                writer.add_string(name, text)
            keys = {"block_count": 1, "embedding_length": 32, "expert_count": 2, "expert_used_count": 1}
            for name, value in keys.items():
                writer.add_uint32(f"qwen35moe.{name}", value)
            writer.add_chat_template(words)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 5)
        if number == 0:
            writer.add_tensor("token_embd.weight", np.ones((8, 32), np.float32))
            writer.add_tensor("blk.0.attn_norm.weight", np.ones(32, np.float32))
        else:
            for part in ("gate", "up", "down"):
                writer.add_tensor(f"blk.0.ffn_{part}_exps.weight", np.ones((2, 16, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_a_second_quant_does_not_download_the_projector_again(downloads: Downloads, hub: Hub, tmp_path: Path) -> None:
    other = small_gguf.model(tmp_path / "other.gguf", seed=7)
    downloads.commit = hub.add(REPO, {**downloads.files, "Q4.gguf": other}, card=CARD)
    mmproj = downloads.entry("mmproj-F16.gguf", downloads.projector)
    downloads.run(downloads.argument(mmproj=dict(mmproj)))
    downloads.run(downloads.argument(files=[downloads.entry("Q4.gguf", other)], mmproj=dict(mmproj)))
    assert len(downloads.installed()) == 3
    assert hub.sent[REPO, "mmproj-F16.gguf"] == downloads.projector.stat().st_size


def test_a_token_is_heeded(downloads: Downloads, hub: Hub) -> None:
    hub.repos[REPO].gated = True
    argument = downloads.argument()
    assert "it is gated: accept the terms" in downloads.refusal(argument)
    argument["hub"]["token"] = hub.token
    assert downloads.run(argument)["changed"]


def test_the_hub_s_sums_come_before_the_download(downloads: Downloads, hub: Hub) -> None:
    for wrong, said in (
        ({"sha256": "0" * 64}, f"and {'0' * 64} in the lock"),
        ({"size": 5}, "bytes on the Hub and 5 in the lock"),
    ):
        assert said in downloads.refusal(downloads.argument(files=[downloads.entry(NAME, downloads.file, **wrong)]))
    absent = downloads.entry(NAME, downloads.file, place="no.gguf")
    assert "there is no such file at this revision" in downloads.refusal(downloads.argument(files=[absent]))
    downloads.commit = hub.add(REPO, downloads.files, card=CARD, hashes=False)
    assert "the Hub tells no sha256 of it" in downloads.refusal(downloads.argument())
    downloads.commit = "0" * 40
    assert "it has no such revision, or no longer" in downloads.refusal(downloads.argument())
    assert downloads.sent() == 0


HUB = [
    (Fault(status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"}), "the Hub refuses the token"),
    (Fault(status=403), "the Hub forbids it (403)"),
    (Fault(status=429, headers={"Retry-After": "37"}), "too many requests (429): wait 37 s"),
    (Fault(status=500), "the Hub has a fault of its own (500)"),
    (portal(), "what answers is not the Hub but a page"),
    (Fault("/resolve/", status=404, headers={"X-Error-Code": "EntryNotFound"}), "there is no such file at this revision"),
    (portal("/resolve/"), "what answers is not the Hub but a page"),
    (
        Fault("/cdn/", status=200, headers={"Content-Type": "binary/octet-stream"}, body=portal().body),
        "not a GGUF but an HTML page",
    ),
]
WEB = [
    (Fault(status=401), "the mirror asks for a login (401)"),
    (Fault(status=403), "the mirror forbids it (403)"),
    (Fault(status=404), "the mirror has no such file (404): check model.url"),
    (Fault(status=407), "the proxy asks for a login (407)"),
    (Fault(status=418), "the mirror answers 418"),
    (Fault(status=429), "too many requests (429)"),
    (Fault(status=503), "the mirror has a fault of its own (503)"),
    (Fault(status=302, headers={"Location": "http://[::1"}), "the mirror answers with what is no address (Invalid IPv6 URL)"),
    (Fault(status=206, body=b"GGUF", headers={"Content-Range": f"bytes 0-3/{'9' * 5000}"}), "the mirror tells no size of it"),
    (portal(), "it is not a GGUF but an HTML page"),
]


@pytest.mark.parametrize(("fault", "said"), HUB, ids=[said for _, said in HUB])
def test_answers_of_the_hub(downloads: Downloads, hub: Hub, fault: Fault, said: str) -> None:
    hub.faults = [fault]
    assert said in downloads.refusal(downloads.argument())
    hub.faults.clear()


@pytest.mark.parametrize(("fault", "said"), WEB, ids=[said for _, said in WEB])
def test_answers_of_a_mirror(downloads: Downloads, hub: Hub, fault: Fault, said: str) -> None:
    hub.faults = [fault]
    assert said in downloads.refusal(downloads.by_url())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty, not a GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "it is not a GGUF but a git-lfs pointer"),
        (b'\x40\0\0\0\0\0\0\0{"a":1}' + b" " * 100, "it is not a GGUF but a safetensors file"),
        (b"GGUF" + b"\0" * 100, "bytes where the lock has"),
    ],
)
def test_another_file_at_a_mirror(downloads: Downloads, hub: Hub, content: bytes, said: str) -> None:
    downloads.commit = hub.add(REPO, {NAME: content}, card=CARD)
    assert said in downloads.refusal(downloads.by_url())


def test_a_projector_and_a_model_that_is_none(downloads: Downloads, hub: Hub, tmp_path: Path) -> None:
    """The right bytes by their sum, but not what is to be served: found by the audit, before the name."""
    wrong = downloads.entry("mmproj-F16.gguf", downloads.projector)
    assert "it is a projector (mmproj), not a model" in downloads.refusal(downloads.argument(files=[wrong]))
    other = {"general.base_model.0.repo_url": "https://huggingface.co/Qwen/Qwen3.5-35B-A3B"}
    for names, said in (
        ({**small_gguf.BASE, "general.name": "Abliterated"}, "it says 'abliterated' of itself"),
        (other, "its keys say that it was made of Qwen/Qwen3.5-35B-A3B"),
    ):
        shutil.rmtree(downloads.root)
        bad = small_gguf.model(tmp_path / "bad.gguf", names)
        downloads.commit = hub.add(REPO, {"bad.gguf": bad}, card=CARD)
        entry = downloads.entry("bad.gguf", bad)
        address = f"{hub.url}/{REPO}/resolve/{downloads.commit}/bad.gguf"
        by_url = downloads.argument(files=[{**entry, "place": address}], hub=None)  # as of an address that the lock doesn't know
        argument = downloads.argument(files=[entry])
        assert said in downloads.refusal(argument)
        assert said in downloads.refusal(by_url)
        assert not list(downloads.root.rglob("*.whole"))
        assert downloads.run({**argument, "allow_unofficial": True})["changed"]


def test_a_proxy_that_refuses_and_a_mirror_that_is_not_there(
    downloads: Downloads, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = downloads.entry(NAME, downloads.file, place="http://127.0.0.1:9/a.gguf")
    assert "the mirror can't be reached" in downloads.refusal(downloads.argument(files=[gone], hub=None))
    monkeypatch.setenv("https_proxy", hub.url)
    through = downloads.entry(NAME, downloads.file, place="https://mirror.invalid/a.gguf")
    assert "the proxy refuses (Tunnel connection failed: 403" in downloads.refusal(downloads.argument(files=[through], hub=None))
    argument = downloads.argument()
    argument["hub"]["endpoint"] = "https://hub.invalid"
    assert "the proxy refuses" in downloads.refusal(argument)


def test_through_a_proxy(downloads: Downloads, hub: Hub, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is one that only the proxy knows; the proxy is the endpoint itself."""
    known_to_proxy = "http://hub.invalid"
    if way["hub"]:
        way["hub"]["endpoint"] = known_to_proxy
    else:
        way["files"][0]["place"] = downloads.address.replace(hub.url, known_to_proxy)
    monkeypatch.setenv("no_proxy", "")
    assert "can't be reached" in downloads.refusal(way)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, hub.url)
    downloads.run(way)
    assert downloads.sent() == downloads.file.stat().st_size
    assert list(downloads.installed())


def test_a_repository_in_a_xet_store_comes_over_http(downloads: Downloads, hub: Hub) -> None:
    """Its answers tell of the store, which is not asked: there a download could not go on at any byte."""
    downloads.commit = hub.add(REPO, downloads.files, card=CARD, xet=True)
    told = http.client.HTTPConnection(hub.url.removeprefix("http://"))
    told.request("HEAD", downloads.address.removeprefix(hub.url))
    assert told.getresponse().headers["X-Xet-Hash"]
    size = downloads.file.stat().st_size
    with held(hub, 7_000_000, cut=True):
        process = downloads.start(downloads.argument())
        downloads.wait_for(7_000_000, process)
        process.kill()
        process.communicate()
    hub.faults = []
    downloads.run(downloads.argument())
    assert (downloads.sent(), list(downloads.installed()) != []) == (size, True)
    assert not [path for _, path, _ in hub.requests if "xet" in path]


def blocked(url: str, of_hub: bool, token: str | None = None, proxy: str | None = None) -> list[str]:
    """What preflight is told of a file."""
    argument = {"apt": False, "git": None, "proxy": proxy, "ca": None, "model": {"hub": of_hub, "url": url, "token": token}}
    words = [sys.executable, "-I", "-S", "-"]
    ran = subprocess.run(words, input=program.call("reach", argument), text=True, capture_output=True, check=True)
    found: list[str] = json.loads(ran.stdout)["blocked"]
    return found


@pytest.mark.parametrize("of_hub", [True, False], ids=["hub", "url"])
def test_a_source_is_tried_before_a_long_run(downloads: Downloads, hub: Hub, of_hub: bool) -> None:
    """By one request of the host's own, which brings nothing of the file."""
    assert blocked(downloads.address, of_hub) == []
    assert [(method, status) for method, _, status in hub.requests] == [("HEAD", 302)] if of_hub else [("GET", 302), ("GET", 206)]
    assert downloads.sent() <= 1
    hint = f"check the network, network.proxy and {'model.endpoint' if of_hub else 'model.url'}"
    for fault, said in (
        (Fault(status=401), "it is gated or private" if of_hub else "the mirror asks for a login"),
        (Fault(status=403), "the token's account has no access" if of_hub else "the mirror forbids it"),
        (Fault(status=404), "use `wsllama lock update`" if of_hub else "check model.url"),
        (Fault(status=503), f"can't be had (status 503): {hint}"),
        (portal(), f"is a page, as of a network that asks for a login: open a browser, or {hint}"),
    ):
        hub.faults = [fault]
        (sentence,) = blocked(downloads.address, of_hub)
        assert sentence.startswith(f"model: {downloads.address}")
        assert said in sentence
    hub.faults = [Fault(status=429)]
    assert blocked(downloads.address, of_hub) == [], "that passes, and the download itself waits or says it"
    assert "can't be reached (" in blocked("http://127.0.0.1:9/a.gguf", of_hub)[0]
    hub.faults = []
    through = downloads.address.replace(hub.url, "http://hub.invalid")
    assert "can't be reached (" in blocked(through, of_hub)[0]
    assert blocked(through, of_hub, proxy=hub.url) == []


def test_a_gated_repository_is_told_before_a_long_run(downloads: Downloads, hub: Hub) -> None:
    hub.repos[REPO].gated = True
    assert "it is gated or private" in blocked(downloads.address, True)[0]
    assert "the token's account has no access" in blocked(downloads.address, True, hub.stranger)[0]
    assert blocked(downloads.address, True, hub.token) == []
