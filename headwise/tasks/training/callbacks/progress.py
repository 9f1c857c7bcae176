"""Prints the progress of a training: a line for each epoch, and on a terminal a progress bar below."""

from __future__ import annotations

import time
from typing import Any

from pytorch_lightning import Callback, Trainer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headwise.language import said
from headwise.tables import make_console
from headwise.tasks.training.callbacks.best import Best
from headwise.tasks.training.callbacks.curve import Curve

_EVERY = 0.2  # seconds between two readings of the loss, for which a GPU has to wait


class Telling(Callback):
    """Prints the progress of a training on standard error, only in the first process.

    Args:
        curve, best: the callbacks with the losses and the best epoch.
    """

    def __init__(self, curve: Curve, best: Best) -> None:
        self.curve, self.best = curve, best
        self._console = make_console(stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._bar_task = TaskID(0)
        self._began = self._shown = 0.0
        self._trained: float | None = None  # seconds until the validation began
        self._tokens = 0
        self._batches = range(0)  # the batches of this epoch that were run here

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(bar_width=None),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.fields[loss]}"),
                TextColumn("{task.fields[speed]}"),
                TimeRemainingColumn(compact=True),
                console=self._console,
                transient=True,
                expand=True,
            )
            self._bar_task = self._bar.add_task("", total=1, epoch="", loss="", speed="")
            self._bar.start()
        self._start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._start()

    def _start(self) -> None:
        self._began, self._trained, self._tokens, self._batches = time.monotonic(), None, 0, range(0)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._batches = range(self._batches.start if self._batches else batch_idx, batch_idx + 1)
        self._tokens += trainer.datamodule.tokens(trainer.current_epoch, batch_idx)  # type: ignore[attr-defined]
        now = time.monotonic()
        if self._bar is None or now - self._shown < _EVERY:
            return
        self._shown = now
        loss = float(outputs["total"]) / max(float(outputs["terms"]), 1e-9)
        self._bar.update(
            self._bar_task,
            total=trainer.num_training_batches,
            completed=batch_idx + 1,
            epoch=f"{trainer.current_epoch + 1}/{trainer.max_epochs}",
            loss=f"{said('loss')} {loss:.4f}",
            speed=said("{speed:,.0f} tokens/s", speed=self._tokens / (now - self._began)),
        )

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._trained = time.monotonic() - self._began
        if self._bar is not None:
            self._bar.update(self._bar_task, loss=said("validation"))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        seconds = time.monotonic() - self._began
        training = seconds if self._trained is None else self._trained
        scores = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
        told = [(said("loss"), self.curve.epoch_loss), *((_word(name), value) for name, value in scores.items())]
        print_to = self._bar.console if self._bar is not None else self._console
        print_to.print(
            said(
                "epoch {epoch}/{epochs}{part}: {scores}, {seconds:.1f} s, {speed:,.0f} tokens/s",
                epoch=trainer.current_epoch + 1,
                epochs=trainer.max_epochs,
                part=self._part(trainer.num_training_batches),
                scores=said(", ").join(f"{name} {value:.4g}" for name, value in told),
                seconds=seconds,
                speed=self._tokens / max(training, 1e-9),
            ),
            markup=False,
        )

    def _part(self, batches: int | float) -> str:
        """Say which batches of the epoch this process ran, if it resumed or stopped inside the epoch; "" if it ran all.

        The loss that is printed counts from the beginning of the epoch.
        """
        resumed = said(", resumed after batch {batch}", batch=self._batches.start) if self._batches.start else ""
        part = said(", up to batch {batch} of {batches}", batch=self._batches.stop, batches=batches)
        return resumed + (part if self._batches.stop < batches else "")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._stop()
        if trainer.is_global_zero and self.best.by is not None and self.best.score is not None:
            by, score, epoch = _word(self.best.by[0]), self.best.score, self.best.epoch
            told = said(
                "the best weights are those of epoch {epoch}: {by} {score:.4g}", epoch=epoch, by=by, score=score
            )
            self._console.print(told, markup=False)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _word(name: str) -> str:
    return said(name.replace("_", " "))
