"""`lab`, `tasks` and the rest are folders of the project, not installed packages; wherever pytest is started, they are found."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
