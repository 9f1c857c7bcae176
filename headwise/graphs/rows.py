"""Finds real inputs of a graph: the arguments of a submodule while a task predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MOST = 4  # the maximum number of batches for the comparison


def collect_inputs(
    module: nn.Module, predict: Callable[[Any], object], rows: Any, most: int = MOST
) -> list[tuple[Tensor, ...]]:
    """Call `predict(rows)`, and return the tensors that `module` gets as positional arguments in its first calls.

    The prediction is aborted after `most` calls. The list has one tuple per call; it is empty if `rows` is None.
    """
    found: list[tuple[Tensor, ...]] = []
    if rows is None:
        return found

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        found.append(tuple(each.detach().cpu() for each in args if isinstance(each, Tensor)))
        if len(found) == most:
            raise _Enough

    hook = module.register_forward_pre_hook(keep)
    try:
        with torch.no_grad():
            predict(rows)
    except _Enough:
        pass
    finally:
        hook.remove()
    return found


class _Enough(Exception):  # noqa: N818 (not an error)
    pass
