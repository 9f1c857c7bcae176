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
_LANGUAGE: dict[str, Any] = {"metavar": "LANGUAGE", "help": "Speak en or zh; by default what the system speaks."}
_DEBUG: dict[str, Any] = {"is_flag": True, "help": "Show a traceback when something fails."}


def language(f: F) -> F:
    """--lang"""
    return click.option(OPTION, expose_value=False, **_LANGUAGE)(f)


def shared(f: F) -> F:
    """--lang and --debug."""
    return language(click.option("--debug", expose_value=False, **_DEBUG)(f))


def shared_options() -> list[click.Parameter]:
    """The same, for a command that is made of parameters."""
    return [
        click.Option([OPTION], expose_value=False, **_LANGUAGE),
        click.Option(["--debug"], expose_value=False, **_DEBUG),
    ]
