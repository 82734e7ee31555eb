"""The server answers; only then its release counts, other machines get in, and what only earlier ones needed may go."""

from pyinfra import host
from pyinfra.api import deploy

from wsllama.guard import settings_of
from wsllama.operations import exposure, model, server


@deploy("acceptance")
def apply() -> None:
    settings = settings_of(host)
    server.accepted(name="accepted")
    if settings.platform == "wsl" and settings.wsl.windows:
        exposure.administrator(settings, accepted=True, name="other machines let in")
    model.kept(settings, name="old models")
