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


def test_chunks_are_asked_of_code_that_takes_no_mask() -> None:
    class Plain(WrongCorner):
        def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)

    module = seeded(Plain)
    with_mask = type("WithMask", (Plain,), {"forward": _with_mask})
    assert one("cache", module).severity == "bug"
    assert one("cache", seeded(with_mask)).severity == "risk"


def _with_mask(self: Any, x: Tensor, kv_cache: Any = None, mask: Tensor | None = None) -> Any:
    return Steps.forward(self, x, kv_cache)


class Ring:
    """The last `size` keys and values, in slots that are used again."""

    def __init__(self, batch_size: int, num_heads: int, size: int, head_dim: int) -> None:
        self.kv = torch.zeros(2, batch_size, num_heads, size, head_dim)
        self.places = torch.full((size,), -1)


class RingCache(Ring):
    """By this name the class is found, and its sizes by those of its arguments."""


class Windowed(Attention):
    """A position sees itself and `window - 1` before it."""

    def __init__(self, slots: int = 5, keep: int = 5) -> None:
        super().__init__()
        self.window, self.slots, self.keep = 5, slots, keep

    def new_cache(self, batch_size: int) -> Ring:
        return Ring(batch_size, self.heads, self.slots, 4)

    def forward(self, x: Tensor, cache: Any = None, cache_position: Any = None) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        at = torch.arange(x.shape[1])
        places, window = at, self.window
        if cache is not None:
            at, window = cache_position, self.keep
            if len(at) > 1 and int(at[0]):
                raise ValueError("one token at a time after the prompt")
            slot = at % self.slots
            cache.kv[:, :, :, slot] = torch.stack([k, v])
            cache.places[slot] = at
            if len(at) == 1:
                (k, v), places = cache.kv, cache.places
        apart = at[:, None] - places
        allowed = (apart >= 0) & (apart < window) & (places >= 0)
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, allowed)))


def test_a_ring_that_wraps_too_early() -> None:
    finding = one("cache", seeded(Windowed, slots=4))
    assert (finding.name, finding.numbers["first"]) == ("cache-mismatch", 4)
    assert found("cache", seeded(Windowed)) == []


def test_decoding_that_forgets_the_window() -> None:
    finding = one("cache", seeded(Windowed, slots=30, keep=30))
    assert (finding.name, finding.numbers["first"]) == ("cache-mismatch", 5)
    assert found("cache", seeded(Windowed, slots=30)) == []


def test_a_cache_that_only_the_example_has() -> None:
    class Hidden(FillsAStoreAtZero):
        def forward(self, x: Tensor, kv_cache: Any = None) -> Any:
            if kv_cache is not None and not isinstance(kv_cache, elsewhere):
                raise TypeError("another kind of cache")
            return super().forward(x, kv_cache)

    elsewhere = type("Elsewhere", (Store,), {"__init__": lambda self, said: Store.__init__(self)})
    example = ((torch.randn(2, 4, 16),), {"kv_cache": elsewhere("these words")})
    assert one("cache", seeded(Hidden), example=example).name == "cache-mismatch"


class LongChunks(Steps):
    """More than eight tokens at once overwrite the keys of the cached ones."""

    def join(self, cache: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if k.shape[2] > 8:
            cache = (torch.zeros_like(cache[0]), cache[1])
        return super().join(cache, k, v)


def test_a_long_chunk() -> None:
    finding = one("cache", seeded(LongChunks))
    assert (finding.name, finding.severity) == ("cache-mismatch", "bug")
    assert "at once" in finding.evidence


class NamedLikeAMemory(Steps):
    """Causal; kv holds the keys and values of earlier tokens."""

    def forward(self, x: Tensor, kv: tuple[Tensor, Tensor] | None = None) -> Any:
        return super().forward(x, kv)


class NamedLikeAMemoryWrongCorner(WrongCorner):
    """Causal; kv holds the keys and values of earlier tokens."""

    def forward(self, x: Tensor, kv: tuple[Tensor, Tensor] | None = None) -> Any:
        return super().forward(x, kv)


def test_a_pair_of_tensors_that_is_named_like_a_memory() -> None:
    assert one("cache", seeded(NamedLikeAMemoryWrongCorner)).name == "causal-corner"
    assert found("cache", seeded(NamedLikeAMemory)) == []


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
    finding = one("cache", seeded(PrefillSeesTheFuture))
    assert (finding.name, finding.severity) == ("causal-leak", "bug")
    assert "2 tokens at once after 0 cached ones" in finding.evidence
    assert found("cache", seeded(Begun)) == []


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
    finding = one("cache", seeded(CutsTheMemory))
    assert (finding.name, finding.severity) == ("cache-mismatch", "bug")
    assert "from position 3 on" in finding.evidence
    assert found("cache", seeded(Decoder)) == []


class TwoLayers(nn.Module):
    """Token ids; each layer has a cache of its own, and no argument and no text says that the future is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(30, 16), nn.ModuleList([Steps(), Steps()])

    def forward(self, input_ids: Tensor, past: Any = None) -> Any:
        x, kept = self.table(input_ids), []
        for i, layer in enumerate(self.layers):
            out, cache = layer(x, None if past is None else past[i])
            x, kept = x + out, [*kept, cache]
        return x, kept


class TwoLayersAtZero(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([StandsAtZero(), StandsAtZero()])


class TwoLayersThatSeeAll(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.step = functional.scaled_dot_product_attention  # type: ignore[assignment]


def test_a_model_that_shows_by_what_it_does_that_it_is_causal() -> None:
    finding = one("cache", seeded(TwoLayersAtZero))
    assert (finding.name, finding.severity) == ("cache-mismatch", "bug")
    assert found("cache", seeded(TwoLayers)) == []
    with pytest.raises(NotChecked, match="its tokens see later ones"):
        found("cache", seeded(TwoLayersThatSeeAll))
