"""Runs on the host: the arguments of a release as its build spells them, without making the release."""

import json
import os
from typing import Any

from wsllama.domain import flags, systemd
from wsllama.host import release


def main(a: dict[str, Any]) -> None:
    """build (its folder), words, allow_tools.

    The last line is {"args": text of the file, "problems": [sentence, ...]}; with problems no release would be made.
    """
    known = flags.parse_help(release.said(os.path.join(a["build"], "bin", "llama-server"), "--help")[1])
    if not known.options:
        raise SystemExit(f"{a['build']}: the --help of its llama-server can't be read; run the deploy, which builds it again")
    resolved = flags.resolve(a["words"], known, a["allow_tools"])
    print(json.dumps({"args": systemd.arguments("LLAMA_SERVER_ARGS", resolved.words), "problems": list(resolved.problems)}))
