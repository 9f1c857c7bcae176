"""Names the tokens of the sequences that a model reads while it is edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwise.edits.inputs import Inputs
from headwise.errors import ArgumentError
from headwise.text import Tokens, as_tokens

UNKNOWN = -1  # the id of a token that was read before the edits began


class Naming:
    """Names of tokens, from the argument `tokens=`: names, or a tokenizer, which reads the ids that modules are given.

    Args:
        tokens: an object with `convert_ids_to_tokens`; a value for `headwise.text.as_tokens`; {"source": ..., "target":
            ...} for an encoder-decoder; or None.
    """

    def __init__(self, tokens: Any) -> None:
        self._tokenizer: Any = tokens if hasattr(tokens, "convert_ids_to_tokens") else None
        self._given: dict[str, list[Tokens]] = {}
        self._last: tuple[list[list[int]], list[Tokens]] | None = None  # the layers of a model read the same ids
        if tokens is None or self._tokenizer is not None:
            return
        if isinstance(tokens, dict) and tokens.keys() <= {"source", "target"}:
            self._given = {side: as_tokens(x) for side, x in tokens.items() if x is not None}
        else:
            self._given = {"source": as_tokens(tokens)}

    @property
    def reads_ids(self) -> bool:
        """Whether names are made from ids, by a tokenizer."""
        return self._tokenizer is not None

    def names(self, rows: list[list[int]]) -> list[Tokens]:
        """The named tokens of these rows of ids."""
        if self._last is not None and self._last[0] == rows:
            return self._last[1]
        named = []
        for row in rows:
            known = iter(self._tokenizer.convert_ids_to_tokens([i for i in row if i != UNKNOWN]))
            named.append(["…" if i == UNKNOWN else str(next(known)) for i in row])
        self._last = rows, as_tokens(named)
        return self._last[1]

    def normal(self, text: str) -> str:
        """A text as the tokenizer normalises it: without capitals or accents if the tokenizer drops them."""
        normalizer = getattr(getattr(self._tokenizer, "backend_tokenizer", None), "normalizer", None)
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def given(
        self, decodes: bool, padding: Sequence[int], lengths: Sequence[int], total: int, inputs: Inputs
    ) -> list[Tokens] | None:
        """The tokens of each example, without padding, by the names that `tokens=` has; None without such names.

        `decodes`: whether the decoder reads the sequence ("target"); else it is the "source".
        """
        given = self._given.get("target" if decodes else "source")
        if given is None:
            return None
        repeats = len(given) == 1 or inputs.generating.run is not None  # beams, or several sequences of one prompt
        if len(given) != len(padding) and (len(padding) % len(given) or not repeats):
            raise ArgumentError(f"tokens: the batch has {len(padding)} examples. Received: tokens of {len(given)}")
        found = []
        for b, (one, start, length) in enumerate(zip(repeated(given, len(padding)), padding, lengths, strict=True)):
            count = len(one.ids)
            if count not in {total, length}:
                raise ArgumentError(
                    f"tokens: example {b} has {length} tokens, with padding {total}. Received: {count} names. A "
                    "tokenizer as tokens= reads the ids that the model is given"
                )
            found.append(one if count == length else one.take(range(start, count)))
        return found


def repeated(rows: Sequence[Any], batch: int) -> list[Any]:
    """One row for each of `batch`, where each of `rows` is repeated for its beams or its generated sequences."""
    return [rows[b * len(rows) // batch] for b in range(batch)]
