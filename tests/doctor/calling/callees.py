"""Modules that are called in all kinds of ways: what `test_interface.py` finds out about."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


def fused(q: Tensor, k: Tensor, v: Tensor, heads: int = 4, **options: Any) -> Tensor:
    split = [x.unflatten(-1, (heads, -1)).transpose(-3, -2) for x in (q, k, v)]
    return scaled_dot_product_attention(*split, **options).transpose(-3, -2).flatten(-2)


class Projected(nn.Module):
    """q, k, v and o of one width."""

    def __init__(self, dim: int = 24, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return self.o(fused(self.q(q), self.k(k), self.v(v), self.num_heads, **options))


class UnknownNames(Projected):
    """Nothing in the names: only c is as long as the output, and the output is linear in a alone."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.attend(c, b, a)


class OptionalContext(Projected):
    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        return self.attend(x, context, context)


class ToItself(Projected):
    """It must be told that it has no memory, since it was built without a projection for one."""

    def forward(self, x: Tensor, memory: Tensor | None) -> Tensor:
        return self.attend(x, x, x) if memory is None else self.attend(x, self.of_memory(memory), memory)


class Packed(Projected):
    def forward(self, inputs: list[Tensor]) -> Tensor:
        query, key, value = inputs
        return self.attend(query, key, value)


class Unbatched(nn.Module):
    def __init__(self, d_in: int = 6, d_out: int = 10) -> None:
        super().__init__()
        self.w_query, self.w_key, self.w_value = (nn.Linear(d_in, d_out) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = (self.w_query(x) @ self.w_key(x).mT / 10**0.5).softmax(-1)
        if x.ndim != 2:
            raise ValueError("expected [tokens, features]")
        return weights @ self.w_value(x), weights


class SplitAlready(nn.Module):
    """What takes [B, H, N, D]."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        _, _, _, d = q.shape
        weights = (q @ k.mT / d**0.5).softmax(-1)
        return weights @ v, weights


class Pixels(nn.Module):
    """What takes pictures [B, C, H, W]."""

    def __init__(self, in_channels: int = 12) -> None:
        super().__init__()
        self.query, self.key = nn.Conv2d(in_channels, 3, 1), nn.Conv2d(in_channels, 3, 1)
        self.value = nn.Conv2d(in_channels, in_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = (layer(x).flatten(2) for layer in (self.query, self.key, self.value))
        return (v @ (q.mT @ k).softmax(-1).mT).view(b, c, h, w)


class OneQuery(nn.Module):
    """The decoder's state [B, M] attends to the encoder's outputs."""

    def __init__(self, hidden_size: int = 20) -> None:
        super().__init__()
        self.w, self.u, self.score = nn.Linear(hidden_size, 8), nn.Linear(hidden_size, 8), nn.Linear(8, 1)

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        energy = self.score(torch.tanh(self.w(hidden)[:, None] + self.u(encoder_outputs)))
        return (energy.softmax(1) * encoder_outputs).sum(1)


class OneState(OneQuery):
    """The state is [layers, B, M], as an RNN returns it, and the output [B, 1, M]."""

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        return super().forward(hidden[-1], encoder_outputs)[:, None]


class FixedLength(Projected):
    """A table of biases for 6 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.window_size = (2, 3)
        self.table = nn.Parameter(torch.randn(4, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x, attn_mask=self.table)


class Configured(nn.Module):
    """Sizes in a config, rotations from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.args = types.SimpleNamespace(dim=32, n_heads=4, n_kv_heads=2)
        self.wq, self.wk, self.wv = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, 8)) for w in (self.wq, self.wk, self.wv))
        q, k = (
            torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * freqs_cis[:, None]).flatten(-2)
            for t in (q, k)
        )
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(2, 2))
        scores = scores if mask is None else scores + mask
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.repeat_interleave(2, 2)).flatten(-2)


class Named(Projected):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        weights = (self.q(x) @ self.k(x).mT).softmax(-1)
        return {"attentions": weights, "last_hidden_state": weights @ self.v(x)}


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.qkv, self.out = nn.LazyLinear(96), nn.LazyLinear(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(fused(*self.qkv(x).chunk(3, -1)))


class Picture(Projected):
    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        grid = x.mT.reshape(x.shape[0], -1, H, W).flatten(2).mT
        return self.attend(x, grid, grid)
