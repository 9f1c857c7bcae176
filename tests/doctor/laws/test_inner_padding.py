"""Tokens that a module appends to its input to fill its blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.laws.specimens import Attention, found, one, seeded

LAW = "inner_padding"


class Blocks(Attention):
    """Attention inside of blocks of 4 tokens; the last block is filled up."""

    hides = True

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        blocks = functional.pad(x, (0, 0, 0, -n % 4)).view(-1, 4, m)
        real = functional.pad(torch.ones(b, n, dtype=torch.bool), (0, -n % 4)).view(-1, 1, 1, 4)
        return self.attend(blocks, blocks, real if self.hides else None).view(b, -1, m)[:, :n]


class BlockBefore(Attention):
    """Causal; a token attends to its block of 4 and to the block before, which is of zeros for the first."""

    hides, whole = True, False

    def forward(self, x: Tensor) -> Tensor:
        _, n, _ = x.shape
        if self.whole and n % 4:
            raise ValueError("its length must be a multiple of the block size 4")
        blocks = functional.pad(x, (0, 0, 0, -n % 4)).unflatten(1, (-1, 4))
        q, k, v = (f(blocks).unflatten(-1, (self.heads, -1)).transpose(2, 3) for f in (self.q, self.k, self.v))
        k, v = (torch.cat([functional.pad(t, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1], t], 3) for t in (k, v))
        at = torch.arange(blocks.shape[1] * 4).view(-1, 4)
        keys = torch.cat([at - 4, at], 1)
        allowed = (keys[:, None] <= at[..., None]) & (keys[:, None] >= (0 if self.hides else -4))
        scores = self.fill(self.score(q, k), allowed[:, None])
        return self.out((scores.softmax(-1) @ v).transpose(2, 3).flatten(3)).flatten(1, 2)[:, :n]


@pytest.mark.parametrize(
    ("kind", "parts", "words"),
    [
        (Blocks, {}, "the padding to whole blocks is attended to"),
        (BlockBefore, {}, "keys of zeros"),
        (BlockBefore, {"whole": True}, "keys of zeros"),
    ],
)
def test_padding_that_is_attended_to(kind: type[nn.Module], parts: dict[str, bool], words: str) -> None:
    finding = one(LAW, seeded(kind, hides=False, **parts))
    assert (finding.name, finding.severity) == ("padding-attended", "bug")
    assert words in finding.evidence
    assert found(LAW, seeded(kind, **parts)) == []


class OneMore(nn.Module):
    """Every query may also attend to one more key: a learned one, or one of zeros."""

    def __init__(self, option: str) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True, **{option: True})

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


def test_keys_of_no_token_that_are_meant() -> None:
    for option in ("add_bias_kv", "add_zero_attn"):
        assert found(LAW, seeded(OneMore, option)) == []
