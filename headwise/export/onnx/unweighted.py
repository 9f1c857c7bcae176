"""Makes the model of a task without weights in PyTorch, because another runtime reads the weights from its own file."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from headwise.models.bert_encoder import NoInitialisation


@contextlib.contextmanager
def unweighted() -> Iterator[None]:
    """Return a context inside which new models get parameters without storage; nothing may read such parameters."""

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        return None if parameter is None else nn.Parameter(parameter.to("meta"), requires_grad=False)

    hook = register_module_parameter_registration_hook(without_memory)  # type: ignore[arg-type]
    with hook, NoInitialisation():
        yield


def stand_in(model: nn.Module) -> None:
    """Replace each parameter by a CPU tensor of the same shape, expanded from a single NaN: any use of it gives NaN.

    Parameters on the meta device would need no memory either, but then tensors that the model creates on
    `parameter.device` would have no values.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            number = torch.full((), math.nan, dtype=parameter.dtype)
            setattr(module, name, nn.Parameter(number.expand(parameter.shape), requires_grad=False))
