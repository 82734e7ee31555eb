"""What can be known to be wrong on a host is refused before its first change."""

from pyinfra import host
from pyinfra.api import deploy

from wsllama.guard import settings_of
from wsllama.operations import preflight


@deploy("preflight")
def apply() -> None:
    preflight.ready(settings_of(host), name="host is ready")
