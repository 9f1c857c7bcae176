"""`make_graphs`: the graphs (functions of named tensors) of a task, a model, or any module with examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.export.tracing import first_line
from headwise.graphs import attention
from headwise.graphs.axes import name_axes, read_sizes
from headwise.graphs.graph import Graph, Value
from headwise.graphs.models import MODELS
from headwise.masks import Mask
from headwise.tasks.task import Task


def make_graphs(
    subject: Task[Any] | nn.Module,
    rows: Any = None,
    *,
    mask: Mask | Tensor | None = None,
    examples: Sequence[tuple[Tensor, ...]] = (),
) -> tuple[Graph, ...]:
    """Return the graphs of a task, a model or a module, with example inputs for tracing and for comparison.

    A graph is a part of the model's computation (the whole model, or an encoder and a decoder) as a function of named
    tensors.

    Args:
        subject: what to export: a task, `Bert`, another model of headwise, a module of `headwise.nn`, or, with
            `examples`, any other module. It is moved to the CPU and set to eval mode.
        rows: real inputs, in the form that `task.predict` takes. None = only random inputs (and the data that a task
            keeps: the gallery of `match`).
        mask: only for a module of `headwise.nn`: the mask that every call uses (True = may attend).
        examples: for any other module: at least two sets of input tensors. Axes whose sizes differ are dynamic.

    Raises:
        ArgumentError: the subject has no graphs, the task cannot read the rows, or the weights are not float32.
    """
    subject.to("cpu").eval()
    if odd := {each.dtype for each in subject.parameters() if each.is_floating_point()} - {torch.float32}:
        raise ArgumentError(
            f"expected float32 weights. Received: {odd.pop()}. Call .float() first; precision= lowers it in the export"
        )
    if not isinstance(subject, Task):
        return _make_from_module(subject, mask, examples)
    if mask is not None or examples:
        raise ArgumentError("mask, examples: a task has its own. Pass real inputs as rows=")
    return subject.graphs(rows)


def _make_from_module(
    module: nn.Module, mask: Mask | Tensor | None, examples: Sequence[tuple[Tensor, ...]]
) -> tuple[Graph, ...]:
    """Return the graphs of a model of headwise, of a module of `headwise.nn`, or, with examples, of any other module.

    For a headwise model or module, `examples` are more inputs for the comparison with PyTorch; for any other module
    they also define which inputs the graph has.
    """
    known = type(module) in (*MODELS, *attention.MODULES)
    if isinstance(module, attention.MODULES) and (known or not examples):
        return (_with(attention.graph(module, mask), examples),)
    if mask is not None:
        raise ArgumentError(f"mask: expected a module of headwise.nn. Received: a {type(module).__name__}")
    if examples and not known:
        return (_make_from_examples(module, examples),)
    for kind, make in MODELS.items():
        if isinstance(module, kind):
            graph, *others = make(module)
            if examples and others:
                raise ArgumentError(f"examples: a {type(module).__name__} defines its own. Leave them out")
            return (_with(graph, examples), *others)
    raise ArgumentError(
        f"the inputs of a {type(module).__name__} are unknown. Pass examples=: the tensors of two calls of different "
        f"sizes. No examples need {', '.join(kind.__name__ for kind in MODELS)} and the modules of headwise.nn"
    )


def _with(graph: Graph, examples: Sequence[tuple[Tensor, ...]]) -> Graph:
    """Append these examples to the graph's own examples. ArgumentError if they do not fit the graph's inputs."""
    for given in examples:
        fits = len(given) == len(graph.inputs) and all(
            x.dtype == value.dtype and x.dim() == len(value.axes) for x, value in zip(given, graph.inputs, strict=True)
        )
        if not fits:
            wanted = ", ".join(f"{value.name} {_told(value.dtype, value.axes)}" for value in graph.inputs)
            received = ", ".join(_told(x.dtype, x.shape) for x in given)
            raise ArgumentError(f"examples: expected {wanted}. Received: {received}")
    return replace(graph, examples=[*graph.examples, *examples], real=graph.real or bool(examples))


def _told(dtype: torch.dtype, axes: Sequence[int | str]) -> str:
    return f"{str(dtype).removeprefix('torch.')} [{', '.join(map(str, axes))}]"


@torch.no_grad()
def _make_from_examples(module: nn.Module, examples: Sequence[tuple[Tensor, ...]]) -> Graph:
    """Return the graph "model": input_0 … → output_0 …; axes whose sizes differ between examples are dynamic."""
    if len(examples) < 2 or len({len(given) for given in examples}) > 1:
        raise ArgumentError(
            f"examples: expected two or more calls with equal numbers of tensors. Received: {len(examples)} calls of "
            f"{sorted({len(given) for given in examples})} tensors"
        )
    outputs = [_called(module, number, given) for number, given in enumerate(examples, 1)]
    calls = [(*given, *found) for given, found in zip(examples, outputs, strict=True)]
    if len({tuple((x.dtype, x.dim()) for x in call) for call in calls}) > 1:
        raise ArgumentError(
            "examples: expected the same dtypes and numbers of axes in each call, for inputs and outputs"
        )
    words: dict[str, tuple[int, ...]] = {}
    inputs = _values("input", examples, words)
    sizes = read_sizes(inputs, examples)
    # A trace with size 1 may be valid for size 1 only.
    first = next((n for n in range(len(examples)) if all(each[n] > 1 for each in sizes.values())), None)
    if first is None:
        raise ArgumentError("examples: expected a call in which every dynamic axis has size 2 or more")
    ordered = [examples[first], *examples[:first], *examples[first + 1 :]]
    return Graph("model", module, inputs, _values("output", outputs, sizes), ordered, True)


def _called(module: nn.Module, number: int, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    try:
        found = module(*given)
    except Exception as cause:  # a user's module may raise anything
        raise ArgumentError(
            f"examples: {type(module).__name__} cannot be called with the tensors of call {number}: {first_line(cause)}"
        ) from cause
    tensors = (found,) if isinstance(found, Tensor) else found
    if not isinstance(tensors, tuple | list) or not all(isinstance(each, Tensor) for each in tensors):
        raise ArgumentError(
            f"expected a module that returns tensors. Received: {type(module).__name__}, which returns something else"
        )
    return tuple(tensors)


def _values(name: str, calls: Sequence[tuple[Tensor, ...]], words: dict[str, tuple[int, ...]]) -> tuple[Value, ...]:
    found = []
    for number, tensors in enumerate(zip(*calls, strict=True)):
        called = f"{name}_{number}"
        found.append(Value(called, tensors[0].dtype, name_axes(called, tensors, words)))
    return tuple(found)
