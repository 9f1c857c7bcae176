"""Checks of cross-attention, of one process of several: queries that are dealt, keys of another sequence."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

import headwise
from headwise import masks, parallel
from headwise.masks import Mask
from headwise.models import EncoderDecoder, EncoderDecoderConfig
from headwise.nn import Decoder, MultiHeadAttention, positions
from tests.parallel.cases import told

ROWS, KEYS = 37, 22
NEAR = {"atol": 1e-10, "rtol": 1e-10}


def summed(mine: Tensor) -> Tensor:
    total = mine.clone()
    dist.all_reduce(total)
    return total


def call(mesh: DeviceMesh, mask: Mask | None, strategy: str, keys: int = KEYS, **options: Tensor) -> None:
    """One call: its output, and the gradients of all that it read, with keys that are whole and with keys dealt."""
    shapes = [(2, 6, ROWS, 4), (2, 3, keys, 4), (2, 3, keys, 8)]
    whole = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    learned = [x.requires_grad_() for x in options.values()]
    d_out = torch.randn(2, 6, ROWS, 8, dtype=torch.float64)
    expected = headwise.attention(*whole, mask=mask, **options)
    wanted = torch.autograd.grad(expected, [*whole, *learned], d_out)
    layout, memory = parallel.deal(masks.causal(), ROWS, mesh), parallel.deal(masks.window(2, 2), keys, mesh)
    for held in ("whole", memory):
        q = headwise.shard(whole[0].detach(), layout, mesh, dim=2).requires_grad_()
        k, v = (
            x if held == "whole" else headwise.shard(x.detach(), memory, mesh, dim=2).requires_grad_()
            for x in whole[1:]
        )
        with headwise.context_parallel(mesh, layout, memory=held, strategy=strategy), parallel.reading_memory():
            out = headwise.attention(q, k, v, mask=mask, **options)
        torch.testing.assert_close(headwise.gather(out, layout, mesh, dim=2), expected.detach(), **NEAR)
        found = torch.autograd.grad(out, [q, k, v, *learned], headwise.shard(d_out, layout, mesh, dim=2))
        torch.testing.assert_close(headwise.gather(found[0], layout, mesh, dim=2), wanted[0], **NEAR)
        for mine, full in zip(found[1:3], wanted[1:3], strict=True):
            there = summed(mine) if held == "whole" else headwise.gather(mine, memory, mesh, dim=2)
            torch.testing.assert_close(there, full, **NEAR)
        for mine, full in zip(found[3:], wanted[3:], strict=True):
            torch.testing.assert_close(summed(mine), full, **NEAR)


def calls(mesh: DeviceMesh) -> None:
    double: dict[str, Any] = {"dtype": torch.float64}
    dense = masks.from_tensor(torch.rand(6, ROWS, KEYS, generator=torch.Generator().manual_seed(2)) < 0.4)
    for strategy in ("auto", "gather", "heads"):
        call(mesh, None, strategy)
        call(mesh, dense, strategy, bias=torch.randn(6, ROWS, KEYS, **double))
        call(mesh, masks.lengths(torch.tensor([5, KEYS])), strategy, sinks=torch.rand(6, **double))
        call(mesh, masks.window(4, 9), strategy, slopes=torch.rand(6, **double))
    call(mesh, None, "auto", keys=ROWS)  # as many keys as rows, dealt in another way


def ring(mesh: DeviceMesh) -> None:
    """Keys that come one process after another: 1,200 rows of 900 keys."""
    q, k, v = (torch.randn(1, 2, length, 8) for length in (1200, 900, 900))
    layout, memory = parallel.deal(masks.causal(), 1200, mesh), parallel.deal(None, 900, mesh)
    bias = torch.randn(1200, 900)
    expected = headwise.attention(q, k, v, bias=bias)
    parts = [headwise.shard(q, layout, mesh, dim=2), *(headwise.shard(x, memory, mesh, dim=2) for x in (k, v))]
    with headwise.context_parallel(mesh, layout, memory=memory, strategy="ring"):
        out = headwise.attention(*parts, bias=bias)
    torch.testing.assert_close(headwise.gather(out, layout, mesh, dim=2), expected, atol=1e-5, rtol=1e-5)


def same_gradients(module: nn.Module, expected: Tensor, out: Tensor, d_out: Tensor, d_here: Tensor) -> None:
    learned = [x for x in module.parameters() if x.requires_grad]
    wanted, found = torch.autograd.grad(expected, learned, d_out), torch.autograd.grad(out, learned, d_here)
    for mine, full in zip(found, wanted, strict=True):
        torch.testing.assert_close(summed(mine), full, atol=1e-9, rtol=1e-9)


def decoder(mesh: DeviceMesh) -> None:
    """A decoder whose cross-attention counts positions too, and of whose memory some is padding."""

    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(16, 4, positions=positions.T5Buckets(4))

    model = Decoder(16, num_layers=2, self_attention=attention, cross_attention=attention).double()
    x, memory = torch.randn(2, ROWS, 16, dtype=torch.float64), torch.randn(2, KEYS, 16, dtype=torch.float64)
    real = torch.ones(2, KEYS, dtype=torch.bool)
    real[0, 15:] = False
    expected = model(x, memory, mask=masks.causal(), memory_real=real)
    d_out = torch.randn_like(expected)
    layout, other = parallel.deal(masks.causal(), ROWS, mesh), parallel.deal(None, KEYS, mesh)
    for held in ("whole", other):
        keys, known = (x if held == "whole" else headwise.shard(x, other, mesh) for x in (memory, real))
        with headwise.context_parallel(mesh, layout, memory=held):
            out = model(headwise.shard(x, layout, mesh), keys, mask=masks.causal(), memory_real=known)
        torch.testing.assert_close(headwise.gather(out, layout, mesh), expected.detach(), **NEAR)
        same_gradients(model, expected, out, d_out, headwise.shard(d_out, layout, mesh))
        expected = model(x, memory, mask=masks.causal(), memory_real=real)


def translated(mesh: DeviceMesh, scheme: Literal["rope", "sinusoidal", "learned"], rows: int = ROWS) -> None:
    config = EncoderDecoderConfig(
        30, dim=16, num_heads=2, encoder_layers=1, decoder_layers=2, dropout=0, positions=scheme
    )
    model = EncoderDecoder(config).double()
    source, target = torch.randint(30, (2, KEYS)), torch.randint(30, (2, rows))
    real = torch.ones(2, KEYS, dtype=torch.bool)
    real[1, 9:] = False
    layout, other = parallel.deal(masks.causal(), rows, mesh), parallel.deal(None, KEYS, mesh)
    for held in ("whole", other):
        expected = model(source, target, real)
        d_out = torch.randn_like(expected)
        given, known = (x if held == "whole" else headwise.shard(x, other, mesh) for x in (source, real))
        with headwise.context_parallel(mesh, layout, memory=held):
            out = model(given, headwise.shard(target, layout, mesh), known)
        torch.testing.assert_close(headwise.gather(out, layout, mesh), expected.detach(), **NEAR)
        same_gradients(model, expected, out, d_out, headwise.shard(d_out, layout, mesh))


def refused(mesh: DeviceMesh) -> None:
    layout, other = parallel.deal(None, 9, mesh), parallel.deal(masks.causal(), 9, mesh)
    q, few = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 2, 4)
    rank = dist.get_rank()
    uneven = torch.randn(1, 2, 4 + rank, 4)
    cases: list[tuple[dict[str, Any], tuple[Tensor, ...], str]] = [
        ({"layout": layout}, (q, few, few), "pass memory="),
        ({"memory": "whole"}, (q, few, few), "cross-attention must know which rows"),
        ({"layout": layout, "memory": other}, (q, q, q), "reading_memory()"),
        ({"layout": layout, "memory": other}, (q, few, few), "expected the rows of the memory that were dealt"),
        ({"layout": layout, "memory": "whole"}, (q, uneven, uneven), "the same keys in every process"),
        ({"layout": layout, "memory": "all"}, (q, few, few), "expected a layout, 'whole' or None"),
        (
            {"layout": layout, "memory": parallel.deal(None, 9, 2)},
            (q, few, few),
            "memory: expected one for 3 processes",
        ),
    ]

    def run(given: dict[str, Any], tensors: tuple[Tensor, ...]) -> None:
        with headwise.context_parallel(mesh, **given):
            headwise.attention(*tensors)

    for given, tensors, said in cases:
        assert said in told(partial(run, given, tensors)), said


CHECKS = {
    "cross: calls": calls,
    "cross: ring": ring,
    "cross: decoder": decoder,
    "cross: rope": lambda mesh: translated(mesh, "rope"),
    "cross: sinusoidal": lambda mesh: translated(mesh, "sinusoidal"),
    "cross: learned": lambda mesh: translated(mesh, "learned"),
    "cross: one row each": lambda mesh: translated(mesh, "rope", rows=mesh.size()),
    "cross: refused": refused,
}
