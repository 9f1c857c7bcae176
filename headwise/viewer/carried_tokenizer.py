"""Describes a tokenizer for a page that reads texts itself, by `static/model/tokenizer.js`.

There a text is taken apart by JavaScript, whose Unicode is newer than that of the package tokenizers. So the page also
gets the tables of that package, and texts with a checksum of their ids, by which it tests itself.
"""

from __future__ import annotations

import functools
import json
import random
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

import tokenizers

from headwise.errors import ArgumentError
from headwise.text import Tokenizer

PROBES = 300
_KINDS = {"model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}


def carry_tokenizer(tokenizer: Tokenizer, *, signs: bool = True) -> dict[str, Any]:
    """Describe a BERT tokenizer for a page, as JSON data.

    `signs`: whether a special token in a text is read as such; False = as ordinary text, as tasks read it.

    Returns:
        "signs"; "settings": its tokenizer.json without the vocabulary; "names": the tokens in the order of their ids;
        "removed" and "alone": the characters that are left out, and that are words by themselves, as bounds of ranges;
        "probes": texts; "checksum": that of `names` and `probes` and how they are read.

    Raises:
        ArgumentError: a tokenizer of another kind: a page might read it differently.
    """
    settings = json.loads(tokenizer.backend.to_str())
    kinds = {part: (settings[part] or {}).get("type") for part in _KINDS}
    added = settings["added_tokens"]
    plain = all(each["special"] and not (each["normalized"] or each["lstrip"] or each["rstrip"]) for each in added)
    if kinds != _KINDS or not plain or not settings["post_processor"]:
        raise ArgumentError(
            "a page can carry a tokenizer of BERT: {expected}, special tokens around the text, and no other added "
            "tokens. Received: {received}; added: {added}",
            expected=", ".join(_KINDS.values()),
            received=", ".join(map(str, kinds.values())),
            added=", ".join(each["content"] for each in added) or "–",
        )
    vocabulary = settings["model"].pop("vocab") | {each["content"]: each["id"] for each in added}
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    removed, alone = _find_kinds(tokenizer)
    draw = random.Random(0)
    probes = [_draw(draw, names) for _ in range(PROBES)]
    described = {
        "signs": signs,
        "settings": settings,
        "names": names,
        "removed": removed,
        "alone": alone,
        "probes": probes,
    }
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.encode_special_tokens = not signs
    return {**described, "checksum": _sum_up(backend, [" ".join(names), *probes])}


def _find_kinds(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the characters that are left out, and those that are words by themselves: [first, end, first, end, …].

    JavaScript knows letters, numbers and spaces as Python does.
    """
    normalizer, splitter = tokenizer.backend.normalizer, tokenizer.backend.pre_tokenizer
    removed: list[int] = []
    alone: list[int] = []
    for code in range(sys.maxunicode + 1):
        if (kind := unicodedata.category(chr(code)))[0] in "MPS" or kind in ("Cc", "Cf", "Co"):
            normal = normalizer.normalize_str(chr(code))
            if normal and len(splitter.pre_tokenize_str(f"a{normal}a")) < 3:
                continue
            bounds = alone if normal else removed
            if bounds and bounds[-1] == code:
                bounds[-1] += 1
            else:
                bounds += [code, code + 1]
    return removed, alone


def _draw(draw: random.Random, names: Sequence[str]) -> str:
    """Draw a text of words of the vocabulary, and of characters, most of them with low numbers."""
    codes = [draw.randrange(2 ** draw.randint(5, 18)) for _ in range(8)]
    parts = [*(chr(code) for code in codes if not 0xD800 <= code < 0xE000), draw.choice(names), draw.choice(names)]
    return "".join(draw.choice(["", " "]) + part for part in draw.sample(parts, len(parts)))


def _sum_up(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> int:
    """Return a number that depends on every character of some texts and on the id of every token."""
    numbers = (number for text in texts for number in (*map(ord, text), *backend.encode(text).ids))
    return functools.reduce(lambda total, number: (31 * total + number) % 2**32, numbers, 0)
