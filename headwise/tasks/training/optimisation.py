"""AdamW with weight decay for weights only, and the schedule of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from headwise.tasks.options.train import TrainOptions


def configure(
    module: nn.Module, options: TrainOptions, steps: int, rates: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Make the optimiser and the schedule of a module, in the form of Lightning's `configure_optimizers`.

    Args:
        steps: the steps of the whole training.
        rates: prefix of parameter names -> the highest learning rate of these parameters, if it differs from the
            options.
    """
    parameters = groups(module, options.weight_decay, rates)
    # A fused step unscales its gradients itself, so they could not be clipped before the step.
    optimizer = AdamW(parameters, lr=options.lr, fused=options.precision != "16-mixed")
    schedule = LambdaLR(optimizer, factor(options.schedule, math.ceil(options.warmup * steps), steps))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def renew_rates(schedule: LambdaLR) -> None:
    """Set the learning rates of the coming step: a resumed training may have more steps than when they were saved."""
    for group, lr, at in zip(schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True):
        group["lr"] = lr * at(schedule.last_epoch)


def groups(module: nn.Module, weight_decay: float, rates: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """Group the trainable parameters: those with weight decay; and biases, norms and embeddings, without decay.

    Parameters to which `rates` gives another learning rate are in further groups.
    """
    embeddings = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)}
    found: dict[tuple[float | None, bool], list[nn.Parameter]] = {}
    for name, each in module.named_parameters():
        if each.requires_grad:
            rate = next((rate for prefix, rate in (rates or {}).items() if name.startswith(prefix)), None)
            found.setdefault((rate, each.ndim > 1 and id(each) not in embeddings), []).append(each)
    ordered = sorted(found.items(), key=lambda item: (item[0][0] is not None, not item[0][1]))
    return [
        {"params": each, "weight_decay": weight_decay * decays, **({} if rate is None else {"lr": rate})}
        for (rate, decays), each in ordered
    ]


def factor(schedule: str, warmup: int, steps: int) -> Callable[[int], float]:
    """Return a function: step (from 0) -> factor on the learning rate: first a linear rise over `warmup` steps.

    Then `schedule` decides: constant stays at 1; linear and cosine (Loshchilov & Hutter 2017, eq. 5, without restarts)
    fall to 0; inverse_sqrt falls with the square root of the step (Vaswani et al. 2017, eq. 3).
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
