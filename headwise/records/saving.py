"""Writes records to a file, for `Seen.save`. `headwise.records.storage` reads them again.

The file is a safetensors file (`headwise.records.tensor_file`). Its metadata hold the version of the layout and a JSON
description: for every record its fields and the names of its tensors; the masks, as trees
(`headwise.masks.description`); the names of rows and columns; the coverage. A tensor that several records share, such
as a bias or the tables of a mask, is stored once. Nothing in a file is code.

The fields are those of the dataclasses `Scores` with its `Options`, `Share`, `Extras`, `RecordFields`, `Site`,
`PartOf`, `Coverage`, `CallSite`, `Tokens` and `Patches` (`headwise.records.fields`): a field added to one of them is in
the files. **Versions of the layout**:

    1  the first one
    2  records may have names for their rows and columns
    3  fields may be added, and a reader ignores those that it does not know, with a note in the coverage
    4  records may have slopes (ALiBi)

A file of any lower version can always be opened, and a field that it lacks has its default. A file has the highest
version (`since`) of the fields that it holds, and a field newer than version 1 is omitted if it has its default: so a
file with nothing new in it can be opened by every headwise since 0.1.0. A new field gets `since` 3 if the weights are
right for a reader that ignores it. Otherwise it gets the next number, which becomes `VERSION`: programs that do not
know the field refuse the file and ask to upgrade.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NewType

import torch
from torch import Tensor

from headwise.call import Scores, Share
from headwise.errors import RecordError
from headwise.masks import Mask
from headwise.masks.description import describe
from headwise.records.collection import Collection
from headwise.records.coverage import CallSite
from headwise.records.fields import stored_fields
from headwise.records.record import AttentionRecord, Extras
from headwise.records.site import Site
from headwise.records.tensor_file import Pieced, write_tensors
from headwise.records.whole import WholeRecord

VERSION = 4  # the highest version that can be read
TOKENS = "tokens"  # the tensor with the tokens, JSON in UTF-8: it grows with the text, and the header should stay small

Names = NewType("Names", tuple)  # of rows or columns: in the file, their index in the description's "names"


@dataclasses.dataclass(frozen=True)
class RecordFields:
    """The fields of a record in a file, besides those of its scores (`Scores`) and its extras (`Extras`)."""

    site: Site | None
    share: Share | None = dataclasses.field(default=None, metadata={"since": 3})
    row_names: Names | None = dataclasses.field(default=None, metadata={"since": 2})
    col_names: Names | None = dataclasses.field(default=None, metadata={"since": 2})


@dataclasses.dataclass(frozen=True)
class PartOf:
    """Which part of a run a file holds, if each of several processes wrote one file."""

    run: str  # the same in all parts of one run, and different in other runs
    number: int  # from 0
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count:
            raise RecordError(f"part: expected a number below {self.count}. Received: number={self.number}")

    @property
    def file_name(self) -> str:
        """The name of this part's file in the folder of all parts; sorted names are in the order of the parts."""
        return f"{self.number:0{len(str(self.count - 1))}}-of-{self.count}.hw"


def save(seen: Collection, path: str | Path, part: PartOf | None = None) -> None:
    """Write all records, the coverage and the tokens to `path`.

    This needs no memory besides the records, except for a mask that is a predicate (`masks.from_predicate`): a file
    holds no code, so the predicate's answers are stored, one bit per pair of query and key, and reading the file gives
    a mask of these bits. A `WholeRecord` (the record of a sequence that several processes share) is put together while
    it is written.

    Raises:
        FileError: the file cannot be written. An older file of that name then stays unchanged.
        RecordError: a record that was changed in place, or has a tensor of a dtype that the file format lacks.
    """
    write_tensors(Path(path), *in_file(seen, part))


def in_file(seen: Collection, part: PartOf | None = None) -> tuple[dict[str, Tensor | Pieced], dict[str, str]]:
    """Return the tensors and the metadata of a file that holds these records."""
    writer = _Writer()
    coverage = seen.coverage()
    if part is not None:
        writer.version = 3
    text = writer.json(
        {
            **({} if part is None else {"part": part}),
            "records": [writer.record(record, f"records.{i}") for i, record in enumerate(seen.records)],
            "masks": writer.masks,
            "names": list(writer.names),
            "coverage": writer.plain(coverage) | {"sites": [writer.call_site(site) for site in coverage]},
        }
    )
    if seen.tokens is not None or seen.source_tokens is not None:
        tokens = writer.json({"target": seen.tokens, "source": seen.source_tokens})
        writer.tensors[TOKENS] = torch.frombuffer(bytearray(tokens.encode()), dtype=torch.uint8)
    model = getattr(seen, "model", "")  # readers of any version ignore metadata that they do not know
    return writer.tensors, {"headwise": str(writer.version), "description": text, **({"model": model} if model else {})}


class _Writer:
    """Collects the tensors, masks, and names of rows or columns for a file, each only once."""

    def __init__(self) -> None:
        self.version = 1
        self.tensors: dict[str, Tensor | Pieced] = {}  # name -> tensor
        self.masks: list[dict[str, Any]] = []
        self.names: dict[tuple[str, ...], int] = {}  # names -> place
        self._tensor_names: dict[tuple[object, ...], str] = {}
        self._places: dict[tuple[object, int, int], int] = {}

    def json(self, x: object) -> str:
        return json.dumps(x, default=self.plain, separators=(",", ":"))

    def plain(self, x: object, cls: type | None = None) -> dict[str, Any]:
        """Return the fields of `x` that a file holds, by name; with `cls`, the fields of that class, read from `x`."""
        found = {}
        for field in stored_fields(cls or type(x)).values():
            value = getattr(x, field.name)
            if field.since == 1 or (value is not field.default and value != field.default):
                self.version = max(self.version, field.since)
                found[field.name] = _unexpanded(value) if field.broadcasts and isinstance(value, Tensor) else value
        return found

    def call_site(self, site: CallSite) -> object:
        """Return a call site of the coverage as a list, as 0.1.0 wrote it, or as a dict if it has a newer field."""
        found, fields = self.plain(site), stored_fields(CallSite)
        return [*found.values()] if all(fields[name].since == 1 for name in found) else found

    def record(self, record: AttentionRecord, prefix: str) -> dict[str, Any]:
        if isinstance(record, WholeRecord):
            fields = record.fields()
            entry = self.plain(fields, Scores) | self.plain(fields, Extras)
        else:
            entry = self.plain(record.call) | self.plain(record.extras)
        entry |= self.plain(record, RecordFields)
        for name, value in entry.items():
            if isinstance(value, Tensor):
                entry[name] = self._keep(f"{prefix}.{name}", value)
            elif isinstance(value, Pieced):
                entry[name] = f"{prefix}.{name}"
                self.tensors[entry[name]] = value
            elif isinstance(value, Share):
                entry[name] = {
                    each: self._keep(f"{prefix}.{name}.{each}", x) if isinstance(x, Tensor) else x
                    for each, x in self.plain(value).items()
                }
            elif isinstance(value, Mask):
                entry[name] = self._mask(value, *record.shape[2:])
            elif isinstance(value, tuple):
                entry[name] = self.names.setdefault(value, len(self.names))
        return entry

    def _mask(self, mask: Mask, q_len: int, k_len: int) -> int:
        """Return the index in `masks` of this mask, or of an equal mask; add the mask if there is none."""
        same: object = mask
        try:
            hash(mask)
        except TypeError:  # a mask class from outside, that holds a list
            same = id(mask)
        place = self._places.setdefault((same, q_len, k_len), len(self.masks))
        if place == len(self.masks):
            self.masks.append(describe(mask, q_len, k_len, lambda field, x: self._keep(f"masks.{place}.{field}", x)))
        return place

    def _keep(self, name: str, x: Tensor) -> str:
        where = (x.device, x.untyped_storage().data_ptr(), x.storage_offset(), x.shape, x.stride(), x.dtype)
        known = self._tensor_names.setdefault(
            where, name if name not in self.tensors else f"{name}.{len(self.tensors)}"
        )
        self.tensors[known] = x  # this also prevents its memory from being used again
        return known


def _unexpanded(x: Tensor) -> Tensor:
    """Return the tensor with size 1 in the dimensions that only repeat numbers: broadcasting can restore them."""
    for dim, stride in enumerate(x.stride()):
        if stride == 0 and x.shape[dim] > 1:
            x = x.narrow(dim, 0, 1)
    return x
