"""Facts about a module that are stated by hand where the doctor does not find them out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from headwise.doctor.calling.mask_input import Form
from headwise.errors import ArgumentError

Takes = Literal["self", "memory", "qkv"]


@dataclasses.dataclass(frozen=True)
class Spec:
    """Facts about a module that are stated by hand. Whatever is None is found out.

    >>> Spec(takes="memory", roles={"a": "query", "b": "memory"}, mask="forbidden")
    >>> Spec.of({"width": 64, "heads": 8})                              # from a JSON file, say
    """

    takes: Takes | None = None  # f(x); f(x, memory); f(q, k, v)
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)  # argument of forward -> role
    # Passed to every call of forward as they are.
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batch_first: bool | None = None
    width: int | None = None
    key_width: int | None = None
    value_width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    mask: Form | None = None  # the meaning of the mask of cells
    mask_shape: str | None = None  # in letters: "BQK", "B1QK", "(BH)QK"
    padding: Form | None = None  # the meaning of the padding mask
    padding_shape: str | None = None
    causal: bool | None = None  # whether it should be causal by itself
    window: int | None = None  # how many neighbours on each side it should attend to
    scale: float | None = None  # what the scores should be multiplied by
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)  # {"q": name, "k": ..., "v": ..., "o": ...}

    def __post_init__(self) -> None:
        for name, choices in (
            ("takes", ("self", "memory", "qkv")),
            ("mask", ("allowed", "forbidden", "additive")),
            ("padding", ("allowed", "forbidden", "additive")),
        ):
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise ArgumentError(f"spec: {name} must be one of {', '.join(choices)}. Received: {value!r}")
        for name in ("width", "key_width", "value_width", "heads", "kv_heads"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ArgumentError(f"spec: {name} must be a whole number of 1 or more. Received: {value!r}")

    @staticmethod
    def of(stated: Mapping[str, Any]) -> Spec:
        """A Spec from a mapping, such as that of a JSON file. Raises ArgumentError for an unknown name."""
        known = [field.name for field in dataclasses.fields(Spec)]
        unknown = sorted(set(stated) - set(known))
        if unknown:
            raise ArgumentError(f"spec: every name must be one of {', '.join(known)}. Received: {', '.join(unknown)}")
        return Spec(**stated)
