"""Where in a model an attention computation was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from headwise.masks import Mask

# Of a mask that is known only cell by cell, at most so many cells are computed to learn whether it is causal.
LOOKED_AT = 2**24


@dataclass(frozen=True)
class Site:
    """One attention computation in a model's code."""

    name: str  # the path of the module that made it: "encoder.layer.3.attention.self"
    layer: int  # its place in its stack (the sites whose paths differ in their numbers alone), from 0
    kind: Literal["self", "cross"]  # queries and keys come from one sequence, or from two
    causal: bool
    heads: int
    key_heads: int
    call: int = 0  # which call of this site: 0 for the first forward pass, 1 for the next


def is_causal(mask: Mask | None, q_len: int, k_len: int, blind: Tensor | None = None) -> bool:
    """Whether no query may attend to a key after its own position.

    `blind`, bool [B|1, H|1, Q - 1], are queries that do not count. False for a mask that is too large to check.
    """
    if mask is None:
        return q_len == 1
    if mask.cellwise and q_len * k_len > LOOKED_AT:
        return False
    causal = mask.causal_rows(q_len, k_len)
    return bool((causal if blind is None else causal | blind).all())
