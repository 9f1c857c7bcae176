"""`export`: write a task or a model as a TensorFlow SavedModel, run it with TensorFlow alone, and compare it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from torch import nn

from headwise.errors import ArgumentError, FileError
from headwise.export import manifest, task_files
from headwise.export.comparing import compared
from headwise.export.exported import Exported
from headwise.export.folder import replacing_folder
from headwise.export.graphs import graphs_of
from headwise.export.manifest import GraphFile, Manifest
from headwise.export.savedmodel.processes import check_installed, convert, run_alone
from headwise.export.savedmodel.request import TWINS, Request
from headwise.export.speed import Timing, batches_of
from headwise.masks import Mask
from headwise.tasks.task import Task

VERSION = "1"  # TensorFlow Serving serves the subfolder with the highest number
TOLERANCE = 1e-4


def export(
    subject: Task[Any] | nn.Module,
    out: str | Path,
    *,
    rows: Any = None,
    mask: Mask | None = None,
    tolerance: float | None = None,
    run: str | Path | None = None,
    speed: bool = False,
) -> tuple[Exported, tuple[Timing, ...]]:
    """Write a model through its Keras twin, in float32, and compare the outputs of TensorFlow in a separate process.

    The folder is a base path of TensorFlow Serving: the SavedModel is in its subfolder "1". "serving_default" takes the
    inputs by name and returns the outputs by name; a classifier also has "classify": classes and scores.

    Args:
        subject: a task or a model with a Keras twin. It is moved to the CPU and set to eval mode.
        out: a new or empty folder, or an old export, which is replaced.
        rows: real inputs for the comparison, in the form that `task.predict` takes, in addition to random ones.
        mask: for a module of `headwise.nn`, see `graphs_of`.
        tolerance: largest allowed difference from PyTorch, in standard deviations of their values. None = 1e-4
        run: the run folder of the task, whose config.yaml and scores.json are copied.
        speed: whether to measure the time of calls.

    Returns:
        The folder, its files and the difference of each output; and the measured times.

    Raises:
        ArgumentError: a model without a twin, a folder that is not empty, or Keras or TensorFlow is not installed.
        ExportError: it cannot be written or run, or its outputs differ. No file is left behind.
        FileError: a file cannot be written.
    """
    model: nn.Module = subject.model if isinstance(subject, Task) else subject
    _check_twin(subject, model)
    check_installed()
    out = Path(out).expanduser()
    with replacing_folder(out) as folder:
        (graph,) = graphs_of(subject, rows, mask=mask)
        labels = tuple(subject.labels) if isinstance(subject, Task) else ()
        batches = batches_of(graph) if speed else {}
        request = Request(
            model,
            mask,
            graph.module,
            graph.inputs,
            graph.outputs,
            graph.examples[0],
            labels,
            str(folder / VERSION),
            batches,
        )
        try:
            found = convert(request)
            given = run_alone(folder / VERSION, graph)
        except OSError as cause:
            raise FileError(f"cannot write {out}: {cause.strerror or cause}") from cause
        limit = TOLERANCE if tolerance is None else tolerance
        differences = compared(graph, given, limit)
        file = GraphFile(graph.name, VERSION, graph.inputs, graph.outputs, differences, limit)
        notes = ["The SavedModel was tested in TensorFlow, not in TensorFlow Serving."]
        task = subject if isinstance(subject, Task) else None
        name = "tensors" if task is None else task.name
        if task is not None:
            task_files.write(folder, task, None if run is None else Path(run).expanduser())
        if not graph.real:
            notes.append(task_files.RANDOM_ONLY)
        versions = {each: importlib.metadata.version(each) for each in ("headwise", "torch")} | found["versions"]
        options = {"signatures": ["serving_default", *(["classify"] if labels else [])]}
        manifest.write(folder, Manifest("savedmodel", name, "fp32", (file,), tuple(notes), versions, options))
    return Exported.load(out), tuple(Timing(**each) for each in found["speed"])


def _check_twin(subject: Task[Any] | nn.Module, model: nn.Module) -> None:
    """Raise ArgumentError if the model has no Keras twin."""
    if type(model) in TWINS:
        return
    name = f"the task {subject.name}" if isinstance(subject, Task) else f"a {type(model).__name__}"
    raise ArgumentError(
        f"--to savedmodel needs a Keras twin of the model, but {name} ({type(model).__name__}) has none. "
        "Use --to onnx or --to torch"
    )
