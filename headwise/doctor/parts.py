"""The parts of a module that compute attention: where the whole cannot be called, each is examined on its own."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from headwise.doctor.source import source_of

_ATTENDS = re.compile(r"softmax|scaled_dot_product_attention|MultiheadAttention\(", re.IGNORECASE)


def attending(module: nn.Module) -> dict[str, nn.Module]:
    """By their paths, one part of each class, not of torch's own, whose code has a softmax or an attention of torch."""
    found: dict[type[nn.Module], tuple[str, nn.Module]] = {}
    for path, part in module.named_modules():
        if path and attends(type(part)):
            found.setdefault(type(part), (path, part))
    return dict(found.values())


def attends(kind: type[nn.Module]) -> bool:
    """Whether the code of a class, which is not torch's own, has a softmax or an attention of torch."""
    own = [base for base in kind.__mro__ if not base.__module__.startswith(("torch.", "builtins"))]
    sources = (source_of(base) for base in own)
    return any(_ATTENDS.search(source.text) for source in sources if source is not None)


def calls_in(
    whole: nn.Module, paths: Iterable[str], run: Callable[[], object]
) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """How parts are called while `run` runs the whole: those that are given heads [B, H, N, D], or anything else that a
    search would take for a sequence [B, N, M].
    """
    found: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def keep(path: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
            if first is not None and first.ndim != 3:
                with contextlib.suppress(Exception):  # an argument that cannot be copied
                    found.setdefault(path, copy.deepcopy((args, kwargs)))

        return hook

    hooks = [whole.get_submodule(path).register_forward_pre_hook(keep(path), with_kwargs=True) for path in paths]
    run()
    for hook in hooks:
        hook.remove()
    return found
