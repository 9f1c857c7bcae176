"""`write`: writes a model as a TensorFlow SavedModel, runs it with TensorFlow alone, and compares it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from headwise.errors import ArgumentError
from headwise.export.comparing import compared
from headwise.export.manifest import GraphFile
from headwise.export.savedmodel.processes import check_installed, convert, run_alone
from headwise.export.savedmodel.request import TWINS, Request
from headwise.export.speed import Timing
from headwise.export.tracing import find_longest, trace
from headwise.export.writing import Order, Written
from headwise.tasks.task import Task

VERSION = "1"  # TensorFlow Serving serves the subfolder with the highest number
TOLERANCE = 1e-4


def write(order: Order) -> Written:
    """Write a model through its Keras twin, in float32. TensorFlow runs it in a separate process, for the comparison.

    The folder is a base path of TensorFlow Serving: the SavedModel is in its subfolder "1". The signature
    "serving_default" takes the inputs by name and returns the outputs by name; a classifier also has the signature
    "classify", which returns classes and scores.

    Raises:
        ArgumentError: a model without a twin, or Keras or TensorFlow is not installed.
        ExportError: the model cannot be written or run, or its outputs differ too much.
    """
    subject, out = order.subject, order.folder / VERSION
    model: nn.Module = subject.model if isinstance(subject, Task) else subject
    _check_twin(subject, model)
    check_installed()
    (graph,) = order.graphs
    labels = tuple(subject.labels) if isinstance(subject, Task) else ()
    sent = replace(graph, examples=graph.examples[:1])
    found = convert(Request(model, order.mask, sent, labels, str(out), order.speed))
    limit = TOLERANCE if order.tolerance is None else order.tolerance
    differences = compared(graph, run_alone(out, graph), limit)
    file = GraphFile(graph.name, VERSION, graph.inputs, graph.outputs, differences, limit)
    notes = ["The SavedModel was tested in TensorFlow, not in TensorFlow Serving."]
    options = {"signatures": ["serving_default", *(["classify"] if labels else [])]}
    speed = tuple(Timing(**each) for each in found["speed"])
    return Written([file], notes, found["versions"], options, speed, find_longest([graph], [trace(graph)]))


def _check_twin(subject: Task[Any] | nn.Module, model: nn.Module) -> None:
    """Raise ArgumentError if the model has no Keras twin."""
    if type(model) in TWINS:
        return
    name = f"the task {subject.name}" if isinstance(subject, Task) else f"a {type(model).__name__}"
    raise ArgumentError(
        f"--to savedmodel needs a Keras twin of the model, but {name} ({type(model).__name__}) has none. "
        "Use --to onnx or --to torch"
    )
