"""The tokens of the sequences that a model reads while it is edited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.text import Tokens, as_tokens

_SOURCE = ("input_ids", "inputs_ids", "ids")
_TARGET = ("decoder_input_ids",)


class Naming:
    """Names from what `tokens=` was given: a tokenizer, which then reads the model's own ids, or names.

    Args:
        tokens: an object with `convert_ids_to_tokens`; what `headwise.text.as_tokens` takes; {"source": ..., "target":
            ...} for an encoder-decoder; or None.
    """

    def __init__(self, tokens: Any) -> None:
        self._convert: Callable[[list[int]], list[str]] | None = getattr(tokens, "convert_ids_to_tokens", None)
        self._source: list[Tokens] | None = None
        self._target: list[Tokens] | None = None
        self._ids: dict[str, Tensor] = {}
        if tokens is None or self._convert is not None:
            return
        if isinstance(tokens, dict) and set(tokens) <= {"source", "target"}:
            self._source, self._target = (
                None if (x := tokens.get(name)) is None else as_tokens(x) for name in ("source", "target")
            )
        else:
            self._source = as_tokens(tokens)

    def read(self, module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """A forward pre-hook of the model: remember its ids."""
        if self._convert is None:
            return
        found = {
            "source": next((kwargs[name] for name in _SOURCE if isinstance(kwargs.get(name), Tensor)), None),
            "target": next((kwargs[name] for name in _TARGET if isinstance(kwargs.get(name), Tensor)), None),
        }
        if found["source"] is None and args and isinstance(args[0], Tensor) and not args[0].is_floating_point():
            found["source"] = args[0]
        self._ids.update({name: ids for name, ids in found.items() if ids is not None and ids.ndim == 2})

    def of_sequence(self, site: str, padding: Sequence[int]) -> list[Tokens] | None:
        """The tokens of the sequence that a layer with self-attention reads, from the first real one."""
        decodes = any("decoder" in part for part in site.split("."))
        has_target = self._target is not None or "target" in self._ids
        return self._cut("target" if decodes and has_target else "source", padding)

    def of_source(self, padding: Sequence[int]) -> list[Tokens] | None:
        """Those of the keys of cross-attention."""
        return self._cut("source", padding)

    def _cut(self, side: str, padding: Sequence[int]) -> list[Tokens] | None:
        if self._convert is not None:
            ids = self._ids.get(side)
            if ids is None or len(ids) != len(padding):
                return None
            rows = [row[start:] for row, start in zip(ids.tolist(), padding, strict=True)]
            return as_tokens([[str(name) for name in self._convert(row)] for row in rows])
        given = self._source if side == "source" else self._target
        if given is None:
            return None
        if len(padding) % len(given):
            raise ArgumentError(f"tokens: the batch has {len(padding)} examples. Received: tokens of {len(given)}")
        times = len(padding) // len(given)
        return [given[b // times].take(range(start, len(given[b // times].ids))) for b, start in enumerate(padding)]
