"""Activation patching: which heads carry what differs between two inputs (Vig et al. 2020, Meng et al. 2022).

Each head's output of a corrupted run is replaced by that of a clean one. Its effect is the share of the metric's change
that this brings back:

    effect = (m(patched) - m(corrupted)) / (m(clean) - m(corrupted))

Attribution patching approximates all of them by one backward pass (Nanda 2023, Syed et al. 2023):

    m(patched) - m(corrupted) ≈ (o(clean) - o(corrupted)) · ∂m/∂o(corrupted)
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from headwise.edits import Where, output
from headwise.edits.context import edit
from headwise.errors import ArgumentError, ShapeError
from headwise.experiments.running import Inputs, Metric, batch_of, measured, run
from headwise.experiments.sweeping import Over, outputs_of, strongest, sweep
from headwise.records.names import Choice


@dataclasses.dataclass(frozen=True)
class Patching:
    """The effects of all heads, averaged over the examples; 1 = a head alone brings back the clean metric.

    Attributes:
        layers: the paths of the layers, in the order in which they ran.
        effects: [L, H], or [L, H, Q] over positions. NaN for heads that a layer does not have.
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

    def strongest(self, count: int = 10) -> list[tuple[float, str, int, int | None]]:
        """The largest effects: (effect, layer, head, position)."""
        return strongest(self.effects, self.layers, count)

    def __str__(self) -> str:
        lines = [f"metric: clean {self.clean:.4g}, corrupted {self.corrupted:.4g}"]
        for effect, layer, head, position in self.strongest():
            at = "" if position is None else f", position {position}"
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
    over: Over = "heads",
    where: Choice = "*",
    attribution: bool = True,
    batch: int = 32,
    progress: bool = False,
) -> Patching:
    """Patch the output of each head of the corrupted run with that of the clean one.

    Args:
        model: any module that `headwise.edit` can edit, in eval mode.
        clean, corrupted: what the model is given: a dict of its arguments, a tensor or a tuple, of the same shapes.
            The first dimension is the batch: pairs of examples, over which effects are averaged.
        metric: of what the model returns, a number for each example [B], such as a difference of two logits.
        over: "heads"; or "positions", each query of each head on its own.
        where: which layers, as for every edit.
        attribution: approximate the effects by gradients too.
        batch: so many examples are in one pass, each with a patch of its own.
        progress: show a progress bar.

    Raises:
        ArgumentError: the metric is the same for both inputs, so that nothing can be brought back.
        ShapeError: the two inputs have other lengths, or the metric is not [B].
    """
    examples = batch_of(clean)
    with torch.no_grad():
        good, best = outputs_of(model, clean, metric, where, examples)
        bad, worst = outputs_of(model, corrupted, metric, where, examples)
    for name, x in good.items():
        if name not in bad or bad[name].shape != x.shape:
            received = "none" if name not in bad else list(bad[name].shape)
            raise ShapeError(
                f"patching: the output of {name} is {list(x.shape)} in the clean run. Received: {received}"
            )
    whole = best - worst
    if not bool((whole != 0).all()):
        raise ArgumentError("patching: the metric is the same for both inputs. Choose inputs that it tells apart")
    found = sweep(model, corrupted, metric, good, over=over, where=where, batch=batch, progress=progress)
    effects = ((found - worst.cpu()) / whole.cpu()).mean(-1)
    attributed = _attributed(model, corrupted, metric, where, good, effects, whole) if attribution else None
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
        kept[at.site] = out = out if out.requires_grad else out.detach().requires_grad_()
        return out

    with torch.enable_grad(), edit(model, output(where, keep)):
        measures = measured(metric, run(model, corrupted), len(whole))
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
