"""The product of the weights of an attention with its values."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Operand, Seed, pair_tokens


@dataclasses.dataclass(frozen=True)
class Contraction:
    """Weights times values."""

    product: Seed
    weights: Operand
    values: Operand
    left: bool  # whether the weights are the left operand
    side: Literal["left", "right"] | None  # the operand of the score product whose tokens the values share


def read_contraction(scores: Seed, seed: Seed) -> Contraction | None:
    """A later product, if it multiplies the weights made of `scores` with values; else None."""
    assert seed.left is not None
    assert seed.right is not None
    for weights, values, left in ((seed.left, seed.right, True), (seed.right, seed.left, False)):
        if bool((marks.seed_of(weights.source) == scores.number).any()):
            return Contraction(seed, weights, values, left, _side(scores, weights, values, left=left))
    return None


def _side(scores: Seed, weights: Operand, values: Operand, *, left: bool) -> Literal["left", "right"] | None:
    rows, columns = pair_tokens(scores, weights.source)
    tokens = marks.one(values.token, -1 if left else -2)
    met = (tokens[:, None, :] if left else tokens[:, :, None]).expand(weights.source.shape)
    sides: tuple[tuple[Literal["left", "right"], Tensor], ...] = (("right", columns), ("left", rows))
    for name, mine in sides:
        known = (mine >= 0) & (met >= 0)
        # The input may differ: keys may come from one, values from another.
        same = (marks.position_of(mine) == marks.position_of(met)) & (marks.example_of(mine) == marks.example_of(met))
        if bool(known.any()) and bool((same | ~known).all()):
            return name
    return None
