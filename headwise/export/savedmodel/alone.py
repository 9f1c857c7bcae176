"""A script that runs a SavedModel in a process with TensorFlow, but without Keras, headwise and PyTorch.

    python alone.py saved_model_folder request.npz answer.npz

The request holds the inputs of each example, the answer their outputs, under names such as "0/logits" (example 0).
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder
    sys.modules |= dict.fromkeys(("headwise", "keras", "torch"))  # type: ignore[arg-type]  # importing one fails
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf


def main(folder: str, request: str, answer: str) -> None:
    """Run the default serving signature of the SavedModel on each example."""
    served = tf.saved_model.load(folder).signatures["serving_default"]
    examples: dict[str, dict[str, tf.Tensor]] = {}
    with np.load(request) as given:
        for key in given.files:
            number, _, name = key.partition("/")
            examples.setdefault(number, {})[name] = tf.constant(given[key])
    found = {
        f"{number}/{name}": output.numpy()
        for number, inputs in examples.items()
        for name, output in served(**inputs).items()
    }
    np.savez(answer, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
