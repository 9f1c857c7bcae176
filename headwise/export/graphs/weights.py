"""A graph that also returns the attention weights of every layer."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from headwise.call import AttentionCall
from headwise.capture import watch
from headwise.errors import ExportError
from headwise.export.graph import Graph, Value
from headwise.export.graphs.axes import axes_of, sizes_of_words
from headwise.functional import listening
from headwise.records.names import name_of


@torch.no_grad()
def with_weights(graph: Graph) -> Graph:
    """The graph with more outputs: "weights.encoder.layers.0.attention" float32 [batch, heads, query, key], and so on.

    They are those of the records that `headwise.watch` makes, by the same names, in the order in which they are
    computed; a layer that is called again is "weights.….call1" then. The other outputs are what they were.

    Raises:
        ExportError: the model computes no attention, or some of it without headwise, which cannot be returned.
    """
    with watch(graph.module) as seen:
        graph.module(*graph.examples[0])
    names = _numbered([name_of(record).removeprefix(_prefix(graph.module)) for record in seen])
    module = _WithWeights(graph.module)
    outputs = [module(*given)[len(graph.outputs) :] for given in graph.examples]
    if not names or {len(names)} != {len(found) for found in outputs}:
        counts = sorted({len(found) for found in outputs})
        raise ExportError(
            f"{graph.name}: the weights of {len(names)} attention calls are to be returned, and headwise computes "
            f"{counts}: expected a model of headwise's own attention. Leave --weights out"
        )
    words = sizes_of_words(graph.inputs, graph.examples)
    found = [
        Value(f"weights.{name}", torch.float32, axes_of(f"weights.{name}", tensors, words))
        for name, tensors in zip(names, zip(*outputs, strict=True), strict=True)
    ]
    return Graph(graph.name, module, graph.inputs, (*graph.outputs, *found), graph.examples)


class _WithWeights(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        weights: list[Tensor] = []

        def keep(call: AttentionCall, out: Tensor) -> None:
            weights.append(call.weights().float())

        with listening(keep, traced=True):
            found = self.module(*inputs)
        return (*((found,) if isinstance(found, Tensor) else found), *weights)


def _prefix(module: nn.Module) -> str:
    """What the path of a layer begins with because a graph wraps the model."""
    children = [name for name, _ in module.named_children()]
    return f"{children[0]}." if type(module).__module__.startswith("headwise.export.") and len(children) == 1 else ""


def _numbered(names: list[str]) -> list[str]:
    """A name that is there again with the number of its call."""
    before: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}.call{before[name]}" if before[name] else name)
        before[name] += 1
    return found
