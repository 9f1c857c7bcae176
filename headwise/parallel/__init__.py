"""Attention over a sequence that several processes hold: `context_parallel`, and who holds which rows.

Dimension letters: P processes, N positions of the whole sequence, S those of this process, B, H, G, D, E as in
`headwise.shapes`.
"""

from headwise.parallel.context import (
    alone,
    context_parallel,
    current,
    gather,
    keys_of,
    length_of,
    positions_here,
    rows_here,
    shard,
    whole,
)
from headwise.parallel.layout import WAYS, Layout, deal
from headwise.parallel.paper import ParallelPlan, on_paper, planned

__all__ = [
    "WAYS",
    "Layout",
    "ParallelPlan",
    "alone",
    "context_parallel",
    "current",
    "deal",
    "gather",
    "keys_of",
    "length_of",
    "on_paper",
    "planned",
    "positions_here",
    "rows_here",
    "shard",
    "whole",
]
