"""The bill of materials of a bundle: CycloneDX 1.6 as JSON, the same bytes for the same content. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]


def document(name: str, components: Iterable[Component]) -> str:
    """The whole bill as text; name: of what it is the bill of.

    The serial number follows from the content, and there is no time in it: two bundles of the same files have the same bill.
    """
    listed = sorted(components, key=lambda c: str(c["bom-ref"]))
    about = {"type": "application", "bom-ref": name, "name": name}
    content = hashlib.sha256(json.dumps([about, listed], sort_keys=True).encode()).hexdigest()
    whole = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'wsllama:{content}')}",
        "version": 1,
        "metadata": {"component": about},
        "components": listed,
    }
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


def component(
    kind: str,
    name: str,
    version: str | None,
    purl: str | None,
    *,
    path: str | None = None,
    sha256: str | None = None,
    licence: str | None = None,
    more: Mapping[str, str] | None = None,
) -> Component:
    """One component.

    kind: of CycloneDX (application, library, machine-learning-model, file); purl: package URL, or None for a thing that has none;
    path: of its file in the bundle, and sha256 of that; licence: an SPDX expression or any name; more: further properties.
    """
    properties = {**({"file": path} if path else {}), **(more or {})}
    out: Component = {"type": kind, "bom-ref": path or purl or name, "name": name}
    out.update({"version": version} if version else {})
    out.update({"purl": purl} if purl else {})
    out.update({"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {})
    out.update({"licenses": [_licence(licence)]} if licence else {})
    named = [{"name": f"wsllama:{key}", "value": value} for key, value in sorted(properties.items())]
    out.update({"properties": named} if named else {})
    return out


def _licence(said: str) -> dict[str, Any]:
    """CycloneDX wants an identifier that SPDX lists, an SPDX expression, or any name."""
    if said == "MIT" or said == "Apache-2.0":
        return {"license": {"id": said}}
    if said.startswith("LicenseRef-"):
        return {"expression": said}
    return {"license": {"name": said}}


def of_pypi(name: str, version: str) -> str:
    """Package URL of a package of the Python index."""
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{quote(version)}"


def of_deb(distro: str, name: str, version: str, architecture: str) -> str:
    """Package URL of a Debian package; distro: like debian-12."""
    return f"pkg:deb/{distro.split('-')[0]}/{quote(name)}@{quote(version, safe='')}?arch={architecture}&distro={distro}"


def of_git(url: str, commit: str) -> str:
    """Package URL of a commit; url: of its repository."""
    if found := re.fullmatch(r"https://github\.com/([^/]+/[^/]+?)(?:\.git)?/?", url):
        return f"pkg:github/{found[1].lower()}@{commit}"
    return f"pkg:generic/{quote(url.rstrip('/').split('/')[-1])}@{commit}?vcs_url={quote(f'git+{url}@{commit}', safe='')}"
