"""Sessions that are the modules themselves: what a task asks of a runtime, without the time that an export takes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.export.graphs import make_graphs
from headwise.export.onnx.unweighted import stand_in
from headwise.graphs.graph import Graph, Value
from headwise.graphs.session import Sessions
from headwise.tasks.task import Task


class ModuleSession:
    """As `Session`: of a graph that PyTorch runs."""

    def __init__(self, graph: Graph) -> None:
        self.name, self.graph = graph.name, graph
        self.inputs: tuple[Value, ...] = graph.inputs
        self.outputs: tuple[Value, ...] = graph.outputs

    def giving(self, *names: str) -> Callable[..., tuple[Tensor, ...]]:
        def call(*tensors: Tensor) -> tuple[Tensor, ...]:
            given = [x.to(value.dtype) for x, value in zip(tensors, self.inputs, strict=True)]
            with torch.no_grad():
                found = self.graph.module(*given)
            found = (found,) if isinstance(found, Tensor) else found
            named = dict(zip((value.name for value in self.outputs), found, strict=True))
            return tuple(named[name] for name in names)

        return call


def run_by_modules(task: Task[Any]) -> Task[Any]:
    """A task without weights, for which the graphs of this one answer."""
    other = copy.deepcopy(task)
    stand_in(other)
    other.on_torch = False
    other.run_on(Sessions({graph.name: ModuleSession(graph) for graph in make_graphs(task)}))
    return other.eval()
