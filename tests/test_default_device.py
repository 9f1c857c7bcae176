"""Calls, modules, watches and edits do not depend on torch's default device: they work where their own tensors are.

"meta", whose tensors have no values, stands for a default device on which none of these tensors is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise import analyses, edits, masks
from headwise.kernels.measure import count_flops
from headwise.kernels.plan import KERNELS
from headwise.masks import Mask
from headwise.nn import Cache, DecoderLayer, MultiHeadAttention, positions
from tests.mask_zoo import ZOO

B, H, G, N = 2, 4, 2, 70  # more than one block of 64
ELSEWHERE = torch.device("meta")

# Not flex: it compiles for seconds, and what it gets of a mask is the block mask. Decode has its own test.
KERNELS_HERE = ["auto", *(name for name in KERNELS if name not in ("flex", "decode"))]


def made(name: str) -> Mask:
    return ZOO[name](B, H, N, N)


def qkv(*, trains: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, heads, N, 8, generator=generator, device="cpu") for heads in (H, G, G))
    return q.requires_grad_(trains), k.requires_grad_(trains), v


def same(ask: Callable[[], Sequence[Tensor | None]]) -> bool:
    """Whether the tensors that are asked for are the same, on the same devices, with another default device."""
    expected = ask()
    with ELSEWHERE:
        found = ask()
    return len(found) == len(expected) and all(map(_same, found, expected))


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.device == b.device and torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("name", ZOO)
def test_masks(name: str) -> None:
    def ask() -> list[Tensor | None]:
        mask.__dict__.pop("_memo", None)
        flex = mask.to_block_mask(N, block_size=16)
        extents = mask.extent([0, 9], [3, 20], [1, 2], 30)
        grids = [mask.blocks(N, N, 16), mask.causal_rows(N, N), mask.used_keys(N, N), extents]
        return [mask.to_bool(N, device="cpu"), mask.to_additive(N, device="cpu"), *grids, flex.kv_indices]

    mask = made(name)
    assert same(ask)
    with ELSEWHERE:
        found = repr(mask), mask.draw(N), mask.to_bool(N).device
    assert found == (repr(mask), mask.draw(N), mask.device or ELSEWHERE)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("kernel", KERNELS_HERE)
def test_kernels(kernel: str, name: str) -> None:
    mask = made(name)

    def ask() -> list[Tensor]:
        mask.__dict__.pop("_memo", None)  # what was found before is not found again
        out = headwise.attention(*qkv(), mask=mask, kernel=kernel)
        q, k, v = qkv(trains=True)
        trained = headwise.attention(q, k, v, mask=mask, kernel=kernel)
        return [out, trained.detach(), *torch.autograd.grad(trained.square().sum(), (q, k))]

    assert same(ask)


@pytest.mark.parametrize("kernel", ["auto", "decode"])
@pytest.mark.parametrize("mask", [None, masks.window(9, 0), masks.lengths(torch.tensor([5, N]))])
def test_decoding(mask: Mask | None, kernel: str) -> None:
    q, k, v = qkv()
    assert same(lambda: [headwise.attention(q[:, :, :1], k, v, mask=mask, kernel=kernel)])


@pytest.mark.parametrize("form", ["causal", "padding", "random"])
def test_a_bool_tensor_as_mask(form: str) -> None:
    real = torch.arange(N) < N - torch.tensor([[3], [0]])
    random = torch.rand(N, N, generator=torch.Generator().manual_seed(1)) > 0.5
    given = {"causal": torch.ones(N, N, dtype=torch.bool).tril(), "padding": real[:, None, None], "random": random}
    q, k, v = qkv()

    def ask() -> list[Tensor]:
        mask = given[form].clone()  # one that is recognised anew
        return [headwise.attention(q, k, v, mask=mask) for _ in range(2)]

    assert same(ask)


def test_options() -> None:
    q, k, v = qkv(trains=True)
    bias, slopes, sinks = torch.randn(1, H, N, N), torch.rand(H), torch.randn(H)

    def ask() -> list[Tensor]:
        torch.manual_seed(0)
        found = [headwise.attention(q, k, v, mask=masks.window(9, 0), bias=bias, slopes=slopes, sinks=sinks)]
        found.append(headwise.attention(q, k, v, mask=masks.causal(), dropout=0.5))
        return [*(x.detach() for x in found), *torch.autograd.grad(torch.stack(found).square().sum(), (q, k))]

    assert same(ask)


def test_plans() -> None:
    q, k, v = qkv()
    mask = made("documents") & masks.causal()
    expected = str(headwise.plan(q, k, v, mask=mask))
    mask = made("documents") & masks.causal()
    with ELSEWHERE:
        assert str(headwise.plan(q, k, v, mask=mask)) == expected


def test_a_mask_of_lists_is_on_the_default_device() -> None:
    here = torch.zeros(2, 5, dtype=torch.long)
    with ELSEWHERE:  # as by torch.tensor, which leaves a tensor where it is
        assert masks.documents([0, 0, 1]).device == masks.big_bird(9, block_size=3).device == ELSEWHERE
        of_tensors = masks.lengths(here[0]), masks.padding(here), masks.documents(here), masks.knockout(here, here)
    assert {x.device for mask in of_tensors for x in mask.tensors} == {here.device}


class Eager(nn.Module):
    """Attention as people write it, with matrix products and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / 2
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Fused(Eager):
    """The same by torch's function."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class Own(nn.Module):
    """headwise's module, with padding and a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(16, 4, num_kv_heads=2, positions=positions.Rope(4))

    def forward(self, x: Tensor) -> Tensor:
        cache = Cache()
        real = x[..., 0] < 9.0
        parts = [(x[:, :5], real[:, :5]), (x[:, 5:], real[:, 5:])]
        return torch.cat([self.attention(y, mask=masks.causal(), cache=cache, real=r) for y, r in parts], 1)


MODELS = [Eager, Fused, Own]


def model_and_input(kind: type[nn.Module]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 9, 16)
    x[1, :3, 0] = 9.0
    return kind().eval(), x


@pytest.mark.parametrize("kind", MODELS)
def test_records(kind: type[nn.Module], tmp_path: Path) -> None:
    model, x = model_and_input(kind)

    def ask() -> list[Tensor]:
        with headwise.watch(model, values=True, gradients=True) as seen:
            model(x).square().sum().backward()
        record = seen.call(0)[0]
        names = ("entropy", "received", "first_visible", "keys_needed", "top", "pooled_mean", "offset_mass")
        found = record.statistics(*names, top=2, size=3, offsets=(0, 1)).__dict__.values()
        seen.summary()
        seen.save(tmp_path / "run.hw")
        loaded = headwise.load(tmp_path / "run.hw").call(0)[0]
        more = [
            record.weights(),
            record.weights(rows=[1], heads=[0]),
            record.call.allowed(),
            record.lse,
            loaded.weights(),
        ]
        return (
            [x for x in found if isinstance(x, Tensor)]
            + more
            + [analyses.rollout(seen.call(0)), analyses.flow(seen.call(0))]
        )

    assert same(ask)


EDITS: dict[str, Callable[[], Any]] = {
    "block": lambda: edits.block("*", queries=slice(1, None), keys=0),
    "only": lambda: edits.only("*", queries=[3], keys=[1, 2]),
    "ablate": lambda: edits.ablate("*", heads=1, how="mean"),
    "head mask": lambda: edits.head_mask("*", 0.5, heads=[0]),
    "head mask that trains": lambda: edits.head_mask("*", torch.full((4,), 0.5, device="cpu", requires_grad=True)),
    "steer": lambda: edits.steer("*", keys=[0], by=2.0),
    "temperature": lambda: edits.temperature("*", 0.7),
    "topk": lambda: edits.topk("*", 2),
    "window": lambda: edits.window("*", 2),
    "weights": lambda: edits.weights("*", lambda weights, at, rows: weights * 0.5),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("kind", [Eager, Fused])
def test_edits(kind: type[nn.Module], name: str) -> None:
    model, x = model_and_input(kind)

    def ask() -> list[Tensor]:
        with headwise.edit(model, EDITS[name]()), headwise.watch(model) as seen:
            out = model(x)
        return [out.detach(), seen[0].weights()]

    assert same(ask)


def test_parameters_are_made_on_the_default_device() -> None:
    with ELSEWHERE:
        layer = DecoderLayer(16, num_heads=4, memory_dim=16)
        scheme = positions.Learned(8, 16)
    assert {x.device for x in (*layer.parameters(), *layer.buffers(), *scheme.parameters())} == {ELSEWHERE}


def test_the_flops_that_are_measured_against() -> None:
    call = headwise.call.make_call(*qkv(), mask=masks.documents(torch.arange(N) // 9))
    expected = count_flops(call)
    with ELSEWHERE:
        assert count_flops(call) == expected
