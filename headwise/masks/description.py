"""A mask as plain data: a tree that JSON can hold, and the tensors that it names. Files of records are made of it.

    {"kind": "and", "parts": [{"kind": "band", "left": null, "right": 0, "offset": 0},
                              {"kind": "padding_lengths", "lengths": "masks.0.lengths"}]}

A tree is data and never code. A predicate (`from_predicate`, or a mask class of somebody else's) is therefore described
by its answers: one bit a pair of query and key, worked out some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.band import Band
from headwise.masks.bits import Bits, bits_of_rows, row_blocks
from headwise.masks.block_sparse import BlockSparse
from headwise.masks.cellwise import Dense
from headwise.masks.dilated import Dilated
from headwise.masks.documents import Documents
from headwise.masks.global_tokens import GlobalTokens
from headwise.masks.mask import And, Mask, Not, Or
from headwise.masks.padding import PaddingKeys, PaddingLengths
from headwise.masks.prefix import Prefix
from headwise.masks.runs import Runs

Keep = Callable[[str, Tensor], str]  # (what it is, the tensor) -> the name under which it is kept
Find = Callable[[str], Tensor]  # the other way; raises a HeadwiseError for a name that is not known

MAX_DEPTH = 32  # of & in | in & …: what is nested deeper is described by its answers
_FARTHEST = 2**48  # no offset or distance is larger


def describe(mask: Mask, q_len: int, k_len: int, keep: Keep) -> dict[str, Any]:
    """The tree of a mask that is aligned to these lengths. `keep` is given every tensor of it."""
    return _describe(mask, q_len, k_len, keep, MAX_DEPTH)


def rebuild(tree: object, q_len: int, k_len: int, find: Find) -> Mask:
    """The mask that a tree describes, aligned to these lengths.

    Nothing about the tree or the tensors is taken on trust: MaskError says what is wrong with them.
    """
    return _rebuild(tree, q_len, k_len, find, MAX_DEPTH).aligned(q_len, k_len)


# --- Which masks there are, and what each is made of ------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """An int of at least `least`; None too, if it is `optional`."""

    least: int
    optional: bool = False

    def check(self, value: object, what: str) -> int | None:
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= _FARTHEST:
            raise MaskError(f"{what}: expected a whole number from {self.least}. Received: {_brief(value)}")
        return value


@dataclass(frozen=True)
class Table:
    """A tensor of one of these dtypes and of as many dimensions as its letters, none of those in capitals empty."""

    dtypes: tuple[torch.dtype, ...]
    dims: str

    def check(self, value: object, what: str, find: Find) -> Tensor:
        if not isinstance(value, str):
            raise MaskError(f"{what}: expected the name of a tensor. Received: {_brief(value)}")
        table = find(value)
        sizes = zip(self.dims, table.shape, strict=False)
        if table.ndim != len(self.dims) or any(dim.isupper() and not size for dim, size in sizes):
            raise MaskError(f"{what}: expected a tensor [{', '.join(self.dims)}]. Received: {list(table.shape)}")
        if table.dtype not in self.dtypes:
            raise MaskError(f"{what}: expected {' or '.join(map(str, self.dtypes))}. Received: {table.dtype}")
        return table


_INTEGERS = (torch.int64, torch.int32)
_LIMIT, _OFFSET, _SIZE = Number(0, optional=True), Number(-_FARTHEST, optional=True), Number(1)

# kind -> the class, and its fields as the file has them. What is not here can be worked out from what is.
_KINDS: dict[str, tuple[type[Mask], dict[str, Number | Table]]] = {
    "band": (Band, {"left": _LIMIT, "right": _LIMIT, "offset": _OFFSET}),
    "padding_lengths": (PaddingLengths, {"lengths": Table(_INTEGERS, "B")}),
    "padding_keys": (PaddingKeys, {"real": Table((torch.bool,), "Bk")}),
    "documents": (Documents, {"ids": Table(_INTEGERS, "Bk"), "offset": _OFFSET}),
    "prefix": (Prefix, {"n": Table(_INTEGERS, "B"), "offset": _OFFSET}),
    "global_tokens": (GlobalTokens, {"indices": Table(_INTEGERS, "N"), "offset": _OFFSET}),
    "dilated": (Dilated, {"step": _SIZE, "offset": _OFFSET}),
    "block_sparse": (BlockSparse, {"layout": Table((torch.bool,), "BHQK"), "block_size": _SIZE}),
    "runs": (Runs, {"start": Table(_INTEGERS, "BHq"), "stop": Table(_INTEGERS, "BHq")}),
    "dense": (Dense, {"allowed": Table((torch.bool,), "BHqk")}),
    "bits": (Bits, {"packed": Table((torch.uint8,), "BHqk"), "k_len": Number(0)}),
}
_KIND_OF = {cls: kind for kind, (cls, _) in _KINDS.items()}
MASK_CLASSES = (*_KIND_OF, And, Or, Not)  # all that can be written down as data
_PARTS: dict[str, type[And] | type[Or]] = {"and": And, "or": Or}


# --- There ------------------------------------------------------------------------------------------------------------


def _describe(mask: Mask, q_len: int, k_len: int, keep: Keep, depth: int) -> dict[str, Any]:
    if depth and isinstance(mask, (And, Or)):
        parts = [_describe(part, q_len, k_len, keep, depth - 1) for part in mask.parts]
        return {"kind": "and" if isinstance(mask, And) else "or", "parts": parts}
    if depth and isinstance(mask, Not):
        return {"kind": "not", "part": _describe(mask.part, q_len, k_len, keep, depth - 1)}
    if type(mask) not in _KIND_OF:
        mask = _answers(mask, q_len, k_len)
    kind = _KIND_OF[type(mask)]
    values = {name: getattr(mask, name) for name in _KINDS[kind][1]}
    return {"kind": kind} | {name: keep(name, x) if isinstance(x, Tensor) else x for name, x in values.items()}


def _answers(mask: Mask, q_len: int, k_len: int) -> Mask:
    """What the mask says of every pair, a bit each."""
    shape = (mask.batch or 1, mask.heads or 1, q_len, k_len)
    q, k = torch.arange(q_len, device=mask.device), torch.arange(k_len, device=mask.device)
    return bits_of_rows((mask.cells(q[rows], k).cpu() for rows in row_blocks(shape)), k_len)


# --- And back ---------------------------------------------------------------------------------------------------------


def _rebuild(tree: object, q_len: int, k_len: int, find: Find, depth: int) -> Mask:
    match tree:
        case {"kind": "and" | "or" | "not"} if not depth:
            raise MaskError(f"mask: nested deeper than {MAX_DEPTH}")
        case {"kind": "and" | "or" as kind, "parts": [_, *_] as parts, **rest} if not rest:
            return _PARTS[kind](tuple(_rebuild(part, q_len, k_len, find, depth - 1) for part in parts))
        case {"kind": "not", "part": part, **rest} if not rest:
            return Not(_rebuild(part, q_len, k_len, find, depth - 1))
        case {"kind": str(kind), **values} if kind in _KINDS and values.keys() == _KINDS[kind][1].keys():
            cls, fields = _KINDS[kind]
        case {"kind": kind}:
            known = ", ".join([*_KINDS, *_PARTS, "not"])
            raise MaskError(f"mask: expected one of {known}, and its parts. Received: {_brief(kind)}")
        case _:
            raise MaskError(f"mask: expected a description. Received: {_brief(tree)}")
    found = {}
    for name, field in fields.items():
        what = f"mask: {kind}: {name}"
        found[name] = (
            field.check(values[name], what, find) if isinstance(field, Table) else field.check(values[name], what)
        )
    mask = cls(**found)
    _check(mask, q_len, k_len)
    return mask


def _check(mask: Mask, q_len: int, k_len: int) -> None:
    """MaskError for what `align` takes on trust, because a mask that is made by hand cannot have it."""
    offset = getattr(mask, "offset", None)
    if isinstance(mask, (Documents, GlobalTokens)) and offset is not None and not 0 <= offset <= k_len - q_len:
        raise MaskError(f"mask: expected an offset from 0 to {k_len - q_len}. Received: {offset}")
    if isinstance(mask, GlobalTokens) and bool(((mask.indices < 0) | (mask.indices >= k_len)).any()):
        raise MaskError(f"mask: expected global tokens from 0 to {k_len - 1}. Received: {mask.indices.tolist()!r:.60}")
    if isinstance(mask, Runs):
        if mask.start.shape != mask.stop.shape:
            raise MaskError(f"mask: runs begin {list(mask.start.shape)} and end {list(mask.stop.shape)}")
        if bool((mask.start < 0).any() | (mask.stop < mask.start).any()):
            raise MaskError("mask: expected 0 <= start <= stop of every run")
    if isinstance(mask, Bits) and mask.packed.shape[3] != -(-mask.k_len // 8):
        raise MaskError(f"mask: {mask.k_len} keys do not fit {list(mask.packed.shape)} bytes")


def _brief(value: object) -> str:
    """A value from a file, which may be anything of any size, in a few characters."""
    return f"{value!r:.60}" if value is None or isinstance(value, (str, int, float)) else type(value).__name__
