"""One proxy and one set of certificates for apt, pip, git and the Hub. Pure."""

from __future__ import annotations

# Variables that name a file of certificates: OpenSSL and Python, requests (and the Hub's client), pip, git, curl.
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE")
NOT_PROXIED = "localhost,127.0.0.1,::1"


def environment(proxy: str | None, ca_file: str | None) -> dict[str, str]:
    """Environment for programs that fetch.

    proxy: URL or None; ca_file: path on the machine that runs them, or None. Both spellings of the proxy's name are given:
    curl and git read http_proxy in small letters only.
    """
    out: dict[str, str] = {}
    if proxy:
        for name in ("http_proxy", "https_proxy"):
            out[name] = out[name.upper()] = proxy
        out["no_proxy"] = out["NO_PROXY"] = NOT_PROXIED
    if ca_file:
        out.update(dict.fromkeys(CERTIFICATE_VARIABLES, ca_file))
    return out


def apt_conf(proxy: str | None, ca_file: str | None) -> str:
    """apt's configuration: waits for a lock that unattended upgrades hold (seconds), proxy and certificates where wanted."""
    lines = ['DPkg::Lock::Timeout "300";', 'Acquire::Retries "3";']
    if proxy:
        lines += [f'Acquire::http::Proxy "{proxy}";', f'Acquire::https::Proxy "{proxy}";']
    if ca_file:
        lines += [f'Acquire::https::CaInfo "{ca_file}";']
    return "".join(f"{line}\n" for line in lines)
