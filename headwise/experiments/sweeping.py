"""Runs a model with the output of one head replaced at a time. A pass reads several copies of the batch, one per head.

The `over` of an experiment says what is replaced: "heads" = the output of a head; "positions" = the output of a head at
one query; "edges" = one attention weight, from a query to a key; "residual" = the residual stream before a block, at
one position. Accordingly, "numbers" of a layer are the outputs [B, H, Q, E] of its heads; over edges, their weights
[B, H, Q, K]; over residual, the stream [B, 1, N, M]. A place is what is replaced at a time. A weight is replaced alone:
the rest of its row stays, so that the row need not sum to 1, and the values stay.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from rich.progress import track
from torch import Tensor, nn

from headwise.edits import output, weights
from headwise.edits.context import edit
from headwise.experiments.blocks import Blocks, replacing_inputs
from headwise.experiments.running import Inputs, Metric, check_gradient, copies, count_examples, measured, run
from headwise.records.names import Choice

Over = Literal["heads", "positions", "edges", "residual"]
Which = Choice | Blocks  # the layers, as for every edit; over residual, the blocks
Place = tuple[int, ...]  # (layer, head), (layer, head, query) or (layer, head, query, key)
Numbers = Mapping[str, Tensor]  # path of a layer -> its numbers

# Number of indices that name a place.
_DIMENSIONS: dict[Over, int] = {"heads": 1, "positions": 2, "edges": 3, "residual": 2}


def collect_numbers(
    model: nn.Module, inputs: Inputs, metric: Metric, *, over: Over, where: Which
) -> tuple[dict[str, Tensor], Tensor]:
    """Run the model unchanged; return (path of each layer -> its numbers; metric [B])."""
    parts: dict[str, list[Tensor]] = {}

    def keep(x: Tensor, name: str, rows: slice) -> Tensor:
        parts.setdefault(name, []).append(x.detach())
        return x

    with torch.no_grad(), _through(model, keep, over, where):
        measures = measured(metric, run(model, inputs), count_examples(inputs))
    return {name: torch.cat(each, 2) for name, each in parts.items()}, measures


def sweep(
    model: nn.Module,
    inputs: Inputs,
    metric: Metric,
    source: Numbers,
    own: Numbers,
    plain: Tensor,
    *,
    over: Over,
    where: Which,
    batch: int,
    progress: bool,
) -> Tensor:
    """Replace one place at a time by the numbers of `source`, and measure the metric of each example.

    Returns [L, H, B], or [L, H, Q, B] or [L, H, Q, K, B]. A place is a head, a query of a head or a weight (`over`);
    NaN for places that a layer does not have. Where `source` equals `own`, the model's own numbers, as for weights that
    the mask forbids, the metric is `plain` [B], the metric of the unchanged model, and nothing is run.
    """
    names, examples, depth = tuple(source), count_examples(inputs), _DIMENSIONS[over]
    sizes = [max(x.shape[dim] for x in source.values()) for dim in range(1, depth + 1)]
    found = torch.full((len(names), *sizes, examples), torch.nan)
    places: list[Place] = []
    for layer, (name, x) in enumerate(source.items()):
        shape = x.shape[1 : depth + 1]
        found[layer][tuple(map(slice, shape))] = plain.float().cpu()
        differs = (x != own[name]).any(0).reshape(*shape, -1).any(-1)
        places += [(layer, *at) for at in differs.nonzero().tolist()]
    per_pass = max(1, batch // examples)
    parts = [places[i : i + per_pass] for i in range(0, len(places), per_pass)]

    def replaced(patches: Sequence[Place], x: Tensor, name: str, rows: slice) -> Tensor:
        """Replace the numbers of this layer in the queries `rows`; each copy of the examples gets its own patch."""
        for copy, (layer, head, *cell) in enumerate(patches):
            if names[layer] != name or (cell and not rows.start <= cell[0] < rows.stop):
                continue
            some = slice(copy * examples, (copy + 1) * examples)
            here: tuple[Any, ...] = (slice(None), *(row - rows.start for row in cell[:1]), *cell[1:])
            x[some, head][here] = source[name][:, head, rows][here].to(x.dtype)
        return x

    with torch.no_grad():
        for part in track(parts, "patches", disable=not progress):
            with _through(model, functools.partial(replaced, part), over, where):
                measures = measured(metric, run(model, copies(inputs, len(part))), len(part) * examples)
            for place, values in zip(part, measures.view(len(part), examples), strict=True):
                found[place] = values.float().cpu()
    return found


def attributed(
    model: nn.Module,
    inputs: Inputs,
    metric: Metric,
    source: Numbers,
    whole: Tensor,
    effects: Tensor,
    *,
    over: Over,
    where: Which,
) -> Tensor:
    """Approximate the effects by the metric's gradient: (o(source) - o) · ∂m/∂o / `whole`, shaped like `effects`."""
    kept: list[tuple[str, slice, Tensor]] = []

    def keep(x: Tensor, name: str, rows: slice) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        kept.append((name, rows, x))
        return x

    with torch.enable_grad(), _through(model, keep, over, where):
        measures = measured(metric, run(model, inputs), len(whole))
        check_gradient(measures)
        gradients = torch.autograd.grad((measures / whole).sum(), [x for *_, x in kept], allow_unused=True)
    found = torch.where(effects.isnan(), torch.nan, 0.0)
    names, depth = list(source), _DIMENSIONS[over]
    for (name, rows, x), gradient in zip(kept, gradients, strict=True):
        if gradient is not None:
            change = ((source[name][:, :, rows] - x.detach()) * gradient).mean(0).cpu()  # [H, rows, E or K]
            at = (slice(len(change)), rows, slice(change.shape[2]))[:depth]
            found[names.index(name)][at] = change.reshape(*change.shape[:depth], -1).sum(-1)
    return found


def _through(
    model: nn.Module, f: Callable[[Tensor, str, slice], Tensor], over: Over, where: Which
) -> contextlib.AbstractContextManager[object]:
    """Replace the numbers of each layer by f(them, path of the layer, rows) while the context is open."""
    if isinstance(where, Mapping):
        return replacing_inputs(where, lambda x, name: f(x[:, None], name, slice(0, x.shape[1]))[:, 0])
    if over == "edges":
        return edit(model, weights(where, lambda x, at, rows: f(x, at.name, rows)))
    return edit(model, output(where, lambda out, at: f(out, at.name, slice(0, out.shape[2]))))


def strongest(
    effects: Tensor, layers: Sequence[str], count: int, *, signed: bool = False
) -> list[tuple[float, str, int, int | None]]:
    """Return the `count` largest of `effects` (of |effects| if `signed`): a list of (effect, layer, head, position)."""
    found = []
    for _, (layer, head, *position) in largest(effects.abs() if signed else effects, count):
        effect = float(effects[(layer, head, *position)])
        found.append((effect, layers[layer], head, position[0] if position else None))
    return found


def largest(effects: Tensor, count: int) -> list[tuple[float, Place]]:
    """Return the `count` largest numbers of `effects`, without NaN: a list of (number, its indices)."""
    flat = effects.nan_to_num(-torch.inf).flatten()
    count = min(count, int((flat > -torch.inf).sum()))
    found = []
    for place in flat.argsort(descending=True, stable=True)[:count].tolist():
        at = torch.unravel_index(torch.tensor(place), effects.shape)
        found.append((float(flat[place]), tuple(int(each) for each in at)))
    return found
