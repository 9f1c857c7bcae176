"""The inputs of graphs that read tokens, named as in a Hugging Face BERT, and examples of such inputs.

input_ids, attention_mask, token_type_ids: int64 [batch, length]; the mask has 1 for tokens and 0 for padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.graphs.graph import Value

IDS = Value("input_ids", torch.int64, ("batch", "length"))
MASK = Value("attention_mask", torch.int64, ("batch", "length"))
TYPES = Value("token_type_ids", torch.int64, ("batch", "length"))

SIZES = ((3, 12), (1, 5), (2, 31))  # (batch, length) of random examples


def random_tokens(vocab_size: int, longest: int | None, types: int = 2) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Make random inputs (ids, attention mask, token types) with a fixed seed, one tuple for each of `SIZES`.

    All rows but the first may end with padding.

    Args:
        vocab_size: the number of ids; the ids are 0 … vocab_size - 1.
        longest: the maximum number of tokens; None = no limit.
        types: the number of token types.
    """
    drawn = torch.Generator().manual_seed(0)
    found = []
    for batch, length in SIZES:
        length = min(length, longest or length)
        ids = torch.randint(vocab_size, (batch, length), generator=drawn)
        lengths = torch.tensor([length, *torch.randint(1, length + 1, (batch - 1,), generator=drawn).tolist()])
        places = torch.arange(length)
        mask = (places < lengths[:, None]).long()
        found.append((ids, mask, ((places >= length // 2) * mask if types > 1 else torch.zeros_like(ids))))
    return found


def whole(real: Sequence[tuple[Tensor, ...]] | None) -> list[tuple[Tensor, ...]]:
    """Turn real inputs into examples: bool becomes int64, and a single row is repeated (a trace may fix a size 1)."""
    return doubled([tuple(x.long() if x.dtype == torch.bool else x for x in given) for given in real or ()])


def doubled(real: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """Return the inputs with at least two rows: a single row is repeated once."""
    return [tuple(x.repeat(2, *[1] * (x.dim() - 1)) if len(x) == 1 else x for x in given) for given in real]
