"""Every exported mask, made for given sizes, and random compositions: what the mask and kernel tests run over."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import torch
from hypothesis import strategies as st

from headwise import masks
from headwise.masks import Mask

# name -> a mask for (B, H, Q, K). `needs_cache`: only where no query stands before the first key (Q <= K).
ZOO: dict[str, Callable[[int, int, int, int], Mask]] = {
    "causal": lambda B, H, Q, K: masks.causal(),
    "causal, offset 0": lambda B, H, Q, K: masks.causal(offset=0),
    "causal, nothing for the first": lambda B, H, Q, K: masks.causal(offset=-3),
    "window": lambda B, H, Q, K: masks.window(5, 2),
    "window, one side open": lambda B, H, Q, K: masks.window(None, 1),
    "padding, lengths": lambda B, H, Q, K: masks.lengths([(K * (b + 1)) // B for b in range(B)]),
    "padding, an empty example": lambda B, H, Q, K: masks.lengths([0] * B),
    "padding, keys": lambda B, H, Q, K: masks.padding(_random(B, K)),
    "documents": lambda B, H, Q, K: masks.documents(torch.arange(K) * 3 // max(1, K)),
    "documents, by example": lambda B, H, Q, K: masks.documents(torch.arange(B * K).view(B, K) // 7 - 1),
    "documents, padded at both ends": lambda B, H, Q, K: masks.documents(
        [-1 if k < K // 5 or k > K - K // 5 else k // 6 for k in range(K)]
    ),
    "documents, in pieces": lambda B, H, Q, K: masks.documents(torch.arange(K) // 4 % 3 - 1),
    "prefix": lambda B, H, Q, K: masks.prefix(K // 3),
    "prefix, by example": lambda B, H, Q, K: masks.prefix([min(K, 2 * b) for b in range(B)]),
    "global tokens": lambda B, H, Q, K: masks.global_tokens([0, K // 2]),
    "knockout": lambda B, H, Q, K: masks.knockout(_random(Q), _random(K)),
    "knockout, by example and head": lambda B, H, Q, K: masks.knockout(_random(B, Q), _random(K), _random(B, H)),
    "dilated": lambda B, H, Q, K: masks.dilated(3),
    "strided": lambda B, H, Q, K: masks.strided(4),
    "big bird": lambda B, H, Q, K: masks.big_bird(K, block_size=4, random_blocks=1, global_blocks=1),
    "block sparse": lambda B, H, Q, K: masks.block_sparse(_random(-(-Q // 8), -(-K // 8)), 8),
    "block sparse, by head": lambda B, H, Q, K: masks.block_sparse(_random(H, -(-Q // 8), -(-K // 8)), 8),
    "predicate": lambda B, H, Q, K: masks.from_predicate(_near_and_even),
    "predicate, by head": lambda B, H, Q, K: masks.from_predicate(_by_head, heads=H),
    "bits": lambda B, H, Q, K: masks.bits(_random(Q, K)),
    "bits, by example and head": lambda B, H, Q, K: masks.bits(_random(B, H, Q, K)),
    "runs": lambda B, H, Q, K: masks.runs(
        [q % 5 * K // 5 for q in range(Q)], [q % 5 * K // 5 + K // 6 for q in range(Q)]
    ),
    "runs, by example and head": lambda B, H, Q, K: masks.runs(*_two_ordered(K, B, H, Q)),
    "tensor": lambda B, H, Q, K: masks.from_tensor(_random(Q, K)),
    "tensor, by example and head": lambda B, H, Q, K: masks.from_tensor(_random(B, H, Q, K)),
}

# These speak of positions on the key axis, which a query before the first key does not have.
QUERIES_AMONG_KEYS = ("documents", "global tokens")
# These have at least one block or position.
NOT_EMPTY = ("block sparse", "big bird", "global tokens")


def fits(name: str, q_len: int, k_len: int) -> bool:
    """Whether this mask can be made for these lengths."""
    if (name == "big bird" and q_len != k_len) or (name.startswith(NOT_EMPTY) and not (q_len and k_len)):
        return False
    return not name.startswith(QUERIES_AMONG_KEYS) or q_len <= k_len


@st.composite
def compositions(draw: st.DrawFn, sizes: tuple[int, int, int, int]) -> Mask:
    """One to three of the masks that fit, joined by & and |, some of them inverted."""
    names = [name for name in ZOO if fits(name, *sizes[2:])]
    parts = []
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)):
        mask = ZOO[name](*sizes)
        parts.append(~mask if draw(st.booleans()) else mask)
    return functools.reduce(draw(st.sampled_from([operator.and_, operator.or_])), parts)


def _random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(7)) > 0.5


def _two_ordered(most: int, *shape: int) -> torch.Tensor:
    drawn = torch.randint(0, most + 1, (2, *shape), generator=torch.Generator().manual_seed(7))
    return drawn.sort(dim=0).values


def _near_and_even(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return ((q - k).abs() < 6) & (k % 2 == 0)


def _by_head(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return k <= q - h
