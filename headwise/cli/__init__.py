"""The command `headwise`: one short file per subcommand.

Bad input prints one line on standard error and exits with code 2. `--help` and shell completion do not import torch:
each subcommand imports heavy packages inside its function.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Sequence
from itertools import chain, takewhile
from typing import Any

import click

import headwise
from headwise.cli.groups import GROUPS, WIDEST, Grouped
from headwise.cli.shared import shared
from headwise.cli.speaking import hint, speaking, take_language
from headwise.errors import HeadwiseError, TrainingInterrupted
from headwise.language import echo, printable, said, sentence_of

BAD_INPUT = 2
INTERRUPTED = 130
_formatted = warnings.formatwarning


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 for success, 2 for bad input, 130 when interrupted.

    `arguments` defaults to the command-line arguments of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # print "?" for characters the terminal cannot encode
            stream.reconfigure(errors="replace")
    debug = "--debug" in takewhile(lambda argument: argument != "--", given)
    try:
        arguments, asked = take_language(given)
    except click.UsageError as error:
        return _refuse(error, said("{told}.", told=sentence_of(error)), debug)
    warnings.formatwarning = _format_warning
    with speaking(asked):
        return _run(arguments, debug)


def _format_warning(*given: Any, **how: Any) -> str:
    return printable(_formatted(*given, **how))


def _run(arguments: list[str], debug: bool) -> int:
    try:
        return command.main(arguments, prog_name="headwise", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:  # headwise train, without a task
        error.show()
        return BAD_INPUT
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "headwise"
        message = said(error.format_message())
        if near := getattr(error, "possibilities", None):  # click would list all, the nearest anywhere
            message = said("{message} Did you mean {meant!r}?", message=error.message, meant=near[0])
        message = message if message.endswith((".", "?", "。", "？")) else said("{told}.", told=message)
        return _refuse(error, said("{message} See '{path} --help'.", message=message, path=path), debug)
    except click.ClickException as error:
        return _refuse(error, said(error.format_message()), debug)
    except TrainingInterrupted as error:
        return _refuse(error, said(sentence_of(error)), debug, INTERRUPTED)
    except HeadwiseError as error:
        return _refuse(error, said(sentence_of(error)), debug)
    except OSError as error:
        return _refuse(
            error,
            said("{error} (raised in {place}; --debug shows the traceback)", error=error, place=_place(error)),
            debug,
        )
    except (click.Abort, KeyboardInterrupt):
        echo(said("headwise: interrupted"), err=True)
        return INTERRUPTED
    except Exception:  # a mistake of headwise: Python would print the texts in it as they are
        echo(traceback.format_exc(), err=True)
        return 1


def _refuse(error: Exception, message: str, debug: bool, code: int = BAD_INPUT) -> int:
    if debug:
        echo(traceback.format_exc(), err=True)
    echo(f"headwise: {' '.join(message.split())}", err=True)
    if (advice := hint(error)) and message == str(error):  # it stayed English
        echo(f"  {advice}", err=True)
    return code


def _place(error: OSError) -> str:
    """Return file and line of the innermost call in an error's traceback that is not in the standard library."""
    standard, installed = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(installed) or not frame.filename.startswith((standard, "<"))
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}"


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from headwise.native.library import instruction_set, missing

        kernels = instruction_set() or said("off: {why}", why=missing())
        echo(said("headwise {version} (native kernels: {kernels})", version=headwise.__version__, kernels=kernels))
        context.exit()


@click.group(
    cls=Grouped,
    invoke_without_command=True,
    subcommand_metavar="COMMAND ...",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": WIDEST},
    help="Attention for PyTorch: build it, see it, check it, speed it up, ship it.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version and exit."
)
@shared
@click.pass_context
def command(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        echo(context.get_help())


for _name in chain.from_iterable(GROUPS.values()):  # a command is called as its module
    command.add_command(getattr(importlib.import_module(f"headwise.cli.{_name}"), _name))
