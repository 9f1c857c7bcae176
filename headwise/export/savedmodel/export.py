"""`export`: a task or a model as a TensorFlow SavedModel, which was run by TensorFlow alone and compared."""

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
from headwise.export.savedmodel.request import WITH_TWIN, Request
from headwise.export.speed import Timing, batches_of
from headwise.masks import Mask
from headwise.tasks.classify import Classify
from headwise.tasks.task import Task

VERSION = "1"  # TensorFlow Serving serves the folder with the highest number in its base path
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
    """Write a model by way of its Keras twin, float32, and compare what TensorFlow computes in a process of its own.

    The folder is a base path of TensorFlow Serving: the SavedModel lies in its folder "1". "serving_default" takes the
    inputs by name and gives the outputs by name; a classifier also has "classify": classes and scores.

    Args:
        subject: a task or a model that has a twin in Keras. It is put on the CPU, and into eval mode.
        out: a folder that is new, empty, or an export, which is then replaced.
        rows: real inputs to compare on, as `task.predict` takes them. Random ones are compared on anyway.
        mask: of a module of `headwise.nn`, as for `graphs_of`.
        tolerance: how far an output may be from PyTorch's, in units of the spread of its values; None = 1e-4.
        run: the run folder that the task is of: its config.yaml and scores.json go with it.
        speed: whether to take the time of calls, while TensorFlow is there.

    Returns:
        Where it is, its files and the difference of each output; and the times that were taken.

    Raises:
        ArgumentError: a model without a twin; a folder that is not empty; Keras or TensorFlow is not installed.
        ExportError: it cannot be written or run, or computes something else. Nothing is left behind then.
        FileError: it cannot be written.
    """
    model: nn.Module = subject.model if isinstance(subject, Task) else subject
    _check_twin(subject, model)
    check_installed()
    out = Path(out).expanduser()
    with replacing_folder(out) as folder:
        (graph,) = graphs_of(subject, rows, mask=mask)
        labels = tuple(subject.labels) if isinstance(subject, Classify) else ()
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
        notes = ["TensorFlow Serving itself was not run: the SavedModel was loaded by TensorFlow."]
        task = subject if isinstance(subject, Task) else None
        name = "tensors" if task is None else task.name
        if task is not None:
            task_files.write(folder, task, None if run is None else Path(run).expanduser())
        if rows is None:
            notes.append(task_files.RANDOM_ONLY)
        versions = {each: importlib.metadata.version(each) for each in ("headwise", "torch")} | found["versions"]
        options = {"signatures": ["serving_default", *(["classify"] if labels else [])]}
        manifest.write(folder, Manifest("savedmodel", name, "fp32", (file,), tuple(notes), versions, options))
    return Exported.load(out), tuple(Timing(**each) for each in found["speed"])


def _check_twin(subject: Task[Any] | nn.Module, model: nn.Module) -> None:
    """Raise ArgumentError where there is no way through Keras."""
    if type(model) in WITH_TWIN:
        return
    name = f"a run of {subject.name}" if isinstance(subject, Task) else f"a {type(model).__name__}"
    raise ArgumentError(
        f"--to savedmodel goes through the model's twin in Keras, and {name} ({type(model).__name__}) has none. "
        "--to onnx and --to torch export it"
    )
