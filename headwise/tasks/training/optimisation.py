"""AdamW, with decay where it belongs, and the rise and fall of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from headwise.tasks.options.train import TrainOptions


def configure(module: nn.Module, options: TrainOptions, steps: int) -> dict[str, Any]:
    """The optimiser and the schedule of a module, as Lightning's `configure_optimizers` returns them.

    Args:
        steps: of the whole training.
    """
    # A fused step unscales its gradients itself, so that they could not be clipped before it.
    optimizer = AdamW(groups(module, options.weight_decay), lr=options.lr, fused=options.precision != "16-mixed")
    schedule = LambdaLR(optimizer, factor(options.schedule, math.ceil(options.warmup * steps), steps))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The parameters that learn, in two groups: those that decay, and biases, norms and embeddings, which do not."""
    embeddings = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)}
    learning = [each for each in module.parameters() if each.requires_grad]
    decaying = [each for each in learning if each.ndim > 1 and id(each) not in embeddings]
    chosen = {id(each) for each in decaying}
    others = [each for each in learning if id(each) not in chosen]
    both = ({"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0})
    return [group for group in both if group["params"]]


def factor(schedule: str, warmup: int, steps: int) -> Callable[[int], float]:
    """What the learning rate is multiplied by at a step, from 0: a straight rise over `warmup` steps, then a fall.

    linear and cosine (Loshchilov & Hutter 2017, eq. 5, without restarts) end at 0; inverse_sqrt falls with the root of
    the step (Vaswani et al. 2017, eq. 3).
    """

    def at(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if schedule == "constant":
            return 1.0
        if schedule == "inverse_sqrt":
            return math.sqrt(max(warmup, 1) / (step + 1))
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return 1.0 - done if schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2

    return at
