"""Sending files through a real sshd with pyinfra's own connection, and the cache of digests."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api import Config, Inventory, State
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.context import ctx_host, ctx_state

from lab import tiny_model
from wsllama import digest, transfer
from wsllama.host.receive import BLOCK
from wsllama.remote import Fleet

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin")
needs_sshd = pytest.mark.skipif(os.geteuid() != 0 or not SSHD, reason="needs root and openssh-server")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Sshd:
    """sshd on a free port of loopback, for one key."""

    def __init__(self, folder: Path) -> None:
        self.key = folder / "key"
        for name in ("key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "authorized_keys").write_text((folder / "key.pub").read_text())
        self.folder = folder
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        for _ in range(9):  # a port that is free is free no more when another program takes it first
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            if self.listens():
                return
        raise RuntimeError("sshd did not start")

    def listens(self) -> bool:
        """Start it; whether it has its port."""
        folder = self.folder
        (folder / "config").write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {folder}/host_key\nPidFile none\nStrictModes no\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n"
        )
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", folder / "config"], stderr=log)
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and self.process.poll() is None:
            if "Server listening on" in (folder / "log").read_text(errors="replace"):
                return True
            time.sleep(0.05)
        self.stop()
        return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(600)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    folder = tmp_path_factory.mktemp("sshd")
    folder.chmod(0o755)
    server = Sshd(folder)
    yield server
    server.stop()


@contextlib.contextmanager
def connected(name: str, data: dict[str, Any]) -> Iterator[Any]:
    state = State(Inventory(([(name, data)], {})), Config())
    with ctx_state.use(state):
        connect_all(state)
        host = state.inventory.get_host(name)
        with ctx_host.use(host):
            yield host
        disconnect_all(state)


@pytest.fixture
def over_ssh(sshd: Sshd, tmp_path: Path) -> Iterator[Any]:
    data = {
        "ssh_user": "root", "ssh_port": sshd.port, "ssh_key": str(sshd.key),
        "ssh_known_hosts_file": str(tmp_path / "known_hosts"), "ssh_strict_host_key_checking": "no",
    }  # fmt: skip
    with connected("127.0.0.1", data) as host:
        yield host


@pytest.fixture
def there() -> Iterator[Any]:
    with connected("@local", {}) as host:
        yield host


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Every byte value, 9 MiB and an odd rest."""
    path = tmp_path / "big.bin"
    path.write_bytes(bytes(range(256)) * 4096 * 9 + os.urandom(12345))
    return path


def put(host: Any, source: Path, target: Path, said: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return transfer.send_file(host, source, str(target), say=(said if said is not None else []).append, arguments={}, **more)


def left(target: Path) -> list[str]:
    return sorted(p.name for p in (target.parent / ".incoming").iterdir() if p.suffix != ".lock")


@needs_sshd
def test_every_connection_sends_at_once_and_does_not_wait_for_a_lost_host(sshd: Sshd, tmp_path: Path) -> None:
    data = {"ssh_user": "root", "ssh_port": sshd.port, "ssh_key": str(sshd.key), "ssh_strict_host_key_checking": "no"}
    known = {"ssh_known_hosts_file": str(tmp_path / "known_hosts")}
    fleet = Fleet(Inventory(([("127.0.0.1", {**data, **known})], {})))
    for _ in range(2):  # also when a host is connected again, as after a reboot
        (host,) = fleet.connect().hosts
        transport = host.connector.client.get_transport()
        assert transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        assert transport.packetizer._Packetizer__keepalive_interval == 15
        fleet.close()


@needs_sshd
def test_whole_file_arrives(over_ssh: Any, big: Path, tmp_path: Path) -> None:
    target = tmp_path / "new folder" / "it's $HOME.bin"
    said: list[str] = []
    result = put(over_ssh, big, target, said)
    assert target.read_bytes() == big.read_bytes()
    assert target.stat().st_mode & 0o7777 == 0o644
    assert result == {
        "ok": True, "changed": True, "file": str(target), "size": big.stat().st_size, "sha256": sha256(big.read_bytes()),
    }  # fmt: skip
    assert left(target) == []
    assert said[-1].startswith("copy of big.bin: 9.0 MiB in 0 s") or "MiB/s" in said[-1]
    assert digest.known(big) == result["sha256"]  # sent without having been hashed before, and not hashed again
    inode = target.stat().st_ino
    assert put(over_ssh, big, target)["changed"] is False
    assert target.stat().st_ino == inode


@needs_sshd
@pytest.mark.skipif(not shutil.which("sudo"), reason="needs sudo")
def test_as_another_user_through_sudo(over_ssh: Any, big: Path, tmp_path: Path) -> None:
    target = Path("/tmp") / f"wsllama-test-{os.getpid()}" / "big.bin"
    try:
        arguments = {"_sudo": True, "_sudo_user": "nobody"}
        transfer.send_file(over_ssh, big, str(target), say=print, arguments=arguments)
        assert target.owner() == "nobody"
        assert target.read_bytes() == big.read_bytes()
    finally:
        shutil.rmtree(target.parent, ignore_errors=True)


def part_of(target: Path, size: int) -> Path:
    return target.parent / ".incoming" / f"{target.name}-{size}.part"


@needs_sshd
@pytest.mark.parametrize("known", [False, True])
def test_goes_on_after_a_cut(over_ssh: Any, big: Path, tmp_path: Path, known: bool) -> None:
    target, data = tmp_path / "to" / "big.bin", big.read_bytes()
    part = part_of(target, len(data))
    part.parent.mkdir(parents=True)
    part.write_bytes(data[:4_000_001])
    inode = part.stat().st_ino
    said: list[str] = []
    put(over_ssh, big, target, said, sha256=sha256(data).upper() if known else None)
    assert target.read_bytes() == data
    assert target.stat().st_ino == inode  # the same file, so the first part was not written again
    assert said[0] == "big.bin goes on after the 3.8 MiB that are on the host"


@needs_sshd
def test_a_part_of_something_else_is_not_used(over_ssh: Any, big: Path, tmp_path: Path) -> None:
    target, data = tmp_path / "to" / "big.bin", big.read_bytes()
    part = part_of(target, len(data))
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 4_000_001)
    part_of(target, 77).write_bytes(b"of an earlier file of that name")
    said: list[str] = []
    put(over_ssh, big, target, said)
    assert target.read_bytes() == data
    assert said[0] == "big.bin starts again: it begins differently from the 3.8 MiB that are on the host"
    assert left(target) == []


@needs_sshd
def test_cut_keeps_what_came(over_ssh: Any, big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender's connection is closed in the middle: the target is as it was, and the next run sends the rest."""
    target, data = tmp_path / "to" / "big.bin", big.read_bytes()
    target.parent.mkdir()
    target.write_bytes(b"what was there")
    blocks = transfer._Sending.blocks

    def breaking(self: Any, start: int, end: int) -> Iterator[bytes]:
        for number, block in enumerate(blocks(self, start, end)):
            if number == 4:
                raise EOFError("the line went dead")
            yield block

    with monkeypatch.context() as patched:
        patched.setattr(transfer._Sending, "blocks", breaking)
        with pytest.raises(transfer.TransferError, match=r"the connection broke while big.bin was sent: the line went dead"):
            put(over_ssh, big, target)
    assert target.read_bytes() == b"what was there"
    part = part_of(target, len(data))
    deadline = time.monotonic() + 600
    while part.stat().st_size < 4 * BLOCK and time.monotonic() < deadline:
        time.sleep(0.05)  # the receiver writes on until it sees the end
    assert part.read_bytes() == data[: 4 * BLOCK]
    said: list[str] = []
    put(over_ssh, big, target, said)
    assert said[0].startswith("big.bin goes on after the 4.0 MiB")
    assert target.read_bytes() == data


def test_what_all_hosts_have_got_leaves_the_page_cache(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is slower need not have it read from the disk again."""
    monkeypatch.setattr(transfer, "DROP_EVERY", BLOCK)
    stock, dropped = os.posix_fadvise, list[int]()

    def counted(fd: int, offset: int, length: int, advice: int) -> None:
        assert (offset, advice) == (0, os.POSIX_FADV_DONTNEED)
        dropped.append(length)
        stock(fd, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", counted)
    size = big.stat().st_size
    with big.open("rb") as one, big.open("rb") as other:
        fast, slow = (transfer._Sending(big, file, None, print).blocks(0, size) for file in (one, other))
        next(slow)
        assert sum(len(block) for block in fast) == size
        assert max(dropped) == 0
        next(slow)
        assert max(dropped) == BLOCK
        assert sum(len(block) for block in slow) == size - 2 * BLOCK
        assert max(dropped) == size


@needs_sshd
def test_wrong_sha256_changes_nothing(over_ssh: Any, big: Path, tmp_path: Path) -> None:
    target = tmp_path / "to" / "big.bin"
    wrong = sha256(b"something else")
    with pytest.raises(transfer.TransferError) as caught:
        put(over_ssh, big, target, sha256=wrong)
    assert str(caught.value) == (f"big.bin has sha256 {sha256(big.read_bytes())} where {wrong} was expected; nothing was changed")
    assert not target.exists()
    assert left(target) == []
    assert digest.known(big) is None


@needs_sshd
def test_source_that_changes_meanwhile(over_ssh: Any, big: Path, tmp_path: Path) -> None:
    target = tmp_path / "to" / "big.bin"
    size = big.stat().st_size
    change = [lambda: os.utime(big, ns=(1, 1)), lambda: os.truncate(big, 5_000_000)]
    for how in change:
        sending = transfer._Sending.blocks

        def blocks(self: Any, start: int, end: int, how: Callable[[], None] = how, real: Any = sending) -> Iterator[bytes]:
            for block in real(self, start, end):
                yield block
                how()

        transfer._Sending.blocks = blocks  # type: ignore[method-assign]
        try:
            with pytest.raises(transfer.TransferError, match=r"big.bin was changed while it was sent: run again"):
                put(over_ssh, big, target)
        finally:
            transfer._Sending.blocks = sending  # type: ignore[method-assign]
        assert not target.exists()
    data = os.urandom(size)
    big.write_bytes(data)  # the same size, other bytes
    put(over_ssh, big, target)
    assert target.read_bytes() == data


@needs_sshd
def test_no_space_is_said_before_anything_is_sent(over_ssh: Any, big: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)], check=True)
    try:
        said: list[str] = []
        with pytest.raises(transfer.TransferError) as caught:
            put(over_ssh, big, small / "big.bin", said)
        assert str(caught.value) == (f"no space: big.bin needs {big.stat().st_size} bytes in {small}, where {4 << 20} are free")
        assert said == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


@needs_sshd
def test_two_at_once(sshd: Sshd, big: Path, tmp_path: Path) -> None:
    """The second waits, then finds the file there: one of them changes the host."""
    target = tmp_path / "to" / "big.bin"
    held = tmp_path / "to" / ".incoming"
    held.mkdir(parents=True)
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.unit.test_transfer import connected, put\n"
        f"data = dict(ssh_user='root', ssh_port={sshd.port}, ssh_key={str(sshd.key)!r},"
        f" ssh_known_hosts_file={str(tmp_path / 'known')!r}, ssh_strict_host_key_checking='no')\n"
        "class Said:\n    append = staticmethod(lambda line: print(line, flush=True))\n"
        "with connected('127.0.0.1', data) as host:\n"
        f"    print(put(host, Path({str(big)!r}), Path({str(target)!r}), Said)['changed'])\n"
    )
    lock = (held / "big.bin.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    waiting = [run.stdout.readline() for run in runs if run.stdout]
    lock.close()
    outputs = [run.communicate(timeout=900)[0].splitlines() for run in runs]
    assert sorted(output[-1] for output in outputs) == ["False", "True"]
    assert waiting == ["big.bin is being copied by another run: waiting for that\n"] * 2
    assert target.read_bytes() == big.read_bytes()


@needs_sshd
@pytest.mark.parametrize("where", ["over_ssh", "there"])
def test_a_model(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    host = request.getfixturevalue(where)
    source = tiny_model.write(tmp_path / "tiny.gguf", layers=4)
    expected, root = sha256(source.read_bytes()), tmp_path / "models"
    said: list[str] = []

    def send(**more: Any) -> dict[str, Any]:
        return transfer.send_model(host, source, root=str(root), say=said.append, arguments={}, **more)

    result = send()
    file = root / f"tiny-{expected[:8]}" / "tiny.gguf"
    assert result["file"] == str(file)
    assert result["dir"] == str(file.parent)
    assert (result["sha256"], result["architecture"], result["changed"]) == (expected, "qwen35moe", True)
    assert file.read_bytes() == source.read_bytes()
    stamp = json.loads(file.with_name("tiny.gguf.stamp").read_text())
    assert stamp.pop("summary")["architecture"] == "qwen35moe"
    now, was = file.stat(), source.stat()
    assert stamp == {
        "size": now.st_size, "mtime_ns": now.st_mtime_ns, "inode": now.st_ino, "sha256": expected,
        "architecture": "qwen35moe",
        "source": {"on": "host" if where == "there" else "controller", "path": str(source), "size": was.st_size,
                   "mtime_ns": was.st_mtime_ns, "inode": was.st_ino},
    }  # fmt: skip
    assert send()["changed"] is False
    assert send(sha256=expected.upper())["changed"] is False
    os.truncate(file, 1000)
    assert send()["changed"] is True
    assert file.read_bytes() == source.read_bytes()


@needs_sshd
def test_found_by_its_bytes_when_the_cache_is_lost(over_ssh: Any, tmp_path: Path) -> None:
    source, root = tiny_model.write(tmp_path / "tiny.gguf", layers=4), str(tmp_path / "models")
    transfer.send_model(over_ssh, source, root=root, say=print, arguments={})
    shutil.rmtree(tmp_path / "cache")
    os.utime(source)
    assert transfer.send_model(over_ssh, source, root=root, say=print, arguments={})["changed"] is False
    shutil.rmtree(tmp_path / "cache")
    other = tiny_model.write(source, layers=4, seed=2)
    assert transfer.send_model(over_ssh, other, root=root, say=print, arguments={})["changed"] is True
    assert len(list((tmp_path / "models").glob("tiny-*/tiny.gguf"))) == 2


def test_bad_models_are_refused_before_a_host_is_asked(tmp_path: Path) -> None:
    source = tiny_model.write(tmp_path / "tiny.gguf", layers=4)
    os.truncate(source, 100_000)
    with pytest.raises(transfer.TransferError, match=r"tiny.gguf: it is cut off: it has 100000 bytes where"):
        transfer.send_model(None, source, say=print, arguments={})
    with pytest.raises(transfer.TransferError, match=r"no.gguf: No such file or directory"):
        transfer.send_model(None, tmp_path / "no.gguf", say=print, arguments={})


def test_connectors_without_a_stream(big: Path) -> None:
    with (
        connected("@fake/x", {}) as host,
        pytest.raises(transfer.TransferError, match=r"can't be sent to \S+ over FakeConnector: give a path on the host itself"),
    ):
        put(host, big, Path("/nowhere/big.bin"))


def test_local_errors_are_sentences(there: Any, big: Path, tmp_path: Path) -> None:
    with pytest.raises(transfer.TransferError, match=rf"^{big}/.incoming: Not a directory$"):
        put(there, big, big / "below a file")
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(transfer.TransferError, match=rf"^{target} is there and not a plain file: move it away$"):
        put(there, big, target)


def test_digest_is_computed_once(tmp_path: Path, big: Path) -> None:
    cache = tmp_path / "digests"
    calls: list[tuple[int, int]] = []
    first = digest.sha256_of(big, lambda done, size: calls.append((done, size)), cache)
    assert first == subprocess.run(["sha256sum", big], capture_output=True, text=True, check=True).stdout.split()[0]
    assert calls[-1] == (big.stat().st_size, big.stat().st_size)
    count = len(calls)
    assert digest.sha256_of(big, lambda done, size: calls.append((done, size)), cache) == first
    assert len(calls) == count
    os.utime(big, ns=(5, 5))
    assert digest.known(big, cache) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 3}', '"x"', "\x00"])
def test_a_damaged_cache_is_an_empty_one(tmp_path: Path, big: Path, text: str) -> None:
    (tmp_path / "digests.json").write_text(text)
    assert digest.known(big, tmp_path) is None
    assert digest.sha256_of(big, cache_dir=tmp_path) == digest.known(big, tmp_path) == sha256(big.read_bytes())


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "MOST", 3)
    files = [tmp_path / str(number) for number in range(5)]
    for file in files:
        file.write_bytes(file.name.encode())
        digest.sha256_of(file, cache_dir=tmp_path)
    assert [digest.known(file, tmp_path) is not None for file in files] == [False, False, True, True, True]


def test_digest_of_a_file_that_changes(tmp_path: Path, big: Path) -> None:
    with pytest.raises(RuntimeError, match="was changed while it was read"):
        digest.sha256_of(big, lambda *_: os.utime(big, ns=(7, 7)), tmp_path)
    assert digest.known(big, tmp_path) is None
