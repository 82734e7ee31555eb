"""A bundle is made of small files here, then damaged in every way; the real one is made and used in the lab."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from lab.hub import Fault, Hub
from tests.unit import small_gguf
from tests.unit.made_wheels import release
from tests.unit.test_cli import wsllama
from wsllama import artifacts, bundle, bundle_maker, digest, lock, sources, transfer, wheels
from wsllama.bundle import BundleError
from wsllama.bundle_maker import Maker
from wsllama.domain import bom
from wsllama.host import debs
from wsllama.operations.base import Refused
from wsllama.settings import LOCK, Settings, local_problems, parse

PIN = lock.load(LOCK).llama_cpp
DEB = "hello_1%3a2.10-3_amd64.deb"
STANZA = """\
Package: hello
Version: 1:2.10-3
Architecture: amd64
Maintainer: me
Filename: pool/h/{file}
Phased-Update-Percentage: 10
Size: {size}
SHA256: {sha256}"""
ID = "0123456789abcdef"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fill(maker: Maker, tmp_path: Path) -> None:
    """A package with its index, a model, a build, and something that stands for the source."""
    data = b"a package" * 1000
    found = {"file": DEB, "sha256": sha256(data), "size": len(data), "package": "hello", "version": "1:2.10-3"}
    found |= {"architecture": "amd64", "stanza": STANZA.format(**found)}
    with bundle_maker._Split(maker, "debs/debian-12", [found]) as out:
        for at in range(0, len(data), 4000):
            out.write(data[at : at + 4000])
    maker.listed("debian-12", [found])
    (tmp_path / "sdist").write_bytes(b"a source")
    maker.copy(tmp_path / "sdist", f"sources/{sources.sdist_name(PIN)}", "source", sha256(b"a source"))
    hold(ID)
    maker.build(ID)


def hold(build_id: str) -> None:
    """Put something that stands for a build into the cache."""
    record = {"build_id": build_id, "commit": PIN.commit, "version": "7", "files": {"bin/x": {"size": 5, "sha256": "ab"}}}

    def bring(out: BinaryIO) -> dict[str, Any]:
        out.write(b"a build")
        return {"sha256": sha256(b"a build"), "size": 7, "record": record}

    artifacts.keep(build_id, bring)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    out = tmp_path / "bundle"
    maker = Maker(out, LOCK, print)
    fill(maker, tmp_path)
    report = maker.finish()
    assert report["changed"]
    assert report["distros"] == ["debian-12"]
    return out


def test_it_opens_and_every_file_is_listed_with_its_sum(made: Path) -> None:
    found = bundle.opened(made, LOCK)
    there = {str(p.relative_to(made)): sha256(p.read_bytes()) for p in made.rglob("*") if p.is_file()}
    del there["manifest.json"]
    assert {name: entry.sha256 for name, entry in found.manifest.files.items()} == there
    assert all(found.file(name).is_file() for name in there)
    assert found.wrong(list(there)) == []
    index = (made / "debs/debian-12/Packages").read_text()
    assert f"Filename: ./{DEB}\nSize: 9000\n" in index  # and no word of phases
    assert not list(made.rglob(".*"))


def test_made_again_it_is_the_same_and_nothing_is_written(made: Path, tmp_path: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in made.rglob("*") if p.is_file() and p.suffix != ".deb"}
    maker = Maker(made, LOCK, print)
    fill(maker, tmp_path)
    assert not maker.finish()["changed"]
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_what_is_no_longer_needed_is_removed_and_what_is_not_ours_stays(made: Path) -> None:
    (made / "debs" / "mine.txt").write_text("mine")
    assert Maker(made, LOCK, print).finish()["changed"]
    assert sorted(str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()) == [
        "bom.json",
        "debs/mine.txt",
        "manifest.json",
    ]


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(BundleError, match=r"photos holds cat\.png, so it is no bundle: give a new or empty folder"):
        Maker(tmp_path / "photos", LOCK, print)


def test_the_command_says_why_it_can_t_make_one(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    good = '"platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}'
    (tmp_path / "here").write_text(f'desks = [("@local", {{{good}}})]\n')
    p = wsllama("bundle", tmp_path / "here", tmp_path / "photos", "--json")
    assert (p.returncode, json.loads(p.stdout)["ok"]) == (1, False)
    assert "photos holds cat.png, so it is no bundle" in p.stderr
    p = wsllama("bundle", tmp_path / "here", tmp_path / "new", "--with-model")
    assert p.returncode == 1
    assert p.stderr.startswith("@local: the model is on the host (/srv/a.gguf): give its name in wsllama.lock")
    assert not (tmp_path / "new").exists()
    (tmp_path / "far").write_text(f'desks = [("desk-1", {{{good}, "ssh_hostname": "127.0.0.1", "ssh_port": 9}})]\n')
    p = wsllama("bundle", tmp_path / "far", tmp_path / "new")
    assert p.returncode == 4
    assert "desk-1 can't be reached" in p.stderr
    assert not (tmp_path / "new").exists()


def test_a_damaged_file_is_brought_again(made: Path, tmp_path: Path) -> None:
    path = made / "sources" / sources.sdist_name(PIN)
    path.write_bytes(b"b source")
    maker = Maker(made, LOCK, print)
    fill(maker, tmp_path)
    assert path.read_bytes() == b"a source"


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:5] + bytes([data[5] ^ 1]) + data[6:])


def rewritten(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    change(manifest)
    (out / "manifest.json").write_text(json.dumps(manifest))


def problem(out: Path) -> str:
    """What the guard says of settings that name this bundle."""
    said = {"llama_cpp": {"source": "bundle"}, "bundle": {"path": str(out)}, "model": {"path": "/m.gguf", "on": "host"}}
    settings, errors = parse({"platform": "linux", **said})
    assert settings, errors
    found = local_problems(settings)
    assert len(found) == 1, found
    return found[0]


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "none": (lambda out: (out / "manifest.json").unlink(), "there is no bundle in {out}, because {out}/manifest.json is missing"),
    "no folder": (shutil.rmtree, "there is no bundle in {out}"),
    "json": (lambda out: (out / "manifest.json").write_text("{"), "{out}/manifest.json is wrong at its start ("),
    "version": (lambda out: rewritten(out, lambda m: m.update(version=2)), "{out}/manifest.json is wrong at version ("),
    "lock": (
        lambda out: rewritten(out, lambda m: m.update(lock="0" * 64)),
        "the bundle {out} was made with another wsllama.lock than",
    ),
    "outside": (
        lambda out: rewritten(out, lambda m: m["files"].update({"../x": m["files"]["bom.json"]})),
        "{out}/manifest.json is wrong at files.../x",
    ),
    "missing": (
        lambda out: (out / "debs/debian-12" / DEB).unlink(),
        "{out}/debs/debian-12/" + DEB + " is in the bundle's manifest and can't be read (No such file",
    ),
    "cut": (
        lambda out: (out / "debs/debian-12" / DEB).write_bytes(b"a pack"),
        "{out}/debs/debian-12/" + DEB + " has 6 bytes where the bundle's manifest has 9000: make it again",
    ),
    "index": (lambda out: flip(out / "debs/debian-12/Packages"), "{out}/debs/debian-12/Packages has sha256 "),
    "bill": (lambda out: flip(out / "bom.json"), "{out}/bom.json has sha256 "),
}


@pytest.mark.parametrize("how", WRONG)
def test_the_guard_names_what_is_wrong(made: Path, how: str) -> None:
    damage, sentence = WRONG[how]
    damage(made)
    assert problem(made).startswith("bundle.path: " + sentence.format(out=made))


def test_a_flipped_byte_in_a_large_file_is_named_when_it_is_used(made: Path) -> None:
    names = [f"debs/debian-12/{DEB}", f"sources/{sources.sdist_name(PIN)}", f"builds/{ID}.tar.gz"]
    found = bundle.opened(made, LOCK)
    for name in names:
        flip(made / name)
        with pytest.raises(BundleError, match=r"has sha256 \w+ where the bundle's manifest has \w+: make it again") as e:
            found.file(name)
        assert str(e.value).startswith(f"{made / name} has ")
    assert len(found.wrong(list(found.manifest.files))) == 3
    with pytest.raises(BundleError, match=r"holds no wheels/x\.whl"):
        found.file("wheels/x.whl")


def test_only_both_settings_together() -> None:
    model = {"model": {"path": "/m.gguf"}}
    for data in ({"llama_cpp": {"source": "bundle"}}, {"bundle": {"path": "/b"}}):
        _, errors = parse({**model, **data})
        assert errors == ["settings: llama_cpp.source bundle and bundle.path belong together: set both or neither"]
    other = {
        "llama_cpp": {"source": "bundle", "commit": "0" * 40},
        "bundle": {"path": "/nowhere"},
        "model": {"path": "/m", "on": "host"},
    }
    settings, _ = parse(other)
    assert settings
    assert any("a bundle holds " in said for said in local_problems(settings))


def test_the_source_comes_from_a_file_without_an_index(tmp_path: Path) -> None:
    """The lock decides, whatever the manifest says."""
    other = tmp_path / "other.tar.gz"
    other.write_bytes(b"another source")
    with pytest.raises(sources.SourceError, match=f"has sha256 {sha256(b'another source')}, the lock has {PIN.sdist.sha256}"):
        sources.fetch(PIN, "sdist", sdist=other, environment={"PIP_INDEX_URL": "http://127.0.0.1:9/simple"})


def test_wheels_are_taken_with_their_licences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = release(tmp_path / "index")
    maker = Maker(tmp_path / "out", LOCK, print)
    monkeypatch.setattr(wheels, "pinned", lambda cuda, name: pin)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index"), "PIP_CONFIG_FILE": os.devnull}
    maker.cuda("13.0", offline)
    shutil.rmtree(tmp_path / "cache")
    again = Maker(tmp_path / "out", LOCK, print)
    again.cuda("13.0", {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull})
    assert (again.fetched, again.files) == (0, maker.files)
    assert {f"wheels/{w.file}": w.sha256 for w in pin.packages.values()} == {n: e.sha256 for n, e in again.files.items()}
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr("x-1.dist-info/METADATA", "Name: x\nLicense-Expression: LicenseRef-NVIDIA-Proprietary\n")
    assert bundle_maker._licence(tmp_path / "x.whl") == "LicenseRef-NVIDIA-Proprietary"


def test_a_stream_with_a_wrong_byte_leaves_nothing(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "out", LOCK, print)
    files = [
        {"file": "a_1_all.deb", "sha256": sha256(b"aaa"), "size": 3},
        {"file": "b_1_all.deb", "sha256": sha256(b"bbb"), "size": 3},
    ]
    with (
        pytest.raises(transfer.TransferError, match=r"b_1_all\.deb came with other bytes"),
        bundle_maker._Split(maker, "d", files) as out,
    ):
        out.write(b"aaabbx")
    assert [p.name for p in (tmp_path / "out" / "d").iterdir()] == ["a_1_all.deb"]


# The bill of materials


def test_the_bill_is_the_same_for_the_same_content() -> None:
    parts = [bom.component("library", name, "1", bom.of_pypi(name, "1"), licence="MIT") for name in ("b", "a")]
    text = bom.document("x", parts)
    assert text == bom.document("x", reversed(parts))
    assert text != bom.document("x", parts[:1])
    whole = json.loads(text)
    assert (whole["bomFormat"], whole["specVersion"]) == ("CycloneDX", "1.6")
    assert [c["name"] for c in whole["components"]] == ["a", "b"]
    assert whole["serialNumber"] != json.loads(bom.document("x", parts[:1]))["serialNumber"]


def test_package_urls() -> None:
    deb = bom.of_deb("debian-12", "libc6", "2.36-9+deb12u10", "amd64")
    assert deb == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12"
    assert bom.of_deb("ubuntu-24.04", "git", "1:2.43", "amd64").startswith("pkg:deb/ubuntu/git@1%3A2.43?")
    assert bom.of_pypi("Nvidia_nvvm", "13.0") == "pkg:pypi/nvidia-nvvm@13.0"
    assert bom.of_git("https://github.com/Some/Thing.git", "0" * 40) == f"pkg:github/some/thing@{'0' * 40}"
    assert bom.of_git("https://example.org/x.git", "1").startswith("pkg:generic/x.git@1?vcs_url=git%2Bhttps")


def test_the_bill_names_what_is_in_the_bundle(made: Path) -> None:
    whole = json.loads((made / "bom.json").read_text())
    found = {c["name"]: c for c in whole["components"]}
    assert found["hello"]["purl"] == "pkg:deb/debian/hello@1%3A2.10-3?arch=amd64&distro=debian-12"
    assert found["hello"]["hashes"] == [{"alg": "SHA-256", "content": sha256(b"a package" * 1000)}]
    assert f"llama.cpp build {ID}" in found


# What runs on a host

INDEX = """\
Package: one
Version: 1
Architecture: all
Maintainer: me
Depends: {depends}
Filename: ./one_1_all.deb
Size: 3
SHA256: {sha256}

Package: two
Version: 2
Architecture: all
Maintainer: me
Filename: ./two_2_all.deb
Size: 3
SHA256: {sha256}
"""
needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt here")


@needs_apt
def test_apt_plans_with_the_bundle_alone() -> None:
    index = INDEX.format(depends="two (>= 2)", sha256="0" * 64)
    assert sorted(debs.plan({"index": index, "packages": ["one"]})["files"]) == ["one_1_all.deb", "two_2_all.deb"]


@needs_apt
def test_what_the_bundle_lacks_is_named() -> None:
    index = INDEX.format(depends="two (>= 3)", sha256="0" * 64)
    with pytest.raises(
        debs.AptError, match=r"one of the bundle depends on two \(>= 3\), but it is not going to be installed: make the bundle"
    ):
        debs.plan({"index": index, "packages": ["one"]})
    with pytest.raises(debs.AptError, match="Unable to locate package three"):
        debs.plan({"index": index, "packages": ["three"]})


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("one_1_all.deb", b"two", "one_1_all.deb came with other bytes"),
        ("../one.deb", b"one", "'../one.deb', which is no package"),
    ],
)
def test_only_what_the_index_names_is_taken(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    archive = tmp_path / "debs.tar"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    (tmp_path / "to").mkdir()
    with pytest.raises(debs.AptError, match=sentence):
        debs.unpack(str(archive), str(tmp_path / "to"), INDEX.format(depends="two", sha256=sha256(b"one")))
    argument = {"action": "install", "archive": str(archive), "folder": str(tmp_path / "work"), "index": "", "packages": ["one"]}
    with pytest.raises(SystemExit):
        debs.main(argument)
    assert not archive.exists()
    assert not (tmp_path / "work").exists()


# A model of the lock


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with a model and a projector, which `models.lock` has."""
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        files = {
            f"{MODEL}.gguf": small_gguf.model(tmp_path / "m.gguf"),
            "mmproj-F16.gguf": small_gguf.projector(tmp_path / "p.gguf"),
        }
        hub.add(REPO, {**files}, card={"license": "apache-2.0", "base_model": "Qwen/Qwen3.6-35B-A3B"})
        shutil.copy(LOCK, tmp_path / "models.lock")
        assert wsllama("lock", "add", REPO, "--quant", "Q8_0", "--lock", tmp_path / "models.lock").returncode == 0
        hub.sent.clear()
        yield hub


REPO, MODEL = "unsloth/Qwen3.6-35B-A3B-GGUF", "Qwen3.6-35B-A3B-Q8_0"


def of_lock(tmp_path: Path, **more: Any) -> Settings:
    found, wrong = parse({"platform": "linux", "model": {"name": MODEL, "lock_file": str(tmp_path / "models.lock"), **more}})
    assert found, wrong
    return found


def bundled(tmp_path: Path, out: Path, settings: Settings) -> dict[str, str]:
    """Name -> sha256 of the models in a bundle that is made for these settings."""
    wanted, maker = bundle_maker.Wanted(), Maker(out, LOCK, print)
    bundle_maker._want_model(wanted, settings)
    bundle_maker.bring_models(wanted, maker)
    maker.finish()
    return {name: entry.sha256 for name, entry in bundle.opened(out, LOCK).manifest.files.items() if entry.kind == "model"}


def test_a_model_of_the_lock_is_brought_by_its_name(hub: Hub, tmp_path: Path) -> None:
    """Downloaded as a mirror does it, once; a host that takes it from the bundle looks for it there."""
    sums = {path.name: sha256(path.read_bytes()) for path in (tmp_path / "m.gguf", tmp_path / "p.gguf")}
    assert bundled(tmp_path, tmp_path / "one", of_lock(tmp_path)) == {f"models/{MODEL}.gguf": sums["m.gguf"]}
    size = (tmp_path / "m.gguf").stat().st_size
    assert hub.sent == {(REPO, f"{MODEL}.gguf"): size}
    with_projector = {f"models/{MODEL}.gguf": sums["m.gguf"], "models/mmproj-F16.gguf": sums["p.gguf"]}
    assert bundled(tmp_path, tmp_path / "two", of_lock(tmp_path, mmproj=True)) == with_projector
    assert hub.sent[REPO, f"{MODEL}.gguf"] == size
    data = {"llama_cpp": {"source": "bundle"}, "bundle": {"path": str(tmp_path / "two")}, "platform": "linux"}
    offline, wrong = parse({**data, "model": {**of_lock(tmp_path).model.model_dump(), "source": "bundle", "mmproj": True}})
    assert offline, wrong
    assert local_problems(offline) == []


def test_a_model_that_this_machine_has_is_not_downloaded(hub: Hub, tmp_path: Path) -> None:
    """Wherever it lies and whatever it is called, as its sum is known."""
    digest.sha256_of(tmp_path / "p.gguf")
    digest.sha256_of(tmp_path / "m.gguf")
    assert len(bundled(tmp_path, tmp_path / "one", of_lock(tmp_path, mmproj=True))) == 2
    given = of_lock(tmp_path, path=str(tmp_path / "m.gguf"))
    assert list(bundled(tmp_path, tmp_path / "two", given)) == [f"models/{MODEL}.gguf"]
    assert not hub.sent
    os.utime(tmp_path / "m.gguf")
    assert bundled(tmp_path, tmp_path / "three", of_lock(tmp_path))
    assert hub.sent


def test_a_model_of_the_lock_that_can_not_be_had(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [Fault(status=503)]
    with pytest.raises(BundleError, match=r"the Hub has a fault of its own \(503\)"):
        bundled(tmp_path, tmp_path / "one", of_lock(tmp_path))
    on_host = parse({"platform": "linux", "model": {"path": "/srv/a.gguf", "on": "host"}})[0]
    assert on_host
    with pytest.raises(Refused, match=r"the model is on the host \(/srv/a.gguf\): give its name in wsllama.lock"):
        bundled(tmp_path, tmp_path / "two", on_host)
