"""@wsl and @wslssh with real shells, processes and an sshd; only `wsl.exe` itself is a script of these tests."""

import contextlib
import hashlib
import io
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import gevent
import pytest
from pyinfra.api import Config, Inventory, QuoteString, State, StringCommand
from pyinfra.api.connectors import get_all_connectors
from pyinfra.api.exceptions import ConnectError, InventoryError
from pyinfra.context import ctx_host, ctx_state

from tests.unit.test_transfer import Sshd, connected, needs_sshd, put
from wsllama.connectors import shell
from wsllama.connectors.wsl import WslConnector
from wsllama.connectors.wslssh import WslSshConnector

AWKWARD = 'it\'s "quoted" $HOME `id` \\ %PATH% !x! ^ & | < > ; # (a) {b} [c] * ? ~ \t ü 漢字 \U0001f999'
SHELLS = [[path] for name in ("dash", "bash") if (path := shutil.which(name))]
SHELLS += [[path, "sh"] for name in ("busybox",) if (path := shutil.which(name))]
FIXED = '"C:\\Program Files\\WSL\\wsl.exe" -d Ubuntu -u root --exec /bin/sh'
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user")


def wsl_exe(folder: Path, said: bytes = b"", *, ends: int | None = None, waits: float = 0) -> str:
    """A wsl.exe that says something, and then starts the program that it is asked for, or ends with a status."""
    (folder / "said").write_bytes(said)
    then = 'test "$1 $2 $3 $4 $5" = "-d Ubuntu -u root --exec" || exit 99; shift 5; exec "$@"' if ends is None else f"exit {ends}"
    path = folder / "wsl.exe"
    path.write_text(f"#!/bin/sh\ncat '{folder}/said'\nsleep {waits}\n{then}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def distro(tmp_path: Path) -> Iterator[Any]:
    """A host behind @wsl/."""
    with connected("@wsl/Ubuntu", {"wsl_exe": wsl_exe(tmp_path)}) as host:
        yield host


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An sshd that does what a Windows machine does with the one command line that it may get."""
    folder = tmp_path_factory.mktemp("windows")
    folder.chmod(0o755)
    login = folder / "login"
    login.write_text(f"#!/bin/sh\n[ \"$SSH_ORIGINAL_COMMAND\" = '{FIXED}' ] && exec /bin/sh\nexit 99\n")
    login.chmod(0o755)
    found = Sshd(folder)
    keys = folder / "authorized_keys"
    keys.write_text(f'command="{login}" {keys.read_text()}')
    yield found
    found.stop()


def ssh_data(server: Sshd, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "ssh_user": "root", "ssh_port": server.port, "ssh_key": str(server.key),
        "ssh_known_hosts_file": str(folder / "known_hosts"), "ssh_strict_host_key_checking": "no", **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def behind_ssh(server: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with connected("@wslssh/127.0.0.1:Ubuntu", ssh_data(server, tmp_path_factory.mktemp("known"))) as host:
        yield host


@pytest.fixture(params=["distro", pytest.param("behind_ssh", marks=needs_sshd)])
def either(request: pytest.FixtureRequest) -> Any:
    """A host behind each of them."""
    return request.getfixturevalue(request.param)


def run(host: Any, command: str | StringCommand, **arguments: Any) -> tuple[bool, str, str]:
    ok, out = host.run_shell_command(command if isinstance(command, StringCommand) else StringCommand(command), **arguments)
    return ok, out.stdout, out.stderr


def refusal(name: str, data: dict[str, Any], config: Config | None = None) -> str:
    """Why a host could not be connected."""
    state = State(Inventory(([(name, data)], {})), config or Config())
    host = state.inventory.get_host(name)
    with ctx_state.use(state), ctx_host.use(host), pytest.raises(ConnectError) as caught:
        host.connect(show_errors=False, raise_exceptions=True)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


# What goes to the shell


@pytest.mark.parametrize("program", SHELLS, ids=lambda words: Path(words[0]).name)
@pytest.mark.parametrize("size", [0, 1, shell.READ_AHEAD - 1, shell.READ_AHEAD, 3 * shell.READ_AHEAD + 1])
def test_input_follows_the_command(program: list[str], size: int) -> None:
    """Whatever a shell reads ahead, the command gets its input from the first byte on."""
    data = os.urandom(size)
    sent = shell.frame("cat; exit 7", takes_input=True) + data
    done = subprocess.run(program, input=sent, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (7, shell.MARK)
    assert done.stdout == shell.MARK + data


@pytest.mark.parametrize("program", SHELLS, ids=lambda words: Path(words[0]).name)
@pytest.mark.parametrize("piece", [1, 63, 4096])
def test_it_may_come_in_pieces(program: list[str], piece: int) -> None:
    sent = shell.frame(f"printf %s {shlex.quote(AWKWARD)}; cat", takes_input=True)
    sent += b"\0\xff" * 50
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin
        assert process.stdout
        for at in range(0, len(sent), piece):
            process.stdin.write(sent[at : at + piece])
            process.stdin.flush()
        process.stdin.close()
        assert process.stdout.read() == shell.MARK + AWKWARD.encode() + b"\0\xff" * 50


@pytest.mark.parametrize("program", SHELLS, ids=lambda words: Path(words[0]).name)
def test_without_input_there_is_none(program: list[str]) -> None:
    """The rest of what the shell gets is not the command's, which does not wait for its end either."""
    ours, kept = os.pipe()
    os.write(kept, shell.frame("read line || echo end"))
    try:
        done = subprocess.run(program, stdin=ours, capture_output=True, timeout=600, check=False)
    finally:
        os.close(ours)
        os.close(kept)
    assert done.stdout == shell.MARK + b"end\n"


@pytest.mark.parametrize("program", SHELLS, ids=lambda words: Path(words[0]).name)
def test_a_command_that_is_no_shell(program: list[str]) -> None:
    done = subprocess.run(program, input=shell.frame("echo a; }; { echo b", takes_input=True), capture_output=True, check=False)
    assert done.returncode not in (0, 255)
    assert done.stdout == shell.MARK
    assert b"yntax error" in done.stderr.removeprefix(shell.MARK)


# What wsl.exe says

NOT_FOUND = {
    "en": "There is no distribution with the supplied name.\r\nError code: Wsl/Service/WSL_E_DISTRO_NOT_FOUND\r\n",
    "de": "Es ist keine Distribution mit dem angegebenen Namen vorhanden.\r\nFehlercode: Wsl/Service/WSL_E_DISTRO_NOT_FOUND\r\n",
    "zh": "不存在具有所提供名称的分发。\r\n错误代码: Wsl/Service/WSL_E_DISTRO_NOT_FOUND\r\n",
}


@pytest.mark.parametrize("language", NOT_FOUND)
@pytest.mark.parametrize("coding", ["utf-16-le", "utf-8", "utf-16"])
def test_text_is_decoded(language: str, coding: str) -> None:
    text = NOT_FOUND[language]
    assert shell.decode(text.encode(coding)) == text.replace("\r\n", "\n").strip()


def test_text_that_is_cut_or_of_a_code_page() -> None:
    assert shell.decode("Ende\r\n".encode("utf-16-le")[:-1]) == "Ende"
    assert shell.decode("Zugriff für x".encode("cp850")) == "Zugriff f\ufffdr x"
    assert shell.decode(b"") == ""


CAUSES = {
    "there is no distro Ubuntu": list(NOT_FOUND.values()),
    "WSL is stopped": ["无法启动服务。\r\n错误代码: Wsl/0x80070422\r\n", "x\r\nCode: Wsl/Service/ERROR_SERVICE_DISABLED\r\n"],
    "belongs to the Store, which does not start programs": [
        "The file cannot be accessed by the system.\r\n", "Das System kann auf die Datei nicht zugreifen.\r\n",
        "系统无法访问此文件。\r\n", "系統無法存取該檔案。\r\n", "?\r\nFehlercode: Wsl/0x80070780\r\n",
    ],
    "WSL is not installed": [
        "适用于 Linux 的 Windows 子系统未安装。可通过运行 “wsl.exe --install” 进行安装。\r\n",
        "Weitere Informationen finden Sie unter https://aka.ms/wslinstall\r\n",
        "x\r\nError code: Wsl/WSL_E_WSL_OPTIONAL_COMPONENT_REQUIRED\r\n", "x\r\nFehlercode: Wsl/CallMsi/REGDB_E_CLASSNOTREG\r\n",
    ],
    "can't start its virtual machine": ["x\r\nError code: Wsl/Service/CreateInstance/CreateVm/HCS_E_HYPERV_NOT_INSTALLED\r\n"],
    "Windows refuses WSL to this user": ["Zugriff verweigert\r\nFehlercode: Wsl/Service/E_ACCESSDENIED\r\n"],
    "PowerShell, which needs a path": ["    + FullyQualifiedErrorId : UnexpectedToken\r\n"],
    "WSL did not start Ubuntu: Katastrophal (Wsl/Service/E_UNEXPECTED)": ["Katastrophal\r\nCode: Wsl/Service/E_UNEXPECTED\r\n"],
}  # fmt: skip


@pytest.mark.parametrize(("part", "text"), [(part, text) for part, texts in CAUSES.items() for text in texts])
def test_causes_are_told_apart(part: str, text: str) -> None:
    said = shell.decode(text.encode("utf-16-le"))
    sentence = shell.explain(said, exe="wsl.exe", distro="Ubuntu")
    assert [other for other in CAUSES if other in sentence] == [part]
    assert "\n" not in sentence


def test_a_cause_without_any_code() -> None:
    assert "install WSL with `wsl.exe --install`, or set wsl_exe" in shell.explain("?", exe=shell.INSTALLED, distro="Ubuntu")
    store = shell.explain("?", exe=r"C:\Users\x\AppData\Local\Microsoft\WindowsApps\wsl.exe", distro="Ubuntu")
    assert store.endswith(r"set wsl_exe to C:\Program Files\WSL\wsl.exe")
    assert "did not start there (it said nothing)" in shell.explain("", exe=shell.INSTALLED, distro="Ubuntu")


# Names


def test_both_are_registered() -> None:
    found = get_all_connectors()
    assert (found["wsl"], found["wslssh"]) == (WslConnector, WslSshConnector)


def test_names() -> None:
    assert list(WslConnector.make_names_data("Ubuntu-24.04")) == [("@wsl/Ubuntu-24.04", {"wsl_distro": "Ubuntu-24.04"}, ["@wsl"])]
    assert list(WslSshConnector.make_names_data("fe80::1:My_distro")) == [
        ("@wslssh/fe80::1:My_distro", {"ssh_hostname": "fe80::1", "wsl_distro": "My_distro"}, ["@wslssh"])
    ]


@pytest.mark.parametrize("name", [None, "", "Übuntu", "a b", 'a"b', "a;b", "-d", "a%b", "a&b", "a\n"])
@pytest.mark.parametrize(
    "names", [WslConnector.make_names_data, lambda name: WslSshConnector.make_names_data(name and f"pc:{name}")]
)
def test_names_that_are_refused(names: Callable[[Any], Iterator[Any]], name: Any) -> None:
    with pytest.raises(InventoryError):
        list(names(name))


@pytest.mark.parametrize("name", ["pc", "pc:", ":Ubuntu"])
def test_a_host_and_a_distro_are_needed(name: str) -> None:
    with pytest.raises(InventoryError, match=r"needs a Windows host and a distro: @wslssh/win-01:Ubuntu-24\.04"):
        list(WslSshConnector.make_names_data(name))


# Commands


def test_awkward_words(either: Any) -> None:
    text = f"{AWKWARD}\n\n  second line'\n"
    ok, out, err = run(either, StringCommand("printf", "'%s'", QuoteString(text)))
    assert (ok, f"{out}\n", err) == (True, text, "")


def test_stdin(either: Any) -> None:
    assert run(either, "cat", _stdin=AWKWARD)[1] == AWKWARD
    assert run(either, "cat", _stdin=["one", "two\n", AWKWARD])[1] == f"one\ntwo\n{AWKWARD}"
    assert run(either, "cat", _stdin=io.StringIO("a\nb"))[1] == "a\nb"
    assert run(either, "wc -c", _stdin=b"\0\xff\n\n" * 3)[1].strip() == "12"
    assert run(either, "cat; echo end")[1] == "end"


def test_both_sides_speak_at_once(either: Any) -> None:
    """More than all buffers between them hold, both ways."""
    line = "x" * 1023
    assert run(either, "cat", _stdin=[line] * 4096)[1] == "\n".join([line] * 4096)


def test_input_that_nobody_reads(either: Any) -> None:
    assert run(either, "echo done", _stdin=["x" * 1023] * 4096) == (True, "done", "")


def test_exit_status(either: Any) -> None:
    assert run(either, "echo out; echo err >&2; exit 3") == (False, "out", "err")
    assert run(either, "exit 3", _success_exit_codes=[0, 3])[0] is True
    assert run(either, "exit 4", _success_exit_codes=[0, 3])[0] is False


def test_folder_and_environment(either: Any) -> None:
    assert run(either, "pwd")[1] == os.path.expanduser("~")
    assert run(either, 'echo "$VALUE"; pwd', _env={"VALUE": AWKWARD}, _chdir="/usr")[1] == f"{AWKWARD}\n/usr"


def test_shells(either: Any) -> None:
    assert run(either, "echo ${BASH_VERSION:+bash}", _shell_executable="bash")[1] == "bash"
    assert run(either, "echo $((1 + 1)) 'a  b'", _shell_executable=None)[1] == "2 a  b"


@needs_root
def test_another_user(either: Any) -> None:
    assert run(either, "id -un; cat", _su_user="nobody", _su_shell="sh", _stdin=AWKWARD)[1] == f"nobody\n{AWKWARD}"


@needs_root
@pytest.mark.skipif(not shutil.which("sudo"), reason="needs sudo")
def test_sudo(either: Any) -> None:
    assert run(either, "id -un; cat", _sudo=True, _sudo_user="nobody", _stdin=AWKWARD)[1] == f"nobody\n{AWKWARD}"


def test_a_terminal(either: Any) -> None:
    ok, out, _ = run(either, "test -t 1 && test -t 2 && echo yes; exit 5", _get_pty=True, _success_exit_codes=[5])
    assert (ok, out.strip()) == (True, "yes")
    assert run(either, "test -t 1 || echo no")[1] == "no"


def test_bytes_that_are_no_text(either: Any) -> None:
    assert run(either, r"printf 'a\377b\n'")[1] == "a\ufffdb"


def test_lines_come_as_they_are_said(either: Any) -> None:
    session = either.connector.open("echo first; read answer; echo $answer")
    lines = session.out.lines()
    session.write(b"")
    assert next(lines) == b"first\n"
    session.write(b"second\n")
    assert next(lines) == b"second\n"
    assert session.finish() == (b"", 0)
    session.close()


def test_output_is_shown_as_it_comes(either: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyinfra.api.output._echo", click.echo)  # as pyinfra's command line sets it
    run(either, "echo one; echo two >&2", print_output=True, print_input=True)
    shown = capsys.readouterr().err
    assert ">>> sh -c 'echo one; echo two >&2'" in shown
    assert "one\n" in shown
    assert "two\n" in shown


def test_a_command_that_takes_too_long(distro: Any, tmp_path: Path) -> None:
    """It is ended, and not only waited for no longer."""
    number = tmp_path / "pid"
    for seconds in (1, 8, 64):  # in which it has begun, on a machine of whatever speed
        with pytest.raises(TimeoutError):
            run(distro, f"exec sh -c 'echo $$ > {number}; exec sleep 3600'", _shell_executable=None, _timeout=seconds)
        if number.exists() and number.read_text():
            break
    deadline = time.monotonic() + 600
    while Path(f"/proc/{number.read_text().strip()}/cwd").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@needs_sshd
def test_a_command_that_takes_too_long_behind_ssh(behind_ssh: Any, tmp_path: Path) -> None:
    waits = tmp_path / "waits"  # while it is there: behind SSH a command goes on
    waits.touch()
    with pytest.raises(TimeoutError):
        run(behind_ssh, f"while test -e {waits}; do sleep 0.1; done", _timeout=1)
    assert run(behind_ssh, "echo next")[1] == "next"
    waits.unlink()


def test_wsl_ends_in_between(distro: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyinfra.api.output._echo", click.echo)
    ok, out, err = run(distro, "echo begun; kill -9 $PPID; sleep 0.3", print_output=True)
    assert (ok, out, err) == (False, "begun", shell.BROKE)
    assert f"{shell.BROKE}\n" in capsys.readouterr().err


def test_the_distro_goes_away(distro: Any, tmp_path: Path) -> None:
    wsl_exe(tmp_path, NOT_FOUND["de"].encode("utf-16-le"), ends=255)
    ok, out, err = run(distro, "echo never")
    assert (ok, out) == (False, "")
    assert err.startswith("there is no distro Ubuntu")
    assert distro.put_file(io.BytesIO(b"x"), "/nowhere/x") is False
    assert distro.get_file("/etc/passwd", io.BytesIO()) is False


# Files


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big.bin"
    path.write_bytes(bytes(range(256)) * 4096 * 8 + os.urandom(12345))
    return path


def test_files(either: Any, big: Path, tmp_path: Path) -> None:
    there, back = tmp_path / f"{AWKWARD.replace('/', '')}.bin", tmp_path / "back.bin"
    assert either.put_file(str(big), str(there)) is True
    assert there.read_bytes() == big.read_bytes()
    assert either.get_file(str(there), str(back)) is True
    assert back.read_bytes() == big.read_bytes()


def test_files_in_memory(either: Any, tmp_path: Path) -> None:
    there, back = tmp_path / "there", io.BytesIO()
    there.touch(0o640)
    inode = there.stat().st_ino
    for file, data in ((io.BytesIO(b"\0\r\n\xff"), b"\0\r\n\xff"), (io.StringIO(AWKWARD), AWKWARD.encode()), (io.BytesIO(), b"")):
        assert either.put_file(file, str(there)) is True
        assert there.read_bytes() == data
    assert (there.stat().st_ino, there.stat().st_mode & 0o777) == (inode, 0o640)
    assert either.put_file(io.BytesIO(b"last"), str(there), _success_exit_codes=[5]) is True
    assert either.get_file(str(there), back) is True
    assert back.getvalue() == b"last"


@needs_root
def test_files_of_another_user(either: Any, tmp_path: Path) -> None:
    import pwd

    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    try:
        assert either.put_file(io.BytesIO(b"theirs"), f"{folder}/x", _su_user="nobody", _su_shell="sh") is True
        assert (folder / "x").owner() == "nobody"
        (folder / "x").chmod(0o600)
        back = io.BytesIO()
        assert either.get_file(f"{folder}/x", back, _su_user="nobody", _su_shell="sh") is True
        assert back.getvalue() == b"theirs"
    finally:
        shutil.rmtree(folder)


def test_files_that_can_not_be(either: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert either.put_file(io.BytesIO(b"x"), str(tmp_path / "none" / "x")) is False
    assert either.get_file(str(tmp_path / "none"), io.BytesIO()) is False
    assert either.put_file(io.BytesIO(b"x" * 10), "/dev/full") is False
    texts = [record.getMessage() for record in caplog.records]
    assert "none/x" in texts[0]
    assert "/none" in texts[1]
    assert "No space left" in texts[2]


def test_a_source_that_ends_early(either: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Shrinks(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            return super().read(3) if not self.tell() else b""

    assert either.put_file(Shrinks(b"longer than that"), str(tmp_path / "x")) is False
    assert "it did not come whole" in caplog.records[-1].getMessage()


def test_a_source_that_can_not_be_read(either: Any, tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        either.put_file(Broken(b"x"), str(tmp_path / "x"))


def test_a_file_that_takes_too_long(distro: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with gevent.Timeout(600, AssertionError("it waits for ever")), pytest.raises(TimeoutError):
        distro.get_file(str(tmp_path / "fifo"), io.BytesIO(), _timeout=1)
    # As over SSH, who reads it goes on in the distro: here it ends. Both ways, because nobody may have begun to read it.
    os.close(os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK))
    (tmp_path / "fifo").unlink()


def test_big_files_as_transfer_sends_them(either: Any, big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said: list[str] = []
    target = tmp_path / "to" / "big.bin"
    part = target.parent / ".incoming" / f"big.bin-{big.stat().st_size}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(big.read_bytes()[: 1 << 20])
    result = put(either, big, target, said)
    assert (result["changed"], result["sha256"]) == (True, hashlib.sha256(big.read_bytes()).hexdigest())
    assert said[0] == "big.bin goes on after the 1.0 MiB that are on the host"
    assert target.read_bytes() == big.read_bytes()
    assert put(either, big, target)["changed"] is False


# Why nothing is connected


def test_no_distro(tmp_path: Path) -> None:
    for text in NOT_FOUND.values():
        data = {"wsl_exe": wsl_exe(tmp_path, text.encode("utf-16-le"), ends=255)}
        assert refusal("@wsl/Other", data) == (
            "there is no distro Other for the user of this session: `wsl.exe --list` run as that user shows which there are"
            " (Wsl/Service/WSL_E_DISTRO_NOT_FOUND)"
        )


def test_no_wsl_exe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert refusal("@wsl/Ubuntu", {}).startswith("there is no wsl.exe here: @wsl works on Windows")
    assert refusal("@wsl/Ubuntu", {"wsl_exe": f"{tmp_path}/x"}) == f"{tmp_path}/x can't be run: No such file or directory"
    Path(wsl_exe(tmp_path)).chmod(0o644)
    assert "Permission denied" in refusal("@wsl/Ubuntu", {"wsl_exe": f"{tmp_path}/wsl.exe"})


def test_wsl_exe_from_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wsl_exe(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with connected("@wsl/Ubuntu", {}) as host:
        assert run(host, "echo here")[1] == "here"


def test_a_distro_that_does_not_start(tmp_path: Path) -> None:
    data = {"wsl_exe": wsl_exe(tmp_path, waits=30), "wsl_start_timeout": 1}
    assert refusal("@wsl/Ubuntu", data).startswith("Ubuntu did not start within 1 s")


def test_warnings_of_wsl_are_shown_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "wsl: Unbekannter Schlüssel „wsl2.foo“ in C:\\Users\\x\\.wslconfig:3\r\n"
    with connected("@wsl/Ubuntu", {"wsl_exe": wsl_exe(tmp_path, text.encode("utf-16-le"))}) as host:
        assert [record.getMessage() for record in caplog.records if text.strip() in record.getMessage()] != []
        caplog.clear()
        assert run(host, "echo text") == (True, "text", "")
    assert caplog.records == []


@needs_sshd
def test_ssh_is_refused(server: Sshd, tmp_path: Path) -> None:
    name, data = "@wslssh/127.0.0.1:Ubuntu", ssh_data(server, tmp_path)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    other = (tmp_path / "other.pub").read_text()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{server.port} {other}")
    wrong = refusal(name, {**data, "ssh_known_hosts_file": str(tmp_path / "known"), "ssh_strict_host_key_checking": "yes"})
    login = refusal(name, {**data, "ssh_key": str(tmp_path / "other")})
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = refusal(name, {**data, "ssh_port": closed.getsockname()[1]})
    line = refusal(name, {**data, "wsl_exe": r"C:\wsl.exe"})  # a command line that the machine does not know
    assert wrong.startswith("127.0.0.1 shows another host key than known_hosts has for it")
    assert login.startswith("Windows on 127.0.0.1 refused the login: check ssh_user and ssh_key")
    assert nobody.startswith("127.0.0.1 can't be reached with SSH (")
    assert line.startswith(r"C:\wsl.exe did not start there (it said nothing)")
    assert "can't be a word" in refusal(name, {**data, "wsl_exe": "C:\\a&b.exe"})


def test_ssh_without_an_answer(tmp_path: Path) -> None:
    """A full queue of connections drops the next one, as a firewall does."""
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.2)
            with contextlib.suppress(OSError):
                waiting.connect(full.getsockname())
        data = {"ssh_port": full.getsockname()[1], "ssh_known_hosts_file": str(tmp_path / "known"), "ssh_look_for_keys": False}
        sentence = refusal("@wslssh/127.0.0.1:Ubuntu", data, Config(CONNECT_TIMEOUT=1))
    assert sentence.startswith("127.0.0.1 did not answer in time")


def test_a_host_that_is_unknown() -> None:
    assert refusal("@wslssh/no-such-host.invalid:Ubuntu", {}).startswith("no-such-host.invalid can't be found")


@needs_sshd
def test_a_distro_that_does_not_start_behind_ssh(server: Sshd, tmp_path: Path) -> None:
    keys = server.key.with_name("authorized_keys")
    before = keys.read_text()
    keys.write_text(f'command="sleep 30" {server.key.with_suffix(".pub").read_text()}')
    try:
        sentence = refusal("@wslssh/127.0.0.1:Ubuntu", ssh_data(server, tmp_path, wsl_start_timeout=1))
    finally:
        keys.write_text(before)
    assert sentence.startswith("Ubuntu did not start within 1 s")


@needs_sshd
def test_no_rsync(behind_ssh: Any) -> None:
    with pytest.raises(NotImplementedError, match="does not support rsync"):
        behind_ssh.check_can_rsync()
