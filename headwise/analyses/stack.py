"""Functions that the analyses share: checks of records, and products of the matrices of several layers.

Such a product has one matrix [N, N] per layer, made from the layer's attention weights. To compute some rows of the
product, row vectors are multiplied by one matrix after another, from the top layer down, and each matrix is computed a
block of rows at a time. So neither the whole product nor a whole matrix is in memory.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ParamSpec

import torch
from torch import Tensor

from headwise.call import suspend_autocast
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.records import AttentionRecord

# Bytes of a block of weights; an analysis holds a few such blocks at once, whatever the length.
BLOCK_BYTES = 2**25

Matrix = Callable[[AttentionRecord, list[int]], Tensor]  # some rows of a layer's matrix [N, N]: [B, rows, N]
P = ParamSpec("P")


def listed(records: Iterable[AttentionRecord], what: str) -> list[AttentionRecord]:
    """Return the records as a list. Raises ArgumentError for no records, and DtypeError for anything but records."""
    if isinstance(records, AttentionRecord):
        return [records]
    found = list(records) if isinstance(records, Iterable) else [records]
    if not found:
        raise ArgumentError(f"{what} needs at least one record. Received: records=[]")
    for record in found:
        if not isinstance(record, AttentionRecord):
            received = type(record).__name__
            raise DtypeError(f"{what} needs AttentionRecords. Received: records={received}. Pass a Seen, or a list")
    return found


def self_attention(records: Iterable[AttentionRecord], what: str) -> list[AttentionRecord]:
    """Return the records as a list; raise RecordError, which names the record, if one is not self-attention."""
    found = listed(records, what)
    for i, record in enumerate(found):
        _, _, q_len, k_len = record.shape
        if record.site is not None and record.site.kind == "cross":
            raise RecordError(
                f"{what} needs self-attention. Received: {named(record, i)}, cross-attention. Leave it out"
            )
        if q_len != k_len:
            raise RecordError(
                f"{what} needs as many queries as keys. Received: {named(record, i)} with Q={q_len}, K={k_len}"
            )
    return found


def consecutive(records: Iterable[AttentionRecord], what: str) -> list[AttentionRecord]:
    """Return the records as a list; raise RecordError if they are not the layers of one forward pass.

    Besides the checks of `self_attention`: all records must have the B and N of the first record, and no module may
    come again after another module: that would be two forward passes, and a product over both has no meaning.
    """
    found = self_attention(records, what)
    first, length = found[0].shape[0], found[0].shape[3]
    for i, record in enumerate(found):
        batch, _, _, k_len = record.shape
        if (batch, k_len) != (first, length):
            raise RecordError(
                f"{what} needs layers over the same tokens, as record 0: B={first}, N={length}. Received: "
                f"{named(record, i)} with B={batch}, N={k_len}. Pass the layers of one stack"
            )
    # A module may follow itself: layers may share their weights.
    names = [key for key, _ in itertools.groupby(r.site.name for r in found if r.site is not None)]
    if len(set(names)) < len(names):
        again = next(name for i, name in enumerate(names) if name in names[:i])
        raise RecordError(
            f"{what} needs the layers of one forward pass. Received: {again} twice. Pass the records of one pass: "
            "seen.call(0) is the first"
        )
    return found


def with_gradients(records: Sequence[AttentionRecord], what: str) -> None:
    """Raise RecordError, which names the record, if one has no values or no output gradients, or was made with dropout.

    After dropout it is not known any more which weights were dropped.
    """
    for i, record in enumerate(records):
        if record.dropout > 0.0:
            raise RecordError(
                f"{what} needs the weights that the call used. Received: {named(record, i)}, which dropped "
                f"{record.dropout:g} of them. Call model.eval() first, or set dropout to 0"
            )
        assert record.v is not None  # both raise RecordError, naming the option, if they were not kept
        assert record.grad is not None


def in_full_precision(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Wrap a function so that it runs with autocast off: autocast would compute its products in half precision."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        with suspend_autocast(torch.device("cpu")), suspend_autocast(torch.device("cuda")):
            return function(*args, **kwargs)

    return wrapped


def named(record: AttentionRecord, i: int) -> str:
    """Return how an error message calls a record: "record 3 (encoder.layer.3)"."""
    return f"record {i}" + (f" ({record.site.name})" if record.site else "")


def blocks(chosen: Sequence[int], cell_bytes: int) -> Iterator[list[int]]:
    """Yield the indices `chosen` in lists that take at most `BLOCK_BYTES`, with `cell_bytes` bytes for each index.

    If `chosen` is empty, one empty list is yielded.
    """
    step = max(1, BLOCK_BYTES // max(1, cell_bytes))
    for lo in range(0, max(1, len(chosen)), step):
        yield list(chosen[lo : lo + step])


def row_blocks(record: AttentionRecord, rows: Sequence[int] | None = None) -> Iterator[list[int]]:
    """Yield the row indices (None = all) in lists; the weights of the rows of a list take at most `BLOCK_BYTES`."""
    batch, heads, q_len, k_len = record.shape
    yield from blocks(range(q_len) if rows is None else rows, batch * heads * k_len * record.call.dtype.itemsize)


def unit_rows(rows: Sequence[int], record: AttentionRecord) -> Tensor:
    """Return the rows `rows` of the identity matrix [Q, Q], the same for each example: [B, r, Q]."""
    batch, _, q_len, _ = record.shape
    x = torch.zeros(batch, len(rows), q_len, dtype=record.call.dtype, device=record.q.device)
    x[:, range(len(rows)), rows] = 1.0
    return x


def times_rows(x: Tensor, layers: Sequence[AttentionRecord], matrix: Matrix) -> Tensor:
    """Compute x M_L … M_1 for row vectors x [B, r, N] and a matrix M per layer, from the top down. O(r N) memory."""
    for record in reversed(layers):
        x = x.to(record.q.device)
        total = torch.zeros_like(x)
        # In a causal stack a row reaches only the rows above it.
        for rows in row_blocks(record, x.flatten(0, 1).any(0).nonzero()[:, 0].tolist()):
            total += x[:, :, rows] @ matrix(record, rows).to(x.dtype)
        x = total
    return x


def product_rows(rows: Sequence[int], layers: Sequence[AttentionRecord], matrix: Matrix) -> Tensor:
    """Compute the rows `rows` of M_L … M_1, [B, r, N]: the rows of M_L, multiplied by the matrices of lower layers."""
    top = torch.cat([matrix(layers[-1], part) for part in row_blocks(layers[-1], rows)], 1)
    return times_rows(top, layers[:-1], matrix)


def attended_values(record: AttentionRecord) -> Tensor:
    """Return the values [B, G, K, E] in the dtype of the weights; 0 for keys that no query may see (may be NaN)."""
    v, used = record.v.to(record.call.dtype), record.call.used_keys
    return v if used is None else v.masked_fill(~used[..., None], 0.0)


def by_key_head(x: Tensor, y: Tensor) -> Tensor:
    """Multiply x [B, H, r, ·] by y [B, G, ·, ·], where head h uses key head h // (H / G): [B, H, r, ·]."""
    # The heads of one key head become rows of one matrix, so that y is not repeated.
    stacked = x.unflatten(1, (y.shape[1], -1)).flatten(2, 3)
    return (stacked @ y).view(*x.shape[:3], y.shape[3])


def by_layer_and_head(found: Sequence[Tensor], what: str) -> Tensor:
    """Stack one row [H] per layer to [L, H]; RecordError if the layers differ in H."""
    counts = [len(row) for row in found]
    if len(set(counts)) > 1:
        raise RecordError(f"{what} needs layers of one number of heads. Received: H={counts}. Pass them one by one")
    return torch.stack([row.to(found[0].device) for row in found])
