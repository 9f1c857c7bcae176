"""Traces a graph as a `torch.export` program, which the exporters start from."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules import transformer

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
        with torch.no_grad(), quiet(), patch.object(transformer, "_detect_is_causal_mask", _is_called_causal):
            return torch.export.export(module.eval(), given, dynamic_shapes=_pack_args(module, open_axes), strict=False)
    except Exception as cause:  # a user's module may raise anything, and so does PyTorch
        raise ExportError(f"{graph.name}: torch.export cannot trace the module: {_explain(cause)}") from cause


def find_longest(graphs: Iterable[Graph], programs: Iterable[ExportedProgram]) -> dict[str, int]:
    """Find the maximum size of each named axis that has one in a traced program (such as positions), by name."""
    found: dict[str, int] = {}
    for graph, program in zip(graphs, programs, strict=True):
        traced = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
        for value, name in zip(graph.inputs, program.graph_signature.user_inputs, strict=True):
            for axis, size in zip(value.axes, traced[str(name)].shape, strict=True):
                span = program.range_constraints.get(getattr(getattr(size, "node", None), "expr", None))
                if isinstance(axis, str) and span is not None and span.upper < _ENDLESS:
                    found[axis] = min(int(span.upper), found.get(axis, _ENDLESS))
    return found


_ENDLESS = 2**31  # above any limit of a model


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Return a context in which the exporters of PyTorch log and print nothing: what matters is in their exceptions."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # torch.export prints its graph
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        logging.disable(disabled)


def _is_called_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Answer PyTorch's transformers without the values of a mask, which a trace lacks: it is only a hint for speed."""
    return is_causal is True


def _explain(error: Exception) -> str:
    """Say in a sentence why a trace failed, and at which line outside of PyTorch."""
    frames = traceback.extract_tb(error.__traceback__)
    library, own = Path(torch.__file__).parent, Path(__file__)
    lines = [each for each in frames if library not in Path(each.filename).parents and each.filename != str(own)]
    where = f", at {Path(lines[-1].filename).name}:{lines[-1].lineno}: {lines[-1].line}" if lines else ""
    if isinstance(error, GuardOnDataDependentSymNode):
        return f"it decides by the values of a tensor{where}. Compute both cases, and choose by torch.where"
    return f"{first_line(error)}{where}"


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
