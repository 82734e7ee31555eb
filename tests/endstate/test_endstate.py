"""The end state of a provisioned host. Read-only; run by `wsllama verify INVENTORY` and by scripts/test.

What is expected is written out here once more, on purpose: these checks must not believe the code that they check.
"""

import json
import re
import shlex
from typing import Any

import pytest

MODELS = "/var/lib/wsllama/models"


@pytest.fixture(scope="session")
def settings(host: Any) -> Any:
    """What the inventory wants of this host."""
    return host.backend.settings


@pytest.fixture(scope="session")
def release(host: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.check_output("cat /opt/wsllama/current/release.json"))
    return found


@pytest.fixture(scope="session")
def arguments(host: Any) -> list[str]:
    """What the running server was started with, from the kernel."""
    pid = host.check_output("systemctl show --value -p MainPID llama-server.service")
    words: str = host.check_output(f"tr '\\0' '\\n' </proc/{pid}/cmdline")
    return words.split("\n")


def curl(host: Any, settings: Any, path: str, body: Any = None) -> Any:
    address = settings.server.host if settings.server.host not in ("0.0.0.0", "localhost") else "127.0.0.1"
    url = f"http://{'[' + address + ']' if ':' in address else address}:{settings.server.port}{path}"
    key = "/etc/wsllama/api-key" if settings.server.api_key else ""
    script = (
        "import json,sys,urllib.request as u\n"
        "h={'Content-Type':'application/json'}\n"
        + (f"h['Authorization']='Bearer '+open({key!r}).read().strip()\n" if key else "")
        + f"d={json.dumps(body)!r}\n"
        + f"r=u.build_opener(u.ProxyHandler({{}})).open(u.Request({url!r},None if d=='null' else d.encode(),h),timeout=600)\n"
        "print(r.read().decode())"
    )
    return json.loads(host.check_output(f"python3 -c {shlex.quote(script)}"))


@pytest.mark.parametrize("name", ["build-essential", "cmake", "ninja-build", "ccache", "libssl-dev", "git", "libgomp1"])
def test_package(host: Any, name: str) -> None:
    assert host.package(name).is_installed


def test_user_can_not_log_in(host: Any) -> None:
    user = host.user("llama")
    assert user.exists
    assert user.shell == "/usr/sbin/nologin"
    assert user.group == "llama"


@pytest.mark.parametrize(
    ("path", "mode", "owner"),
    [
        ("/etc/wsllama", 0o750, "root:llama"),
        ("/opt/wsllama", 0o755, "root:root"),
        ("/opt/wsllama/builds", 0o755, "root:root"),
        ("/opt/wsllama/releases", 0o755, "root:root"),
        (MODELS, 0o755, "root:root"),
        ("/etc/systemd/system/llama-server.service", 0o644, "root:root"),
        ("/etc/apt/apt.conf.d/80wsllama", 0o644, "root:root"),
    ],
)
def test_file(host: Any, path: str, mode: int, owner: str) -> None:
    found = host.file(path)
    assert found.exists
    assert found.mode == mode
    assert f"{found.user}:{found.group}" == owner


def test_key_is_for_the_service_only(host: Any, settings: Any) -> None:
    key = host.file("/etc/wsllama/api-key")
    if settings.server.api_key:
        assert key.mode == 0o640
        assert (key.user, key.group) == ("root", "llama")
        assert key.size >= 32
    secret = host.check_output("cat /etc/wsllama/api-key") if key.exists else None
    processes = host.check_output("cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '; true")
    assert not secret or secret not in processes


def test_current_is_the_release_to_go_back_to(host: Any) -> None:
    current = host.check_output("readlink /opt/wsllama/current")
    assert re.fullmatch(r"releases/\d+", current)
    assert host.check_output("readlink /opt/wsllama/last-good") == current
    assert host.file("/opt/wsllama/current/baseline.json").exists


def test_build_is_whole_and_names_its_commit(host: Any, release: dict[str, Any]) -> None:
    folder = f"/opt/wsllama/builds/{release['build']}"
    assert host.check_output("readlink -f /opt/wsllama/current/build") == folder
    record = json.loads(host.check_output(f"cat {folder}/build.json"))
    assert record["build_id"] == release["build"]
    sums = "".join(f"{f['sha256']}  {name}\n" for name, f in record["files"].items())
    assert host.run(f"cd {folder} && printf %s {shlex.quote(sums)} | sha256sum -c --quiet").rc == 0
    version = host.check_output(f"{folder}/bin/llama-server --version 2>&1")
    assert release["commit"][:9] in version


def test_model_is_what_its_stamp_says(host: Any, release: dict[str, Any], settings: Any) -> None:
    path = f"{MODELS}/{release['model']['file']}"
    stamp = json.loads(host.check_output(f"cat {shlex.quote(path + '.stamp')}"))
    file = host.file(path)
    assert file.size == stamp["size"]
    assert stamp["sha256"] == release["model"]["sha256"]
    assert settings.model.sha256 in (None, stamp["sha256"])
    assert stamp["architecture"] == "qwen35moe"
    assert not path.startswith("/mnt/")
    assert (file.user, file.group, file.mode) == ("root", "llama", 0o640)
    inode, mtime = host.check_output(f"stat -c '%i %Y' {shlex.quote(path)}").split()
    assert (int(inode), int(mtime)) == (stamp["inode"], stamp["mtime_ns"] // 10**9)


def test_unit_runs_and_is_started_at_boot(host: Any) -> None:
    service = host.service("llama-server.service")
    assert service.is_running
    assert service.is_enabled
    shown = host.check_output("systemctl show llama-server.service -p User,Group,NoNewPrivileges,ProtectSystem,NeedDaemonReload")
    assert set(shown.splitlines()) >= {
        "User=llama", "Group=llama", "NoNewPrivileges=yes", "ProtectSystem=strict", "NeedDaemonReload=no",
    }  # fmt: skip


def test_unit_is_hardened_and_sees_the_gpu_s_device(host: Any, settings: Any) -> None:
    assert host.run("systemd-analyze security --threshold=15 llama-server.service").rc == 0  # tenths
    shown = host.check_output("systemctl show llama-server.service -p PrivateDevices,DevicePolicy,DeviceAllow,LimitCORE")
    assert {"PrivateDevices=no", "DevicePolicy=closed", "LimitCORE=0"} <= set(shown.splitlines())
    assert ("DeviceAllow=/dev/dxg rw" in shown) == (settings.platform == "wsl")


def test_limit_of_memory_is_that_of_settings_or_plan(host: Any, settings: Any, release: dict[str, Any]) -> None:
    limit = host.check_output("systemctl show --value -p MemoryMax llama-server.service")
    if settings.server.memory_max not in (None, "infinity"):
        assert int(limit) == int(settings.server.memory_max[:-1]) << {"M": 20, "G": 30, "T": 40}[settings.server.memory_max[-1]]
    elif settings.server.memory_max or not release.get("plan") or "mlock" in settings.server.load_mode:
        assert limit == "infinity"
    else:
        assert int(limit) > release["plan"]["memory"]["ram"]["weights"]


def test_watchdog_runs_when_it_is_wanted(host: Any, settings: Any) -> None:
    service = host.service("llama-watchdog.service")
    assert (service.is_running, service.exists) == (settings.server.watchdog, settings.server.watchdog)
    assert host.file("/opt/wsllama/watchdog.py").exists == settings.server.watchdog
    if settings.server.watchdog:
        assert service.is_enabled
        assert host.run("systemctl show llama-watchdog.service -p CapabilityBoundingSet").stdout == "CapabilityBoundingSet=\n"


def test_gpu_watch_runs_where_it_is_wanted(host: Any, settings: Any) -> None:
    service, program = host.service("llama-watch.service"), host.file("/opt/wsllama/watch.py")
    assert (service.is_running, service.exists, program.exists) == (settings.watched,) * 3
    if settings.watched:
        assert service.is_enabled
        shown = host.check_output("systemctl show llama-watch.service -p User,CapabilityBoundingSet,ProtectSystem,DevicePolicy")
        assert set(shown.splitlines()) == {"User=llama", "CapabilityBoundingSet=", "ProtectSystem=strict", "DevicePolicy=closed"}
    if settings.watched and settings.watch.textfile:
        assert host.file(settings.watch.textfile).linked_to == "/run/llama-watch/watch.prom"


def test_runs_from_the_current_release(host: Any, arguments: list[str], release: dict[str, Any], settings: Any) -> None:
    pid = host.check_output("systemctl show --value -p MainPID llama-server.service")
    assert host.check_output(f"readlink /proc/{pid}/exe") == f"/opt/wsllama/builds/{release['build']}/bin/llama-server"
    assert arguments[arguments.index("--port") + 1] == str(settings.server.port)
    assert arguments[arguments.index("--ctx-size") + 1] == str(settings.server.ctx_size)
    assert "--api-key" not in arguments


def test_listens_where_it_was_told_only(host: Any, settings: Any) -> None:
    lines = host.check_output(f"ss -Hltn sport = :{settings.server.port}").splitlines()
    addresses = {line.split()[3].rsplit(":", 1)[0].strip("[]") for line in lines}
    wanted = "127.0.0.1" if settings.server.host == "localhost" else settings.server.host
    assert addresses == {wanted}


def test_health(host: Any, settings: Any) -> None:
    assert curl(host, settings, "/health") == {"status": "ok"}


def test_model_is_named(host: Any, settings: Any) -> None:
    assert [m["id"] for m in curl(host, settings, "/v1/models")["data"]] == [settings.model.alias]


def test_chat(host: Any, settings: Any) -> None:
    messages = [{"role": "user", "content": settings.acceptance.prompt}]
    more = {"max_tokens": 64, "chat_template_kwargs": {"enable_thinking": False}}
    reply = curl(host, settings, "/v1/chat/completions", {"model": settings.model.alias, "messages": messages, **more})
    message = reply["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert message["content"].strip()
