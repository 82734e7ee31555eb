"""`wsllama lock`: which models are pinned, and pinning them by what the Hub says, without downloading one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from wsllama import hub, lock
from wsllama.commands.common import FAILED, ROOT, Json
from wsllama.domain import gguf, gguf_audit, model_policy, models

app = typer.Typer(no_args_is_help=True, help="Show and pin models in wsllama.lock.", rich_markup_mode=None)

CODES = "Exit codes: 0 done, 1 something is refused, differs or can't be read, or was written and can't be installed."
ADD_EPILOG = f"""\b
Examples:
  wsllama lock add unsloth/Qwen3.6-35B-A3B-GGUF --quant UD-Q4_K_M
  wsllama lock add bartowski/Qwen_Qwen3.6-35B-A3B-GGUF --quant Q4_K_M --quant Q6_K --revision main

{CODES}"""

LockFile = Annotated[Path, typer.Option("--lock", metavar="FILE", help="Another lock file.", show_default=False)]
TokenFile = Annotated[Path | None, typer.Option("--token-file", metavar="FILE", help="File with a token of the Hub.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Names in the lock; without: all.")]
Revision = Annotated[str | None, typer.Option("--revision", metavar="R", help="Branch, tag or commit.")]
Unofficial = Annotated[bool, typer.Option("--allow-unofficial", help="Let pass what says that its limits were removed.")]
Publisher = Annotated[list[str] | None, typer.Option("--publisher", metavar="NAME", help="Allow this one too; may be repeated.")]
Licence = Annotated[list[str] | None, typer.Option("--licence", metavar="ID", help="Allow this one too; may be repeated.")]
DEFAULT = ROOT / "wsllama.lock"
Policy = Callable[[model_policy.Claim], list[str]]


class Refused(Exception):
    """One sentence or more, a line each."""


@app.command(epilog=f"Example: wsllama lock show. {CODES}", short_help="Show the pinned models.")
def show(file: LockFile = DEFAULT, as_json: Json = False) -> None:
    """Show the pinned models as a table."""
    held = _guarded(lambda: lock.load(file), as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "models": {name: _described(name, pin) for name, pin in held.models.items()}}))
        return
    for repo, revision in sorted({(pin.repo, pin.revision) for pin in held.models.values()}):
        typer.echo(f"{repo} at {revision}")
        of_it = {name: pin for name, pin in held.models.items() if (pin.repo, pin.revision) == (repo, revision)}
        for name, pin in sorted(of_it.items(), key=lambda item: item[1].bytes):
            typer.echo(_row(name, pin))
    typer.echo("~: no source for the size. A model without a sha256 is not installed before `wsllama lock update` has read it.")


def _row(name: str, pin: lock.ModelPin) -> str:
    size = f"{'~' if any(file.bytes_from == 'estimated' for file in pin.files) else ''}{pin.bytes / 2**30:.2f} GiB"
    sums = {file.sha256_from or "none" for file in pin.files}
    tensors = "read" if pin.summary else "estimated"
    return f"  {name:<34} {size:>10}  sha256 {'/'.join(sorted(sums)):<11}  tensors {tensors}"


@app.command(epilog=ADD_EPILOG, short_help="Pin quants of a repository.")
def add(
    repo: Annotated[str, typer.Argument(metavar="REPO", help="owner/name on the Hub.")],
    quant: Annotated[list[str] | None, typer.Option(metavar="Q", help="As in Q4_K_M; repeated for more.")] = None,
    revision: Revision = None,
    name: Annotated[str | None, typer.Option("--name", help="Its name in the lock, of one quant.")] = None,
    mmproj: Annotated[str | None, typer.Option(metavar="PATH", help="Projector in the repository, or none.")] = None,
    allow_unofficial: Unofficial = False,
    publisher: Publisher = None,
    licence: Licence = None,
    token_file: TokenFile = None,
    file: LockFile = DEFAULT,
    as_json: Json = False,
) -> None:
    """Pin quants of a repository: revision, sizes, sha256 and the header's summary."""
    policy = _policy(allow_unofficial, publisher, licence)

    def work() -> dict[str, Any]:
        lock.load(file)  # a wrong one is said before the Hub is asked
        if name is not None and not lock.NAME.fullmatch(name):
            raise Refused(
                f"{name!r} can't be a name in the lock: take letters, digits, '.', '_' and '-', a letter or digit first"
            )
        if name and len(quant or []) > 1:
            raise Refused("--name is for one quant: give one --quant")
        token = token_in(token_file)
        found = hub.repository(repo, revision or "main", token)
        pins = {}
        for wanted in _wanted(found, quant or []):
            pins[name or models.name_of(found.repo, wanted)] = _pin(found, wanted, mmproj, token, policy)
        return _saved(file, pins, new=True)

    _report(_guarded(work, as_json), as_json)


@app.command(epilog=f"Example: wsllama lock update Qwen3.6-35B-A3B-UD-Q4_K_M. {CODES}", short_help="Read pinned models again.")
def update(
    names: Names = None,
    revision: Revision = None,
    allow_unofficial: Unofficial = False,
    publisher: Publisher = None,
    licence: Licence = None,
    token_file: TokenFile = None,
    file: LockFile = DEFAULT,
    as_json: Json = False,
) -> None:
    """Read pinned models again, at their revision or another, and complete what was not known.

    A sha256 that was read from the Hub never changes at a revision; one that does is refused.
    """
    policy = _policy(allow_unofficial, publisher, licence)

    def work() -> dict[str, Any]:
        token, read = token_in(token_file), _Repositories()
        pins, problems, notes = {}, [], []
        for name, pin in _chosen(lock.load(file), names):
            try:
                found = read(pin.repo, revision or pin.revision, token)
                pins[name] = _again(name, pin, found, token, policy)
            except (Refused, hub.HubError) as e:
                problems += [f"{name}: {sentence}" for sentence in str(e).splitlines()]
            else:
                notes += _differences(name, pin, found, of="transcribed") if found.revision == pin.revision else []
        saved = _saved(file, pins, new=False)
        return {**saved, "ok": saved["ok"] and not problems, "errors": [*problems, *saved["errors"]], "notes": notes}

    _report(_guarded(work, as_json), as_json)


def _again(name: str, pin: lock.ModelPin, found: hub.Repository, token: str | None, policy: Policy) -> lock.ModelPin:
    """The pin as the Hub has it now. At the same revision what was read from the Hub can't have changed."""
    if found.revision == pin.revision and (wrong := _differences(name, pin, found, of="hub")):
        raise Refused("\n".join(sentence.removeprefix(f"{name}: ") for sentence in wrong))
    kept = pin.mmproj.path if pin.mmproj else "none"
    return _pin(found, _quant(found, pin.quant), kept if kept == "none" or kept in found.files else None, token, policy)


@app.command(epilog=f"Example: wsllama lock check. {CODES}", short_help="Hold pinned models against the Hub.")
def check(names: Names = None, token_file: TokenFile = None, file: LockFile = DEFAULT, as_json: Json = False) -> None:
    """Hold pinned models against the Hub at their revision; changes nothing."""

    def work() -> dict[str, Any]:
        token, read = token_in(token_file), _Repositories()
        problems, checked = [], []
        for name, pin in _chosen(lock.load(file), names):
            checked.append(name)
            try:
                problems += _differences(name, pin, read(pin.repo, pin.revision, token))
            except hub.HubError as e:
                problems.append(f"{name}: {e}")
            if refusal := pin.refusal(name):
                problems.append(refusal)
        return {"ok": not problems, "checked": checked, "problems": list(dict.fromkeys(problems))}

    found = _guarded(work, as_json)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for sentence in found["problems"]:
            typer.echo(sentence, err=True)
        count = len(found["checked"])
        typer.echo(f"{count} model{'s' if count != 1 else ''} checked, {len(found['problems'])} problems")
    raise typer.Exit(0 if found["ok"] else FAILED)


class _Repositories:
    """Repositories that were read in this run, each once."""

    def __init__(self) -> None:
        self.read: dict[tuple[str, str], hub.Repository | hub.HubError] = {}

    def __call__(self, repo: str, revision: str, token: str | None) -> hub.Repository:
        if (repo, revision) not in self.read:
            try:
                self.read[repo, revision] = hub.repository(repo, revision, token)
            except hub.HubError as e:
                self.read[repo, revision] = e
        found = self.read[repo, revision]
        if isinstance(found, hub.HubError):
            raise found
        return found


def _policy(allow_unofficial: bool, publishers: list[str] | None, licences: list[str] | None) -> Policy:
    return lambda claim: model_policy.refusals(
        claim,
        allow_unofficial,
        (*model_policy.PUBLISHERS, *(publishers or ())),
        (*model_policy.LICENCES, *(licences or ())),
    )


def token_in(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise Refused(f"the token file {file} can't be read: {getattr(e, 'strerror', None) or 'it is no text'}") from e
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Refused(f"the token file {file} holds no token: put one into it, as the Hub shows it")
    return token


def _wanted(found: hub.Repository, asked: list[str]) -> list[str]:
    """The quants that are asked for, by the repository's own names."""
    if not asked:
        raise Refused(f"{found.repo}: say which quant is meant with --quant: {_offer(found)}")
    return list(dict.fromkeys(_quant(found, quant) for quant in asked))


def _quant(found: hub.Repository, asked: str) -> str:
    has = models.quants(found.files)
    for name in (asked.upper(), f"UD-{asked.upper()}"):
        if name in has:
            return name
        if missing := models.missing_shards(found.files, name):
            raise Refused(f"{found.repo} at {found.revision[:12]} lacks shards of {name}: {', '.join(missing)}: take another")
    raise Refused(f"{found.repo} at {found.revision[:12]} has no quant {asked}: {_offer(found)}")


def _offer(found: hub.Repository) -> str:
    return f"there are {', '.join(models.quants(found.files)) or 'none, so it is no repository of GGUF files'}"


def _pin(found: hub.Repository, quant: str, mmproj: str | None, token: str | None, policy: Policy) -> lock.ModelPin:
    """What the Hub says of one quant; its headers are read, and the policy is asked."""
    paths = models.quants(found.files)[quant]
    projector = models.projector(found.files) if mmproj is None else None if mmproj == "none" else mmproj
    if projector is not None and projector not in found.files:
        raise Refused(f"{found.repo} has no file {projector}: give one of its mmproj files, or --mmproj none")
    headers = [hub.header(found, path, token) for path in paths]
    first, text = headers[0], hub.card_text(found, token)
    claim = model_policy.Claim(
        repo=found.repo,
        licence=found.licence,
        card_bases=found.bases,
        gguf_bases=model_policy.bases_of(first.metadata),
        names=(*paths, *found.names, *model_policy.names_of(first.metadata)),
        text=text,
    )
    if refused := policy(claim):
        raise Refused("\n".join(refused))
    files = [gguf_audit.File(path, found.files[path].size, read) for path, read in zip(paths, headers, strict=True)]
    beside = gguf_audit.File(projector, found.files[projector].size, hub.header(found, projector, token)) if projector else None
    if problems := gguf_audit.audit(files, paths[0], beside, any_size=True).problems:
        raise Refused("\n".join(f"{found.repo}/{problem}" for problem in problems))
    try:
        return _told(found, claim, quant, paths, projector, headers, text, token)
    except ValidationError as e:
        raise Refused(f"{found.repo} at {found.revision[:12]}: the lock can't hold what the Hub says: {lock.first(e)}") from e


def _told(found: hub.Repository, claim: model_policy.Claim, quant: str, paths: list[str], projector: str | None,
          headers: list[gguf.Header], text: str, token: str | None) -> lock.ModelPin:  # fmt: skip
    """The pin. Raises ValidationError."""
    by = headers[0].metadata.get("general.quantized_by")
    return lock.ModelPin(
        repo=found.repo,
        revision=found.revision,
        quant=quant,
        files=tuple(_file(found, path) for path in paths),
        mmproj=_file(found, projector) if projector else None,
        base_model=lock.BaseModelPin(repo=model_policy.BASE_MODEL, revision=hub.commit_of(model_policy.BASE_MODEL, token)),
        converter=lock.Converter(name=by if isinstance(by, str) else None, version=hub.converter_version(text)),
        licence=found.licence,
        publisher=claim.publisher,
        read=datetime.now(timezone.utc).date().isoformat(),
        summary=models.summary(headers),
    )


def _file(found: hub.Repository, path: str) -> lock.ModelFile:
    file = found.files[path]
    return lock.ModelFile(
        path=path,
        bytes=file.size,
        bytes_from="hub",
        sha256=file.sha256,
        sha256_from="hub" if file.sha256 else None,
        why_no_sha256=None if file.sha256 else "the Hub gave none for it",
    )


def _chosen(held: lock.Lock, names: list[str] | None) -> list[tuple[str, lock.ModelPin]]:
    unknown = [name for name in names or [] if name not in held.models]
    if unknown:
        raise Refused(f"the lock has no model {', '.join(unknown)}: it has {', '.join(sorted(held.models)) or 'none'}")
    return [(name, held.models[name]) for name in (names or sorted(held.models))]


def _differences(name: str, pin: lock.ModelPin, found: hub.Repository, of: str | None = None) -> list[str]:
    """Where the Hub says something else than the lock; `of`: only about what the lock has from there."""
    problems = []
    for file in (*pin.files, *((pin.mmproj,) if pin.mmproj else ())):
        theirs, where = found.files.get(file.path), f"{name}: {found.repo}/{file.path} at {pin.revision[:12]}"
        if theirs is None:
            problems.append(f"{where} is not there")
            continue
        if file.sha256 and theirs.sha256 and file.sha256 != theirs.sha256 and of in (None, file.sha256_from):
            problems.append(
                f"{where} has the sha256 {theirs.sha256} on the Hub and {file.sha256} in the lock ({file.sha256_from})"
                + (": don't install it" if file.sha256_from == "hub" else "")
            )
        if theirs.size != file.bytes and file.bytes_from != "estimated" and of in (None, file.bytes_from):
            problems.append(f"{where} has {theirs.size} bytes on the Hub and {file.bytes} in the lock ({file.bytes_from})")
    return problems


def _saved(file: Path, pins: dict[str, lock.ModelPin], new: bool) -> dict[str, Any]:
    """Put pins into the lock file as it is now; `new` ones don't take the name of another repository's."""
    with lock.changing(file):
        held = lock.load(file)
        taken = [name for name, pin in pins.items() if new and name in held.models and held.models[name].repo != pin.repo]
        if taken:
            raise Refused(f"the lock has another model named {taken[0]} ({held.models[taken[0]].repo}): give this one a --name")
        changed = [name for name, pin in pins.items() if held.models.get(name) != pin]
        if changed:
            lock.save(file, held.model_copy(update={"models": {**held.models, **pins}}))
    refusals = [refusal for name, pin in pins.items() if (refusal := pin.refusal(name))]
    described = {name: _described(name, pin) for name, pin in pins.items()}
    return {"ok": not refusals, "changed": changed, "models": described, "errors": refusals, "notes": []}


def _described(name: str, pin: lock.ModelPin) -> dict[str, Any]:
    """A pin as JSON, with what follows from it."""
    return {
        **pin.model_dump(mode="json"),
        "bytes": pin.bytes,
        "summary": asdict(pin.known_or_estimated),
        "estimated": pin.summary is None,
        "refusal": pin.refusal(name),
    }


def _report(done: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(done))
        raise typer.Exit(0 if done["ok"] else FAILED)
    for name, pin in done["models"].items():
        typer.echo(f"{name}: {'written' if name in done['changed'] else 'as it was'}, {pin['bytes'] / 2**30:.2f} GiB")
    for sentence in done["notes"]:
        typer.echo(f"corrected: {sentence}", err=True)
    for sentence in done["errors"]:
        typer.echo(f"refused: {sentence}", err=True)
    raise typer.Exit(0 if done["ok"] else FAILED)


def _guarded(work: Callable[[], Any], as_json: bool) -> Any:
    """What `work` returns; its refusals end the command."""
    try:
        return work()
    except (Refused, hub.HubError, lock.LockError) as e:
        _end(str(e).splitlines(), as_json)


def _end(sentences: Iterable[str], as_json: bool) -> NoReturn:
    told = list(sentences)
    if as_json:
        typer.echo(json.dumps({"ok": False, "errors": told}))
    for sentence in told:
        typer.echo(f"refused: {sentence}", err=True)
    raise typer.Exit(FAILED)
