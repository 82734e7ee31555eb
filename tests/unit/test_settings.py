"""Settings: what is taken, what is refused in which words, and what is found wrong with files of this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from lab import tiny_model
from wsllama import digest
from wsllama.settings import Settings, local_problems, merge, parse

MODEL = {"path": "/models/a.gguf", "on": "host"}


def errors(**data: Any) -> list[str]:
    return parse(merge([{"model": MODEL}, data]))[1]


def settings(**data: Any) -> Settings:
    found, wrong = parse(merge([{"model": MODEL}, data]))
    assert found is not None, wrong
    return found


def test_later_levels_win_key_by_key() -> None:
    everyone = {"platform": "wsl", "server": {"port": 1, "ctx_size": 2, "host": "::1"}, "model": {"path": "/all"}}
    group = {"server": {"port": 10, "ctx_size": 20}}
    host = {"server": {"port": 100}, "model": "not a topic"}
    command_line = {"platform": "linux"}
    assert merge([everyone, group, host, command_line]) == {
        "platform": "linux",
        "server": {"port": 100, "ctx_size": 20, "host": "::1"},
        "model": "not a topic",
    }
    assert everyone["server"] == {"port": 1, "ctx_size": 2, "host": "::1"}, "the levels themselves stay as they were"


def test_defaults_suit_one_wsl_machine() -> None:
    found = settings()
    assert (found.platform, found.server.host, found.server.port, found.server.api_key) == ("wsl", "127.0.0.1", 8080, False)
    assert found.llama_cpp.source == "sdist"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"serve": {}}, "unknown setting serve: did you mean server?"),
        ({"port": 8080}, "unknown setting port: did you mean server.port?"),
        ({"ctx_sizes": 1}, "unknown setting ctx_sizes: did you mean server.ctx_size?"),
        ({"model": {"port": 8080}}, "unknown setting model.port: did you mean server.port?"),
        ({"server": {"prot": 8080}}, "unknown setting server.prot: did you mean server.port?"),
        ({"server": {"path": "/x"}}, "unknown setting server.path: did you mean model.path?"),
        ({"memory": "8GB"}, "unknown setting memory: did you mean wsl.wsl2.memory?"),
        ({"wsl": {"wsl2": {"memroy": "8GB"}}}, "unknown setting wsl.wsl2.memroy: did you mean wsl.wsl2.memory?"),
        (
            {"wsl": {"wsl2": {"instanceIdleTimeout": -1}}},
            "unknown setting wsl.wsl2.instanceIdleTimeout: did you mean wsl.general.instanceIdleTimeout?",
        ),
        ({"xyzzy": 1}, "unknown setting xyzzy"),
        ({"server": 5}, "server = 5: Input should be a valid dictionary"),
        ({"server": {"port": True}}, "server.port = True: Input should be a valid integer"),
        ({"server": {"port": "8080"}}, "server.port = '8080': Input should be a valid integer"),
        ({"server": {"port": 8080.0}}, "server.port = 8080.0: Input should be a valid integer"),
        ({"server": {"port": 0}}, "server.port = 0: Input should be greater than or equal to 1"),
        ({"server": {"port": 65536}}, "server.port = 65536: Input should be less than or equal to 65535"),
        ({"server": {"metrics": 1}}, "server.metrics = 1: Input should be a valid boolean"),
        ({"server": {"api_key": "secret"}}, "server.api_key = 'secret': Input should be a valid boolean"),
        ({"server": {"flash_attn": True}}, "server.flash_attn = True: Input should be 'auto', 'on' or 'off'"),
        ({"server": {"host": "example.org"}}, "server.host: an IP address or localhost is wanted"),
        ({"server": {"extra_args": "--jinja"}}, "server.extra_args = '--jinja': Input should be a valid list"),
        ({"server": {"extra_args": ["--top-k", 3]}}, "server.extra_args.1 = 3: Input should be a valid string"),
        ({"server": {"extra_args": ["a\nb"]}}, "server.extra_args.0: control characters are not allowed"),
        ({"model": {"path": "/srv/m\udcff.gguf"}}, "model.path: it is not UTF-8: give another name"),
        ({"platform": "windows"}, "platform = 'windows': Input should be 'wsl' or 'linux'"),
        ({"model": {"path": "a.gguf"}}, "model.path: a path starts with /"),
        (
            {"model": {"path": "/data/.a.gguf"}},
            "model.path: /data/.a.gguf does not end in a file name that hosts can keep: give one that does not begin with a dot",
        ),
        (
            {"model": {"path": "/data/models/"}},
            "model.path: /data/models/ does not end in a file name that hosts can keep: give one that does not begin with a dot",
        ),
        (
            {"model": {"path": f"/data/{'m' * 196}.gguf"}},
            "model.path: the file name has 201 bytes: rename the file to at most 200",
        ),
        (
            {"model": {"path": f"/data/{'語' * 66}.gguf"}},
            "model.path: the file name has 203 bytes: rename the file to at most 200",
        ),
        (
            {"model": {"path": None}},
            'settings: model.path is not set: give the GGUF, as in model = {"path": "/path/of/file.gguf"}, or model.name',
        ),
        ({"model": {"sha256": "ab" * 31}}, "model.sha256: a sha256 is 64 hexadecimal digits"),
        ({"model": {"sha256": "xy" * 32}}, "model.sha256: a sha256 is 64 hexadecimal digits"),
        ({"llama_cpp": {"commit": "0c1e570"}}, "llama_cpp.commit = '0c1e570': String should match pattern '^[0-9a-f]{40}$'"),
        ({"network": {"proxy": "proxy:3128"}}, "network.proxy: a proxy looks like http://host:port"),
        ({"network": {"proxy": 'http://proxy";x'}}, "network.proxy: a proxy looks like http://host:port"),
        ({"network": {"proxy": "http://proxy:99999"}}, "network.proxy: Port out of range 0-65535"),
        (
            {"network": {"proxy": "http://me:word@proxy:3128"}},
            "network.proxy: a proxy with a password in its address would put the password into files and logs",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(data: dict[str, Any], sentence: str) -> None:
    assert errors(**data) == [sentence]


def test_a_name_that_is_no_text_is_unknown_too() -> None:
    assert parse({"model": MODEL, 1: 2})[1] == ["unknown setting 1"]  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"server": {"host": "0.0.0.0"}}, ["server: host 0.0.0.0 is not loopback", "set api_key to True"]),
        ({"server": {"host": "::"}}, ["server: host :: is not loopback", "set api_key to True"]),
        ({"server": {"host": "192.0.2.1"}}, ["server: host 192.0.2.1 is not loopback"]),
        (
            {"server": {"cache_type_v": "q8_0", "flash_attn": "off"}},
            ["cache_type_v q8_0 needs flash attention", "flash_attn is off"],
        ),
        ({"server": {"batch_size": 64, "ubatch_size": 128}}, ["server: ubatch_size is larger than batch_size"]),
        ({"server": {"extra_args": ["--port", "1"]}}, ["extra_args may not hold --port: set server.port"]),
        ({"server": {"extra_args": ["--api-key=x"]}}, ["extra_args may not hold --api-key", "set server.api_key"]),
        ({"llama_cpp": {"source": "archive"}}, ["llama_cpp: source archive needs archive and archive_sha256"]),
        ({"llama_cpp": {"source": "archive", "archive": "/x"}}, ["source archive needs archive and archive_sha256"]),
        ({"llama_cpp": {"archive": "/x"}}, ["archive and archive_sha256 belong to source archive, but source is sdist"]),
        ({"llama_cpp": {"git_url": "/x"}}, ["git_url belongs to source git, but source is sdist"]),
        ({"server": {"expose": "lan"}}, ["server: expose lan lets other machines in", "set api_key to True"]),
        (
            {"platform": "wsl", "server": {"expose": "lan", "api_key": True}, "wsl": {"windows": False}},
            ["server.expose lan needs rules on Windows, which wsl.windows False keeps out"],
        ),
        (
            {
                "platform": "wsl",
                "server": {"expose": "lan", "api_key": True},
                "wsl": {"wsl2": {"localhostForwarding": False}},
            },
            ["server.expose lan goes over the relay that wsl.wsl2.localhostForwarding False turns off: leave it out"],
        ),
        ({"server": {"lan_port": 9000}}, ["lan_port belongs to expose lan, but expose is loopback"]),
        ({"server": {"expose": "lan", "api_key": True, "lan_port": 8080}}, ["lan_port 8080 is port too"]),
        ({"server": {"expose": "lan", "api_key": True, "port": 55536}}, ["port 55536 + 10000 is no port: give a lan_port"]),
        ({"platform": "wsl", "wsl": {"conf": {"boot": {"systemd": False}}}}, ["wsl.conf.boot.systemd", "leave it out"]),
    ],
)
def test_contradictions(data: dict[str, Any], words: list[str]) -> None:
    (sentence,) = errors(**data)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    "data",
    [
        {"server": {"host": "0.0.0.0", "api_key": True}},
        {"server": {"host": "127.1.2.3"}},
        {"server": {"host": "::1"}},
        {"server": {"cache_type_v": "q8_0"}},
        {"model": {"path": f"/{'d' * 250}/.hidden/{'m' * 195}.gguf"}},
        {"llama_cpp": {"source": "archive", "archive": "https://192.0.2.1/a.tar.gz", "archive_sha256": "AB" * 32}},
        {"llama_cpp": {"source": "git", "git_url": "/srv/llama.cpp", "commit": "0" * 40}},
        {"network": {"proxy": "http://[2001:db8::1]:3128"}},
        {"network": {"proxy": "https://proxy.example"}},
        {"server": {"expose": "lan", "api_key": True, "port": 55535}},
        {"server": {"expose": "lan", "api_key": True, "port": 60000, "lan_port": 9000}},
        {"wsl": {"conf": {"boot": {"systemd": True}}}},
    ],
)
def test_what_is_right(data: dict[str, Any]) -> None:
    assert errors(**data) == []


def test_localhost_is_one_address() -> None:
    found, wrong = parse({"model": {"path": "/a.gguf"}, "server": {"host": "localhost"}})
    assert (found and found.server.host, wrong) == ("127.0.0.1", [])


def test_all_errors_at_once() -> None:
    wrong = errors(port=1, server={"port": "x", "ctx": 1, "cache_ram": -1}, network={"proxy": "x"})
    assert len(wrong) == 5
    assert all(any(e.startswith(w) for e in wrong) for w in ("unknown setting port", "server.port", "unknown setting server.ctx"))


def test_data_of_pyinfra_and_its_connectors_is_not_ours() -> None:
    assert errors(_sudo=True, ssh_user="me", ssh_port="22", fake_delay=0, docker_identifier="x") == []


def test_a_list_of_an_inventory_is_taken_for_words() -> None:
    assert settings(server={"extra_args": ["--top-k", "20"]}).server.extra_args == ("--top-k", "20")


def test_a_sha256_in_capitals_is_the_same() -> None:
    assert settings(model={"sha256": "AB" * 32}).model.sha256 == "ab" * 32


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


def with_model(path: Path, **more: Any) -> list[str]:
    return local_problems(settings(model={"path": str(path), "on": "controller", **more}))


def test_a_whole_model_is_no_problem(gguf: Path) -> None:
    assert with_model(gguf) == []


def test_a_missing_model(tmp_path: Path) -> None:
    for path in (tmp_path / "no.gguf", tmp_path):
        (sentence,) = with_model(path)
        assert sentence.startswith(f"model.path: there is no file {path} on this machine")


def test_a_model_on_the_host_is_not_looked_for_here() -> None:
    assert local_problems(settings()) == []


def test_a_cut_model_and_a_file_that_is_none(gguf: Path, tmp_path: Path) -> None:
    cut, text = tmp_path / "cut.gguf", tmp_path / "text.gguf"
    cut.write_bytes(gguf.read_bytes()[:-1])
    text.write_text("Not a model.\n")
    for path in (cut, text):
        (sentence,) = with_model(path)
        assert sentence.startswith(f"model.path: {path}: ")
        assert "\n" not in sentence


def test_a_sum_that_is_known_to_differ(gguf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    right = hashlib.sha256(gguf.read_bytes()).hexdigest()
    assert with_model(gguf, sha256="0" * 64) == [], "a sum that nobody has taken yet is not taken for this"
    assert digest.sha256_of(gguf) == right
    assert with_model(gguf, sha256=right) == []
    (sentence,) = with_model(gguf, sha256="0" * 64)
    assert sentence.startswith(f"model.sha256: {gguf} has sha256 {right}, not {'0' * 64}")


def test_other_files_that_are_missing_here(tmp_path: Path) -> None:
    wanted = settings(
        network={"ca_file": str(tmp_path / "ca.pem")},
        llama_cpp={"source": "archive", "archive": str(tmp_path / "a.tar.gz"), "archive_sha256": "0" * 64},
    )
    first, second = local_problems(wanted)
    assert first.startswith(f"network.ca_file: there is no file {tmp_path}/ca.pem on this machine")
    assert second.startswith(f"llama_cpp.archive: there is no file {tmp_path}/a.tar.gz on this machine")


def test_backend_follows_the_platform_unless_it_is_said() -> None:
    assert settings().backend == "cuda"
    assert settings(platform="linux").backend == "cpu"
    assert settings(llama_cpp={"backend": "cpu"}).backend == "cpu"
    assert settings(platform="linux", llama_cpp={"backend": "cuda"}).backend == "cuda"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"compute": ["8.9; rm"]}, "cuda.compute.0"),
        ({"compute": "8.9"}, "cuda.compute = '8.9'"),
        ({"architectures": ["native"]}, "cuda.architectures.0"),
        ({"flags": ["-Xcicc -O0"]}, "cuda.flags.0"),
        ({"version": "13"}, "cuda.version"),
        ({"provider": "runfile"}, "cuda.provider"),
        ({"repository": "https://mirror/x\nTrusted: yes"}, "cuda.repository"),
        ({"repository": "file:///srv/cuda"}, "cuda.repository"),
    ],
)
def test_what_no_cuda_build_takes(wrong: dict[str, Any], said: str) -> None:
    (sentence,) = errors(cuda=wrong)
    assert sentence.startswith(said)


def test_a_key_file_that_is_not_there() -> None:
    (sentence,) = local_problems(settings(cuda={"key_file": "/nowhere/key.asc"}))
    assert sentence == "cuda.key_file: there is no file /nowhere/key.asc on this machine; give another path"
