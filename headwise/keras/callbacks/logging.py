"""The base class of the callbacks: when they write, and the event file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras

from headwise.errors import ArgumentError, DtypeError
from headwise.extras import need
from headwise.nn import options

Tensor = Any  # a tensor of the backend


class Logging(keras.callbacks.Callback):
    """A callback that computes something after some epochs, then writes it. If fit fails, no partial data remain.

    Args:
        log_dir: the folder of the event file, created at the first write.
        every: write after each n-th epoch. Its number, from 0, is the step, as in keras.callbacks.TensorBoard.
        prefix: the first part of the names in TensorBoard.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, every: int, prefix: str) -> None:
        super().__init__()
        if not isinstance(log_dir, (str, os.PathLike)):
            raise DtypeError(f"log_dir: expected the path of a folder. Received: {type(log_dir).__name__}")
        if not os.fspath(log_dir) or Path(log_dir).is_file():
            raise ArgumentError(f"log_dir: expected a folder, not a file. Received: log_dir={os.fspath(log_dir)!r}")
        if not isinstance(prefix, str) or not prefix.strip("/"):
            raise ArgumentError(f"prefix: expected a string. Received: prefix={prefix!r}")
        need(type(self).__name__, "tensorboard")
        self.log_dir = os.fspath(log_dir)
        self.every = options.whole("every", every)
        self.prefix = prefix.strip("/")
        self._writer: Any = None

    def write(self, step: int, scalars: dict[str, float] | None = None, images: dict[str, Any] | None = None) -> None:
        """Write the data of one step; images are uint8 [h, w]. The data are in the file when this returns."""
        if not scalars and not images:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.log_dir)
        for name, value in (scalars or {}).items():
            self._writer.add_scalar(f"{self.prefix}/{name}", value, step)
        for name, pixels in (images or {}).items():
            self._writer.add_image(f"{self.prefix}/{name}", pixels, step, dataformats="HW")
        self._writer.flush()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if (epoch + 1) % self.every == 0:
            self.log(epoch)

    def log(self, step: int) -> None:
        """Compute the data of this step, and write them."""
        raise NotImplementedError

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._close()  # close the file of a fit that failed

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._close()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def tensors(name: str, given: Any) -> Any:
    """Convert examples to tensors of the backend, in the same structure; floats get Keras's float type."""

    def convert(x: Any) -> Tensor:
        x = keras.ops.convert_to_tensor(x)
        return keras.ops.cast(x, keras.config.floatx()) if "float" in keras.backend.standardize_dtype(x.dtype) else x

    try:
        found = keras.tree.map_structure(convert, given)
    except (TypeError, ValueError) as cause:
        raise DtypeError(f"{name}: expected arrays, as for model.fit. Received: {type(given).__name__}") from cause
    sizes = {int(x.shape[0]) if len(x.shape) else 0 for x in keras.tree.flatten(found)}
    if len(sizes) != 1 or sizes == {0}:
        raise ArgumentError(f"{name}: expected the same number of examples in each array. Received: {sorted(sizes)}")
    return found
