"""A copy of the user's module for trials."""

from __future__ import annotations

import contextlib
import copy
import sys
import types
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
    originals = {id(part) for part in module.modules()}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
    try:
        known = dict(memo)
        found = copy.deepcopy(module, known)
        _rebind(found, known, originals)
        return found
    except Exception as error:
        with contextlib.suppress(Exception), _keras_as_torch():
            # A generator of seeds has a Python module among its attributes, which deepcopy refuses.
            modules = {id(x): x for x in list(sys.modules.values()) if isinstance(x, types.ModuleType)}
            return copy.deepcopy(module, memo | modules)
        raise DoctorError(
            f"{type(module).__name__} cannot be copied, so trials would change it; expected a module that "
            f"copy.deepcopy accepts. Received: {type(error).__name__}: {error}"
        ) from error


def at_rest(module: nn.Module) -> nn.Module:
    """A copy in eval mode, whatever its own `train` returns."""
    found = copied(module)
    found.eval()
    return found


def _rebind(module: nn.Module, memo: dict[int, Any], originals: set[int]) -> None:
    """Functions that a copy keeps, such as a wrapper around forward, refer to it: deepcopy leaves them as they are."""
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, types.FunctionType):
                vars(part)[name] = _rebound(value, memo, originals)
            elif isinstance(value, dict) and name.endswith("_hooks"):
                for key, hook in value.items():
                    if isinstance(hook, types.FunctionType):
                        value[key] = _rebound(hook, memo, originals)


def _rebound(function: types.FunctionType, memo: dict[int, Any], originals: set[int]) -> types.FunctionType:
    """The function with the copies in place of the originals among what it closes over; itself if there is none."""
    contents = [_content(cell) for cell in function.__closure__ or ()]
    changed = []
    for x in contents:
        if isinstance(x, types.FunctionType) and x is not function:
            changed.append(_rebound(x, memo, originals))
        elif id(x) in originals or id(getattr(x, "__self__", None)) in originals or id(x) in memo:
            changed.append(copy.deepcopy(x, memo))
        else:
            changed.append(x)
    if all(one is two for one, two in zip(contents, changed, strict=True)):
        return function
    cells = tuple(types.CellType(x) if x is not _EMPTY else types.CellType() for x in changed)
    found = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    found.__kwdefaults__, found.__dict__ = function.__kwdefaults__, dict(function.__dict__)
    return found


_EMPTY = object()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _EMPTY


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
