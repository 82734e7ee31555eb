"""Runs on the host: hashes every installed model file again, and takes the stamp of one that isn't what it was.

Without its stamp a file counts as absent, so the next deploy fetches it again; a server that has the right one open keeps it.
"""

import hashlib
import os
from typing import Any

from wsllama.host import probe, receive


def main(argument: dict[str, Any]) -> None:
    """Hash all files below `root` that have a stamp.

    Lines of progress on stdout; the last one is {"ok", "checked": bytes, "files": count, "wrong": [sentence, ...]}.
    """
    root, wrong, checked = argument["root"], list[str](), 0
    with receive.one_sentence(root):
        there = probe.models([root])[root]
        for place, stamp in there.items():
            path = os.path.join(root, place)
            found = sha256(path, place) if os.path.isfile(path) else None
            checked += stamp["size"] if found else 0
            if found == stamp["sha256"]:
                if not stamp["intact"]:
                    wrong.append(f"{path}: its bytes are right, but it was touched or replaced: run the deploy")
                continue
            os.unlink(f"{path}.stamp")
            says = f"it has sha256 {found} where {stamp['sha256']} was installed" if found else "it is gone"
            wrong.append(f"{path}: {says}: run the deploy, which brings it again")
        receive.tell(ok=not wrong, checked=checked, files=len(there), wrong=wrong)


def sha256(path: str, called: str) -> str:
    """Of a file, which is dropped from the page cache as it is read."""
    digest, done = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file, receive.hashing(digest) as feed:
        progress = receive.Progress(f"hash of {called}", os.fstat(file.fileno()).st_size, 0, receive.stage)
        while block := file.read(receive.BLOCK):
            feed(block)
            done += len(block)
            progress.at(done)
            if done % receive.DROP_EVERY < receive.BLOCK:
                os.posix_fadvise(file.fileno(), 0, done, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()
