"""Finds by trial the normalisations (LayerNorm, RMSNorm) in a run of a model, with their gains.

    y = s (x - mean x) · g + b        LayerNorm (Ba et al. 2016), s = 1 / σ of each token
    y = s x · g                       RMSNorm (Zhang & Sennrich 2019)

With s fixed to this run, a normalisation is linear: it can be multiplied (folded) into the weights applied to y.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.experiments.linear import close, coarsest
from headwise.experiments.observing import Event, Observed


@dataclasses.dataclass(frozen=True, eq=False)
class Norm:
    """One normalisation of a model, x -> y, with the numbers that it had in a run."""

    name: str
    x: Tensor  # [B, N, M], its input
    scale: Tensor  # [B, N, 1], s
    gain: Tensor  # [M], g
    bias: Tensor  # [M], b
    centred: bool  # whether the normalisation subtracts the mean

    def folded(self, weight: Tensor) -> Tensor:
        """Turn a weight [..., M, C] that is applied to y into one that gives the same result from s x, except for b."""
        weight = self.gain[:, None] * weight
        return weight - weight.mean(-2, keepdim=True) if self.centred else weight

    def apply(self, part: Tensor) -> Tensor:
        """Compute the part of y that comes from a part [B, N, M] of x: with s of this run, and without b."""
        part = part - part.mean(-1, keepdim=True) if self.centred else part
        return self.scale * part * self.gain


def find_norm(observed: Observed, y: Tensor) -> Norm | None:
    """Find the norm whose module returned `y` [B, N, M], or a tensor of which `y` is a multiple; None = not found."""
    for given, factor in observed.sums.multiples(y):
        for event in observed.makers(given):
            for x in event.inputs:
                found = _read(event, x, given) if x.shape == given.shape and x is not given else None
                if found is not None:
                    return dataclasses.replace(found, gain=factor * found.gain, bias=factor * found.bias)
    return None


def _read(event: Event, x: Tensor, y: Tensor) -> Norm | None:
    x64, y64 = x.double(), y.double()
    for gain, bias in _parameters(event, x64):
        for centred in (True, False):
            rest = x64 - x64.mean(-1, keepdim=True) if centred else x64
            shape = rest * gain
            scale = ((y64 - bias) * shape).sum(-1, keepdim=True) / (shape * shape).sum(-1, keepdim=True).clamp(
                min=1e-30
            )
            if bool(((scale > 0) | ~shape.any(-1, keepdim=True)).all()) and close(
                y64, scale * shape + bias, y64, coarsest(x, y)
            ):
                return Norm(event.name, x, scale, gain, bias, centred)
    return None


def _parameters(event: Event, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (gain, bias) pairs that a module may have: the gain is one of its vectors, 1 + a vector (Gemma), or 1."""
    vectors = [p.double() for p in event.parameters.values() if p.shape == x.shape[-1:]]
    one, none = torch.ones(x.shape[-1]).to(x), torch.zeros(x.shape[-1]).to(x)
    for gain in [*vectors, *(1 + p for p in vectors), one]:
        for bias in [*(p for p in vectors if p is not gain), none]:
            yield gain, bias
