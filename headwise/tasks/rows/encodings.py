"""Decodes text files: as UTF-8, or in the encoding that the user names. The refusal of others says what they may be."""

from __future__ import annotations

import codecs
import contextlib
import gzip
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from headwise.errors import ArgumentError, FileError
from headwise.language import Sentence

_encoding: ContextVar[str] = ContextVar("encoding", default="utf-8")

_NARROW = ["gbk", "gb18030", "big5", "shift_jis", "cp932", "euc_kr", "cp949", "cp1252", "cp1251"]
_WIDE = ["utf_16", "utf_16_le", "utf_16_be"]  # a line end in them has a zero byte


@contextlib.contextmanager
def encoded_as(encoding: str | None) -> Iterator[None]:
    """A context in which text files are read in this encoding, such as "gbk"; None changes nothing."""
    try:
        "a".encode(encoding or "utf-8")  # which fails for base64 and the like, that `lookup` finds
        token = _encoding.set(codecs.lookup(encoding or _encoding.get()).name)
    except LookupError as error:
        expected = "the name of an encoding, such as utf-8, gbk or cp1252"
        raise ArgumentError(f"encoding: expected {expected}. Received: {encoding!r}") from error
    try:
        yield
    finally:
        _encoding.reset(token)


def find_encoding() -> str:
    """Return the encoding in which text files are read now."""
    return _encoding.get()


def recode(data: bytes, name: str) -> bytes:
    """Turn the bytes of a whole text file into UTF-8. Raises FileError if it is in another encoding than was named."""
    if (encoding := _encoding.get()) == "utf-8":
        return data
    try:
        return data.decode(encoding).encode()
    except UnicodeError as error:
        raise _refuse(data, getattr(error, "start", 0), name, encoding) from error


def decode(data: bytes, name: str, line: int = 1, path: Path | None = None) -> str:
    """Decode UTF-8. Raises FileError if it is not UTF-8; the message has the encodings that can decode the whole file.

    Args:
        data: a file, or a part of it that begins at `line`.
        path: for a part: the file.
    """
    try:
        text = data.decode("utf-8")
        if data.count(0) * 4 > len(data):  # English in UTF-16
            raise _refuse(data, data.index(0), name, "utf-8", line, path)
    except UnicodeDecodeError as error:
        raise _refuse(data, error.start, name, "utf-8", line, path) from error
    return text.removeprefix("\ufeff") if line == 1 else text  # Excel begins a file with a byte-order mark


def guess_encodings(data: bytes) -> list[str]:
    """Return the encodings in which a whole file is text as people write it, the likeliest first; maybe none."""
    from charset_normalizer import from_bytes

    known = _WIDE if b"\0" in data else _NARROW
    found = sorted(
        from_bytes(data, cp_isolation=known),
        key=lambda m: (m.chaos, -m.coherence, -m.multi_byte_usage, min(map(known.index, m.could_be_from_charset))),
    )
    names = [name for match in found for name in sorted(match.could_be_from_charset, key=known.index)]
    return [codecs.lookup(name).name for name in names]


def _refuse(data: bytes, at: int, name: str, encoding: str, line: int = 1, path: Path | None = None) -> FileError:
    line, byte = line + data.count(b"\n", 0, at), data[at]
    if path is not None:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            data = file.read()
    likely, *others = guess_encodings(data) or [""]
    too = Sentence(", or {others}, which can decode it too").format(others=", ".join(others)) if others else ""
    guess = Sentence(
        "It is probably {likely}: name it by --encoding {likely} (in Python encoding={likely!r}){too}. Else save it as "
        "UTF-8 first, for example with iconv"
    )
    told = Sentence("{name} is not {encoding}: received byte 0x{byte:02x} in line {line} (offset {offset}). {advice}")
    advice = guess.format(likely=likely, too=too) if likely else "Save it as UTF-8 first, for example with iconv"
    return FileError(told.format(name=name, encoding=encoding.upper(), byte=byte, line=line, offset=at, advice=advice))
