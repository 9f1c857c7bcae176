"""Makes `Tokens` from the output of a Hugging Face tokenizer, a list of names, or the patches of an image.

The output of a tokenizer does not contain its text. `as_tokens` gets the text as an argument, or rebuilds it from the
names of the tokens, so that labels are whole characters in both cases.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeGuard

from headwise.errors import ArgumentError, DtypeError
from headwise.text.frames import Frames
from headwise.text.groups import number_words
from headwise.text.labels import label, own_offsets
from headwise.text.rebuild import rebuild_from_names, rebuild_from_offsets, without_loose_bytes
from headwise.text.spelling import Spelling, is_sign, is_unknown
from headwise.text.tokens import Patches, Tokens

if TYPE_CHECKING:
    from tokenizers import Encoding

Text = str | tuple[str, str]  # a pair of texts for a tokenizer called with pairs
Span = tuple[int, int]


def as_tokens(value: Any, text: Text | Sequence[Text] | None = None) -> list[Tokens]:
    """Make one `Tokens` for each example of a batch.

    `value` is one of these, or a list with one of these for each example:

        tokenizer(texts, return_tensors="pt")       of a fast Hugging Face tokenizer; padding is kept as special tokens
        tokenizer.convert_ids_to_tokens(ids)        of any other tokenizer: a list of strings
        ["first", "second"]                         any names, shown unchanged
        Patches(14, 14)                             the patches of an image
        Frames(1500, 0.02)                          the frames of a sound, 20 ms each
        tokenizers.Encoding, Tokens

    `text` is the text that was encoded (or texts). With it, labels are cut out of the text, as `Tokenizer.encode` does,
    and show case, accents and unknown characters as written. For a tokenizer of pairs, it is (first, second).

    Without `text`, the text is rebuilt from the tokens: Ġ, ▁ and ## are interpreted, and bytes become characters.
    `offsets` then point into the rebuilt text. If a vocabulary has no spaces, each gap in the tokenizer's offsets is a
    space. A text encoded by GPT-2 or Llama 3 is rebuilt exactly, except perhaps for its first space.

    Two things cannot be known from names: the text behind an [UNK], and whether a name with Ā or a similar letter
    means that letter or a control character, if the whole text is ASCII. Pass `text` if that matters. Ids are -1 if
    only names are known.

    Raises:
        DtypeError: `value` has another type; the message says what to pass.
        ArgumentError: `value` is empty, or `text` is not the text of these tokens.
    """
    sources, sample_of = _examples(value)
    texts = _texts(text, sample_of)
    spelling = Spelling.of([name for name in _names(source) if not is_sign(name)] for source in sources)
    return [_tokens(source, each, spelling) for source, each in zip(sources, texts, strict=True)]


def _examples(value: Any) -> tuple[list[Any], list[int]]:
    """Return (the examples of a batch, for each example the index of its text). A long text may be several examples."""
    if hasattr(value, "input_ids") or (isinstance(value, dict) and "input_ids" in value):
        encodings = getattr(value, "encodings", None)
        if encodings is None:
            raise DtypeError(
                f"tokens: expected the output of a fast tokenizer. Received: {type(value).__name__} without encodings, "
                "of a slow tokenizer or a plain dict. Pass [tokenizer.convert_ids_to_tokens(ids) for ids in input_ids]"
            )
        samples = value.get("overflow_to_sample_mapping")
        return list(encodings), list(range(len(encodings)) if samples is None else map(int, samples))
    if _is_example(value):
        return [value], [0]
    received = type(value).__name__
    if isinstance(value, (list, tuple)):
        if not value:
            raise ArgumentError("tokens: expected at least one token or example. Received: an empty list")
        odd = next((each for each in value if not (_is_example(each) or (isinstance(each, list) and not each))), None)
        if odd is None:
            return list(value), list(range(len(value)))
        received = f"a list with {type(odd).__name__}"
    raise DtypeError(
        "tokens: expected the output of a fast tokenizer, Tokens, Patches, Frames or lists of strings. "
        f"Received: {received}. For ids, pass tokenizer.convert_ids_to_tokens(ids); for a text, tokenizer(text)"
    )


def _is_encoding(value: Any) -> TypeGuard[Encoding]:
    """Return whether a value is an Encoding of the package tokenizers, without importing that package."""
    loaded = sys.modules.get("tokenizers")
    return loaded is not None and isinstance(value, loaded.Encoding)


def _is_example(value: Any) -> bool:
    return (
        isinstance(value, (Tokens, Patches, Frames))
        or _is_encoding(value)
        or (isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(name, str) for name in value))
    )


def _texts(text: Text | Sequence[Text] | None, sample_of: list[int]) -> list[Text | None]:
    """Return the text of each example; None for every example if `text` is None."""
    if text is None:
        return [None] * len(sample_of)
    samples = max(sample_of) + 1
    one = isinstance(text, str) or (_is_pair(text) and isinstance(text, tuple) and samples == 1)
    given: list[Any] = [text] if one else list(text)
    if not all(isinstance(each, str) or _is_pair(each) for each in given):
        raise DtypeError("text: expected strings, or pairs of strings for a tokenizer called with pairs")
    if len(given) != samples:
        raise ArgumentError(f"text: expected one for each of the {samples} examples. Received: {len(given)} texts")
    return [given[sample] for sample in sample_of]


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(each, str) for each in value)


def _names(source: Any) -> list[str]:
    """Return the names of an example's tokens; [] for Tokens, Patches and Frames, whose names are not changed."""
    if isinstance(source, (Tokens, Patches, Frames)):
        return []
    return list(source if isinstance(source, (list, tuple)) else source.tokens)


def _tokens(source: Any, text: Text | None, spelling: Spelling) -> Tokens:
    names = _names(source)
    if not isinstance(source, (Tokens, Patches, Frames, list, tuple)):
        return _read_encoding(source, names, text, spelling)
    if text is not None:
        raise ArgumentError(
            "text: expected tokens=the output of a fast tokenizer, whose offsets point into it. "
            f"Received: {type(source).__name__}. Leave text out"
        )
    if isinstance(source, Tokens):
        return source
    return source.tokens() if isinstance(source, (Patches, Frames)) else _read_names(names, spelling)


def _read_encoding(encoding: Encoding, names: list[str], text: Text | None, spelling: Spelling) -> Tokens:
    # special_tokens_mask misses special tokens written in the text, and flags the whole second text of a pair.
    special = [word is None or is_sign(name) for word, name in zip(encoding.word_ids, names, strict=True)]
    sequences = encoding.sequence_ids
    firsts = [word for word, sequence in zip(encoding.word_ids, sequences, strict=True) if sequence == 0]
    after_first = 1 + max((word for word in firsts if word is not None), default=-1)
    word_ids = [
        None if word is None or sign else word + (after_first if sequence == 1 else 0)
        for word, sign, sequence in zip(encoding.word_ids, special, sequences, strict=True)
    ]
    if text is None:
        whole, offsets = rebuild_from_offsets(encoding, special, spelling)
    else:
        whole, offsets = _place(text, encoding, special, spelling)
    return _build(encoding.ids, names, whole, offsets, word_ids, special, spelling)


def _read_names(names: list[str], spelling: Spelling) -> Tokens:
    special = [is_sign(name) for name in names]
    text, offsets, begins = rebuild_from_names(names, special, spelling)
    if spelling.has_spaces and not spelling.spaces_are_marked:
        numbers = number_words(text, offsets, special)
    else:
        numbers = [count - 1 for count in accumulate(begins)]
    word_ids = [None if sign else number for number, sign in zip(numbers, special, strict=True)]
    return _build([-1] * len(names), names, text, offsets, word_ids, special, spelling)


def _build(
    ids: list[int],
    names: list[str],
    text: str,
    offsets: list[Span],
    word_ids: list[int | None],
    special: list[bool],
    spelling: Spelling,
) -> Tokens:
    offsets = own_offsets(names, offsets)
    return Tokens(
        ids=tuple(ids),
        labels=tuple(label(text, names, offsets, special, spelling)),
        offsets=tuple(offsets),
        special=tuple(special),
        text=without_loose_bytes(text),
        unknown=tuple(is_unknown(name) for name in names),
        word_ids=tuple(word_ids),
    )


def _place(text: Text, encoding: Encoding, special: list[bool], spelling: Spelling) -> tuple[str, list[Span]]:
    """Return (the text, a pair joined by a newline; the offset of each token in it).

    Raises ArgumentError if `text` is not the text that was encoded.
    """
    parts = [text] if isinstance(text, str) else list(text)
    sequences = encoding.sequence_ids
    if max((sequence for sequence in sequences if sequence is not None), default=0) >= len(parts):
        raise ArgumentError(
            "text: expected (first, second), because the tokenizer was called with pairs. Received: one string"
        )
    placed: list[Span] = []
    compared = alike = 0
    for name, (start, end), sign, sequence in zip(encoding.tokens, encoding.offsets, special, sequences, strict=True):
        part = parts[sequence or 0]
        read = part[start:end].strip()
        spelt = spelling.find_bytes(name).decode("utf-8", "replace").strip().removeprefix("##")
        if not sign and (end > len(part) or (read.isascii() and spelt.isascii() and spelt.isalnum())):
            compared += 1
            alike += end <= len(part) and read.casefold() == spelt.casefold()
        shift = len(parts[0]) + 1 if sequence == 1 else 0
        placed.append((start + shift, end + shift))
    if 2 * alike < compared:
        raise ArgumentError(
            "text: expected the text that the tokenizer was called with. Received: a text in which "
            f"{compared - alike} of {compared} tokens are not at their offsets. "
            "Leave it out if the tokenizer was called with pre-split words"
        )
    return "\n".join(parts), placed
