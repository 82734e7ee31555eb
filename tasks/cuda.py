"""CUDA: what hides the GPU is refused before the first change. The toolkit itself is brought where a build is made."""

from pyinfra import host
from pyinfra.api import deploy

from wsllama.guard import settings_of
from wsllama.operations import cuda


@deploy("CUDA")
def apply() -> None:
    settings = settings_of(host)
    if settings.backend == "cuda":
        cuda.guards(settings, name="GPU can be used")
