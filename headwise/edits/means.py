"""Computes the mean outputs of heads over a data set, by which `ablate` can replace the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.analyses.stack import attended_values, by_key_head
from headwise.edits.context import edit
from headwise.edits.functions import output
from headwise.edits.where import Where
from headwise.errors import ArgumentError
from headwise.records import Seen
from headwise.records.names import Choice

Means = Mapping[str, Tensor]  # the path of a layer -> [H, E]


def mean_outputs(model: nn.Module, batches: Iterable[Any], *, where: Choice = "*") -> dict[str, Tensor]:
    """Compute the mean output of each head over a data set, before the output projection.

    Returns a dict from the path of a layer to the means of its heads [H, E].

    Args:
        model: any module that `headwise.edit` can edit. It runs once for each batch, without gradients.
        batches: the inputs of the model, one batch after the other. A batch is a dict of the model's arguments, a
            tensor, or a tuple.
        where: which layers, as for every edit.

    Queries that are padding on the left do not count. Raises ArgumentError if there is no batch, or a layer read no
    token.
    """
    sums: dict[str, tuple[Tensor, int]] = {}
    count = 0

    def add(out: Tensor, at: Where) -> Tensor:
        real = at.queries >= 0
        total, rows = sums.get(at.site, (0, 0))
        sums[at.site] = total + (out.double() * real[:, None, :, None]).sum((0, 2)), rows + int(real.sum())
        return out

    with torch.no_grad(), edit(model, output(where, add)):
        for batch in batches:
            count += 1
            if isinstance(batch, Mapping):
                model(**batch)
            else:
                model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
        if not count:
            raise ArgumentError("mean_outputs: expected at least one batch. Received: none")
    return {name: (total / rows).float() for name, (total, rows) in sums.items()}


def compute_means(source: Means | Seen) -> dict[str, Tensor]:
    """Return the means [H, E] by layer path: `source` itself, or computed from records watched with values=True."""
    if not isinstance(source, Seen):
        return dict(source)
    found: dict[str, Tensor] = {}
    for record in source:
        if record.site is not None:
            # The mean of A v over the queries is r v / Q, where r is the sum of the weights that each key receives.
            received = record.received()[:, :, None]
            out = by_key_head(received, attended_values(record).to(received.dtype))[:, :, 0] / record.shape[2]
            found[record.site.name] = out.mean(0)
    return found
