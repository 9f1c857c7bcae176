"""Which keys each process sends to which other process: only keys that some row of the receiver may see."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headwise.masks import Mask
from headwise.parallel.layout import Layout, make_grid


class Routes(NamedTuple):
    """What one process sends to the others and receives from them."""

    keys: Tensor  # [K]: the positions that its rows need, ascending
    sends: tuple[Tensor, ...]  # for each process: the rows of this process that it needs, by their index here
    receives: tuple[Tensor, ...]  # for each process: the places in `keys` of the rows that it sends


def make_routes(mask: Mask | None, layout: Layout, key_layout: Layout, process: int) -> Routes:
    """Make the routes of a process; `mask` is aligned to the whole sequences of the rows and of the keys."""
    grid = make_grid(mask, layout.edges, key_layout.edges)
    needed = grid.per_process(layout.owner, key_layout.owner, layout.processes)[1]
    wanted = needed.repeat(grid.keys, axis=1)  # [P, K]
    owner = key_layout.owner_of_rows
    mine = np.flatnonzero(owner == process)
    keys = np.flatnonzero(wanted[process])
    sends = tuple(torch.from_numpy(np.flatnonzero(wanted[p, mine])) for p in range(layout.processes))
    receives = tuple(torch.from_numpy(np.flatnonzero(owner[keys] == p)) for p in range(layout.processes))
    return Routes(torch.from_numpy(keys), sends, receives)
