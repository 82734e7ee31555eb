"""The lab's Hub as the real client sees it: nothing in the client is patched, only its endpoint is another."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, errors, get_hf_file_metadata, hf_hub_url

from lab.hub import Fault, Hub, portal

REPO = "unsloth/Model-GGUF"
BIG = bytes(range(256)) * 12_000  # 3 072 000 bytes


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(page=2) as hub:
        yield hub


@pytest.fixture
def commit(hub: Hub) -> str:
    files = {"README.md": b"# Model\n", "model-Q4_K_M.gguf": BIG, "sub/a.txt": b"a", "sub/b.txt": b"b"}
    return hub.add(REPO, files, card={"license": "apache-2.0", "base_model": "Qwen/Qwen3.6-35B-A3B"})


@pytest.fixture
def api(hub: Hub) -> HfApi:
    return HfApi(endpoint=hub.url, token=False)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_model_info(hub: Hub, commit: str, api: HfApi) -> None:
    info = api.model_info(REPO, revision="main", files_metadata=True)
    assert (info.sha, info.gated, info.card_data and info.card_data.license) == (commit, False, "apache-2.0")
    assert {f.rfilename: (f.size, f.lfs and f.lfs.sha256) for f in info.siblings or []} == {
        "README.md": (8, None),
        "model-Q4_K_M.gguf": (len(BIG), sha256(BIG)),
        "sub/a.txt": (1, None),
        "sub/b.txt": (1, None),
    }


def test_tree_comes_in_pages(hub: Hub, commit: str, api: HfApi) -> None:
    entries = list(api.list_repo_tree(REPO, revision=commit, recursive=True))
    assert [entry.path for entry in entries] == ["README.md", "model-Q4_K_M.gguf", "sub", "sub/a.txt", "sub/b.txt"]
    assert len([path for _, path, _ in hub.requests if "/tree/" in path]) == 3
    assert [entry.path for entry in api.list_repo_tree(REPO, "sub")] == ["sub/a.txt", "sub/b.txt"]
    assert [entry.path for entry in api.list_repo_tree(REPO)] == ["README.md", "model-Q4_K_M.gguf", "sub"]
    (found,) = api.get_paths_info(REPO, ["model-Q4_K_M.gguf", "none"])
    assert getattr(found, "lfs").sha256 == sha256(BIG)  # noqa: B009 - of RepoFile only
    blob = subprocess.run(["git", "hash-object", "--stdin"], input=b"# Model\n", capture_output=True, check=True).stdout
    assert getattr(entries[0], "blob_id") == blob.decode().strip()  # noqa: B009


def test_metadata_of_a_file(hub: Hub, commit: str) -> None:
    found = get_hf_file_metadata(hf_hub_url(REPO, "model-Q4_K_M.gguf", endpoint=hub.url))
    assert (found.commit_hash, found.etag, found.size) == (commit, sha256(BIG), len(BIG))
    assert found.location.startswith(hub.cdn)
    small = get_hf_file_metadata(hf_hub_url(REPO, "README.md", endpoint=hub.url))
    assert (small.commit_hash, small.size, small.location.startswith(hub.url)) == (commit, 8, True)


def test_download(hub: Hub, commit: str, api: HfApi, tmp_path: Path) -> None:
    path = api.hf_hub_download(REPO, "model-Q4_K_M.gguf", revision=commit, local_dir=tmp_path)
    assert Path(path).read_bytes() == BIG
    assert hub.sent[REPO, "model-Q4_K_M.gguf"] == len(BIG)
    folder = api.snapshot_download(REPO, revision=commit, local_dir=tmp_path / "all")
    assert (Path(folder) / "sub/b.txt").read_bytes() == b"b"


def test_a_cut_is_resumed(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    """The client writes 10 MiB at a time, and goes on after the last whole piece."""
    hub.add(REPO, {"long.gguf": BIG * 4})
    hub.faults.append(Fault("/cdn/", times=1, cut_after=11 << 20))
    assert Path(api.hf_hub_download(REPO, "long.gguf", local_dir=tmp_path)).read_bytes() == BIG * 4
    assert [status for _, where, status in hub.requests if where.startswith("/cdn/")] == [200, 206]
    assert hub.sent[REPO, "long.gguf"] == (11 << 20) + 4 * len(BIG) - (10 << 20)


def test_a_flipped_byte_is_not_noticed_by_the_client(hub: Hub, commit: str, api: HfApi, tmp_path: Path) -> None:
    hub.faults.append(Fault("/cdn/", flip_at=2_000_000))
    data = Path(api.hf_hub_download(REPO, "model-Q4_K_M.gguf", local_dir=tmp_path)).read_bytes()
    assert [at for at, (ours, theirs) in enumerate(zip(data, BIG, strict=True)) if ours != theirs] == [2_000_000]


def test_gated_and_private(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPO, {"a.gguf": b"GGUF"}, gated=True)
    hub.add("some/private", {"a.gguf": b"GGUF"}, private=True)

    def get(repo: str, token: str | bool) -> tuple[str, int]:
        try:
            HfApi(endpoint=hub.url, token=token).hf_hub_download(repo, "a.gguf", local_dir=tmp_path / repo / str(token))
        except errors.GatedRepoError as e:
            return "gated", e.response.status_code
        except errors.RepositoryNotFoundError as e:
            return "none", e.response.status_code
        return "given", 200

    assert HfApi(endpoint=hub.url, token=False).model_info(REPO).gated == "manual"
    assert [get(REPO, token) for token in (False, hub.stranger, hub.token)] == [("gated", 401), ("gated", 403), ("given", 200)]
    assert [get("some/private", token) for token in (False, hub.stranger, hub.token)] == [
        ("none", 401),
        ("none", 404),
        ("given", 200),
    ]


def test_what_is_not_there(hub: Hub, commit: str, api: HfApi, tmp_path: Path) -> None:
    with pytest.raises(errors.RevisionNotFoundError):
        api.model_info(REPO, revision="0" * 40)
    with pytest.raises(errors.RepositoryNotFoundError):
        api.model_info("no/such")
    with pytest.raises(errors.RemoteEntryNotFoundError):
        api.hf_hub_download(REPO, "none.gguf", local_dir=tmp_path)


def test_a_renamed_repository(hub: Hub, commit: str, api: HfApi, tmp_path: Path) -> None:
    hub.moved["old/name"] = REPO
    assert api.model_info("old/name").id == REPO
    assert Path(api.hf_hub_download("old/name", "model-Q4_K_M.gguf", local_dir=tmp_path)).read_bytes() == BIG


def test_faults_end(hub: Hub, commit: str, api: HfApi) -> None:
    hub.faults += [Fault("/api/", times=2, status=503), portal("/api/models/")]
    for _ in range(2):
        with pytest.raises(errors.HfHubHTTPError) as caught:
            api.model_info(REPO)
        assert caught.value.response.status_code == 503
    with pytest.raises(ValueError, match="Expecting value"):
        api.model_info(REPO)
    hub.faults.clear()
    assert api.model_info(REPO).sha == commit


def test_without_hashes(hub: Hub, api: HfApi) -> None:
    hub.add(REPO, {"a.gguf": BIG}, hashes=False)
    (file,) = api.list_repo_tree(REPO)
    assert getattr(file, "lfs") is None  # noqa: B009


def test_as_a_program_and_as_a_proxy(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    server = subprocess.Popen([sys.executable, "-m", "lab.hub", "own/er", tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        said = server.stdout.readline()
        url = said.split()[0].removeprefix("HF_ENDPOINT=")
        script = "from huggingface_hub import HfApi; print(HfApi(token=False).model_info('own/er').sha)"
        env = {**os.environ, "HF_ENDPOINT": "http://hub.example", "http_proxy": url, "HTTP_PROXY": url, "NO_PROXY": ""}
        ran = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
        assert ran.stdout.strip() == said.split()[-1], ran.stderr
    finally:
        server.terminate()
        server.wait()
