"""What holds for all tests: blocking calls are cooperative, as in the pyinfra command, and the project's folders are found.

pyinfra's command line patches them when it is imported. Late, beside threads that run already, that stops a session for
good; so it is done here, before any test is read.
"""

import sys
from pathlib import Path

import gevent.monkey
from hypothesis import settings

gevent.monkey.patch_all()

# `lab`, `tasks` and the rest are folders of the project, not installed packages; wherever pytest is started, they are found.
sys.path.insert(0, str(Path(__file__).parents[1]))

settings.register_profile("wsllama", deadline=None)  # no test asserts a time: machines are busy
settings.load_profile("wsllama")
