"""Scores head patterns (such as induction) of a profile's model, on a repeated block of random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.analyses import pattern_scores, repeated_block
from headwise.capture.context import watch
from headwise.capture.pretrained import Pretrained
from headwise.capture.vocabulary import vocabulary_size

BLOCK, BLOCKS = 25, 8  # the length of the repeated random block, and the number of blocks


def block_scores(model: Pretrained, only: Sequence[int | str] | None) -> dict[str, Any]:
    """Let the model read a repeated block of random tokens; return name of a pattern -> its scores [L, H], as lists.

    Returns {} if its vocabulary is unknown or too small, or two blocks are too long. `only`: as for `profile`.
    """
    known = vocabulary_size(model.model)
    tokens = model.encode("a", None)
    special = {each for each, named in zip(tokens.ids, tokens.special, strict=True) if named}
    most = model.max_length or 2 * BLOCK
    if known is None or known < BLOCK + len(special) or most < 2 * BLOCK:
        return {}
    ids = repeated_block(known, BLOCK, BLOCKS, exclude=sorted(special))
    with torch.no_grad(), watch(model.model, only=None if only is None else list(only)) as seen:
        model.model(ids.to(model.device))
    scores = pattern_scores(seen, BLOCK) if len(seen) else None
    if scores is None:
        return {}
    named: dict[str, Tensor] = {
        "block_previous_token": scores.previous_token,
        "block_duplicate_token": scores.duplicate_token,
        "block_induction": scores.induction,
    }
    return {each: x.double().tolist() for each, x in named.items()}
