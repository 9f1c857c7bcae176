"""A copy of anybody's module, to try things out on."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from headwise.errors import DoctorError


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module. What it keeps of an earlier call (attention weights, say) is cut off from autograd.

    Raises:
        DoctorError: it cannot be copied.
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
            f"{type(module).__name__} cannot be copied, so it cannot be tried out without changing it: "
            f"{type(error).__name__}: {error}"
        ) from error


@contextlib.contextmanager
def _keras_as_torch() -> Iterator[None]:
    """Keras copies its layers by saving and loading them, and must know their class for it; torch copies what is there.

    It is the second choice: a layer that is not built yet keeps methods that are bound to the original.
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
