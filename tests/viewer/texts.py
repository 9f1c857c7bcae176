"""Texts to look at, for the tests of the views of tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

import headwise
from headwise.records import AttentionRecord, Seen, Site
from headwise.text import Tokens

# Two sentences, in which some words are of several tokens; + stands where no space stands before one.
PIECES = [
    *("[CLS]", "The", "un", "+help", "+ful", "cat", "sat", "+."),
    *("It", "is", "+n", "+'", "+t", "mine", "+.", "[SEP]"),
]
BOXES = ("document.documentElement", "headwise.app.frame", "headwise.app.panel", "headwise.app.view.element")


def record(
    length: int = 9, keys: int | None = None, *, heads: int = 3, kind: str = "", **options: Any
) -> AttentionRecord:
    q, k = 1.5 * torch.randn(1, heads, length, 4), torch.randn(1, heads, keys or length, 4)
    made = headwise.attention(q, k, k, record=True, **options)[1]
    if kind:
        made.site = Site("layer", 0, kind, False, heads, heads, 0)  # type: ignore[arg-type]
    return made


def tokens_of(pieces: Sequence[str], **options: Any) -> Tokens:
    """Tokens of a text that is put together from its pieces: [NAME] is a sign, +piece has no space before it."""
    text, offsets, labels = "", [], []
    for piece in pieces:
        sign = re.fullmatch(r"\[\w+\]", piece)
        own = piece.removeprefix("+")
        space = "" if sign or own != piece or not text or text.endswith("\n") else " "
        start = len(text) + len(space)
        text += "" if sign else space + own
        offsets.append((0, 0) if sign else (start, start + len(own)))
        labels.append(own)
    special = tuple(piece.startswith("[") for piece in pieces)
    options = {"unknown": (False,) * len(labels), **options}
    return Tokens(tuple(range(len(labels))), tuple(labels), tuple(offsets), special, text, **options)


def seen_of(*records: AttentionRecord, tokens: Any = None) -> Seen:
    seen = Seen(records)
    seen.tokens = [f"w{i}" for i in range(records[0].shape[2])] if tokens is None else tokens
    return seen
