"""Activation patching: which heads carry the difference between two inputs (Vig et al. 2020, Meng et al. 2022).

In a corrupted run, one head's output is replaced by its output in a clean run. The head's effect is how much of the
difference in the metric m this brings back: 0 = nothing, 1 = all:

    effect = (m(patched) - m(corrupted)) / (m(clean) - m(corrupted))

Attribution patching approximates all effects by one backward pass (Nanda 2023, Syed et al. 2023):

    m(patched) - m(corrupted) ≈ (o(clean) - o(corrupted)) · ∂m/∂o(corrupted)

Over heads, o is the output of a head; over positions, its output at one query; over edges, one attention weight; over
residual, the residual stream before a block, at one position. An
effect over edges measures *where* the head attends; an effect over heads or positions also measures what the head
*moves*.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, ShapeError
from headwise.experiments.blocks import find_blocks
from headwise.experiments.running import Inputs, Metric
from headwise.experiments.saved import load, save
from headwise.experiments.sweeping import Over, Which, attributed, collect_numbers, largest, sweep
from headwise.records.names import Choice
from headwise.tables import Printed
from headwise.text import as_tokens

RELIABLE = 0.7  # the correlation from which attribution stands for patching


@dataclasses.dataclass(frozen=True, repr=False)
class Patching(Printed):
    """The effects of all heads, averaged over the examples; 1 = this head alone brings back the clean metric.

    Attributes:
        layers: the paths of the layers, in the order in which they ran.
        effects: [L, H]; [L, H, Q] over positions; [L, H, Q, K] over edges; [L, 1, N] over residual, where the layers
            are the blocks. NaN for heads that a layer does not have.
        attributed: the same effects, by attribution patching; None with attribution=False.
        clean, corrupted: the metric of the two runs, averaged over the examples.
        labels: the names of the positions in the clean input; () = unknown.
        corrupted_labels: those in the corrupted input; () = unknown.
        model: the class of the model.
        over: what was replaced at a time.

    `headwise.view(found, "patching.html")` shows the effects as a map, layer by position or layer by head.
    """

    layers: tuple[str, ...]
    effects: Tensor
    attributed: Tensor | None
    clean: float
    corrupted: float
    labels: tuple[str, ...] = ()
    model: str = ""
    corrupted_labels: tuple[str, ...] = ()
    over: Over = "heads"

    def save(self, path: str | Path) -> None:
        """Write the effects to a file, which `headwise view` shows. FileError if it cannot be written."""
        save(vars(self), path)

    @classmethod
    def load(cls, path: str | Path) -> Patching:
        """Read what `save` wrote. FileError if the file is missing, damaged or another one."""
        return cls(**load(path))

    @property
    def correlation(self) -> float | None:
        """Pearson's correlation between `effects` and `attributed`; None without `attributed`."""
        if self.attributed is None:
            return None
        known = ~self.effects.isnan()
        return float(torch.corrcoef(torch.stack([self.effects[known], self.attributed[known]]))[0, 1])

    def strongest(self, count: int = 10) -> list[tuple[float, str, int, int | tuple[int, int] | None]]:
        """Return the `count` largest effects: (effect, layer, head, position); over edges position = (query, key)."""
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
            of_head = "" if self.over == "residual" else f", head {head}"
            lines.append(f"{effect:7.3f}  {layer}{of_head}{at}")
        if self.correlation is not None:
            unreliable = "" if self.correlation >= RELIABLE else ": attribution is unreliable here"
            lines.append(f"correlation with attribution patching: {self.correlation:.3f}{unreliable}")
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
    tokens: Any = None,
    corrupted_tokens: Any = None,
) -> Patching:
    """Replace the output of each head in the corrupted run by its output in the clean run, one head at a time.

    Args:
        model: any module that `headwise.edit` can edit, in eval mode.
        clean, corrupted: the inputs of the model: a dict of its arguments, a tensor or a tuple, of the same shapes.
            The first dimension is the batch: pairs of examples, over which effects are averaged.
        metric: a function from the model's result to a number for each example, such as a difference of two logits. A
            pass reads several copies of the examples, one after another, so that the targets of a pass are
            `targets.repeat(len(logits) // len(targets))`.
        over: what is replaced at a time: "heads" = the output of a head; "positions" = the output of a head at one
            query; "edges" = one attention weight, from one query to one key in one head; "residual" = the residual
            stream before a block (a module of an nn.ModuleList in which attention runs) at one position. What is equal
            in both runs has no effect and takes no pass; many weights differ, so use "edges" only for short inputs.
        where: the layers, as for every edit.
        attribution: also approximate the effects by gradients.
        batch: the number of examples in one pass; each copy of the examples has something else replaced.
        progress: show a progress bar.
        tokens, corrupted_tokens: the names of the positions in the two inputs, in any form that
            `headwise.text.as_tokens` takes; of a batch the first text.

    Raises:
        ArgumentError: an unknown `over`; the metric is the same for both inputs, so that nothing can be brought back;
            over residual, a model in which no blocks were found.
        ShapeError: the two inputs differ in length, or the metric is not [B].
    """
    if over not in ("heads", "positions", "edges", "residual"):
        raise ArgumentError(f'over must be "heads", "positions", "edges" or "residual". Received: over={over!r}')
    which: Which = where
    if over == "residual":
        which = find_blocks(model, collect_numbers(model, clean, metric, over="heads", where=where)[0])
    good, best = collect_numbers(model, clean, metric, over=over, where=which)
    bad, worst = collect_numbers(model, corrupted, metric, over=over, where=which)
    of = {"edges": "weights", "residual": "states"}.get(over, "outputs")
    for name, x in good.items():
        if name not in bad or bad[name].shape != x.shape:
            received = "none" if name not in bad else list(bad[name].shape)
            raise ShapeError(f"patching: the {of} of {name} are {list(x.shape)} in the clean run. Received: {received}")
    whole = best - worst
    if not bool((whole != 0).all()):
        raise ArgumentError("patching: the metric is the same for both inputs. Choose inputs that it tells apart")
    found = sweep(model, corrupted, metric, good, bad, worst, over=over, where=which, batch=batch, progress=progress)
    effects = ((found - worst.cpu()) / whole.cpu()).mean(-1)
    approximate = None
    if attribution:
        approximate = attributed(model, corrupted, metric, good, whole, effects, over=over, where=which)
    labels, others = (() if each is None else tuple(as_tokens(each)[0].labels) for each in (tokens, corrupted_tokens))
    for name, found_labels in (("tokens", labels), ("corrupted_tokens", others)):
        if found_labels and over in ("positions", "residual") and len(found_labels) != effects.shape[2]:
            names = f"expected {effects.shape[2]} names, one for each position"
            raise ShapeError(f"{name}: {names}. Received: {len(found_labels)}")
    means = float(best.mean()), float(worst.mean())
    return Patching(tuple(good), effects, approximate, *means, labels, type(model).__name__, others, over)
