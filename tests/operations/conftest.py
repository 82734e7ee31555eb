"""The fixture of all tests here."""

from tests.operations.fake_hosts import converge

__all__ = ["converge"]
