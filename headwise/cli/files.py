"""Reads the texts of a command, and checks the file that it will write."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from headwise.cli.unknown import tell_unknown
from headwise.errors import ArgumentError, FileError, shortened
from headwise.files import check_there, name_kind, replacing, similar_path
from headwise.language import Sentence, echo, join, said
from headwise.tasks.rows.chunks import opened
from headwise.tasks.rows.encodings import decode, recode

if TYPE_CHECKING:
    from headwise.text import Tokens

STDIN = "-"


@dataclass(frozen=True)
class NamedText:
    """A text, with its name in messages and its name on a page."""

    name: str  # in messages: its file, or its position on the command line
    title: str  # on a page: its file, or its first words
    text: str


def read_texts(texts: Sequence[str], files: Sequence[Path]) -> list[NamedText]:
    """Read the texts of the command line, then the files. A text `-`, or no argument at all, means standard input.

    Raises:
        FileError: a file is missing or not UTF-8.
        ArgumentError: a text is empty, or a word that is, or nearly is, the name of a file.
    """
    for text in texts:
        _check_no_path(text)
    if not texts and not files:
        if sys.stdin.isatty():
            raise click.UsageError(
                "Nothing to read: expected a TEXT, --file PATH, or text on standard input.", click.get_current_context()
            )
        texts = [STDIN]
    found = list(_read(texts, files))
    for each in found:
        if not each.text.strip():
            raise ArgumentError(
                Sentence("{name} is empty: expected at least one word. Received: {text!r}").format(
                    name=each.name, text=each.text[:20]
                )
            )
    return found


def _check_no_path(text: str) -> None:
    """Raise ArgumentError for a single word with a suffix that names a file, FileError if it nearly does."""
    if not re.fullmatch(r"\S{1,200}\.\w+", text):
        return
    if os.path.isfile(text):
        raise ArgumentError(Sentence("{text} is a file: expected a text, or --file {text}").format(text=text))
    if similar_path(Path(text), cutoff=0.8):
        check_there(Path(text))


def read_lines(files: Sequence[Path]) -> Iterator[NamedText]:
    """Yield each line of the files that is not empty, as one text. FileError as in `read_texts`."""
    for path in files:
        for number, line in enumerate(_lines(path), start=1):
            if line.strip():
                name = said("{path}, line {number}", path=path, number=number)
                text = decode(line.rstrip(b"\r\n"), f"--file {path}", number, path)
                yield NamedText(name, _beginning(text), text)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with opened(path) as lines:
            yield from lines
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            Sentence("--file {path}: {reason}. Expected a readable UTF-8 text file").format(
                path=path, reason=reason(error)
            )
        ) from error


def _read(texts: Sequence[str], files: Sequence[Path]) -> Iterator[NamedText]:
    for number, text in enumerate(texts, start=1):
        if text == STDIN:
            yield _read_stdin()
        else:
            name = said("TEXT") if len(texts) == 1 else said("TEXT {number}", number=number)
            # Python turns bytes of the command line that are not UTF-8 into lone surrogates.
            text = decode(text.encode("utf-8", "surrogateescape"), name)
            if _is_file(text):
                told = said("headwise: {name}: read as a text. To read the file: --file {text}", name=name, text=text)
                echo(told, err=True)
            yield NamedText(name, _beginning(text), text)
    for path in files:
        if str(path) == STDIN:
            yield _read_stdin()
        else:
            yield NamedText(str(path), path.name, decode(b"".join(_lines(path)), f"--file {path}"))


def _is_file(text: str) -> bool:
    try:
        return len(text) < 256 and Path(text).is_file()
    except (OSError, ValueError):
        return False


def _beginning(text: str) -> str:
    return shortened(" ".join(text[:200].split()), 60)


def read_stdin() -> str:
    """Read standard input as text. Raises FileError if it is in another encoding."""
    return decode(recode(sys.stdin.buffer.read(), "standard input"), "standard input")


def _read_stdin() -> NamedText:
    name = said("standard input")
    return NamedText(name, name, read_stdin())


def check_writable(path: Path, option: str, read: Iterable[Path] = (), what: str = "the input file") -> None:
    """Check that `path` can be written before the work for it begins. Leaves no file behind.

    Raises:
        FileError: the file cannot be written. The message names `option`.
        ArgumentError: the file is also one of the files in `read`, which the command reads; `what` says which.
    """
    try:
        if kind := name_kind(path):
            raise FileError(
                Sentence("{option} {path}: expected a file. Received: {kind}").format(
                    option=option, path=path, kind=kind
                )
            )
        if not path.parent.is_dir():
            raise FileError(
                Sentence("{option} {path}: the folder {parent} does not exist. Create it first").format(
                    option=option, path=path, parent=path.parent
                )
            )
        # Only an attempt to write also notices read-only disks and access control lists.
        if path.exists():
            path.open("r+b").close()
        tempfile.TemporaryFile(dir=path.parent).close()
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            Sentence("{option} {path}: cannot be written: {reason}. Choose another path").format(
                option=option, path=path, reason=reason(error)
            )
        ) from error
    if os.path.realpath(path) in map(os.path.realpath, read):  # Path.resolve raises at a link that leads to itself
        raise ArgumentError(
            Sentence("{option} {path}: this is {what}. Choose another file").format(option=option, path=path, what=what)
        )


@contextlib.contextmanager
def replaced(path: Path, option: str) -> Iterator[TextIO]:
    """A context with a text file to write, which then replaces an older file. FileError names `option`."""
    try:
        with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as out:
            yield out
    except OSError as error:
        raise FileError(
            Sentence("{option} {path}: cannot be written: {reason}. Choose another path").format(
                option=option, path=path, reason=reason(error)
            )
        ) from error


def reason(error: OSError) -> str:
    """Return the text of a system error, without its number and the file name."""
    return (error.strerror or str(error)).lower()


def encoded(named: NamedText, encode: Callable[[str, int | None], Tokens], limit: int | None) -> Tokens:
    """Tokenize a text. Prints which part of it was cut, and how many tokens the model does not know."""
    tokens = encode(named.text, limit)
    if tokens.cut:
        tell_cut(named, tokens)
    tell_unknown(named.name, tokens)
    return tokens


def tell_cut(named: NamedText, tokens: Tokens) -> None:
    """Print where a text was cut: how many tokens at its end, and the first words of this part."""
    rest = named.text[max(stop for _, stop in tokens.offsets) :].lstrip()
    line = named.text.count("\n", 0, len(named.text) - len(rest)) + 1
    start = " ".join(rest[:60].split())[:30]
    echo(
        said(
            "headwise: {name} is longer than the {count} tokens that the model reads: the last {cut} tokens were cut, "
            "from {start!r} on (line {line})",
            name=named.name,
            count=len(tokens.ids),
            cut=tokens.cut,
            start=start,
            line=line,
        ),
        err=True,
    )


def finish_page(target: Path, counts: str = "", *, open_page: bool) -> None:
    """Say that a page was written, with `counts` ("3 layers") of what is in it; open it in a browser if asked."""
    if open_page and webbrowser.open(target.resolve().as_uri()) is False:
        echo(said("headwise: no browser was found here"), err=True)
    inside = join(filter(None, (size(target.stat().st_size), counts)), "; ")
    echo(said("Wrote {target} ({inside}): open it in a browser; it needs no network.", target=target, inside=inside))


def size(count: int) -> str:
    """Return a number of bytes as text, in kB or MB."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
