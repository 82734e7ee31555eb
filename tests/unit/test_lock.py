import json
from pathlib import Path

import pytest

from wsllama import lock

LOCK = Path(__file__).parents[2] / "wsllama.lock"


def test_the_projects_lock_is_in_canonical_form() -> None:
    text = LOCK.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert lock.load(LOCK).llama_cpp.commit == "0c1e57098bba43ac29e6e3b677cdceebdd22334f"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["llama_cpp"].update(colour="red"), "llama_cpp.colour"),
        (lambda d: d["llama_cpp"].update(commit="0c1e570"), "llama_cpp.commit"),
        (lambda d: d["llama_cpp"]["sdist"].pop("sha256"), "llama_cpp.sdist.sha256"),
        (lambda d: d["llama_cpp"].update(build_number="11434"), "llama_cpp.build_number"),
        (lambda d: d["cuda"]["wheels"].update({"13": d["cuda"]["wheels"]["13.0"]}), "cuda.wheels.13"),
        (lambda d: d["cuda"]["wheels"]["13.0"].update(packages={}), "cuda.wheels.13.0.packages"),
        (lambda d: d["cuda"]["wheels"]["13.0"]["packages"]["nvidia-nvvm"].update(sha256="1"), "packages.nvidia-nvvm.sha256"),
        (lambda d: d["cuda"]["wheels"]["13.0"]["packages"]["nvidia-nvvm"].update(file="../x.whl"), "packages.nvidia-nvvm.file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change, said: str) -> None:  # type: ignore[no-untyped-def]
    document = json.loads(LOCK.read_text(encoding="utf-8"))
    change(document)
    path = tmp_path / "wsllama.lock"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(lock.LockError, match=said) as e:
        lock.load(path)
    assert "\n" not in str(e.value)


def test_a_missing_or_cut_lock_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(lock.LockError, match="cannot be read: No such file"):
        lock.load(tmp_path / "wsllama.lock")
    (tmp_path / "cut").write_bytes(LOCK.read_bytes()[:100])
    with pytest.raises(lock.LockError, match="wrong at its start"):
        lock.load(tmp_path / "cut")
