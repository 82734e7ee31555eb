"""Which models may be locked and served: whose, under which licence, made of which model, and none with its limits removed.

A repository's name proves nothing. What a model is made of is said by the card's metadata and by the GGUF's own keys; they have
to agree with each other and with the base model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

BASE_MODEL = "Qwen/Qwen3.6-35B-A3B"
PUBLISHERS = ("Qwen", "bartowski", "ggml-org", "lmstudio-community", "unsloth")
LICENCES = ("apache-2.0",)

REMOVED = r"(?:un|de)[-_ ]?censor[a-z]*|abliterat[a-z]*|jail[-_ ]?br[eo]a?k[a-z]*"
# a card's running text may say of a quantisation that it is aggressive
QUANTISED = r"(?!(?:ly)?\W{1,3}(?:\S{1,20}\s{1,3})?(?:quant|compress))"
IN_TEXT = re.compile(f"({REMOVED}|aggressive{QUANTISED})", re.IGNORECASE)
IN_NAMES = re.compile(f"({REMOVED}|aggressive)", re.IGNORECASE)
HEADING = re.compile(r"^#{1,6} .*$", re.MULTILINE)


@dataclass(frozen=True)
class Claim:
    """What a repository and its GGUF say of a model.

    - repo: owner/name; licence: of the card
    - card_bases, gguf_bases: base models as owner/name, by the card and by the GGUF's keys
    - names: every other name: files, general.name, tags
    - text: the card's text
    """

    repo: str
    licence: str | None
    card_bases: tuple[str, ...] = ()
    gguf_bases: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    text: str = ""

    @property
    def publisher(self) -> str:
        """Who publishes it: the owner of the repository."""
        return self.repo.partition("/")[0]


def refusals(
    claim: Claim,
    allow_unofficial: bool = False,
    publishers: Collection[str] = PUBLISHERS,
    licences: Collection[str] = LICENCES,
    base_model: str = BASE_MODEL,
) -> list[str]:
    """Why a model may not be served, a sentence each; empty when it may.

    allow_unofficial lets pass what says that its limits were removed; publishers and licences are those that are allowed.
    """
    found = [
        *_removed(claim, allow_unofficial),
        *_publisher(claim, publishers),
        *_licence(claim, licences),
        *_base(claim, base_model),
    ]
    return [f"{claim.repo}: {sentence}" for sentence in found]


def removed(names: Iterable[str], allowed: bool = False) -> list[str]:
    """Whether one of these names or headings says that the model's limits were removed: a sentence, unless that is allowed."""
    for text in () if allowed else names:
        said = IN_NAMES.search(text)
        if said:
            return [
                f"it says {said[1].lower()!r} of itself ({text.strip()[:80]!r}), so it is not the official model:"
                " take another, or allow it (model.allow_unofficial, --allow-unofficial)"
            ]
    return []


def _removed(claim: Claim, allowed: bool) -> Iterable[str]:
    if allowed:
        return
    names = (claim.repo, *claim.names, *claim.card_bases, *claim.gguf_bases, *HEADING.findall(claim.text))
    if said_of_itself := removed(names):
        yield from said_of_itself
        return
    said = IN_TEXT.search(claim.text)
    if said:
        yield (
            f"its card says {said[1].lower()!r}, so it may not be the official model: take another, or allow it"
            " (model.allow_unofficial, --allow-unofficial)"
        )


def _publisher(claim: Claim, publishers: Collection[str]) -> Iterable[str]:
    if claim.publisher.lower() not in {name.lower() for name in publishers}:
        yield f"its publisher {claim.publisher!r} is none of those that are allowed: {', '.join(sorted(publishers))}"


def _licence(claim: Claim, licences: Collection[str]) -> Iterable[str]:
    if claim.licence is None:
        yield f"its card names no licence; allowed are {', '.join(sorted(licences))}"
    elif claim.licence.lower() not in {name.lower() for name in licences}:
        yield f"its licence {claim.licence!r} is none of those that are allowed: {', '.join(sorted(licences))}"


def _base(claim: Claim, wanted: str) -> Iterable[str]:
    card = {name.lower(): name for name in claim.card_bases}
    file = {_official(name): name for name in claim.gguf_bases}
    if not card and not file:
        yield f"neither its card nor its GGUF says what it was made of, and its name proves nothing: it should be {wanted}"
    elif card and file and not set(card) & set(file):
        yield (
            f"its card says that it was made of {_listed(card.values())}, its GGUF says {_listed(file.values())}: one of them is"
            " wrong, so take another repository"
        )
    else:
        yield from (
            f"{where} says that it was made of {_listed(names.values())}, not of {wanted}: it is another model"
            for where, names in (("its card", card), ("its GGUF", file))
            if names and set(names) != {wanted.lower()}
        )


def other_base(metadata: Mapping[str, object], allowed: bool = False) -> list[str]:
    """Whether a GGUF says that it was made of another model than the official one: a sentence, unless that is allowed.

    One that says nothing of it passes: many quants have no such key.
    """
    other = [name for name in bases_of(metadata) if _official(name) != BASE_MODEL.lower()]
    if allowed or not other:
        return []
    return [
        f"its keys say that it was made of {_listed(other)[:200]}, not of {BASE_MODEL}: it is another model, so take another"
        " file, or allow it (model.allow_unofficial, --allow-unofficial)"
    ]


def _official(name: str) -> str:
    """A base model as a GGUF names it, in small letters; the official one's -Base, and its name without an owner, are the same.

    A converter copies what the card of its source names, and that of the official model names its -Base.
    """
    found, official = name.lower().removesuffix("-base"), BASE_MODEL.lower()
    return official if found in (official, official.partition("/")[2]) else name.lower()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def bases_of(metadata: Mapping[str, object]) -> tuple[str, ...]:
    """Base models as owner/name by a GGUF's keys general.base_model.N.*, which converters copy from the model's own card.

    A name alone where its owner isn't said (keys: gguf-py/gguf/constants.py, class General).
    """
    numbers = {int(said[1]) for name in metadata if (said := re.match(r"general\.base_model\.(\d{1,6})\.", name))}
    found = []
    for number in sorted(numbers):
        key = f"general.base_model.{number}"
        url, owner, name = (metadata.get(f"{key}.{part}") for part in ("repo_url", "organization", "name"))
        if isinstance(url, str) and (path := re.match(r"(?:https?://)?[^/\s]+\.[^/\s]+/([^/\s]+/[^/\s?#]+)", url)):
            found.append(path[1])
        elif isinstance(name, str):
            found.append((f"{owner}/" if isinstance(owner, str) else "") + name.strip().replace(" ", "-"))
    return tuple(found)


def names_of(metadata: Mapping[str, object]) -> tuple[str, ...]:
    """All that a GGUF calls itself."""
    kinds = ("name", "basename", "finetune", "description", "author", "organization", "quantized_by", "url", "repo_url", "tags")
    found: list[str] = []
    for kind in kinds:
        value = metadata.get(f"general.{kind}")
        found += (
            [value] if isinstance(value, str) else [v for v in value if isinstance(v, str)] if isinstance(value, list) else []
        )
    return tuple(found)
