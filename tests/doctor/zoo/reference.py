"""What each specimen should compute: its own weights, put through the float64 reference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headwise.functional import attention

Weight = tuple[Tensor, Tensor | None]  # [out, in] and [out]
Where = str | Callable[[nn.Module], Weight]

BATCH, LENGTH, MEMORY = 3, 7, 10


def allowed_cells(kind: str, length: int, key_length: int) -> Tensor:
    """Who may attend to whom [B, Q, K]; `kind` is some of "causal", "padding", "left", "cells" or "window 3"."""
    generator = torch.Generator().manual_seed(3)
    allowed = torch.ones(BATCH, length, key_length, dtype=torch.bool)
    q, k = torch.arange(length)[:, None], torch.arange(key_length)
    for word in kind.split():
        if word == "causal":
            allowed &= k <= q
        elif word == "padding":
            allowed &= k < torch.tensor([key_length, key_length - 2, key_length - 4])[:, None, None]
        elif word == "left":
            allowed &= k >= torch.tensor([0, 1, 3])[:, None, None]
        elif word == "cells":
            allowed &= (torch.rand(allowed.shape, generator=generator) < 0.6) | (k == q % key_length)
        elif word == "documents":
            allowed &= (k >= 3) == (q >= 3)
        elif word.isdigit():  # a window of so many tokens
            allowed &= q - k < int(word)
        else:
            raise ValueError(f"{word!r} is no kind of mask")
    return allowed


def part(name: str, index: int, parts: int = 3) -> Where:
    """One of equal parts, one after the other, of a fused projection."""

    def weight(module: nn.Module) -> Weight:
        linear: Any = module.get_submodule(name)
        bias = None if linear.bias is None else linear.bias.chunk(parts)[index]
        return linear.weight.chunk(parts)[index], bias

    return weight


def interleaved(name: str, index: int, heads: int) -> Where:
    """One of query, key, value of a projection that has them side by side in every head."""

    def weight(module: nn.Module) -> Weight:
        linear: Any = module.get_submodule(name)
        rows = linear.weight.unflatten(0, (heads, 3, -1))[:, index].flatten(0, 1)
        return rows, None if linear.bias is None else linear.bias.view(heads, 3, -1)[:, index].flatten()

    return weight


def shared(name: str, heads: int = 4) -> Where:
    """A projection of one head's width that all heads share."""

    def weight(module: nn.Module) -> Weight:
        linear: Any = module.get_submodule(name)
        return torch.kron(torch.eye(heads), linear.weight), None

    return weight


def listed(name: str) -> Where:
    """A projection in every one of a list of heads."""

    def weight(module: nn.Module) -> Weight:
        linears: list[Any] = [getattr(head, name) for head in module.heads]  # type: ignore[union-attr]
        bias = None if linears[0].bias is None else torch.cat([x.bias for x in linears])
        return torch.cat([x.weight for x in linears]), bias

    return weight


def tensor(name: str, bias: str | None = None) -> Where:
    """A weight [H, M, D]."""

    def weight(module: nn.Module) -> Weight:
        offset = None if bias is None else getattr(module, bias).flatten()
        return getattr(module, name).transpose(1, 2).flatten(0, 1), offset

    return weight


def rows(name: str, *cut: int) -> Where:
    """Rows of a projection."""

    def weight(module: nn.Module) -> Weight:
        linear: Any = module.get_submodule(name)
        return linear.weight[slice(*cut)], None if linear.bias is None else linear.bias[slice(*cut)]

    return weight


def alone(module: nn.Module, x: Tensor, memory: Tensor, allowed: Tensor) -> Any:
    return module(x)


def turn_halves(x: Tensor) -> Tensor:
    """Rotary positions 0, 1, ... for x [B, H, N, D], channel i paired with i + D/2."""
    n, d = x.shape[-2:]
    angle = torch.arange(n, dtype=x.dtype)[:, None] * 10000.0 ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


def turn_neighbours(x: Tensor) -> Tensor:
    """The same, channel 2i paired with 2i + 1."""
    d = x.shape[-1]
    order = torch.cat([torch.arange(0, d, 2), torch.arange(1, d, 2)])
    return turn_halves(x[..., order])[..., order.argsort()]


def apply(where: Where | None, module: nn.Module, x: Tensor) -> Tensor:
    if where is None:
        return x
    if isinstance(where, str):
        linear: Any = module.get_submodule(where)
        weight, bias = linear.weight, linear.bias
    else:
        weight, bias = where(module)
    y = x @ weight.detach().double().mT
    return y if bias is None else y + bias.detach().double()


@dataclasses.dataclass(frozen=True)
class Right:
    """How a specimen is called, and what should come out."""

    run: Callable[[nn.Module, Tensor, Tensor, Tensor], Any] = alone  # with x, memory and who may attend [B, Q, K]
    q: Where = "q_proj"
    k: Where = "k_proj"
    v: Where = "v_proj"
    o: Where | None = "out_proj"
    heads: int = 4
    kv_heads: int | None = None
    width: int = 48
    memory: int | None = None  # width of what it attends to; None: to x itself
    allowed: str = ""
    scale: float | Callable[[nn.Module], float] | None = None
    softcap: float | None = None
    bias: Callable[[nn.Module], Tensor] | None = None
    turn: Callable[[Tensor], Tensor] | None = None
    before: Callable[[nn.Module, Tensor], Tensor] | None = None  # x, before the projections
    after: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None  # x and the output
    heads_of: Callable[[nn.Module, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None
    whole: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor] | None = None  # in place of everything else

    def inputs(self, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(BATCH, LENGTH, self.width, generator=generator)
        width = self.width if self.memory is None else self.memory
        memory = x if self.memory is None else torch.randn(BATCH, MEMORY, width, generator=generator)
        return x, memory, allowed_cells(self.allowed, LENGTH, memory.shape[1])

    def expected(self, module: nn.Module, x: Tensor, memory: Tensor, allowed: Tensor) -> Tensor:
        """The output in float64."""
        x_in, x, memory = x.double(), x.double(), memory.double()
        if self.whole is not None:
            return self.whole(module, x, memory, allowed)
        if self.before is not None:
            memory = x = self.before(module, x)
        kv_heads = self.kv_heads or self.heads
        q = apply(self.q, module, x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = apply(self.k, module, memory).unflatten(-1, (kv_heads, -1)).transpose(1, 2)
        v = apply(self.v, module, memory).unflatten(-1, (kv_heads, -1)).transpose(1, 2)
        if self.heads_of is not None:
            q, k, v = self.heads_of(module, q, k, v)
        if self.turn is not None:
            q, k = self.turn(q), self.turn(k)
        out = attention(
            q,
            k,
            v,
            mask=allowed[:, None].expand(-1, self.heads, -1, -1),
            bias=None if self.bias is None else self.bias(module).detach().double(),
            scale=self.scale(module) if callable(self.scale) else self.scale,
            softcap=self.softcap,
            kernel="reference",
        )
        y = apply(self.o, module, out.transpose(1, 2).flatten(2))
        return y if self.after is None else self.after(module, x_in, y)

    def error(self, module: nn.Module, seed: int = 0) -> float:
        """The largest difference, over the queries that may attend to anything, for outputs of size one."""
        x, memory, allowed = self.inputs(seed)
        with torch.no_grad():
            got = self.run(module, x.clone(), memory.clone() if self.memory else x.clone(), allowed)
            got = got[0] if isinstance(got, tuple) else got
            expected = self.expected(module, x, memory, allowed)
        some = allowed.any(-1)
        difference = (got.double() - expected)[some].abs().max() / expected[some].std()
        return math.inf if difference.isnan() else float(difference)
