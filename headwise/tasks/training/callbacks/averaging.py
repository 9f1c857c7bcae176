"""Averages the weights over the steps (an exponential mean); the averaged weights are validated and saved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

WARMUP = 10  # steps: the first means are over few weights


class Averaging(Callback):
    """Averages the weights. The decay of step n is min(decay, n / (n + 10)), so that the first weights are forgotten.

    Polyak & Juditsky 1992. In the list of callbacks it comes after `Best`, so that `Best` saves the mean when a
    validation ends.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.means: list[Tensor] = []  # the means of the parameters, in their order

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        parameters = list(pl_module.parameters())
        held = self.means or parameters  # a resumed run has means already
        self.means = [x.detach().to(p.device, copy=True) for x, p in zip(held, parameters, strict=True)]

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        weight = 1 - min(self.decay, step / (step + WARMUP))
        torch._foreach_lerp_(self.means, [p.detach() for p in pl_module.parameters()], weight)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._exchange(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._exchange(pl_module)

    @contextlib.contextmanager
    def used(self, pl_module: Any) -> Iterator[None]:
        """A context in which the module has the averaged weights."""
        self._exchange(pl_module)
        try:
            yield
        finally:
            self._exchange(pl_module)

    @torch.no_grad()
    def _exchange(self, pl_module: Any) -> None:
        for mean, parameter in zip(self.means, pl_module.parameters(), strict=True):
            kept = parameter.clone()
            parameter.copy_(mean)
            mean.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        return {"means": self.means}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.means = state_dict["means"]
