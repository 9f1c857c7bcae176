"""Makes a graph that also returns the attention weights of every layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor, nn

from headwise.call import AttentionCall
from headwise.capture import watch
from headwise.errors import ExportError
from headwise.functional import listening
from headwise.graphs.axes import name_axes, read_sizes
from headwise.graphs.graph import Graph, Value
from headwise.records.names import name_of


@torch.no_grad()
def with_weights(graph: Graph) -> Graph:
    """Return a graph that also outputs the attention weights of every layer, float32 [batch, heads, query, key] each.

    An output is named after its layer, such as "weights.encoder.layers.0.attention"; if a layer is called twice, the
    second output is named "weights.….call1". The outputs equal the weights in the records of `headwise.watch`, have the
    same names, and are in the order of computation. The graph's other outputs do not change.

    Raises:
        ExportError: the model computes no attention, or computes some of it without headwise.
    """
    with watch(graph.module) as seen:
        graph.module(*graph.examples[0])
    names = _numbered([name_of(record).removeprefix(_prefix(graph.module)) for record in seen])
    module = _WithWeights(graph.module)
    outputs = [module(*given)[len(graph.outputs) :] for given in graph.examples]
    if not names or {len(names)} != {len(found) for found in outputs}:
        counts = sorted({len(found) for found in outputs})
        raise ExportError(
            f"{graph.name}: the model has {len(names)} attention calls, but headwise computes "
            f"{counts}. Expected a model that uses headwise's attention only. Leave --weights out"
        )
    words = read_sizes(graph.inputs, graph.examples)
    found = [
        Value(f"weights.{name}", torch.float32, name_axes(f"weights.{name}", tensors, words))
        for name, tensors in zip(names, zip(*outputs, strict=True), strict=True)
    ]
    return replace(graph, module=module, outputs=(*graph.outputs, *found))


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
    """Return the prefix ("model." …) that layer paths have because a graph wraps the model; "" without a wrapper."""
    children = [name for name, _ in module.named_children()]
    return f"{children[0]}." if type(module).__module__.startswith("headwise.graphs.") and len(children) == 1 else ""


def _numbered(names: list[str]) -> list[str]:
    """Return the names, where the second, third … occurrence of a name gets ".call1", ".call2" … appended."""
    before: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}.call{before[name]}" if before[name] else name)
        before[name] += 1
    return found
