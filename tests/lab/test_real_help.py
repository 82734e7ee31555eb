"""Our words for llama-server against the program that the deploy has built."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.deployed import Deployed
from tests.unit.test_server_flags import spellings
from wsllama.domain import server_flags
from wsllama.settings import Server

RECORDED = Path(__file__).parents[1] / "data" / "help" / "llama-server-0c1e570.txt"


def words_of(text: str) -> set[str]:
    return {word for line in text.splitlines() for word in spellings(line)}


@pytest.fixture(scope="module")
def help_text(deployed: Deployed) -> str:
    return deployed.lab.hosts[0].run(["/opt/wsllama/current/build/bin/llama-server", "--help"]).stdout


def test_the_recorded_help_is_that_of_the_program(help_text: str) -> None:
    assert words_of(help_text) == words_of(RECORDED.read_text(encoding="utf-8"))
    assert len(words_of(help_text)) > 200


def test_every_word_that_we_know_is_one_of_the_program(help_text: str) -> None:
    known = words_of(help_text)
    assert [flag for flag in server_flags.OWNED if flag not in known] == []
    assert [flag for flag in server_flags.FORBIDDEN if flag not in known] == []


def test_the_program_takes_every_setting(deployed: Deployed) -> None:
    server = Server(
        api_key=True,
        parallel=2,
        cache_type_k="q8_0",
        cache_type_v="q8_0",
        flash_attn="on",
        batch_size=512,
        ubatch_size=128,
        threads=2,
        n_gpu_layers=0,
        n_cpu_moe=1,
        load_mode="mmap+mlock",
        cache_ram=0,
        ctx_checkpoints=0,
        sampling="coding",
        reasoning="on",
        reasoning_format="deepseek-legacy",
        reasoning_budget=16,
        reasoning_budget_message="So, in short: ",
        slots=True,
    )
    host = deployed.lab.hosts[0]
    host.run(["install", "-m", "0600", "/dev/stdin", "/run/test-key"], input="key\n")
    words = server_flags.arguments(server, "qwen", "/opt/wsllama/current/model/tiny.gguf", "/run/test-key")
    program = "/opt/wsllama/current/build/bin/llama-server"
    assert host.run([program, *words, "--version"], check=False).returncode == 0
    assert host.run([program, *words, "--no-such-thing", "--version"], check=False).returncode != 0
