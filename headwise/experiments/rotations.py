"""Finds by trial the weights of queries and keys that were rotated by their positions (RoPE, Su et al. 2021).

At a token, each pair (a, b) of numbers is turned by an angle that is the same in every head; its length stays:

    (a + ib) = exp(iθ) · (x W_a + b_a + i (x W_b + b_b)),      θ depends only on the token and the pair

Pairs are (i, i + r/2), as in GPT-NeoX and Llama of transformers, or (2i, 2i + 1), as in GPT-J. r of the D numbers are
rotated.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.experiments.linear import Fit, Map, alike, close, coarsest, round_to_one


def fit_rotated(target: Tensor, source: Map) -> Fit | None:
    """Find the weights of `target` [n, H, D] before its rotation, in a matrix of `source`; None if one is missing."""
    product = source.product
    for bias in [*source.biases, None]:
        y = product if bias is None else product + bias.double()
        found = _fit(target, y, coarsest(target, source.rows))
        if found is None:
            continue
        columns, factor, turned = found
        chosen = columns.flatten()
        added = torch.zeros_like(y[0]) if bias is None else bias.double()
        weight = source.weight[:, chosen].unflatten(1, columns.shape).movedim(0, 1)
        return Fit(weight, added[chosen].unflatten(0, columns.shape), factor, turned, source)
    return None


def _fit(target: Tensor, y: Tensor, dtype: torch.dtype) -> tuple[Tensor, float, int] | None:
    """Match rotated q or k, target [n, H, D], with columns of y, the product before rotation; None if impossible.

    Returns (the column of y for each number [H, D], the factor, how many of the D numbers are rotated).
    """
    _, heads, width = target.shape
    z = target.double()
    index, sure = alike(z.flatten(1), y, dtype)
    known = sure.view(heads, width).all(0)
    for turned, ones, twos, apart in _pairs(known):
        pairs = torch.complex(z[..., ones], z[..., twos]).flatten(1)  # [n, H · r/2]
        places = torch.complex(y[:, :-apart], y[:, apart:])
        at, same = alike(pairs.abs(), places.abs(), dtype)
        if not bool(same.all()):
            continue
        found = places[:, at]
        factor = round_to_one(float((pairs.abs() * found.abs()).sum() / (found.abs() ** 2).sum()), dtype)
        if not _turns_alike(pairs, factor * found, heads, dtype):
            continue
        columns = index.view(heads, width).clone()
        columns[:, ones], columns[:, twos] = at.view(heads, -1), at.view(heads, -1) + apart
        still = torch.ones_like(known)
        still[turned] = False
        if close(z[..., still], factor * y[:, columns[:, still]], z, dtype):
            return columns, factor, len(turned)
    return None


def _pairs(known: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
    """Yield rotations to try, from `known`: bool [D], True = the number of a head was found without a rotation.

    Each is (indices of the rotated numbers, first number of each pair, second number, distance of the columns of a
    pair). Slow pairs hardly turn within a few tokens, so that they may pass as not rotated. Therefore these are tried
    too: the first D / 4 numbers of a head, its first and last D / 2, and all D.
    """
    width = len(known)
    every = torch.arange(width, device=known.device)
    tried: list[list[int]] = []
    for turned in (every[~known], every[: width // 4], every[: width // 2], every[width // 2 :], every):
        if not len(turned) or len(turned) % 2 or turned.tolist() in tried:
            continue
        if not set(every[~known].tolist()) <= set(turned.tolist()):
            continue
        tried.append(turned.tolist())
        for ones, twos in (turned.chunk(2), (turned[::2], turned[1::2])):
            for apart in {len(turned) // 2, 1}:
                yield turned, ones, twos, apart


def _turns_alike(pairs: Tensor, found: Tensor, heads: int, dtype: torch.dtype) -> bool:
    """Return whether, at each token, each pair is turned by the same angle in all heads."""
    one, two = (x.unflatten(1, (heads, -1)) for x in (pairs, found))
    angle = (one * two.conj()).sum(1, keepdim=True)
    turned = two * angle / angle.abs().clamp(min=1e-30)
    return close(torch.view_as_real(one), torch.view_as_real(turned), one.abs(), dtype)
