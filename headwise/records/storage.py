"""Records in a file: `save` and `load`.

The file is a safetensors file (`headwise.records.tensor_file`). Its metadata hold the version of this layout and a JSON
description: for every record the names of its tensors and its numbers; the masks, as trees
(`headwise.masks.description`); the names of rows and columns; the coverage. What several records share, such as a bias
or the tables of a mask, is stored once. Nothing in a file is code, and nothing that a file says is taken on trust.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise import shapes
from headwise.call import Scores
from headwise.errors import FileError, HeadwiseError, RecordError
from headwise.masks import Mask
from headwise.masks.description import describe, rebuild
from headwise.options import check_options
from headwise.records.coverage import CallSite, Coverage
from headwise.records.record import AttentionRecord
from headwise.records.seen import Seen
from headwise.records.site import Site
from headwise.records.tensor_file import TensorFile, parse_json, write_tensors
from headwise.text import Patches, Tokens

VERSION = 2  # of the layout. A file of a higher one is refused, so raise it when old programs would misread the new
_WITHOUT_NAMES = 1  # where no record has names for its rows or columns, older programs can read the file
_TOKENS = "tokens"  # JSON in UTF-8: it grows with the text, and the header should stay small


def save(seen: Seen, path: str | Path) -> None:
    """Write all records, the coverage and the tokens to `path`; what `Seen.save` does.

    No memory is needed beside the records' own, except for a mask that is a predicate (`masks.from_predicate`): a file
    holds no code, so its answers are stored, one bit a pair of query and key, and it comes back as those.

    Raises:
        FileError: the file cannot be written. An older file of that name is then left as it was.
        RecordError: a record that cannot say what its call saw any more, or has a tensor of no ordinary dtype.
    """
    writer = _Writer()
    records = [writer.record(record, f"records.{i}") for i, record in enumerate(seen.records)]
    coverage = seen.coverage()
    description = {
        "records": records,
        "masks": writer.masks,
        "names": list(writer.names),
        "coverage": {"sites": [dataclasses.astuple(site) for site in coverage], "notes": coverage.notes},
    }
    sides = {"target": seen.tokens, "source": seen.source_tokens}
    if any(tokens is not None for tokens in sides.values()):
        text = json.dumps({side: _tokens_out(tokens) for side, tokens in sides.items()}, separators=(",", ":"))
        writer.tensors[_TOKENS] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    version = VERSION if writer.names else _WITHOUT_NAMES
    metadata = {"headwise": str(version), "description": json.dumps(description, separators=(",", ":"))}
    write_tensors(Path(path), writer.tensors, metadata)


def load(path: str | Path, *, verify: bool = False) -> Seen:
    """The records that `seen.save(path)` wrote, at once: the file is mapped, and what is not asked for is not read.

    The tensors lie on the CPU. Do not change the file while they are in use (saving to the same path is no change: it
    makes a new file). What is changed in memory does not reach the file.

    Args:
        path: the file.
        verify: read all of it now, and compare every tensor with the checksum that was stored with it.

    Raises:
        FileError: the file is missing, cannot be read, is no file of records, is damaged or of a newer headwise.
        RecordError: what the file says of its records does not fit together.
    """
    path = Path(path)
    file = TensorFile(path)
    version = file.metadata.get("headwise", "")
    if not (version.isascii() and version.isdecimal() and 0 < len(version) < 10):
        raise FileError(f"{path} holds tensors, but no records: expected a file that seen.save(path) wrote")
    if int(version) > VERSION:
        raise FileError(
            f"{path} was written by a newer headwise: this one reads files up to version {VERSION}. "
            f"Received: version {int(version)}. Upgrade: pip install -U headwise"
        )
    file.check_header()
    if verify:
        file.check_data()
    description = parse_json(file.metadata.get("description", ""), f"{path} is damaged: its description")
    try:
        reader = _Reader(file, description)
        records = [reader.record(entry) for entry in _list(description.get("records"))]
        seen = Seen(records, _coverage_in(description.get("coverage")))
        if _TOKENS in file:
            file.check_data(_TOKENS)
            text = file[_TOKENS].numpy().tobytes()
            sides = parse_json(text, f"{path} is damaged: its tokens")
            seen._tokens, seen._source_tokens = _tokens_in(sides.get("target")), _tokens_in(sides.get("source"))
    except FileError:
        raise
    except HeadwiseError as error:
        raise RecordError(f"{path} does not fit together: {error}") from error
    return seen


# --- Records and masks ------------------------------------------------------------------------------------------------

# What a record is made of, beside its mask: tensors, which may be None but for q and k, and numbers.
_TENSORS = ("q", "k", "bias", "sinks", "v", "grad", "output_weight")
_NUMBERS = ("scale", "softcap", "dropout")
_SIDES = ("row_names", "col_names")  # places in the description's "names"; only where there are any


class _Writer:
    """Collects tensors, masks, and names of rows or columns, each once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}  # name -> tensor
        self.masks: list[dict[str, Any]] = []
        self.names: dict[tuple[str, ...], int] = {}  # names -> place
        self._names: dict[tuple[object, ...], str] = {}
        self._places: dict[tuple[object, int, int], int] = {}

    def record(self, record: AttentionRecord, name: str) -> dict[str, Any]:
        extras = record.extras
        bias = None if record.bias is None else _unexpanded(record.bias)
        tensors = (record.q, record.k, bias, record.sinks, extras.v, extras.grad, extras.output_weight)
        kept = {
            field: None if x is None else self._keep(f"{name}.{field}", x)
            for field, x in zip(_TENSORS, tensors, strict=True)
        }
        return {
            **kept,
            "mask": None if record.mask is None else self._mask(record.mask, *record.shape[2:]),
            **{field: getattr(record, field) for field in _NUMBERS},
            "site": None if record.site is None else dataclasses.asdict(record.site),
            **{
                side: self.names.setdefault(names, len(self.names))
                for side in _SIDES
                if (names := getattr(record, side)) is not None
            },
        }

    def _mask(self, mask: Mask, q_len: int, k_len: int) -> int:
        """The place in `masks` of this mask, or of one that is equal to it."""
        same: object = mask
        try:
            hash(mask)
        except TypeError:  # a mask of somebody else, that holds a list
            same = id(mask)
        place = self._places.setdefault((same, q_len, k_len), len(self.masks))
        if place == len(self.masks):
            self.masks.append(describe(mask, q_len, k_len, lambda field, x: self._keep(f"masks.{place}.{field}", x)))
        return place

    def _keep(self, name: str, x: Tensor) -> str:
        where = (x.device, x.untyped_storage().data_ptr(), x.storage_offset(), x.shape, x.stride(), x.dtype)
        known = self._names.setdefault(where, name if name not in self.tensors else f"{name}.{len(self.tensors)}")
        self.tensors[known] = x  # which also keeps it where it is
        return known


class _Reader:
    """Makes records of what a file says, each mask and each tensor once."""

    def __init__(self, file: TensorFile, description: dict[str, Any]) -> None:
        self._file = file
        self._trees = _list(description.get("masks"))
        self._names = [_list(names) for names in _list(description.get("names", []))]
        self._masks: dict[tuple[int, int, int], Mask] = {}

    def record(self, entry: object) -> AttentionRecord:
        if not isinstance(entry, dict) or entry.keys() - {*_SIDES} != {*_TENSORS, *_NUMBERS, "mask", "site"}:
            raise RecordError("a record does not have the parts that it should")
        site = _site_in(entry["site"])
        x = {field: None if entry[field] is None else self._find(entry[field]) for field in _TENSORS}
        number = {field: _number(entry[field], field, optional=field == "softcap") for field in _NUMBERS}
        q, k, v = x["q"], x["k"], x["v"]
        if q is None or k is None:
            raise RecordError("a record has no q or no k")
        shapes.check_qkv(q, k, k if v is None else v)
        options = check_options(
            {"bias": x["bias"], "sinks": x["sinks"], **number, "dropout": number["dropout"] or 0.0}, q, k.shape[2]
        )
        _check_extras(q, v, x["grad"], x["output_weight"])
        mask = None if entry["mask"] is None else self._mask(entry["mask"], q, k)
        scores = Scores(q, k, mask, **options)
        names: dict[str, Any] = {side: self._named(entry[side]) for side in _SIDES if side in entry}
        record = AttentionRecord(scores, site=site, **names)
        record.extras = type(record.extras)(v=v, grad=x["grad"], output_weight=x["output_weight"])
        return record

    def _named(self, place: object) -> list[str]:
        if type(place) is not int or not 0 <= place < len(self._names):
            raise RecordError("a record has names that are not there")
        return self._names[place]

    def _find(self, name: object) -> Tensor:
        if not isinstance(name, str) or name not in self._file:
            raise RecordError(f"a tensor is missing from it: {name!r:.80}")
        return self._file[name]

    def _mask(self, place: object, q: Tensor, k: Tensor) -> Mask:
        if type(place) is not int or not 0 <= place < len(self._trees):
            raise RecordError("a record has a mask that is not there")
        key = (place, q.shape[2], k.shape[2])
        if key not in self._masks:
            self._masks[key] = rebuild(self._trees[place], *key[1:], self._find)
        mask = self._masks[key]
        shapes.check_fits("mask", "B", mask.batch, q.shape[0])
        shapes.check_fits("mask", "H", mask.heads, q.shape[1])
        return mask


def _unexpanded(bias: Tensor) -> Tensor:
    """The bias without the repetitions that broadcasting makes again."""
    for dim, stride in enumerate(bias.stride()):
        if stride == 0 and bias.shape[dim] > 1:
            bias = bias.narrow(dim, 0, 1)
    return bias


def _check_extras(q: Tensor, v: Tensor | None, grad: Tensor | None, output_weight: Tensor | None) -> None:
    batch, heads, q_len, _ = q.shape
    width = None if v is None else v.shape[3]
    for name, x, sizes in (
        ("grad", grad, (batch, heads, q_len, width)),
        ("output_weight", output_weight, (heads, width, None)),
    ):
        if x is None:
            continue
        fits = x.ndim == len(sizes) and all(want in (None, size) for want, size in zip(sizes, x.shape, strict=True))
        if not fits or x.dtype not in shapes.FLOATS:
            shape = ", ".join("·" if size is None else str(size) for size in sizes)
            raise RecordError(f"{name} must be floats [{shape}]. Received: {x.dtype} {list(x.shape)}")


# --- Sites, coverage and tokens, checked piece by piece ---------------------------------------------------------------


def _site_in(entry: object) -> Site | None:
    match entry:
        case None:
            return None
        case {
            "name": str(),
            "layer": int(),
            "kind": "self" | "cross",
            "causal": bool(),
            "heads": int(),
            "key_heads": int(),
            "call": int(),
            **rest,
        } if not rest and isinstance(entry, dict):
            return Site(**entry)
        case _:
            raise RecordError("the site of a record is not one")


def _coverage_in(entry: object) -> Coverage:
    match entry:
        case {"sites": [*sites], "notes": [*notes]} if all(isinstance(note, str) for note in notes):
            return Coverage(tuple(_call_site(site) for site in sites), tuple(notes))
        case _:
            raise RecordError("the coverage is not one")


def _call_site(entry: object) -> CallSite:
    match entry:
        case [str(name), "seen" | "missed" | "refused" as status, int(calls), str(how)]:
            return CallSite(name, status, calls, how)
        case _:
            raise RecordError("a place of the coverage is not one")


def _tokens_out(tokens: Iterable[Tokens] | None) -> list[dict[str, Any]] | None:
    return None if tokens is None else [dataclasses.asdict(each) for each in tokens]


def _tokens_in(entry: object) -> list[Tokens] | None:
    return None if entry is None else [_one_tokens(each) for each in _list(entry)]


def _one_tokens(entry: object) -> Tokens:
    match entry:
        case {
            "ids": [*ids],
            "labels": [*labels],
            "offsets": [*offsets],
            "special": [*special],
            "text": str(text),
            "cut": int(cut),
            "unknown": [*unknown],
            "word_ids": [*word_ids],
            "patches": patches,
            **rest,
        } if (
            not rest
            and len(ids) == len(labels) == len(offsets) == len(special)
            and {len(unknown), len(word_ids)} <= {0, len(ids)}
            and _all(ids, int)
            and _all(labels, str)
            and _all(special, bool)
            and _all(unknown, bool)
            and _all(word_ids, int, type(None))
            and all(type(pair) is list and len(pair) == 2 and _all(pair, int) for pair in offsets)
        ):
            return Tokens(
                tuple(ids),
                tuple(labels),
                tuple((start, stop) for start, stop in offsets),
                tuple(special),
                text,
                cut,
                tuple(unknown),
                tuple(word_ids),
                _patches_in(patches, len(ids)),
            )
        case _:
            raise RecordError("its tokens are not tokens")


def _patches_in(entry: object, count: int) -> Patches | None:
    match entry:
        case None:
            return None
        case {"rows": int(rows), "cols": int(cols), "prefix": [*prefix]} if (
            _all(prefix, str) and len(prefix) + rows * cols == count
        ):
            return Patches(rows, cols, tuple(prefix))
        case _:
            raise RecordError("the patches of an image are not patches")


def _all(values: list[Any], *kinds: type) -> bool:
    return all(isinstance(value, kinds) for value in values)


def _number(value: object, name: str, *, optional: bool) -> float | None:
    if value is None and optional:
        return None
    if type(value) not in (int, float) or abs(value) > 1e300:  # type: ignore[arg-type]
        raise RecordError(f"{name} is not a number")
    return float(value)  # type: ignore[arg-type]


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise RecordError("a list is missing from its description")
    return value
