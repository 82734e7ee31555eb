"""The same end state by pyinfra's own operations, as one would write it. python -m benchmarks.fleet runs it."""

import json
from pathlib import Path

from pyinfra import host
from pyinfra.facts.files import Directory
from pyinfra.operations import apt, files, server, systemd

spec = json.loads(Path(host.data.spec).read_text())["spec"]
user, build = spec["user"], spec["build"]

server.group(name="group", group=user["name"], system=True)
server.user(
    name="user",
    user=user["name"],
    group=user["name"],
    home=user["home"],
    shell="/usr/sbin/nologin",
    system=True,
    create_home=False,
    ensure_home=False,
)
for f in spec["apt_conf"]:
    files.put(name=f["path"], src=f["source"], dest=f["path"], mode=f["mode"], user=f["user"], group=f["group"])
apt.packages(name="packages", packages=spec["packages"], no_recommends=True, update=True, cache_time=3600)
for d in spec["directories"]:
    files.directory(name=d["path"], path=d["path"], mode=d["mode"], user=d["user"], group=d["group"])
if not host.get_fact(Directory, path=f"{build['folder']}/bin"):
    files.put(name="build sent", src=build["archive"], dest="/var/cache/build.tar.gz")
    server.shell(name="build unpacked", commands=[f"tar -xzf /var/cache/build.tar.gz -C {build['folder']}"])
    files.file(name="archive removed", path="/var/cache/build.tar.gz", present=False)
links = [files.link(name=ln["path"], path=ln["path"], target=ln["target"]) for ln in spec["links"]]
put = [
    files.put(name=f["path"], src=f["source"], dest=f["path"], mode=f["mode"], user=f["user"], group=f["group"])
    for f in spec["files"]
]


def changed() -> bool:
    """Whether anything that the services read has changed."""
    return any(op.did_change() for op in [*put, *links])


systemd.daemon_reload(name="units read", _if=changed)
for unit in (spec["unit"], spec["watchdog"]):
    systemd.service(name=unit, service=unit, running=True, enabled=True)
    systemd.service(name=f"{unit} started again", service=unit, running=True, restarted=True, _if=changed)
server.shell(name="accepted", commands=[spec["accept"]])
