"""Makes the model of a task without its weights, which are in a file for another runtime."""

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
    """A context, in which new models get parameters without storage; such parameters must not be read."""

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        return None if parameter is None else nn.Parameter(parameter.to("meta"), requires_grad=False)

    hook = register_module_parameter_registration_hook(without_memory)  # type: ignore[arg-type]
    with hook, NoInitialisation():
        yield


def stand_in(model: nn.Module) -> None:
    """Replace parameters by CPU tensors of the same shapes, expanded from a single NaN, so any use gives NaN.

    Unlike on the meta device, tensors that are created on `parameter.device` have values.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            number = torch.full((), math.nan, dtype=parameter.dtype)
            setattr(module, name, nn.Parameter(number.expand(parameter.shape), requires_grad=False))
