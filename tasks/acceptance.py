"""The server answers; only then its release counts."""

from pyinfra.api import deploy

from wsllama.operations import server


@deploy("acceptance")
def apply() -> None:
    server.accepted(name="accepted")
