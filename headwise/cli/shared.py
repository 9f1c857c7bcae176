"""Adds the options that the command `headwise` and each of its subcommands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from headwise.cli.speaking import OPTION

F = TypeVar("F", bound=Callable[..., object])

# Keyword arguments of options: for the path of a file, and for a number.
PATH: Any = {"type": click.Path(path_type=Path), "metavar": "PATH"}
COUNT: Any = {"type": click.IntRange(min=1), "metavar": "N"}

# `main` reads these two options before click does, wherever they are. Here they are declared for the help only.
_LANGUAGE = "Speak en or zh; by default what the system speaks."
_DEBUG = "Show a traceback when something fails."


def language(f: F) -> F:
    """Add the option --lang."""
    return click.option(OPTION, expose_value=False, metavar="LANGUAGE", help=_LANGUAGE)(f)


def shared(f: F) -> F:
    """Add the options --lang and --debug."""
    return language(click.option("--debug", expose_value=False, is_flag=True, help=_DEBUG)(f))
