"""The description of the format SavedModel for `headwise export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.export.format import Format

if TYPE_CHECKING:
    from headwise.export.manifest import GraphFile, Manifest


def _call(graph: GraphFile) -> list[str]:
    return [
        f'served = tf.saved_model.load("{graph.file}").signatures["serving_default"]',
        "values |= {name: output.numpy() for name, output in served(**values).items()}",
    ]


def _more(manifest: Manifest) -> list[str]:
    if "classify" not in manifest.options["signatures"]:
        return []
    return ['The signature "classify" has the same inputs and returns `classes` and `scores` (probabilities).']


SAVEDMODEL = Format(
    name="savedmodel",
    title="TensorFlow SavedModel",
    function="headwise.export.savedmodel.export:write",
    precisions=("fp32",),
    imports=("import tensorflow as tf",),
    array="tf.constant",
    call=_call,
    more=_more,
    extra="keras",
)
