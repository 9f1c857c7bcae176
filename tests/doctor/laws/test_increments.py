"""Token by token against the whole sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotChecked
from headwise.nn import MultiHeadAttention
from headwise.nn.positions import Rope
from tests.doctor.laws.specimens import Attention, found, one, seeded, triangle

LAW = "increments"


def at_corner(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Right for a prompt and for single steps alone."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


class Steps(Attention):
    """Causal; the cache comes back beside the output."""

    def forward(self, x: Tensor, kv_cache: tuple[Tensor, Tensor] | None = None) -> Any:
        x = x + self.positions(0 if kv_cache is None else kv_cache[0].shape[2], x.shape[1])
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        if kv_cache is not None:
            k, v = self.join(kv_cache, k, v)
        return self.out(self.merge(self.step(q, k, v))), (k, v)

    def positions(self, start: int, n: int) -> Tensor:
        return (torch.arange(start, start + n) * 0.1).sin()[:, None]

    def join(self, cache: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            q, k, v, triangle(q.shape[2], k.shape[2], k.shape[2] - q.shape[2])
        )


class WithMask(Steps):
    def forward(self, x: Tensor, kv_cache: Any = None, mask: Tensor | None = None) -> Any:
        return super().forward(x, kv_cache)


class OneTokenBehind(Steps):
    """kv_cache: as the last call returned it; x is then one token."""


class Fills(Attention):
    """The cache is a dict that is filled."""

    late = False

    def forward(self, x: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        if cache is not None:
            if cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], k if self.late else v], 2)
            cache.update(k=k, v=v)
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v)))


class Keeps(Steps):
    """The module holds the cache, and a flag asks for it."""

    mixes = False

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.register_buffer("past_k", None, persistent=False)
        self.register_buffer("past_v", None, persistent=False)

    def forward(self, x: Tensor, use_cache: bool = False) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        if use_cache:
            if self.past_k is not None:
                k, v = self.join((self.past_k, self.past_v.roll(1, 2) if self.mixes else self.past_v), k, v)
            self.past_k, self.past_v = k, v
        return self.out(self.merge(self.step(q, k, v)))


class Begun(Attention):
    """An empty dict starts a cache, and a new one is returned; without one there is none."""

    always = True  # whether the causal mask is used with a cache, too

    def forward(self, x: Tensor, cache: dict[str, Tensor] | None = None) -> Any:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if cache:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        allowed = triangle(q.shape[2], k.shape[2], k.shape[2] - q.shape[2]) if self.always or cache is None else None
        out = self.out(self.merge(self.fill(self.score(q, k), allowed).softmax(-1) @ v))
        return out, None if cache is None else {"k": k, "v": v}


UNUSED = {"join": lambda _, k, v: (k, v), "positions": lambda _, n: torch.zeros(n, 1)}
FIRST_ALONE = {
    "step": lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, triangle(q.shape[2], k.shape[2]))
}


@pytest.mark.parametrize(
    ("module", "name", "severity", "words"),
    [
        (seeded(Steps, positions=lambda _, n: (torch.arange(n) * 0.1).sin()[:, None]), "cache-mismatch", "bug", "step"),
        (seeded(Steps, **UNUSED), "cache-mismatch", "bug", "the cache is not used"),
        (seeded(Fills, late=True), "cache-mismatch", "bug", "position 3 on"),
        (seeded(Keeps, mixes=True), "cache-mismatch", "bug", "its own cache, use_cache"),
        (seeded(Steps, **FIRST_ALONE), "causal-corner", "bug", "position 3 attends to the first cached token"),
        (seeded(Steps, step=at_corner), "causal-corner", "bug", "at once"),
        (seeded(WithMask, step=at_corner), "causal-corner", "risk", "no mask was passed"),
        (seeded(Begun, always=False), "causal-leak", "bug", "2 tokens at once after 0 cached ones"),
    ],
)
def test_a_wrong_cache(module: nn.Module, name: str, severity: str, words: str) -> None:
    finding = one(LAW, module)
    assert (finding.name, finding.severity) == (name, severity)
    assert words in finding.evidence


def one_or_none(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Its mask fits one new token, or no cached ones."""
    n = q.shape[2]
    return functional.scaled_dot_product_attention(q, k, v, triangle(n, n) if n > 1 else None)


def test_what_is_healthy_or_not_checked() -> None:
    rotated = MultiHeadAttention(16, 4, positions=Rope(4))
    for module in (Steps, Fills, Keeps, Begun, seeded(OneTokenBehind, step=at_corner), rotated):
        assert found(LAW, module) == []
    with pytest.raises(NotChecked, match="right one token at a time, and 4 tokens at once after 2"):
        found(LAW, seeded(Keeps, step=one_or_none))
    with pytest.raises(NotChecked, match="cache"):
        found(LAW, Attention)
