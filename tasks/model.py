"""The model's file, verified."""

from pyinfra import host
from pyinfra.api import deploy

from wsllama.guard import settings_of
from wsllama.operations import model


@deploy("model")
def apply() -> None:
    model.installed(settings_of(host), name="model")
