"""Names, shares and pins of models; the policy's rules on claims that were made up or are real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsllama import lock
from wsllama.domain import model_policy, models
from wsllama.domain.model_policy import Claim, refusals

LOCK = Path(__file__).parents[2] / "wsllama.lock"


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Qwen3.6-35B-A3B-UD-Q4_K_M.gguf", "UD-Q4_K_M"),
        ("Qwen3.6-35B-A3B-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
        ("Qwen3.6-35B-A3B-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("Qwen3.6-35B-A3B-BF16-00001-of-00002.gguf", "BF16"),
        ("Qwen_Qwen3.6-35B-A3B-IQ4_NL.gguf", "IQ4_NL"),
        ("model.q8_0.gguf", "Q8_0"),
        ("Qwen3.6-35B-A3B.gguf", None),
        ("Qwen3.6-35B-A3B-UD-Q4_K_M.gguf.part", None),
    ],
)
def test_quant_of(name: str, quant: str | None) -> None:
    assert models.quant_of(name) == quant


def test_quants_of_a_repository() -> None:
    whole = [f"BF16/M-BF16-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    paths = [
        *whole,
        "M-Q4_K_M.gguf",
        "M-Q8_0-00001-of-00002.gguf",
        "mmproj-F16.gguf",
        "mmproj-BF16.gguf",
        "README.md",
        "x.safetensors",
    ]
    assert models.quants(reversed(paths)) == {"BF16": whole, "Q4_K_M": ["M-Q4_K_M.gguf"]}
    assert models.projector(paths) == "mmproj-BF16.gguf"
    assert models.projector(["mmproj-Q8_0.gguf", "mmproj-F16.gguf"]) == "mmproj-F16.gguf"
    assert models.projector(["M-Q4_K_M.gguf"]) is None


def test_name_of() -> None:
    assert models.name_of("unsloth/Qwen3.6-35B-A3B-MTP-GGUF", "UD-Q4_K_M") == "Qwen3.6-35B-A3B-MTP-UD-Q4_K_M"
    assert models.name_of("a/Model_gguf", "Q8_0") == "Model-Q8_0"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_grouped_and_back(numbers: list[int]) -> None:
    assert models.by_layer(models.grouped(numbers)) == numbers


@pytest.mark.parametrize("groups", [{"0-1": 1, "1": 2}, {"1": 1}, {"0-x": 1}, {"": 1}, {"0,0": 1}])
def test_groups_that_are_none(groups: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"layer|invalid literal"):
        models.by_layer(groups)


def test_an_estimate_is_the_published_share() -> None:
    found = models.estimate(10**10).tensors
    assert round(sum(found.experts_by_layer()) / 10**10, 4) == 0.9294
    assert abs(found.total - 10**10) < 100
    with_mtp = models.estimate(10**10, mtp=True)
    assert with_mtp.keys["block_count"] == 41
    assert round(with_mtp.tensors.mtp / 10**10, 3) == round(0.85 / 35.51, 3)


def test_the_shipped_models() -> None:
    pins = lock.load(LOCK).models
    shipped = {name: pin for name, pin in pins.items() if pin.read is None}
    assert {"Qwen3.6-35B-A3B-UD-Q4_K_M", "Qwen3.6-35B-A3B-MTP-UD-IQ4_XS"} <= set(shipped)
    for name, pin in shipped.items():
        assert all(file.sha256_from in (None, "transcribed") and file.bytes_from != "hub" for file in pin.files), name
        assert refusals(Claim(pin.repo, pin.licence, (pin.base_model.repo,))) == []
    assert {name for name, pin in shipped.items() if not pin.refusal(name)} == {
        "Qwen3.6-35B-A3B-UD-Q4_K_S",
        "Qwen3.6-35B-A3B-UD-Q4_K_M",
    }
    mtp = pins["Qwen3.6-35B-A3B-MTP-UD-IQ4_XS"]
    assert mtp.known_or_estimated.keys["nextn_predict_layers"] == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": None}, "Value error, a sha256 has sha256_from"),
        ({"sha256_from": None}, "Value error, a sha256 has sha256_from"),
        ({"path": "../x.gguf"}, "stays inside"),
        ({"path": "/etc/x.gguf"}, "String should match"),
        ({"sha256": "A" * 64}, "String should match"),
        ({"bytes": 0}, "greater than or equal to 1"),
        ({"bytes": 1.5}, "valid integer"),
        ({"colour": "red"}, "Extra inputs"),
    ],
)
def test_a_wrong_pin_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    document = json.loads(LOCK.read_text())
    document["models"]["Qwen3.6-35B-A3B-UD-Q4_K_M"]["files"][0].update(change)
    (tmp_path / "l").write_text(json.dumps(document))
    with pytest.raises(lock.LockError, match=said) as caught:
        lock.load(tmp_path / "l")
    assert "models.Qwen3.6-35B-A3B-UD-Q4_K_M.files.0" in str(caught.value)


def test_a_lock_that_cannot_be_written_stays(tmp_path: Path) -> None:
    held = lock.load(LOCK)
    with pytest.raises(lock.LockError, match=r"cannot be written: No such file"):
        lock.save(tmp_path / "none" / "l", held)
    with pytest.raises(lock.LockError, match="the folder of the lock file"), lock.changing(tmp_path / "none" / "l"):
        pass


GOOD = Claim("unsloth/Qwen3.6-35B-A3B-GGUF", "apache-2.0", ("Qwen/Qwen3.6-35B-A3B",), ("Qwen/Qwen3.6-35B-A3B",))


def claim(**values: Any) -> Claim:
    return Claim(**{**GOOD.__dict__, **values})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"card_bases": ()},
        {"gguf_bases": ()},
        {"repo": "UNSLOTH/anything", "licence": "Apache-2.0", "card_bases": ("qwen/qwen3.6-35b-a3b",)},
        {"text": "An aggressive quantisation, aggressively 2-bit quantized. It is censored."},
        {"names": ("Qwen3.6-35B-A3B-UD-Q4_K_M.gguf", "censored")},
    ],
)
def test_what_may_be_served(values: dict[str, Any]) -> None:
    assert refusals(claim(**values)) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"repo": "unsloth/Qwen3.6-35B-A3B-Uncensored-GGUF"}, "it says 'uncensored' of itself"),
        ({"repo": "unsloth/Qwen3.6_un-censored_x"}, "'un-censored'"),
        ({"names": ("Qwen3.6-35B-A3B-Someone-Aggressive-Q4_K_M.gguf",)}, "'aggressive'"),
        ({"names": ("Some-Qwen3.6-35B-A3B-abliterated",)}, "'abliterated'"),
        ({"names": ("abliteration",)}, "'abliteration'"),
        ({"names": ("jailbreak2",)}, "'jailbreak'"),
        ({"names": ("QwenUncensored36",)}, "'uncensored'"),
        ({"text": "# Qwen3.6 35B Aggressive\n"}, "'aggressive'"),
        ({"text": "This is the aggressive variant of the model.\n"}, "its card says 'aggressive'"),
        ({"text": "A jail-break of it."}, "its card says 'jail-break'"),
        ({"names": ("Qwen3.6-35B-A3B-un_censored",)}, "'un_censored'"),
        ({"text": "made by abliterating the model"}, "its card says 'abliterating'"),
        ({"repo": "someone-else/Qwen3.6-35B-A3B-GGUF"}, "its publisher 'someone-else' is none of those that are allowed: Qwen, "),
        ({"repo": "unsloth-/Qwen3.6-35B-A3B-GGUF"}, "its publisher 'unsloth-' is none"),
        ({"licence": None}, "its card names no licence; allowed are apache-2.0"),
        ({"licence": "cc-by-nc-4.0"}, "its licence 'cc-by-nc-4.0' is none"),
        ({"card_bases": (), "gguf_bases": ()}, "neither its card nor its GGUF says what it was made of"),
        ({"gguf_bases": ("Qwen/Qwen3.5-35B-A3B",)}, "one of them is wrong"),
        (
            {"card_bases": ("Qwen/Qwen3.5-35B-A3B",), "gguf_bases": ()},
            "its card says that it was made of Qwen/Qwen3.5-35B-A3B, not of",
        ),
        ({"card_bases": (), "gguf_bases": ("a/b",)}, "its GGUF says that it was made of a/b, not of"),
        ({"card_bases": ("Qwen/Qwen3.6-35B-A3B", "a/b")}, "its card says that it was made of Qwen/Qwen3.6-35B-A3B, a/b, not of"),
    ],
)
def test_what_may_not(values: dict[str, Any], said: str) -> None:
    (sentence,) = refusals(claim(**values))
    assert said in sentence
    assert sentence.startswith(f"{values.get('repo', GOOD.repo)}: ")


def test_allow_unofficial_lets_only_words_pass() -> None:
    bad = claim(repo="unsloth/Uncensored-GGUF", licence="other", names=("abliterated",), text="jailbreak")
    assert len(refusals(bad)) == 2
    (left,) = refusals(bad, allow_unofficial=True)
    assert "its licence" in left
    assert refusals(bad, True, licences=("other",)) == []


def test_what_a_gguf_says_of_its_base() -> None:
    metadata = {
        "general.base_model.0.repo_url": "https://huggingface.co/Qwen/Qwen3.6-35B-A3B",
        "general.base_model.1.organization": "Qwen",
        "general.base_model.1.name": "Qwen3.6 35B A3B",
        "general.base_model.2.repo_url": "https://example.org/",
        "general.base_model.3.name": 5,
        "general.name": "Qwen3.6-35B-A3B",
        "general.tags": ["unsloth", "qwen3_5_moe"],
    }
    assert model_policy.bases_of(metadata) == ("Qwen/Qwen3.6-35B-A3B", "Qwen/Qwen3.6-35B-A3B")
    assert model_policy.names_of(metadata) == ("Qwen3.6-35B-A3B", "unsloth", "qwen3_5_moe")


@pytest.mark.parametrize(
    ("keys", "other"),
    [
        ({}, ""),
        ({"0.repo_url": "https://huggingface.co/Qwen/Qwen3.6-35B-A3B"}, ""),
        ({"0.repo_url": "https://huggingface.co/Qwen/Qwen3.6-35B-A3B-Base/tree/main"}, ""),
        ({"0.organization": "Qwen", "0.name": "Qwen3.6 35B A3B Base"}, ""),
        ({"0.name": "Qwen3.6 35B A3B"}, ""),
        ({"0.repo_url": "https://huggingface.co/Qwen/Qwen3.5-35B-A3B"}, "Qwen/Qwen3.5-35B-A3B"),
        ({"0.repo_url": "huggingface.co/a/Qwen3.6-35B-A3B"}, "a/Qwen3.6-35B-A3B"),
        ({"0.name": "Llama 3"}, "Llama-3"),
        ({"0.repo_url": "https://huggingface.co/Qwen/Qwen3.6-35B-A3B", "400.organization": "a", "400.name": "b"}, "a/b"),
    ],
)
def test_the_base_model_that_a_file_names(keys: dict[str, str], other: str) -> None:
    said = model_policy.other_base({f"general.base_model.{key}": value for key, value in keys.items()})
    assert [f"made of {other}, not of Qwen/Qwen3.6-35B-A3B" in sentence for sentence in said] == [True] * bool(other)
    assert model_policy.other_base({f"general.base_model.{key}": value for key, value in keys.items()}, allowed=True) == []


def test_a_quant_of_the_base_model_itself_is_not_the_official_one() -> None:
    """Only a file's own key may name it: a converter copies that from the card of what it converts."""
    assert refusals(claim(gguf_bases=("Qwen/Qwen3.6-35B-A3B-Base",))) == []
    assert "one of them is wrong" in refusals(claim(card_bases=("Qwen/Qwen3.6-35B-A3B-Base",)))[0]
