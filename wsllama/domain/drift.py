"""What of a host is not as its release recorded it, or as the settings want it, and who would win. Pure.

`seen` is what wsllama/host/drift.py found, `ahead` what the deploy's own operations would do (wsllama/ahead.py).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from wsllama.domain.examine import unit as units

Wins = Literal["deploy", "user", "nobody"]
DEPLOY = "run the deploy"
FIRST = "mend what is named, then deploy"

_SECRET = re.compile(
    r"""(?i)(--(?:api-key|hf-token)["\\]*[ =]+["\\]*|\b\w*(?:key|token|secret|password)\w*=["\\]*|\bbearer +)[^\s"'\\]+"""
)
_LOGIN = re.compile(r"(\w+://)[^/\s@\"]+@")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}")
# What systemd itself gives a service (systemd.exec(5), "Environment variables in spawned processes").
_SYSTEMD = re.compile(
    r"PATH|LANG(UAGE)?|LC_\w+|USER|LOGNAME|HOME|SHELL|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_EXEC_PID|MEMORY_PRESSURE_\w+|\w+_DIRECTORY"
    r"|NOTIFY_SOCKET|WATCHDOG_\w+|MAINPID|MANAGERPID|LISTEN_\w+|TERM|DEBUG_INVOCATION|FDSTORE|SERVICE_RESULT|EXIT_\w+"
)
# Operations of the deploy -> what their finding is about.
_KINDS = {
    "user of the service": "user",
    "folders": "file",
    "apt and certificates": "file",
    "packages": "package",
    "build": "build",
    "receive": "build",
    "model": "model",
    "API key": "file",
    "release": "release",
    "unit": "file",
    "service": "service",
    "watchdog": "file",
    "WSL's settings": "windows",
    "lean distro": "windows",
    "started at logon": "windows",
    "what an administrator has to do": "windows",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    + kind: file, link, unit, drop-in, process, environment, package, user, build, model, setting, release, service, …
    + what: the file, flag, package or setting; now, should: in words
    + wins: who would, if nobody did anything but deploy again; mend: what to do
    """

    kind: str
    what: str
    now: str
    should: str
    wins: Wins
    mend: str

    def document(self) -> dict[str, str]:
        """For JSON: `now` is called `is` there."""
        found = asdict(self)
        return {"kind": found.pop("kind"), "what": found.pop("what"), "is": found.pop("now"), **found}


def masked(text: str) -> str:
    """The same without what may be a secret: keys, tokens, passwords, the login in an address."""
    return _TOKEN.sub("***", _LOGIN.sub(r"\1***@", _SECRET.sub(r"\1***", text)))


def findings(seen: Mapping[str, Any], ahead: Sequence[Mapping[str, Any]], places: Mapping[str, str]) -> list[Finding]:
    """All of one host. `places`: root, unit, unit_file, builds, models, user, as wsllama/layout.py has them.

    What the host's records say comes first: it is said in more detail than by what the deploy would do about it.
    """
    if not seen["release"]["record"]:
        found = [*_links(seen, places)]
        return found or [Finding("release", f"{places['root']}/current", "absent", "a release", "deploy", DEPLOY)]
    restarts = any(step["operation"].endswith("| service") and (step["told"] or step["later"]) for step in ahead)
    live = [
        *_links(seen, places),
        *_release(seen, places),
        *_unit(seen, places),
        *_process(seen, places, restarts),
        *_user(seen["user"], places["user"]),
        *_packages(seen, ahead),
        *_build(seen, places),
        *_models(seen["models"], places["models"]),
        *_writable(seen["writable"]),
    ]
    known = {one.what for one in live} | {one.what.rpartition("/")[2] for one in live if one.kind == "model"}
    detailed = {one.kind for one in live}
    unnamed = {("build", "build"), ("build", "receive"), ("release", "release")}  # here the operations name no file
    more = [one for one in wanted(ahead) if one.what not in known]
    return [*live, *(one for one in more if one.kind not in detailed or (one.kind, one.what) not in unnamed)]


def wanted(ahead: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What the deploy would change, or would refuse to work with."""
    out = []
    for step in ahead:
        name = step["operation"].rpartition(" | ")[2]
        kind = _KINDS.get(name, "setting")
        for told in step["told"]:
            now, should = told["now"] or told["text"], told["wanted"] or "as the settings say"
            for what in (told["of"] or name).split(", "):
                out.append(Finding(kind, what, masked(now), masked(should), "deploy", DEPLOY))
        for reason in step["refused"]:
            out.append(Finding("refused", name, masked(reason), "a deploy can work with it", "nobody", FIRST))
    return out


def unknown(ahead: Sequence[Mapping[str, Any]]) -> list[str]:
    """What no look ahead can tell of the changes that it found, as sentences."""
    changing = {step["operation"].rpartition(" | ")[2] for step in ahead if step["changes"] or step["later"]}
    later = [reason for step in ahead if step["operation"].endswith("| release") for reason in step["later"]]
    out = {
        "packages": "which versions apt would install, and what else they need",
        "build": "whether it compiles",
        "model": "whether the file's bytes have the right sum: they are hashed as they come",
        "release": "whether the server loads with it and is accepted; if not, the last good release serves again",
        "service": "whether the server answers after its new start",
    }
    found = [sentence for name, sentence in out.items() if name in changing]
    return [*(f"what the release would hold, because {masked(reason)}" for reason in later), *found]


def sealed(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan as a release records it: with a sum of the rest, because its figures are in no digest."""
    return {**plan, "sum": _sum(plan)}


def intact(plan: Mapping[str, Any]) -> bool:
    """Whether a recorded plan is as it was made; one without a sum is of an earlier version, and taken as it is."""
    return plan.get("sum") in (None, _sum(plan))


def _sum(plan: Mapping[str, Any]) -> str:
    rest = json.loads(json.dumps({key: value for key, value in plan.items() if key != "sum"}))  # as it is read again
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def settings(record: Mapping[str, Any], new: Mapping[str, Any], number: str) -> list[Finding]:
    """Where the record of the current release and that of the wanted one differ, setting by setting.

    record: of the host, new: what the settings ask for, number: of the current release. With the same digest they are the
    same release, so somebody has edited the record.
    """
    edited = record.get("digest") == new.get("digest")
    again = f"remove the folder releases/{number}, then deploy: it is made again"
    out = []
    if not intact(record.get("plan") or {}):
        what = f"releases/{number}/release.json: plan"
        out.append(Finding("release", what, "edited", "as it was made", "nobody", again))
    for topic in ("commit", "build", "model", "server", "gpu"):
        for name, (now, should) in _pairs(topic, record.get(topic), new.get(topic)).items():
            if edited:
                what = f"releases/{number}/release.json: {name}"
                out.append(Finding("release", what, masked(now), masked(should), "nobody", again))
            else:
                out.append(Finding("setting", name, masked(now), masked(should), "deploy", f"{DEPLOY}, or change the setting"))
    if not out and not edited and _figures(record) != _figures(new):
        out.append(Finding("setting", "plan", "with other figures", "as the host is now", "deploy", DEPLOY))
    return out


def _figures(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (record.get("plan") or {}).items() if key != "sum"}


def _pairs(name: str, now: Any, should: Any) -> dict[str, tuple[str, str]]:
    if now == should:
        return {}
    if isinstance(now, dict) and isinstance(should, dict):
        out = {}
        for key in [*should, *(k for k in now if k not in should)]:
            out.update(_pairs(f"{name}.{key}", now.get(key), should.get(key)))
        return out
    return {name: (_said(now), _said(should))}


def _said(value: Any) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _links(seen: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[Finding]:
    root, current, good = places["root"], seen["links"]["current"], seen["links"]["last-good"]
    if current and not seen["release"]["record"]:
        yield Finding("link", f"{root}/current", f"leads to {current}, which is no release", "a release", "deploy", DEPLOY)
    elif current and good != current:
        now = f"leads to {good}" if good else "absent"
        mend = f"{DEPLOY}, or wsllama rollback; somebody moved a link, or a run was ended in the middle"
        yield Finding("link", f"{root}/last-good", now, f"leads to {current}, as current does", "deploy", mend)


def _release(seen: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[Finding]:
    of, folder = seen["release"], f"{places['root']}/{seen['links']['current']}"
    for name, sha256 in of["record"].get("sha256", {}).items():
        if of["files"].get(name) != sha256:
            now = "gone" if of["files"].get(name) is None else "edited"
            yield Finding(
                "release", f"{folder}/{name}", now, "as release.json recorded it", "deploy", f"{DEPLOY}: it makes a new release"
            )
    for name, target in of["record"].get("links", {}).items():
        if of["links"].get(name) != target:
            now = f"leads to {of['links'].get(name)}"
            yield Finding("release", f"{folder}/{name}", now, f"leads to {target}", "deploy", f"{DEPLOY}: it makes a new release")
    if not of["accepted"]:
        yield Finding("release", f"{folder}/baseline.json", "absent", "the record of its acceptance", "deploy", DEPLOY)


def _unit(seen: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[Finding]:
    name, path, shown = places["unit"], places["unit_file"], seen["unit"]
    if shown.get("FragmentPath") not in (path, ""):
        mend = f"remove it, then systemctl daemon-reload and systemctl restart {name}"
        yield Finding("unit", name, f"read from {shown['FragmentPath']}", f"read from {path}", "nobody", mend)
    if seen["unit_text"] is not None and seen["unit_text"] != seen["release"]["texts"]["unit"]:
        mend = f"{DEPLOY}; what you want to keep goes into a drop-in (systemctl edit {name})"
        now = "masked" if shown.get("LoadState") == "masked" else "edited"
        yield Finding("file", path, now, f"as {seen['links']['current']}/unit", "deploy", mend)
    if seen["unit_text"] is not None and shown.get("UnitFileState") != "enabled" and shown.get("LoadState") == "loaded":
        now = shown.get("UnitFileState") or "in no state"
        yield Finding("unit", f"{name} at boot", now, "enabled", "deploy", f"{DEPLOY}, or systemctl enable {name}")
    for drop_in, text in seen["drop_ins"].items():
        lines = [line for line in (text or "").splitlines() if line.strip() and not line.startswith(("#", ";", "["))]
        now = masked("; ".join(lines)) or "empty"
        yield Finding("drop-in", drop_in, now, "no drop-in", "user", f"if it is not wanted: systemctl revert {name}")


def _process(seen: Mapping[str, Any], places: Mapping[str, str], restarts: bool) -> Iterator[Finding]:
    for other in seen["others"]:
        mend = f"end it (kill {other['pid']}), and what starts it"
        yield Finding("process", f"llama-server, pid {other['pid']}", f"runs {other['exe']}", "no second server", "nobody", mend)
    running = seen["process"]
    if not running:
        if (state := seen["unit"].get("ActiveState")) != "active":
            yield Finding("service", places["unit"], str(state), "active", "deploy", DEPLOY)
        return
    mend = f"systemctl restart {places['unit']}"
    again: Wins = "deploy" if restarts else "nobody"
    if running["exe"] != seen["program"]:
        yield Finding("process", "the running program", running["exe"], seen["program"], again, mend)
    edited = {
        name for name, sha256 in seen["release"]["record"].get("sha256", {}).items() if seen["release"]["files"][name] != sha256
    }
    if "args" not in edited:  # else it isn't known what they should be; that they are edited is a finding
        yield from _flags(seen, running, again, mend)
    if "env" not in edited:
        yield from _environment(seen, running, again, mend)
    server = seen["release"]["record"].get("server", {})
    wanted = {"localhost": "127.0.0.1", "0.0.0.0": "*", "::": "*"}.get(str(server.get("host")), server.get("host"))
    for address, port in running["listens"]:
        if [address, port] != [wanted, server.get("port")]:
            own: Wins = "user" if _by_drop_in(seen, "ExecStart") else again
            should = f"{wanted}:{server.get('port')} only"
            yield Finding("socket", f"{address}:{port}", "the server listens there", should, own, mend)


def _by_drop_in(seen: Mapping[str, Any], pattern: str) -> bool:
    """Whether a line of a drop-in begins so."""
    return any(re.search(rf"^\s*{pattern}", text or "", re.M) for text in seen["drop_ins"].values())


def _values(text: str | None) -> dict[str, str]:
    """Of a file for EnvironmentFile=."""
    pairs = (word.partition("=") for word in units.words(text or ""))
    return {name: value for name, sign, value in pairs if sign}


def _flags(seen: Mapping[str, Any], running: Mapping[str, Any], again: Wins, mend: str) -> Iterator[Finding]:
    """Arguments of the process against the release's, flag by flag."""
    should = _by_flag(units.words(_values(seen["release"]["texts"]["args"]).get("LLAMA_SERVER_ARGS", "")))
    now = _by_flag(running["argv"][1:])
    own: Wins = "user" if _by_drop_in(seen, "ExecStart") else again
    for flag in [*should, *(f for f in now if f not in should)]:
        if now.get(flag) != should.get(flag):
            is_now, wanted = (_given(flag, of.get(flag)) for of in (now, should))
            yield Finding("flag", flag, f"runs with {is_now}" if is_now else "runs without it", wanted or "not given", own, mend)


def _given(flag: str, value: str | None) -> str | None:
    return None if value is None else masked(f"{flag} {value}".strip())


def flag_lines(args: str | None) -> list[str]:
    """A release's file `args` with a line for each argument, for people."""
    words = units.words(_values(args).get("LLAMA_SERVER_ARGS", ""))
    return [f"{flag} {value}".strip() for flag, value in _by_flag(words).items()]


def _by_flag(words: Sequence[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    flag = ""
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word):
            flag = word
            out.setdefault(flag, "")
        else:
            out[flag] = f"{out.get(flag, '')} {word}".strip()
    return out


def _environment(seen: Mapping[str, Any], running: Mapping[str, Any], again: Wins, mend: str) -> Iterator[Finding]:
    """Variables of the process against those of the release; values are not shown, they may be secrets."""
    texts = seen["release"]["texts"]
    should = _values(texts["env"])
    own = {"LLAMA_SERVER_ARGS", *units.environment(texts["unit"] or ""), *should}
    for name, value in running["environment"].items():
        if name not in own and not _SYSTEMD.fullmatch(name):
            wins: Wins = "user" if _by_drop_in(seen, rf"(EnvironmentFile=|Environment=.*\b{re.escape(name)}=)") else "nobody"
            gone = "remove it from the drop-in, or systemctl unset-environment"
            yield Finding("environment", name, "set", "not set", wins, f"{gone} {name}; then {mend}")
        elif name in should and value != should[name]:
            yield Finding("environment", name, "another value", "as in env", again, mend)
    for name in should:
        if name not in running["environment"]:
            yield Finding("environment", name, "not set", "as in env", again, mend)


def _user(found: Mapping[str, Any] | None, name: str) -> Iterator[Finding]:
    if found and found["groups"]:
        groups = ", ".join(found["groups"])
        mend = " && ".join(f"gpasswd -d {name} {group}" for group in found["groups"])
        yield Finding("user", f"user {name}: groups", f"also in {groups}", f"in {name} only", "nobody", mend)
    if found and found["password"]:
        yield Finding("user", f"user {name}: password", "set", "none", "nobody", f"usermod --lock --password '*' {name}")


def _packages(seen: Mapping[str, Any], ahead: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for name in seen["held"]:
        yield Finding("package", f"{name}: hold", "held by apt-mark", "free", "user", f"apt-mark unhold {name}")
    rebuilt = any(step["told"] or step["later"] for step in ahead if step["operation"].endswith(("build", "receive")))
    wins: Wins = "deploy" if rebuilt else "nobody"
    for name, version in seen["build"].get("versions", {}).items():
        there = seen["packages"].get(name, version)
        if there and there != version:
            yield Finding("package", name, there, f"{version}, which the build was made with", wins, f"{DEPLOY}: it builds anew")


def _build(seen: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[Finding]:
    folder = f"{places['builds']}/{seen['release']['record'].get('build')}"
    if not seen["build"]["recorded"]:
        yield Finding("build", f"{folder}/build.json", "gone or broken", "the list of the build's files", "deploy", DEPLOY)
    for name, why in sorted(seen["build"]["differs"].items()):
        whole = why in ("has other bytes", "is not of the build")  # the deploy looks at sizes of what is listed
        wins: Wins = "nobody" if whole else "deploy"
        mend = f"remove {folder}, then deploy" if why == "has other bytes" else f"remove {folder}/{name}" if whole else DEPLOY
        yield Finding("build", f"{folder}/{name}", why, "as build.json lists it", wins, mend)


def apt_file(path: str) -> Finding:
    """One of apt's files for CUDA that is not as the deploy writes it."""
    mend = f"remove {path} and the packages of the toolkit (apt-get remove), then deploy; or put back what was changed"
    return Finding("file", path, "edited or gone", "as the deploy wrote it", "nobody", mend)


def _models(files: Mapping[str, Any], root: str) -> Iterator[Finding]:
    for name, of in files.items():
        path = f"{root}/{name}"
        if not of["there"] or not of["stamp"] or not of["intact"]:
            now = (
                "gone"
                if not of["there"]
                else "without its stamp"
                if not of["stamp"]
                else "touched or replaced since it was verified"
            )
            yield Finding("model", path, now, "as it was verified", "deploy", f"{DEPLOY}: it brings it again")
        elif of.get("sha256_now", of["sha256"]) != of["sha256"]:
            now = f"has sha256 {of['sha256_now']}"
            mend = "wsllama verify --deep takes its stamp; then deploy, which brings it again"
            yield Finding("model", path, now, f"sha256 {of['sha256']}", "nobody", mend)


def _writable(found: Mapping[str, str]) -> Iterator[Finding]:
    for path, now in sorted(found.items()):
        mend = f"chown -h root:root {path} && chmod go-w {path}"
        yield Finding("file", path, now, "only root may write it", "nobody", mend)
