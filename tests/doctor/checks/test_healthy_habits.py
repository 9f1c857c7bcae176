"""Healthy modules with habits that were once taken for mistakes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise


class Attention(nn.Module):
    def __init__(self, width: int = 16, scale: float = 0.5, causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale, self.lower = scale, causal
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor | None = None, allowed: Tensor | None = None) -> Tensor:
        kv = x if memory is None else memory
        q, k, v = (f(y).unflatten(-1, (4, -1)).transpose(1, 2) for f, y in ((self.q, x), (self.k, kv), (self.v, kv)))
        scores = q @ k.mT * self.scale
        if self.lower:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if allowed is not None:
            scores = scores.masked_fill(~allowed, torch.finfo(x.dtype).min)
        out: Tensor = self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out


class Joint(nn.Module):
    """Two streams attend to both, each with its own output projection; returns the pair."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a_qkv, self.b_qkv, self.a_out, self.b_out = (nn.Linear(16, n) for n in (48, 48, 16, 16))

    def forward(self, hidden_states: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        both = [
            torch.cat(pair, 1)
            for pair in zip(self.a_qkv(hidden_states).chunk(3, -1), self.b_qkv(context).chunk(3, -1), strict=True)
        ]
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in both)
        out = ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)
        n = hidden_states.shape[1]
        return self.a_out(out[:, :n]), self.b_out(out[:, n:])


class Labels(nn.Module):
    """One learned query for each of five labels; attention_mask [B, N]: 1 for tokens, 0 for padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.labels, self.attention = nn.Parameter(torch.randn(5, 16)), Attention()

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        allowed = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        out: Tensor = self.attention(self.labels.expand(len(x), -1, -1), x, allowed)
        return out


class Seeds(nn.Module):
    """Learned queries that are the same for all examples pool a set (Lee et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.seeds, self.q, self.kv, self.o = (
            nn.Parameter(torch.randn(2, 16)),
            *(nn.Linear(16, n) for n in (16, 32, 16)),
        )

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(self.seeds).view(2, 4, 4)
        k, v = (t.unflatten(-1, (4, 4)) for t in self.kv(x).chunk(2, -1))
        weights = (torch.einsum("mhd,bnhd->bhmn", q, k) / 2).softmax(-1)
        out: Tensor = self.o(torch.einsum("bhmn,bnhd->bmhd", weights, v).flatten(2))
        return out


class Layers(nn.Module):
    """Layer i divides its scores by i + 1 too, as GPT-2 may."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(scale=0.5 / (i + 1)) for i in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Unused(Attention):
    """An argument for a cache, which nothing is written to."""

    def forward(self, x: Tensor, incremental_state: dict[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q, k, v = (f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q @ k.mT / 2).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2)), weights


class Clips(nn.Module):
    """x attends to memory; masks [B, N] are True at padding. Rows of padding of x are the caller's business."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(
        self, x: Tensor, memory: Tensor, x_mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        allowed = None if memory_mask is None else ~memory_mask[:, None, None, :]
        out: Tensor = self.attention(x, memory, allowed)
        return out


class Gated(Attention):
    """A branch that begins at 0 (ReZero)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return x + self.gate * super().forward(x)


class Padded(Attention):
    """Causal. attention_mask [B, N]: 1 for tokens, 0 for padding; padding attends to itself."""

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        n = x.shape[1]
        allowed = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
        if attention_mask is not None:
            allowed = (allowed & attention_mask[:, None, None, :].bool()) | torch.eye(n, dtype=torch.bool)
        return super().forward(x, None, allowed)


@pytest.mark.parametrize("kind", [Joint, Labels, Seeds, Layers, Unused, Clips, Gated, Padded])
def test_it_has_no_bug(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    found = headwise.diagnose(kind())
    assert found.healthy, str(found)


class Window(nn.Module):
    """Causal; each token sees the last `window_size` tokens, itself included."""

    def __init__(self, window_size: int = 3, applied: bool = True) -> None:
        super().__init__()
        self.window_size, self.applied, self.attention = window_size, applied, Attention()

    def forward(self, x: Tensor) -> Tensor:
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if self.applied:
            allowed = allowed & ~torch.ones_like(allowed).tril(-self.window_size)
        out: Tensor = self.attention(x, None, allowed)
        return out


def test_a_window_that_is_not_applied() -> None:
    assert headwise.diagnose(Window()).healthy
    risk = next(x for x in headwise.diagnose(Window(applied=False)).findings if x.name == "window-ignored")
    assert risk.severity == "risk"  # no option switches it on
    assert "with window_size = 3 a position attends to 8 earlier positions" in risk.evidence


class Cross(Attention):
    """memory_mask [B, K]: 1 for tokens of the memory, 0 for padding."""

    def __init__(self, zeroes: bool = False) -> None:
        super().__init__()
        self.zeroes = zeroes

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:  # type: ignore[override]
        if self.zeroes:
            return super().forward(x, memory * memory_mask[..., None])
        return super().forward(x, memory, memory_mask[:, None, None, :].bool())


def test_padding_that_is_zeroed_keeps_a_weight() -> None:
    assert headwise.diagnose(Cross()).healthy
    (bug,) = headwise.diagnose(Cross(zeroes=True)).bugs
    assert bug.name == "masked-key-counts"
    assert "masked key keeps a weight" in bug.evidence


class Segments(Attention):
    """decoder_segment_ids [B, N]: tokens attend to those of the same id; 0 is padding."""

    def __init__(self, applied: bool = True) -> None:
        super().__init__()
        self.applied = applied

    def forward(self, x: Tensor, decoder_segment_ids: Tensor | None = None) -> Tensor:  # type: ignore[override]
        allowed = None
        if decoder_segment_ids is not None and self.applied:
            same = decoder_segment_ids[:, :, None] == decoder_segment_ids[:, None, :]
            allowed = (same & (decoder_segment_ids != 0)[:, None])[:, None]
        return super().forward(x, None, allowed)


def test_ids_of_documents_with_another_name() -> None:
    assert headwise.diagnose(Segments()).healthy
    assert [x.name for x in headwise.diagnose(Segments(applied=False)).bugs] == ["packing-leak"]


class Differential(nn.Module):
    """Two softmaxes a head, subtracted before they meet the values (Differential Transformer)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.lam = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = (f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f in (self.q, self.k))
        v = self.v(x).unflatten(-1, (2, 8)).transpose(1, 2)
        first, second = (q @ k.mT / 2).softmax(-1).unflatten(1, (2, 2)).unbind(2)
        out: Tensor = self.o(((first - self.lam * second) @ v).transpose(1, 2).flatten(2))
        return out


def folded(x: Tensor, wq: Tensor, wkv: Tensor) -> Tensor:
    """1/sqrt(d) is part of wq, hence scale=1."""
    q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in (x @ wq, *(x @ wkv).chunk(2, -1)))
    return nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2)


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wq, self.wkv = nn.Parameter(torch.randn(16, 16) / 8), nn.Parameter(torch.randn(16, 32) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return folded(x, self.wq, self.wkv)


class Decodes(Attention):
    """For streaming."""

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


@pytest.mark.parametrize("kind", [Differential, Folded, Decodes])
def test_other_habits_have_no_bug(kind: type[nn.Module]) -> None:
    assert headwise.diagnose(kind()).bugs == ()


class Edges(Attention):
    """adj: [B, Q, K], weights of edges, 0 = none."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((4, 1, 1), 0.7))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        logs = torch.where(adj != 0, adj, torch.ones_like(adj)).log()[:, None]
        scores = (q @ k.mT / 2 + self.gain * logs).masked_fill((adj == 0)[:, None], -1e9)
        out: Tensor = self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out


def test_a_parameter_that_only_the_example_s_numbers_reach() -> None:
    adj = torch.rand(2, 6, 6) + 0.1
    assert headwise.diagnose(Edges(), example=((torch.randn(2, 6, 16), adj), {})).bugs == ()


class Fills(Attention):
    """Attends to what the cache holds, too."""

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:  # type: ignore[override]
        cache.append(x)
        return super().forward(x, torch.cat(cache, 1))


def test_the_example_stays_as_it_was_given() -> None:
    cache = [torch.randn(2, 3, 16)]
    headwise.diagnose(Fills(), example=((torch.randn(2, 4, 16), cache), {}))
    assert len(cache) == 1


class Additive(nn.Module):
    """One decoder state [B, 1, M] looks at the encoder's outputs (Bahdanau et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wa, self.ua, self.va = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.va(torch.tanh(self.wa(query) + self.ua(keys))).mT.softmax(-1)
        return weights @ keys, weights


def test_one_query_over_keys_as_values() -> None:
    assert headwise.diagnose(Additive()).bugs == ()
