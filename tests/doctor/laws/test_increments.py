"""Token by token against the whole sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.laws.increments import differing
from headwise.doctor.patient import NotChecked
from headwise.nn import MultiHeadAttention
from headwise.nn.positions import Rope
from tests.doctor.laws.specimens import Attention, found, one, seeded

LAW = "increments"


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


class Keeps(Steps):
    """The module holds the cache, and a flag asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past_k", None, persistent=False)
        self.register_buffer("past_v", None, persistent=False)

    def forward(self, x: Tensor, use_cache: bool = False) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        if use_cache:
            if self.past_k is not None:
                k, v = self.join((self.past_k, self.past_v), k, v)
            self.past_k, self.past_v = k, v
        return self.out(self.merge(self.step(q, k, v)))


class MixesUpValues(Keeps):
    def join(self, cache: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().join((cache[0], cache[1].roll(1, 2)), k, v)


class KeepsForSteps(Keeps):
    """Its mask fits one new token, or no cached ones."""

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[2]
        allowed = torch.ones(n, n, dtype=torch.bool).tril()
        return functional.scaled_dot_product_attention(q, k, v, allowed if n > 1 else None)


@pytest.mark.parametrize("kind", [StandsAtZero, DoesNotRead, FillsWithKeys])
def test_steps_that_differ(kind: type[Attention]) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity) == ("cache-mismatch", "bug")
    assert finding.numbers["change"] > 1e-3
    assert finding.numbers["first"] == 3
    assert ("not used" in finding.evidence) == (kind is DoesNotRead)


def test_a_cache_that_the_module_keeps() -> None:
    finding = one(LAW, seeded(MixesUpValues))
    assert finding.name == "cache-mismatch"
    assert "its own cache, use_cache" in finding.evidence
    assert found(LAW, seeded(Keeps)) == []
    with pytest.raises(NotChecked, match="right one token at a time, and 4 tokens at once after 2"):
        found(LAW, seeded(KeepsForSteps))


def test_several_tokens_behind_a_cache() -> None:
    finding = one(LAW, seeded(WrongCorner))
    assert (finding.name, finding.severity) == ("causal-corner", "bug")
    assert finding.numbers["change"] > 0.01


def test_healthy_ones() -> None:
    assert found(LAW, seeded(Steps)) == []
    assert found(LAW, seeded(Fills)) == []
    assert found(LAW, MultiHeadAttention(16, 4, positions=Rope(4))) == []


def test_where_there_is_no_cache() -> None:
    for module in (seeded(Attention), nn.MultiheadAttention(16, 4)):
        with pytest.raises(NotChecked, match="cache"):
            found(LAW, module)


class FirstKeyOnly(Steps):
    """The mask of one query and many keys starts in the upper left corner."""

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        return functional.scaled_dot_product_attention(q, k, v, allowed)


def test_a_step_that_sees_the_first_key_only() -> None:
    finding = one(LAW, seeded(FirstKeyOnly))
    assert (finding.name, finding.severity) == ("causal-corner", "bug")
    assert finding.numbers["first"] == 3


class OneTokenBehind(WrongCorner):
    """kv_cache: as the last call returned it; x is then one token."""


def test_several_tokens_are_not_asked_of_one() -> None:
    assert found(LAW, seeded(OneTokenBehind)) == []


def test_chunks_are_asked_of_code_that_takes_no_mask() -> None:
    class Plain(WrongCorner):
        def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)

    module = seeded(Plain)
    with_mask = type("WithMask", (Plain,), {"forward": _with_mask})
    assert one(LAW, module).severity == "bug"
    assert one(LAW, seeded(with_mask)).severity == "risk"


def _with_mask(self: Any, x: Tensor, kv_cache: Any = None, mask: Tensor | None = None) -> Any:
    return Steps.forward(self, x, kv_cache)


class LongChunks(Steps):
    """More than eight tokens at once overwrite the keys of the cached ones."""

    def join(self, cache: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if k.shape[2] > 8:
            cache = (torch.zeros_like(cache[0]), cache[1])
        return super().join(cache, k, v)


def test_a_long_chunk() -> None:
    finding = one(LAW, seeded(LongChunks))
    assert (finding.name, finding.severity) == ("cache-mismatch", "bug")
    assert "at once" in finding.evidence


class Begun(Attention):
    """An empty dict starts a cache, and a new one is returned; without one there is none."""

    always = True  # whether the causal mask is used with a cache, too

    def forward(self, x: Tensor, cache: dict[str, Tensor] | None = None) -> Any:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if cache:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        n, m = q.shape[2], k.shape[2]
        allowed = torch.ones(n, m, dtype=torch.bool).tril(m - n) if self.always or cache is None else None
        out = self.out(self.merge(self.fill(self.score(q, k), allowed).softmax(-1) @ v))
        return out, None if cache is None else {"k": k, "v": v}


class PrefillSeesTheFuture(Begun):
    always = False


def test_a_prompt_that_starts_a_cache() -> None:
    finding = one(LAW, seeded(PrefillSeesTheFuture))
    assert (finding.name, finding.severity) == ("causal-leak", "bug")
    assert "2 tokens at once after 0 cached ones" in finding.evidence
    assert found(LAW, seeded(Begun)) == []


class Decoder(nn.Module):
    """Causal self-attention, then a memory, whose keys are cached in the first call."""

    kept = 99  # of the memory

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Attention(), Attention()

    def forward(self, x: Tensor, memory: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> Any:
        past, kept = (x[:, :0], memory) if cache is None else cache
        whole = torch.cat([past, x], 1)
        n, m = x.shape[1], whole.shape[1]
        x = x + self.own.attend(x, whole, torch.ones(n, m, dtype=torch.bool).tril(m - n))
        return x + self.cross.attend(x, kept, None), (whole, kept[:, -self.kept :])


class CutsTheMemory(Decoder):
    kept = 3


def test_a_cache_of_the_memory() -> None:
    finding = one(LAW, seeded(CutsTheMemory))
    assert (finding.name, finding.severity) == ("cache-mismatch", "bug")
    assert "from position 3 on" in finding.evidence
    assert found(LAW, seeded(Decoder)) == []


def test_which_tokens_differ() -> None:
    x = torch.ones(2, 4, 3)
    other = x.clone()
    other[1, 2, 0] = 1.1
    other[:, 3] += 1e-6
    assert differing(x, other) == [2]
