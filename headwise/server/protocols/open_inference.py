"""The part of the Open Inference Protocol that is the same over HTTP and gRPC: rows, outputs, and metadata of models.

It includes extensions of Triton that its clients use: binary tensors, model repository and model configuration.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import headwise
from headwise.errors import RequestRefused
from headwise.server.engine import Engine, Served
from headwise.server.protocols.columns import (
    check_names,
    check_shape,
    check_size,
    find_column,
    flat,
    make_array,
    make_arrays,
    make_rows,
)
from headwise.server.protocols.errors import bad_input, piece
from headwise.server.protocols.sdk import InferInput, InferOutput
from headwise.tasks.columns import DTYPES, Column, Row

NAME = "headwise"
VERSION = headwise.__version__
HTTP_EXTENSIONS = ("binary_tensor_data", "model_repository", "model_configuration")
GRPC_EXTENSIONS = ("model_repository", "model_configuration")

# Triton's enum values of the datatypes; their names in a configuration are TYPE_….
CONFIG_TYPES = {
    "TYPE_BOOL": 1,
    "TYPE_INT32": 8,
    "TYPE_INT64": 9,
    "TYPE_FP32": 11,
    "TYPE_FP64": 12,
    "TYPE_STRING": 13,
}


def request_rows(served: Served, inputs: Sequence[InferInput]) -> list[Row]:
    """Turn the input tensors of a request into rows. Raises RequestRefused."""
    columns = served.description.inputs
    check_names(columns, [given.name for given in inputs])
    return make_rows(columns, {given.name: _array(find_column(columns, given.name), given) for given in inputs})


def _array(column: Column, given: InferInput) -> np.ndarray:
    if given.datatype != column.datatype:
        raise bad_input(
            f"input {column.name}: expected the datatype {column.datatype}. Received: {piece(given.datatype)}"
        )
    if any(name.startswith("shared_memory") for name in given.parameters or {}):
        raise bad_input(f"input {column.name}: shared memory is not supported. Send the data itself")
    check_shape(column, given.shape)
    if given._raw_data is None:
        return _listed(column, given)
    return _raw(column, given)


def _listed(column: Column, given: InferInput) -> np.ndarray:
    """Make the array of an input whose data are a flat or nested list."""
    values = given.data
    if not isinstance(values, list):
        raise bad_input(f"input {column.name}: expected data as a list")
    if any(isinstance(value, list) for value in values):
        values = flat(values, given.shape)
        if values is None:
            raise bad_input(f"input {column.name}: the lists in data do not have the shape {piece(list(given.shape))}")
    check_size(column, given.shape, len(values))
    if column.binary and any(isinstance(value, str) for value in values):
        raise bad_input(f"input {column.name}: JSON cannot hold bytes. Send it as binary data")
    return make_array(column, values, f"input {column.name}").reshape(given.shape)


def _raw(column: Column, given: InferInput) -> np.ndarray:
    """Make the array of an input whose data are raw bytes."""
    if column.datatype != "BYTES":
        size = np.dtype(DTYPES[column.datatype]).itemsize
        if len(given._raw_data) % size:
            raise bad_input(
                f"input {column.name}: {len(given._raw_data)} bytes are not a multiple of {size}, "
                f"the size of {column.datatype}"
            )
        check_size(column, given.shape, len(given._raw_data) // size)
    elif len(given._raw_data) < 4 * math.prod(given.shape):  # before memory is allocated for it
        raise bad_input(f"input {column.name}: {len(given._raw_data)} bytes are too few for {piece(list(given.shape))}")
    try:
        array = given.as_numpy()
    except (struct.error, ValueError) as error:
        raise bad_input(
            f"input {column.name}: expected elements, each preceded by its length (4 bytes, little-endian), "
            f"of the shape {piece(list(given.shape))}"
        ) from error
    return array.view(np.uint8) != 0 if column.datatype == "BOOL" else array


def check_outputs(served: Served, wanted: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Raise RequestRefused, before anything is computed, for an unknown output, or a parameter that is not supported.

    Args:
        wanted: the name and the parameters of each requested output.
    """
    seen: set[str] = set()
    for name, parameters in wanted:
        find_column(served.description.outputs, name, "output")
        if name in seen:
            raise bad_input(f"output {name}: it is requested more than once")
        seen.add(name)
        for key in parameters:
            if key == "classification" or key.startswith("shared_memory"):
                raise bad_input(f"output {name}: the parameter {key} is not supported. Leave it out")


def outputs(served: Served, rows: Sequence[Row], names: Sequence[str]) -> list[InferOutput]:
    """Turn answers into the outputs with these names (no names = all outputs), with arrays as their data."""
    return [
        InferOutput(name, list(array.shape), find_column(served.description.outputs, name, "output").datatype, array)
        for name, array in make_arrays(served.description, rows, names).items()
    ]


def read_timeout(parameters: Mapping[str, Any]) -> float | None:
    """Return Triton's request parameter "timeout" in seconds (it is in microseconds); None if it is 0 or missing."""
    wished = parameters.get("timeout", 0)
    if isinstance(wished, bool) or not isinstance(wished, int) or wished < 0:
        raise bad_input("parameter timeout: expected a whole number of microseconds")
    return wished / 1e6 if wished else None


def metadata(engine: Engine, served: Served) -> dict[str, Any]:
    """Return the metadata of a model in the form of the protocol."""

    def tensors(columns: Sequence[Column]) -> list[dict[str, Any]]:
        return [{"name": c.name, "datatype": c.datatype, "shape": [-1, *c.shape]} for c in columns]

    return {
        "name": served.name,
        "versions": [other.version for other in engine.models() if other.name == served.name],
        "platform": served.description.platform,
        "inputs": tensors(served.description.inputs),
        "outputs": tensors(served.description.outputs),
    }


def config(served: Served) -> dict[str, Any]:
    """Return the configuration of a model in Triton's form. As max_batch_size is 0, shapes include the axis of rows."""

    def tensors(columns: Sequence[Column]) -> list[dict[str, Any]]:
        return [{"name": c.name, "data_type": _config_type(c), "dims": [-1, *c.shape]} for c in columns]

    inputs = tensors(served.description.inputs)
    for tensor, column in zip(inputs, served.description.inputs, strict=True):
        tensor["optional"] = column.optional
    return {
        "name": served.name,
        "platform": served.description.platform,
        "backend": NAME,
        "max_batch_size": 0,
        "input": inputs,
        "output": tensors(served.description.outputs),
        "model_transaction_policy": {"decoupled": served.description.streams},
    }


def _config_type(column: Column) -> str:
    return "TYPE_STRING" if column.datatype == "BYTES" else f"TYPE_{column.datatype}"


def index(engine: Engine, only_ready: bool) -> list[dict[str, str]]:
    """Return the models and their states, in the form of Triton's repository index."""
    return [
        {
            "name": served.name,
            "version": served.version,
            "state": "READY" if served.ready else "UNAVAILABLE",
            "reason": "" if served.ready else "loading",
        }
        for served in engine.models()
        if served.ready or not only_ready
    ]


def model_ready(engine: Engine, name: str, version: str | None) -> bool:
    """Return whether a model can answer; False for an unknown model."""
    try:
        return engine.find(name, version).ready
    except RequestRefused:
        return False


def check_load(parameters: Mapping[str, Any]) -> None:
    """Raise RequestRefused for parameters of a load request, none of which is supported."""
    for name in parameters:
        if name == "config" or name.startswith("file:"):
            raise bad_input(
                f"parameter {piece(name)}: not supported. A model is loaded unchanged from the server's disk"
            )
