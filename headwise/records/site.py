"""The place in a model's code where attention was computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from headwise.masks import Mask

# The most cells of a mask known only cell by cell that are computed to find out whether it is causal.
LOOKED_AT = 2**24


@dataclass(frozen=True)
class Site:
    """One place in a model's code that computes attention, and one call of it."""

    name: str  # the path of the module that computed it: "encoder.layer.3.attention.self"
    layer: int  # its place in its stack (the sites whose paths differ only in numbers), from 0
    kind: Literal["self", "cross"]  # whether queries and keys come from one sequence or from two
    causal: bool
    heads: int
    key_heads: int
    call: int = 0  # the number of the call of this site: 0 for the first forward pass, 1 for the next


def is_causal(mask: Mask | None, q_len: int, k_len: int, blind: Tensor | None = None) -> bool:
    """Whether no query may attend to a key after its own position.

    `blind`, bool [B|1, H|1, Q - 1], True = a query to ignore. The result is False for a mask that is too large to
    check.
    """
    if mask is None:
        return q_len == 1
    if mask.cellwise and q_len * k_len > LOOKED_AT:
        return False
    causal = mask.causal_rows(q_len, k_len)
    return bool((causal if blind is None else causal | blind).all())
