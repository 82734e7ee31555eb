"""`wsllama lock` and what it rests on: the real client against the lab's Hub, only HF_ENDPOINT is set."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lab.hub import Fault, Hub, portal
from tests.unit import small_gguf
from tests.unit.test_fetch import split
from wsllama import hub as product
from wsllama import lock
from wsllama.commands import lock as command

ROOT = Path(__file__).parents[2]
WSLLAMA = str(Path(sys.executable).parent / "wsllama")
REPO = "unsloth/Qwen3.6-35B-A3B-GGUF"
CARD = {"license": "apache-2.0", "base_model": ["Qwen/Qwen3.6-35B-A3B"]}
TEXT = b"# Qwen3.6-35B-A3B GGUF\n\nQuantised with llama.cpp release b9123.\n"

Lock = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield hub


def files(folder: Path, seed: int = 0, **more: bytes | Path) -> dict[str, bytes | Path]:
    folder.mkdir(exist_ok=True)
    return {
        "README.md": TEXT,
        "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf": small_gguf.model(folder / f"q4-{seed}.gguf", rows=131_072, seed=seed),
        "Qwen3.6-35B-A3B-Q8_0.gguf": small_gguf.model(folder / f"q8-{seed}.gguf", seed=seed),
        "mmproj-F16.gguf": small_gguf.projector(folder / "mmproj.gguf"),
        **more,
    }


@pytest.fixture
def commit(hub: Hub, tmp_path: Path) -> str:
    hub.add("Qwen/Qwen3.6-35B-A3B", {"config.json": b"{}"})
    return hub.add(REPO, files(tmp_path / "repo"), card=CARD)


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    path = tmp_path / "wsllama.lock"
    shutil.copyfile(ROOT / "wsllama.lock", path)
    path.chmod(0o640)
    return path


@pytest.fixture
def run(locked: Path) -> Lock:
    def run(*words: str) -> tuple[int, Any, str]:
        ran = CliRunner().invoke(command.app, [*words, "--lock", str(locked), "--json"])
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return ran.exit_code, json.loads(ran.stdout), ran.stderr

    return run


def sha256(path: bytes | Path) -> str:
    return hashlib.sha256(path if isinstance(path, bytes) else path.read_bytes()).hexdigest()


def test_add(hub: Hub, commit: str, run: Lock, locked: Path, tmp_path: Path) -> None:
    before = lock.load(locked)
    code, said, _ = run("add", REPO, "--quant", "q4_k_m")
    name = "Qwen3.6-35B-A3B-UD-Q4_K_M"
    assert (code, said["ok"], said["changed"]) == (0, True, [name])
    after = lock.load(locked)
    pin = after.models[name]
    (file,) = pin.files
    path = tmp_path / "repo/q4-0.gguf"
    assert (pin.repo, pin.revision, pin.quant) == (REPO, commit, "UD-Q4_K_M")
    assert (file.bytes, file.sha256, file.sha256_from) == (path.stat().st_size, sha256(path), "hub")
    assert pin.mmproj
    assert (pin.mmproj.path, pin.mmproj.sha256) == ("mmproj-F16.gguf", sha256(tmp_path / "repo/mmproj.gguf"))
    assert pin.base_model.revision == hub.repos["Qwen/Qwen3.6-35B-A3B"].refs["main"]
    assert (pin.licence, pin.publisher, pin.converter.version) == ("apache-2.0", "unsloth", "b9123")
    assert pin.summary
    assert (pin.summary.architecture, pin.summary.keys["expert_count"]) == ("qwen35moe", 2)
    assert (pin.summary.tensors.experts, pin.summary.tensors.embedding) == ({"0": 3 * 2 * 16 * 32 * 4}, 131_072 * 32 * 4)
    assert pin.refusal(name) is None
    # the header only, of a file of 16 MiB
    assert 0 < hub.sent[REPO, file.path] <= 2 << 20 < file.bytes
    # nothing else of the lock is touched, and it is in canonical form, with its mode
    assert after.model_copy(update={"models": {}}) == before.model_copy(update={"models": {}})
    assert {n for n in after.models if after.models[n] != before.models.get(n)} == {name}
    assert locked.read_text() == json.dumps(json.loads(locked.read_text()), indent=2, sort_keys=True) + "\n"
    assert locked.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_as_a_process(hub: Hub, commit: str, locked: Path, tmp_path: Path) -> None:
    words = ["lock", "add", REPO, "--quant", "Q8_0", "--lock", str(locked)]
    ran = subprocess.run([WSLLAMA, *words], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "Qwen3.6-35B-A3B-Q8_0: written, 0.00 GiB\n", "")
    link = tmp_path / "link"
    link.symlink_to(locked.rename(tmp_path / "real.lock"))
    locked.symlink_to(link)
    assert subprocess.run([WSLLAMA, *words[:4], "UD-Q4_K_M", *words[5:]], capture_output=True).returncode == 0
    assert (locked.is_symlink(), lock.load(tmp_path / "real.lock").models["Qwen3.6-35B-A3B-UD-Q4_K_M"].read is None) == (
        True,
        False,
    )
    hub.faults.append(portal())
    ran = subprocess.run([WSLLAMA, *words], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"refused: {REPO} at main: what answers is not the Hub but a page")
    assert ran.stderr.count("\n") == 1


def test_show_and_its_estimates(run: Lock) -> None:
    code, said, _ = run("show")
    assert code == 0
    known = said["models"]["Qwen3.6-35B-A3B-UD-Q4_K_M"]
    assert (known["estimated"], known["refusal"], known["bytes"]) == (True, None, 22_134_528_992)
    assert known["files"][0]["sha256_from"] == "transcribed"
    experts = known["summary"]["tensors"]["experts"]
    assert list(experts) == ["0-39"]
    assert round(experts["0-39"] * 40 / 22_134_528_992, 4) == 0.9294
    unknown = said["models"]["Qwen3.6-35B-A3B-Q8_0"]
    assert unknown["refusal"] == (
        "Qwen3.6-35B-A3B-Q8_0: wsllama.lock has no sha256 of Qwen3.6-35B-A3B-Q8_0.gguf (no source was found for it):"
        " run `wsllama lock update Qwen3.6-35B-A3B-Q8_0`"
    )
    assert said["models"]["Qwen3.6-35B-A3B-MTP-UD-IQ4_XS"]["summary"]["keys"]["block_count"] == 41
    table = CliRunner().invoke(command.app, ["show"]).stdout
    assert "  Qwen3.6-35B-A3B-Q8_0                34.37 GiB  sha256 none         tensors estimated\n" in table


def test_update_completes_what_was_not_known(hub: Hub, commit: str, run: Lock, locked: Path) -> None:
    name = "Qwen3.6-35B-A3B-Q8_0"
    code, said, _ = run("update", name)
    assert code == 1
    assert "it has no such revision, or no longer" in said["errors"][0]
    assert locked.read_bytes() == (ROOT / "wsllama.lock").read_bytes()
    code, said, _ = run("update", name, "--revision", "main")
    assert (code, said["changed"], said["models"][name]["refusal"]) == (0, [name], None)
    code, said, _ = run("update", name)
    assert (code, said["changed"]) == (0, [])
    assert run("check", name)[:2] == (0, {"ok": True, "checked": [name], "problems": []})


def change(locked: Path, name: str, **values: Any) -> None:
    document = json.loads(locked.read_text())
    document["models"][name]["files"][0].update(values)
    locked.write_text(json.dumps(document))


def test_another_sha256_than_the_lock_s(hub: Hub, commit: str, run: Lock, locked: Path, tmp_path: Path) -> None:
    name, theirs = "Qwen3.6-35B-A3B-Q8_0", sha256(tmp_path / "repo/q8-0.gguf")
    run("update", name, "--revision", "main")
    change(locked, name, sha256="0" * 64)
    before = locked.read_bytes()
    for verb in ("check", "update"):
        code, said, _ = run(verb, name)
        (problem,) = said["problems" if verb == "check" else "errors"]
        assert code == 1
        assert f"has the sha256 {theirs} on the Hub and {'0' * 64} in the lock (hub): don't install it" in problem
    assert locked.read_bytes() == before
    # a transcription gives way to what the Hub says, and it is told
    change(locked, name, sha256_from="transcribed")
    code, said, _ = run("update", name)
    assert (code, said["changed"]) == (0, [name])
    assert f"has the sha256 {theirs} on the Hub and {'0' * 64} in the lock (transcribed)" in said["notes"][0]
    change(locked, name, bytes=5)
    assert "bytes on the Hub and 5 in the lock (hub)" in run("check", name)[1]["problems"][0]


def test_one_that_fails_does_not_hold_up_others(hub: Hub, commit: str, run: Lock) -> None:
    run("update", "Qwen3.6-35B-A3B-Q8_0", "--revision", "main")
    code, said, _ = run(
        "update", "Qwen3.6-35B-A3B-Q8_0", "Qwen3.6-35B-A3B-MTP-UD-Q4_K_M", "Qwen3.6-35B-A3B-UD-Q4_K_M", "--revision", "main"
    )
    assert (code, said["changed"]) == (1, ["Qwen3.6-35B-A3B-UD-Q4_K_M"])
    assert [error.split(":")[0] for error in said["errors"]] == ["Qwen3.6-35B-A3B-MTP-UD-Q4_K_M"]


def test_a_hub_without_hashes(hub: Hub, run: Lock, tmp_path: Path) -> None:
    hub.add(REPO, files(tmp_path / "repo"), card=CARD, hashes=False)
    code, said, _ = run("add", REPO, "--quant", "Q8_0")
    pin = said["models"]["Qwen3.6-35B-A3B-Q8_0"]
    assert (code, said["ok"], said["changed"], pin["files"][0]["sha256"]) == (1, False, ["Qwen3.6-35B-A3B-Q8_0"], None)
    assert "has no sha256 of Qwen3.6-35B-A3B-Q8_0.gguf (the Hub gave none for it)" in pin["refusal"]
    assert said["errors"] == [pin["refusal"]]
    code, said, _ = run("update", "Qwen3.6-35B-A3B-Q8_0")
    assert (code, said["changed"], said["errors"]) == (1, [], [pin["refusal"]])


def test_a_hub_that_tells_sizes_only_in_its_tree(run: Lock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Hub(blobs=False, page=1) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        repo = files(tmp_path / "repo")
        hub.add(REPO, repo, card=CARD)
        code, said, _ = run("add", REPO, "--quant", "Q8_0")
        assert (code, said["errors"]) == (0, [])
        (file,) = said["models"]["Qwen3.6-35B-A3B-Q8_0"]["files"]
        path = tmp_path / "repo/q8-0.gguf"
        assert (file["bytes"], file["sha256"], file["sha256_from"]) == (path.stat().st_size, sha256(path), "hub")
        assert sum("/tree/" in path for _, path, _ in hub.requests) == len(repo)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rfilename": "a folder/Qwen3.6-35B-A3B-Q8_0.gguf"}, "the lock can't hold what the Hub says: path: "),
        ({"lfs": {"size": 1, "sha256": "zz", "pointerSize": 1}}, "the lock can't hold what the Hub says: sha256: "),
        ({"id": "../.."}, "that is no name of a repository"),
        ({"sha": "../../x"}, "the lock can't hold what the Hub says: revision: "),
        ({"size": "x"}, "what answers is not the Hub"),
    ],
)
def test_what_no_lock_can_hold(hub: Hub, run: Lock, locked: Path, tmp_path: Path, change: Any, said: str) -> None:
    """Each is a sentence, and the lock stays as it was."""
    path = small_gguf.model(tmp_path / "m.gguf")
    size = path.stat().st_size
    file: dict[str, Any] = {"rfilename": "Qwen3.6-35B-A3B-Q8_0.gguf", "size": size, "blobId": "1"}
    answer: dict[str, Any] = {"id": REPO, "sha": "a" * 40, "cardData": CARD, "tags": []}
    answer |= {key: value for key, value in change.items() if key in answer}
    answer["siblings"] = [file | {key: value for key, value in change.items() if key not in answer}]
    hub.faults += [
        Fault("/api/", status=200, body=json.dumps(answer).encode()),
        Fault("/resolve/", status=206, body=path.read_bytes(), headers={"Content-Range": f"bytes 0-{size - 1}/*"}),
    ]
    before = locked.read_bytes()
    code, report, _ = run("add", REPO, "--quant", "Q8_0")
    assert (code, len(report["errors"])) == (1, 1)
    assert said in report["errors"][0]
    assert locked.read_bytes() == before


def test_shards_in_order(hub: Hub, run: Lock, tmp_path: Path) -> None:
    from lab import ghost_model

    (tmp_path / "split").mkdir()
    shards = ghost_model.write(tmp_path / "split/m.gguf", tokens=50, shard_tensors=400, names=small_gguf.BASE)
    heads = {}
    for number, shard in enumerate(shards, 1):
        with shard.open("rb") as file:
            heads[f"Q4/Qwen3.6-35B-A3B-Q4_0-{number:05d}-of-00002.gguf"] = file.read(300_000)
    hub.add(REPO, heads, card=CARD)
    code, said, _ = run("add", REPO, "--quant", "Q4_0")
    assert code == 1  # these are heads of shards only
    assert "it is cut off: it has 300000 bytes where its header asks for" in said["errors"][0]
    assert said["errors"][0].startswith(f"{REPO}/Q4/Qwen3.6-35B-A3B-Q4_0-00001-of-00002.gguf: ")


def test_a_split_quant_is_locked_with_its_shards_in_order(hub: Hub, run: Lock, locked: Path, tmp_path: Path) -> None:
    paths = split(tmp_path / "split")
    names = [f"Q4_0/{path.name}" for path in paths]
    hub.add(REPO, dict(zip(reversed(names), reversed(paths), strict=True)), card=CARD)
    code, said, _ = run("add", REPO, "--quant", "Q4_0")
    assert (code, said["errors"]) == (0, [])
    pin = lock.load(locked).models["Qwen3.6-35B-A3B-Q4_0"]
    assert [(file.path, file.bytes, file.sha256) for file in pin.files] == [
        (name, path.stat().st_size, sha256(path)) for name, path in zip(names, paths, strict=True)
    ]
    assert pin.summary
    # embedding of the first shard, experts of the second
    assert (pin.summary.tensors.embedding, pin.summary.tensors.experts) == (8 * 32 * 4, {"0": 3 * 2 * 16 * 32 * 4})
    commit = hub.add(REPO, {names[0]: paths[0]}, card=CARD)
    said = run("add", REPO, "--quant", "q4_0")[1]
    assert said["errors"] == [f"{REPO} at {commit[:12]} lacks shards of Q4_0: {names[1]}: take another"]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, bytes], str]] = {
    "name": ({}, {"abliterated.txt": b""}, ""),
    "tag": ({"tags": ["uncensored"]}, {}, "it says 'uncensored' of itself"),
    "heading": ({}, {"README.md": b"text\n## Aggressive variant\n"}, "it says 'aggressive' of itself ('## Aggressive variant')"),
    "text": ({}, {"README.md": b"This is a jailbroken model."}, "its card says 'jailbroken'"),
    "licence": ({"license": "other"}, {}, "its licence 'other' is none of those that are allowed: apache-2.0"),
    "no licence": ({"license": None}, {}, "its card names no licence"),
    "base": ({"base_model": "Qwen/Qwen3.5-35B-A3B"}, {}, "its card says that it was made of Qwen/Qwen3.5-35B-A3B, its GGUF says"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_policy_at_the_hub(hub: Hub, run: Lock, locked: Path, tmp_path: Path, case: str) -> None:
    card, more, said = REFUSED[case]
    hub.add(REPO, {**files(tmp_path / "repo"), **more}, card={**CARD, **card})
    before = locked.read_bytes()
    code, report, _ = run("add", REPO, "--quant", "Q8_0")
    assert code == (1 if said else 0)  # a file beside the model says nothing of it
    assert not said or (said in report["errors"][0] and locked.read_bytes() == before)


def test_allow_unofficial_and_more_publishers(hub: Hub, run: Lock, tmp_path: Path) -> None:
    name = "someone/Qwen3.6-35B-A3B-Abliterated-GGUF"
    hub.add(name, files(tmp_path / "repo"), card=CARD)
    errors = run("add", name, "--quant", "Q8_0")[1]["errors"]
    assert ["'abliterated'" in errors[0], "its publisher 'someone' is none" in errors[1], len(errors)] == [True, True, 2]
    assert run("add", name, "--quant", "Q8_0", "--publisher", "someone")[0] == 1
    code, said, _ = run("add", name, "--quant", "Q8_0", "--publisher", "someone", "--allow-unofficial")
    assert (code, list(said["models"])) == (0, ["Qwen3.6-35B-A3B-Abliterated-Q8_0"])


def test_what_add_refuses(hub: Hub, commit: str, run: Lock, tmp_path: Path) -> None:
    def errors(*words: str) -> list[str]:
        code, said, _ = run("add", *words)
        assert code == 1
        return list(said["errors"])

    offer = "there are Q8_0, UD-Q4_K_M"
    assert errors(REPO) == [f"{REPO}: say which quant is meant with --quant: {offer}"]
    assert errors(REPO, "--quant", "Q2_K") == [f"{REPO} at {commit[:12]} has no quant Q2_K: {offer}"]
    assert errors(REPO, "--quant", "Q8_0", "--mmproj", "a.gguf")[0].startswith(f"{REPO} has no file a.gguf")
    hub.add("bartowski/Qwen3.6-35B-A3B-GGUF", files(tmp_path / "repo"), card=CARD)
    assert (
        "the lock has another model named Qwen3.6-35B-A3B-Q8_0" in errors("bartowski/Qwen3.6-35B-A3B-GGUF", "--quant", "Q8_0")[0]
    )
    hub.add(REPO, {"Qwen3.6-35B-A3B-Q8_0.gguf": small_gguf.model(tmp_path / "l.gguf", architecture="llama")}, card=CARD)
    assert "its architecture is 'llama'" in errors(REPO, "--quant", "Q8_0")[0]
    wrong = {"mmproj-F16.gguf": small_gguf.projector(tmp_path / "p.gguf", 64)}
    hub.add(REPO, {**files(tmp_path / "repo"), **wrong}, card=CARD)
    assert "it gives vectors of 64 values where the model takes 32" in errors(REPO, "--quant", "Q8_0")[0]
    hub.add(REPO, {"Qwen3.6-35B-A3B-Q8_0.gguf": b"<html>not found</html>"}, card=CARD)
    assert "it is not a GGUF but an HTML page" in errors(REPO, "--quant", "Q8_0")[0]
    asked = len(hub.requests)
    assert errors(REPO, "--quant", "Q8_0", "--name", "no name")[0].startswith("'no name' can't be a name in the lock")
    assert errors(REPO, "--quant", "Q8_0", "--quant", "Q4_K_M", "--name", "a") == ["--name is for one quant: give one --quant"]
    assert len(hub.requests) == asked
    token = tmp_path / "token"
    assert errors(REPO, "--quant", "Q8_0", "--token-file", str(token))[0].endswith("can't be read: No such file or directory")
    token.write_text("two words")
    assert "holds no token" in errors(REPO, "--quant", "Q8_0", "--token-file", str(token))[0]


def test_a_gated_repository_with_a_token_from_a_file(hub: Hub, run: Lock, tmp_path: Path) -> None:
    hub.add(REPO, files(tmp_path / "repo"), card=CARD, gated=True)
    (tmp_path / "token").write_text(f"{hub.token}\n")
    code, _, said = run("add", REPO, "--quant", "Q8_0")
    assert code == 1
    assert "it is gated: accept the terms" in said
    assert run("add", REPO, "--quant", "Q8_0", "--token-file", str(tmp_path / "token"))[0] == 0


ANSWERS = [
    (Fault(status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"}), "the Hub refuses the token"),
    (Fault(status=403), "the Hub forbids it (403)"),
    (Fault(status=407), "the proxy asks for a login (407)"),
    (Fault(status=429, headers={"Retry-After": "37"}), "too many requests (429): wait 37 s"),
    (Fault(status=429, headers={"RateLimit": '"api";r=0;t=55'}), "too many requests (429): wait 55 s"),
    (Fault(status=429), "too many requests (429): wait some minutes"),
    (Fault(status=500), "the Hub has a fault of its own (500)"),
    (Fault(status=503), "the Hub has a fault of its own (503)"),
    (Fault(status=418), "the Hub answers 418"),
    (Fault(status=403, headers={"X-Error-Message": "Access to this resource is disabled."}), "the Hub has disabled it"),
    (Fault(status=404, headers={"X-Error-Code": "RevisionNotFound"}), "it has no such revision, or no longer"),
    (Fault(status=401, headers={"X-Error-Code": "GatedRepo"}), "it is gated: accept the terms"),
    (Fault(status=403, headers={"X-Error-Code": "GatedRepo"}), "it is gated and the token's account has no access"),
    (portal(), "what answers is not the Hub but a page"),
    (Fault(status=200, body=b"[]"), "what answers is not the Hub but a page"),
    (Fault(status=200, body=b'{"id": "a/b"}'), "what answers is not the Hub, as it names no commit"),
    (Fault(cut_after=100), "the connection to the Hub broke"),
]


@pytest.mark.parametrize(("fault", "said"), ANSWERS)
def test_each_failure_has_its_sentence(hub: Hub, commit: str, fault: Fault, said: str) -> None:
    hub.faults.append(fault)
    with pytest.raises(product.HubError) as caught:
        product.repository(REPO, "main")
    assert str(caught.value).startswith(f"{REPO}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_none_and_a_repository_that_is_not_there(hub: Hub) -> None:
    with pytest.raises(product.HubError, match="there is no such repository, or it is private"):
        product.repository("no/such", "main")
    with pytest.raises(product.HubError, match="that is no name of a repository"):
        product.repository("a/b/c", "main")


def test_networks_that_do_not_let_through(hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As processes, because the client keeps its connections: a port where nothing listens, a proxy that refuses to tunnel."""

    def said(**env: str) -> str:
        script = f"from wsllama import hub\ntry: hub.repository({REPO!r}, 'main')\nexcept hub.HubError as e: print(e)"
        ran = subprocess.run([sys.executable, "-c", script], env={**os.environ, **env}, capture_output=True, text=True, cwd=ROOT)
        assert ran.stderr == ""
        return ran.stdout

    assert f"{REPO} at main: the Hub can't be reached (" in said(HF_ENDPOINT="http://127.0.0.1:9")
    refusing = said(HF_ENDPOINT="https://hub.example", HTTPS_PROXY=hub.url, https_proxy=hub.url, NO_PROXY="", no_proxy="")
    assert f"{REPO} at main: the proxy refuses (403" in refusing
    assert "HF_HUB_OFFLINE is set" in said(HF_HUB_OFFLINE="1")


def test_a_header_survives_cuts(hub: Hub, commit: str) -> None:
    found = product.repository(REPO, "main")
    hub.faults.append(Fault("/cdn/", times=2, cut_after=500))
    header = product.header(found, "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf")
    assert header.architecture == "qwen35moe"
    assert [status for _, path, status in hub.requests if path.startswith("/cdn/")] == [206, 206, 206]
    hub.faults.append(Fault("/cdn/", cut_after=0))
    with pytest.raises(product.HubError, match="the connection to the Hub broke"):
        product.header(found, "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf")


def test_a_mirror_without_ranges_is_refused_before_the_file_comes(hub: Hub, commit: str) -> None:
    found = product.repository(REPO, "main")
    hub.faults.append(Fault("/cdn/", status=206, body=b"GGUF" * 1000))
    with pytest.raises(product.HubError, match="gives no parts of files"):
        product.header(found, "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf")
    hub.faults[0] = Fault("/resolve/", status=200, body=b"<!doctype html><p>Sign in")
    with pytest.raises(product.HubError, match="gives no parts of files"):
        product.header(found, "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf")
    hub.faults[0] = portal("/resolve/")
    with pytest.raises(product.HubError, match="what answers is not the Hub but a page"):
        product.header(found, "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf")
