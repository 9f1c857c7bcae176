"""`load`: the task of an export's folder; `load_tensors`: one graph of it, as a function of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.errors import ArgumentError, CheckpointError
from headwise.export import manifest
from headwise.export.manifest import Manifest
from headwise.export.onnx.session import Runtime, Session
from headwise.tasks.task import Task
from headwise.tasks.training.run import CONFIG, read_config, rebuild


def load(folder: str | Path, runtime: Runtime | None = None) -> Task[Any]:
    """The task of an ONNX export, which ONNX Runtime runs: it predicts, writes and scores as the trained one does.

    It has no weights, and no records to look at: `look` raises RecordError.

    >>> task = load("reviews.onnx", Runtime(threads=1))
    >>> task.predict(["a warm, funny film"])

    Args:
        folder: of an export of a task.
        runtime: how ONNX Runtime runs it.

    Raises:
        ArgumentError: a run that was not exported, a module that is no task's, an export of another kind; ONNX Runtime
            is not installed, or lacks what is asked of it.
        CheckpointError: no such folder; a file that is missing, damaged, or not what export.json says.
    """
    from headwise import tasks
    from headwise.export.onnx.running import run_on
    from headwise.export.onnx.unweighted import stand_in, unweighted

    folder = Path(folder).expanduser()
    found = _manifest(folder)
    if found.task == "tensors":
        raise ArgumentError(
            f"{folder} is the export of a module, not of a task: expected one of {', '.join(tasks.NAMES)}. "
            "headwise.export.load.load_tensors gives its function"
        )
    sessions = [Session(folder, graph, runtime) for graph in found.graphs]
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder / CONFIG} is missing, though {manifest.NAME} is there: export the run again")
    config = read_config(folder)
    if found.task not in tasks.NAMES or config["task"] != found.task:
        raise CheckpointError(
            f"{folder}: expected the export of one of {', '.join(tasks.NAMES)}. {manifest.NAME} says {found.task!r}, "
            f"{CONFIG} {config['task']!r}"
        )
    kind: type[Task[Any]] = getattr(tasks, tasks.NAMES[found.task])
    with unweighted():
        task = rebuild(folder, config, kind)
    stand_in(task)
    try:
        run_on(task, sessions)
    except CheckpointError as cause:
        raise CheckpointError(f"{folder}: {cause}") from cause
    return task.eval()


def load_tensors(folder: str | Path, runtime: Runtime | None = None, *, graph: str | None = None) -> Session:
    """A graph of an ONNX export as a function of named arrays: that of a module, or one of a task's.

    >>> session = load_tensors("encoder.onnx")
    >>> session.inputs                          # their names, dtypes and axes
    >>> session.run({"input_ids": ids, "attention_mask": mask})["hidden"]

    Args:
        folder: of the export.
        runtime: how ONNX Runtime runs it.
        graph: which, where there are several.

    Raises:
        ArgumentError: as of `load`, and several graphs without a word which, or none of that name.
        CheckpointError: as of `load`.
    """
    folder = Path(folder).expanduser()
    found = _manifest(folder)
    names = [each.name for each in found.graphs]
    if graph is None and len(names) > 1:
        raise ArgumentError(f"{folder} has the graphs {', '.join(names)}: expected graph= to say which")
    if graph is not None and graph not in names:
        raise ArgumentError(f"{folder} has no graph {graph!r}: expected one of {', '.join(names)}")
    return next(Session(folder, each, runtime) for each in found.graphs if graph in (None, each.name))


def _manifest(folder: Path) -> Manifest:
    """That of an ONNX export."""
    if not manifest.is_export(folder) and (folder / CONFIG).is_file():
        raise ArgumentError(
            f"{folder} is a run, which was not exported: headwise.tasks.load loads it, "
            f"`headwise export {folder} --to onnx --out ...` exports it"
        )
    found = manifest.read(folder)
    if found.kind != "onnx":
        raise ArgumentError(
            f"{folder} is an export of the kind {found.kind!r}, which its own framework runs: expected one of the kind "
            "'onnx'. Export the run with --to onnx"
        )
    if not found.graphs:
        raise CheckpointError(f"{folder / manifest.NAME} names no graph: export the model again")
    return found
