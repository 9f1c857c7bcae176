"""Activation patching: which heads carry what differs between two inputs (Vig et al. 2020, Meng et al. 2022).

Each head's output of a corrupted run is replaced by that of a clean one. Its effect is the share of the metric's change
that this brings back:

    effect = (m(patched) - m(corrupted)) / (m(clean) - m(corrupted))

Attribution patching approximates all of them by one backward pass (Nanda 2023, Syed et al. 2023):

    m(patched) - m(corrupted) ≈ (o(clean) - o(corrupted)) · ∂m/∂o(corrupted)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from rich.progress import track
from torch import Tensor, nn

from headwise.edits import Edit, Where, output
from headwise.edits.context import edit
from headwise.errors import ArgumentError, ShapeError
from headwise.experiments.running import Inputs, Metric, batch_of, copies, measured, run
from headwise.records.names import Choice

Over = Literal["heads", "positions"]


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
        flat = self.effects.nan_to_num(-torch.inf).flatten()
        found = []
        for place in flat.topk(min(count, flat.numel())).indices.tolist():
            layer, head, *position = torch.unravel_index(torch.tensor(place), self.effects.shape)
            at = int(position[0]) if position else None
            found.append((float(flat[place]), self.layers[int(layer)], int(head), at))
        return found

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
    if over not in ("heads", "positions"):
        raise ArgumentError(f'patching: over must be "heads" or "positions". Received: over={over!r}')
    examples = batch_of(clean)
    with torch.no_grad():
        good, best = _outputs(model, clean, metric, where, examples)
        bad, worst = _outputs(model, corrupted, metric, where, examples)
    for name, x in good.items():
        if name not in bad or bad[name].shape != x.shape:
            received = "none" if name not in bad else list(bad[name].shape)
            raise ShapeError(
                f"patching: the output of {name} is {list(x.shape)} in the clean run. Received: {received}"
            )
    whole = best - worst
    if not bool((whole != 0).all()):
        raise ArgumentError("patching: the metric is the same for both inputs. Choose inputs that it tells apart")
    names = tuple(good)
    heads = max(x.shape[1] for x in good.values())
    rows = max(x.shape[2] for x in good.values())
    shape = (len(names), heads) if over == "heads" else (len(names), heads, rows)
    effects = torch.full(shape, torch.nan)
    per_pass = max(1, batch // examples)
    patches = [*_patches(names, good, over)]
    parts = [patches[i : i + per_pass] for i in range(0, len(patches), per_pass)]
    with torch.no_grad():
        for part in track(parts, "patching", disable=not progress):
            inputs = copies(corrupted, len(part))
            with edit(model, _Replace(where, outputs=good, names=names, patches=part, each=examples)):
                found = measured(metric, run(model, inputs), len(part) * examples)
            share = (found.view(len(part), examples) - worst) / whole
            for place, value in zip(part, share.mean(1).tolist(), strict=True):
                effects[place] = value
    attributed = _attributed(model, corrupted, metric, where, good, effects, whole) if attribution else None
    return Patching(names, effects, attributed, float(best.mean()), float(worst.mean()))


Place = tuple[int, ...]  # (layer, head) or (layer, head, query)


def _patches(names: Sequence[str], outputs: dict[str, Tensor], over: Over) -> Iterator[Place]:
    for layer, name in enumerate(names):
        _, heads, rows, _ = outputs[name].shape
        for head in range(heads):
            if over == "heads":
                yield layer, head
            else:
                yield from ((layer, head, row) for row in range(rows))


def _outputs(
    model: nn.Module, inputs: Inputs, metric: Metric, where: Choice, examples: int
) -> tuple[dict[str, Tensor], Tensor]:
    """(the output [B, H, Q, E] of each layer, the metric [B])."""
    found: dict[str, Tensor] = {}

    def keep(out: Tensor, at: Where) -> Tensor:
        found[at.site] = out.detach()
        return out

    with edit(model, output(where, keep)):
        measures = measured(metric, run(model, inputs), examples)
    return found, measures.detach()


@dataclasses.dataclass(frozen=True, eq=False)
class _Replace(Edit):
    """Each copy of the examples gets one patch."""

    outputs: dict[str, Tensor] = dataclasses.field(kw_only=True)
    names: Sequence[str] = dataclasses.field(kw_only=True)
    patches: Sequence[Place] = dataclasses.field(kw_only=True)
    each: int = dataclasses.field(kw_only=True)  # how many examples a copy has

    def output(self, out: Tensor, at: Where) -> Tensor:
        """The output with the patches of this layer."""
        out = out.clone()
        for copy, (layer, head, *row) in enumerate(self.patches):
            if self.names[layer] == at.site:
                rows = slice(None) if not row else slice(row[0], row[0] + 1)
                some = slice(copy * self.each, (copy + 1) * self.each)
                out[some, head, rows] = self.outputs[at.site][:, head, rows].to(out.dtype)
        return out


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
        change = change.sum(-1).mean(0)  # [H, Q]
        found[layer, : len(change)] = change.sum(-1) if effects.ndim == 2 else change
    return found
