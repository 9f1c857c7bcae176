"""The products of a forward, including convolutions and embeddings: each is a new source, and its tokens follow from
those of its operands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.lines import running_line
from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Kind, Ledger, Operand, Trace, pair_tokens


def product(ledger: Ledger, name: str, args: Sequence[Any], out: Tensor) -> None:
    """A product of matrices or vectors, with or without an added tensor."""
    a, b = (args[1], args[2]) if name.startswith(("add", "badd")) else (args[0], args[1])
    left, right = _operand(ledger, a), _operand(ledger, b)
    if name in ("mv", "addmv"):
        right = _column(right)
    rows, columns = marks.one(left.token, -1), marks.one(right.token, -2)  # [X, n], [X, m]
    if left.live and right.live:
        tokens = _met(ledger.trace, left, right)
    elif right.live:
        tokens = columns[..., None, :].expand(*columns.shape[:-1], rows.shape[-1], columns.shape[-1])
    else:
        tokens = rows[..., :, None].expand(*rows.shape, columns.shape[-1])
    kind: Kind = "projection" if left.live != right.live and bool(left.names or right.names) else "product"
    found = ledger.seed(
        kind,
        out,
        tokens.reshape(out.shape).contiguous(),
        left=left,
        right=right,
        where=running_line(),
        name=_listed(left.names if right.live else right.names),
    )
    found.live = left.live or right.live
    if not found.live:
        found.names = left.names | right.names
    ledger.put(out, found)


def convolution(ledger: Ledger, args: Sequence[Any], out: Tensor) -> None:
    """A projection, of one token each if its kernel has size 1. A patch has the token of its first pixel."""
    x, weight = args[0], args[1]
    found = ledger.marks_of(x)
    value, token, source = (
        t.movedim(1, -1).reshape(t.shape[0], -1, t.shape[1]).clone() for t in (x.detach(), found.token, found.source)
    )
    left = Operand(value, token, source, found.live, found.names, found.factor)
    if all(size == 1 for size in weight.shape[2:]) and out.shape[2:] == x.shape[2:]:
        tokens = marks.one(found.token, 1)[:, None].expand(out.shape).contiguous()
    else:
        first = _first_pixels(marks.one(found.token, 1), args, out)
        tokens = torch.full(out.shape, marks.MIXED) if first is None else first[:, None].expand(out.shape).contiguous()
    name = _listed(ledger.marks_of(weight).names)
    ledger.put(out, ledger.seed("projection", out, tokens, left=left, where=running_line(), name=name))


def _first_pixels(tokens: Tensor, args: Sequence[Any], out: Tensor) -> Tensor | None:
    """The token of the first pixel of each patch, of tokens [B, ...] of pixels; None if the convolution does not cut
    patches that do not overlap, or if patches share a token.
    """
    _, weight, _, stride, padding, dilation, transposed = args[:7]
    size = list(weight.shape[2:])
    strides, paddings = (list(x) * (len(size) if len(x) == 1 else 1) for x in (stride, padding))
    if transposed or strides != size or any(paddings) or set(dilation) != {1}:
        return None
    picked = tokens[(slice(None), *(slice(None, out.shape[2 + d] * n, n) for d, n in enumerate(size)))]
    return picked if len(picked.unique()) == picked.numel() else None


def embedding(ledger: Ledger, args: Sequence[Any], out: Tensor) -> None:
    weight, ids = ledger.marks_of(args[0]), ledger.marks_of(args[1])
    tokens = ids.token[..., None].expand(out.shape).contiguous()
    found = ledger.seed("projection", out, tokens, where=running_line(), name=_listed(weight.names))
    found.live = ids.live
    if not found.live:
        found.names = weight.names
    ledger.put(out, found)


def _operand(ledger: Ledger, x: Tensor) -> Operand:
    found = ledger.marks_of(x)
    value = x.detach() if not found.live else x.detach().clone()
    token, source = found.token, found.source
    if x.ndim == 2:
        value, token, source = value[None], token[None], source[None]
    return Operand(value, token.clone(), source.clone(), found.live, found.names, found.factor)


def _column(x: Operand) -> Operand:
    """A vector as a matrix with one column."""
    return dataclasses.replace(
        x, value=x.value[None, :, None], token=x.token[None, :, None], source=x.source[None, :, None]
    )


def _met(run: Trace, left: Operand, right: Operand) -> Tensor:
    """The tokens of a product of two operands that depend on the inputs: for weights times values, the queries'."""
    shape = (*left.token.shape[:2], right.token.shape[2])
    for weights, dim in ((left, -1), (right, -2)):
        number = int(marks.seed_of(weights.source).max())
        if number < 0 or run.seed(number).kind != "product":
            continue
        rows, columns = pair_tokens(run.seed(number), weights.source)
        of = torch.where(
            _same(rows, dim), rows.amax(dim), torch.where(_same(columns, dim), columns.amax(dim), marks.MIXED)
        )
        return (of[..., :, None] if dim == -1 else of[..., None, :]).expand(shape)
    return torch.full(shape, marks.MIXED)


def _same(tokens: Tensor, dim: int) -> Tensor:
    return (tokens == tokens.narrow(dim, 0, 1)).all(dim) & (tokens.select(dim, 0) != marks.UNKNOWN)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
