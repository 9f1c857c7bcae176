"""The part of TensorFlow Serving's API that is the same over HTTP and gRPC: signatures, versions, classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwise.errors import RequestRefused
from headwise.server.engine import Engine, Served
from headwise.server.interface import Description
from headwise.server.protocols.columns import take_cell
from headwise.server.protocols.errors import bad_input, piece
from headwise.tasks.columns import Column, Datatype, Row

SIGNATURE = "serving_default"
PREDICT = "tensorflow/serving/predict"

# For each datatype: TensorFlow's name, its enum value, and the field of a TensorProto with the values.
DTYPES: dict[Datatype, tuple[str, int, str]] = {
    "FP32": ("DT_FLOAT", 1, "float_val"),
    "FP64": ("DT_DOUBLE", 2, "double_val"),
    "INT32": ("DT_INT32", 3, "int_val"),
    "BYTES": ("DT_STRING", 7, "string_val"),
    "INT64": ("DT_INT64", 9, "int64_val"),
    "BOOL": ("DT_BOOL", 10, "bool_val"),
}


def check_signature(name: str) -> None:
    """Raise RequestRefused unless it is "" or the only signature of each model."""
    if name not in ("", SIGNATURE):
        raise bad_input(f"signature_name: expected {SIGNATURE}, the only one. Received: {piece(name)}")


def statuses(engine: Engine, name: str, version: str | None) -> list[Served]:
    """Return all versions of a model, newest first, or the requested one. Raises RequestRefused if it is not loaded."""
    if version is not None:
        return [engine.find(name, version)]
    engine.find(name)
    return [served for served in engine.models() if served.name == name][::-1]


def classifier(description: Description) -> Column:
    """Find the output column that holds the probabilities of the labels.

    Raises:
        RequestRefused: the model is not a classifier.
    """
    scores = next((c for c in description.outputs if c.name == "probabilities"), None)
    if not description.labels or scores is None:
        raise bad_input(f"this model cannot classify: its task is {description.task}. Use predict")
    return scores


def classes(served: Served, rows: Sequence[Row]) -> list[list[tuple[str, float]]]:
    """Return for each row a list of (label, probability)."""
    scores = classifier(served.description)
    return [
        [(label, float(score)) for label, score in zip(served.description.labels, take_cell(scores, row), strict=True)]
        for row in rows
    ]


def refuse_to_regress() -> RequestRefused:
    """Return the error for the method "regress", which in TensorFlow Serving takes and returns one unnamed number."""
    return bad_input("regression is not supported. Use predict")


def signature(description: Description) -> dict[str, Any]:
    """Return the SignatureDef of a model (its inputs and outputs) as JSON data."""

    def tensors(columns: Sequence[Column]) -> dict[str, Any]:
        return {
            column.name: {
                "dtype": DTYPES[column.datatype][0],
                "tensor_shape": {
                    "dim": [{"size": str(size), "name": ""} for size in (-1, *column.shape)],
                    "unknown_rank": False,
                },
                "name": f"{SIGNATURE}_{column.name}:0",
            }
            for column in columns
        }

    return {
        "inputs": tensors(description.inputs),
        "outputs": tensors(description.outputs),
        "method_name": PREDICT,
        "defaults": {},
    }
