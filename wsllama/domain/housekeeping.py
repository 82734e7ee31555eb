"""Which models on a host are needed, and which go. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

PROJECTOR = "clip"
LONGEST_RUN_S = 72 * 3600
"""Seconds that a download may take (70 GB over 3 Mbit/s), and so another run from a model's installation to its switch."""


def needed(releases: Mapping[str, Any]) -> set[str]:
    """Folders of models that the current, the last good or the newest release needs. releases: facet of the probe.

    To the newest one another run may be about to switch, as long as it was never accepted.
    """
    known, newest = releases["numbers"], str(releases["highest"])
    coming = [newest] if not known.get(newest, {}).get("accepted") else []
    models = [known[n]["model"] for n in (releases["current"], releases["last-good"], *coming) if n in known]
    return {file.split("/")[0] for model in models for file in (model["file"], *model.get("others", ()))}


def awaited(models: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Folders that another run may have installed and not switched to yet: what it leaves there until then is young enough."""
    ages = {place.split("/")[0]: stamp["awaited_s"] for place, stamp in models.items()}
    return {folder for folder, age in ages.items() if age is not None and age < LONGEST_RUN_S}


def abandoned(incoming: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of unfinished files that no run works on or can be about to go on with. incoming: facet of the probe."""
    return sorted(name for name, file in incoming.items() if not file["busy"] and file["age_s"] >= LONGEST_RUN_S)


def to_remove(models: Mapping[str, Mapping[str, Any]], kept: Collection[str], keep: int) -> list[str]:
    """Folders that go: those that aren't `kept`, but for the `keep` newest ones. Projectors aren't counted, and go with the rest.

    models: facet of the probe, folder/file -> stamp.
    """
    newest: dict[str, tuple[bool, int]] = {}
    for place, stamp in models.items():
        folder = place.split("/")[0]
        newest[folder] = max(newest.get(folder, (False, 0)), (stamp["architecture"] != PROJECTOR, stamp["mtime_ns"]))
    spare = sorted((folder for folder in newest if folder not in kept), key=lambda f: newest[f], reverse=True)
    whole = [folder for folder in spare if newest[folder][0]]
    return sorted(set(spare) - set(whole[:keep]))


def total(models: Mapping[str, Mapping[str, Any]], folders: Collection[str] | None = None) -> int:
    """Bytes of the files in folders, in all of them without."""
    return sum(stamp["size"] for place, stamp in models.items() if folders is None or place.split("/")[0] in folders)
