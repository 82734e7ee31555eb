"""The base image: one debootstrapped tree a suite, read-only below every machine of the lab.

    $WSLLAMA_CACHE (default /var/cache/wsllama-lab)
    ├── base/<suite>-<key>-<day>/     the tree; key = hash of everything that determines it
    ├── base/<…>.prepared-<key>/      what lies over it on prepared hosts: the packages that a deploy installs
    ├── base/<…>.building/            either aside while it is built, renamed when it is whole
    ├── base/lock-<suite>             held while building, so that two runs don't build it twice
    ├── apt/<suite>/                  packages that were downloaded once
    └── apt-hosts/<lab>-<host>/       a machine's own /var/cache/apt/archives, hard links into apt/<suite>

Mirror, proxy and certificates are this machine's own; nothing here names a host of the network.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lab.tools import LabError, install_missing, run, say, write
from wsllama.domain import build

VERSION = 2  # raise it when the way of building changes: a cached base of another version is not used
MAX_AGE_S = 7 * 86400  # an older base has package lists that name files which mirrors no longer hold
DEBIAN_SUITES = ("bookworm", "trixie")
PACKAGES = (
    *("apt", "ca-certificates", "dbus", "iproute2", "libpam-systemd", "netbase", "openssh-server", "procps"),
    *("python3", "sudo", "systemd", "systemd-sysv"),
)
# Mounts and processes of their own, that die with this process: whatever kills it, nothing of debootstrap's stays behind.
OWN_MOUNTS = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child")
LOCAL_CA = Path("usr/local/share/ca-certificates")
# Installs packages into a layer over a base. The mounts are in a namespace of their own and go with it.
PREPARE = """
set -e
base=$1 layer=$2 pool=$3; shift 3
mkdir -p "$layer/upper" "$layer/work" "$layer/root"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$layer/upper,workdir=$layer/work" "$layer/root"
cd "$layer/root"
mount -t proc proc proc
mount --bind "$pool" var/cache/apt/archives
cp /etc/resolv.conf etc/resolv.conf
chroot . apt-get -q update
chroot . apt-get -qy install --no-install-recommends "$@"
rm etc/resolv.conf
"""


@dataclass(frozen=True)
class Source:
    """One archive entry of apt's configuration: where, which suite, which components, who signs."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str


def cache_dir() -> Path:
    """Folder of everything that is kept between runs: $WSLLAMA_CACHE, else /var/cache/wsllama-lab."""
    return Path(os.environ.get("WSLLAMA_CACHE") or "/var/cache/wsllama-lab").absolute()


def os_release() -> tuple[str, str]:
    """ID and VERSION_CODENAME of this machine, from /etc/os-release."""
    pairs = (line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    values = {key: value.strip("\"'") for key, value in pairs}
    return values.get("ID", ""), values.get("VERSION_CODENAME", "")


def default_suite() -> str:
    """The suite of a lab that names none: this machine's own when it is Debian or Ubuntu, else bookworm."""
    codename = os_release()[1]
    return codename if codename in suites() else suites()[0]


def suites() -> tuple[str, ...]:
    """The releases that this machine can build: both of Debian's, on Ubuntu its own."""
    distribution, codename = os_release()
    return (codename,) if distribution == "ubuntu" else DEBIAN_SUITES


def parse_list(text: str) -> list[Source]:
    """Entries of a one-line-style file (sources.list(5)); comments and deb-src are left out."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)\s+([^#]*)", line)
        if match:
            options, uri, suite, components = match.groups()
            signed = re.search(r"signed-by=(\S+)", options or "", re.IGNORECASE)
            found.append(Source(uri, suite, tuple(components.split()), signed.group(1) if signed else ""))
    return found


def parse_deb822(text: str) -> list[Source]:
    """Entries of a deb822-style file (sources.list(5)): stanzas of fields, comments and disabled stanzas left out."""
    found = []
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", lines):
        unfolded = re.sub(r"\n[ \t]+", " ", stanza)
        pairs = (line.split(":", 1) for line in unfolded.splitlines() if ":" in line)
        field = {key.strip().lower(): value.strip() for key, value in pairs}
        if "deb" not in field.get("types", "").split() or field.get("enabled", "yes").lower() in ("no", "false"):
            continue
        components = tuple(field.get("components", "").split())
        found += [
            Source(uri, suite, components, field.get("signed-by", ""))
            for uri in field.get("uris", "").split()
            for suite in field.get("suites", "").split()
        ]
    return found


def read_sources(etc_apt: Path = Path("/etc/apt")) -> list[Source]:
    """Everything that apt of this machine downloads from, in apt's order, `mirror+file:` lists resolved."""
    found: list[Source] = []
    for path in [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]:
        if path.suffix in (".list", ".sources") and path.is_file():
            found += (parse_list if path.suffix == ".list" else parse_deb822)(path.read_text(errors="replace"))
    return [Source(_resolve_mirror(s.uri), s.suite, s.components, s.signed_by) for s in found]


def _resolve_mirror(uri: str) -> str:
    """Cloud images keep the mirror in a file of its own: its first line is taken."""
    if not uri.startswith("mirror+file:"):
        return uri
    path = Path(urlsplit(uri.removeprefix("mirror+")).path)
    words = path.read_text(errors="replace").split() if path.is_file() else []
    return words[0] if words else uri


def archive(sources: list[Source], family: str, suite: str) -> tuple[str, tuple[Source, ...]]:
    """Choose the distribution's own archive among a machine's sources.

    + sources: what apt of this machine uses
    + family: `debian` or `ubuntu`: the official archive has a path with that name and a suite that is a release's
      own name (third-party archives are left out by suite, component, path or key)
    + suite: the release that is wanted; this machine's release name is replaced by it

    Returns the mirror for debootstrap and the entries for the machine. Raises LabError when there is none.
    """
    kinds: dict[str, Source] = {}
    for source in sources:
        match = re.fullmatch(r"([a-z]+)(-updates|-security|/updates)?", source.suite)
        path = urlsplit(source.uri).path.split("/")
        own_path = any(re.fullmatch(rf"{family}(-security|-ports)?", part) for part in path)
        own_key = not source.signed_by or f"{family}-archive" in source.signed_by or "BEGIN PGP" in source.signed_by
        http = urlsplit(source.uri).scheme in ("http", "https")
        if match and own_path and own_key and http and "main" in source.components:
            kind = (match.group(2) or "").replace("/updates", "-security")
            kinds.setdefault(kind, Source(source.uri, suite + kind, source.components, ""))
    if "" not in kinds:
        raise LabError(
            f"No official {family} archive was found in /etc/apt/sources.list or /etc/apt/sources.list.d: "
            "add one (http or https), so that the lab can build its machines from it."
        )
    return kinds[""].uri, tuple(kinds[kind] for kind in sorted(kinds))


def apt_settings() -> str:
    """apt.conf lines of this machine that a machine behind it needs too: proxies, certificates, validity checks."""
    wanted = re.compile(r"Acquire::(?:https?::(?!Proxy-Auto-Detect)|Check-|Retries)")
    lines = [line for line in run(["apt-config", "dump"]).stdout.splitlines() if wanted.match(line)]
    for scheme in ("http", "https"):
        proxy = os.environ.get(f"{scheme}_proxy")
        if proxy and not any(line.startswith(f"Acquire::{scheme}::Proxy ") for line in lines):
            lines.append(f'Acquire::{scheme}::Proxy "{proxy}";')
    return "".join(f"{line}\n" for line in lines)


def local_certificates() -> dict[str, str]:
    """Certificates that this machine trusts beyond its distribution's: name -> PEM text."""
    folder = Path("/") / LOCAL_CA
    return {str(p.relative_to(folder)): p.read_text(errors="replace") for p in sorted(folder.rglob("*.crt"))}


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a base image."""

    suite: str
    family: str
    mirror: str
    sources: tuple[Source, ...]
    apt_conf: str
    certificates: dict[str, str]

    @property
    def keyring(self) -> Path:
        return Path(f"/usr/share/keyrings/{self.family}-archive-keyring.gpg")

    @property
    def sources_list(self) -> str:
        lines = [f"deb [signed-by={self.keyring}] {s.uri} {s.suite} {' '.join(s.components)}\n" for s in self.sources]
        return "".join(lines)

    @property
    def key(self) -> str:
        facts = [VERSION, self.suite, PACKAGES, self.mirror, self.sources_list, self.apt_conf, self.certificates]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def recipe(suite: str) -> Recipe:
    """How the base of a suite is built on this machine. Raises LabError for a suite or machine that can't do it."""
    family = "ubuntu" if os_release()[0] == "ubuntu" else "debian"
    if suite not in suites():
        raise LabError(f"The lab can't build {suite!r} on this machine: choose one of {', '.join(suites())}.")
    mirror, sources = archive(read_sources(), family, suite)
    return Recipe(suite, family, mirror, sources, apt_settings(), local_certificates())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file for the time of the block; the kernel drops it when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def ensure(suite: str, in_use: frozenset[str] = frozenset()) -> Path:
    """The base image of a suite, built when there is none that is young enough (70 to 120 s).

    + suite: release name, like `bookworm`
    + in_use: names of bases that running labs stand on; they are never removed

    Raises LabError when it can't be built and no older one with the same key is there.
    """
    plan = recipe(suite)
    folder = cache_dir() / "base"
    with locked(folder / "lock-tools"):  # labs that begin at once: apt waits for its lock on packages, not for that on its lists
        install_missing(plan.keyring)
    with locked(folder / f"lock-{suite}"):
        found = sorted(folder.glob(f"{suite}-{plan.key}-" + "[0-9]" * 8))
        if found and time.time() - found[-1].stat().st_mtime < MAX_AGE_S:
            return found[-1]
        for broken in folder.glob(f"{suite}-*.building"):  # whoever built it is dead: the lock is ours
            shutil.rmtree(broken)
        try:
            made = _build(plan, folder)
        except LabError as error:
            if not found:
                raise
            say(f"the base image is more than {MAX_AGE_S // 86400} days old and can't be renewed ({error}); using it")
            return found[-1]
        for old in folder.glob(f"{suite}-*"):
            if old != made and old.name not in in_use and time.time() - old.stat().st_mtime > MAX_AGE_S:
                shutil.rmtree(old)
        return made


def prepare(base: Path) -> Path:
    """The layer over a base that has the packages which a deploy installs, made when there is none (half a minute).

    Raises LabError when it can't be made.
    """
    suite = base.name.partition("-")[0]
    system = dict(line.split("=", 1) for line in (base / "etc/os-release").read_text().splitlines() if "=" in line)
    wanted = build.packages(*(system[key].strip("\"'") for key in ("ID", "VERSION_ID")))
    names = sorted({*wanted.build, *wanted.run})
    key = hashlib.sha256(json.dumps([PREPARE, names]).encode()).hexdigest()[:12]
    with locked(base.with_name(f"lock-{suite}")):
        final = base.with_name(f"{base.name}.prepared-{key}")
        if final.exists():
            return final
        aside = final.with_name(final.name + ".building")
        shutil.rmtree(aside, ignore_errors=True)  # whoever made it is dead: the lock is ours
        say(f"installing the packages of a deploy over the {suite} base image (once, half a minute) …")
        run(
            [*OWN_MOUNTS, "sh", "-c", PREPARE, "sh", base, aside, cache_dir() / "apt" / suite, *names],
            timeout=1800,
            env={"DEBIAN_FRONTEND": "noninteractive"},
        )
        (aside / "upper").rename(final)
        shutil.rmtree(aside)
        return final


def _build(plan: Recipe, folder: Path) -> Path:
    """debootstrap beside the final name, make it a base, rename. The caller holds the lock."""
    final = folder / f"{plan.suite}-{plan.key}-{time.strftime('%Y%m%d', time.gmtime())}"
    target = final.with_name(final.name + ".building")
    pool = cache_dir() / "apt" / plan.suite
    pool.mkdir(parents=True, exist_ok=True)
    say(f"building the {plan.suite} base image with debootstrap (once, one to two minutes) …")
    started = time.monotonic()
    proxies = dict(re.findall(r'Acquire::(https?)::Proxy "([^"]+)"', plan.apt_conf))
    run(
        [
            *OWN_MOUNTS,
            "--mount-proc",
            *("debootstrap", "--variant=minbase", f"--keyring={plan.keyring}", f"--cache-dir={pool}"),
            f"--include={','.join(PACKAGES)}",
            f"--components={','.join(c for c in plan.sources[0].components if c in ('main', 'universe'))}",
            *(plan.suite, target, plan.mirror),
        ],
        timeout=1800,
        # without fsync after every file (dpkg's own defaults are the other two)
        env={"DPKG_FORCE": "unsafe-io,security-mac,downgrade", **{f"{s}_proxy": value for s, value in proxies.items()}},
    )
    _configure(plan, target)
    os.utime(target)  # its age counts from here
    target.rename(final)
    say(f"base image ready after {time.monotonic() - started:.0f} s: {final}")
    return final


def _configure(plan: Recipe, target: Path) -> None:
    """Turn the bootstrapped tree into a base: sources, certificates, users, sshd, no identity of its own."""
    (target / "etc/apt/sources.list").unlink(missing_ok=True)
    write(target / "etc/apt/sources.list.d/lab.list", plan.sources_list)
    write(target / "etc/apt/apt.conf.d/90lab", plan.apt_conf + 'Acquire::Languages "none";\n')
    # A machine that is thrown away needs no fsync after each file of each package.
    write(target / "etc/dpkg/dpkg.cfg.d/lab", "force-unsafe-io\n")
    for name, pem in plan.certificates.items():
        write(target / LOCAL_CA / name, pem)
    write(
        target / "etc/ssh/sshd_config.d/lab.conf",
        "HostKey /etc/ssh/ssh_host_ed25519_key\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        "UseDNS no\nMaxStartups 100\nMaxSessions 100\n",
    )
    write(target / "etc/sudoers.d/deploy", "deploy ALL=(ALL) NOPASSWD: ALL\n", 0o440)
    write(target / "etc/default/locale", "LANG=C.UTF-8\n")
    timers = "apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer"
    shutil.copyfile("/etc/resolv.conf", target / "etc/resolv.conf")
    for command in (
        "update-ca-certificates",
        "useradd --create-home --shell /bin/bash deploy",
        "useradd --create-home --shell /bin/bash plain",
        "systemctl enable systemd-networkd.service ssh.service",
        f"systemctl mask {timers} console-getty.service systemd-networkd-wait-online.service",
        "apt-get -q update",
        "apt-get -qy upgrade",
        "apt-get clean",
    ):
        run(
            [*OWN_MOUNTS, f"--mount-proc={target}/proc", "chroot", target, *command.split()],
            timeout=900,
            env={"DEBIAN_FRONTEND": "noninteractive"},
        )
    for path in target.glob("etc/ssh/ssh_host_*"):
        path.unlink()
    for name in ("etc/machine-id", "etc/hostname", "etc/resolv.conf", "var/lib/dbus/machine-id"):
        (target / name).unlink(missing_ok=True)


def seed_archives(suite: str, machine: str) -> Path:
    """A machine's own apt archive folder, filled with hard links to every package that was downloaded before.

    apt locks its archive folder, so machines that install at the same time can't share one.
    """
    pool = cache_dir() / "apt" / suite
    folder = archives_of(machine)
    (folder / "partial").mkdir(parents=True, exist_ok=True)
    pool.mkdir(parents=True, exist_ok=True)
    for package in pool.glob("*.deb"):
        try:
            os.link(package, folder / package.name)
        except FileExistsError:
            continue
    return folder


def harvest_archives(suite: str, machine: str) -> None:
    """Keep what a machine downloaded for the next one, and remove its folder."""
    pool = cache_dir() / "apt" / suite
    for package in archives_of(machine).glob("*.deb"):
        try:
            os.link(package, pool / package.name)
        except FileExistsError:
            continue
    shutil.rmtree(archives_of(machine), ignore_errors=True)


def archives_of(machine: str) -> Path:
    """Where a machine's apt archive folder is, on the same file system as the pool."""
    return cache_dir() / "apt-hosts" / machine
