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
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Steps(Attention):
    """Causal; the cache comes back beside the output."""

    def forward(self, x: Tensor, kv_cache: tuple[Tensor, Tensor] | None = None) -> Any:
        x = x + self.positions(0 if kv_cache is None else kv_cache[0].shape[2], x.shape[1])
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        if kv_cache is not None:
            k, v = self.join(kv_cache, k, v)
        out = self.step(q, k, v)
        return self.out(self.merge(out)), (k, v)

    def positions(self, start: int, n: int) -> Tensor:
        return (torch.arange(start, start + n) * 0.1).sin()[:, None]

    def join(self, cache: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        allowed = torch.ones(n, m, dtype=torch.bool).tril(m - n)
        return functional.scaled_dot_product_attention(q, k, v, allowed)


class StandsAtZero(Steps):
    def positions(self, start: int, n: int) -> Tensor:
        return super().positions(0, n)


class ForgetsTheFirst(Steps):
    def join(self, cache: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = super().join(cache, k, v)
        return k[:, :, -8:], v[:, :, -8:]


class DoesNotRead(Steps):
    def join(self, cache: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v

    def positions(self, start: int, n: int) -> Tensor:
        return torch.zeros(n, 1)


class WrongCorner(Steps):
    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


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


class FillsWithKeys(Fills):
    late = True


class Keeps(Attention):
    """The module holds the cache and is told where the tokens stand."""

    def __init__(self, offset: int = 0) -> None:
        super().__init__()
        self.offset = offset
        self.register_buffer("keys", torch.zeros(4, 64, 16), persistent=False)

    def forward(self, x: Tensor, start_pos: int = 0) -> Tensor:
        b, n = x.shape[:2]
        with torch.no_grad():
            self.keys[:b, start_pos : start_pos + n] = x
        return self.attend(x, self.keys[:b, : max(1, start_pos + n - self.offset * (n == 1))].clone(), None)


class Rotated(Attention):
    """An offset, and no cache at all."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return self.attend(x + 0.1 * offset, x, None)


@pytest.mark.parametrize("kind", [StandsAtZero, ForgetsTheFirst, DoesNotRead, FillsWithKeys])
def test_steps_that_differ(kind: type[Attention]) -> None:
    finding = one("cache", seeded(kind))
    assert (finding.name, finding.severity) == ("cache-mismatch", "bug")
    assert finding.numbers["change"] > 1e-3
    assert finding.numbers["first"] == (8 if kind is ForgetsTheFirst else 3)  # token 8 is the ninth
    assert ("not used" in finding.evidence) == (kind is DoesNotRead)


def test_a_cache_that_the_module_keeps() -> None:
    finding = one("cache", seeded(Keeps, offset=1))
    assert finding.name == "cache-mismatch"
    assert "start_pos" in finding.evidence
    assert found("cache", seeded(Keeps)) == []


def test_several_tokens_behind_a_cache() -> None:
    finding = one("cache", seeded(WrongCorner))
    assert (finding.name, finding.severity) == ("causal-corner", "bug")
    assert finding.numbers["change"] > 0.01


def test_healthy_ones() -> None:
    assert found("cache", seeded(Steps)) == []
    assert found("cache", seeded(Fills)) == []
    assert found("cache", MultiHeadAttention(16, 4, positions=Rope(4))) == []


def test_where_there_is_no_cache() -> None:
    for module in (seeded(Attention), seeded(Rotated), nn.MultiheadAttention(16, 4)):
        with pytest.raises(NotChecked, match="cache"):
            found("cache", module)


class FirstKeyOnly(Steps):
    """The mask of one query and many keys starts in the upper left corner."""

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        return functional.scaled_dot_product_attention(q, k, v, allowed)


def test_a_step_that_sees_the_first_key_only() -> None:
    finding = one("cache", seeded(FirstKeyOnly))
    assert (finding.name, finding.severity) == ("causal-corner", "bug")
    assert finding.numbers["first"] == 3


class Store:
    """Keys and values so far."""

    def __init__(self) -> None:
        self.kv: tuple[Tensor, Tensor] | None = None


Cache = Store  # by this name the class is found


class FillsAStore(Steps):
    """The cache is of a class of this file, named nowhere in the signature."""

    def forward(self, x: Tensor, kv_cache: Any = None) -> Any:
        out, kv = super().forward(x, None if kv_cache is None else kv_cache.kv)
        if kv_cache is not None:
            kv_cache.kv = kv
        return out


class FillsAStoreAtZero(FillsAStore):
    def positions(self, start: int, n: int) -> Tensor:
        return super().positions(0, n)


class OneTokenBehind(WrongCorner):
    """kv_cache: as the last call returned it; x is then one token."""


def test_a_cache_of_the_module_s_own_file() -> None:
    finding = one("cache", seeded(FillsAStoreAtZero))
    assert (finding.name, finding.numbers["first"]) == ("cache-mismatch", 3)
    assert found("cache", seeded(FillsAStore)) == []


def test_several_tokens_are_not_asked_of_one() -> None:
    assert found("cache", seeded(OneTokenBehind)) == []
