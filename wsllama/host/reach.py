"""Runs on the host: tries what the host itself fetches from, and names what is blocked; prints {"blocked": [sentence]}."""

import json
import os
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from typing import Any


def opener(proxy: str | None, ca: str | None) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context(cadata=ca) if ca else ssl.create_default_context()
    proxies = {"http": proxy, "https": proxy} if proxy else {}
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context))


def why_not(url: str, by: urllib.request.OpenerDirector) -> str | None:
    """None when somebody answers, whatever the answer; else what the network says."""
    try:
        by.open(url, timeout=15).close()
    except urllib.error.HTTPError as e:
        return None if e.code < 500 and e.code not in (403, 407) else f"status {e.code}"
    except (OSError, ValueError) as e:
        return str(getattr(e, "reason", e))
    return None


def apt_addresses() -> list[str]:
    """One file for each source of apt's configuration, as apt itself reads it."""
    p = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)"], stdout=subprocess.PIPE, text=True)
    found = sorted({line.split("|")[0] for line in p.stdout.splitlines() if line.startswith("http")})
    if not found:  # no list was ever fetched
        text = ""
        for folder in ("/etc/apt", "/etc/apt/sources.list.d"):
            for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
                if name.endswith((".list", ".sources")):
                    with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as f:
                        text += "".join(line for line in f if not line.lstrip().startswith("#"))
        found = sorted(set(re.findall(r"\bhttps?://[^\s\]]+", text)))
    return found


def main(a: dict[str, Any]) -> None:
    blocked, by = [], opener(a["proxy"], a["ca"])
    hint = "check the network, or set network.proxy and network.ca_file"
    if a["apt"]:
        for url in apt_addresses():
            if reason := why_not(url.rstrip("/") + "/", by):
                blocked.append(f"apt can't reach {url} ({reason}): {hint}")
    if a["git"] and a["git"].startswith("http"):
        url = a["git"].rstrip("/") + "/info/refs?service=git-upload-pack"
        if reason := why_not(url, by):
            blocked.append("git can't reach {} ({}): {}".format(a["git"], reason, hint))
    print(json.dumps({"blocked": blocked}))
