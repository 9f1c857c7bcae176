"""The graphs of each kind of model: its computation as functions of named tensors."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.export.graph import Graph
from headwise.masks import Mask
from headwise.tasks.task import Task

# Name of a task -> the module here with its function `graphs(task, rows)`.
_MODULES = {
    "classify": "classify",
    "answer": "answer",
    "forecast": "forecast",
    "match": "match",
    "language": "language",
    "translate": "text_to_text",
    "summarize": "text_to_text",
    "reply": "text_to_text",
}


def graphs_of(
    subject: Task[Any] | nn.Module,
    rows: Any = None,
    *,
    mask: Mask | Tensor | None = None,
    examples: Sequence[tuple[Tensor, ...]] = (),
) -> tuple[Graph, ...]:
    """The graphs of a task, a model or a module, with examples for tracing and comparison.

    Args:
        subject: a task, `Bert`, another model of headwise, a module of `headwise.nn`, or, with `examples`, any other
            module. It is moved to the CPU and set to eval mode.
        rows: real inputs, in the form that `task.predict` takes. None = only random inputs (and the data that a task
            keeps: the gallery of `match`).
        mask: for a module of `headwise.nn`: the mask that every call uses (True = may attend).
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
        from headwise.export.graphs.bare import graphs

        return graphs(subject, mask=mask, examples=examples)
    if mask is not None or examples:
        raise ArgumentError("mask, examples: a task has its own. Pass real inputs as rows=")
    if subject.name not in _MODULES:
        raise ArgumentError(f"expected a task of {', '.join(_MODULES)}. Received: {subject.name!r}")
    module = importlib.import_module(f"headwise.export.graphs.{_MODULES[subject.name]}")
    return cast(tuple[Graph, ...], module.graphs(subject, rows))
