"""Decodes text files: as UTF-8, or in the encoding that the user names. The refusal of others says what they may be."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import re
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from headwise.errors import ArgumentError, FileError

_encoding: ContextVar[str] = ContextVar("encoding", default="utf-8")

# Encodings, and in a group the bytes of one common character: of two similar scores the first counts.
_CHINESE = rb"([\xa1\xa3\xb0-\xd7][\xa1-\xfe])|[\x80-\xff]."
_JAPANESE = rb"(\x81[\x40-\x5b]|[\x82\x83\x88-\x97][\x40-\xfc])|[\xa1-\xdf]|[\x80-\xff]."
_COMMON = {
    "cp1252": rb"(?<![\x80-\xff])([\x80\x85\x91-\x97\xa0\xa3\xab\xb0\xbb\xc0-\xff])(?![\x80-\xff])|[\x80-\xff]",
    "gbk": _CHINESE,
    "gb18030": _CHINESE,
    "big5": rb"(\xa1[\x40-\xbf]|[\xa4-\xc6][\x40-\x7e\xa1-\xfe])|[\x80-\xff].",
    "shift_jis": _JAPANESE,
    "cp932": _JAPANESE,
    "cp1251": rb"([\xb8\xe0-\xff])|[\x80-\xff]",
    "euc_kr": rb"([\xb0-\xc8][\xa1-\xfe])|[\x80-\xff].",
}


_MARKS = (b"\xff\xfe", b"\xfe\xff")  # with which UTF-16 begins
_ENOUGH = 1 << 20  # bytes by which encodings are compared


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
    """Return the encodings that can decode a file, the likeliest first; none, if most characters would be rare ones."""
    patterns = _COMMON
    if b"\0" in data or data[:2] in _MARKS:
        is_big = data[:2] not in _MARKS and data[::2].count(0) > data[1::2].count(0)
        patterns = {"utf-16-be" if is_big else "utf-16": rb"(.)"}
    scores = {}
    for name, pattern in patterns.items():
        with contextlib.suppress(UnicodeDecodeError):
            data.decode(name)
            characters = [each[1] for each in re.finditer(pattern, data[:_ENOUGH], re.DOTALL)]
            scores[name] = sum(each is not None for each in characters) / max(len(characters), 1)
    return sorted(scores, key=lambda name: -scores[name]) if max(scores.values(), default=0) >= 0.5 else []


def _refuse(data: bytes, at: int, name: str, encoding: str, line: int = 1, path: Path | None = None) -> FileError:
    line, byte = line + data.count(b"\n", 0, at), data[at]
    if path is not None:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            data = file.read()
    likely, *others = guess_encodings(data) or [""]
    told = f", or {', '.join(others)}, which can decode it too" if others else ""
    advice = f"It is probably {likely}: name it by --encoding {likely} (in Python encoding={likely!r}){told}. Else s"
    return FileError(
        f"{name} is not {encoding.upper()}: received byte 0x{byte:02x} in line {line} (offset {at}). "
        f"{advice if likely else 'S'}ave it as UTF-8 first, for example with iconv"
    )
