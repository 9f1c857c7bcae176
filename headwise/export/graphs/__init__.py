"""What is exported of each kind of model: its computation as graphs of named tensors."""

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

# The word of a task -> the module here that has its graphs: `graphs(task, rows)`.
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
    """The graphs of a task, a model or a module, with the examples that they are traced with and compared on.

    Args:
        subject: a task, `Bert`, another of headwise's models, a module of `headwise.nn`, or, with `examples`, any
            module at all. It is put on the CPU, and into eval mode.
        rows: real inputs, as `task.predict` takes them. None = there are none but random ones (and what a run keeps
            of its data: the gallery of `match`).
        mask: of a module of `headwise.nn`: which query may attend to which key, always.
        examples: of any other module: the tensors that it takes, at least twice. Axes that differ in size are open.

    Raises:
        ArgumentError: what there is no graph of; rows that the task cannot read; weights that are not float32.
    """
    subject.to("cpu").eval()
    if odd := {each.dtype for each in subject.parameters() if each.is_floating_point()} - {torch.float32}:
        raise ArgumentError(
            f"expected float32 weights, received {odd.pop()}: call .float() on it; --precision lowers them"
        )
    if not isinstance(subject, Task):
        from headwise.export.graphs.bare import graphs

        return graphs(subject, mask=mask, examples=examples)
    if mask is not None or examples:
        raise ArgumentError("mask and examples: a task has its own. Give real inputs as rows")
    if subject.name not in _MODULES:
        raise ArgumentError(f"there are no graphs of the task {subject.name!r}: expected one of {', '.join(_MODULES)}")
    module = importlib.import_module(f"headwise.export.graphs.{_MODULES[subject.name]}")
    return cast(tuple[Graph, ...], module.graphs(subject, rows))
