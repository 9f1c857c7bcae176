"""Runs a model with another output of one head at a time, or another weight, many of them in one pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from rich.progress import track
from torch import Tensor, nn

from headwise.edits import Edit, Where, output
from headwise.edits.context import edit
from headwise.errors import ArgumentError
from headwise.experiments.running import Inputs, Metric, batch_of, copies, measured, run
from headwise.records.names import Choice

Over = Literal["heads", "positions"]
Place = tuple[int, ...]  # (layer, head), (layer, head, query) or (layer, head, query, key)


def sweep(
    model: nn.Module,
    inputs: Inputs,
    metric: Metric,
    outputs: Mapping[str, Tensor],
    *,
    over: Over,
    where: Choice,
    batch: int,
    progress: bool,
) -> Tensor:
    """The metric of each example where one head has another output: [L, H, B], or [L, H, Q, B] over positions.

    `outputs` [B, H, Q, E] are these outputs, by layer. NaN for heads and positions that a layer does not have.
    """
    if over not in ("heads", "positions"):
        raise ArgumentError(f'over must be "heads" or "positions". Received: over={over!r}')
    examples, names = batch_of(inputs), tuple(outputs)
    sizes = [max(x.shape[dim] for x in outputs.values()) for dim in ((1,) if over == "heads" else (1, 2))]
    found = torch.full((len(names), *sizes, examples), torch.nan)

    def replace(part: Sequence[Place]) -> Edit:
        return _ReplaceOutputs(where, source=outputs, names=names, patches=part, each=examples)

    return measure_each(
        model, inputs, metric, replace, [*_places(names, outputs, over)], found, batch=batch, progress=progress
    )


def measure_each(
    model: nn.Module,
    inputs: Inputs,
    metric: Metric,
    replace: Callable[[Sequence[Place]], Edit],
    places: Sequence[Place],
    found: Tensor,
    *,
    batch: int,
    progress: bool,
) -> Tensor:
    """Write the metric of each example, with the replacement of each place, to `found` [..., B]; and return it.

    `replace(places)` is the edit that gives each copy of the examples one replacement.
    """
    examples = batch_of(inputs)
    per_pass = max(1, batch // examples)
    parts = [places[i : i + per_pass] for i in range(0, len(places), per_pass)]
    with torch.no_grad():
        for part in track(parts, "patches", disable=not progress):
            with edit(model, replace(part)):
                measures = measured(metric, run(model, copies(inputs, len(part))), len(part) * examples)
            for place, values in zip(part, measures.view(len(part), examples), strict=True):
                found[place] = values.float().cpu()
    return found


def _places(names: Sequence[str], outputs: Mapping[str, Tensor], over: Over) -> Iterator[Place]:
    for layer, name in enumerate(names):
        _, heads, rows, _ = outputs[name].shape
        for head in range(heads):
            if over == "heads":
                yield layer, head
            else:
                yield from ((layer, head, row) for row in range(rows))


def outputs_of(
    model: nn.Module, inputs: Inputs, metric: Metric, where: Choice, examples: int
) -> tuple[dict[str, Tensor], Tensor]:
    """(the output [B, H, Q, E] of each layer, the metric [B])."""
    found: dict[str, Tensor] = {}

    def keep(out: Tensor, at: Where) -> Tensor:
        found[at.name] = out.detach()
        return out

    with edit(model, output(where, keep)):
        measures = measured(metric, run(model, inputs), examples)
    return found, measures.detach()


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Replace(Edit):
    """Each copy of the examples gets one patch."""

    source: Mapping[str, Tensor]  # what patches are taken from, by layer
    names: Sequence[str]
    patches: Sequence[Place]
    each: int  # how many examples a copy has

    def patches_of(self, at: Where) -> Iterator[tuple[slice, Place]]:
        """(the examples of a copy, the place in this layer that they get a patch at)."""
        for copy, (layer, *place) in enumerate(self.patches):
            if self.names[layer] == at.name:
                yield slice(copy * self.each, (copy + 1) * self.each), tuple(place)


class _ReplaceOutputs(Replace):
    def output(self, out: Tensor, at: Where) -> Tensor:
        """The output with the patches of this layer."""
        out = out.clone()
        for some, (head, *row) in self.patches_of(at):
            rows = slice(None) if not row else slice(row[0], row[0] + 1)
            out[some, head, rows] = self.source[at.name][:, head, rows].to(out.dtype)
        return out


def strongest(
    effects: Tensor, layers: Sequence[str], count: int, *, signed: bool = False
) -> list[tuple[float, str, int, int | None]]:
    """The largest of [L, H] or [L, H, Q], if `signed` in either direction: (effect, layer, head, position)."""
    found = []
    for _, (layer, head, *position) in largest(effects.abs() if signed else effects, count):
        effect = float(effects[(layer, head, *position)])
        found.append((effect, layers[layer], head, position[0] if position else None))
    return found


def largest(effects: Tensor, count: int) -> list[tuple[float, Place]]:
    """The largest numbers and their places, without NaN."""
    flat = effects.nan_to_num(-torch.inf).flatten()
    count = min(count, int((flat > -torch.inf).sum()))
    found = []
    for place in flat.argsort(descending=True, stable=True)[:count].tolist():
        at = torch.unravel_index(torch.tensor(place), effects.shape)
        found.append((float(flat[place]), tuple(int(each) for each in at)))
    return found
