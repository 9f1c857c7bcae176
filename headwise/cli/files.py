"""The texts a command reads, and the file it will write."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwise.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from headwise.text import Tokens

STDIN = "-"


@dataclass(frozen=True)
class NamedText:
    """A text, and what to call it."""

    name: str  # in messages: its file, or its place on the command line
    title: str  # on a page: its file, or how it begins
    text: str


def read_texts(texts: Sequence[str], files: Sequence[Path]) -> list[NamedText]:
    """The texts of the command line, then those of the files; standard input for `-`, or when nothing is given.

    Raises `FileError` for a file that is missing or not UTF-8, `ArgumentError` for an empty text.
    """
    if not texts and not files:
        if sys.stdin.isatty():
            raise click.UsageError(
                "Nothing to read: expected a TEXT, --file PATH, or text on standard input.", click.get_current_context()
            )
        texts = [STDIN]
    found = list(_read(texts, files))
    for each in found:
        if not each.text.strip():
            raise ArgumentError(f"{each.name} is empty: expected at least one word, received {each.text[:20]!r}")
    return found


def _read(texts: Sequence[str], files: Sequence[Path]) -> Iterator[NamedText]:
    for number, text in enumerate(texts, start=1):
        if text == STDIN:
            yield _read_stdin()
        else:
            name = "TEXT" if len(texts) == 1 else f"TEXT {number}"
            # Bytes of the command line that are not UTF-8 reach Python as lone surrogates.
            text = _decode(text.encode("utf-8", "surrogateescape"), name)
            yield NamedText(name, _beginning(text), text)
    for path in files:
        yield _read_stdin() if str(path) == STDIN else _read_file(path)


def _beginning(text: str) -> str:
    words = " ".join(text[:200].split())
    return words if len(words) <= 60 else f"{words[:60]}…"


def _read_stdin() -> NamedText:
    return NamedText("standard input", "standard input", _decode(sys.stdin.buffer.read(), "standard input"))


def _read_file(path: Path) -> NamedText:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"--file {path}: {reason(error)}; expected a readable UTF-8 text file") from error
    return NamedText(str(path), path.name, _decode(data, f"--file {path}"))


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8").removeprefix("\ufeff")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileError(
            f"{name} is not UTF-8: received byte 0x{data[error.start]:02x} at offset {error.start} (line {line}); "
            "save it as UTF-8 first, for example with iconv"
        ) from error


def check_writable(path: Path, option: str) -> None:
    """Make sure that `path` can be written, before work is spent on what goes into it; leaves nothing behind.

    Raises `FileError` naming `option` otherwise.
    """
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"{option} {path}: expected a file to write, received a {_kind(path)}")
        if not path.parent.is_dir():
            raise FileError(f"{option} {path}: there is no folder {path.parent}; make it first")
        # Trying is the only test that also knows about read-only disks and access lists.
        if path.exists():
            path.open("r+b").close()
        tempfile.TemporaryFile(dir=path.parent).close()
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{option} {path}: cannot be written: {reason(error)}; choose another place") from error


def _kind(path: Path) -> str:
    return "folder" if path.is_dir() else "device"


def reason(error: OSError) -> str:
    """What the system said, without the number and the name of the file."""
    return (error.strerror or str(error)).lower()


def tell_cut(named: NamedText, tokens: Tokens) -> None:
    """Say which end of a text the model did not read."""
    rest = named.text[max(stop for _, stop in tokens.offsets) :].lstrip()
    line = named.text.count("\n", 0, len(named.text) - len(rest)) + 1
    start = " ".join(rest[:60].split())[:30]
    click.echo(
        f"headwise: {named.name} is longer than the {len(tokens.ids)} tokens the model reads: "
        f"the last {tokens.cut} were cut, from {start!r} on (line {line})",
        err=True,
    )


def size(count: int) -> str:
    """Bytes as people read them."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
