"""Head ablation: how a metric of the model changes without each head (Michel et al. 2019, Voita et al. 2019)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.edits.means import compute_means
from headwise.errors import ArgumentError
from headwise.experiments.running import Inputs, Metric
from headwise.experiments.sweeping import collect_numbers, strongest, sweep
from headwise.records import Seen
from headwise.records.names import Choice
from headwise.tables import Printed


@dataclasses.dataclass(frozen=True, repr=False)
class Ablation(Printed):
    """How the metric changes without each head, averaged over the examples.

    Attributes:
        layers: the paths of the layers, in the order in which they ran.
        changes: the metric without the head minus the metric with all heads: [L, H], or [L, H, Q] over positions. NaN
            for heads that a layer does not have.
        plain: the metric with all heads, averaged over the examples.
    """

    layers: tuple[str, ...]
    changes: Tensor
    plain: float

    def strongest(self, count: int = 10) -> list[tuple[float, str, int, int | None]]:
        """Return the `count` largest changes in either direction: a list of (change, layer, head, position)."""
        return strongest(self.changes, self.layers, count, signed=True)

    def __str__(self) -> str:
        lines = [f"metric: {self.plain:.4g}"]
        for change, layer, head, at in self.strongest():
            lines.append(f"{change:+.4g} without head {head} of {layer}{'' if at is None else f', position {at}'}")
        return "\n".join(lines)


def ablation(
    model: nn.Module,
    inputs: Inputs,
    metric: Metric,
    *,
    means: Mapping[str, Tensor] | Seen | None = None,
    over: Literal["heads", "positions"] = "heads",
    where: Choice = "*",
    batch: int = 32,
    progress: bool = False,
) -> Ablation:
    """Switch each head off, one head at a time, and measure the metric.

    Args:
        model, inputs, metric, over, where, batch, progress: as for `patching`.
        means: the mean output of each head over a data set (`headwise.edits.mean_outputs`), by which the head's output
            is replaced. None = by 0, which may be far from anything that the model has seen.

    Raises ArgumentError if `means` has no mean [H, E] that fits a layer.
    """
    if over not in ("heads", "positions"):
        raise ArgumentError(f'over must be "heads" or "positions". Received: over={over!r}')
    outputs, plain = collect_numbers(model, inputs, metric, over=over, where=where)
    given = None if means is None else compute_means(means)
    instead = {}
    for name, x in outputs.items():
        if given is None:
            instead[name] = torch.zeros_like(x)
        elif name in given and given[name].shape == (x.shape[1], x.shape[3]):
            instead[name] = given[name].to(x)[:, None].expand_as(x)
        else:
            raise ArgumentError(f"ablation: expected a mean [{x.shape[1]}, {x.shape[3]}] of {name} in means")
    found = sweep(
        *(model, inputs, metric, instead, outputs, plain), over=over, where=where, batch=batch, progress=progress
    )
    return Ablation(tuple(outputs), (found - plain.cpu()).mean(-1), float(plain.mean()))
