"""llama.cpp, built from source by one host for all that are like it."""

from pyinfra import host
from pyinfra.api import deploy

from wsllama.guard import settings_of
from wsllama.operations import llama_cpp


@deploy("llama.cpp")
def apply() -> None:
    settings = settings_of(host)
    llama_cpp.announce(settings, name="what is lacking")
    llama_cpp.build(settings, name="build")
    llama_cpp.receive(settings, name="receive")
