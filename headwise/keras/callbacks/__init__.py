"""Callbacks for `fit` that write the attention of a Keras model to TensorBoard during training, on each backend.

    from headwise.keras import callbacks

    model.fit(x, y, callbacks=[
        callbacks.GradientNorms("logs", x[:32], y[:32]),
        callbacks.AttentionEntropy(x[:32], "logs"),
        callbacks.AttentionPictures(x[:32], "logs"),
    ])

The scalars have the names of `headwise.capture.monitor`. TensorBoard: pip install "headwise[tensorboard]".
"""

from headwise.keras.callbacks.entropy import AttentionEntropy
from headwise.keras.callbacks.gradients import GradientNorms
from headwise.keras.callbacks.pictures import AttentionPictures

__all__ = ["AttentionEntropy", "AttentionPictures", "GradientNorms"]
