"""What a release of a host is made of, from what the earlier stages left there."""

from __future__ import annotations

from typing import Any

from wsllama import layout
from wsllama.domain import server_flags, systemd
from wsllama.facts import probe
from wsllama.operations import llama_cpp, model
from wsllama.operations.base import Later
from wsllama.operations.files import render
from wsllama.operations.server import Release, wants_gpu
from wsllama.settings import Settings


def looks(settings: Settings) -> probe.Looks:
    """What `wanted` looks at."""
    return probe.together(llama_cpp.looks(settings), model.looks(settings))


def unit_text(settings: Settings) -> str:
    """The unit that the settings ask for."""
    return render(
        "llama-server.service.j2",
        current=layout.CURRENT,
        unit=layout.UNIT,
        user=layout.USER,
        wsl=settings.platform == "wsl",
        loopback=server_flags.is_loopback(settings.server.host),
        lock_memory="mlock" in settings.server.load_mode,
    )


def wanted(now: Any, settings: Settings) -> Release:
    """The release that the settings ask for. Raises Later while its build or its model isn't there."""
    build = llama_cpp.build_id(now, settings)
    if not now["builds"][layout.BUILDS].get(build):
        raise Later(f"build {build} is not there yet")
    file = model.installed_file(now, settings)
    if file is None:
        raise Later("the model is not there yet")
    folder, name = file.rsplit("/", 1)
    words = server_flags.arguments(settings.server, settings.model.alias, f"{layout.CURRENT}/model/{name}", layout.API_KEY)
    environment = {"LD_LIBRARY_PATH": "/usr/lib/wsl/lib"} if settings.platform == "wsl" else {}
    sha256 = now["models"][layout.MODELS][file]["sha256"]
    return Release(
        links={"build": f"{layout.BUILDS}/{build}", "model": f"{layout.MODELS}/{folder}"},
        files={
            "env": systemd.environment_file(environment),
            "unit": unit_text(settings),
        },
        record={
            "build": build,
            "commit": llama_cpp.commit_of(settings),
            "model": {"file": file, "sha256": sha256, "alias": settings.model.alias},
            "server": settings.server.model_dump(mode="json"),
            "gpu": wants_gpu(settings),
        },
        words=words,
    )
