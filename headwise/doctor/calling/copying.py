"""A copy of the user's module for trials."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from headwise.errors import DoctorError


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module. Tensors that it keeps from an earlier call, such as weights, are detached from autograd.

    Raises:
        DoctorError: the module cannot be copied.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(module, dict(memo))
    except Exception as error:
        with contextlib.suppress(Exception), _keras_as_torch():
            return copy.deepcopy(module, memo)
        raise DoctorError(
            f"{type(module).__name__} cannot be copied, so trials would change it; expected a module that "
            f"copy.deepcopy accepts. Received: {type(error).__name__}: {error}"
        ) from error


@contextlib.contextmanager
def _keras_as_torch() -> Iterator[None]:
    """Use deepcopy's default for Keras layers: Keras copies a layer by saving and loading it, which needs its class.

    This is the second attempt, because a layer that is not built yet keeps methods bound to the original.
    """
    saveable = getattr(sys.modules.get("keras.src.saving.keras_saveable"), "KerasSaveable", None)
    if saveable is None or "__reduce__" not in vars(saveable):
        yield
        return
    before = saveable.__reduce__
    del saveable.__reduce__
    try:
        yield
    finally:
        saveable.__reduce__ = before
