"""`load` rebuilds the task in an export's folder. `load_tensors` loads one of its graphs as a function of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from headwise.errors import ArgumentError, CheckpointError, RecordError
from headwise.export import manifest
from headwise.export.manifest import Manifest
from headwise.export.onnx.session import Runtime, Session
from headwise.export.onnx.unweighted import stand_in, unweighted
from headwise.files import check_seal
from headwise.graphs.session import Sessions
from headwise.tasks import kinds
from headwise.tasks.task import Task
from headwise.tasks.training.run import CONFIG, read_config, rebuild


def load(folder: str | Path, runtime: Runtime | None = None) -> Task[Any]:
    """Load the task of an ONNX export; ONNX Runtime runs its model. It predicts, generates and scores as before.

    The loaded task has no weights in PyTorch and cannot record attention: `look` raises RecordError.

    >>> task = load("reviews.onnx", Runtime(threads=1))
    >>> task.predict(["a warm, funny film"])

    Args:
        folder: the folder of an exported task.
        runtime: options of ONNX Runtime; None = the defaults.

    Raises:
        ArgumentError: a run folder that was not exported, a module without a task, an export in another format; ONNX
            Runtime is not installed, or lacks a requested feature.
        CheckpointError: the folder is missing; a file is missing, damaged, or does not match export.json.
    """
    folder = Path(folder).expanduser()
    found = _manifest(folder)
    if found.task == "tensors":
        raise ArgumentError(
            f"{folder} is the export of a module. Expected the export of one of {', '.join(kinds.names())}. "
            "`from headwise.export.load import load_tensors` loads its graph"
        )
    sessions = [Session(folder, graph, runtime) for graph in found.graphs]
    if not (folder / CONFIG).is_file():
        raise CheckpointError(
            f"{folder / CONFIG} is missing, although {manifest.NAME} exists. Export the run folder again"
        )
    config = read_config(folder)
    if found.task not in kinds.names() or config["task"] != found.task:
        raise CheckpointError(
            f"{folder}: expected a task of {', '.join(kinds.names())}. Received: {found.task!r} in {manifest.NAME}, "
            f"{config['task']!r} in {CONFIG}"
        )
    kind = kinds.find_class(found.task)
    with unweighted():
        task = rebuild(folder, config, kind)
    stand_in(task)
    task.on_torch = False
    try:
        task.run_on(Sessions({session.name: session for session in sessions}))
    except CheckpointError as cause:
        raise CheckpointError(f"{folder}: {cause}") from cause
    task.look = _no_records  # type: ignore[method-assign]
    return task.eval()


def load_tensors(folder: str | Path, runtime: Runtime | None = None, *, graph: str | None = None) -> Session:
    """Load one graph (one .onnx file) of an ONNX export, as a function of named arrays.

    >>> session = load_tensors("encoder.onnx")
    >>> session.inputs                          # their names, dtypes and axes
    >>> session.run({"input_ids": ids, "attention_mask": mask})["hidden"]

    Args:
        folder: the folder of the export.
        runtime: options of ONNX Runtime; None = the defaults.
        graph: the name of the graph, if there are several.

    Raises:
        ArgumentError: as for `load`; also several graphs without `graph`, or no graph of that name.
        CheckpointError: as for `load`.
    """
    folder = Path(folder).expanduser()
    found = _manifest(folder)
    check_seal(folder)
    names = [each.name for each in found.graphs]
    if graph is None and len(names) > 1:
        raise ArgumentError(f"{folder} has the graphs {', '.join(names)}. Choose one with graph=")
    if graph is not None and graph not in names:
        raise ArgumentError(f"graph: {folder} has {', '.join(names)}. Received: graph={graph!r}")
    return next(Session(folder, each, runtime) for each in found.graphs if graph in (None, each.name))


def _no_records(inputs: Any) -> NoReturn:
    raise RecordError(
        "look: ONNX Runtime cannot record attention. Load the run folder, headwise.tasks.load(run), or serve it "
        "with backend torch"
    )


def _manifest(folder: Path) -> Manifest:
    """Read the manifest (export.json) of an ONNX export. ArgumentError if the folder is not an ONNX export."""
    if not manifest.is_export(folder) and (folder / CONFIG).is_file():
        raise ArgumentError(
            f"{folder} is a run folder, not an export: headwise.tasks.load loads it, "
            f"`headwise export {folder} --to onnx --out ...` exports it"
        )
    found = manifest.read(folder)
    if found.kind != "onnx":
        raise ArgumentError(
            f"{folder}: expected an export of the kind 'onnx'. Received: kind={found.kind!r}, which its own framework "
            "runs. Export the run folder with --to onnx"
        )
    if not found.graphs:
        raise CheckpointError(f"{folder / manifest.NAME} lists no graph. Export the model again")
    return found
