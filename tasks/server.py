"""The service: key, stages, release, unit, running."""

from functools import partial

from pyinfra import host
from pyinfra.api import deploy

from wsllama import layout
from wsllama.guard import settings_of
from wsllama.operations import server, stages, watch, watchdog
from wsllama.operations.release import looks, wanted


@deploy("server")
def apply() -> None:
    settings = settings_of(host)
    if settings.server.api_key:
        server.secret(layout.API_KEY, layout.USER, name="API key")
    looked_at, release = looks(settings), partial(wanted, settings=settings)
    stages.walked(settings, name="stages before")
    server.release(looked_at, release, name="release")
    server.unit(looked_at, release, name="unit")
    server.service(server.read_at_start(settings.server.api_key), looked_at, release, name="service")
    watchdog.watchdog(settings, name="watchdog")
    watch.watch(settings, name="GPU watch")
