"""`export`: write a task or a model as a folder of ONNX files, run each of them, and compare it with PyTorch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import FileError
from headwise.export import manifest, task_files
from headwise.export.exported import Exported
from headwise.export.folder import replacing_folder
from headwise.export.graphs import graphs_of
from headwise.export.manifest import GraphFile, Manifest
from headwise.export.onnx import attention as forms
from headwise.export.onnx import precision as precisions
from headwise.export.onnx import tensorrt
from headwise.export.onnx.check import TOLERANCES, compared
from headwise.export.onnx.write import EXTERNAL, need, save, to_onnx
from headwise.graphs.graph import Graph
from headwise.graphs.weights import with_weights
from headwise.masks import Mask
from headwise.tasks.task import Task


def export(
    subject: Task[Any] | nn.Module,
    out: str | Path,
    *,
    attention: str = "auto",
    precision: str = "fp32",
    weights: bool = False,
    external_data: int = EXTERNAL,
    rows: Any = None,
    mask: Mask | Tensor | None = None,
    examples: Sequence[tuple[Tensor, ...]] = (),
    tolerance: float | None = None,
    run: str | Path | None = None,
) -> Exported:
    """Write a task or a model as ONNX, load it in ONNX Runtime, and compare it with PyTorch.

    Args:
        subject: a task, a model or a module, see `graphs_of`. It is moved to the CPU and set to eval mode.
        out: a new or empty folder, or an old export, which is replaced.
        attention: "op" = the standard operator `Attention`; "plain" = primitive operators, in an older opset; "auto" =
            "op" if the installed ONNX Runtime computes the operator correctly.
        precision: "fp32"; "fp16" = weights and computation, with float32 inputs and outputs; "int8" = weights, by
            dynamic quantisation.
        weights: whether the graphs also return the attention weights of every layer.
        external_data: weights of at least this many bytes are written to a separate file beside the graph.
        rows: real inputs for the comparison, in the form that `task.predict` takes, in addition to random ones.
        mask, examples: for a module without a task, see `graphs_of`.
        tolerance: largest allowed difference from PyTorch's outputs, in standard deviations of their values; None =
            1e-4 for fp32, 0.05 for fp16, 2 for int8.
        run: the run folder of the task, whose config.yaml and scores.json are copied.

    Returns:
        The folder, its files, and the difference of each output of each graph.

    Raises:
        ArgumentError: an unknown option, a folder that is not empty, or the extra `export` is not installed.
        ExportError: it cannot be traced or written, or its outputs differ. No file is left behind.
        FileError: a file cannot be written.
    """
    need()
    out = Path(out).expanduser()
    dtype = precisions.dtype_of(precision)
    form, said = forms.choose(attention)
    notes = [said]
    with replacing_folder(out) as folder:
        graphs = graphs_of(subject, rows, mask=mask, examples=examples)
        if weights:
            graphs = tuple(with_weights(graph) for graph in graphs)
        task = subject if isinstance(subject, Task) else None
        name = "tensors" if task is None else task.name
        metadata = _metadata(subject, name, precision)
        limit = TOLERANCES[precision] if tolerance is None else tolerance
        files = []
        try:
            for graph in graphs:
                path = folder / f"{graph.name}.onnx"
                _write(graph, path, form, precision, dtype, metadata, external_data)
                file = GraphFile(graph.name, path.name, graph.inputs, graph.outputs, (), limit, forms.OPSETS[form])
                files.append(replace(file, differences=compared(folder, file, graph, limit)))
            notes += tensorrt.write(folder, files, graphs, limit)
        except OSError as cause:
            raise FileError(f"cannot write {out}: {cause.strerror or cause}") from cause
        if precision != "fp32":
            notes.append(precisions.SAYS[precision])
        if task is not None:
            task_files.write(folder, task, None if run is None else Path(run).expanduser())
        if not any(graph.real for graph in graphs):
            notes.append(task_files.RANDOM_ONLY)
        versions = {each: importlib.metadata.version(each) for each in ("headwise", "torch", "onnx", "onnxruntime")}
        options = {"attention": form, "weights": weights}
        manifest.write(folder, Manifest("onnx", name, precision, tuple(files), tuple(notes), versions, options))
    return Exported.load(out)


def _write(
    graph: Graph,
    path: Path,
    form: forms.Form,
    precision: str,
    dtype: torch.dtype,
    metadata: dict[str, str],
    external: int,
) -> None:
    model = to_onnx(graph, form, dtype=dtype, metadata=metadata)
    if precision != "int8":
        save(model, path, external=external)
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as between:
        written = save(model, Path(between) / path.name, external=external)
        precisions.quantize(written[0], path, external=len(written) > 1)


def _metadata(subject: nn.Module, task: str, precision: str) -> dict[str, str]:
    """The metadata properties of each ONNX model: its origin."""
    return {
        "headwise.version": importlib.metadata.version("headwise"),
        "headwise.task": task,
        "headwise.precision": precision,
        "headwise.source": fingerprint(subject),
    }


def fingerprint(module: nn.Module) -> str:
    """SHA-256 of the names and values of a module's weights; two exports of one model have the same."""
    found = hashlib.sha256()
    tensors = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
