"""The stand-ins for Windows answer as the real programs do: bytes, exit codes, what fails without rights, and nothing stays."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Host, Lab, LabError
from lab.windows import WindowsMachine, WslMachine

SYSTEM32 = "/mnt/c/Windows/System32"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
CMD = f"{SYSTEM32}/cmd.exe"
POWERSHELL = f"{SYSTEM32}/WindowsPowerShell/v1.0/powershell.exe"
TASK = """<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <Triggers><LogonTrigger><UserId>LABPC\\Ada</UserId></LogonTrigger></Triggers>
  <Principals><Principal id="Author"><UserId>LABPC\\Ada</UserId></Principal></Principals>
  <Actions><Exec><Command>C:\\Program Files\\WSL\\wsl.exe</Command></Exec></Actions>
</Task>
"""


@pytest.fixture
def host(lab: Lab) -> Host:
    """The host for machines of another kind, one after the other."""
    return lab.hosts[0]


@pytest.fixture(scope="module")
def shared(lab: Lab) -> Iterator[WslMachine]:
    """One machine for the tests that need no special one."""
    with WslMachine(lab.hosts[1], others={"docker-desktop": False, "Ubuntu": False}, memory_bytes=64 * 1024**3) as machine:
        yield machine


@pytest.fixture
def wsl(shared: WslMachine) -> Iterator[WslMachine]:
    """The shared machine; what a test changed of its Windows side is put back."""
    with shared.change() as state:
        before = json.dumps(state)
    shared.forget()
    yield shared
    with shared.change() as state:
        state.update(json.loads(before))


@pytest.fixture
def windows(host: Host, request: pytest.FixtureRequest) -> Iterator[WindowsMachine]:
    """A host as the Windows machine."""
    with WindowsMachine(host, **getattr(request, "param", {})) as machine:
        yield machine


def run(machine: WslMachine, *argv: str, cwd: str = "/mnt/c") -> subprocess.CompletedProcess[bytes]:
    """Run a command in the distro, as a session that wsl.exe started."""
    session = ["env", "-i", "-C", cwd, "WSL_INTEROP=/run/WSL/1_interop", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *argv]
    enter = ["nsenter", "-t", str(machine.host.leader), "-a", *session]
    return subprocess.run(enter, capture_output=True, timeout=600, check=False)


def run_in_service(machine: WslMachine, *argv: str) -> subprocess.CompletedProcess[bytes]:
    """The same over ssh, where nobody set WSL_INTEROP."""
    line = f"cd /mnt/c && {shlex.join(argv)}"
    return subprocess.run([*machine.host.ssh_argv(), "--", line], capture_output=True, timeout=600, check=False)


def put(machine: WslMachine, name: str, text: str, encoding: str = "utf-8") -> str:
    """A file in the user's profile; returns its Windows path."""
    machine.path(f"{machine.profile}/{name}").write_bytes(text.encode(encoding))
    return f"{machine.profile_windows}\\{name}"


# Starting programs


def test_the_list_has_the_bytes_of_a_real_one(wsl: WslMachine) -> None:
    """The published output of `wsl.exe -l -v` with these three distros."""
    expected = (
        "  NAME              STATE           VERSION\r\n* Ubuntu-24.04      Running         2\r\n"
        "  docker-desktop    Stopped         2\r\n  Ubuntu            Stopped         2\r\n"
    )
    done = run(wsl, f"{SYSTEM32}/wsl.exe", "-l", "-v")
    assert (done.returncode, done.stdout) == (0, expected.encode("utf-16-le"))
    assert [(call.program, call.argv, call.cwd) for call in wsl.calls()] == [("wsl.exe", ["wsl.exe", "-l", "-v"], "C:\\")]


def test_status_version_and_terminate(wsl: WslMachine) -> None:
    """The published outputs in English; lines 1, 2 and 7 of the version are what is read of it."""
    wsl_exe = f"{SYSTEM32}/wsl.exe"
    status = run(wsl, wsl_exe, "--status").stdout.decode("utf-16-le")
    assert status == "Default Distribution: Ubuntu-24.04\r\nDefault Version: 2\r\n"
    lines = run(wsl, wsl_exe, "--version").stdout.decode("utf-16-le").split("\r\n")
    assert (lines[0], lines[1], lines[6]) == (
        "WSL version: 2.7.9.0",
        "Kernel version: 6.6.87.2-1",
        "Windows version: 10.0.26200.8120",
    )
    with wsl.change() as state:
        state["distros"]["Ubuntu"]["running"] = True
    assert run(wsl, wsl_exe, "-t", "Ubuntu").returncode == 0
    assert wsl.state()["distros"]["Ubuntu"] == {"running": False}
    assert run(wsl, wsl_exe, "-t", "Nope").returncode == 255


def test_utf8_reaches_wsl_exe_through_wslenv_only(wsl: WslMachine) -> None:
    plain = run_in_service(wsl, "env", "WSL_UTF8=1", f"{SYSTEM32}/wsl.exe", "-l", "-q")
    named = run(wsl, "env", "WSL_UTF8=1", "WSLENV=WSL_UTF8", f"{SYSTEM32}/wsl.exe", "-l", "-q")
    assert named.stdout == b"Ubuntu-24.04\r\ndocker-desktop\r\nUbuntu\r\n"
    assert plain.stdout == named.stdout.decode().encode("utf-16-le")


def test_init_takes_its_second_word_as_the_programs_name(wsl: WslMachine) -> None:
    """WSL#8261: `/init PROGRAM ARGS` loses the first argument, but cmd.exe looks in its whole command line."""
    assert (
        run(wsl, "/init", f"{SYSTEM32}/wsl.exe", "-l", "-q").stdout
        != run(wsl, "/init", *[f"{SYSTEM32}/wsl.exe"] * 2, "-l", "-q").stdout
    )
    lost = run(wsl, "/init", CMD, "/U", "/D", "/C", "echo.%USERPROFILE%")
    assert lost.stdout == "C:\\Users\\Ada\r\n".encode("utf-16-le")
    assert [call.argv for call in wsl.calls()] == [
        ["-l", "-q"],
        ["wsl.exe", "-l", "-q"],
        ["/U", "/D", "/C", "echo.%USERPROFILE%"],
    ]


def test_a_folder_of_the_distro_is_no_folder_for_cmd(wsl: WslMachine) -> None:
    done = run(wsl, CMD, "/D", "/C", "cd", cwd="/root")
    assert done.stdout == b"C:\\Windows\r\n"
    assert done.stderr == (
        b"'\\\\wsl.localhost\\Ubuntu-24.04\\root'\r\nCMD.EXE was started with the above path as the current directory.\r\n"
        b"UNC paths are not supported.  Defaulting to Windows directory.\r\n"
    )


@pytest.mark.parametrize(
    ("line", "code", "out"),
    [
        ("echo %NOSUCH% %USERNAME%", 0, b"%NOSUCH% Ada\r\n"),
        ("echo.a^&b & echo c", 0, b"a&b \r\nc\r\n"),
        ("nosuch 2>nul || echo no", 0, b"no\r\n"),
        ("nosuch 2>nul && echo yes", 1, b""),
        ("exit /b 259", 3, b""),
        ("C:\\Windows\\System32\\whoami.exe", 0, b"labpc\\ada\r\n"),
    ],
)
def test_cmd_reads_a_line_as_cmd_does(wsl: WslMachine, line: str, code: int, out: bytes) -> None:
    done = run(wsl, CMD, "/D", "/C", line)
    assert (done.returncode, done.stdout) == (code, out)


@pytest.mark.parametrize(
    ("argv", "out"),
    [
        (("-au", "C:\\Users\\Ada"), "/mnt/c/Users/Ada"),
        (("-u", "c:/Users/Ada"), "/mnt/c/Users/Ada"),
        (("-am", "/"), "//wsl.localhost/Ubuntu-24.04/"),
        (("-w", "/mnt/c/Users"), "C:\\Users"),
        (("-w", "/etc"), "\\\\wsl.localhost\\Ubuntu-24.04\\etc"),
        (("-u", "Z:\\x"), ""),
    ],
)
def test_wslpath_translates(wsl: WslMachine, argv: tuple[str, ...], out: str) -> None:
    done = run(wsl, "wslpath", *argv)
    assert (done.returncode, done.stdout.decode().rstrip("\n")) == (0 if out else 1, out)


# A machine of another kind


@pytest.fixture
def another(host: Host, request: pytest.FixtureRequest) -> Iterator[WslMachine]:
    """A machine with other arguments than the shared one's."""
    with WslMachine(host, **request.param) as machine:
        yield machine


@pytest.mark.parametrize(
    ("another", "direct", "through_init", "by_the_other_socket"),
    [
        ({"interop": "no-binfmt"}, 126, (0, ""), 0),
        ({"interop": "off"}, 126, (1, ""), 1),
        ({"interop": "dead-socket"}, 1, (1, "connect failed 111"), 0),
        ({"interop": "dead-sockets"}, 1, (1, "connect failed 111"), 1),
    ],
    indirect=["another"],
    ids=["no-binfmt", "off", "dead-socket", "dead-sockets"],
)
def test_interop_fails_as_it_does(
    another: WslMachine, direct: int, through_init: tuple[int, str], by_the_other_socket: int
) -> None:
    assert run_in_service(another, "bash", "-c", f"{CMD} /D /C ver").returncode == direct
    done = run_in_service(another, "/init", CMD, CMD, "/D", "/C", "ver")
    assert done.returncode == through_init[0]
    assert through_init[1] in done.stderr.decode()
    assert bool(done.stderr) == bool(through_init[1])
    other = run_in_service(another, "env", "WSL_INTEROP=/run/WSL/412_interop", "/init", CMD, CMD, "/D", "/C", "ver")
    assert other.returncode == by_the_other_socket


GERMAN = {"language": "de", "user": "Jürgen", "folder": "Jürgen.FIRMA", "domain": "FIRMA", "profiles": ("Jürgen.FIRMA", "Bob")}
CHINESE = {"language": "zh", "user": "用户", "distro": "Debian"}


@pytest.mark.parametrize(
    ("another", "profile", "code_page", "not_found"),
    [
        (
            GERMAN,
            "C:\\Users\\Jürgen.FIRMA",
            "cp850",
            "Es ist keine Distribution mit dem angegebenen Namen vorhanden.\r\nFehlercode: ",
        ),
        (CHINESE, "C:\\Users\\用户", "gbk", "不存在具有所提供名称的分发。\r\n错误代码: "),
    ],
    indirect=["another"],
    ids=["de", "zh"],
)
def test_another_language_has_its_texts_and_code_page(another: WslMachine, profile: str, code_page: str, not_found: str) -> None:
    assert run(another, CMD, "/D", "/C", "echo.%USERPROFILE%").stdout == f"{profile}\r\n".encode(code_page)
    assert run(another, CMD, "/U", "/D", "/C", "echo.%USERPROFILE%").stdout == f"{profile}\r\n".encode("utf-16-le")
    assert another.path(another.profile).joinpath("NTUSER.DAT").is_file()
    done = run(another, f"{SYSTEM32}/wsl.exe", "-d", "Nope", "--exec", "true")
    assert done.stdout.decode("utf-16-le") == not_found + "Wsl/Service/WSL_E_DISTRO_NOT_FOUND\r\n"
    assert done.returncode == 255


@pytest.mark.parametrize("another", [{"root": "/", "filesystem": "virtiofs"}], indirect=True)
def test_the_drive_can_be_elsewhere(another: WslMachine) -> None:
    shown = run(another, "cat", "/proc/mounts", "/etc/wsl.conf", cwd="/").stdout.decode()
    assert "drvfsC /c virtiofs " in shown
    assert shown.endswith("[automount]\nroot=/\n")
    assert run(another, "/c/Windows/System32/cmd.exe", "/D", "/C", "cd", cwd="/c/Users").stdout == b"C:\\Users\r\n"


# The virtual machine and the drive


def test_the_distro_sees_what_wsl_reads_after_a_restart_only(wsl: WslMachine) -> None:
    look = (
        "sh",
        "-c",
        "grep -c ^processor /proc/cpuinfo; head -1 /proc/meminfo; tail -n +2 /proc/swaps; wslinfo --networking-mode",
    )
    config = wsl.path(f"{wsl.profile}/.wslconfig")
    lines = (
        "# mine",
        "memory=1GB",
        "[wsl2]",
        "memory=16GB # of 64",
        "Memory=2GB",
        "processors=3",
        "swap=0",
        "networkingMode=mirrored",
    )
    config.write_bytes("\r\n".join(lines).encode())
    real = run(wsl, "cat", BOOT_ID).stdout
    default = run(wsl, *look).stdout.decode().splitlines()
    wsl.restart()
    configured = run(wsl, *look).stdout.decode().splitlines()
    config.unlink()
    wsl.restart({"swap": 1024**3})
    given = run(wsl, *look).stdout.decode().splitlines()
    started = run(wsl, "cat", BOOT_ID).stdout
    wsl.restart()
    assert len({run(wsl, "cat", BOOT_ID).stdout, started, real}) == 3  # every start has an id of its own
    # Half of the machine's 64 GiB, a quarter of that as swap; the kernel shows some 2.4 % less than it has
    assert [default[0], default[3]] == ["8", "nat"]
    assert default[1].split() == ["MemTotal:", str(32 * 1024**2 * 976 // 1000), "kB"]
    assert int(default[2].split()[2]) == 8 * 1024**2 - 4
    assert [configured[0], configured[2]] == ["3", "mirrored"]
    assert configured[1].split() == ["MemTotal:", str(16 * 1024**2 * 976 // 1000), "kB"]
    assert int(given[2].split()[2]) == 1024**2 - 4


def test_the_drive_is_a_drive_of_windows_and_can_be_full(wsl: WslMachine) -> None:
    mounts = run(wsl, "cat", "/proc/mounts").stdout.decode()
    assert "\nC:\\134 /mnt/c 9p rw,noatime,aname=drvfs;path=C:\\;" in mounts
    assert " / overlay " in mounts
    wsl.fill(left=8192)
    target = f"{wsl.profile}/new"
    try:
        assert run(wsl, "sh", "-c", f"head -c 4096 /dev/zero >{target}").returncode == 0
        assert b"No space left on device" in run(wsl, "sh", "-c", f"head -c 65536 /dev/zero >{target}").stderr
    finally:
        wsl.path("/mnt/c/pagefile.sys").unlink()
        wsl.path(target).unlink()


def test_a_locked_file_is_neither_written_nor_replaced(wsl: WslMachine) -> None:
    put(wsl, ".wslconfig", "[wsl2]\n")
    file = f"{wsl.profile}/.wslconfig"
    wsl.lock(file)
    assert run(wsl, "sh", "-c", f"echo x >{file}").returncode != 0
    assert run(wsl, "sh", "-c", f"touch {file}.new; mv -f {file}.new {file}").returncode != 0
    wsl.unlock(file)
    assert run(wsl, "rm", file, f"{file}.new").returncode == 0


# Tasks, ports, firewall, power


def test_a_task_is_registered_in_utf16_and_shown_with_its_name(wsl: WslMachine) -> None:
    schtasks = f"{SYSTEM32}/schtasks.exe"
    good, bad = put(wsl, "good.xml", TASK, "utf-16"), put(wsl, "bad.xml", TASK)
    create = (schtasks, "/Create", "/TN", "keep", "/XML")
    assert run(wsl, *create, bad).stderr.startswith(b"ERROR: The task XML is malformed.\r\n")
    assert run(wsl, *create, good).stdout == b'SUCCESS: The scheduled task "keep" has successfully been created.\r\n'
    assert run(wsl, *create, good).returncode == 1  # there already, and nobody says yes
    assert run(wsl, *create, good, "/F").returncode == 0
    assert wsl.state()["tasks"] == {"keep": TASK.encode("utf-16")}
    shown = run(wsl, schtasks, "/Query", "/TN", "\\KEEP", "/XML").stdout.decode("cp437")
    assert "    <URI>\\keep</URI>\r\n" in shown
    assert "<UserId>LABPC\\Ada</UserId>" in shown
    assert run(wsl, schtasks, "/Run", "/TN", "keep").returncode == 0
    assert wsl.state()["started_tasks"] == ["keep"]
    assert run(wsl, schtasks, "/Delete", "/TN", "keep", "/F").returncode == 0
    gone = run(wsl, schtasks, "/Query", "/TN", "keep", "/XML")
    assert (gone.returncode, gone.stderr) == (1, b"ERROR: The system cannot find the file specified.\r\n")


def test_a_task_for_everybody_needs_rights(wsl: WslMachine) -> None:
    task = TASK.replace("<UserId>LABPC\\Ada</UserId></LogonTrigger>", "</LogonTrigger>")
    done = run(wsl, f"{SYSTEM32}/schtasks.exe", "/Create", "/TN", "all", "/F", "/XML", put(wsl, "all.xml", task, "utf-16"))
    assert (done.returncode, done.stderr) == (1, b"ERROR: Access is denied.\r\n")
    assert wsl.state()["tasks"] == {}


RULE = {"Name": "llama", "VMCreatorId": "{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}", "LocalPorts": "8080"}
ELEVATE = """# starts itself again as an administrator
Start-Process -FilePath powershell.exe -Verb RunAs -Wait -ArgumentList @('-File', $PSCommandPath)
New-NetFirewallHyperVRule @rule
foreach ($command in $parameters.commands) { & $command[0] $command[1..9] }
"""


def elevate(machine: WslMachine, **parameters: object) -> subprocess.CompletedProcess[bytes]:
    script = put(machine, "elevate.ps1", ELEVATE)
    put(machine, "elevate.json", json.dumps(parameters))
    return run(machine, POWERSHELL, "-NoProfile", "-ExecutionPolicy", "Bypass", "-File", script)


PROXY = "interface portproxy add v4tov4 listenaddress=0.0.0.0 listenport=18080 connectaddress=127.0.0.1 connectport=8080"
OPEN = "advfirewall firewall add rule name=llama dir=in action=allow protocol=TCP localport=18080 remoteip=LocalSubnet"


def test_ports_and_rules_change_with_rights_only(wsl: WslMachine) -> None:
    netsh = f"{SYSTEM32}/netsh.exe"
    denied = run(wsl, netsh, *PROXY.split())
    assert (denied.returncode, denied.stdout) == (
        1,
        b"The requested operation requires elevation (Run as administrator).\r\n\r\n",
    )
    commands = [["netsh.exe", *PROXY.split()], ["netsh.exe", *OPEN.split()]]
    assert elevate(wsl, rule=RULE, commands=commands).returncode == 0
    state = wsl.state()
    assert state["portproxy"] == [
        {"listenaddress": "0.0.0.0", "listenport": "18080", "connectaddress": "127.0.0.1", "connectport": "8080"}
    ]
    assert [(one["name"], one["remoteip"]) for one in state["firewall"]] == [("llama", "LocalSubnet")]
    assert state["hyperv_rules"] == [RULE]
    shown = run(wsl, netsh, "interface", "portproxy", "show", "v4tov4").stdout
    assert b"\r\n0.0.0.0         18080       127.0.0.1       8080      \r\n" in shown
    rule = run(wsl, netsh, "advfirewall", "firewall", "show", "rule", "name=llama").stdout.decode()
    assert "\r\nLocalPort:                            18080\r\n" in rule
    missing = run(wsl, netsh, "advfirewall", "firewall", "show", "rule", "name=other")
    assert (missing.returncode, missing.stdout) == (1, b"\r\nNo rules match the specified criteria.\r\n\r\n")
    scripts = wsl.calls("powershell.exe")
    assert [call.elevated for call in scripts] == [False, True]
    assert scripts[1].files["elevate.ps1"] == ELEVATE.encode()
    assert json.loads(scripts[1].files["elevate.json"])["commands"] == commands


def test_a_script_removes_what_it_made(wsl: WslMachine) -> None:
    assert elevate(wsl, rule=RULE).returncode == 0
    assert elevate(wsl, rule=RULE).returncode == 1  # the name is taken
    assert wsl.state()["hyperv_rules"] == [RULE]
    remove = "Start-Process powershell.exe -Verb RunAs -Wait\nRemove-NetFirewallHyperVRule -Name $p.remove\n& $c[0] $c[1..5]\n"
    script = put(wsl, "remove.ps1", remove)
    commands = [["netsh.exe", *PROXY.replace("add", "delete", 1).split()]]
    put(wsl, "remove.json", json.dumps({"remove": ["llama"], "commands": commands}))
    done = run(wsl, POWERSHELL, "-ExecutionPolicy", "Bypass", "-File", script)
    assert (done.returncode, wsl.state()["hyperv_rules"]) == (1, [])  # no such proxy, and the script ends with netsh's code


def test_a_script_can_be_played_by_a_file_of_the_test(host: Host, tmp_path: Path) -> None:
    """What the table lacks: here a script that says something, after the prompt."""
    play = tmp_path / "play.py"
    play.write_text(
        "from lab.standins.powershell import prompt\n"
        "def play(call, script, document):\n"
        "    if not call.elevated:\n"
        "        return prompt(call, script)\n"
        "    call.write(document['word'] + '\\n')\n"
        "    return 5\n"
    )
    with WslMachine(host, plays={"elevate.ps1": play}) as machine:
        done = elevate(machine, word="done")
        assert (done.returncode, done.stdout) == (5, b"done\r\n")
        assert [call.elevated for call in machine.calls()] == [False, True]


def test_powershell_runs_no_script_without_a_policy(wsl: WslMachine) -> None:
    script = put(wsl, "memory.ps1", "(Get-CimInstance Win32_ComputerSystem).TotalPhysicalMemory")
    refused = run(wsl, POWERSHELL, "-NoProfile", "-File", script)
    assert refused.returncode == 1
    assert b"running scripts is disabled" in refused.stderr
    assert run(wsl, POWERSHELL, "-ExecutionPolicy", "Bypass", "-File", script).stdout == b"68719476736\r\n"
    unknown = put(wsl, "unknown.ps1", "Get-Date # TotalPhysicalMemory")
    assert run(wsl, POWERSHELL, "-ExecutionPolicy", "Bypass", "-File", unknown).returncode == 97
    # -196608: a parent on Linux sees the lowest 8 bits, which are 0
    missing = run(wsl, POWERSHELL, "-ExecutionPolicy", "Bypass", "-File", "C:\\nosuch.ps1")
    assert missing.returncode == 0
    assert b"'C:\\nosuch.ps1' to the -File parameter does not exist" in missing.stderr


REFUSED = [
    ({"elevated": "cancelled"}, b"The operation was canceled by the user."),
    ({"elevated": "nobody"}, b"This operation requires an interactive window station."),
    ({"powershell": "blocked"}, b"running scripts is disabled"),
    ({"scripts": {"elevate.ps1": {"stderr": "own words\n", "exit": 1}}}, b"own words\r\n"),
]


@pytest.mark.parametrize(("another", "text"), REFUSED, indirect=["another"], ids=["cancelled", "nobody", "blocked", "given"])
def test_nothing_happens_where_nobody_agrees(another: WslMachine, text: bytes) -> None:
    done = elevate(another, rule=RULE)
    assert (done.returncode, text in done.stderr) == (1, True)
    assert another.state()["hyperv_rules"] == []


def test_power_and_fast_startup_are_told(wsl: WslMachine) -> None:
    with wsl.change() as state:
        state["power"]["standby"] = [3600, 0]
    shown = run(wsl, f"{SYSTEM32}/powercfg.exe", "/q", "SCHEME_CURRENT", "SUB_SLEEP", "STANDBYIDLE").stdout
    assert b"    Current AC Power Setting Index: 0x00000e10\r\n    Current DC Power Setting Index: 0x00000000\r\n" in shown
    key = "HKLM\\SYSTEM\\CurrentControlSet\\Control\\Session Manager\\Power"
    value = run(wsl, f"{SYSTEM32}/reg.exe", "query", key, "/v", "HiberbootEnabled").stdout
    assert b"\r\n    HiberbootEnabled    REG_DWORD    0x1\r\n" in value
    assert run(wsl, f"{SYSTEM32}/reg.exe", "query", key, "/v", "Other").returncode == 1


def test_who_and_what_runs(wsl: WslMachine) -> None:
    with wsl.change() as state:
        state["processes"] = ["Docker Desktop.exe", "explorer.exe"]
    tasklist = (f"{SYSTEM32}/tasklist.exe", "/NH", "/FO", "CSV", "/FI")
    assert (
        run(wsl, *tasklist, "IMAGENAME eq docker desktop.exe").stdout
        == b'"Docker Desktop.exe","4000","Console","1","10,240 K"\r\n'
    )
    assert run(wsl, *tasklist, "IMAGENAME eq other.exe").stdout.startswith(b"INFO: No tasks are running")
    assert b"S-1-16-8192" in run(wsl, f"{SYSTEM32}/whoami.exe", "/groups").stdout  # not elevated
    user = run(wsl, f"{SYSTEM32}/whoami.exe", "/user", "/fo", "csv", "/nh").stdout
    assert user == b'"labpc\\ada","S-1-5-21-1004336348-1177238915-682003330-1001"\r\n'


# The Windows machine


def test_its_ssh_server_gives_the_line_to_cmd_and_bytes_to_the_distro(windows: WindowsMachine, tmp_path: Path) -> None:
    line = '"C:\\Program Files\\WSL\\wsl.exe" -d Ubuntu-24.04 -u root --exec sh -c "cat; printf %s \\"$1\\" >&2; exit 7" sh '
    line += '"a \\"b\\" $HOME"'
    data = bytes(range(256)) * 4096
    done = windows.ssh(line, input=data)
    assert (done.returncode, done.stdout, done.stderr) == (7, data, b'a "b" $HOME')
    assert (
        windows.ssh('wsl -u plain --exec sh -c "id -un; pwd; echo $WSL_DISTRO_NAME"').stdout
        == b"plain\n/mnt/c/Users/Ada\nUbuntu-24.04\n"
    )
    assert windows.ssh("cd & echo %SESSIONNAME%").stdout == b"C:\\Users\\Ada\r\nServices\r\n"
    own = subprocess.run([windows.controller_wsl_exe(tmp_path), "--exec", "cat"], input=data, capture_output=True, check=False)
    assert (own.returncode, own.stdout) == (0, data)


def test_a_stopped_distro_starts_with_the_settings_of_then(windows: WindowsMachine) -> None:
    put(windows, ".wslconfig", "[wsl2]\nprocessors=2\n")
    count = "wsl --exec grep -c ^processor /proc/cpuinfo"
    assert windows.ssh(count).stdout == b"8\n"
    stopped = windows.ssh("wsl --shutdown & wsl -l --running")
    assert stopped.stdout.decode("utf-16-le") == "There are no running distributions.\r\n"
    assert windows.state()["distros"] == {"Ubuntu-24.04": {"running": False}}
    assert windows.ssh(count).stdout == b"2\n"
    assert windows.state()["distros"] == {"Ubuntu-24.04": {"running": True}}


@pytest.mark.parametrize(
    ("windows", "line", "code", "text"),
    [
        ({"wsl": "store"}, "wsl.exe --exec true", 1, b"The file cannot be accessed by the system.\r\n"),
        ({"wsl": "store"}, '"C:\\Program Files\\WSL\\wsl.exe" --exec true', 1, b"The system cannot find the path specified.\r\n"),
        ({"wsl": "missing"}, "wsl.exe --exec true", 50, "The Windows Subsystem for Linux is not installed. ".encode("utf-16-le")),
        ({"wsl": "stopped"}, "wsl.exe --exec true", 255, "Error code: Wsl/0x80070422\r\n".encode("utf-16-le")),
    ],
    indirect=["windows"],
    ids=["store-alias", "store-path", "missing", "stopped"],
)
def test_wsl_exe_fails_as_it_does(windows: WindowsMachine, line: str, code: int, text: bytes) -> None:
    done = windows.ssh(line)
    assert (done.returncode, text in done.stdout + done.stderr) == (code, True)


# What stays


def test_nothing_of_it_stays(host: Host) -> None:
    """Files, mounts and what the kernel tells are what they were before."""
    look = "ls /init /usr/bin/wsl* /run/WSL /run/lab-windows /mnt / /etc/wsl.conf; ls -l /proc/mounts | cut -c1"
    look += "; awk '{print $1, $2, $3}' /proc/swaps"  # how much of them is used comes and goes
    look += "; cat /proc/sys/kernel/osrelease; cut -d' ' -f1-3 /proc/self/mounts; ls /proc/sys/fs/binfmt_misc"
    look += "; systemctl is-active lab-windows-sshd; cat /proc/sys/kernel/random/boot_id; grep boot_id /proc/self/mounts"
    before = host.run(look, check=False).stdout
    with WindowsMachine(host, root="/") as machine:
        machine.restart()
        during = host.run(look, check=False).stdout
        with pytest.raises(LabError, match="plays a WSL machine already"):
            WslMachine(host).__enter__()
    after = host.run(look, check=False).stdout
    assert after == before
    assert "\nactive\n" in during
    assert during != before
