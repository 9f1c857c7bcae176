"""Compare two attention modules: give both the same weights, run both with many shapes and masks, and find the first
operation where they differ.

    found = headwise.doctor.compare(mine, "torch")
    found.same, found.largest, found.parted
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from headwise.doctor.calling.spec import Spec
from headwise.doctor.comparing.comparison import Differences, Row
from headwise.doctor.comparing.pair import Pair
from headwise.doctor.comparing.peers import build_peer
from headwise.doctor.comparing.side import Side, discovered
from headwise.errors import DoctorError
from headwise.tables import Printed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Comparison", "Row", "compare"]

Progress = Callable[[int, int, str], None]  # done, total, what


class Comparison(Differences, Printed):
    """The differences between two modules, and the first operation where they differ."""

    def __str__(self) -> str:
        from headwise.doctor.telling.report import plain

        return plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from headwise.doctor.comparing.comparison_report import comparison_report

        yield from comparison_report(self)


def compare(
    first: nn.Module,
    second: nn.Module | str,
    *,
    spec: Spec | None = None,
    spec_other: Spec | None = None,
    names: tuple[str, str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two modules, on copies in eval mode on the CPU that hold the same weights.

    Args:
        second: a module, or the name of a peer to build in the same size: "torch", "headwise", "keras", "hf:bert",
            "hf:gpt2" …
        spec, spec_other: facts about how they are called, stated by hand.
        names: the names to use for them in the report.
        seed: of the inputs.
        progress: called with the steps done, their number, and the next step.

    Raises:
        DoctorError: one of them cannot be called, they do not take the same inputs, or their weights cannot be mapped.
    """
    tell = progress or (lambda done, total, what: None)
    usual = type(first).__name__, second if isinstance(second, str) else type(second).__name__
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tell(0, 0, "finding out how to call them")
        mine = Side.of(first, spec)
        theirs = _peer(second, mine, seed) if isinstance(second, str) else Side.of(second, spec_other)
        mine.name, theirs.name = names or usual
        pair = Pair(mine, theirs, seed)
        tell(0, 0, "mapping the weights")
        pair.match()
        cases = pair.cases()
        rows = []
        for number, case in enumerate(cases):
            tell(number, len(cases), f"{case.mask}, {case.batch} × {case.queries} × {case.keys}")
            rows.append(pair.row(case))
        compared = [row for row in rows if not row.problem]
        if not compared:
            raise DoctorError(f"{mine.name} and {theirs.name} could not be compared in any case: {rows[0].problem}")
        return Comparison(
            mine.name,
            theirs.name,
            pair.dtype_name,
            pair.tolerance,
            tuple(rows),
            mapping=pair.found.pairs(),
            parted=None if all(row.same for row in compared) else pair.part(rows, cases),
            notes=tuple(pair.notes),
        )


def _peer(name: str, mine: Side, seed: int) -> Side:
    """A peer of the size of `mine`; if several head widths are possible, the first that the peer supports."""
    problem: DoctorError | None = None
    dtype = torch.float32 if mine.runs_in(torch.float64) else torch.float64
    for dimensions in mine.dimensions():
        try:
            module, spec = build_peer(name, dimensions, dtype=dtype, seed=seed)
        except DoctorError as error:
            problem = problem or error
            continue
        return Side(module, discovered(module, spec), certain=not name.startswith("hf:"))
    assert problem is not None
    raise problem
