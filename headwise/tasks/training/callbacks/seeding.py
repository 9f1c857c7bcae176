"""Gives every step its own seed, so that its dropout does not depend on earlier steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, Trainer


class Seeding(Callback):
    """Seeds torch at each step by the run's seed, the step and the process: so a resumed run draws the same numbers."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        of_this_step = np.random.SeedSequence((self.seed, trainer.global_step, trainer.global_rank))
        number = int(of_this_step.generate_state(1)[0])
        # Not torch.manual_seed: without a GPU in use it queues a call, with a traceback, for each possible GPU.
        torch.default_generator.manual_seed(number)
        device = pl_module.device.type
        if device != "cpu":
            getattr(torch, device).manual_seed(number)
