"""Sets the language of the command's output: of `--lang`, before or after the subcommand, else of the system.

Help is translated where click writes it: a `HelpFormatter` that looks up each paragraph and each option.
"""

from __future__ import annotations

import contextlib
import gettext
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import click

from headwise import language
from headwise.errors import (
    CheckpointError,
    DoctorError,
    DtypeError,
    ExportError,
    FileError,
    KernelRefused,
    MaskError,
    RecordError,
    ShapeError,
    TrainingError,
    TrainingInterrupted,
    WorksheetError,
    brief,
)
from headwise.language import Sentence, echo, said
from headwise.tables import width, wrap

OPTION = "--lang"


def take_language(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Take --lang out of the arguments: return (the other arguments, the language that it names or None).

    --lang may be anywhere before a `--`. Raises click.UsageError for a language that headwise does not speak.
    """
    stop = arguments.index("--") if "--" in arguments else len(arguments)
    rest, found, given = [], None, iter(arguments[:stop])
    for argument in given:
        name, equals, value = argument.partition("=")
        if name != OPTION:
            rest.append(argument)
            continue
        tag = value if equals else next(given, "")
        found = language.known(tag)
        if found is None:
            raise click.UsageError(
                Sentence("{option}: expected {languages}. Received: {tag}").format(
                    option=OPTION, languages=" or ".join(language.LANGUAGES), tag=brief(tag)
                )
            )
    return [*rest, *arguments[stop:]], found


@contextlib.contextmanager
def speaking(asked: str | None) -> Iterator[None]:
    """A context in which the command and its help are in this language; None = the system's language."""
    usual = click.Context.formatter_class
    language.speak(asked or language.of_the_system(os.environ), asked=asked is not None)
    given = os.environ.get(language.VARIABLE, "")
    if given and language.known(given) is None:
        expected = " or ".join(language.LANGUAGES)
        told = said(
            "{option}: expected {languages}. Received: {tag}",
            option=language.VARIABLE,
            languages=expected,
            tag=brief(given),
        )
        echo(f"headwise: {told}", err=True)
    if language.language() != "en":
        click.Context.formatter_class = _Help
        _translate_click(said, _said_of_several)
    try:
        yield
    finally:
        click.Context.formatter_class = usual
        _translate_click(gettext.gettext, gettext.ngettext)
        language.speak(None)


def _translate_click(one: Callable[[str], str], several: Callable[[str, str, int], str]) -> None:
    """Replace the two functions of gettext by which click translates its own sentences."""
    for module in (click.core, click.exceptions, click.parser, click.types):
        for name, function in (("_", one), ("ngettext", several)):
            if hasattr(module, name):
                setattr(module, name, function)


def _said_of_several(one: str, several: str, count: int) -> str:
    return said(one if count == 1 else several)


def hint(error: Exception) -> str:
    """Return advice for an error, in the language in use; "" in English, where the message itself has the advice."""
    if language.language() == "en":
        return ""
    if install := re.search(r"pip install( -U)?( \"[^\"]*\"| \w[\w-]*)+", str(error)):
        return said("Run {command}", command=install[0])
    return next(said(text) for kind, text in _HINTS if isinstance(error, kind))


# The first entry whose class fits is used. The message itself stays English, so that people find it on the web.
_HINTS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (click.UsageError, "The command line was not understood: `--help` lists the options."),
    ((ShapeError, MaskError), "The shapes do not fit: compare the lengths, the heads and the widths that it names."),
    (DtypeError, "A value has the wrong type: compare what was expected with what was received."),
    (KernelRefused, "This kernel cannot run the call: leave the kernel out, and the plan chooses one."),
    (CheckpointError, "The checkpoint cannot be used: check its path, and that it is complete."),
    (RecordError, "The record cannot answer this: see the end of the message."),
    (TrainingInterrupted, "The training was stopped and its state saved: the same command with --resume goes on."),
    (TrainingError, "The training cannot go on: see the end of the message."),
    (DoctorError, "The doctor could not call the module: say how, by --set or --spec."),
    (WorksheetError, "A worksheet shows small computations: use fewer tokens or heads."),
    (ExportError, "Nothing was written: see the end of the message for another format or precision."),
    ((FileError, OSError), "A file cannot be read or written: check its path and your permissions."),
    (Exception, "An argument has an invalid value: the message says what was expected and what was received."),
)


class _Help(click.HelpFormatter):
    """Writes help in the language in use, wrapped by its width on a terminal: Chinese letters are wide."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, said("Usage: ") if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{said(heading)}{said(':')}\n")

    def write_text(self, text: str) -> None:
        for number, paragraph in enumerate(re.split(r"\n\s*\n", text)):
            indent = " " * self.current_indent
            lines = (
                list(map(said, paragraph.splitlines()[1:]))
                if paragraph.startswith("\b")
                else self._lines(paragraph, len(indent))
            )
            self.write("\n" * bool(number) + "".join(f"{indent}{line}\n" for line in lines))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        rows = list(rows)
        first_column = min(max(width(first) for first, _ in rows), col_max) + col_spacing
        for first, second in rows:
            margin = " " * (self.current_indent + first_column)
            lines = self._lines(second, len(margin)) or [""]
            begins = f"{'':>{self.current_indent}}{first}"
            fits = width(first) <= first_column - col_spacing
            self.write(begins + " " * (len(margin) - width(begins)) if fits else f"{begins}\n{margin}")
            self.write(f"\n{margin}".join(lines) + "\n")

    def _lines(self, text: str, indented: int) -> list[str]:
        return wrap(_translated(text), max(self.width - indented, 10))


def _translated(text: str) -> str:
    """Translate a paragraph of help, and what click adds to the help of an option: "[default: 8; x>=1]"."""
    sentence, *added = re.split(r"  (?=\[)", " ".join(text.split(" ")))
    return "  ".join([said(" ".join(sentence.split())), *map(_added, added)])


def _added(text: str) -> str:
    return re.sub(r"(default|required)(: )?", lambda word: said(word[1]) + (said(":") if word[2] else ""), text)
