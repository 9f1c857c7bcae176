"""More styles of healthy attention, for the tests of what is read off operations: without a mask, in einsum, fused."""

from __future__ import annotations

import inspect
import linecache
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from tests.doctor.laws.specimens import Attention


class Masked(Attention):
    """mask: [B, Q, K], True = may attend."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.attend(x, x, self.both(mask, None))


class Plain(Attention):
    """It takes no mask."""

    def forward(self, x: Tensor) -> Any:
        return self.attend(x, x, None)


class Latents(Attention):
    """Six learned queries. x: [B, N, 16] -> [B, 6, 16]"""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.latents = nn.Parameter(torch.randn(6, 16))

    def forward(self, x: Tensor) -> Any:
        return self.attend(self.latents.expand(len(x), -1, -1), x, None)


class Einsum(nn.Module):
    """One weight for queries, keys and values, [3 H D, M]; [B, N, H, D] throughout."""

    def __init__(self, width: int = 16, heads: int = 4, **parts: Any) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.__dict__.update(parts)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
        return self.proj(self.mix(self.normalise(self.scaled(scores)), v).reshape(x.shape))

    def parts(self, qkv: Tensor) -> tuple[Tensor, ...]:
        return qkv.unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(2)

    def scaled(self, scores: Tensor) -> Tensor:
        return scores * self.head_dim**-0.5

    def normalise(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-1)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)


class Slices(nn.Module):
    """Splits the input into heads, then projects each slice."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(*x.shape[:2], 4, 4)
        scores = torch.einsum("bqhd,bkhd->bhqk", self.q(x), self.k(x)) / 2
        return self.out(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), self.v(x)).flatten(2))


class SharedByHeads(Slices):
    """One small matrix is shared by all heads."""


def assert_at(finding: Finding, thing: Any, code: str) -> None:
    """A finding points at the line of a class or function that has this code."""
    lines, first = inspect.getsourcelines(thing)
    numbers = [first + i for i, line in enumerate(lines) if code in line]
    assert len(numbers) == 1, f"{code!r} stands in {len(numbers)} lines"
    assert finding.where.file == inspect.getsourcefile(thing)
    assert finding.where.line == numbers[0], finding.where
    assert finding.where.code == linecache.getline(finding.where.file, numbers[0]).strip()
