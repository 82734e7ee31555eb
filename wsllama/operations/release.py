"""What a release of a host is made of, from what the earlier stages left there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyinfra import state

from wsllama import layout
from wsllama.domain import drift, limits, memory, server_flags, stages, systemd
from wsllama.domain.stages import Stage
from wsllama.facts import probe
from wsllama.operations import llama_cpp, model, plan
from wsllama.operations.base import Later, Refused
from wsllama.operations.files import render
from wsllama.operations.server import Release, wants_gpu
from wsllama.settings import Server, Settings

# Settings of the topic server that the server itself doesn't know: they change without a new release.
BESIDE = {"watchdog", "watchdog_timeout_s"}


def looks(settings: Settings) -> probe.Looks:
    """What `wanted` looks at."""
    return probe.together(llama_cpp.looks(settings), model.looks(settings), plan.looks(settings))


def unit_text(settings: Settings, ram: Mapping[str, int] | None = None) -> str:
    """The unit that the settings ask for. ram: the part of its plan in RAM, where there is a plan."""
    lock_memory = "mlock" in settings.server.load_mode
    return render(
        "llama-server.service.j2",
        current=layout.CURRENT,
        unit=layout.UNIT,
        user=layout.USER,
        wsl=settings.platform == "wsl",
        loopback=server_flags.is_loopback(settings.server.host),
        lock_memory=lock_memory,
        # Locked pages can't be taken back, and llama.cpp locks a file from its start: more than a plan counts.
        memory_max=limits.memory_max(settings.server.memory_max, None if lock_memory else ram),
    )


def _planned(
    now: Any, settings: Settings, mmproj: str | None, stage: Stage | None
) -> tuple[Server, dict[str, Any] | None, Stage]:
    """The topic `server` of a stage, by default of the last one, the plan with its figures, and the last one. Raises Refused."""
    server, planned = plan.planned(now, settings)
    if planned and state.is_executing and not plan.fits_now(now, planned):
        raise Refused(
            f"the server is not started: its plan takes {memory.text(planned['ram'])} of RAM, and the guest has"
            f" {memory.text(now['system']['memory_total'])} until WSL is started again: run `wsl --shutdown`, then this"
        )
    last = stages.path(server.ctx_size, mmproj, server.host)[-1]
    stage = stage or last
    server = server.model_copy(update={"ctx_size": stage.ctx_size, "host": stage.host})
    if planned and planned.get("stage", last.name) != stage.name:  # it was recorded by another stage
        planned = {**plan.of_stage(now, settings, planned, server, bool(stage.mmproj)), "stage": stage.name}
    return server, planned, last


def wanted(now: Any, settings: Settings, stage: Stage | None = None) -> Release:
    """The release that the settings ask for, as planned, or that of a stage on the way. Raises Later while its build or its model
    isn't there, Refused when it can't fit."""
    build = llama_cpp.build_id(now, settings)
    if not now["builds"][layout.BUILDS].get(build):
        raise Later(f"build {build} is not there yet")
    found = model.installed_files(now, settings)
    if found is None:
        raise Later("the model is not there yet")
    mmproj = found.pop() if settings.model.mmproj else None
    server, planned, last = _planned(now, settings, mmproj, stage)
    stage = stage or last
    file, others = found[0], found[1:]
    folder, name = file.rsplit("/", 1)
    words = server_flags.arguments(server, settings.model.alias, f"{layout.CURRENT}/model/{name}", layout.API_KEY)
    beside, recorded = {}, {"file": file, "sha256": now["models"][layout.MODELS][file]["sha256"], "alias": settings.model.alias}
    if stage.mmproj:
        projectors, projector = stage.mmproj.rsplit("/", 1)
        beside["mmproj"] = f"{layout.MODELS}/{projectors}"
        words += ["--mmproj", f"{layout.CURRENT}/mmproj/{projector}"]
        others, recorded["mmproj"] = [*others, stage.mmproj], stage.mmproj
    environment = {"LD_LIBRARY_PATH": "/usr/lib/wsl/lib"} if settings.platform == "wsl" else {}
    if planned and len(planned["memory"]["gpus"]) > 1:
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi counts, by which layers are split; CUDA's own is by speed
    recorded["bytes"] = sum(now["models"][layout.MODELS][each]["size"] for each in (file, *others))
    return Release(
        links={"build": f"{layout.BUILDS}/{build}", "model": f"{layout.MODELS}/{folder}", **beside},
        files={
            "env": systemd.environment_file(environment),
            "unit": unit_text(settings.model_copy(update={"server": server}), planned["memory"]["ram"] if planned else None),
        },
        record={
            "build": build,
            "commit": llama_cpp.commit_of(settings),
            "model": {**recorded, **({"others": others} if others else {})},
            "server": server.model_dump(mode="json", exclude=BESIDE),
            "gpu": wants_gpu(settings),
            "plan": drift.sealed(planned) if planned else planned,
            "stage": stage.name,
            "final": stage == last,
        },
        words=words,
    )
