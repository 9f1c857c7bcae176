"""Whether an export computes what the model does: one output of both, on the same examples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import ExportError
from headwise.export.graph import Graph


@dataclass(frozen=True)
class Difference:
    """How far an export's output is from the model's, over all examples.

    Args:
        output: its name.
        largest: |export - model| where it is largest; inf where one is NaN or infinite and the other is not.
        typical: the same in the mean, as the root of the mean square.
        spread: the standard deviation of the model's values (of one value, or of equal ones, their magnitude): what
            the differences are judged against, since logits, vectors and weights have sizes of their own.
        agreement: in what share of the rows the same entry of the last axis is the largest; None where there is no
            choice between entries.
    """

    output: str
    largest: float
    typical: float
    spread: float
    agreement: float | None

    @property
    def relative(self) -> float:
        """`largest` in units of `spread`: what a tolerance is of."""
        return _share(self.largest, self.spread)

    def __str__(self) -> str:
        """In words, for people."""
        said = f"{self.output}: at most {self.largest:.2e}, {self.relative:.2e} of the spread"
        return said if self.agreement is None else f"{said}; the same entry is largest in {self.agreement:.2%} of rows"


@torch.no_grad()
def expectations(graph: Graph) -> list[tuple[Tensor, ...]]:
    """What the module makes of each example."""
    found = [graph.module(*given) for given in graph.examples]
    return [(each,) if isinstance(each, Tensor) else tuple(each) for each in found]


def compared(
    graph: Graph, received: Sequence[tuple[Tensor, ...]], tolerance: float, name: str | None = None
) -> tuple[Difference, ...]:
    """How far each output of an export is from the module's, on the graph's examples.

    Args:
        received: the export's outputs, of each example.
        tolerance: as for `check`.
        name: of what was exported, for messages; None = the graph's.

    Raises:
        ExportError: as `compare` and `check`.
    """
    expected = expectations(graph)
    found = tuple(
        compare(value.name, [each[place] for each in expected], [each[place] for each in received])
        for place, value in enumerate(graph.outputs)
    )
    check(name or graph.name, found, tolerance)
    return found


def compare(output: str, expected: Sequence[Tensor], received: Sequence[Tensor]) -> Difference:
    """How far one output is from what was expected.

    Args:
        output: its name.
        expected: the model's, a tensor for each example; their sizes may differ.
        received: the export's, in the same order.

    Raises:
        ExportError: another number of examples, another shape or another dtype.
    """
    if len(expected) != len(received) or not expected:
        raise ExportError(f"{output}: expected {len(expected)} results, received {len(received)}")
    for wanted, given in zip(expected, received, strict=True):
        if wanted.shape != given.shape or wanted.dtype != given.dtype:
            raise ExportError(f"{output}: expected {_told(wanted)}, received {_told(given)}")
    pairs = [(_real(wanted), _real(given)) for wanted, given in zip(expected, received, strict=True)]
    apart_N = torch.cat([_apart(wanted, given) for wanted, given in pairs])
    largest, typical = (float(apart_N.max()), float(apart_N.square().mean().sqrt())) if apart_N.numel() else (0.0, 0.0)
    return Difference(output, largest, typical, _spread([wanted for wanted, _ in pairs]), _agreement(pairs))


def check(graph: str, differences: Iterable[Difference], tolerance: float) -> None:
    """That no output of a graph is further from the model's than the tolerance, in units of its spread, and in the mean
    no further than an eighth of it: of many values one may well be far off, but not most.

    Raises:
        ExportError: one is; the message names the graph, the output, the difference and the tolerance.
    """
    for found in differences:
        for what, by, most in (
            ("at most", found.largest, tolerance),
            ("in the mean", found.typical, tolerance / MEAN_SHARE),
        ):
            share = _share(by, found.spread)
            if not share <= most:
                raise ExportError(
                    f"{graph}: output {found.output!r} differs from the model's by {by:.3g} {what}, which is "
                    f"{share:.3g} of the spread of its values ({found.spread:.3g}): expected at most "
                    f"{most:g}. Choose a higher precision, or a higher tolerance if that will do"
                )


MEAN_SHARE = 8  # the least quotient of largest and mean difference that is asked for, where both are at their limits


def _real(tensor: Tensor) -> Tensor:
    """On the CPU; a complex number is two."""
    tensor = tensor.detach().cpu()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _share(difference: float, spread: float) -> float:
    if difference == 0.0:
        return 0.0
    return difference / spread if spread > 0.0 else math.inf


def _apart(expected: Tensor, received: Tensor) -> Tensor:
    """[N], how far each value is from what was expected."""
    wanted, given = expected.double(), received.double()
    same = (wanted == given) | (wanted.isnan() & given.isnan())  # equal infinities differ by nothing
    return (wanted - given).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf).flatten()


def _spread(tensors: Sequence[Tensor]) -> float:
    """Of finite values only; what stands for "never" (-inf, or the least number of a dtype) has no part in it."""
    values = torch.cat([tensor.double().flatten() for tensor in tensors])
    values = values[values.abs() < NEVER]
    if not values.numel():
        return 0.0
    deviation = float(values.std(correction=0))
    return deviation if deviation > 1e-12 else float(values.abs().max())


NEVER = 1e30  # no model computes with numbers of this size, but masks are made of them


def _agreement(pairs: Sequence[tuple[Tensor, Tensor]]) -> float | None:
    """Only where the last axis has several entries in every example."""
    if any(wanted.dim() < 2 or wanted.shape[-1] < 2 for wanted, _ in pairs):
        return None
    same = [(wanted.float().argmax(-1) == given.float().argmax(-1)).flatten() for wanted, given in pairs]
    found = torch.cat(same)
    return float(found.double().mean()) if found.numel() else None


def _told(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
