"""Finds the layers through which information flows between tokens: attention knockout (Geva et al. 2023)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from headwise.capture.context import watch
from headwise.edits import block
from headwise.edits.context import edit
from headwise.edits.positions import Positions
from headwise.errors import ArgumentError
from headwise.experiments.running import Inputs, Metric, count_examples, measured, run
from headwise.records.names import Choice, choose
from headwise.tables import Printed


@dataclasses.dataclass(frozen=True, repr=False)
class Knockout(Printed):
    """How the metric changes if the attention of some queries to some keys is blocked in a window of layers.

    Attributes:
        layers: the path of the layer in the middle of each window.
        changes: [L], the metric with the attention blocked minus `plain`, averaged over the examples.
        plain: the metric of the unchanged model, averaged over the examples.
    """

    layers: tuple[str, ...]
    changes: Tensor
    plain: float

    def __str__(self) -> str:
        lines = [f"metric: {self.plain:.4g}; blocked in a window around"]
        width = max(map(len, self.layers))
        return "\n".join(
            [*lines, *(f"{name:{width}}  {x:+.4g}" for name, x in zip(self.layers, self.changes, strict=True))]
        )


def knockout(
    model: nn.Module,
    inputs: Inputs,
    metric: Metric,
    *,
    queries: Positions,
    keys: Positions,
    where: Choice = "*",
    window: int = 1,
    tokens: object = None,
) -> Knockout:
    """Block the attention of some queries to some keys, in a window of layers around each layer.

    Args:
        model, inputs, metric: as for `patching`.
        queries, keys: the positions, as for `headwise.edits.block`.
        where: the layers, as for every edit.
        window: the number of layers in which attention is blocked together, odd; Geva et al. take 9 of GPT-2's 48.
        tokens: for positions by text, as for `headwise.edit`.

    Raises ArgumentError for a window that is even or below 1.
    """
    if window < 1 or window % 2 == 0:
        raise ArgumentError(f"knockout: window must be an odd number of layers. Received: window={window!r}")
    batch = count_examples(inputs)
    with torch.no_grad():
        with watch(model) as seen:
            plain = measured(metric, run(model, inputs), batch)
        names = choose(seen.layers, where)
        changes = []
        for i in range(len(names)):
            around = names[max(0, i - window // 2) : i + window // 2 + 1]
            with edit(model, block(around, queries=queries, keys=keys), tokens=tokens):
                changes.append((measured(metric, run(model, inputs), batch) - plain).mean())
    return Knockout(tuple(names), torch.stack(changes), float(plain.mean()))
