"""The service: key, unit, release, running."""

from functools import partial

from pyinfra import host
from pyinfra.api import deploy

from wsllama import layout
from wsllama.guard import settings_of
from wsllama.operations import server
from wsllama.operations.files import File
from wsllama.operations.release import looks, unit_text, wanted


@deploy("server")
def apply() -> None:
    settings = settings_of(host)
    read_at_start = [layout.UNIT_FILE]
    if settings.server.api_key:
        read_at_start += [layout.API_KEY]
        server.secret(layout.API_KEY, layout.USER, name="API key")
    looked_at, release = looks(settings), partial(wanted, settings=settings)
    server.release(looked_at, release, name="release")
    server.unit(File(layout.UNIT_FILE, unit_text(settings)), name="unit")
    server.service(read_at_start, looked_at, release, name="service")
