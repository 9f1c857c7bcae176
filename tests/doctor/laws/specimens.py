"""A healthy attention in parts, for a test to break in one of them, and one of the doctor's laws tested on a module."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.example import Example
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient


class Attention(nn.Module):
    """Masks: True = may attend. `parts`: functions in the place of its methods, such as score=lambda q, k: q @ k.mT."""

    def __init__(self, width: int = 16, heads: int = 4, dropout: float = 0.0, **parts: Any) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)
        self.__dict__.update(parts)

    def forward(self, x: Tensor, mask: Tensor | None = None, padding_mask: Tensor | None = None) -> Any:
        return self.attend(x, x, self.both(mask, padding_mask))

    def both(self, mask: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
        """[B, 1, Q, K] of [B, Q, K] and [B, K]."""
        found = None if mask is None else mask.bool()[:, None]
        if padding_mask is None:
            return found
        keys = padding_mask.bool()[:, None, None]
        return keys if found is None else keys & found

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        scores = self.fill(self.score(q, k), allowed)
        return self.out(self.merge(self.dropout(self.normalise(scores)) @ v))

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)


def triangle(queries: int, keys: int, diagonal: int = 0) -> Tensor:
    """[Q, K]: a causal mask from the upper left corner on."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(diagonal)


class Causal(Attention):
    """Sees no future."""

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, triangle(x.shape[1], x.shape[1]).to(x.device))


class Padded(Attention):
    """padding_mask: [B, K], True = a real token."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Any:
        return self.attend(x, x, self.both(None, padding_mask))


class Normed(Attention):
    """Behind a batch norm, which counts in train mode, by design."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.norm(x.mT).mT, x, None)


class Cross(Attention):
    """Attends to a memory. memory_mask: [B, K], True = a real token."""

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, memory, None if memory_mask is None else memory_mask[:, None, None])


def found(law: str, module: nn.Module | type[nn.Module], *, example: Example | None = None) -> list[Finding]:
    """What one law finds in a module, or in a class that is built; it must leave the module as it was."""
    module = seeded(module) if isinstance(module, type) else module
    before = {name: x.clone() for name, x in module.state_dict().items()}
    training, generator = module.training, torch.get_rng_state()
    findings = list(importlib.import_module(f"headwise.doctor.laws.{law}").check(Patient(module, example=example)))
    assert module.training == training
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(((x == before[name]) | (x != x)).all() for name, x in module.state_dict().items())
    assert all(x.grad is None for x in module.parameters())
    return findings


def one(law: str, module: nn.Module | type[nn.Module], *, example: Example | None = None) -> Finding:
    """The only finding of a law."""
    findings = found(law, module, example=example)
    assert len(findings) == 1, findings
    return findings[0]


def seeded(module: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """A module of that class with the same weights in every run."""
    torch.manual_seed(0)
    return module(*args, **kwargs)


def altered(kind: type[nn.Module] = Attention, *args: Any, **methods: Any) -> nn.Module:
    """A module of that class, with the same weights in every run and with these methods in the place of its own."""
    return seeded(type(kind.__name__, (kind,), methods), *args)
