"""Which keys each process sends to which other process: only keys that some row of the receiver may see."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headwise.masks import Mask
from headwise.parallel.layout import Layout, make_grid


class Routes(NamedTuple):
    """The routes of one process: which rows of keys it sends to which other process, and which it receives."""

    keys: Tensor  # [K]: the positions of the keys that this process needs, ascending
    sends: tuple[Tensor, ...]  # for each process: the indices of this process's rows that the other process needs
    receives: tuple[Tensor, ...]  # for each process: the indices in `keys` of the rows that the other process sends


def make_routes(mask: Mask | None, layout: Layout, key_layout: Layout, process: int) -> Routes:
    """Find which keys a process sends and receives; `mask` is aligned to the whole sequences of rows and keys."""
    grid = make_grid(mask, layout.edges, key_layout.edges)
    needed = grid.per_process(layout.owner, key_layout.owner, layout.processes)[1]
    wanted = needed.repeat(grid.keys, axis=1)  # [P, K]
    owner = key_layout.owner_of_rows
    mine = np.flatnonzero(owner == process)
    keys = np.flatnonzero(wanted[process])
    sends = tuple(torch.from_numpy(np.flatnonzero(wanted[p, mine])) for p in range(layout.processes))
    receives = tuple(torch.from_numpy(np.flatnonzero(owner[keys] == p)) for p in range(layout.processes))
    return Routes(torch.from_numpy(keys), sends, receives)
