"""Keeps the best weights so far in a file, and ends the training if no better weights are found for long."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal

from pytorch_lightning import Callback, Trainer

from headwise.errors import ArgumentError
from headwise.records.tensor_file import read_tensors
from headwise.tasks.training.callbacks.averaging import Averaging
from headwise.tasks.training.weights import save_weights


class Best(Callback):
    """Writes the weights to a file after each validation that is better than all before; without validation, after each
    epoch.

    Of two equal scores, the one with the lower validation loss is better.

    Args:
        path: the file of the weights.
        by: the name of a logged score, and whether higher is better; None = the latest weights are the best.
        patience: the number of epochs without better weights that ends the training; 0 = no limit.
        averaging: the callback that has the weights to save, if these are not the weights of the module.
    """

    def __init__(
        self,
        path: Path,
        by: tuple[str, Literal["max", "min"]] | None,
        patience: int,
        averaging: Averaging | None = None,
    ) -> None:
        self.path, self.by, self.patience, self.averaging = path, by, patience, averaging
        self.score: float | None = None
        self.loss = float("inf")  #: validation loss of the best weights, which decides between equal scores
        self.epoch = 0  #: the epoch of the best weights, from 1
        self.waited = 0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if self.epoch and trainer.is_global_zero:  # resumed: what will be missing in the end is told now
            read_tensors(self.path)
        self._stop_if_waited(trainer)  # a resumed run that had stopped early has nothing left to do

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self.by is None:
            return
        name, mode = self.by
        if name not in trainer.callback_metrics:
            logged = ", ".join(trainer.callback_metrics)
            raise ArgumentError(f"best_by: expected a score that the task logs: {logged}. Received: {name!r}")
        score, loss = float(trainer.callback_metrics[name]), float(trainer.callback_metrics.get("validation_loss", 0.0))
        better = self.score is None or (score > self.score if mode == "max" else score < self.score)
        if better or (score == self.score and loss < self.loss):
            self.score, self.loss, self.waited = score, loss, 0
            self._save(trainer)
        else:
            self.waited += 1
        self._stop_if_waited(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self.by is None:
            with contextlib.nullcontext() if self.averaging is None else self.averaging.used(pl_module):
                self._save(trainer)

    def _stop_if_waited(self, trainer: Trainer) -> None:
        if self.patience and self.waited >= self.patience:
            trainer.should_stop = True

    def _save(self, trainer: Trainer) -> None:
        self.epoch = trainer.current_epoch + 1
        tensors = trainer.strategy.lightning_module_state_dict()  # gathered from all processes
        if trainer.is_global_zero:
            save_weights(tensors, self.path)

    def state_dict(self) -> dict[str, Any]:
        return {"score": self.score, "loss": self.loss, "epoch": self.epoch, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)
