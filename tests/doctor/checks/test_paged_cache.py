"""Slots of pages that hold no token of the sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Plain


class Paged(nn.Module):
    """One step: the newest token [B, M] of each sequence, pages [B, P], tokens in the cache [B] without the newest."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.block_size = 4, 4
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("keys", torch.zeros(24, 4, 4, 4))
        self.register_buffer("values", torch.zeros(24, 4, 4, 4))

    def forward(self, x: Tensor, block_tables: Tensor, context_lens: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(-1, 3, 4, 4).unbind(1)
        page = block_tables.gather(1, context_lens[:, None] // 4)[:, 0]
        self.keys[page, context_lens % 4], self.values[page, context_lens % 4] = k.detach(), v.detach()
        keys, values = (pool[block_tables].flatten(1, 2) for pool in (self.keys, self.values))
        hidden = ~self.seen(torch.arange(keys.shape[1]), context_lens[:, None])
        scores = (q[:, None] * keys).sum(-1) / 2
        weights = scores.masked_fill(hidden[..., None], -torch.inf).softmax(1)
        return self.out((weights[..., None] * values).sum(1).flatten(1))

    def seen(self, at: Tensor, known: Tensor) -> Tensor:
        return at <= known


class CountsTheNewest(Paged):
    """The length counts the newest token, too."""

    def forward(self, x: Tensor, block_tables: Tensor, context_lens: Tensor) -> Tensor:
        return super().forward(x, block_tables, context_lens - 1)


class AndOneMore(CountsTheNewest):
    def seen(self, at: Tensor, known: Tensor) -> Tensor:
        return at <= known + 1


class WholePages(Paged):
    def seen(self, at: Tensor, known: Tensor) -> Tensor:
        return at // 4 <= known // 4


class OneTooMany(Paged):
    def seen(self, at: Tensor, known: Tensor) -> Tensor:
        return at <= known + 1


@pytest.mark.parametrize("module", [WholePages, OneTooMany, AndOneMore])
def test_slots_behind_the_newest_token(module: type[nn.Module]) -> None:
    finding = one("paged_cache", seeded(module))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")
    newest = 5 if module is AndOneMore else 6
    assert f"with context_lens = 6 and pages of 4 slots, the numbers behind slot {newest}" in finding.evidence


@pytest.mark.parametrize("module", [Paged, CountsTheNewest])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("paged_cache", seeded(module)) == []


def test_no_pages() -> None:
    with pytest.raises(NotApplicable, match="no cache of pages"):
        found("paged_cache", seeded(Plain))
