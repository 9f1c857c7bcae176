"""Finds by trial the weights W of a model that gave some vectors, such as q: columns of x W equal the vectors.

The columns are found in any parameter: of a Linear or a Conv1D, with weights of q, k and v in one matrix, in any order
of heads, or a parameter [H, M, D].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise.experiments.observing import Event

CLOSE = 1e-4  # numbers are equal if they differ by at most this share of the largest number: rounding errors of float32


@dataclasses.dataclass(frozen=True, eq=False)
class Map:
    """A weight matrix of a module, with an input of the module by which it may have been multiplied."""

    name: str
    x: Tensor  # the input as the module got it
    rows: Tensor  # [n, M], the same input, one row for each token
    weight: Tensor  # [M, C]
    biases: Sequence[Tensor]  # [C], the biases that the product may have

    @property
    def product(self) -> Tensor:
        """The product of the input and the matrix, [n, C], without a bias, in float64."""
        return self.rows.double() @ self.weight.double()


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """The weights that were found: target = factor · (x W + b) for each head, then rotated if `rotated` > 0."""

    weight: Tensor  # [H, M, D], in the dtype of the parameter
    bias: Tensor  # [H, D], float64
    factor: float
    rotated: int  # how many of the D numbers of a head are rotated to their positions (RoPE)
    source: Map


def maps(event: Event, called: Sequence[Event], count: int, batch: int) -> Iterator[Map]:
    """Yield a `Map` for each matrix of a module and each input of the module that has `count` rows (tokens).

    A module that was not called itself, because another module uses its parameters, gets the inputs of the modules
    `called`, which are around it.
    """
    parameters = event.parameters
    for name, p in parameters.items():
        for x in event.inputs or [x for e in called for x in e.inputs]:
            if not x.is_floating_point() or p.ndim not in (2, 3):
                continue
            for axis in range(p.ndim):
                if p.shape[axis] != x.shape[-1]:
                    continue
                weight = p.movedim(axis, 0).flatten(1)
                if not weight.shape[1]:
                    continue
                biases = [b.flatten() for b in parameters.values() if b is not p and b.numel() == weight.shape[1]]
                for rows in in_rows(x, count, batch):
                    yield Map(f"{event.name}.{name}".lstrip("."), x, rows, weight, biases)


def in_rows(x: Tensor, count: int, batch: int) -> Iterator[Tensor]:
    """Yield [B, N, M] or [N, B, M] as rows [B · N, M], if B · N is `count`; in both orders if both are possible."""
    if x.shape[:-1].numel() != count:
        return
    if x.ndim == 3 and x.shape[1] == batch and x.shape[0] != batch:
        yield x.transpose(0, 1).flatten(0, 1)
    else:
        yield x.reshape(count, x.shape[-1])
        if x.ndim == 3 and x.shape[0] == x.shape[1]:
            yield x.transpose(0, 1).flatten(0, 1)


def fit(target: Tensor, source: Map) -> Fit | None:
    """Find columns of x W that equal the columns of `target` [n, H, D], up to one common factor and a bias.

    Returns None if a column of `target` is not found.
    """
    y, z, dtype = source.product, target.double().flatten(1), coarsest(target, source.rows)
    columns = _columns(z, y, target.shape[2], dtype)
    if columns is None:
        return None
    weight, product = source.weight[:, columns], y[:, columns]
    zc, yc = z - z.mean(0), product - product.mean(0)
    whole = float((yc * yc).sum())
    factor = float((zc * yc).sum()) / whole if whole > 0 else 1.0
    if factor <= 0 or not close(zc, factor * yc, z, dtype):
        return None
    factor = round_to_one(factor, dtype)
    measured = (z - factor * product).mean(0) / factor
    bias = _bias(measured, [b.double()[columns] for b in source.biases], product, dtype)
    heads = target.shape[1:]
    return Fit(weight.unflatten(1, heads).movedim(0, 1), bias.unflatten(0, heads), factor, 0, source)


def coarsest(*tensors: Tensor) -> torch.dtype:
    """Return the least precise dtype of these tensors: a half-precision model may compute scores in float32."""
    return max((x.dtype for x in tensors), key=lambda dtype: torch.finfo(dtype).eps)


def round_to_one(factor: float, dtype: torch.dtype) -> float:
    """Return 1 if the factor differs from 1 only by rounding, else the factor."""
    return 1.0 if abs(factor - 1) < max(1e-5, torch.finfo(dtype).eps) else factor


def _bias(measured: Tensor, candidates: Sequence[Tensor], like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the candidate (or 0) nearest to the measured bias, if it is close enough; else the measured bias."""
    fitting = [each for each in [*candidates, torch.zeros_like(measured)] if close(each, measured, like, dtype)]
    return min(fitting, key=lambda each: float((each - measured).abs().max()), default=measured)


def close(one: Tensor, two: Tensor, like: Tensor, dtype: torch.dtype) -> bool:
    """Return whether two tensors are equal up to rounding in `dtype`, relative to the largest number of `like`."""
    bound = max(CLOSE, 8 * torch.finfo(dtype).eps)
    if not one.numel():
        return True
    return bool((one - two).abs().max() <= bound * like.abs().max().clamp(min=1e-12))


def alike(z: Tensor, y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Find, for each column of z, a column of y that is a multiple of it, after both are centred.

    Returns (the index of the most similar column of y, bool: whether it is such a multiple).
    """
    zc, yc = z - z.mean(0), y - y.mean(0)
    norms = zc.norm(dim=0), yc.norm(dim=0)
    cosines = (zc.mT @ yc) / (norms[0][:, None] * norms[1]).clamp(min=1e-30)
    best, index = cosines.max(1)
    return index, (best > 1 - max(1e-6, 8 * torch.finfo(dtype).eps ** 2)) & ~_constant(z)


def _constant(x: Tensor) -> Tensor:
    """Return which columns have one number in all rows (bool), as the columns of a head whose weights are 0 do."""
    return (x - x.mean(0)).abs().amax(0) <= 1e-6 * x.abs().max().clamp(min=1e-12)


def _columns(z: Tensor, y: Tensor, width: int, dtype: torch.dtype) -> Tensor | None:
    """Return, for each column of z [n, H · D], the index of the matching column of y; None if a column has no match."""
    index, sure = alike(z, y, dtype)
    still, silent = _constant(z), _constant(y)
    if not bool((sure | still).all()):
        return None
    if not bool(still.any()):
        return index
    # A constant column cannot be matched by its numbers: its index follows from the indices of its neighbours.
    known = sure.nonzero().flatten().tolist()
    for at in still.nonzero().flatten().tolist():
        near = min(known, key=lambda j: (j // width != at // width, abs(j - at)), default=None)
        guess = at if near is None else int(index[near]) + at - near
        # the neighbour is of another head: use the distance between the columns of two heads
        if near is not None and near // width != at // width:
            guess = _extrapolated(index, known, at, width, guess)
        if not 0 <= guess < y.shape[1] or not bool(silent[guess]):
            return None
        index[at] = guess
    return index


def _extrapolated(index: Tensor, known: Sequence[int], at: int, width: int, guess: int) -> int:
    """Guess a column's index from the distance between two heads' columns; if one head is known, return `guess`."""
    same = [j for j in known if j % width == at % width] or list(known)
    first, last = same[0], same[-1]
    heads = last // width - first // width
    if not heads:
        return guess
    stride = (int(index[last]) - last % width - int(index[first]) + first % width) // heads
    return int(index[first]) - first % width + (at // width - first // width) * stride + at % width
