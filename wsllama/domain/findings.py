"""Everything that `wsllama doctor` can find, in one catalogue, and what finds it. Pure.

An entry says what a person sees, why it is so, what to do, and how to see that it helped. docs/troubleshooting.md is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from wsllama.domain import server_log
from wsllama.domain.catalogue import FOUND, Severity
from wsllama.domain.examine import build_log, nvidia_smi, response, unit, wsl_output
from wsllama.domain.wslconfig import lint

Kind = Literal["log", "unit", "wslconfig", "wslconf", "nvidia-smi", "build-log", "wsl-output", "response"]
KINDS: tuple[str, ...] = get_args(Kind)


class Finding(NamedTuple):
    kind: str  # what it is found in; "use" for what shows in use only
    id: str
    severity: Severity
    symptom: str
    cause: str
    fix: str
    check: str


def examine(
    kind: str,
    data: bytes,
    *,
    command: str | None = None,
    returncode: int | None = None,
    codepage: int | None = None,
    path: str | None = None,
    max_tokens: int | None = None,
    n_ctx: int | None = None,
    http_status: int | None = None,
) -> dict[str, Any]:
    """What a pasted file says, for JSON: a document of its kind, with ids of the catalogue.

    data: its bytes as they are. command, returncode: how it was made (nvidia-smi, wsl-output). codepage: of the Windows console
    (wsl-output). path: the file's own name (wslconfig, wslconf). max_tokens, n_ctx, http_status: of the request, the slot's
    context in tokens, and of the reply (response). Raises ValueError for another kind.
    """
    if kind == "log":
        return server_log.read(data).document()
    if kind == "unit":
        return {"findings": sorted(unit.findings(data))}
    if kind in ("wslconfig", "wslconf"):
        return {"findings": sorted({found.id for found in lint(data, kind, path)})}  # type: ignore[arg-type]
    if kind == "nvidia-smi":
        return nvidia_smi.examine(data, command, returncode)
    if kind == "build-log":
        reading = build_log.read(data)
        first = {"first_error": reading.first_error} if reading.first_error else {}
        return {"findings": sorted(reading.findings), **first}
    if kind == "wsl-output":
        return wsl_output.examine(data, command, returncode, codepage)
    if kind == "response":
        return response.examine(data, max_tokens, n_ctx, http_status)
    raise ValueError(f"{kind} is no kind of file that the doctor knows: give one of {', '.join(KINDS)}")


def named(kind: str, document: Mapping[str, Any]) -> list[Finding]:
    """The catalogue's entries for a document of `examine`, what is wrong first."""
    ids = [*document.get("findings", ())]
    ids += [document[key] for key in ("verdict", "status", "error_id") if document.get(key)]
    order = {"error": 0, "warning": 1, "good": 2}
    return sorted((CATALOGUE[kind, one] for one in ids if (kind, one) in CATALOGUE), key=lambda entry: order[entry.severity])


CATALOGUE: dict[tuple[str, str], Finding] = {
    (kind, name): Finding(kind, name, *entry) for kind, entries in FOUND.items() for name, entry in entries.items()
}
"""Every finding by what it is found in and its id."""
