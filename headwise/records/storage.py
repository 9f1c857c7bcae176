"""Reads records from a file: `load`. `headwise.records.saving` describes the files, and which of them can be read.

Files are not trusted: each value is checked against the type of its field, each tensor as `attention`
checks its arguments, and a mask is rebuilt from data. Nothing is executed.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise import shapes
from headwise.call import Scores, Share, make_call
from headwise.errors import FileError, HeadwiseError, RecordError, brief, shortened
from headwise.masks import Mask
from headwise.masks.description import rebuild
from headwise.masks.picked import Picked
from headwise.records.coverage import Coverage
from headwise.records.fields import FieldReader, stored_fields
from headwise.records.names import listed
from headwise.records.record import AttentionRecord, Extras
from headwise.records.saving import TOKENS, VERSION, Names, PartOf, RecordFields
from headwise.records.seen import Seen
from headwise.records.tensor_file import TensorFile, parse_json
from headwise.records.whole import Here, WholeRecord
from headwise.text import Tokens


@dataclasses.dataclass(frozen=True)
class _Description:
    records: tuple[dict, ...]
    masks: tuple[dict, ...]
    coverage: Coverage
    names: tuple[tuple[str, ...], ...] = ()
    part: PartOf | None = None


@dataclasses.dataclass(frozen=True)
class _Sides:
    target: tuple[Tokens, ...] | None
    source: tuple[Tokens, ...] | None


def load(path: str | Path, *, verify: bool | None = False) -> Seen:
    """Load the records that `seen.save(path)` wrote. The file is mapped: data are read only when they are used.

    A folder of files, one from each of several processes (`headwise.parallel.joined`), is opened as the record of the
    whole sequence: for some rows, only the files with these rows are read. Anything that needs all queries and keys of
    a layer, such as the HTML page, joins them in memory. A single file of the folder can be opened too: it holds the
    rows of its process.

    The tensors are on the CPU. Do not change the file while they are in use (saving to the same path makes a new file,
    and so is safe). Changes in memory do not change the file. Fields that a newer headwise added are ignored, with a
    note in `seen.coverage()`.

    Args:
        path: the file, or the folder with the files of all processes.
        verify: read the whole file now, and compare every tensor with the checksum that was stored with it. None = only
            where this takes less than a second, a file of at most 1 GB. The command does this.

    Raises:
        FileError: the file is missing, cannot be read, holds no records, is damaged, or needs a newer headwise; some
            files of a folder are missing, or the folder holds other files too.
        RecordError: the data of a record do not fit together.
    """
    path = Path(path)
    if path.is_dir():
        return _load_folder(path, verify)
    seen, part = _read_file(path, verify)
    if part is not None:  # the tokens belong to the whole sequence
        seen._tokens = seen._source_tokens = None
    return seen


def _load_folder(folder: Path, verify: bool | None) -> Seen:
    """Load the record of the whole sequence from the files of all processes, in one folder."""
    files = sorted(folder.glob("*.hw")) if any(folder.glob("*-of-*.hw")) else []
    found = {path: _read_file(path, verify) for path in files}
    parts = {path: part for path, (_, part) in found.items() if part is not None}
    if not parts:
        raise FileError(f"{folder} holds no parts of records: expected a file .hw of each process. Received: a folder")
    runs: dict[tuple[str, int], dict[int, Path]] = {}
    for path, part in parts.items():
        runs.setdefault((part.run, part.count), {}).setdefault(part.number, path)
    (run, count), kept = max(runs.items(), key=lambda item: len(item[1]))
    foreign = [path.name for path in files if path not in kept.values()]
    if foreign:
        raise FileError(
            f"{folder}: expected the parts of one run, which are {listed([path.name for path in kept.values()])}. "
            f"Received also: {listed(foreign)}. Move the others away"
        )
    if len(kept) < count:
        missing = (PartOf(run, number, count).file_name for number in range(count) if number not in kept)
        names = list(itertools.islice(missing, 8))
        more = f" and {count - len(kept) - len(names):,} more" if count - len(kept) > len(names) else ""
        raise FileError(
            f"{folder}: expected the {count:,} parts of its run. Received: {len(kept):,}. "
            f"Missing: {', '.join(names)}{more}. Copy them into the folder"
        )
    seen = [found[kept[number]][0] for number in range(count)]
    layers = [len(each.records) for each in seen]
    if len(set(layers)) > 1:
        raise RecordError(f"{folder} does not fit together: its parts have {listed(list(map(str, layers)))} records")
    try:
        whole = Seen([WholeRecord(Here(each)) for each in zip(*seen, strict=True)], seen[0].coverage())
        whole.model = seen[0].model
    except RecordError as error:
        raise RecordError(f"{folder} does not fit together: {error}") from error
    whole._tokens, whole._source_tokens = seen[0]._tokens, seen[0]._source_tokens
    return whole


def _read_file(path: Path, verify: bool | None) -> tuple[Seen, PartOf | None]:
    """Read a file: its records, and which part of a run it holds (None if it is not a part)."""
    file = TensorFile(path)
    version = file.metadata.get("headwise", "")
    if not (version.isascii() and version.isdecimal() and 0 < len(version) < 10):
        if "headwise profile" in file.metadata:
            raise FileError(f"{path} is a profile, which holds no records. headwise view {path} shows it")
        raise FileError(f"{path} holds tensors, but no records: expected a file that seen.save(path) wrote")
    if int(version) > VERSION:
        raise FileError(
            f"{path} was written by a newer headwise: this one reads files up to version {VERSION}. "
            f"Received: version {int(version)}. Upgrade: pip install -U headwise"
        )
    file.check_header()
    if verify or (verify is None and path.stat().st_size <= 10**9):
        file.check_data()
    description = parse_json(file.metadata.get("description", ""), f"{path} is damaged: its description")
    try:
        reader = _Reader(file, description)
        seen = reader.seen()
        seen.model = file.metadata.get("model", "")
        if TOKENS in file:
            file.check_data(TOKENS)
            text = file[TOKENS].numpy().tobytes()
            sides = reader.fields.read(_Sides, parse_json(text, f"{path} is damaged: its tokens"))
            both = (None if side is None else list(side) for side in (sides.target, sides.source))
            seen._tokens, seen._source_tokens = both
    except FileError:
        raise
    except HeadwiseError as error:
        raise RecordError(f"{path} does not fit together: {error}") from error
    if reader.fields.ignored:
        seen._coverage = dataclasses.replace(seen._coverage, notes=(*seen._coverage.notes, reader.note()))
    return seen, reader.said.part


_RECORD = stored_fields(Scores) | stored_fields(Extras) | stored_fields(RecordFields)


class _Reader:
    """Makes records from the contents of a file; each mask and each tensor is made once."""

    def __init__(self, file: TensorFile, description: dict[str, Any]) -> None:
        self._file = file
        self.fields = FieldReader({Tensor: self._find, Mask: lambda place: place, Names: self._named})
        self.said = self.fields.read(_Description, description)
        self._masks: dict[tuple[int, int, int], Mask] = {}

    def seen(self) -> Seen:
        return Seen([self._record(entry) for entry in self.said.records], self.said.coverage)

    def note(self) -> str:
        """Return a sentence about the fields that were ignored."""
        names = [shortened(name, 60) for name in sorted(self.fields.ignored)]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"the file was written by a newer headwise: {', '.join(names[:4])}{more} ignored"

    def _record(self, entry: dict[str, Any]) -> AttentionRecord:
        values = self.fields.values(_RECORD, entry, "record")
        own = {name: values.pop(name) for name in stored_fields(RecordFields)}
        extras = Extras(**{name: values.pop(name) for name in stored_fields(Extras)})
        q, k, mask, share = (*(values.pop(name) for name in ("q", "k", "mask")), own.pop("share"))
        v = k if extras.v is None else extras.v
        with torch.autocast("cpu", enabled=False):  # autocast would change their dtype
            shapes.check_qkv(q, k, v)
            mask = None if mask is None else self._mask(mask, q, k)
            call = make_call(q, k, v, mask=mask, **values)
        _check_dims(extras, dict(zip("BHQGKE", (*q.shape[:3], *k.shape[1:3], v.shape[3]), strict=True)))
        if share is not None:
            call = dataclasses.replace(call, share=_checked(share, call))
        record = AttentionRecord(call, **own)
        record.extras = extras
        return record

    def _named(self, place: object) -> tuple[str, ...]:
        return self.said.names[_place("names", place, len(self.said.names))]

    def _find(self, name: object) -> Tensor:
        if not isinstance(name, str) or name not in self._file:
            raise RecordError(f"expected the name of a tensor in the file. Received: {brief(name)}")
        return self._file[name]

    def _mask(self, place: object, q: Tensor, k: Tensor) -> Mask:
        place = _place("masks", place, len(self.said.masks))
        key = (place, q.shape[2], k.shape[2])
        if key not in self._masks:
            self._masks[key] = rebuild(self.said.masks[place], *key[1:], self._find)
        return self._masks[key]


def _checked(share: Share, call: Scores) -> Share:
    """Return `share` (one process's rows and keys) with the whole sequence's mask. RecordError if it does not fit."""
    for name, x, size in (("rows", share.rows, call.shape[2]), ("cols", share.cols, call.shape[3])):
        fits = x.dtype == torch.int64 and x.shape == (size,) and bool((x.diff() > 0).all())
        if not fits or (size and not 0 <= int(x[0]) <= int(x[-1]) < share.length):
            raise RecordError(
                f"share: expected {size} {name} of {share.length} that rise. Received: {name}={x.dtype} {list(x.shape)}"
            )
    if call.mask is None:
        return share
    mask = call.mask
    if not (isinstance(mask, Picked) and torch.equal(mask.rows, share.rows) and torch.equal(mask.cols, share.cols)):
        raise RecordError(f"share: expected the mask of its rows and columns. Received: mask={brief(mask)}")
    return dataclasses.replace(share, mask=mask.part)


def _place(what: str, place: object, count: int) -> int:
    if type(place) is not int or not 0 <= place < count:
        raise RecordError(f"expected one of the {count} {what} of the file. Received: {brief(place)}")
    return place


def _check_dims(extras: Extras, sizes: dict[str, int]) -> None:
    """Raise RecordError unless each extra tensor has the dimensions that its field declares, in the call's sizes."""
    if extras.v is None:
        del sizes["E"]  # E of the keys
    for name, field in stored_fields(Extras).items():
        x = getattr(extras, name)
        if x is None or not field.dims:
            continue
        fits = x.ndim == len(field.dims) and x.dtype in shapes.FLOATS
        if not fits or any(sizes.setdefault(dim, size) != size for dim, size in zip(field.dims, x.shape, strict=True)):
            expected = ", ".join(f"{dim}={sizes[dim]}" if dim in sizes else dim for dim in field.dims)
            raise RecordError(f"{name}: expected floats [{expected}]. Received: {name}={x.dtype} {list(x.shape)}")
