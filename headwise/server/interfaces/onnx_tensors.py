"""The interface of an ONNX export that belongs to no task: each input and output tensor is a column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from headwise.errors import CheckpointError
from headwise.export.manifest import Manifest
from headwise.export.onnx.session import Runtime, Session
from headwise.graphs.graph import Value
from headwise.server.interface import Description
from headwise.server.interfaces.answering import Answering
from headwise.tasks.columns import DTYPES, Column, Datatype, Row, take_array

DATATYPES: dict[torch.dtype, Datatype] = {
    torch.bool: "BOOL",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP32",  # the smallest float type of these protocols; the session casts
    torch.float32: "FP32",
    torch.float64: "FP64",
}
LENGTH = 8  # size of axes of any length, in the example

Arrays = dict[str, np.ndarray]


class OnnxTensors(Answering[Arrays]):
    """The interface of an ONNX graph: a row holds the inputs of the graph, and its answer the outputs.

    If all tensors have the same dynamic first axis, a row is one index on this axis, and rows of equal shapes run in
    one batch. Otherwise a row is one run of the graph.

    Args:
        folder: the folder of the export.
        manifest: the content of its export.json.
        threads: the number of threads of ONNX Runtime; 0 = as many as PyTorch uses.

    Raises:
        CheckpointError: several graphs, which only a task can combine, or a dtype that the protocols lack.
    """

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        if len(manifest.graphs) != 1:
            raise CheckpointError(
                f"{folder}: expected one graph. Received: {', '.join(each.name for each in manifest.graphs)}. "
                "Export the run folder of a task instead, which defines how they are combined"
            )
        (graph,) = manifest.graphs
        self.session = Session(folder, graph, Runtime(threads=threads or None))
        values = (*graph.inputs, *graph.outputs)
        firsts = {value.axes[0] if value.axes else 0 for value in values}
        self.batched = len(firsts) == 1 and isinstance(next(iter(firsts)), str)
        self.inputs, self.outputs = (
            tuple(self._column(value, folder) for value in side) for side in (graph.inputs, graph.outputs)
        )
        self.description = Description(
            task="tensors",
            platform="headwise_onnx",
            inputs=self.inputs,
            outputs=self.outputs,
            example={column.name: _cell(_ones(column)) for column in self.inputs},
        )

    def parse(self, row: Row) -> Arrays:
        found = {}
        for column, value in zip(self.inputs, self.session.inputs, strict=True):
            array = take_array(row, column).astype(str(value.dtype).removeprefix("torch."), copy=False)
            found[column.name] = array[None] if self.batched else array
        self.session.check(found)
        return found

    def tokens(self, asked: Arrays) -> int:
        """Return the size of the longest dynamic axis of the row's input tensors; 1 if no axis is dynamic."""
        sizes = [
            size
            for value in self.session.inputs
            for axis, size in zip(value.axes, asked[value.name].shape, strict=True)
            if isinstance(axis, str)
        ]
        return max(sizes, default=1)

    def run(self, asked: Sequence[Arrays]) -> list[Row]:
        groups: dict[object, list[int]] = {}
        for place, each in enumerate(asked):
            alike = tuple(array.shape for array in each.values()) if self.batched else place
            groups.setdefault(alike, []).append(place)
        found: list[Row] = [{} for _ in asked]
        for places in groups.values():
            given = {name: np.concatenate([asked[place][name] for place in places]) for name in asked[places[0]]}
            outputs = self.session.run(given if self.batched else asked[places[0]])
            for column in self.outputs:
                array = outputs[column.name].astype(DTYPES[column.datatype], copy=False)
                for row, place in enumerate(places):
                    found[place][column.name] = _cell(array[row] if self.batched else array)
        return found

    def _column(self, value: Value, folder: Path) -> Column:
        if value.dtype not in DATATYPES:
            raise CheckpointError(f"{folder}: {value.name} has the dtype {value.dtype}, which these protocols lack")
        axes = value.axes[1:] if self.batched else value.axes
        shape = tuple(-1 if isinstance(axis, str) else axis for axis in axes)
        return Column(value.name, DATATYPES[value.dtype], shape, f"[{', '.join(map(str, axes))}]" if axes else "")


def _ones(column: Column) -> np.ndarray:
    return np.ones([LENGTH if size == -1 else size for size in column.shape], DTYPES[column.datatype])


def _cell(array: np.ndarray) -> object:
    """Turn an array into a value of a row: the array itself, or a Python number if its shape is ()."""
    return array if array.ndim else array.item()
