"""A deploy of the model alone, for tests: the service's user and our folders, as the whole deploy makes them, then the model."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import tasks.model
from wsllama import guard, layout
from wsllama.guard import settings_of
from wsllama.operations import files, model
from wsllama.operations.base import deferred_detection

guard.required()
with deferred_detection():
    from pyinfra import host

    files.user(layout.USER, layout.STATE, name="user of the service")
    files.directories({p: {} for p in (layout.STATE, layout.MODELS, layout.CACHE, layout.ROOT)}, name="folders")
    tasks.model.apply()
    model.kept(settings_of(host), name="old models")
