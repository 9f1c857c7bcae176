"""Finds the texts of the tokens that a model reads while it is edited, so that edits can select tokens by text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwise.edits.inputs import Inputs
from headwise.errors import ArgumentError
from headwise.text import Tokens, as_tokens

UNKNOWN = -1  # the id of a token that was read before the edits began


class Naming:
    """Gives the texts ("names") of tokens, from the argument `tokens=` of `headwise.edit`.

    The argument has the texts themselves, or is a tokenizer, which decodes the ids that modules get.

    Args:
        tokens: an object with `convert_ids_to_tokens`; a value for `headwise.text.as_tokens`; {"source": ..., "target":
            ...} for an encoder-decoder; or None.
    """

    def __init__(self, tokens: Any) -> None:
        self._tokenizer: Any = tokens if hasattr(tokens, "convert_ids_to_tokens") else None
        self._given: dict[str, list[Tokens]] = {}
        self._last: tuple[list[list[int]], list[Tokens]] | None = None  # kept, as all layers of a model read these ids
        if tokens is None or self._tokenizer is not None:
            return
        if isinstance(tokens, dict) and tokens.keys() <= {"source", "target"}:
            self._given = {side: as_tokens(x) for side, x in tokens.items() if x is not None}
        else:
            self._given = {"source": as_tokens(tokens)}

    @property
    def reads_ids(self) -> bool:
        """Whether a tokenizer makes the texts from ids."""
        return self._tokenizer is not None

    def names(self, rows: list[list[int]]) -> list[Tokens]:
        """Decode rows of ids by the tokenizer to named tokens; an `UNKNOWN` id becomes "…"."""
        if self._last is not None and self._last[0] == rows:
            return self._last[1]
        named = []
        for row in rows:
            known = iter(self._tokenizer.convert_ids_to_tokens([i for i in row if i != UNKNOWN]))
            named.append(["…" if i == UNKNOWN else str(next(known)) for i in row])
        self._last = rows, as_tokens(named)
        return self._last[1]

    def normal(self, text: str) -> str:
        """Normalise a text as the tokenizer does: without capitals or accents if the tokenizer drops them."""
        normalizer = getattr(getattr(self._tokenizer, "backend_tokenizer", None), "normalizer", None)
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def given(
        self, decodes: bool, padding: Sequence[int], lengths: Sequence[int], total: int, inputs: Inputs
    ) -> list[Tokens] | None:
        """Return the named tokens of each example, without padding, if `tokens=` has the texts themselves; else None.

        Args:
            decodes: whether the decoder of an encoder-decoder reads the sequence ("target"); else it is the "source".
            padding, lengths: for each example, the number of padding tokens before it, and of real tokens.
            total: the number of tokens of each row, padding included.
            inputs: knows whether `generate` runs, which repeats examples for beams.
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
    """Repeat each row equally often, to `batch` rows in all: an example has several beams or generated sequences."""
    return [rows[b * len(rows) // batch] for b in range(batch)]
