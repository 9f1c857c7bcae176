"""Writes a model's Keras twin as a SavedModel. Runs as a separate process, because Keras has one backend per process:

KERAS_BACKEND=tensorflow python -m headwise.export.savedmodel.convert request.pt answer.json
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
import torch

from headwise.errors import ExportError, HeadwiseError
from headwise.export.savedmodel.request import Request
from headwise.export.savedmodel.twins import make_twin
from headwise.export.speed import timings


def main(request: str, answer: str) -> None:
    """Write the SavedModel, and the answer: the result of `write`, or a sentence that says why it cannot be written."""
    try:
        found = write(torch.load(request, weights_only=False))
    except HeadwiseError as error:
        found = {"refused": str(error)}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


def write(asked: Request) -> dict[str, Any]:
    """Write the SavedModel. Returns the versions of the packages that wrote it, and the times of calls.

    Raises:
        ExportError: the graph and the Keras twin do not have the same inputs.
        HeadwiseError: a part of the model has no Keras twin.
    """
    twin = make_twin(asked.model, asked.mask)
    graph = asked.graph
    names = [value.name for value in graph.inputs]
    if set(names) != set(inspect.signature(type(twin).call).parameters) - {"self"}:
        raise ExportError(f"the Keras twin of {type(asked.model).__name__} does not have the inputs {', '.join(names)}")

    def serve(*tensors: Any) -> dict[str, Any]:
        found = twin(**dict(zip(names, tensors, strict=True)))
        return {value.name: x for value, x in zip(graph.outputs, found, strict=True)}

    def classify(*tensors: Any) -> dict[str, Any]:
        return _classified(serve(*tensors)["logits"], asked.labels)

    serve(*(tf.constant(x.numpy()) for x in graph.examples[0]))  # creates all variables
    signature = [
        tf.TensorSpec([None if isinstance(axis, str) else axis for axis in value.axes], x.numpy().dtype, value.name)
        for value, x in zip(graph.inputs, graph.examples[0], strict=True)
    ]
    archive = keras.export.ExportArchive()
    # No archive.track(twin): it would write the variables a second time, because the endpoints have them already.
    archive.add_endpoint("serve", serve, signature)  # also becomes "serving_default"
    if asked.labels:
        archive.add_endpoint("classify", classify, signature)
    archive.write_out(asked.folder, verbose=False)
    served = tf.saved_model.load(asked.folder).signatures["serving_default"]

    def run(*tensors: torch.Tensor) -> Any:
        return served(**{name: tf.constant(x.numpy()) for name, x in zip(names, tensors, strict=True)})

    taken = timings([graph], lambda graph: {"TensorFlow": run}) if asked.speed else ()
    return {
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        "speed": [asdict(timing) for timing in taken],
    }


def _classified(logits_BC: Any, labels: Sequence[str]) -> dict[str, Any]:
    """Return a classifier's outputs as TensorFlow Serving expects them: classes [B, C] and scores (probabilities)."""
    scores = tf.nn.softmax(logits_BC)
    return {"classes": tf.broadcast_to(tf.constant(list(labels))[None], tf.shape(scores)), "scores": scores}


if __name__ == "__main__":
    main(*sys.argv[1:])
