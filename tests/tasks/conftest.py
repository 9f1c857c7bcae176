"""`run`: the command, inside the test's process and in an empty folder, as the tests of the command have it."""

from tests.cli.conftest import run

__all__ = ["run"]
