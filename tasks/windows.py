"""WSL itself: its two files say what is wanted, and it runs with that, before anything long begins."""

from functools import partial

from pyinfra import host
from pyinfra.api import deploy

from wsllama.guard import settings_of
from wsllama.operations import exposure, keep_alive, lean, plan, windows


@deploy("Windows")
def apply() -> None:
    settings = settings_of(host)
    if settings.platform == "wsl":
        memory = partial(plan.guest_memory, settings=settings)
        windows.config(settings, plan.looks(settings), memory, name="WSL's settings")  # first: it refuses before any change
        lean.lean(settings.distro.lean, name="lean distro")
        if settings.wsl.windows:
            keep_alive.kept(settings, name="started at logon")
            exposure.administrator(settings, accepted=False, name="what an administrator has to do")
        windows.in_effect(settings, name="WSL runs with them")
