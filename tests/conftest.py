"""What holds for all tests: blocking calls are cooperative, as in the pyinfra command, and the project's folders are found.

pyinfra's command line patches them when it is imported. Late, beside threads that run already, that stops a session for
good; so it is done here, before any test is read.
"""

import os
import sys
from pathlib import Path

import gevent.monkey
from hypothesis import HealthCheck, settings

gevent.monkey.patch_all()

# `lab`, `tasks` and the rest are folders of the project, not installed packages; wherever pytest is started, they are found.
sys.path.insert(0, str(Path(__file__).parents[1]))

# No test asserts a time, nor gives up because examples are made slowly: machines are busy. And it tries the same everywhere,
# but for `scripts/test --full`, which looks for new ones.
same = "WSLLAMA_TEST_FULL" not in os.environ
settings.register_profile("wsllama", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=same)
settings.load_profile("wsllama")
