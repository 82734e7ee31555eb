"""What settings say of a model: contradictions, the lock's entries, Windows' spellings, and which files are meant."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit import small_gguf
from wsllama import model_files
from wsllama.domain import spelling
from wsllama.host import model as host_model
from wsllama.settings import LOCK, Settings, local_problems, parse

KNOWN, UNKNOWN = "Qwen3.6-35B-A3B-UD-Q4_K_M", "Qwen3.6-35B-A3B-Q8_0"  # with and without a sha256 in the shipped lock


def settings(**model: Any) -> Settings:
    found, wrong = parse({"platform": "linux", "model": model})
    assert found is not None, wrong
    return found


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"path": "/a.gguf", "quant": "Q8_0"}, "quant and lock_file belong to name, which is not set"),
        ({"name": "a", "source": "path"}, "source path needs path"),
        ({"name": "a", "source": "url"}, "source url and url belong together: set both or neither"),
        ({"name": "a", "url": "http://m/", "source": "hub"}, "source url and url belong together: set both or neither"),
        ({"name": "a", "source": "hub", "path": "/a.gguf"}, "path belongs to source path or bundle, but source is hub"),
        ({"path": "/a.gguf", "token_file": "/t"}, "token_file and endpoint belong to source hub, but source is path"),
        ({"source": "hub"}, "source hub needs the name of a model of wsllama.lock"),
        ({"url": "http://m/a.gguf"}, "source url needs name, or the address of a file and its sha256"),
        ({"url": "http://m/", "sha256": "ab" * 32}, "source url needs name, or the address of a file and its sha256"),
        ({"name": "a", "sha256": "ab" * 32}, "sha256 is the lock's where name is given: leave one of them out"),
        ({"path": "/a.gguf", "mmproj": True}, "mmproj True means the lock's, so it needs name: give the projector's path"),
        ({"name": "a", "mmproj": "/m.gguf"}, "mmproj is a path, which belongs to source path, but source is hub"),
        ({"name": "a", "endpoint": "hub.example.org"}, "an address begins with http:// or https://"),
        ({"url": "http://me:word@m/a.gguf", "sha256": "ab" * 32}, "a password in an address would get into files and logs"),
        ({"name": "a", "source": "bundle"}, "model.source bundle needs bundle.path"),
    ],
)
def test_contradictions(model: dict[str, Any], said: str) -> None:
    found, wrong = parse({"platform": "linux", "model": model})
    assert found is None
    assert said in wrong[0]


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ({"name": "a"}, "hub"),
        ({"path": "/a.gguf"}, "path"),
        ({"name": "a", "path": "/a.gguf"}, "path"),
        ({"name": "a", "url": "http://m/"}, "url"),
    ],
)
def test_where_it_comes_from_follows_from_what_is_given(model: dict[str, Any], way: str) -> None:
    assert settings(**model).model.way == way


def test_a_name_of_the_lock() -> None:
    assert local_problems(settings(name=KNOWN)) == []
    assert local_problems(settings(name="Qwen3.6-35B-A3B", quant="UD-Q4_K_M")) == []
    (file,) = model_files.wanted(settings(name=KNOWN)).files
    pin = json.loads(LOCK.read_text())["models"][KNOWN]["files"][0]
    assert (file.size, file.sha256, file.place) == (pin["bytes"], pin["sha256"], pin["path"])
    (sentence,) = local_problems(settings(name=UNKNOWN))
    assert sentence.endswith(f"run `wsllama lock update {UNKNOWN}`")
    (sentence,) = local_problems(settings(name="Qwen3.6-35B-A3B-UD-Q4_K_L"))
    assert "the lock has no model Qwen3.6-35B-A3B-UD-Q4_K_L: did you mean Qwen3.6-35B-A3B-UD-Q4_K_XL" in sentence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"licence": "other"}, "its licence 'other' is none of those that are allowed"),
        ({"repo": "someone/m"}, "its publisher 'someone' is none of those that are allowed"),
        ({"repo": "unsloth/Jailbroken"}, "it says 'jailbroken' of itself"),
        ({"base_model": {"repo": "Qwen/Qwen3.5-35B-A3B", "revision": None}}, "says that it was made of Qwen/Qwen3.5-35B-A3B"),
    ],
)
def test_the_policy_is_asked_again(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """A lock may have been written by hand."""
    document = json.loads(LOCK.read_text())
    document["models"][KNOWN].update(change)
    lock = tmp_path / "a.lock"
    lock.write_text(json.dumps(document))
    (sentence,) = local_problems(settings(name=KNOWN, lock_file=str(lock)))
    assert said in sentence
    allowed = {"licences": ["other"], "publishers": ["someone"], "allow_unofficial": True}
    assert len(local_problems(settings(name=KNOWN, lock_file=str(lock), **allowed))) == ("base_model" in change)


def test_files_of_this_machine(tmp_path: Path) -> None:
    good = small_gguf.model(tmp_path / "good.gguf")
    assert local_problems(settings(path=str(good))) == []
    removed = small_gguf.model(tmp_path / "a.gguf", {"general.name": "Uncensored"})
    (sentence,) = local_problems(settings(path=str(removed)))
    assert "it says 'uncensored' of itself" in sentence
    assert local_problems(settings(path=str(removed), allow_unofficial=True)) == []
    other = small_gguf.model(
        tmp_path / "o.gguf", {"general.base_model.0.repo_url": "https://huggingface.co/Qwen/Qwen3.5-35B-A3B"}
    )
    (sentence,) = local_problems(settings(path=str(other)))
    assert "its keys say that it was made of Qwen/Qwen3.5-35B-A3B, not of Qwen/Qwen3.6-35B-A3B" in sentence
    assert local_problems(settings(path=str(other), allow_unofficial=True)) == []
    assert local_problems(settings(path=str(small_gguf.model(tmp_path / "n.gguf", {})))) == []
    (sentence,) = local_problems(settings(path=str(small_gguf.model(tmp_path / "l.gguf", architecture="llama"))))
    assert "its architecture is 'llama'" in sentence
    projector = small_gguf.projector(tmp_path / "mmproj.gguf")
    assert local_problems(settings(path=str(good), mmproj=str(projector))) == []
    (sentence,) = local_problems(settings(path=str(good), mmproj=str(small_gguf.projector(tmp_path / "p.gguf", 64))))
    assert "it gives vectors of 64 values where the model takes 32" in sentence
    (sentence,) = local_problems(settings(path=str(projector)))
    assert "it is a projector (mmproj), not a model" in sentence
    tensors = tmp_path / "m.safetensors"
    tensors.write_bytes((64).to_bytes(8, "little") + b'{"__metadata__":{}}' + b" " * 60)
    (sentence,) = local_problems(settings(path=str(tensors)))
    assert "a safetensors file" in sentence


def test_a_header_is_read_once_for_all_hosts_that_have_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one takes a quarter of a second. A file that was changed since is another one."""
    read: list[str] = []
    stock = host_model.seen

    def counting(path: str, name: str) -> Any:
        read.append(name)
        return stock(path, name)

    monkeypatch.setattr(host_model, "seen", counting)
    path = small_gguf.model(tmp_path / "m.gguf")
    for _ in range(3):
        assert local_problems(settings(path=str(path))) == []
    assert read == ["m.gguf"]
    path.write_bytes(path.read_bytes()[:-64])
    (sentence,) = local_problems(settings(path=str(path)))
    assert sentence.startswith(f"model.path: {path}: it is cut off")


def test_a_file_that_the_lock_knows_is_installed_by_the_lock_s_name(tmp_path: Path) -> None:
    (file,) = model_files.wanted(settings(name=KNOWN, path="/mnt/c/Downloads/model (1).gguf", on="host")).files
    assert (file.name, file.place) == (f"{KNOWN}.gguf", "/mnt/c/Downloads/model (1).gguf")
    with pytest.raises(model_files.ModelError, match="is one of 2 files, but the lock has 1"):
        model_files.wanted(settings(name=KNOWN, path="/m/a-00001-of-00002.gguf", on="host"))


def test_a_mirror_s_folder_or_file(tmp_path: Path) -> None:
    (file,) = model_files.wanted(settings(name=KNOWN, url="http://m:8766/x/")).files
    assert file.place == f"http://m:8766/x/{KNOWN}.gguf"
    (file,) = model_files.wanted(settings(name=KNOWN, url="http://m/other.gguf")).files
    assert (file.name, file.place) == (f"{KNOWN}.gguf", "http://m/other.gguf")
    (file,) = model_files.wanted(settings(url="http://m/other.gguf", sha256="ab" * 32)).files
    assert (file.name, file.sha256, file.size) == ("other.gguf", "ab" * 32, None)


def test_the_lock_s_projector(tmp_path: Path) -> None:
    document = json.loads(LOCK.read_text())
    sums = {"bytes": 5, "bytes_from": "hub", "sha256": "cd" * 32, "sha256_from": "hub", "why_no_sha256": None}
    document["models"][KNOWN]["mmproj"] = {"path": "mmproj-F16.gguf", **sums}
    lock = tmp_path / "a.lock"
    lock.write_text(json.dumps(document))
    for more, place in (
        ({}, "mmproj-F16.gguf"),
        ({"url": "http://m/"}, "http://m/mmproj-F16.gguf"),
        ({"path": r"D:\m\a.gguf"}, r"D:\m\mmproj-F16.gguf"),
    ):
        found = model_files.wanted(settings(name=KNOWN, lock_file=str(lock), mmproj=True, **more))
        assert found.mmproj
        assert (found.mmproj.place, found.mmproj.sha256, len(found.every)) == (place, "cd" * 32, 2)
    document["models"][KNOWN]["mmproj"] = None
    none = shutil.copy(lock, tmp_path / "b.lock")
    Path(none).write_text(json.dumps(document))
    (sentence,) = local_problems(settings(name=KNOWN, lock_file=str(none), mmproj=True))
    assert sentence.startswith(f"model.mmproj: the lock has no projector of {KNOWN}")


def test_shards_are_found_from_the_first() -> None:
    files = model_files.wanted(settings(path=r"C:\m\a-00001-of-00003.gguf")).files
    assert [file.place for file in files] == [rf"C:\m\a-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


# Windows' spellings

DRIVES, SHARES = {"C": "/mnt/c", "D": "/d"}, {r"\\office\models": "/mnt/office", "//nas/x": "/mnt/nas"}


@pytest.mark.parametrize(
    ("path", "here"),
    [
        (r"C:\Users\Ada\a b.gguf", "/mnt/c/Users/Ada/a b.gguf"),
        ("c:/models//a.gguf", "/mnt/c/models/a.gguf"),
        (r"D:\a.gguf", "/d/a.gguf"),
        (r"\\OFFICE\Models\q4\a.gguf", "/mnt/office/q4/a.gguf"),
        (r"\\nas\x\a.gguf", "/mnt/nas/a.gguf"),
        (r"\\wsl.localhost\Ubuntu-24.04\srv\a.gguf", "/srv/a.gguf"),
        (r"\\wsl$\Ubuntu\srv\a.gguf", "/srv/a.gguf"),
        ("/mnt/c/a.gguf", "/mnt/c/a.gguf"),
    ],
)
def test_spelled_as_windows_does(path: str, here: str) -> None:
    assert spelling.linux(path, DRIVES, SHARES) == (here, "")
    assert spelling.is_windows(path) == (not path.startswith("/"))
    assert settings(path=path).model.on_host == (not path.startswith("/"))


def test_what_is_not_mounted() -> None:
    assert spelling.linux(r"E:\a.gguf", DRIVES, SHARES)[1].startswith(r"E:\a.gguf: the drive E: is not mounted here")
    said = spelling.linux(r"\\other\s\a.gguf", DRIVES, SHARES)[1]
    assert r"run `mount -t drvfs '\\other\s' /mnt/share` there" in said


@pytest.mark.parametrize("path", ["C:\\models\\", "C:\\.a.gguf", "C:a.gguf", "\\\\server"])
def test_windows_paths_that_name_no_file(path: str) -> None:
    assert parse({"platform": "linux", "model": {"path": path}})[0] is None


def test_a_model_of_a_bundle() -> None:
    data = {"llama_cpp": {"source": "bundle"}, "bundle": {"path": "/media/b"}, "model": {"name": KNOWN, "source": "bundle"}}
    found, wrong = parse({"platform": "linux", **data})
    assert found is not None, wrong
    assert [file.place for file in model_files.wanted(found).every] == [f"/media/b/models/{KNOWN}.gguf"]
    assert model_files.problems(found)[0].startswith(f"model.path: there is no file /media/b/models/{KNOWN}.gguf on this machine")
