"""Norms of the gradient during the training of a Keras model."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from headwise.errors import ArgumentError
from headwise.keras.callbacks.logging import Logging, Tensor, tensors
from headwise.keras.watching.paths import paths
from headwise.nn import options

Values = dict[str, list[Tensor]]  # kind of variables -> the values of the model's variables of this kind


class GradientNorms(Logging):
    """Write the L2 norms of the gradients of all weights, and of each layer's weights, to TensorBoard.

        callbacks.GradientNorms("logs", x[:32], y[:32])

        attention/gradient_norm                         of all gradients as one vector
        attention/encoder/gradient_norm                 of one layer, with its inner layers, by its path
        attention/encoder.attention.qkv/gradient_norm

    Keras callbacks cannot read the gradients of a training step, so this callback computes gradients itself: of the
    model's loss, with regularisation, on these examples, in training mode, with the current weights and the dropout
    that comes next. The examples are always the same, so the numbers are comparable. Each write costs one forward and
    backward pass. Weights, optimiser, metrics, seeds and running means do not change. The loss is that of
    `compute_loss`; a custom `train_step` is not used.

    Under mixed precision the loss is scaled as the optimiser scales it, and the gradients are scaled back. Gradients
    are not clipped.

    Args:
        log_dir: the folder of the event file.
        x, y: examples, as `fit` takes them: arrays, or lists or dicts of arrays. They are one batch. y may be None if
            the loss needs no y.
        sample_weight: a weight for each example, as `fit` takes it.
        every: write after every n-th epoch or batch.
        per: "epoch", with the epoch's number from 0 as the step; or "batch", with the optimiser's step.
        prefix: the first part of the names in TensorBoard.

    Raises:
        ArgumentError, DtypeError: an invalid option; the message names it; or, at the start of fit, a model without a
            loss.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        every: int = 1,
        per: Literal["epoch", "batch"] = "epoch",
        prefix: str = "attention",
    ) -> None:
        super().__init__(log_dir, every=every, prefix=prefix)
        options.check_known("per", per, ("epoch", "batch"))
        self.per = per
        given = {"x": x, "y": y, "sample_weight": sample_weight}
        self._batch = {n: None if each is None else tensors(n, each) for n, each in given.items()}
        if self._batch["x"] is None:
            raise ArgumentError("x: expected examples. Received: None")
        sizes = {int(each.shape[0]) for each in keras.tree.flatten(self._batch) if each is not None}
        if len(sizes) != 1:
            raise ArgumentError(f"x, y, sample_weight: expected as many examples in each. Received: {sorted(sizes)}")
        # (values of the variables, a batch, scale) -> Σ g² of each trainable weight, float32; compiled as the model is
        self._squares: Callable[..., list[Tensor]] | None = None
        self._batches = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        if not self.model.trainable_variables:
            raise ArgumentError("GradientNorms: expected a model with trainable weights. Received: a model without any")
        self._squares, self._batches = None, 0  # the model may have been compiled again

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._of_epoch = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self.per != "batch":
            return
        before, done = self._batches, batch + 1 - self._of_epoch  # more than 1 if one execution runs several steps
        self._batches, self._of_epoch = before + done, batch + 1
        if self._batches // self.every > before // self.every:
            self.log(int(ops.convert_to_numpy(self.model.optimizer.iterations.value)))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.per == "epoch":
            super().on_epoch_end(epoch, logs)

    def log(self, step: int) -> None:
        self.write(step, scalars=self.norms())

    def norms(self) -> dict[str, float]:
        """Compute the current norms, by their names in TensorBoard without the prefix."""
        model = self.model
        scale = float(ops.convert_to_numpy(model.optimizer.scale_loss(ops.ones(()))))
        if self._squares is None:
            find = {"tensorflow": _by_tensorflow, "jax": _by_jax, "torch": _by_torch}[keras.backend.backend()]
            self._squares = find(model)
        values = {name: [ops.convert_to_tensor(v) for v in getattr(model, name)] for name in _KINDS}
        found = self._squares(values, self._batch, ops.convert_to_tensor(scale, dtype="float32"))
        square = {id(v): float(s) for v, s in zip(model.trainable_variables, map(_number, found), strict=True)}
        norms = {"gradient_norm": math.sqrt(sum(square.values()))}
        for path, layer in paths(model).items():
            own = {id(v) for v in layer.trainable_variables} & square.keys()
            if path and own:
                norms[f"{path}/gradient_norm"] = math.sqrt(sum(square[i] for i in own))
        return norms


_KINDS = ("trainable_variables", "non_trainable_variables", "metrics_variables")


def _number(x: Tensor) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(x))


def _loss(model: Any, values: Values, batch: dict[str, Any], scale: Tensor) -> Tensor:
    """Compute the scaled loss of the model as if its variables had these values; the variables do not change."""
    pairs = [pair for name, given in values.items() for pair in zip(getattr(model, name), given, strict=True)]
    x, y, sample_weight = (batch[name] for name in ("x", "y", "sample_weight"))
    with keras.StatelessScope(state_mapping=pairs, collect_losses=True):
        y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
        told = {"training": True} if "training" in inspect.signature(model.compute_loss).parameters else {}
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **told)
    return loss * ops.cast(scale, loss.dtype)


def _square(gradient: Tensor, scale: Tensor) -> Tensor:
    return ops.sum(ops.square(ops.cast(gradient, "float32") / scale))


def _by_tensorflow(model: Any) -> Callable[..., list[Tensor]]:
    import tensorflow as tf

    def squares(values: Values, batch: dict[str, Any], scale: Tensor) -> list[Tensor]:
        weights = values["trainable_variables"]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = _loss(model, values, batch, scale)
        found = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [_square(tf.convert_to_tensor(each), scale) for each in found]  # the gradient of an embedding is sparse

    return squares if model.run_eagerly else tf.function(squares, jit_compile=bool(model.jit_compile), autograph=False)


def _by_jax(model: Any) -> Callable[..., list[Tensor]]:
    import jax

    def squares(values: Values, batch: dict[str, Any], scale: Tensor) -> list[Tensor]:
        def compute_loss(weights: list[Tensor]) -> Tensor:
            return _loss(model, {**values, "trainable_variables": weights}, batch, scale)

        return [_square(each, scale) for each in jax.grad(compute_loss)(values["trainable_variables"])]

    return squares if model.run_eagerly else jax.jit(squares)


def _by_torch(model: Any) -> Callable[..., list[Tensor]]:
    import torch

    def squares(values: Values, batch: dict[str, Any], scale: Tensor) -> list[Tensor]:
        # The parameters themselves: those of a torch module inside are not looked up by Keras. Their .grad stays.
        weights = [variable.value for variable in model.trainable_variables]
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.enable_grad(), torch.random.fork_rng(devices):  # Keras's dropout without a seed draws from PyTorch's
            loss = _loss(model, {**values, "trainable_variables": weights}, batch, scale)
            found = torch.autograd.grad(loss, weights, allow_unused=True)
        return [torch.zeros(()) if each is None else _square(each.detach(), scale) for each in found]

    return squares
