"""Keeps the learning curve of a run, also if the run is resumed, and writes curve.csv and curve.png."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, Trainer

from headwise.tasks.training import curve
from headwise.tasks.training.callbacks.best import Best

_POINTS = 20  # points of the training loss in each epoch


class Curve(Callback):
    """Records the mean training loss of each twentieth of an epoch, and the scores that each validation logs.

    Args:
        folder: the folder of curve.csv and curve.png; None = they are not written.
        best: the callback that chooses the best weights.
    """

    def __init__(self, folder: Path | None, best: Best) -> None:
        self.folder, self.best = folder, best
        self.rows: list[curve.Row] = []
        self.epoch_loss = float("nan")  #: the mean loss of the last finished epoch
        self._sums = {"point": [0.0, 0.0], "epoch": [0.0, 0.0]}
        self._rate = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._rate = trainer.optimizers[0].param_groups[0]["lr"]  # this step's; later it is the next step's

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        for sums in self._sums.values():
            sums[0] += outputs["total"]
            sums[1] += outputs["terms"]
        every = max(1, math.ceil(trainer.num_training_batches / _POINTS))
        if (batch_idx + 1) % every == 0 or trainer.is_last_batch:
            loss = self._mean("point")
            epoch = trainer.current_epoch + (batch_idx + 1) / trainer.num_training_batches
            self.rows.append(curve.Row(epoch, trainer.global_step, loss, self._rate))
            for logger in trainer.loggers:
                logger.log_metrics({"loss": loss, "learning_rate": self._rate}, step=trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.epoch_loss = self._mean("epoch")
        scores = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
        if not self.rows or self.rows[-1].step != trainer.global_step:  # the time is over between two points
            done = trainer.fit_loop.epoch_loop.batch_progress.current.ready / trainer.num_training_batches
            self.rows.append(
                curve.Row(trainer.current_epoch + done, trainer.global_step, self._mean("point"), self._rate)
            )
        self.rows[-1].scores.update(scores)
        if self.folder is not None and trainer.is_global_zero:
            curve.write(self.rows, self.folder / "curve.csv")

    def _mean(self, of: str) -> float:
        total, terms = self._sums[of]
        self._sums[of] = [0.0, 0.0]
        return float(total) / float(terms) if terms else float("nan")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self.folder is not None and self.rows and trainer.is_global_zero:
            by = self.best.by
            curve.draw(self.rows, self.folder / "curve.png", best=(by[0], self.best.epoch) if by else None)

    def state_dict(self) -> dict[str, Any]:
        sums = {name: [float(each) for each in both] for name, both in self._sums.items()}
        return {"rows": [asdict(row) for row in self.rows], "sums": sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = [curve.Row(**row) for row in state_dict["rows"]]
        self._sums = state_dict["sums"]
