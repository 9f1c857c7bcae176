"""A file of named tensors and a few strings, in the safetensors format: written as a stream, read as mapped memory.

    8 bytes   the length of the header, little-endian
    header    JSON: {"__metadata__": {str: str}, name: {"dtype", "shape", "data_offsets"}, ...}, padded with spaces
    data      the tensors' bytes, with no gaps

Every program that reads safetensors can read these files. headwise adds to the metadata a CRC-32 of every tensor and a
checksum of the header. The writer of the safetensors package copies tensors that are shared, sliced or on a GPU, and
leaves an incomplete file when it is interrupted; this writer needs no extra memory and replaces the file at the end.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from headwise.errors import FileError, RecordError, brief
from headwise.files import check_tensors, check_there, name_kind, parsed, writing

PIECE = 2**24  # bytes that are in memory at once during writing
MAX_HEADER = 100_000_000  # limit of the format
_ALIGNMENT = 64  # alignment of the data, so that tensors can be used in place

_DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


# --- Writing ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pieced:
    """A tensor that is made piece by piece, in the order of its elements, while it is written."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Callable[[], Iterator[Tensor]]  # pieces of at most about PIECE bytes

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


Tensors = Mapping[str, Tensor | Pieced]


def in_file_order(tensors: Tensors) -> dict[str, Tensor | Pieced]:
    """Sort tensors with wide dtypes first: each tensor in the file then begins at a multiple of its item's size."""
    return dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))


def write_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Write a file that replaces `path` when it is complete. Until then, and after an error, `path` stays the old file.

    Raises:
        FileError: the file cannot be written, or is one that headwise did not write.
        RecordError: a tensor of a dtype that the format does not have, or a header that is too large.
    """
    for name, x in tensors.items():
        if x.dtype not in _NAMES:
            raise RecordError(
                f"{name} cannot be saved: expected {', '.join(map(str, _NAMES))}. Received: {name}={x.dtype}"
            )
    check_tensors(path)
    tensors = in_file_order(tensors)
    with writing(path) as part, part.open("wb") as file:
        blank = _header(tensors, metadata, dict.fromkeys(tensors, 0))
        file.write(blank)
        header = _header(tensors, metadata, {name: _write(file, x) for name, x in tensors.items()})
        assert len(header) == len(blank)
        file.seek(0)
        file.write(header)
        file.flush()
        os.fsync(file.fileno())


def _header(tensors: Tensors, metadata: Mapping[str, str], crcs: Mapping[str, int]) -> bytes:
    """Make the header. Its length is the same for all checksums: it can be rewritten when the checksums are known."""
    crc32 = json.dumps({name: f"{crc:08x}" for name, crc in crcs.items()}, separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata, "crc32": crc32}}
    end = 0
    for name, x in tensors.items():
        begin, end = end, end + x.nbytes
        header[name] = {"dtype": _NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [begin, end]}
    header["__metadata__"]["checksum"] = _checksum(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise RecordError(
            f"too much to describe in one file: expected at most {MAX_HEADER:,} bytes. Received: {len(text):,}. "
            "Save fewer layers at a time"
        )
    return len(text).to_bytes(8, "little") + text


def _checksum(header: dict[str, Any]) -> str:
    """Compute the SHA-256 of the header without its checksum."""
    said = {name: value for name, value in header["__metadata__"].items() if name != "checksum"}
    return hashlib.sha256(json.dumps({**header, "__metadata__": said}, sort_keys=True).encode()).hexdigest()


def _write(file: BinaryIO, x: Tensor | Pieced) -> int:
    """Write the bytes of a tensor on any device, in row-major order; returns their CRC-32."""
    crc = 0
    for piece in x.pieces() if isinstance(x, Pieced) else _pieces(x.detach()):
        data = piece.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        crc = zlib.crc32(data, crc)
        file.write(data)
    return crc


def _pieces(x: Tensor) -> Iterator[Tensor]:
    """Yield the tensor in parts of at most about PIECE bytes, in the order of its elements."""
    if x.nbytes <= PIECE:
        yield x
    elif rows := PIECE // x[0].nbytes:
        yield from x.split(rows)
    else:
        for row in x:
            yield from _pieces(row)


# --- Reading ----------------------------------------------------------------------------------------------------------


class TensorFile:
    """The tensors of a memory-mapped file: only tensors that are used are read, and changes stay in memory.

    Raises:
        FileError: the file is missing, cannot be read, is cut short, damaged, or in another format.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        check_there(path)
        if kind := name_kind(path):
            raise FileError(f"{path}: expected a file. Received: {kind}")
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else b""
        except OSError as error:
            raise FileError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
        self._header, start = self._read_header()
        self.metadata: dict[str, str] = self._header["__metadata__"]
        self._entries = self._check_entries(start)
        self._tensors: dict[str, Tensor] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor of the file: the same object every time."""
        if name not in self._tensors:
            dtype, shape, begin, _ = self._entries[name]
            count = math.prod(shape)
            # Each is made separately, not as a view of one tensor: torch counts changes in place for all views
            # together.
            if count:
                x = torch.frombuffer(self._bytes, dtype=dtype, count=count, offset=begin)
            else:
                x = torch.empty(0, dtype=dtype, device="cpu")
            self._tensors[name] = x.view(shape)
        return self._tensors[name]

    def check_header(self) -> None:
        """Raise FileError unless the header is unchanged since it was written."""
        if self.metadata.get("checksum") != _checksum(self._header):
            raise FileError(f"{self._path} is damaged: its header was changed after it was written (checksum)")

    def check_data(self, *names: str) -> None:
        """Raise FileError unless these tensors (() = all) are unchanged since they were written. Reads every byte."""
        crcs = parse_json(self.metadata.get("crc32", ""), f"{self._path} is damaged: its list of CRC-32 sums")
        with memoryview(self._bytes) as data:  # not the file at the path, which may have been replaced since
            for name in names or self._entries:
                _, _, begin, end = self._entries[name]
                if crcs.get(name) != f"{zlib.crc32(data[begin:end]):08x}":
                    raise FileError(f"{self._path} is damaged: the bytes of {name} are not those that were written")

    def _read_header(self) -> tuple[dict[str, Any], int]:
        """Read (the header, the position where the data begin)."""
        start, size = 8 + int.from_bytes(self._bytes[:8], "little"), len(self._bytes)
        if size < 9 or start - 8 > MAX_HEADER or self._bytes[8:9] != b"{":
            raise FileError(f"{self._path} is not a file of records: expected one that seen.save(path) wrote")
        if start > size:
            raise FileError(f"{self._path} is cut short: its header ends at byte {start:,} of {size:,}")
        header = parse_json(self._bytes[8:start], f"{self._path} is damaged: its header")
        metadata = header.setdefault("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise FileError(f"{self._path} is damaged: its metadata are not text")
        return header, start

    def _check_entries(self, start: int) -> dict[str, tuple[torch.dtype, tuple[int, ...], int, int]]:
        """Return name -> (dtype, shape, first byte, byte after the last). FileError if the file is not complete."""
        entries = {}
        for name, entry in self._header.items():
            if name == "__metadata__":
                continue
            match entry:
                case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
                    len(entry) == 3 and len(shape) <= 8 and dtype in _DTYPES
                ):
                    # An empty tensor may claim any size in its other dimensions, up to what can be counted.
                    good = all(type(size) is int and size >= 0 for size in shape) and (
                        math.prod(max(1, size) for size in shape) < 2**62
                    )
                case _:
                    good = False
            if not good or end - begin != math.prod(shape) * _DTYPES[dtype].itemsize:
                raise FileError(f"{self._path} is damaged: what its header says of {brief(name)} does not fit together")
            entries[name] = (_DTYPES[dtype], tuple(shape), start + begin, start + end)
        end = start
        for name, (kind, _, begin, after) in sorted(entries.items(), key=lambda item: item[1][2:]):
            if begin != end or begin % kind.itemsize:
                raise FileError(f"{self._path} is damaged: {brief(name)} does not begin where it should")
            end = after
        if end != len(self._bytes):
            how = "cut short" if end > len(self._bytes) else "damaged"
            raise FileError(f"{self._path} is {how}: expected {end:,} bytes. Received: {len(self._bytes):,}")
        return entries


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file, whose checksums, if it has any, are compared. FileError if it is damaged."""
    file = TensorFile(path)
    if file.metadata:  # other programs write none
        file.check_header()
        file.check_data()
    return {name: file[name] for name in file}


def parse_json(text: str | bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object of an untrusted file; FileError for anything else, for duplicate names and for NaN."""
    try:
        text = text.decode() if isinstance(text, bytes) else text  # json would guess at UTF-16 too
        found = parsed(functools.partial(json.loads, object_pairs_hook=_once, parse_constant=_refuse), text)
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}")
    except ValueError as error:
        raise FileError(f"{what} cannot be read") from error
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
