"""The order of coordinates where a map is sampled: `grid_sample` takes (x, y), column and then row.

Without offsets, sampling points are a regular grid: the first coordinate must change along its columns, and the second
one along its rows. Coordinates made by `meshgrid(..., indexing="ij")` are (y, x), and every shape fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from headwise.doctor.calling.way import MAP
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import Probe

FINDINGS = ("sampling-transposed",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    offsets = [x for name, x in probe.module.named_parameters() if "offset" in name]
    if not offsets:
        raise NotApplicable("it has no learned offsets")
    with torch.no_grad():
        for x in offsets:
            x.zero_()
    with _Grids() as seen:
        probe.attempt(probe.inputs(1, MAP))
    grids = [x for x in seen.grids if x.ndim == 4 and min(x.shape[1:3]) > 1]
    if not grids:
        raise NotChecked("it samples no map by grid_sample on a grid of rows and columns")
    for grid in grids:
        (x_rows, x_columns), (y_rows, y_columns) = (_changes(grid[..., i]) for i in (0, 1))
        if x_rows and y_columns and not x_columns and not y_rows:
            yield Finding(
                "sampling-transposed",
                "bug",
                f"without offsets, the first coordinate of the grid {list(grid.shape)} that grid_sample gets changes "
                "from row to row alone, and the second one from column to column: they are (y, x)",
                "pass (x, y): torch.stack((x, y), dim=-1), or grid.flip(-1); offsets in the same order",
                patient.where,
            )
            return


class _Grids(TorchFunctionMode):
    """The grids that grid_sample was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.grids: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.grid_sample:
            grid = args[1] if len(args) > 1 else (kwargs or {}).get("grid")
            if isinstance(grid, Tensor):
                self.grids.append(grid.detach())
        return func(*args, **(kwargs or {}))


def _changes(x: Tensor) -> tuple[bool, bool]:
    """Whether a coordinate [N, H, W] changes from row to row, and from column to column."""
    return tuple(bool((x.diff(dim=dim).abs() > 1e-4).any()) for dim in (1, 2))  # type: ignore[return-value]
