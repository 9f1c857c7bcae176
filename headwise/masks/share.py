"""Cuts a mask to some examples and heads, for processes that share the examples or heads of a batch."""

from __future__ import annotations

import dataclasses
from typing import Any

from headwise.masks.cellwise import Predicate
from headwise.masks.fields import Parts, Table
from headwise.masks.mask import Mask


def cut_share(mask: Mask, examples: slice, heads: slice) -> Mask:
    """Cut `mask` to some examples and heads: example `examples.start` becomes example 0. The result is remembered."""
    if mask.batch is None and mask.heads is None:
        return mask
    bounds = (examples.start, examples.stop, heads.start, heads.stop)
    return mask.remember(("share", *bounds), lambda mask: _share(mask, {"B": examples, "H": heads}))


def _share(mask: Mask, index: dict[str, slice]) -> Mask:
    sizes = {"B": mask.batch, "H": mask.heads}
    if all(size is None or index[dim] == slice(0, size) for dim, size in sizes.items()):
        return mask
    if not mask.declared:  # a class outside of headwise: known only by its answers
        firsts = [index[dim].start if size is not None else 0 for dim, size in sizes.items()]
        counts = [index[dim].stop - index[dim].start if size is not None else None for dim, size in sizes.items()]

        def allows(b: Any, h: Any, q: Any, k: Any) -> Any:
            return mask.allows(b + firsts[0], h + firsts[1], q, k)

        return Predicate(allows, *counts)
    changed: dict[str, Any] = {}
    for name, declared in mask.declared.items():
        value = getattr(mask, name)
        if isinstance(declared, Parts):
            given = value if declared.several else (value,)
            parts = tuple(_share(part, index) for part in given)
            changed[name] = parts if declared.several else parts[0]
        elif isinstance(declared, Table):
            cut = tuple(
                index[dim] if dim in index and size > 1 else slice(None)
                for dim, size in zip(declared.dims, value.shape, strict=True)
            )
            changed[name] = value[cut]
    return dataclasses.replace(mask, **changed)
