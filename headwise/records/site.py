"""Where in a model an attention computation was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Site:
    """One attention computation in a model's code."""

    name: str  # the path of the module that made it: "encoder.layer.3.attention.self"
    layer: int  # which of its stack (of the sites whose paths differ in one number), from 0
    kind: Literal["self", "cross"]  # whether queries and keys come from one sequence or from two
    causal: bool
    heads: int
    key_heads: int
    call: int = 0  # which call of this site: 0 for the first forward pass, 1 for the next
