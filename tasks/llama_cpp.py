"""llama.cpp, built from source."""

from pyinfra import host
from pyinfra.api import deploy

from wsllama.guard import settings_of
from wsllama.operations import llama_cpp


@deploy("llama.cpp")
def apply() -> None:
    llama_cpp.build(settings_of(host), name="build")
