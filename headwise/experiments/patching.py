"""Activation patching: which heads carry what differs between two inputs (Vig et al. 2020, Meng et al. 2022).

Each head's output of a corrupted run is replaced by that of a clean one. Its effect is the share of the metric's change
that this brings back:

    effect = (m(patched) - m(corrupted)) / (m(clean) - m(corrupted))

Attribution patching approximates all of them by one backward pass (Nanda 2023, Syed et al. 2023):

    m(patched) - m(corrupted) ≈ (o(clean) - o(corrupted)) · ∂m/∂o(corrupted)

Over heads o is the output of a head, over positions that of one query, over edges one attention weight (`edges.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.edits import Where, output
from headwise.edits.context import edit
from headwise.errors import ArgumentError, ShapeError
from headwise.experiments.edges import attributed_edges, sweep_edges, weights_of
from headwise.experiments.running import Inputs, Metric, batch_of, check_gradient, measured, run
from headwise.experiments.sweeping import largest, outputs_of, sweep
from headwise.records.names import Choice
from headwise.tables import Printed

What = Literal["heads", "positions", "edges"]


@dataclasses.dataclass(frozen=True, repr=False)
class Patching(Printed):
    """The effects of all heads, averaged over the examples; 1 = a head alone brings back the clean metric.

    Attributes:
        layers: the paths of the layers, in the order in which they ran.
        effects: [L, H], [L, H, Q] over positions, or [L, H, Q, K] over edges. NaN for what a layer does not have.
        attributed: the same by attribution patching; None if it was not asked for.
        clean, corrupted: the metric of the two runs, averaged.
    """

    layers: tuple[str, ...]
    effects: Tensor
    attributed: Tensor | None
    clean: float
    corrupted: float

    @property
    def correlation(self) -> float | None:
        """Pearson's correlation of the effects and their approximation."""
        if self.attributed is None:
            return None
        known = ~self.effects.isnan()
        return float(torch.corrcoef(torch.stack([self.effects[known], self.attributed[known]]))[0, 1])

    def strongest(self, count: int = 10) -> list[tuple[float, str, int, int | tuple[int, int] | None]]:
        """The largest effects: (effect, layer, head, the position; over edges (query, key))."""
        found: list[tuple[float, str, int, int | tuple[int, int] | None]] = []
        for effect, (layer, head, *at) in largest(self.effects, count):
            place = None if not at else at[0] if len(at) == 1 else (at[0], at[1])
            found.append((effect, self.layers[layer], head, place))
        return found

    def __str__(self) -> str:
        lines = [f"metric: clean {self.clean:.4g}, corrupted {self.corrupted:.4g}"]
        for effect, layer, head, place in self.strongest():
            at = "" if place is None else f", position {place}"
            at = f", query {place[0]} to key {place[1]}" if isinstance(place, tuple) else at
            lines.append(f"{effect:7.3f}  {layer}, head {head}{at}")
        if self.correlation is not None:
            lines.append(f"correlation with attribution patching: {self.correlation:.3f}")
        return "\n".join(lines)


def patching(
    model: nn.Module,
    clean: Inputs,
    corrupted: Inputs,
    metric: Metric,
    *,
    over: What = "heads",
    where: Choice = "*",
    attribution: bool = True,
    batch: int = 32,
    progress: bool = False,
) -> Patching:
    """Patch each head of the corrupted run with what it computed in the clean one.

    Args:
        model: any module that `headwise.edit` can edit, in eval mode.
        clean, corrupted: what the model is given: a dict of its arguments, a tensor or a tuple, of the same shapes.
            The first dimension is the batch: pairs of examples, over which effects are averaged.
        metric: of what the model returns, a number for each example, such as a difference of two logits. A pass has
            several copies of the examples one after another: targets are `targets.repeat(len(logits) // len(targets))`.
        over: "heads" = the output of each head; "positions" = each query of each head on its own; "edges" = each
            attention weight on its own, from one query to one key in one head. Weights that are alike in both runs
            have no effect and take no pass; the others are many, so that only short inputs are patched over edges.
        where: which layers, as for every edit.
        attribution: approximate the effects by gradients too.
        batch: so many examples are in one pass, each with a patch of its own.
        progress: show a progress bar.

    Raises:
        ArgumentError: another `over`; the metric is the same for both inputs, so that nothing can be brought back.
        ShapeError: the two inputs have other lengths, or the metric is not [B].
    """
    if over not in ("heads", "positions", "edges"):
        raise ArgumentError(f'over must be "heads", "positions" or "edges". Received: over={over!r}')
    examples = batch_of(clean)
    with torch.no_grad():
        if over == "edges":
            (good, best), (bad, worst) = (weights_of(model, each, metric, where) for each in (clean, corrupted))
        else:
            good, best = outputs_of(model, clean, metric, where, examples)
            bad, worst = outputs_of(model, corrupted, metric, where, examples)
    of = "weights" if over == "edges" else "outputs"
    for name, x in good.items():
        if name not in bad or bad[name].shape != x.shape:
            received = "none" if name not in bad else list(bad[name].shape)
            raise ShapeError(f"patching: the {of} of {name} are {list(x.shape)} in the clean run. Received: {received}")
    whole = best - worst
    if not bool((whole != 0).all()):
        raise ArgumentError("patching: the metric is the same for both inputs. Choose inputs that it tells apart")
    if over == "edges":
        found = sweep_edges(model, corrupted, metric, good, bad, worst, where=where, batch=batch, progress=progress)
    else:
        found = sweep(model, corrupted, metric, good, over=over, where=where, batch=batch, progress=progress)
    effects = ((found - worst.cpu()) / whole.cpu()).mean(-1)
    attributed = None
    if attribution and over == "edges":
        attributed = attributed_edges(model, corrupted, metric, good, whole, effects, where)
    elif attribution:
        attributed = _attributed(model, corrupted, metric, where, good, effects, whole)
    return Patching(tuple(good), effects, attributed, float(best.mean()), float(worst.mean()))


def _attributed(
    model: nn.Module,
    corrupted: Inputs,
    metric: Metric,
    where: Choice,
    good: dict[str, Tensor],
    effects: Tensor,
    whole: Tensor,
) -> Tensor:
    """The effects by the gradient of the metric, in the shape of `effects`."""
    kept: dict[str, Tensor] = {}

    def keep(out: Tensor, at: Where) -> Tensor:
        kept[at.name] = out = out if out.requires_grad else out.detach().requires_grad_()
        return out

    with torch.enable_grad(), edit(model, output(where, keep)):
        measures = measured(metric, run(model, corrupted), len(whole))
    check_gradient(measures)
    gradients = torch.autograd.grad((measures / whole).sum(), [*kept.values()], allow_unused=True)
    found = torch.full_like(effects, torch.nan)
    for layer, (name, x, gradient) in enumerate(zip(kept, kept.values(), gradients, strict=True)):
        change = torch.zeros_like(x) if gradient is None else (good[name] - x.detach()) * gradient
        change = change.sum(-1).mean(0).cpu()  # [H, Q]
        if effects.ndim == 2:
            found[layer, : len(change)] = change.sum(-1)
        else:
            found[layer, : change.shape[0], : change.shape[1]] = change
    return found
