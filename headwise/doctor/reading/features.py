"""Which output feature of which projection a number is: this tells heads apart."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Operand, Seed, Trace
from headwise.doctor.reading.marks import UNKNOWN


def features_of(run: Trace, sources: Tensor) -> Tensor:
    """For elements of projections and inputs: which output feature of which of them (-1: none)."""
    found = torch.full_like(sources, UNKNOWN)
    numbers = marks.seed_of(sources)
    for number in numbers.unique().tolist():
        if number >= 0:
            here = numbers == number
            found[here] = (number << 32) + _of_elements(run.seed(number)).reshape(-1)[marks.element_of(sources[here])]
    return found


def features_of_vectors(run: Trace, operand: Operand, dim: int) -> Tensor:
    """[X, n]: for each row (dim -1) or column (dim -2) of an operand, the feature of its first number with a source."""
    sources = operand.source.movedim(dim, 0)
    first = sources[0].clone()
    for more in sources[1:]:
        first = torch.where(first < 0, more, first)
    return features_of(run, first)


def _of_elements(seed: Seed) -> Tensor:
    """The output feature of every element of a projection or input."""
    shape = seed.value.shape
    if seed.left is None or seed.right is None:
        convolved = seed.left is not None and len(shape) > 2
        if convolved and bool((seed.token[:, :1] == seed.token).all()):  # the channels of one position have one token
            return torch.arange(shape[1]).reshape(1, -1, *(1,) * (len(shape) - 2)).expand(shape)
        return torch.arange(shape[-1]).expand(shape) if shape else torch.zeros((), dtype=torch.long)
    x, n, m = shape if len(shape) == 3 else (1, *shape)
    by_rows = seed.left.live or not seed.right.live  # of neither: learned vectors, and the weight is on the right
    live, width, length = (seed.left, m, n) if by_rows else (seed.right, n, m)
    tokens = marks.one(live.token, -1 if by_rows else -2).expand(x, length)
    first = _occurrence(tokens.reshape(-1)).reshape(x, length) * width
    if by_rows:
        return (first[:, :, None] + torch.arange(m)).reshape(shape)
    return (first[:, None, :] + torch.arange(n)[None, :, None]).reshape(shape)


def _occurrence(tokens: Tensor) -> Tensor:
    """How many times each token occurred before: which head it is, if a projection serves heads in turn."""
    order = tokens.argsort(stable=True)
    ordered = tokens[order]
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    place = torch.arange(len(tokens))
    count = place - place.masked_fill(~new, 0).cummax(0).values
    found = torch.empty_like(tokens)
    found[order] = count
    return found.masked_fill(tokens < 0, 0)
