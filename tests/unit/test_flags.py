"""Words for one build of llama-server, against the real --help of the pin and one as builds of 2025 printed it.

llama-server-0c1e570.txt is what the program of the pin printed; the other text is written by hand in the form of its time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from wsllama.domain import flags, server_flags
from wsllama.settings import Server

HELP = Path(__file__).parents[1] / "data" / "help"
PIN = flags.parse_help((HELP / "llama-server-0c1e570.txt").read_text(encoding="utf-8"))
OLD = flags.parse_help((HELP / "llama-server-2025-06-handmade.txt").read_text(encoding="utf-8"))


def option(name: str, help: flags.Help = PIN) -> flags.Option:
    found = help.find(name)
    assert found is not None, f"{name} isn't found in the help"
    return found


def clean(words: str, help: flags.Help, **more: bool) -> str:
    resolved = flags.resolve(words.split(), help, **more)
    assert resolved.problems == []
    return " ".join(resolved.words)


def problem(words: str, help: flags.Help, **more: bool) -> str:
    (sentence,) = flags.resolve(words.split(), help, **more).problems
    return sentence


# --- reading


def test_every_option_of_the_pin_is_read() -> None:
    text = (HELP / "llama-server-0c1e570.txt").read_text(encoding="utf-8")
    assert len(PIN.options) == sum(line.startswith("-") and not line.startswith("-----") for line in text.splitlines())
    assert {o.values for o in PIN.options} == {0, 1, 2}
    assert all(o.names for o in PIN.options)
    envs = {o.env for o in PIN.options if o.env}
    assert len(envs) == text.count("(env: ")


@pytest.mark.parametrize(
    ("name", "names", "values", "env"),
    [
        ("-c", ("-c", "--ctx-size"), 1, "LLAMA_ARG_CTX_SIZE"),
        ("--n-gpu-layers", ("-ngl", "--gpu-layers", "--n-gpu-layers"), 1, "LLAMA_ARG_N_GPU_LAYERS"),
        ("--metrics", ("--metrics",), 0, "LLAMA_ARG_ENDPOINT_METRICS"),
        ("--no-slots", ("--slots", "--no-slots"), 0, "LLAMA_ARG_ENDPOINT_SLOTS"),
        ("-no-kvu", ("-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"), 0, "LLAMA_ARG_KV_UNIFIED"),
        ("--swa-checkpoints", ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"), 1, "LLAMA_ARG_CTX_CHECKPOINTS"),
        ("--control-vector-layer-range", ("--control-vector-layer-range",), 2, None),
        ("--override-tensor", ("-ot", "--override-tensor"), 1, "LLAMA_ARG_OVERRIDE_TENSOR"),
        ("--fim-qwen-1.5b-default", ("--fim-qwen-1.5b-default",), 0, None),
        ("--models-autoload", ("--models-autoload", "--no-models-autoload"), 0, "LLAMA_ARG_MODELS_AUTOLOAD"),
        ("--host", ("--host",), 1, "LLAMA_ARG_HOST"),
        ("--mmproj-device", ("-mmdev", "--mmproj-device"), 1, "MTMD_BACKEND_DEVICE"),
    ],
)
def test_an_option(name: str, names: tuple[str, ...], values: int, env: str | None) -> None:
    found = option(name)
    assert (found.names, found.values, found.env) == (names, values, env)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("--flash-attn", "on off auto"),
        ("--cache-type-k", "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1"),
        ("--load-mode", "auto none mmap mlock mmap+mlock dio"),
        ("--lazy-mode", "on auto off"),
        ("--split-mode", "none layer row tensor"),
        ("--numa", "distribute isolate numactl"),
        ("--reasoning-format", "none deepseek deepseek-legacy auto"),
        ("--cpu-strict", "0 1"),
        ("--pooling", "none mean cls last rank"),
        ("--log-verbosity", ""),  # levels are explained, any number is taken
        ("--poll", ""),
        ("--device", ""),
        ("--tensor-split", ""),
        ("--hf-repo", ""),
        ("--gpu-layers", ""),
    ],
)
def test_allowed_values(name: str, allowed: str) -> None:
    assert set(option(name).allowed) == set(allowed.split())


def test_a_list_of_values_may_hold_several() -> None:
    assert option("--spec-type").many
    assert not option("--flash-attn").many
    assert clean("--spec-type draft-mtp,ngram-mod", PIN) == "--spec-type draft-mtp,ngram-mod"
    assert "draft-mtq" in problem("--spec-type draft-mtq,ngram-mod", PIN)


def test_options_that_are_listed_as_removed_are_not_there() -> None:
    assert PIN.find("--draft-max") is None
    assert PIN.find("--spec-draft-n-max") is not None
    assert "--draft-max" not in PIN.names


def test_text_that_is_no_help_has_no_options() -> None:
    assert flags.parse_help("error while loading shared libraries: libcudart.so.13: cannot open\n").options == ()
    assert flags.parse_help("").options == ()


# --- the pin


def test_what_the_settings_give_passes_at_the_pin_unchanged() -> None:
    server = Server(ctx_size=8192, n_gpu_layers=40, n_cpu_moe=12, api_key=True, reasoning_budget=-1, load_mode="mmap+mlock")
    words = server_flags.arguments(server, "the-alias", "/m/a.gguf", "/etc/key")
    assert flags.resolve(words, PIN) == (words, [], [])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("--no-mmap", "--load-mode none"),
        ("--mmap", "--load-mode mmap"),
        ("--mlock", "--load-mode mlock"),
        ("-dio", "--load-mode dio"),
        ("--direct-io", "--load-mode dio"),
        ("--no-mmap --mlock", "--load-mode mlock"),
        ("--mlock --no-mmap", "--load-mode mlock"),
        ("--mmap --mlock", "--load-mode mmap+mlock"),
        ("--no-mmap -dio", "--load-mode dio"),
        ("--no-direct-io", ""),
        ("--no_mmap", "--load-mode none"),
        ("--load-mode auto --no-mmap", "--load-mode none"),  # auto asks for nothing
        ("--load-mode none --no-mmap", "--load-mode none"),
        ("-lm mlock --mlock", "--load-mode mlock"),
        ("-lm mlock", "-lm mlock"),
        ("--load_mode none", "--load-mode none"),
        ("-fa", "-fa on"),
        ("-fa --metrics", "-fa on --metrics"),
        ("--flash-attn 1", "--flash-attn on"),
        ("--flash-attn disabled", "--flash-attn off"),
        ("--fit true", "--fit on"),
        ("--draft-max 4", "--spec-draft-n-max 4"),
        ("--draft 4", "--spec-draft-n-max 4"),
        ("-md /m/draft.gguf", "-md /m/draft.gguf"),
        ("--no-webui", "--no-webui"),
        ("--ctx-size=4096", "--ctx-size 4096"),
        ("--temp -1", "--temp -1"),
        ("--reasoning-budget -1 --metrics", "--reasoning-budget -1 --metrics"),
        ("--control-vector-layer-range 1 9 --metrics", "--control-vector-layer-range 1 9 --metrics"),
        ("--alias --odd", "--alias --odd"),  # the program takes the next word whatever it is
    ],
)
def test_translated_for_the_pin(given: str, wanted: str) -> None:
    assert clean(given, PIN) == wanted


@pytest.mark.parametrize(
    "words",
    ["--no-mmap --mmap", "--load-mode dio --no-mmap", "-dio --mlock", "--mmap -dio", "-lm mmap --mlock"],
)
def test_contradictory_loading(words: str) -> None:
    assert "contradict each other: give one --load-mode" in problem(words, PIN)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ctx 4096", "--ctx is unknown to this build of llama-server: did you mean --ctx-size?"),
        ("--kv-cache-type q8_0", "did you mean --cache-type-"),
        ("--cuda-graphs", "--cuda-graphs is unknown"),
        ("--a3b", "--a3b is unknown"),
        ("--verbose-prompt", "--verbose-prompt is unknown"),
        ("--CTX-SIZE 1", "--CTX-SIZE is unknown"),
        ("--spec-ngram-size-n 3", "use the respective --spec-ngram-*-size-n or --spec-ngram-mod-n-match"),
        ("-ctk q4_2", "-ctk doesn't take q4_2 in this build of llama-server: did you mean q4_1? It takes f32, f16, bf16"),
        ("--load-mode none,mmap", "--load-mode doesn't take none,mmap"),
        ("-lm direct", "-lm doesn't take direct in this build"),
        ("--fit perhaps", "--fit doesn't take perhaps in this build"),
        ("--metrics=1", "--metrics takes no value in this build of llama-server, but 1 was given"),
        ("--ctx-size", "--ctx-size takes 1 value in this build of llama-server, but none was given"),
        ("--control-vector-layer-range 1", "takes 2 values"),
        ("stray", "'stray' stands where llama-server expects an option"),
        ("--metrics 5", "'5' stands where llama-server expects an option"),
    ],
)
def test_refused_at_the_pin(words: str, said: str) -> None:
    assert said in problem(words, PIN)


def test_all_problems_at_once() -> None:
    assert len(flags.resolve(["--ctx", "1", "--a3b", "-ctk", "q3_0"], PIN).problems) == 3


def test_a_key_is_not_repeated_in_a_sentence() -> None:
    resolved = flags.resolve(["--api-kez", "secret", "--metrics=secret"], PIN)
    assert len(resolved.problems) == 2
    assert "secret" not in " ".join([*resolved.problems, *resolved.notes])


# --- an older build


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("--load-mode none", "--no-mmap"),
        ("-lm none", "--no-mmap"),
        ("--load-mode auto", ""),
        ("--load-mode mmap", ""),
        ("--load-mode mlock", "--no-mmap --mlock"),
        ("--load-mode mmap+mlock", "--mlock"),
        ("--no-mmap", "--no-mmap"),
        ("--mlock", "--mlock"),
        ("--mmap", ""),  # what it does unless it is told not to
        ("--flash-attn on", "--flash-attn"),
        ("-fa 1", "-fa"),
        ("-fa", "-fa"),
        ("--flash-attn off", ""),
        ("--flash-attn auto", ""),
        ("--flash-attn auto --cache-type-v q8_0", "--flash-attn --cache-type-v q8_0"),
        ("-ctv q8_0 --flash-attn auto", "-ctv q8_0 --flash-attn"),
        ("--flash-attn auto --cache-type-v f16", "--cache-type-v f16"),
        ("--no-slots", ""),  # off by default then
        ("--slots", "--slots"),
        ("--no-jinja", ""),
        ("--kv-offload", ""),
        ("--no-ui", "--no-webui"),
        ("--ctx-checkpoints 8", ""),
        ("-ctxcp 8", ""),
        ("--cache-ram 1024", ""),
        ("--kv-unified", ""),
        ("--offline", ""),
        ("--fit off", ""),
        ("--reasoning-budget -1", "--reasoning-budget -1"),
        ("--reasoning-budget 0", "--reasoning-budget 0"),
        ("--spec-draft-n-max 4", "--draft-max 4"),
        ("--lora-scaled a.gguf 0.5", "--lora-scaled a.gguf 0.5"),
    ],
)
def test_translated_for_an_older_build(given: str, wanted: str) -> None:
    assert clean(given, OLD) == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--load-mode dio", "nothing like --load-mode dio: it can do auto, mmap, none, mlock, mmap+mlock"),
        ("--load-mode fast", "nothing like --load-mode fast"),
        ("--reasoning-budget 2048", "--reasoning-budget doesn't take 2048 in this build of llama-server: it takes -1, 0"),
        ("--n-cpu-moe 12", "--n-cpu-moe is unknown to this build"),
        ("--split-mode tensor", "--split-mode doesn't take tensor in this build of llama-server: it takes none, layer, row"),
        ("--fit on", "--fit is unknown to this build"),
        ("--no-context-shift=1", "--no-context-shift takes no value"),
    ],
)
def test_refused_for_an_older_build(words: str, said: str) -> None:
    assert said in problem(words, OLD)


def test_the_settings_serve_an_older_build_too() -> None:
    words = server_flags.arguments(Server(), "the-alias", "/m/a.gguf", "/etc/key")
    resolved = flags.resolve(words, OLD)
    assert resolved.problems == []
    assert all(word in OLD.names for word in resolved.words if word.startswith("--"))
    assert any("--load-mode auto is the default" in note for note in resolved.notes)
    assert any("--cache-ram is left out" in note for note in resolved.notes)


def test_what_is_on_by_default_is_not_left_out_when_it_is_to_be_off() -> None:
    help = flags.parse_help("--slots    expose slots monitoring endpoint (default: enabled)\n")
    assert "--no-slots is unknown" in problem("--no-slots", help)
    assert clean("--slots", help) == "--slots"


def test_a_limit_on_thinking_is_left_out_only_where_it_limits_nothing() -> None:
    without = flags.Help(tuple(o for o in OLD.options if "--reasoning-budget" not in o.names))
    assert clean("--reasoning-budget -1", without) == ""
    assert "--reasoning-budget is unknown" in problem("--reasoning-budget 0", without)


# --- files and a shell for the model


@pytest.mark.parametrize(
    "words",
    [
        "--tools all",
        "--tools=all",
        "--tools",
        "--tools-runtime docker:x",
        "--tools_runtime docker:x",
        "--agent",
        "-ag",
        "--ui-mcp-proxy",
        "--ui_mcp_proxy",
        "--webui-mcp-proxy",
        "--mcp-servers-config /etc/mcp.json",
        "--mcp_servers_config=/etc/mcp.json",
        "--mcp-servers-json {}",
        "--mcp-servers-anything-new x",
    ],
)
def test_tools_are_refused_in_every_spelling(words: str) -> None:
    said = problem(words, PIN)
    assert said.startswith(words.split()[0].split("=")[0].replace("_", "-") + " is refused")
    assert "server.allow_tools" in said
    assert server_flags.refused(words.split()) != []
    assert server_flags.refused(words.split(), allow_tools=True) == []


@pytest.mark.parametrize("words", ["--tools all", "-ag", "--ui-mcp-proxy", "--mcp-servers-config /etc/mcp.json"])
def test_tools_with_the_override(words: str) -> None:
    assert clean(words, PIN, allow_tools=True) == words


@pytest.mark.parametrize("words", ["--no-agent", "-no-ag", "--no-ui-mcp-proxy", "--no-webui-mcp-proxy", "--alias tools"])
def test_what_turns_tools_off_passes(words: str) -> None:
    assert clean(words, PIN) == words
    assert not any(flags.tool_flag(word) for word in words.split())


def test_the_setting_allows_them() -> None:
    assert Server(extra_args=("--tools", "all"), allow_tools=True).extra_args == ("--tools", "all")
    with pytest.raises(ValueError, match=r"extra_args may not hold --tools: .*server\.allow_tools"):
        Server(extra_args=("--tools", "all"))
