"""`reviews_run`: a run folder of `classify`, as the tests of the command have it."""

from tests.cli.conftest import reviews_run

__all__ = ["reviews_run"]
