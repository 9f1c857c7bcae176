"""Positions of a memory that are added to keys alone, or to values too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import found, one, seeded


class Decoder(nn.Module):
    """Sequence first. As in DETR, pos and query_pos enter queries and keys only."""

    too = False

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        pos: Tensor | None = None,
        query_pos: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Any:
        keys = memory if pos is None else memory + pos
        query = tgt if query_pos is None else tgt + query_pos
        values = keys if self.too else memory
        return tgt + self.attention(query, keys, values, key_padding_mask=memory_key_padding_mask)[0]


class InValues(Decoder):
    """Sequence first. As in DETR, pos and query_pos enter queries and keys only."""

    too = True


def example() -> Any:
    draw = torch.Generator().manual_seed(2)
    tgt, memory, pos, query_pos = (torch.randn(n, 2, 16, generator=draw) for n in (5, 12, 12, 5))
    padding = torch.zeros(2, 12, dtype=torch.bool)
    return (tgt, memory), {"pos": pos, "query_pos": query_pos, "memory_key_padding_mask": padding}


def test_positions_in_values() -> None:
    finding = one("positions_in_values", seeded(InValues), example=example())
    assert (finding.name, finding.severity) == ("positions-in-values", "bug")
    assert found("positions_in_values", seeded(Decoder), example=example()) == []
