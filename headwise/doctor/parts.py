"""The parts of a module that compute attention: where the whole cannot be called, each is examined on its own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from headwise.doctor.calling.example import Example
from headwise.doctor.lines import source_of

_ATTENDS = ("softmax", "scaled_dot_product_attention", "multiheadattention(")


def attending(module: nn.Module) -> dict[str, nn.Module]:
    """By their paths, one part of each class, not of torch's own, whose code has a softmax or an attention of torch."""
    found: dict[type[nn.Module], tuple[str, nn.Module]] = {}
    for path, part in module.named_modules():
        own = [base for base in type(part).__mro__ if not base.__module__.startswith(("torch.", "builtins"))]
        texts = [source.text.lower() for source in map(source_of, own) if source is not None]
        if path and any(word in text for word in _ATTENDS for text in texts):
            found.setdefault(type(part), (path, part))
    return dict(found.values())


def calls_in(parts: Mapping[str, nn.Module], run: Callable[[], object]) -> dict[str, Example]:
    """How each of some modules, by their paths, is first called while `run` runs: a copy of (args, kwargs)."""
    found: dict[str, Example] = {}

    def keep(path: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            with contextlib.suppress(Exception):  # an argument that cannot be copied
                if path not in found:
                    found[path] = copy.deepcopy((args, kwargs))

        return hook

    with contextlib.ExitStack() as hooks:
        for path, part in parts.items():
            hooks.callback(part.register_forward_pre_hook(keep(path), with_kwargs=True).remove)
        run()
    return found


def takes_heads(call: Example) -> bool:
    """Whether a part is given heads [B, H, N, D], or anything else that is no sequence [B, N, M] as a search tries."""
    args, kwargs = call
    first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
    return first is not None and first.ndim != 3
