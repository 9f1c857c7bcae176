"""Writes the checkpoint last.ckpt, from which a run can be resumed, after each epoch and when the run is stopped."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Checkpoint

from headwise.errors import CheckpointError, FileError, TrainingInterrupted
from headwise.files import replacing
from headwise.language import Sentence, echo, said
from headwise.tasks.training.callbacks.signals import Interrupt


class Last(Checkpoint):
    """Saves the training after each epoch, and stops it after a step if the user interrupted it or its time is over.

    After the last step of an epoch it stops only after the validation, so that the epoch ends normally.

    Args:
        path: the file of the checkpoint; None = nothing is saved.
        minutes: the time of training. When it is over, the weights are validated, and the run ends as after its last
            epoch, with a message on how to resume it.
    """

    def __init__(self, path: Path | None, interrupt: Interrupt, minutes: float | None) -> None:
        self.path, self.interrupt, self.minutes = path, interrupt, minutes
        self.out_of_time: Sentence | None = None  # the time after which the run ended for this reason
        self._deadline = float("inf")

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if self.minutes is not None:
            self._deadline = time.monotonic() + 60 * self.minutes

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.is_last_batch:
            return
        interrupted = self._interrupted(trainer)
        if not interrupted and not self._late(trainer):
            return
        self._save(trainer)
        where = Sentence("batch {batch} of {batches} of epoch {epoch}").format(
            batch=batch_idx + 1, batches=trainer.num_training_batches, epoch=trainer.current_epoch + 1
        )
        if interrupted:
            raise TrainingInterrupted(self._stopped(where))
        self.out_of_time, trainer.should_stop = where, True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self.out_of_time:  # saved in the middle of the epoch, where the run will resume
            return
        self._save(trainer)
        if trainer.current_epoch + 1 == trainer.max_epochs:
            return
        where = Sentence("epoch {epoch}").format(epoch=trainer.current_epoch + 1)
        if self._interrupted(trainer):
            raise TrainingInterrupted(self._stopped(where))
        if self._late(trainer):
            self.out_of_time, trainer.should_stop = where, True

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self.out_of_time and trainer.is_global_zero:
            echo(said("the time limit is over: {stopped}", stopped=self._stopped(self.out_of_time)), err=True)

    def _interrupted(self, trainer: Trainer) -> bool:
        return self._any(trainer, self.interrupt.asked)

    def _late(self, trainer: Trainer) -> bool:
        return self.minutes is not None and self._any(trainer, time.monotonic() >= self._deadline)

    def _any(self, trainer: Trainer, here: bool) -> bool:
        """Return whether `here` is True in any process: all processes must stop after the same step."""
        return trainer.strategy.reduce_boolean_decision(here, all=False) if trainer.world_size > 1 else here

    def _save(self, trainer: Trainer) -> None:
        if self.path is not None:
            trainer.save_checkpoint(self.path)

    def _stopped(self, where: Sentence) -> Sentence:
        if self.path is None:
            return Sentence(
                "stopped after {where}; it cannot be resumed, because there is no run folder: name one with out"
            ).format(where=where)
        return Sentence(
            "stopped after {where}, and saved in {path}: resume with resume=True (the same command with --resume)"
        ).format(where=where, path=self.path)


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file, then renames it: a full disk leaves the old checkpoint intact."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        # The checkpoint is made in memory first: torch's own writer ends the process in some versions when the disk is
        # full.
        written = io.BytesIO()
        torch.save(checkpoint, written)
        path = Path(path)
        try:
            with replacing(path) as part:
                part.write_bytes(written.getbuffer())
        except OSError as cause:
            raise FileError(
                "cannot write {path}: {cause}. What was saved before is intact: make room, then go on with "
                "resume=True (the same command with --resume)",
                path=path,
                cause=cause.strerror or cause,
            ) from cause

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        try:
            with zipfile.ZipFile(path) as records:  # torch writes checksums (CRC-32), but does not compare them
                if (bad := records.testzip()) is not None:
                    raise ValueError(f"the bytes of {bad} are not those that were written")
            loaded: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only=weights_only)
        except Exception as cause:
            why = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
            told = Sentence("cannot read {path}, it is damaged or cut short ({why})").format(path=path, why=why)
            raise CheckpointError(told) from cause
        return loaded
