"""A graph as an ONNX model, with metadata inside, and its file, with the weights beside it where they are large."""

from __future__ import annotations

import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headwise.errors import ArgumentError, ExportError
from headwise.export.graph import Graph, Value
from headwise.export.onnx.attention import OPSETS, Form, translations
from headwise.export.tracing import DEPRECATED, first_line, trace

if TYPE_CHECKING:
    import onnx_ir

EXTERNAL = 1 << 30  # bytes of weights from which on they go into a file of their own; protobuf ends at 2 GiB


def need() -> None:
    """Raise ArgumentError unless what writes and runs ONNX is installed."""
    try:
        for name in ("onnx", "onnxruntime", "onnxscript"):
            importlib.import_module(name)
    except ModuleNotFoundError as cause:
        raise ArgumentError(f'the export to ONNX needs {cause.name}: pip install "headwise[export]"') from cause


def to_onnx(
    graph: Graph, form: Form, *, dtype: torch.dtype = torch.float32, metadata: Mapping[str, str] | None = None
) -> onnx_ir.Model:
    """The ONNX model of a graph.

    Args:
        form: how attention is written, which also decides the opset.
        dtype: float16 to compute in that; what goes in and comes out is as the graph says.
        metadata: what else the model's properties say, beside the inputs and outputs.

    Raises:
        ExportError: it cannot be traced, or there is an operation that ONNX has none for.
    """
    program = trace(graph, dtype)
    try:
        with _quiet(), torch.no_grad():
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
        raise ExportError(f"{graph.name}: cannot be written as ONNX: {first_line(cause.__cause__ or cause)}") from cause
    assert written is not None
    model = written.model
    _name_axes(model, graph)
    _forget(model)
    model.producer_name, model.graph.name = "headwise", graph.name
    model.metadata_props.update(metadata or {})
    for side, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        model.metadata_props[f"headwise.{side}"] = json.dumps([_told(value) for value in values])
    return model


def save(model: onnx_ir.Model, path: Path, *, external: int = EXTERNAL) -> list[Path]:
    """Write a model: one file, or two where there are `external` bytes of weights or more: then NAME.data beside it.

    Returns what was written. OSError passes through.
    """
    import onnx_ir

    size = sum(each.const_value.nbytes for each in model.graph.initializers.values() if each.const_value is not None)
    if size < external:
        onnx_ir.save(model, path)
        return [path]
    data = path.with_name(f"{path.name}.data")
    onnx_ir.save(model, path, external_data=data.name)
    return [path, data]


def _name_axes(model: onnx_ir.Model, graph: Graph) -> None:
    """The words of the graph in place of the names that the trace gave to sizes."""
    names: dict[str, str] = {}
    for value, written in zip(graph.inputs, model.graph.inputs, strict=True):
        for axis, size in zip(value.axes, written.shape or (), strict=True):
            if isinstance(axis, str):
                names[str(size)] = axis
    for value, written in zip(graph.outputs, model.graph.outputs, strict=True):
        for axis, size in zip(value.axes, written.shape or (), strict=True):
            if isinstance(axis, str):
                names.setdefault(str(size), axis)
    for each in _shaped(model):
        if each.shape is None:
            continue
        for place, size in enumerate(each.shape):
            if str(size) in names:
                each.shape[place] = names[str(size)]


def _forget(model: onnx_ir.Model) -> None:
    """Without what the exporter notes of each node: the stack that made it, paths of this machine and all."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def _shaped(model: onnx_ir.Model) -> Iterator[onnx_ir.Value]:
    yield from model.graph.inputs
    for node in model.graph:
        yield from node.outputs


def _told(value: Value) -> dict[str, object]:
    return {"name": value.name, "dtype": str(value.dtype).removeprefix("torch."), "axes": list(value.axes)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters say of themselves: that torchvision is missing, that a constant is there twice."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", DEPRECATED, FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
