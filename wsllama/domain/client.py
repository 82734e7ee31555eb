"""How a client connects: what the end of a deploy says. Pure."""

from __future__ import annotations

import json

from wsllama.domain.server_flags import is_loopback


def base_url(host: str, port: int) -> str:
    """URL of the API for a client on the same machine; host is what the server listens on."""
    own = "127.0.0.1" if host in ("localhost", "0.0.0.0", "::") else host
    return f"http://[{own}]:{port}" if ":" in own else f"http://{own}:{port}"


def lines(name: str, host: str, port: int, model: str, key_file: str | None) -> list[str]:
    """Lines for a person: base URL, model id, where the key is, one command for curl and one for PowerShell.

    name: the host in the inventory; key_file: path on that host, or None when no key is asked for.
    """
    url = f"{base_url(host, port)}/v1"
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]}, separators=(",", ":"))
    curl = f"curl -s {url}/chat/completions -H 'Content-Type: application/json'"
    shell = f"Invoke-RestMethod -Method Post -Uri {url}/chat/completions -ContentType 'application/json'"
    if key_file:
        curl += f' -H "Authorization: Bearer $(sudo cat {key_file})"'
        shell += f" -Headers @{{Authorization = 'Bearer ' + (wsl.exe -u root cat {key_file})}}"
    out = [
        f"{name} serves {model}",
        f"  base URL    {url}",
        f"  model id    {model}",
        f"  API key     {key_file + ' on the host' if key_file else 'none is asked for'}",
        f"  curl        {curl} -d '{body}'",
        f"  PowerShell  {shell} -Body '{body}'",
    ]
    if not is_loopback(host):
        out.insert(2, f"              from other machines: the same with this machine's address and port {port}")
    return out
