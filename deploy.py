"""The whole provisioning in order: one line a stage."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import tasks.acceptance
import tasks.cuda
import tasks.distro
import tasks.llama_cpp
import tasks.model
import tasks.preflight
import tasks.server
import tasks.windows
from wsllama import guard
from wsllama.operations.base import deferred_detection

guard.required()
with deferred_detection():
    tasks.preflight.apply()
    tasks.windows.apply()
    tasks.cuda.apply()
    tasks.distro.apply()
    tasks.llama_cpp.apply()
    tasks.model.apply()
    tasks.server.apply()
    tasks.acceptance.apply()
