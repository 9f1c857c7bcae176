"""Joins the examples that all processes have of a batch, for losses that compare all examples of the batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from pytorch_lightning import LightningModule
from torch import Tensor
from torch.nn.functional import pad


def of_all_processes(module: LightningModule, x: Tensor) -> Tensor:
    """Gather the rows `x` of all processes, one after another, [N, ...]; in a training of one process return `x`.

    Processes may have different numbers of rows, and different sizes of the second dimension, which is padded with 0.
    The gradient of a row, summed over the losses of all processes, reaches the process of the row.
    """
    trainer = module._trainer
    if trainer is None or trainer.world_size == 1 or not (trainer.training or trainer.validating):
        return x
    sizes = [torch.empty(2, dtype=torch.int64, device=x.device) for _ in range(trainer.world_size)]
    torch.distributed.all_gather(sizes, torch.tensor(x.shape[:2], device=x.device))
    rows, width = torch.stack(sizes).amax(0).tolist()
    filled = pad(x, (0, width - x.shape[1], 0, rows - x.shape[0]))
    gathered: Tensor = _Gather.apply(filled)
    return torch.cat([share[: int(size[0])] for share, size in zip(gathered, sizes, strict=True)])


class _Gather(torch.autograd.Function):
    """Gathers the tensors [N, M] of all processes into one tensor [processes, N, M]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found = [torch.empty_like(x) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(found, x.contiguous())
        return torch.stack(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous()
        torch.distributed.all_reduce(grad)
        return grad[torch.distributed.get_rank()]
