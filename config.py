"""pyinfra reads this before the inventory: what version we need, and the guard that refuses before anything connects."""

import os
import sys

from pyinfra import config

config.REQUIRE_PYINFRA_VERSION = ">=3.10,<3.11"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # before anything that is called tasks or tests elsewhere

try:
    from wsllama import guard
except ModuleNotFoundError as e:
    sys.exit(f"this pyinfra ({sys.prefix}) lacks {e.name}: run scripts/setup and use the pyinfra that it makes")

guard.install()
