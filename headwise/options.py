"""The options of an attention call: the arguments besides queries, keys, values and mask. Each is defined here.

    s = scale · q kᵀ;   s = softcap · tanh(s / softcap);   s += bias - slope · |i + K - Q - j|
    s = -inf where the mask forbids
    A = exp(s - lse),   lse = log(Σ exp(s) + exp(sink));   out = dropout(A) v

To add an option: write a field here with its check, add the option to the signature of `attention` and to
`Scores.from_products`, and its name to `OPTIONS` of everything that supports it: kernels, statistics, the page. All
others refuse calls with this option.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.shapes import check_device
from headwise.tracing import is_traced

Index = slice | Tensor
EVERY = slice(None)


def check_bias(bias: Any, q: Tensor, k_len: int) -> Tensor | None:
    """Return `bias` if it is None or a float tensor on q's device that broadcasts to [B, H, Q, K]; else raise an error.

    The error is a ShapeError or a DtypeError.
    """
    if bias is None:
        return None
    if not isinstance(bias, Tensor):
        raise DtypeError(
            f"bias must be a float tensor that broadcasts to [B, H, Q, K]. Received: bias={type(bias).__name__}"
        )
    if not bias.is_floating_point():
        hint = ". A bool mask goes in mask=" if bias.dtype == torch.bool else ""
        raise DtypeError(f"bias must be a float tensor, added to the scores. Received: bias={bias.dtype}{hint}")
    check_device("bias", bias.device, q)
    target = (*q.shape[:3], k_len)
    shape = (1,) * (4 - bias.ndim) + tuple(bias.shape)
    if len(shape) != 4 or any(size not in (1, wanted) for size, wanted in zip(shape, target, strict=True)):
        raise ShapeError(f"bias must broadcast to [B, H, Q, K] = {list(target)}. Received: bias={list(bias.shape)}")
    return bias


def check_scale(scale: float | None, q: Tensor | None = None, k_len: int | None = None) -> float | None:
    """Return `scale` if it is finite, 1/√D for None; else raise ArgumentError. DtypeError if it needs a gradient."""
    if scale is None:
        return None if q is None else q.shape[-1] ** -0.5
    if isinstance(scale, Tensor) and scale.requires_grad:
        raise DtypeError("scale must be a number, which gets no gradient. Received: scale=Tensor. Multiply q by it")
    _check("scale", scale, lambda x: -math.inf < x < math.inf, "a finite number, or None for 1/sqrt(D)")
    return float(scale)


def check_softcap(
    softcap: float | Tensor | None, q: Tensor | None = None, k_len: int | None = None
) -> float | Tensor | None:
    """Return `softcap` if it is None or finite and above 0; else raise ArgumentError. If trained it stays a tensor."""
    if softcap is None:
        return None
    trained = isinstance(softcap, Tensor) and softcap.requires_grad and torch.is_grad_enabled()
    if not (trained and is_traced()):  # (the test would read its value)
        _check("softcap", softcap, lambda x: 0.0 < x < math.inf, "a finite number above 0, or None")
    return softcap.reshape(()) if isinstance(softcap, Tensor) and trained else float(softcap)


def check_slopes(slopes: Any, q: Tensor, k_len: int) -> Tensor | None:
    """Return `slopes` if it is None or a float tensor [H] on q's device; else raise ShapeError or DtypeError."""
    return _check_heads("slopes", "slope", slopes, q)


def check_sinks(sinks: Any, q: Tensor, k_len: int) -> Tensor | None:
    """Return `sinks` if it is None or a float tensor [H] on q's device; else raise ShapeError or DtypeError."""
    return _check_heads("sinks", "logit", sinks, q)


def _check_heads(name: str, what: str, x: Any, q: Tensor) -> Tensor | None:
    if x is None:
        return None
    if not isinstance(x, Tensor) or not x.is_floating_point():
        received = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise DtypeError(f"{name} must be a float tensor [H], one {what} a query head. Received: {name}={received}")
    if x.shape != (q.shape[1],):
        raise ShapeError(
            f"{name} must be [H] = [{q.shape[1]}], one {what} a query head. Received: {name}={list(x.shape)}"
        )
    check_device(name, x.device, q)
    return x


def check_dropout(dropout: float, q: Tensor | None = None, k_len: int | None = None) -> float:
    """Return `dropout` if it is a probability below 1; else raise ArgumentError. DtypeError if it needs a gradient."""
    if not isinstance(dropout, float) and isinstance(dropout, Tensor) and dropout.requires_grad:
        raise DtypeError("dropout must be a number, which gets no gradient. Received: dropout=Tensor")
    _check("dropout", dropout, lambda x: 0.0 <= x < 1.0, "a probability in [0, 1)")
    return float(dropout)


def _check(name: str, value: Any, is_valid: Callable[[Any], Any], expected: str) -> None:
    try:
        valid = bool(is_valid(value))
    except (TypeError, RuntimeError):  # a string; a tensor of several numbers
        valid = False
    if not valid:
        raise ArgumentError(f"{name} must be {expected}. Received: {name}={value!r}")


@dataclasses.dataclass(frozen=True)
class Option:
    """The check of an option, and the dimensions of its tensor, such as "BHQK"; "" = the option is a number."""

    check: Callable[..., Any]
    dims: str = ""
    trained: bool = False  # whether a number may be a tensor [] that gets a gradient


def _declare(check: Callable[..., Any], dims: str = "", since: int = 1, *, trained: bool = False) -> dict[str, Any]:
    return {
        "option": Option(check, dims, trained),
        "broadcasts": len(dims) > 1,
        "since": since,
    }  # (`headwise.records.saving`)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Options:
    """The checked options of a call. The default of an option changes nothing."""

    #: added to the scores; broadcasts to [B, H, Q, K]
    bias: Tensor | None = dataclasses.field(default=None, metadata=_declare(check_bias, "BHQK"))
    #: ALiBi: one slope per head, [H], that lowers the scores by the distance of query and key
    slopes: Tensor | None = dataclasses.field(default=None, metadata=_declare(check_slopes, "H", since=4))
    #: factor on q kᵀ
    scale: float = dataclasses.field(default=1.0, metadata=_declare(check_scale))
    #: bound on the scores, by tanh; a tensor [] if it is trained
    softcap: float | Tensor | None = dataclasses.field(default=None, metadata=_declare(check_softcap, trained=True))
    #: learned sinks: one logit per head, [H]
    sinks: Tensor | None = dataclasses.field(default=None, metadata=_declare(check_sinks, "H"))
    #: probability with which a weight is dropped
    dropout: float = dataclasses.field(default=0.0, metadata=_declare(check_dropout))

    def options(self) -> dict[str, Any]:
        """Return all options by name."""
        return {name: getattr(self, name) for name in OPTIONS}

    def used_options(self) -> list[str]:
        """List the options that change something. `scale`, which every call has, is not among them."""
        return [name for name, default in _DEFAULTS if _changes(getattr(self, name), default)]

    def beyond(self, known: Collection[str]) -> str | None:
        """Return the first option that changes something and is not in `known`; None if there is none.

        Code that computes scores or weights without `Scores` lists the options that it supports in an `OPTIONS`, and
        refuses calls with another option.
        """
        return next((name for name in self.used_options() if name not in known), None)

    def option_tensors(self) -> dict[str, Tensor]:
        """Return the options that are tensors, by name; a trained number is a tensor, too."""
        return {name: x for name in TENSORS if (x := getattr(self, name)) is not None and isinstance(x, Tensor)}

    def detached_options(self) -> dict[str, Any]:
        """Return all options by name, without gradients."""
        found = {name: x.detach() for name, x in self.option_tensors().items()}
        return {**self.options(), **{name: x if OPTIONS[name].dims else x.item() for name, x in found.items()}}

    def take_options(self, index: dict[str, Index]) -> dict[str, Any]:
        """Cut the options to a part of the matrix; `index` says which, by dimension. Dimensions of size 1 are kept."""
        cut = {name: _cut(x, OPTIONS[name].dims, index) for name, x in self.option_tensors().items()}
        return {**self.options(), **cut}


class OptionArguments(TypedDict, total=False):
    """The options as keyword arguments of `attention` and `plan`."""

    bias: Tensor | None
    slopes: Tensor | None
    scale: float | None
    softcap: float | Tensor | None
    sinks: Tensor | None
    dropout: float


OPTIONS: dict[str, Option] = {field.name: field.metadata["option"] for field in dataclasses.fields(Options)}
TENSORS = [name for name, option in OPTIONS.items() if option.dims or option.trained]
_OPTIONAL = {field.name for field in dataclasses.fields(Options) if field.default is None}
_DEFAULTS = [(field.name, field.default) for field in dataclasses.fields(Options) if field.name != "scale"]


def check_options(given: Mapping[str, Any], q: Tensor, k_len: int) -> dict[str, Any]:
    """Check the options, and return the arguments for `Options`.

    Raises ShapeError, DtypeError or ArgumentError, naming the argument.
    """
    return {
        name: None if value is None and name in _OPTIONAL else OPTIONS[name].check(value, q, k_len)
        for name, value in given.items()
    }


def _changes(x: Any, default: Any) -> bool:
    return x is not default and (default is None or bool(x != default))  # (a tensor compared with None takes long)


def _cut(x: Tensor, dims: str, index: dict[str, Index]) -> Tensor:
    """Cut a tensor, whose dimensions have the letters `dims`, to `index` (by letter).

    Dimensions of size 1, and leading dimensions that the tensor lacks, are not cut.
    """
    x = x[(None,) * (len(dims) - x.ndim)]
    for axis, dim in enumerate(dims):
        part = index.get(dim, EVERY)
        if x.shape[axis] > 1 and not (isinstance(part, slice) and part == EVERY):
            x = x[(EVERY,) * axis + (part,)]
    return x
