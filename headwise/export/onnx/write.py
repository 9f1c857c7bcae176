"""Writes a graph as an ONNX file with metadata; large weights go into a separate file beside it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.export import ExportedProgram

from headwise.errors import ArgumentError, ExportError
from headwise.export.onnx.attention import OPSETS, Form, translations
from headwise.export.tracing import first_line, quiet
from headwise.graphs.graph import Graph
from headwise.language import Sentence

if TYPE_CHECKING:
    import onnx_ir

EXTERNAL = 1 << 30  # if weights have at least this many bytes, they go into a separate file; protobuf's limit is 2 GiB


def need() -> None:
    """Raise ArgumentError unless the packages of the extra `export` are installed."""
    try:
        for name in ("onnx", "onnxruntime", "onnxscript"):
            importlib.import_module(name)
    except ModuleNotFoundError as cause:
        told = Sentence('the export to ONNX needs the package {name}: pip install "headwise[export]"')
        raise ArgumentError(told.format(name=cause.name)) from cause


def to_onnx(
    graph: Graph, program: ExportedProgram, form: Form, *, metadata: Mapping[str, str] | None = None
) -> onnx_ir.Model:
    """Translate a graph to an ONNX model.

    Args:
        program: the traced graph; it also determines the dtype of the computation.
        form: how attention is written; it also determines the opset.
        metadata: further metadata properties of the model, by name.

    Raises:
        ExportError: ONNX lacks one of the graph's operations.
    """
    try:
        with quiet(), torch.no_grad():
            written = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                opset_version=OPSETS[form],
                input_names=[value.name for value in graph.inputs],
                output_names=[value.name for value in graph.outputs],
                custom_translation_table=translations(form),
            )
    except torch.onnx.errors.OnnxExporterError as cause:
        raise ExportError(
            f"{graph.name}: it cannot be written as ONNX: {first_line(cause.__cause__ or cause)}"
        ) from cause
    assert written is not None
    model = written.model
    _name_axes(model, graph)
    _forget(model)
    model.producer_name, model.graph.name = "headwise", graph.name
    model.metadata_props.update(metadata or {})
    for side, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        model.metadata_props[f"headwise.{side}"] = json.dumps(
            [
                {"name": each.name, "dtype": str(each.dtype).removeprefix("torch."), "axes": list(each.axes)}
                for each in values
            ]
        )
    return model


def save(model: onnx_ir.Model, path: Path) -> list[Path]:
    """Write a model as one file. If weights have `EXTERNAL` bytes or more, they go into a second file, NAME.data.

    Returns the files that were written. May raise OSError.
    """
    import onnx_ir

    size = sum(each.const_value.nbytes for each in model.graph.initializers.values() if each.const_value is not None)
    if size < EXTERNAL:
        onnx_ir.save(model, path)
        return [path]
    data = path.with_name(f"{path.name}.data")
    onnx_ir.save(model, path, external_data=data.name)
    return [path, data]


def _name_axes(model: onnx_ir.Model, graph: Graph) -> None:
    """Rename dynamic axes: the trace gave them names such as "s77", the graph has names such as "batch"."""
    names: dict[str, str] = {}
    for value, written in zip(graph.inputs, model.graph.inputs, strict=True):
        for axis, size in zip(value.axes, written.shape or (), strict=True):
            if isinstance(axis, str):
                names[str(size)] = axis
    for value, written in zip(graph.outputs, model.graph.outputs, strict=True):
        for axis, size in zip(value.axes, written.shape or (), strict=True):
            if isinstance(axis, str):
                names.setdefault(str(size), axis)
    for each in (*model.graph.inputs, *(output for node in model.graph for output in node.outputs)):
        if each.shape is None:
            continue
        for place, size in enumerate(each.shape):
            if str(size) in names:
                each.shape[place] = names[str(size)]


def _forget(model: onnx_ir.Model) -> None:
    """Remove the metadata that the exporter adds to each node: stack traces with paths of this machine."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
