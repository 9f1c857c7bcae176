"""Tokens that a module appends to its input to fill its blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.laws.specimens import Attention, found, one, seeded


class Blocks(Attention):
    """Attention inside of blocks of 4 tokens; the last block is filled up."""

    hides = True

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        blocks = functional.pad(x, (0, 0, 0, -n % 4)).view(-1, 4, m)
        real = functional.pad(torch.ones(b, n, dtype=torch.bool), (0, -n % 4)).view(-1, 1, 1, 4)
        return self.attend(blocks, blocks, real if self.hides else None).view(b, -1, m)[:, :n]


class HidesNothing(Blocks):
    hides = False


class Sinks(Attention):
    """Every query may also attend to one learned key."""

    def __init__(self) -> None:
        super().__init__()
        self.null = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, torch.cat([self.null.expand(len(x), -1, -1), x], 1), None)


class BlockBefore(Attention):
    """Causal; a token attends to its block of 4 and to the block before."""

    hides = True

    def forward(self, x: Tensor) -> Tensor:
        _, n, _ = x.shape
        blocks = functional.pad(x, (0, 0, 0, -n % 4)).unflatten(1, (-1, 4))
        q, k, v = (f(blocks).unflatten(-1, (self.heads, -1)).transpose(2, 3) for f in (self.q, self.k, self.v))
        k, v = (torch.cat([functional.pad(t, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1], t], 3) for t in (k, v))
        at = torch.arange(blocks.shape[1] * 4).view(-1, 4)
        keys = torch.cat([at - 4, at], 1)
        allowed = (keys[:, None] <= at[..., None]) & (keys[:, None] >= (0 if self.hides else -4))
        scores = self.fill(self.score(q, k), allowed[:, None])
        out = self.out((scores.softmax(-1) @ v).transpose(2, 3).flatten(3))
        return out.flatten(1, 2)[:, :n]


class BlockOfZeros(BlockBefore):
    hides = False


class WholeBlocks(BlockBefore):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] % 4:
            raise ValueError("its length must be a multiple of the block size 4")
        return super().forward(x)


class WholeBlocksOfZeros(WholeBlocks):
    hides = False


def test_a_module_that_takes_whole_blocks_alone() -> None:
    assert one("inner_padding", seeded(WholeBlocksOfZeros)).name == "padding-attended"
    assert found("inner_padding", seeded(WholeBlocks)) == []


def test_a_block_of_zeros_before_the_first() -> None:
    finding = one("inner_padding", seeded(BlockOfZeros))
    assert (finding.name, finding.severity) == ("padding-attended", "bug")
    assert "keys of zeros" in finding.evidence
    assert found("inner_padding", seeded(BlockBefore)) == []


class Cache(Attention):
    """Decodes token by token into a cache of 12 places."""

    hides = True

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        places = torch.zeros(2, len(x), 12, 16)
        outs = []
        for t in range(n):
            places[0, :, t], places[1, :, t] = self.k(x[:, t]), self.v(x[:, t])
            q, k, v = (self.split(y) for y in (self.q(x[:, t : t + 1]), *places))
            allowed = torch.arange(12) <= t if self.hides else None
            outs.append(self.out(self.merge(self.normalise(self.fill(self.score(q, k), allowed)) @ v)))
        return torch.cat(outs, 1)


class CacheOfZeros(Cache):
    hides = False


class OneZero(Attention):
    """A key of zeros for those that attend to nothing, as `add_zero_attn` of nn.MultiheadAttention adds one."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        k, v = (torch.cat([y, torch.zeros_like(y[:, :, :1])], 2) for y in (k, v))
        return self.out(self.merge(self.normalise(self.score(q, k)) @ v))


def test_empty_places_of_a_cache() -> None:
    finding = one("inner_padding", seeded(CacheOfZeros))
    assert (finding.name, finding.severity) == ("padding-attended", "bug")
    assert "several keys of zeros" in finding.evidence
    assert found("inner_padding", seeded(Cache)) == []
    assert found("inner_padding", seeded(OneZero)) == []


def test_padding_that_is_attended_to() -> None:
    finding = one("inner_padding", seeded(HidesNothing))
    assert (finding.name, finding.severity) == ("padding-attended", "bug")
    assert 0.5 < finding.numbers["weight"] < 1  # three keys of four are padding
    assert found("inner_padding", seeded(Blocks)) == []


def test_learned_keys_are_no_padding() -> None:
    assert found("inner_padding", seeded(Sinks)) == []
    assert found("inner_padding", seeded(Attention)) == []
