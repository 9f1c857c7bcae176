"""The parts of a module that compute attention: where the whole cannot be called, each is examined on its own."""

from __future__ import annotations

import re

from torch import nn

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
