"""Patches single attention weights: the edge from a key to a query, in one head.

The weight A[i, j] of a head in the corrupted run takes its value of the clean run; the rest of the row stays, so that
it need not sum to 1, and values are those of the corrupted run. So an effect is that of *where* the head attends. What
the head *moves* is the effect over heads or positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from headwise.edits import Edit, Where, weights
from headwise.edits.context import edit
from headwise.experiments.running import Inputs, Metric, batch_of, check_gradient, measured, run
from headwise.experiments.sweeping import Place, Replace, measure_each
from headwise.records.names import Choice


def weights_of(model: nn.Module, inputs: Inputs, metric: Metric, where: Choice) -> tuple[dict[str, Tensor], Tensor]:
    """(the weights [B, H, Q, K] of each layer, the metric [B])."""
    parts: dict[str, list[Tensor]] = {}

    def keep(found: Tensor, at: Where, rows: slice) -> Tensor:
        parts.setdefault(at.name, []).append(found.detach())
        return found

    with edit(model, weights(where, keep)):
        measures = measured(metric, run(model, inputs), batch_of(inputs))
    return {site: torch.cat(each, 2) for site, each in parts.items()}, measures.detach()


def sweep_edges(
    model: nn.Module,
    inputs: Inputs,
    metric: Metric,
    good: Mapping[str, Tensor],
    bad: Mapping[str, Tensor],
    worst: Tensor,
    *,
    where: Choice,
    batch: int,
    progress: bool,
) -> Tensor:
    """The metric [L, H, Q, K, B] of each example where one weight is that of `good`.

    Weights that are the same in both runs, such as those of keys that the mask forbids, are not run: `worst` [B].
    """
    names, examples = tuple(good), batch_of(inputs)
    sizes = [max(x.shape[dim] for x in good.values()) for dim in (1, 2, 3)]
    found = torch.full((len(names), *sizes, examples), torch.nan)
    places: list[Place] = []
    for layer, name in enumerate(names):
        _, heads, rows, cols = good[name].shape
        found[layer, :heads, :rows, :cols] = worst.float().cpu()
        places += [(layer, *at) for at in (good[name] != bad[name]).any(0).nonzero().tolist()]

    def replace(part: Sequence[Place]) -> Edit:
        return _ReplaceWeights(where, source=good, names=names, patches=part, each=examples)

    return measure_each(model, inputs, metric, replace, places, found, batch=batch, progress=progress)


def attributed_edges(
    model: nn.Module,
    inputs: Inputs,
    metric: Metric,
    good: Mapping[str, Tensor],
    whole: Tensor,
    effects: Tensor,
    where: Choice,
) -> Tensor:
    """The effects [L, H, Q, K] by the gradient of the metric: (A(clean) - A) · ∂m/∂A."""
    kept: list[tuple[str, slice, Tensor]] = []

    def keep(x: Tensor, at: Where, rows: slice) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        kept.append((at.name, rows, x))
        return x

    with torch.enable_grad(), edit(model, weights(where, keep)):
        measures = measured(metric, run(model, inputs), len(whole))
        check_gradient(measures)
        gradients = torch.autograd.grad((measures / whole).sum(), [x for *_, x in kept], allow_unused=True)
    found = torch.where(effects.isnan(), torch.nan, 0.0)
    names = list(good)
    for (name, rows, x), gradient in zip(kept, gradients, strict=True):
        if gradient is not None:
            change = ((good[name][:, :, rows] - x.detach()) * gradient).mean(0).cpu()  # [H, rows, K]
            found[names.index(name), : change.shape[0], rows, : change.shape[2]] = change
    return found


class _ReplaceWeights(Replace):
    def weights(self, weights: Tensor, at: Where, rows: slice) -> Tensor:
        """The weights with the patches of this layer."""
        weights = weights.clone()
        for some, (head, row, col) in self.patches_of(at):
            if rows.start <= row < rows.stop:
                weights[some, head, row - rows.start, col] = self.source[at.name][:, head, row, col].to(weights.dtype)
        return weights
