"""Writes the output of commands: a report, a JSON file, and progress on a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headwise.cli.files import check_writable, replaced
from headwise.errors import ArgumentError
from headwise.language import echo, said
from headwise.tables import make_console

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

STDOUT = Path("-")

Say = Callable[[str], None]
_WIDTH = 110  # columns of a report that goes into a log
_F = TypeVar("_F", bound=Callable[..., Any])


def file_option(flag: str, says: str) -> Callable[[_F], _F]:
    """Make an option for a file to write, or - for standard output; the command ends at once if it is not writable."""

    def check(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and path != STDOUT:
            check_writable(path, flag)
        return path

    kind = click.Path(path_type=Path, allow_dash=True)
    return click.option(flag, f"{flag[2:]}_path", type=kind, metavar="PATH", callback=check, help=says)


json_option = file_option("--json", "Write JSON; - is standard output.")


def check_served(out: Path | None, port: int | None, *, serve: bool) -> None:
    """Raise ArgumentError for --out together with --serve, or for --port without --serve."""
    if serve and out is not None:
        raise ArgumentError("--out {out}: --serve writes no page. Leave --out or --serve out", out=out)
    if port is not None and not serve:
        raise ArgumentError(
            "--port {port}: only --serve listens on a port. Add --serve, or leave --port out", port=port
        )


def print_report(report: Any) -> None:
    """Print an object of rich. If the output is not a terminal: no colours, no blanks at the ends of lines."""

    console = make_console(highlight=False)
    if console.is_terminal:
        console.print(report)
        return
    text = io.StringIO()
    make_console(file=text, width=_WIDTH, color_system=None, legacy_windows=False, emoji=False).print(report)
    echo("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def plain_table() -> Table:
    """Make a new table of rich with a line below its header."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, show_edge=False)


def titled(title: str, table: Table) -> Group:
    """Put a title above a table; the title is not wrapped to the width of the table."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(title, style="bold", no_wrap=True, overflow="ignore"), table)


def write_json(path: Path, option: str, content: Mapping[str, Any]) -> None:
    """Write a JSON object to a file or to standard output.

    NaN and infinity, which JSON lacks, become null and "inf".
    """
    text = json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if path == STDOUT:
        echo(text, nl=False)
        return
    with replaced(path, option) as out:
        out.write(text)
    echo(said("headwise: wrote {path}", path=path), err=True)


def _plain(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {str(key): _plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(value) for value in x]
    if isinstance(x, float) and x != x:
        return None
    if isinstance(x, float) and x in (float("inf"), float("-inf")):
        return "inf" if x > 0 else "-inf"
    return x


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """A context with a progress bar on a terminal; it gives the function (done, total, what) that updates the bar.

    A total of 0 means unknown.
    """
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = make_console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def tell(done: int, total: int, what: str) -> None:
            text = escape(said(what))
            progress.update(task, completed=done, total=total or None, description=text, refresh=not done)

        yield tell


@contextlib.contextmanager
def standard_output_kept() -> Iterator[None]:
    """A context in which everything printed goes to standard error: by Python, C libraries and child processes.

    So standard output is free for the result of the command.
    """
    with contextlib.redirect_stdout(sys.stderr):
        try:
            kept = os.dup(1)
            os.dup2(2, 1)
        except OSError:  # there is no such descriptor
            yield
            return
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


@contextlib.contextmanager
def working(what: str) -> Iterator[Say]:
    """A context that says on a terminal what is being done; it gives the function that changes this sentence."""
    from rich.markup import escape

    with make_console(stderr=True).status(f"{escape(said(what))} …") as status:
        yield lambda now: status.update(f"{escape(said(now))} …")
