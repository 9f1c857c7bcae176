"""Reads and checks the arguments of a module's call, for one example, and the names of its tokens."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headwise.call import fit_mask
from headwise.errors import ArgumentError, ShapeError, WorksheetError, brief
from headwise.masks import Mask
from headwise.nn.inputs import with_real
from headwise.nn.real import check_real
from headwise.worksheet import multi_head
from headwise.worksheet.builder import FITS, LONGEST, Builder
from headwise.worksheet.description import Axis, Matrix, numbered
from headwise.worksheet.multi_head import Reading

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
MASKS = ("mask", "memory_mask")
SEQUENCES = ("query", "key", "value")


class Given:
    """The arguments of the module's call, by name, for one example, and the names of its tokens."""

    def __init__(
        self,
        module: nn.Module,
        inputs: Inputs,
        arguments: Mapping[str, Any],
        tokens: Sequence[str] | None,
        memory_tokens: Sequence[str] | None,
    ) -> None:
        positional: Sequence[Any] = ()
        if isinstance(inputs, Mapping):
            arguments = {**inputs, **arguments}
        else:
            positional = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        try:
            bound = inspect.signature(module.forward).bind(*positional, **arguments)
        except TypeError as error:
            raise ArgumentError(
                f"inputs: {type(module).__name__} cannot be called with these arguments: {error}"
            ) from error
        for name in ("cache", "record"):
            if bound.arguments.pop(name, None):
                raise WorksheetError(f"{name}: a worksheet shows a single call; remove {name}=")
        self.batched = {name: _batched(name, value) for name, value in bound.arguments.items() if value is not None}
        self.batched.pop("path", None)  # both paths of multi-head latent attention give the same numbers
        first = self.batched.get("query", self.batched.get("input_ids"))
        second = self.batched.get("key")
        for name, sequence in (("query", first), ("key", second)):
            if sequence is not None and (not isinstance(sequence, Tensor) or sequence.ndim < 2 or not sequence.numel()):
                received = list(sequence.shape) if isinstance(sequence, Tensor) else type(sequence).__name__
                raise ShapeError(f"{name}: expected a tensor [1, S, M] of at least one token. Received: {received}")
        assert isinstance(first, Tensor)
        self.tokens = _named("tokens", tokens, first.shape[1], "token")
        self.memory_tokens = (
            self.tokens
            if second is first or second is None
            else _named("memory_tokens", memory_tokens, second.shape[1], "memory")
        )
        if memory_tokens is not None and second is None:
            raise ArgumentError(
                "memory_tokens needs a second input sequence. Received: one sequence. Pass the memory in inputs"
            )

    def get(self, name: str) -> Any:
        """Return one argument without its batch axis; None if it was not passed."""
        value = self.batched.get(name)
        if name == "key" and value is self.batched.get("query"):
            return None
        return value[0] if isinstance(value, Tensor) and name not in (*MASKS, "position_ids") else value

    def sequence(self, b: Builder, which: str, name: str, letter: str, *, dim: int) -> Matrix:
        """Add an input sequence ("query" or "key") as a matrix `name`, and return it.

        Its columns have the letter M if there are `dim` of them, the width of the module; otherwise Mₖ.
        """
        x = self.get(which)
        tokens = self.tokens if which == "query" else self.memory_tokens
        return b.given(
            "input", name, x, Axis(letter, tokens), numbered("M" if x.shape[-1] == dim else "Mₖ", x.shape[-1])
        )

    def reading(
        self,
        module: Any,
        mask: str = "mask",
        real: str = "real",
        *,
        memory: Tensor | None = None,
        query_real: Tensor | None = None,
    ) -> Reading:
        """Return the mask of a call and the positions of its tokens, as a `Reading`.

        `memory` [K, M] is the second sequence, if there is one. `query_real` [Q]: True = a real query.
        """
        query = self.batched["query"]
        keys = query.shape[1] if memory is None else memory.shape[0]
        heads = getattr(module, "num_heads", None)
        allowed = dense(self.get(mask), self.batched.get(real), query, heads, keys)
        scheme = getattr(module, "positions", None)
        tokens = self.get(real)
        ids = self.get("position_ids")
        query_ids = multi_head.make_ids(scheme, query.shape[1], tokens if memory is None else query_real, ids)
        key_ids = query_ids if memory is None else multi_head.make_ids(scheme, keys, tokens, None)
        return Reading(allowed, query_ids, key_ids)


def dense(mask: Any, real: Tensor | None, query: Tensor, heads: int | None, keys: int) -> NDArray[np.bool_]:
    """Combine `mask` and `real` (True = a real token) into an array [H or 1, Q, K], True = may attend."""
    together = with_real(mask, check_real(real, None, keys))
    if together is None:
        return np.ones((1, query.shape[1], keys), dtype=bool)
    found = fit_mask(together, query, heads, query.shape[1], keys).to_bool(query.shape[1], keys, device="cpu")
    return found[0].numpy()


def check_width(name: str, width: int) -> None:
    """Raise WorksheetError for a model that is too wide; this is checked before its weights are read."""
    if width > LONGEST:
        raise WorksheetError(
            f"{name} is too wide to follow: expected a width of at most {LONGEST}. Received: {width}. {FITS}"
        )


def _batched(name: str, value: Any) -> Any:
    """Return an argument of `forward` on the CPU, with a batch of one example; floating-point numbers as float64."""
    if isinstance(value, Mask):
        return value.to("cpu")
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    if value.is_floating_point():
        value = value.double()
    if name in (*MASKS, "position_ids"):
        return value
    wanted = 3 if name in SEQUENCES else 2
    value = value[None] if value.ndim == wanted - 1 else value
    if value.ndim == wanted and value.shape[0] != 1:
        raise ShapeError(
            f"{name}: expected one example, [S, …] or [1, S, …]. Received: {list(value.shape)}. Pass one: {name}[:1]"
        )
    return value


def _named(name: str, names: Sequence[str] | None, count: int, default: str) -> tuple[str, ...]:
    """Return the names of `count` tokens: `names`, or for None numbered names such as "token 1"."""
    if count > LONGEST:
        raise WorksheetError(
            f"too many tokens to follow: expected at most {LONGEST} tokens. Received: {count} tokens. {FITS}"
        )
    if names is None:
        return tuple(f"{default} {i}" for i in range(1, count + 1))
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise ArgumentError(f"{name}: expected {count} strings, one for each token. Received: {brief(names)}")
    if len(names) != count:
        raise ArgumentError(f"{name}: expected {count} names, one for each token. Received: len({name})={len(names)}")
    return tuple(names)
