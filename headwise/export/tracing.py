"""A graph as a program of `torch.export`, which exporters go on from."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from headwise.errors import ExportError
from headwise.export.graph import Graph


def trace(graph: Graph, dtype: torch.dtype = torch.float32) -> ExportedProgram:
    """The program of a graph, in which every axis of a word may have any size.

    Args:
        graph: traced with its first example.
        dtype: what it computes in: float16, bfloat16. What goes in and comes out has the graph's dtypes.

    Raises:
        ExportError: `torch.export` cannot follow the module, or an axis of a word was fixed to one size.
    """
    module = graph.module if dtype == torch.float32 else _InDtype(graph, dtype)
    # DYNAMIC, not AUTO: an axis that the trace would fix is an error, and no silent specialisation.
    open_axes = [
        {place: Dim.DYNAMIC for place, axis in enumerate(value.axes) if isinstance(axis, str)} for value in graph.inputs
    ]
    given = tuple(x.clone() for x in graph.examples[0])  # of a view it would remember what it is a view of
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", DEPRECATED, FutureWarning)
            return torch.export.export(module.eval(), given, dynamic_shapes=_as_called(module, open_axes), strict=False)
    except Exception as cause:  # whatever a user's module raises, and a dozen classes of PyTorch's own
        raise ExportError(f"{graph.name}: torch.export cannot follow the module: {first_line(cause)}") from cause


def longest(graph: Graph, program: ExportedProgram) -> dict[str, int]:
    """How long the axes of words may be at most, of those that have an end: the positions that a model knows."""
    names = program.graph_signature.user_inputs
    traced = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    found: dict[str, int] = {}
    for value, name in zip(graph.inputs, names, strict=True):
        for axis, size in zip(value.axes, traced[str(name)].shape, strict=True):
            span = program.range_constraints.get(getattr(getattr(size, "node", None), "expr", None))
            if isinstance(axis, str) and span is not None and span.upper < _ENDLESS:
                found[axis] = int(span.upper)
    return found


_ENDLESS = 2**31  # no model reads as many


DEPRECATED = r"`isinstance\(treespec, LeafSpec\)` is deprecated"  # PyTorch's own, of what it does itself


def first_line(error: BaseException) -> str:
    """What kind of error it is, and the first line of what it says, with the next if it leads up to that: PyTorch's
    have dozens.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] += f" {lines[1]}"
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _as_called(module: nn.Module, each: list[Any]) -> tuple[Any, ...]:
    """One thing for each input, as `torch.export` wants it: what `*args` takes is a tuple of its own."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    first = next((i for i, one in enumerate(parameters) if one.kind is one.VAR_POSITIONAL), None)
    return tuple(each) if first is None else (*each[:first], tuple(each[first:]))


class _InDtype(nn.Module):
    """A graph's module with other floats inside, and the same outside."""

    def __init__(self, graph: Graph, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = copy.deepcopy(graph.module).to(dtype)
        self.dtype = dtype
        self.outputs = [value.dtype for value in graph.outputs]

    def forward(self, *inputs: Tensor) -> Any:
        found = self.inner(*(x.to(self.dtype) if x.is_floating_point() else x for x in inputs))
        if isinstance(found, Tensor):
            return found.to(self.outputs[0])
        return tuple(x.to(dtype) for x, dtype in zip(found, self.outputs, strict=True))
