"""Masks that a module makes from its token ids."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tests.doctor.checks.specimens import Attention, found, one, seeded


class Items(Attention):
    """items: [B, N], 0 = padding"""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.position = nn.Embedding(20, 16, padding_idx=0), nn.Embedding(16, 16)

    def forward(self, items: Tensor) -> Tensor:
        x = self.item(items) + self.position(torch.arange(items.shape[1]))
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        mask = self.as_mask((items > 0)[:, None, None])
        return self.out(self.merge(scaled_dot_product_attention(q, k, v, attn_mask=mask)))

    def as_mask(self, real: Tensor) -> Tensor:
        return real


class AsNumbers(Items):
    def as_mask(self, real: Tensor) -> Tensor:
        return real.float()


def test_a_mask_cast_to_numbers() -> None:
    finding = one("ids_mask", seeded(AsNumbers))
    assert (finding.name, finding.severity, finding.numbers["added"]) == ("mask-added", "bug", -1)
    assert found("ids_mask", seeded(Items)) == []


class Translator(nn.Module):
    """src: [B, S], tgt: [B, T]; 0 = padding"""

    def __init__(self, forgets: bool) -> None:
        super().__init__()
        self.forgets, self.pad = forgets, 0
        self.embed, self.encoder, self.cross = nn.Embedding(20, 16), Attention(), Attention()

    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        real = (src != self.pad)[:, None, None]
        x = self.embed(src)
        memory = x + self.encoder.attend(x, x, real)
        y = self.embed(tgt)
        return y + self.cross.attend(y, memory, None if self.forgets else real)


def test_padding_of_the_source_that_reaches_the_decoder() -> None:
    torch.manual_seed(0)
    finding = one("ids_mask", Translator(forgets=True))
    assert (finding.name, finding.severity) == ("source-unmasked", "bug")
    assert found("ids_mask", Translator(forgets=False)) == []


class OverTheQueries(Items):
    def as_mask(self, real: Tensor) -> Tensor:
        return real.mT.expand(-1, -1, -1, real.shape[-1])

    def forward(self, items: Tensor) -> Tensor:
        x = self.item(items) + self.position(torch.arange(items.shape[1]))
        scores = self.score(self.split(self.q(x)), self.split(self.k(x)))
        scores = scores.masked_fill(~self.as_mask((items > 0)[:, None, None]), -1e9)
        return self.out(self.merge(scores.softmax(-1) @ self.split(self.v(x))))


class OverTheKeys(OverTheQueries):
    def as_mask(self, real: Tensor) -> Tensor:
        return real


def test_a_mask_that_is_laid_out_over_the_queries() -> None:
    finding = one("ids_mask", seeded(OverTheQueries))
    assert (finding.name, finding.severity) == ("mask-broadcast", "bug")
    assert found("ids_mask", seeded(OverTheKeys)) == []
