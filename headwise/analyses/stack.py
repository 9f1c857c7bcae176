"""A stack of layers as the analyses go through it: checked once, then some rows at a time.

What several layers do together is a product of one matrix [N, N] a layer. Some rows of such a product are a chain of
vector-matrix products from the top layer down, so they need neither the product nor any of its factors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ParamSpec

import torch
from torch import Tensor

from headwise.call import as_written
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.records import AttentionRecord

# What a tile of weights may take; an analysis holds a few such tiles at once, whatever the length.
BLOCK_BYTES = 2**25

Choice = int | slice | Sequence[int] | None
RowsOf = Callable[[list[int]], Tensor]  # rows of one layer's matrix [N, N]: [B, len(rows), N]
P = ParamSpec("P")


def listed(records: Iterable[AttentionRecord], what: str) -> list[AttentionRecord]:
    """The records as a list; ArgumentError or DtypeError unless there is at least one, and nothing else."""
    if isinstance(records, AttentionRecord):
        return [records]
    if not isinstance(records, Iterable):
        raise DtypeError(f"{what} needs AttentionRecords, or a Seen. Received: {type(records).__name__}")
    found = list(records)
    if not found:
        raise ArgumentError(f"{what} needs at least one record. Received: none")
    for record in found:
        if not isinstance(record, AttentionRecord):
            raise DtypeError(f"{what} needs AttentionRecords. Received: {type(record).__name__}")
    return found


def self_attention(records: Iterable[AttentionRecord], what: str) -> list[AttentionRecord]:
    """The records as a list; RecordError, naming it, for one whose queries and keys are not the same tokens."""
    found = listed(records, what)
    for i, record in enumerate(found):
        _, _, q_len, k_len = record.shape
        if record.site is not None and record.site.kind == "cross":
            raise RecordError(f"{what} needs self-attention, {named(record, i)} is cross-attention. Leave it out")
        if q_len != k_len:
            raise RecordError(f"{what} needs as many queries as keys, {named(record, i)} has Q={q_len} and K={k_len}")
    return found


def consecutive(records: Iterable[AttentionRecord], what: str) -> list[AttentionRecord]:
    """The layers of one forward pass, lowest first; RecordError, naming it, for a record that does not fit the others.

    Besides what `self_attention` checks, B and N must be those of the first record, and no module may come back after
    others had their turn: those would be two passes, and a product over both of them means nothing.
    """
    found = self_attention(records, what)
    first, length = found[0].shape[0], found[0].shape[3]
    for i, record in enumerate(found):
        batch, _, _, k_len = record.shape
        if (batch, k_len) != (first, length):
            raise RecordError(
                f"{what} needs layers over the same tokens: record 0 has B={first}, N={length}, "
                f"{named(record, i)} has B={batch}, N={k_len}. Pass the layers of one stack"
            )
    # A module may follow itself, as where layers share their weights.
    names = [key for key, _ in itertools.groupby(r.site.name for r in found if r.site is not None)]
    if len(set(names)) < len(names):
        again = next(name for i, name in enumerate(names) if name in names[:i])
        raise RecordError(
            f"{what} needs the layers of one forward pass, {again} comes twice. Pass the records of one pass: "
            "seen.call(0) is the first"
        )
    return found


def in_full_precision(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The function with autocast off inside: it would lower the products to half precision."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        with as_written(torch.device("cpu")), as_written(torch.device("cuda")):
            return function(*args, **kwargs)

    return wrapped


def without_dropout(records: Sequence[AttentionRecord], what: str) -> None:
    """RecordError, naming it, for a record that dropped weights: which ones the call used is not known any more."""
    for i, record in enumerate(records):
        if record.dropout > 0.0:
            raise RecordError(
                f"{what} needs the weights that the call used, {named(record, i)} dropped {record.dropout:g} of them. "
                "Call model.eval() first, or set dropout to 0"
            )


def named(record: AttentionRecord, i: int) -> str:
    """How an error refers to a record."""
    return f"record {i}" + (f" ({record.site.name})" if record.site else "")


def positions(choice: Choice, size: int, name: str) -> list[int]:
    """A choice among `size` as a list: None = all; negative ones count from the end. ArgumentError names the range."""
    if choice is None or isinstance(choice, slice):
        chosen = list(range(size)[slice(None) if choice is None else choice])
    else:
        chosen = [choice] if isinstance(choice, int) else [int(i) for i in choice]
    if not chosen or any(not -size <= i < size for i in chosen):
        raise ArgumentError(f"{name} must lie in 0 … {size - 1}, and be at least one. Received: {choice}")
    return [i % size for i in chosen]


def blocks(chosen: Sequence[int], cell_bytes: int) -> Iterator[list[int]]:
    """`chosen` some at a time, so many that `cell_bytes` for each of them stay within a tile."""
    step = max(1, BLOCK_BYTES // max(1, cell_bytes))
    for lo in range(0, len(chosen), step):
        yield list(chosen[lo : lo + step])


def row_blocks(record: AttentionRecord, rows: Sequence[int] | None = None) -> Iterator[list[int]]:
    """The rows (None = all) some at a time, so many that their weights are one tile."""
    batch, heads, q_len, k_len = record.shape
    yield from blocks(range(q_len) if rows is None else rows, batch * heads * k_len * dtype_of(record).itemsize)


def times_rows(x: Tensor, layers: Sequence[AttentionRecord], matrix: Callable[[AttentionRecord], RowsOf]) -> Tensor:
    """x M_L … M_1 for row vectors x [B, r, N] and one matrix M a layer, from the top layer down. O(r N) memory."""
    for record in reversed(layers):
        rows_of = matrix(record)
        x = x.to(record.q.device)
        total = torch.zeros_like(x)
        for rows in row_blocks(record):
            part = x[:, :, rows]
            if bool(part.any()):  # one row of a causal stack reaches only the rows above it
                total += part @ rows_of(rows).to(x.dtype)
        x = total
    return x


def product_rows(
    rows: Sequence[int], layers: Sequence[AttentionRecord], matrix: Callable[[AttentionRecord], RowsOf]
) -> Tensor:
    """The `rows` of M_L … M_1, [B, r, N]: those of M_L, and then the chain through the layers below."""
    rows_of = matrix(layers[-1])
    return times_rows(torch.cat([rows_of(part) for part in row_blocks(layers[-1], rows)], 1), layers[:-1], matrix)


def attended_values(record: AttentionRecord) -> Tensor:
    """The values [B, G, K, E] in the dtype of the weights; 0 for keys that nobody may attend to: they may hold NaN."""
    v = record.v.to(dtype_of(record))
    used = None if record.mask is None else record.mask.used_keys(*record.shape[2:])
    if used is None:
        return v
    if used.shape[1] > 1:
        used = used.unflatten(1, (v.shape[1], -1)).any(2)
    return v.masked_fill(~used.to(v.device)[..., None], 0.0)


def by_key_head(x: Tensor, y: Tensor) -> Tensor:
    """x [B, H, r, ·] times y [B, G, ·, ·], where head h meets key head h // (H / G): [B, H, r, ·]."""
    # The heads of one key head are put below one another, so that y need not be repeated.
    stacked = x.unflatten(1, (y.shape[1], -1)).flatten(2, 3)
    return (stacked @ y).view(*x.shape[:3], y.shape[3])


def dtype_of(record: AttentionRecord) -> torch.dtype:
    """The dtype of a record's weights: float32, or float64 for float64 inputs."""
    return torch.promote_types(record.q.dtype, torch.float32)


def by_layer_and_head(found: Sequence[Tensor], what: str) -> Tensor:
    """One row [H] a layer as [L, H]; RecordError where the layers differ in H."""
    counts = [len(row) for row in found]
    if len(set(counts)) > 1:
        raise RecordError(f"{what} needs layers with one number of heads. Received: {counts}. Pass them one by one")
    return torch.stack([row.to(found[0].device) for row in found])
