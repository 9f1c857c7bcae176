"""Finds the blocks of a model, and replaces what they read: the residual stream before each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from headwise.errors import ArgumentError

Blocks = Mapping[str, nn.Module]  # path -> module


def find_blocks(model: nn.Module, sites: Iterable[str]) -> dict[str, nn.Module]:
    """Find the outermost modules of an nn.ModuleList or nn.Sequential with one of the `sites` of attention inside.

    Raises ArgumentError if there is none.
    """
    lists = [each for each in model.modules() if isinstance(each, (nn.ModuleList, nn.Sequential))]
    members = {id(child) for each in lists for child in each.children()}
    paths = list(sites)
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():  # from the outside in
        inside = any(path == name or path.startswith(f"{name}.") for path in paths)
        if id(module) in members and inside and not any(name.startswith(f"{other}.") for other in found):
            found[name] = module
    if not found:
        raise ArgumentError(
            f"expected blocks with attention in an nn.ModuleList or nn.Sequential. Received: {type(model).__name__}"
        )
    return found


@contextlib.contextmanager
def replacing_inputs(blocks: Blocks, f: Callable[[Tensor, str], Tensor]) -> Iterator[None]:
    """Replace the first input of each block, the residual stream [B, N, M], by f(a copy of it, path of the block).

    Raises ArgumentError, while the model runs, for a block that reads no such tensor first.
    """

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
        def replace(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            first = args[0] if args else None
            if not (isinstance(first, Tensor) and first.ndim == 3):
                raise ArgumentError(f"expected that {name} reads the residual stream first. Received: {type(first)}")
            return (f(first.clone(), name), *args[1:])

        return replace

    with contextlib.ExitStack() as hooks:
        for name, module in blocks.items():
            hooks.enter_context(module.register_forward_pre_hook(hook(name)))
        yield
