"""llama-server's arguments. That the recorded --help is the program's own is asserted in tests/lab/test_real_help.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wsllama.domain import server_flags
from wsllama.settings import Server


def words(**server: object) -> list[str]:
    return server_flags.arguments(Server.model_validate(server), "the-alias", "/m/a.gguf", "/etc/key")


def value(flag: str, given: list[str]) -> str:
    assert given.count(flag) == 1, f"{flag} must be given exactly once: {given}"
    return given[given.index(flag) + 1]


def test_what_is_always_said() -> None:
    given = words()
    assert value("--port", given) == "8080", "the program's default changes, so the port is always given"
    assert value("--host", given) == "127.0.0.1"
    assert value("--model", given) == "/m/a.gguf"
    assert value("--alias", given) == "the-alias"
    assert value("--log-verbosity", given) == "4", "placement lines are logged from 4 on"
    assert "--offline" in given
    assert "--kv-unified" in given, "without it -np divides the context by the slots"


@pytest.mark.parametrize(
    ("setting", "flag", "given", "wanted"),
    [
        ("port", "--port", 9000, "9000"),
        ("host", "--host", "::1", "::1"),
        ("ctx_size", "--ctx-size", 4096, "4096"),
        ("parallel", "--parallel", 3, "3"),
        ("cache_type_k", "--cache-type-k", "q8_0", "q8_0"),
        ("cache_type_v", "--cache-type-v", "q4_0", "q4_0"),
        ("flash_attn", "--flash-attn", "on", "on"),
        ("batch_size", "--batch-size", 512, "512"),
        ("ubatch_size", "--ubatch-size", 128, "128"),
        ("threads", "--threads", 6, "6"),
        ("n_gpu_layers", "--n-gpu-layers", 0, "0"),
        ("n_cpu_moe", "--n-cpu-moe", 12, "12"),
        ("load_mode", "--load-mode", "mmap+mlock", "mmap+mlock"),
        ("cache_ram", "--cache-ram", 0, "0"),
        ("ctx_checkpoints", "--ctx-checkpoints", 0, "0"),
        ("reasoning_budget", "--reasoning-budget", -1, "-1"),
        ("reasoning", "--reasoning", "off", "off"),
        ("reasoning_format", "--reasoning-format", "none", "none"),
    ],
)
def test_each_setting_has_its_argument(setting: str, flag: str, given: object, wanted: str) -> None:
    assert value(flag, words(**{setting: given})) == wanted


def test_none_leaves_the_programs_own_default() -> None:
    given = words()
    assert not {"--batch-size", "--ubatch-size", "--threads", "--n-gpu-layers", "--n-cpu-moe"} & set(given)
    assert not {"--temp", "--top-p", "--top-k", "--min-p", "--presence-penalty"} & set(given)
    assert not {"--reasoning", "--reasoning-format", "--reasoning-budget-message"} & set(given)


@pytest.mark.parametrize(
    ("preset", "card"),  # of the model card: temperature, top_p, top_k, min_p, presence_penalty
    [
        ("thinking", (1.0, 0.95, 20, 0.0, 1.5)),
        ("coding", (0.6, 0.95, 20, 0.0, 0.0)),
        ("instruct", (0.7, 0.80, 20, 0.0, 1.5)),
    ],
)
def test_a_preset_is_what_the_model_card_says(preset: str, card: tuple[float, ...]) -> None:
    given = words(sampling=preset)
    flags = ("--temp", "--top-p", "--top-k", "--min-p", "--presence-penalty")
    assert tuple(float(value(flag, given)) for flag in flags) == card


def test_a_message_at_the_end_of_the_budget() -> None:
    given = words(reasoning_budget=100, reasoning_budget_message="So: ")
    assert value("--reasoning-budget-message", given) == "So: "
    with pytest.raises(ValueError, match="reasoning_budget_message belongs to a reasoning_budget, which is not set"):
        words(reasoning_budget_message="So: ")


def test_switches() -> None:
    assert "--metrics" in words(metrics=True)
    assert "--metrics" not in words(metrics=False)
    assert "--slots" in words(slots=True)
    assert "--no-slots" in words(slots=False)
    assert value("--api-key-file", words(api_key=True)) == "/etc/key", "a file: arguments are readable by every user"
    assert "--api-key-file" not in words()


def test_words_of_ones_own_stand_last() -> None:
    assert words(extra_args=("--top-k", "20"))[-2:] == ["--top-k", "20"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.0.9", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert server_flags.is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "2001:db8::1", "169.254.0.1"])
def test_not_loopback(host: str) -> None:
    assert not server_flags.is_loopback(host)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--port", "extra_args may not hold --port: set server.port"),
        ("--port=1", "extra_args may not hold --port: set server.port"),
        ("--ctx_size", "extra_args may not hold --ctx-size: set server.ctx_size"),  # llama-server reads _ as -
        ("-c", "extra_args may not hold -c: set server.ctx_size"),
        ("--api-key", "readable by every user of the host; set server.api_key"),
        ("--api-key=secret", "readable by every user of the host; set server.api_key"),
        ("-lv", "the deploy reads the log at verbosity 4"),
        ("-v", "the deploy reads the log at verbosity 4"),
        ("-hf", "the model is verified before it is served; set model.path"),
        ("--model-url", "the model is verified before it is served; set model.path"),
        ("--tools", "whoever reaches the port could act on this host"),
        ("--agent", "whoever reaches the port could act on this host"),
        ("--ui-mcp-proxy", "whoever reaches the port could act on this host"),
    ],
)
def test_refused(word: str, said: str) -> None:
    (sentence,) = server_flags.refused(["--top-k", "20", word])
    assert said in sentence
    assert "secret" not in sentence


@pytest.mark.parametrize(
    "words", [("--model-draft", "/mnt/c/d.gguf"), ("--lora=/mnt/d/l.gguf",), ("-md", r"C:\m\d.gguf"), (r"--lora=\\nas\m\l.gguf",)]
)
def test_a_file_on_a_drive_of_windows_is_not_served_from_there(words: tuple[str, ...]) -> None:
    (sentence,) = server_flags.refused(words)
    assert f"{words[-1].rpartition('=')[2]}: a file on a drive of Windows can't be served from there" in sentence
    assert server_flags.refused(["--model-draft", "/mnt/models/d.gguf", "--lora=/var/lib/l.gguf"]) == []


def test_not_refused() -> None:
    assert server_flags.refused(["--top-k", "20", "--chat-template-kwargs", '{"port": 1}', "port", "host"]) == []


HELP = Path(__file__).parents[1] / "data" / "help" / "llama-server-0c1e570.txt"


def spellings(line: str) -> list[str]:
    """Those of the option that a line of the help begins with; empty for lines that describe."""
    head = re.match(r"(?:--?[A-Za-z][\w-]*(?:,\s+|\s|$))+", line)
    return re.findall(r"--?[A-Za-z][\w-]*", head[0]) if head else []


def test_a_setting_owns_every_spelling_of_its_argument() -> None:
    every, found = {*server_flags.OWNED, *server_flags.FORBIDDEN}, set()
    for words in map(spellings, HELP.read_text(encoding="utf-8").splitlines()):
        if known := every & set(words):
            assert set(words) == known
            found |= known
    assert found == every, "each is an argument of the program"


def test_what_is_placed_by_hand_or_plan_is_not_fitted_again() -> None:
    assert value("--fit", words(n_gpu_layers=41, n_cpu_moe=7)) == "off"
    for given in ({}, {"n_gpu_layers": 41}, {"n_cpu_moe": 7}):
        assert "--fit" not in words(**given)
    assert words(n_gpu_layers=41, n_cpu_moe=7, extra_args=("--fit", "on"))[-2:] == ["--fit", "on"]
    assert words(n_gpu_layers=41, n_cpu_moe=7, extra_args=("--fit", "on")).count("--fit") == 1
