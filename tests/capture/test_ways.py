"""Steps of one token in which the layers change how they compute attention, or run where torch takes modes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack

import headwise
from headwise import edits


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhqk,bhkd->bhqd", functional.softmax(scores, -1), v)


def inside_a_device(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.device("cpu"):  # a mode of its own
        return by_hand(q, k, v)


Way = Callable[[Tensor, Tensor, Tensor], Tensor]


class Layer(nn.Module):
    num_heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.past: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, way: Way) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (2, 4)).transpose(1, 2) for each in (self.q, self.k, self.v))
        if self.past is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(self.past, (k, v), strict=True))
        self.past = k, v
        return x + self.o(way(q, k, v).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: Tensor, *, way: Way = fused) -> Tensor:
        for each in self.layers:
            x = each(x, way)
        return x

    @torch.no_grad()
    def read(self, ways: list[Way], batch: int = 3) -> Tensor:
        """The outputs of a prompt of three tokens, and of one more token for each way."""
        for each in self.layers:
            each.past = None  # type: ignore[assignment]
        x = torch.randn(batch, 3 + len(ways), 8, generator=torch.Generator().manual_seed(1))
        found = [self(x[:, :3]), *(self(x[:, at : at + 1], way=way) for at, way in enumerate(ways, 3))]
        return torch.cat(found, 1)


@pytest.fixture
def model() -> Decoder:
    return Decoder()


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fused(*(each.transpose(0, 1) for each in (q, k, v))).transpose(0, 1)


def check_last(seen: headwise.Seen, model: Decoder, batch: int = 3) -> None:
    """Each record ends with the weights of the last step."""
    for record, layer in zip(seen, model.layers, strict=True):
        k, v = layer.past  # type: ignore[misc]
        assert record.shape == (batch, 2, k.shape[2], k.shape[2])
        torch.testing.assert_close(record.weights()[:, :, -1:] @ v, fused(record.call.q[:, :, -1:], k, v))


@pytest.mark.parametrize("way", [by_hand, by_einsum, inside_a_device])
def test_steps_that_go_another_way(model: Decoder, way: Way) -> None:
    ways: list[Way] = [fused, fused, way, fused, way, way, fused]
    plain = model.read(ways)
    with headwise.watch(model) as seen:
        assert torch.equal(model.read(ways), plain)
    check_last(seen, model)


@pytest.mark.parametrize("way", [by_hand, by_einsum])
def test_edited_steps_that_go_another_way(model: Decoder, way: Way) -> None:
    edit = edits.ablate("*", heads=0)
    with headwise.edit(model, edit):
        expected, found = model.read([fused] * 4), model.read([fused, way, way, fused])
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, model.read([fused] * 4))


def test_heads_before_as_many_examples(model: Decoder) -> None:
    """Which are which is known by where queries come from."""
    with headwise.watch(model) as seen:
        model.read([heads_first] * 4, batch=2)
    check_last(seen, model, batch=2)


class Buffered(Layer):
    """With a cache of a fixed size, which every pass writes to; several tokens are read a head at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer, self.filled = torch.zeros(3, 2, 16, 4), 0

    def forward(self, x: Tensor, way: Way) -> Tensor:
        h = self.q(x).unflatten(-1, (2, 4)).transpose(1, 2)
        begin, self.filled = self.filled, self.filled + x.shape[1]
        self.buffer[:, :, begin : self.filled] = h
        k = self.buffer[:, :, : self.filled]
        if x.shape[1] == 1:
            return way(h, k, k)
        return torch.cat([way(h[:, i : i + 1], k[:, i : i + 1], k[:, i : i + 1]) for i in range(2)], 1)


def test_keys_are_in_order_where_heads_are_a_loop() -> None:
    torch.manual_seed(0)
    layer, x = Buffered(), torch.randn(3, 7, 8)
    with torch.no_grad(), headwise.watch(layer) as seen:
        for begin, end in ((0, 3), (3, 4), (4, 5), (5, 7)):
            layer(x[:, begin:end], fused)
    last = list(seen)[-1]
    assert last.shape == (3, 2, 2, 7)
    expected = (last.call.q @ layer.buffer[:, :, :7].mT / 2).softmax(-1)
    torch.testing.assert_close(last.weights(), expected)


def test_a_pass_inside_of_an_operator(model: Decoder) -> None:
    @torch.library.custom_op("headwise_tests::read", mutates_args=())
    def read(x: Tensor) -> Tensor:
        return model.read([fused] * 2)

    x = torch.zeros(1)
    with headwise.watch(model) as seen, headwise.edit(model, edits.ablate("*", heads=0)):
        expected = model.read([fused] * 2)
        assert torch.equal(read(x), expected)
    assert [record.shape for record in seen] == [(3, 2, 5, 5)] * 4
    assert not _get_current_function_mode_stack()
    assert not torch.allclose(read(x), expected)


def test_a_pass_of_somebody_else_while_a_context_waits() -> None:
    """It runs a layer in a pool, in the thread in which an edit is open for another task."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer()

        def forward(self, x: Tensor) -> Tensor:
            with ThreadPoolExecutor(1) as pool:
                self.layer.past = None
                return pool.submit(self.layer, x, fused).result()

    model, x = Pooled(), torch.ones(1, 3, 8)

    async def editing(met: asyncio.Event, over: asyncio.Event) -> Tensor:
        with headwise.edit(model, edits.ablate("*", heads=0)):
            found: Tensor = model(x)
            met.set()
            await over.wait()
        return found

    async def both() -> list[Any]:
        met, over = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(editing(met, over))
        await met.wait()
        found = model(x)
        over.set()
        return [found, await task]

    plain, edited = asyncio.run(both())
    assert torch.equal(plain, model(x))
    assert not torch.allclose(edited, plain)
