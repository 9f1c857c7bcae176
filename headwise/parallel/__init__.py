"""Attention over one sequence in several processes, each of which holds some rows (positions): `context_parallel`.

Dimension letters: P processes, N positions of the whole sequence, S positions of this process, B, H, G, D, E as in
`headwise.shapes`.
"""

from headwise.parallel.context import context_parallel, gather, positions_here, reading_memory, shard
from headwise.parallel.layout import Layout, chunks, deal
from headwise.parallel.paper import ParallelPlan, on_paper
from headwise.parallel.records import SharedSeen, joined

__all__ = [
    "Layout",
    "ParallelPlan",
    "SharedSeen",
    "chunks",
    "context_parallel",
    "deal",
    "gather",
    "joined",
    "on_paper",
    "positions_here",
    "reading_memory",
    "shard",
]
