"""TensorFlow Serving's API, whatever carries it: signatures, versions, classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwise.errors import RequestRefused
from headwise.server.engine import Engine, Served
from headwise.server.interface import Column, Datatype, Description, Row
from headwise.server.protocols.columns import cell_of, column_of
from headwise.server.protocols.errors import piece

SIGNATURE = "serving_default"
PREDICT = "tensorflow/serving/predict"

# Of each datatype: TensorFlow's name, its number, and the field of a TensorProto that lists the values.
DTYPES: dict[Datatype, tuple[str, int, str]] = {
    "FP32": ("DT_FLOAT", 1, "float_val"),
    "FP64": ("DT_DOUBLE", 2, "double_val"),
    "INT32": ("DT_INT32", 3, "int_val"),
    "BYTES": ("DT_STRING", 7, "string_val"),
    "INT64": ("DT_INT64", 9, "int64_val"),
    "BOOL": ("DT_BOOL", 10, "bool_val"),
}


def check_signature(name: str) -> None:
    """Raise RequestRefused unless it is the one that each model has; none is that one."""
    if name not in ("", SIGNATURE):
        raise RequestRefused(
            "bad_input", f"signature_name: each model has one signature, {SIGNATURE}. Received: {piece(name)}"
        )


def statuses(engine: Engine, name: str, version: str | None) -> list[Served]:
    """The versions of a model, or one of them, the newest first. Raises RequestRefused where there is none."""
    if version is not None:
        return [engine.find(name, version)]
    engine.find(name)
    return [served for served in engine.models() if served.name == name][::-1]


def classifier(description: Description) -> tuple[Column, Column]:
    """The column that is classified and the one that says how likely each label is.

    Raises:
        RequestRefused: the model does something else.
    """
    scores = next((c for c in description.outputs if c.name == "probabilities"), None)
    if not description.labels or scores is None:
        raise RequestRefused(
            "bad_input", f"this model does not classify, its task is {description.task}: ask it to predict"
        )
    return description.inputs[0], scores


def classes(served: Served, rows: Sequence[Row]) -> list[list[tuple[str, float]]]:
    """Of each row, each label and how likely it is."""
    _, scores = classifier(served.description)
    return [
        [(label, float(score)) for label, score in zip(served.description.labels, cell_of(scores, row), strict=True)]
        for row in rows
    ]


def refuse_to_regress() -> RequestRefused:
    """Why no model regresses: what TensorFlow Serving calls so takes and gives one number, without names."""
    return RequestRefused("bad_input", "no model here has a signature that regresses: ask it to predict")


def wanted(served: Served, names: Sequence[str]) -> tuple[Column, ...]:
    """The outputs of these names, none = all. Raises RequestRefused."""
    return tuple(column_of(served.description.outputs, name, "output") for name in names) or served.description.outputs


def signature(description: Description) -> dict[str, Any]:
    """The SignatureDef of a model, as JSON has it."""

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
