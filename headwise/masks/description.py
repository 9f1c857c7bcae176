"""A mask as plain data: a tree that JSON can hold, and the tensors that it names.

Files of records store masks in this form.

    {"kind": "and", "parts": [{"kind": "band", "left": null, "right": 0, "offset": 0},
                              {"kind": "padding_lengths", "lengths": "masks.0.lengths"}]}

A tree is data and never code. The "kind" names a class of `KINDS`, and the other entries are the fields that the class
declares. A mask without a kind (`from_predicate`, or a class outside of headwise) is described by its answers instead:
one bit per pair of query and key, evaluated some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.cellwise import answers
from headwise.masks.fields import Source, received
from headwise.masks.mask import KINDS, Combined, Mask

Keep = Callable[[str, Tensor], str]  # (description, tensor) -> the name under which the tensor is kept
Find = Callable[[str], Tensor]  # the reverse; raises a HeadwiseError for an unknown name

MAX_DEPTH = 32  # of & in | in & …: a mask that is nested deeper is described by its answers


def describe(mask: Mask, q_len: int, k_len: int, keep: Keep) -> dict[str, Any]:
    """Return the tree that describes a mask aligned to these lengths. `keep` stores a tensor and returns its name."""

    def tree(mask: Mask, depth: int) -> dict[str, Any]:
        if mask.kind is None or (isinstance(mask, Combined) and not depth):
            mask = answers(mask, q_len, k_len)
        return {"kind": mask.kind} | {name: data(name, getattr(mask, name), depth) for name in mask.declared}

    def data(name: str, value: Any, depth: int) -> Any:
        if isinstance(value, tuple):
            return [data(name, each, depth) for each in value]
        if isinstance(value, Mask):
            return tree(value, depth - 1)
        return keep(name, value) if isinstance(value, Tensor) else value

    return tree(mask, MAX_DEPTH)


def rebuild(tree: object, q_len: int, k_len: int, find: Find) -> Mask:
    """Make the mask that a tree describes, aligned to these lengths.

    Neither the tree nor the tensors are trusted: if anything in them is wrong, a MaskError says what it is.
    """
    return _mask(tree, find, MAX_DEPTH).aligned(q_len, k_len)


def _mask(tree: object, find: Find, depth: int) -> Mask:
    if not isinstance(tree, dict) or "kind" not in tree:
        raise MaskError(f"mask: expected a description. Received: {received(tree)}")
    kind, values = tree["kind"], {name: value for name, value in tree.items() if name != "kind"}
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None or values.keys() != cls.declared.keys():
        raise MaskError(f"mask: expected one of {', '.join(KINDS)}, and its fields. Received: {received(kind)}")
    if issubclass(cls, Combined) and not depth:
        raise MaskError(f"mask: nested deeper than {MAX_DEPTH}")
    inner = Source(find, lambda part: _mask(part, find, depth - 1))
    return cls(
        **{name: field.read(values[name], f"mask: {kind}: {name}", inner) for name, field in cls.declared.items()}
    )
