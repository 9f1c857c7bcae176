"""Adds the options that the command `headwise` and each of its subcommands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from headwise.cli.speaking import OPTION
from headwise.tasks.rows.encodings import encoded_as

F = TypeVar("F", bound=Callable[..., object])

# Keyword arguments of options: for the path of a file, and for a number.
PATH: Any = {"type": click.Path(path_type=Path), "metavar": "PATH"}
COUNT: Any = {"type": click.IntRange(min=1), "metavar": "N"}

# `main` reads these two options before click does, wherever they are. Here they are declared for the help only.
_LANGUAGE = "Speak en or zh; by default what the system speaks."
_ENCODING = "The encoding of the text files that are read, such as gbk.  [default: utf-8]"
_DEBUG = "Show a traceback when something fails."


def language(f: F) -> F:
    """Add the option --lang."""
    return click.option(OPTION, expose_value=False, metavar="LANGUAGE", help=_LANGUAGE)(f)


def encoding(f: F) -> F:
    """Add the option --encoding, for as long as the command runs."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        context.with_resource(encoded_as(value))

    return click.option("--encoding", metavar="NAME", expose_value=False, callback=read, help=_ENCODING)(f)


def shared(f: F) -> F:
    """Add the options --lang and --debug."""
    return language(click.option("--debug", expose_value=False, is_flag=True, help=_DEBUG)(f))
