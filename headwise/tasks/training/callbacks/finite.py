"""Ends the training if a loss is not finite, before it changes the weights."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from torch import Tensor

from headwise.errors import ArgumentError, TrainingError
from headwise.language import Sentence, join
from headwise.tasks.options.train import TrainOptions


def check_finite(trainer: Trainer, options: TrainOptions, total: Tensor) -> None:
    """Raise TrainingError if a loss is not finite.

    Args:
        total: the sum of the losses of a batch, over all processes, so that all processes stop.

    Raises:
        TrainingError: the sum is NaN or infinite; the message has the epoch, the batch, and what to try.
    """
    if not torch.isfinite(total):
        batch = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        where = Sentence("at batch {batch} of epoch {epoch}").format(batch=batch, epoch=trainer.current_epoch + 1)
        raise TrainingError(_sentence(trainer, options, total, where))


class FiniteValidation(Callback):
    """Checks the loss of each validation: it is not finite if the gradients of an epoch's last step were not finite."""

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        pl_module.validated = 0

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        total = trainer.callback_metrics.get("validation_loss")
        if total is not None and not torch.isfinite(total):
            if not pl_module.validated:
                raise ArgumentError(
                    "expected validation rows with something to predict, such as tokens or labels that "
                    "the training data has. Received: none. Give others (validation)"
                )
            where = Sentence("in the validation after epoch {epoch}").format(epoch=trainer.current_epoch + 1)
            raise TrainingError(_sentence(trainer, pl_module.options, total, where))


def _sentence(trainer: Trainer, options: TrainOptions, total: Tensor, where: Sentence) -> Sentence:
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    tries = [Sentence("a lower lr"), Sentence("a longer warmup")]
    if not options.clip:
        tries.append(Sentence("clip=1"))
    if options.precision != "32":
        tries.append(Sentence("precision='32'"))
    told = Sentence("the loss became {what} {where}, at a learning rate of {rate:.2g}: try {tries}").format(
        what="NaN" if total.isnan() else Sentence("infinite"), where=where, rate=rate, tries=join(tries, " or ")
    )
    return join([told, "what was saved before is intact"], "; ") if trainer.current_epoch else told
