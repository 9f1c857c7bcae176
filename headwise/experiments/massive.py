"""Finds massive activations (Sun et al. 2024), and the attention sinks that they come with (Gu et al. 2025).

    massive activation x:   |x| > 100   and   |x| > 1000 · median |x| over the hidden state of its layer

Sun et al. find less than ten of them in an LLM, in few dimensions, at the first token and at delimiters, from an early
layer on. Attention then concentrates on those tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from headwise.analyses import key_zero_rate
from headwise.capture.context import watch
from headwise.experiments.blocks import find_blocks
from headwise.experiments.observing import tensors_in
from headwise.experiments.running import Inputs, run
from headwise.experiments.scores import name_layers
from headwise.tables import Printed


@dataclasses.dataclass(frozen=True)
class Activation:
    """One massive activation: where it is, and its size."""

    layer: str
    example: int
    position: int
    dimension: int
    value: float
    ratio: float  # |value| divided by the median of |x| in the hidden state

    def __str__(self) -> str:
        place = f"example {self.example}, position {self.position}, dimension {self.dimension}"
        return f"{self.value:10.4g} ({self.ratio:.0f} times the median)  {self.layer}, {place}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Massive(Printed):
    """The massive activations of a run, and its attention sinks.

    Attributes:
        blocks: the paths of the blocks whose outputs are the hidden states.
        found: the massive activations, block by block, the largest first.
        largest, median: [L], the largest and the median magnitude |x| of each hidden state, over all examples.
        layers: the paths of the attention layers.
        sinks: [L'], the share of heads whose mean weight on the first token is above 0.3, by `analyses.key_zero_rate`.
    """

    blocks: tuple[str, ...]
    found: tuple[Activation, ...]
    largest: Tensor
    median: Tensor
    layers: tuple[str, ...]
    sinks: Tensor

    @property
    def dimensions(self) -> dict[int, int]:
        """The number of massive activations in each dimension of the hidden states: dimension -> number."""
        return {d: sum(each.dimension == d for each in self.found) for d in sorted({a.dimension for a in self.found})}

    def __str__(self) -> str:
        lines = [f"massive activations: {len(self.found)}"]
        lines += map(str, self.found[:10])
        sinks = zip(self.sinks.tolist(), self.layers, strict=True)
        lines += [f"sink rate {rate:5.0%}  {layer}" for rate, layer in sinks]
        return "\n".join(lines)


def massive_activations(model: nn.Module, inputs: Inputs, *, above: float = 100.0, times: float = 1000.0) -> Massive:
    """Find where hidden states are far larger than elsewhere, and how many heads attend to the first token.

    Args:
        model: any module that `headwise.watch` sees. The hidden states are the outputs of its blocks: the modules of an
            nn.ModuleList or nn.Sequential in which attention runs.
        inputs: the inputs of the model, as for `patching`.
        above, times: the two thresholds of Sun et al. 2024.

    Raises ArgumentError if no block with attention was found.
    """
    with torch.no_grad(), watch(model) as seen:
        states = _states(model, inputs, [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))])
    layers = name_layers(seen)
    blocks = [name for name in find_blocks(model, layers) if name in states]
    found, largest, median = [], [], []
    for name in blocks:
        x = states[name].abs().float()
        middle = x.flatten(1).median(1).values  # [B]
        places = ((x > above) & (x > times * middle[:, None, None])).nonzero()
        largest.append(x.max())
        median.append(x.median())
        some = [_activation(name, states[name], middle, place) for place in places.tolist()]
        found += sorted(some, key=lambda a: -abs(a.value))
    sinks = [key_zero_rate([record]).mean() for record in seen if record.site is None or record.site.kind == "self"]
    own = tuple(n for n, record in zip(layers, seen, strict=True) if record.site is None or record.site.kind == "self")
    return Massive(tuple(blocks), tuple(found), torch.stack(largest), torch.stack(median), own, torch.stack(sinks))


def _activation(name: str, state: Tensor, middle: Tensor, place: Sequence[int]) -> Activation:
    example, position, dimension = place
    value = float(state[example, position, dimension])
    return Activation(name, example, position, dimension, value, abs(value) / float(middle[example].clamp(min=1e-30)))


def _states(model: nn.Module, inputs: Inputs, lists: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Run the model; return path -> hidden states [B, N, M] (the first output) of each child of the modules `lists`."""
    states: dict[str, Tensor] = {}
    members = {id(child) for each in lists for child in each.children()}

    def hook(name: str) -> Callable[[nn.Module, object, object], None]:
        def keep(module: nn.Module, args: object, out: object) -> None:
            first = next((x for x in tensors_in(out) if x.ndim == 3 and x.is_floating_point()), None)
            if first is not None:
                states[name] = first.detach().clone()

        return keep

    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            if id(module) in members:
                hooks.enter_context(module.register_forward_hook(hook(name)))
        run(model, inputs)
    return states
