"""The distro: the service's user, our folders, the way to the outside, packages."""

from pathlib import Path

from pyinfra import host
from pyinfra.api import deploy

from wsllama import layout
from wsllama.domain import network
from wsllama.guard import settings_of
from wsllama.operations import files, llama_cpp
from wsllama.operations.files import File


@deploy("distro")
def apply() -> None:
    settings = settings_of(host)
    proxy, ca_file = settings.network.proxy, settings.network.ca_file
    files.user(layout.USER, layout.STATE, name="user of the service")
    of_service = {"group": layout.USER, "mode": "750"}
    ours: dict[str, dict[str, str]] = {
        p: {} for p in (layout.STATE, layout.MODELS, layout.CACHE, layout.SOURCES, layout.ROOT, layout.BUILDS, layout.RELEASES)
    }
    files.directories({layout.ETC: of_service, **ours}, name="folders")
    wanted = [File(layout.APT_CONF, network.apt_conf(proxy, layout.CA_FILE if ca_file else None))]
    wanted += [File(layout.CA_FILE, Path(ca_file).read_text(encoding="utf-8"))] if ca_file else []
    files.files(wanted, absent=[] if ca_file else [layout.CA_FILE], name="apt and certificates")
    llama_cpp.packages(settings, name="packages")
