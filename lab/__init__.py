"""Throw-away hosts for the demo and the tests: systemd machines in containers, real sshd, real network.

Standard library only: it runs before and beside the project's venv. See docs/lab.md.
"""

from lab.lab import Host, Lab
from lab.tools import LabError

__all__ = ["Host", "Lab", "LabError"]
