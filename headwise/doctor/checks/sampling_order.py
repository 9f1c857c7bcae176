"""The coordinates at which a map is sampled: `grid_sample` takes (x, y), column and then row, from -1 to 1.

Without offsets, sampling points are a regular grid: the first coordinate must change along its columns, and the second
one along its rows. Coordinates made by `meshgrid(..., indexing="ij")` are (y, x), and every shape fits. Reference
points that are said to be from 0 to 1 must come to it from -1 to 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headwise.doctor.calling.claims import text_of
from headwise.doctor.calling.forward_arguments import sides
from headwise.doctor.calling.way import MAP
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.listen import Calls
from headwise.doctor.probing.probe import Probe

FINDINGS = ("sampling-transposed",)

_POINTS = re.compile(r"^ref(erence)?_?(points?|pts|coords?|locations?)$")
_FROM_0_TO_1 = re.compile(r"\[0(\.0)?, ?1(\.0)?\]|normali[sz]ed|from 0 to 1|between 0 and 1", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    offsets = [x for name, x in probe.module.named_parameters() if "offset" in name]
    if not offsets:
        raise NotApplicable("it has no learned offsets")
    with torch.no_grad():
        for x in offsets:
            x.zero_()
    unmapped = list(_unmapped(patient, probe))
    if unmapped:
        yield from unmapped
        return
    with Calls({functional.grid_sample}, _grid) as seen:
        probe.attempt(probe.inputs(1, MAP))
    # Of tokens row by row, each with some points.
    grids = [x[:, :, 0].unflatten(1, sides(MAP)) if x.ndim == 4 and x.shape[1] == MAP else x for x in seen.noted]
    grids = [x for x in grids if x.ndim == 4 and min(x.shape[1:3]) > 1]
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


def _unmapped(patient: Patient, probe: Probe) -> Iterator[Finding]:
    """Whether points at 0 and at one half, of a range from 0 to 1, come to grid_sample as they are."""
    way = probe.interface.way
    points = next(((name, make) for name, make in way.extras if _POINTS.match(name)), None)
    if points is None or not _FROM_0_TO_1.search(text_of(probe.module)):
        return
    name, make = points
    inputs = probe.inputs(1)
    value = make(way.sizes(inputs))
    if not isinstance(value, Tensor):
        return
    came = []
    for at in (0.0, 0.5):
        with Calls({functional.grid_sample}, _grid) as seen:
            probe.attempt(inputs, given={name: torch.full_like(value, at)})
        if not seen.noted:
            return
        came.append(bool((seen.noted[0] - at).abs().max() < 1e-4))
    if all(came):
        yield Finding(
            "sampling-transposed",
            "bug",
            f"{name} from 0 to 1 come to grid_sample as they are, which expects -1 to 1: the map is read in its lower "
            "right quarter alone",
            "map them before: grid = 2 * locations - 1",
            patient.where,
        )


def _grid(*args: Any, **kwargs: Any) -> Tensor:
    grid: Tensor = args[1] if len(args) > 1 else kwargs["grid"]
    return grid.detach()


def _changes(x: Tensor) -> tuple[bool, bool]:
    """Whether a coordinate [N, H, W] changes from row to row, and from column to column."""
    return tuple(bool((x.diff(dim=dim).abs() > 1e-4).any()) for dim in (1, 2))  # type: ignore[return-value]
