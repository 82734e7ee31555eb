"""Runs on the host: tries what the host itself fetches from, and names what is blocked; prints {"blocked": [sentence]}."""

import json
import os
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from typing import Any


class Stay(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer, too: the Hub gives one to where a file's bytes are, which aren't asked for here."""

    def redirect_request(self, *_: Any) -> None:
        return None


def opener(proxy: str | None, ca: str | None, *more: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context(cadata=ca) if ca else ssl.create_default_context()
    proxies = {"http": proxy, "https": proxy} if proxy else {}
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context), *more)


def why_not(url: str, by: urllib.request.OpenerDirector) -> str | None:
    """None when somebody answers, whatever the answer; else what the network says."""
    try:
        by.open(url, timeout=15).close()
    except urllib.error.HTTPError as e:
        return None if e.code < 500 and e.code not in (403, 407) else f"status {e.code}"
    except (OSError, ValueError) as e:
        return str(getattr(e, "reason", e))
    return None


HUB = {
    401: "it is gated or private, or the token is wrong: accept the terms on the repository's page, and set model.token_file",
    403: "the token's account has no access to it, or the network filters the Hub: accept the terms on the repository's page",
    404: "the Hub has no such file at this revision: use `wsllama lock update`",
}
MIRROR = {
    401: "the mirror asks for a login: give an address that needs none",
    403: "the mirror forbids it: check its settings and the network's filter",
    404: "the mirror has no such file: check model.url",
}


def model_blocked(of: dict[str, Any], by: urllib.request.OpenerDirector) -> str | None:
    """Why a file of the model can't be had, by one request that brings no byte of it; None when it can, or may after a wait."""
    headers = {"Authorization": f"Bearer {of['token']}"} if of["token"] else {"Range": "bytes=0-0"}
    method = "HEAD" if of["hub"] else "GET"
    hint = "check the network, network.proxy and " + ("model.endpoint" if of["hub"] else "model.url")
    try:
        with by.open(urllib.request.Request(of["url"], headers=headers, method=method), timeout=15) as said:
            page = said.headers.get("Content-Type", "").startswith("text/html")
            return f"{of['url']} is a page, as of a network that asks for a login: open a browser, or {hint}" if page else None
    except urllib.error.HTTPError as e:
        known = (HUB if of["hub"] else MIRROR).get(e.code)
        if known:
            return f"{of['url']}: {known}"
        return f"{of['url']} can't be had (status {e.code}): {hint}" if e.code >= 500 or e.code == 407 else None
    except (OSError, ValueError) as e:
        return f"{of['url']} can't be reached ({getattr(e, 'reason', e)}): {hint}"


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
    if a["model"]:
        stays = [Stay()] if a["model"]["hub"] else []
        if reason := model_blocked(a["model"], opener(a["proxy"], a["ca"], *stays)):
            blocked.append(f"model: {reason}")
    print(json.dumps({"blocked": blocked}))
