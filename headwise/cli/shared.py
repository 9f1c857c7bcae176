"""The options that the command and each of its verbs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from headwise.cli.speaking import OPTION

F = TypeVar("F", bound=Callable[..., object])

# What an option takes: the path of a file, and how many of something.
PATH: Any = {"type": click.Path(path_type=Path), "metavar": "PATH"}
COUNT: Any = {"type": click.IntRange(min=1), "metavar": "N"}

# `main` reads both before click does, wherever they stand: here they are for the help.
_LANGUAGE = "Speak en or zh; by default what the system speaks."
_DEBUG = "Show a traceback when something fails."


def language(f: F) -> F:
    """--lang"""
    return click.option(OPTION, expose_value=False, metavar="LANGUAGE", help=_LANGUAGE)(f)


def shared(f: F) -> F:
    """--lang and --debug."""
    return language(click.option("--debug", expose_value=False, is_flag=True, help=_DEBUG)(f))
