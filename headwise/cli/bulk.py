"""Options, resuming and messages that are shared by the commands that write a file of any size in parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from headwise.cli.output import progress_bar
from headwise.cli.shared import COUNT
from headwise.errors import ArgumentError
from headwise.extras import need
from headwise.language import echo, said

_F = TypeVar("_F", bound=Callable[..., Any])
_INTERRUPTED = 130
_OF_RAY = {"workers": "--workers", "address": "--ray-address"}

_RESTART = click.option("--restart", is_flag=True, help="Delete the parts of an unfinished file and start again.")
_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        help="Where to compute: in this process, or on Ray workers.",
    ),
    click.option(
        "--workers", help="With --engine ray: worker processes, each of which loads the model.  [default: 2]", **COUNT
    ),
    click.option(
        "--ray-address", metavar="ADDRESS", help="The Ray cluster. Default: RAY_ADDRESS, or a new local cluster."
    ),
)


def bulk_options(command: _F) -> _F:
    """Add the options --restart, --engine, --workers and --ray-address."""
    return _RESTART(ray_options(command))


def ray_options(command: _F) -> _F:
    """Add the options --engine, --workers and --ray-address."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_ray(engine: str, **given: Any) -> None:
    """Raise ArgumentError if `workers` or `address` is given without --engine ray, or if Ray is not installed."""
    for name, flag in _OF_RAY.items():
        if given[name] is not None and engine != "ray":
            raise ArgumentError("{flag}: only Ray uses it. Add --engine ray", flag=flag)
    if engine == "ray":
        need("--engine ray", "ray")


@contextlib.contextmanager
def resumable(out: Path) -> Iterator[Callable[[int, int, str], None]]:
    """A context with the function that updates a progress bar. On Ctrl-C it says how to resume, and exits with 130."""
    try:
        with progress_bar() as tell:
            yield tell
    except KeyboardInterrupt:
        echo(said("headwise: interrupted; the same command resumes {out}, --restart starts again", out=out), err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None


def note(sentences: Sequence[str], before: int = 0) -> None:
    """Print notes, and how many rows an earlier, interrupted run had finished (`before`)."""
    for sentence in sentences:
        echo(said("note: {sentence}", sentence=sentence), err=True)
    if before:
        echo(said("note: {before:,} of the rows were finished before", before=before), err=True)
