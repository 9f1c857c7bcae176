"""Traces a graph as a `torch.export` program, which the exporters start from."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from headwise.errors import ExportError
from headwise.graphs.graph import Graph


def trace(graph: Graph, dtype: torch.dtype = torch.float32) -> ExportedProgram:
    """Trace a graph with dynamic sizes for all named axes.

    Args:
        graph: the graph; it is traced with its first example.
        dtype: the dtype of the computation. Inputs and outputs keep the graph's dtypes.

    Raises:
        ExportError: `torch.export` cannot trace the module, or a named axis was fixed to one size.
    """
    module = graph.module if dtype == torch.float32 else _InDtype(graph, dtype)
    # DYNAMIC instead of AUTO: an axis that the trace would fix is an error, not a silent specialisation.
    open_axes = [
        {place: Dim.DYNAMIC for place, axis in enumerate(value.axes) if isinstance(axis, str)} for value in graph.inputs
    ]
    given = tuple(x.clone() for x in graph.examples[0])  # a view would keep a reference to its base
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", DEPRECATED, FutureWarning)
            return torch.export.export(module.eval(), given, dynamic_shapes=_pack_args(module, open_axes), strict=False)
    except Exception as cause:  # a user's module may raise anything, and so does PyTorch
        raise ExportError(f"{graph.name}: torch.export cannot trace the module: {first_line(cause)}") from cause


def longest(graph: Graph, program: ExportedProgram) -> dict[str, int]:
    """Return the maximum size of each named axis that has one in the traced program (such as positions), by name."""
    names = program.graph_signature.user_inputs
    traced = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    found: dict[str, int] = {}
    for value, name in zip(graph.inputs, names, strict=True):
        for axis, size in zip(value.axes, traced[str(name)].shape, strict=True):
            span = program.range_constraints.get(getattr(getattr(size, "node", None), "expr", None))
            if isinstance(axis, str) and span is not None and span.upper < _ENDLESS:
                found[axis] = int(span.upper)
    return found


_ENDLESS = 2**31  # above any limit of a model


DEPRECATED = r"`isinstance\(treespec, LeafSpec\)` is deprecated"  # raised inside PyTorch


def first_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its message; the first two lines if the first ends in ":"."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] += f" {lines[1]}"
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _pack_args(module: nn.Module, each: list[Any]) -> tuple[Any, ...]:
    """Arrange one item per input as `torch.export` expects: the items for the inputs in `*args` become one tuple."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    first = next((i for i, one in enumerate(parameters) if one.kind is one.VAR_POSITIONAL), None)
    return tuple(each) if first is None else (*each[:first], tuple(each[first:]))


class _InDtype(nn.Module):
    """A graph's module that computes in another dtype, but whose inputs and outputs keep their dtypes."""

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
