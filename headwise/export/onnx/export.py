"""`write`: writes graphs as ONNX files, runs each, and compares it with PyTorch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.export.manifest import GraphFile
from headwise.export.onnx import attention as forms
from headwise.export.onnx import precision as precisions
from headwise.export.onnx import tensorrt
from headwise.export.onnx.check import TOLERANCES, compared
from headwise.export.onnx.session import Session
from headwise.export.onnx.write import save, to_onnx
from headwise.export.speed import Runs, timings
from headwise.export.tracing import find_longest, trace
from headwise.export.writing import Order, Written
from headwise.graphs.graph import Graph
from headwise.version import __version__

if TYPE_CHECKING:
    import onnx_ir


def write(order: Order, *, attention: forms.Asked = "auto") -> Written:
    """Write the graphs as ONNX files, load each file in ONNX Runtime, and compare it with PyTorch.

    Args:
        attention: "op" = the standard operator `Attention`; "plain" = primitive operators, in an older opset; "auto" =
            "op" if the installed ONNX Runtime computes the operator correctly, else "plain".

    Raises:
        ArgumentError: an unknown option.
        ExportError: a graph cannot be traced or written, or its outputs differ too much.
    """
    form, said = forms.choose(attention)
    limit = TOLERANCES[order.precision] if order.tolerance is None else order.tolerance
    metadata = {  # the origin of each model
        "headwise.version": __version__,
        "headwise.task": order.task,
        "headwise.precision": order.precision,
        "headwise.source": fingerprint(order.subject),
    }
    dtype = torch.float16 if order.precision == "fp16" else torch.float32
    files, traced = [], [trace(graph, dtype) for graph in order.graphs]
    for graph, program in zip(order.graphs, traced, strict=True):
        path = order.folder / f"{graph.name}.onnx"
        _write(to_onnx(graph, program, form, metadata=metadata), path, order.precision)
        file = GraphFile(graph.name, path.name, graph.inputs, graph.outputs, (), limit, forms.OPSETS[form])
        files.append(replace(file, differences=compared(order.folder, file, graph, limit)))
    longest = find_longest(order.graphs, traced)
    notes = [said, *tensorrt.write(order.folder, files, order.graphs, limit, longest)]
    if order.precision in precisions.SAYS:
        notes.append(precisions.SAYS[order.precision])
    versions = {each: importlib.metadata.version(each) for each in ("onnx", "onnxruntime")}
    taken = timings(order.graphs, lambda graph: _runs(order.folder, files, graph)) if order.speed else ()
    return Written(files, notes, versions, {"attention": form}, taken, longest)


def _write(model: onnx_ir.Model, path: Path, precision: str) -> None:
    if precision != "int8":
        save(model, path)
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as between:
        written = save(model, Path(between) / path.name)
        precisions.quantize(written[0], path, external=len(written) > 1)


def _runs(folder: Path, files: Sequence[GraphFile], graph: Graph) -> Runs:
    (file,) = (each for each in files if each.name == graph.name)
    return {"ONNX Runtime": Session(folder, file).giving(*(value.name for value in file.outputs))}


def fingerprint(module: nn.Module) -> str:
    """Compute the SHA-256 of the names and values of a module's weights: two exports of one model have the same."""
    found = hashlib.sha256()
    tensors = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
