"""Compares an export with its PyTorch model: runs both on the same examples and compares the outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import ExportError
from headwise.graphs.axes import name_axes, read_sizes
from headwise.graphs.graph import Graph


@dataclass(frozen=True)
class Difference:
    """The difference between an export's output and the model's, over all examples.

    Args:
        output: the name of the output.
        largest: the largest |export - model|; inf if only one of the two values is NaN or infinite.
        typical: the root mean square of export - model.
        spread: the standard deviation of the model's values (or their magnitude, if all are equal). It is the unit of
            tolerances, because logits, vectors and weights have different scales.
        agreement: the fraction of rows in which export and model have the same argmax over the last axis; None if the
            last axis has only one entry.
        left_out: the number of values that were not compared, because they are at padding; see `finding_padding`.
    """

    output: str
    largest: float
    typical: float
    spread: float
    agreement: float | None
    left_out: int = 0

    @property
    def relative(self) -> float:
        """`largest` in units of `spread`. This number is compared with the tolerance."""
        return _share(self.largest, self.spread)

    def __str__(self) -> str:
        """A sentence for people about the difference."""
        said = f"{self.output}: at most {self.largest:.2e}, {self.relative:.2e} standard deviations"
        return said if self.agreement is None else f"{said}; the same argmax in {self.agreement:.2%} of rows"


@torch.no_grad()
def compared(
    graph: Graph, received: Sequence[tuple[Tensor, ...]], tolerance: float, name: str | None = None
) -> tuple[Difference, ...]:
    """Compare each output of an export with the output of the graph's module, on the graph's examples.

    Args:
        received: the export's outputs, one tuple for each example.
        tolerance: as for `check`.
        name: the name of the graph in messages; None = `graph.name`.

    Raises:
        ExportError: as for `compare` and `check`.
    """
    expected: list[tuple[Tensor, ...]] = []
    padding = []  # of each example: that of each call of an encoder
    for given in graph.examples:
        with finding_padding(graph.module) as of_calls:
            output = graph.module(*given)
        expected.append((output,) if isinstance(output, Tensor) else tuple(output))
        padding.append(of_calls)
    both = [(*given, *outputs) for given, outputs in zip(graph.examples, expected, strict=True)]
    sizes = read_sizes((*graph.inputs, *graph.outputs), both) if any(padding) else {}
    calls = [(call, name_axes("padding", call, {**sizes})) for call in zip(*padding, strict=False)]
    found = []
    for place, value in enumerate(graph.outputs):
        wanted, got = ([each[place] for each in outputs] for outputs in (expected, received))
        size = sum(x.numel() for x in wanted)
        fits = [x.shape for x in wanted] == [x.shape for x in got]
        for call, axes in calls:
            places = [value.axes.index(axis) for axis in axes if axis in value.axes]
            if fits and len({*places}) == 2:  # each position has values of its own
                wanted, got = (
                    [x.movedim(places, (0, 1))[~each] for x, each in zip(tensors, call, strict=True)]
                    for tensors in (wanted, got)
                )
                break
        found.append(replace(compare(value.name, wanted, got), left_out=size - sum(x.numel() for x in wanted)))
    check(name or graph.name, found, tolerance, POOLED if calls else PRECISE)
    return tuple(found)


@contextmanager
def finding_padding(module: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list that gets the padding, bool [B, S], of each call of an nn.TransformerEncoder that writes 0 there.

    It does so on its fast path. An export does not take this path, and nobody reads what is there.
    """
    found: list[Tensor] = []

    def note(encoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        padding = kwargs.get("src_key_padding_mask", args[2] if len(args) > 2 else None)
        if padding is not None and padding.dim() == 2 and encoder.use_nested_tensor:
            found.append(padding if padding.dtype == torch.bool else padding == -torch.inf)

    with ExitStack() as stack:
        for each in module.modules():
            if isinstance(each, nn.TransformerEncoder):
                stack.enter_context(each.register_forward_pre_hook(note, with_kwargs=True))
        yield found


def compare(output: str, expected: Sequence[Tensor], received: Sequence[Tensor]) -> Difference:
    """Compare one output of an export with the model's output.

    Args:
        output: the name of the output.
        expected: the model's output, one tensor per example; sizes may differ between examples.
        received: the export's output, in the same order.

    Raises:
        ExportError: the number of examples, a shape or a dtype differs.
    """
    if len(expected) != len(received) or not expected:
        raise ExportError(f"{output}: expected {len(expected)} results. Received: {len(received)}")
    for wanted, given in zip(expected, received, strict=True):
        if wanted.shape != given.shape or wanted.dtype != given.dtype:
            raise ExportError(f"{output}: expected {_told(wanted)}. Received: {_told(given)}")
    pairs = [(_real(wanted), _real(given)) for wanted, given in zip(expected, received, strict=True)]
    apart_N = torch.cat([_apart(wanted, given) for wanted, given in pairs])
    largest, typical = (float(apart_N.max()), float(apart_N.square().mean().sqrt())) if apart_N.numel() else (0.0, 0.0)
    return Difference(output, largest, typical, _spread([wanted for wanted, _ in pairs]), _agreement(pairs))


PRECISE = "Choose a higher precision, or a larger tolerance if that is acceptable"
POOLED = (
    "In PyTorch nn.TransformerEncoder writes 0 at padding, and in the export it does not: let the output depend on "
    "real positions alone, or give the encoder enable_nested_tensor=False"
)


def check(graph: str, differences: Iterable[Difference], tolerance: float, advice: str = PRECISE) -> None:
    """Check that every output differs from the model's by at most `tolerance`, in units of its `spread`.

    The root mean square of the difference may be at most an eighth of the tolerance: a few values may be far off, but
    most values may not.

    Raises:
        ExportError: an output differs by more; the message names the graph, output, difference and tolerance.
    """
    for found in differences:
        for what, by, most in (
            ("at most", found.largest, tolerance),
            ("on average", found.typical, tolerance / MEAN_SHARE),
        ):
            share = _share(by, found.spread)
            if not share <= most:
                raise ExportError(
                    f"{graph}: output {found.output!r} differs from the model's by {by:.3g} {what}, which is "
                    f"{share:.3g} standard deviations of its values ({found.spread:.3g}): expected at most "
                    f"{most:g}. {advice}"
                )


MEAN_SHARE = 8  # (the limit of the largest difference) / (the limit of the root mean square of the differences)


def _real(tensor: Tensor) -> Tensor:
    """Move the tensor to the CPU, and convert complex numbers to pairs of real numbers."""
    tensor = tensor.detach().cpu()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _share(difference: float, spread: float) -> float:
    if difference == 0.0:
        return 0.0
    return difference / spread if spread > 0.0 else math.inf


def _apart(expected: Tensor, received: Tensor) -> Tensor:
    """Compute |received - expected| for each of the N values, [N]; inf where only one of the two values is NaN."""
    wanted, given = expected.double(), received.double()
    same = (wanted == given) | (wanted.isnan() & given.isnan())  # equal infinities have difference 0
    return (wanted - given).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf).flatten()


def _spread(tensors: Sequence[Tensor]) -> float:
    """Compute the standard deviation of finite values that are not mask values; if all are equal, their magnitude."""
    values = torch.cat([tensor.double().flatten() for tensor in tensors])
    values = values[values.abs() < NEVER]
    if not values.numel():
        return 0.0
    deviation = float(values.std(correction=0))
    return deviation if deviation > 1e-12 else float(values.abs().max())


NEVER = 1e30  # a value with a larger magnitude is a score that a mask forbids


def _agreement(pairs: Sequence[tuple[Tensor, Tensor]]) -> float | None:
    """Compute `Difference.agreement` of pairs (expected, received); None if a last axis has only one entry."""
    if any(wanted.dim() < 2 or wanted.shape[-1] < 2 for wanted, _ in pairs):
        return None
    same = [(wanted.float().argmax(-1) == given.float().argmax(-1)).flatten() for wanted, given in pairs]
    found = torch.cat(same)
    return float(found.double().mean()) if found.numel() else None


def _told(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
