"""A decoder's step by the native kernels against its definition in float64, on each instruction set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.models import packed_decoder
from headwise.native.decoder import Decoder, Read, Source
from headwise.nn import Decoder as Stack
from headwise.nn import Encoder, MultiHeadAttention
from headwise.nn.positions import Rope

DIM, HEADS, VOCABULARY = 40, 2, 70  # a head of 20: no multiple of a vector


def rotary() -> MultiHeadAttention:
    return MultiHeadAttention(DIM, HEADS, positions=Rope(DIM // HEADS))


def stack(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "source":
        made: Any = Stack(DIM, num_heads=HEADS, num_layers=2, memory_dim=24, ffn_dim=50, activation="relu")
    elif kind == "rotary source":
        made = Stack(DIM, num_layers=2, num_heads=HEADS, self_attention=rotary, ffn_dim=50, activation="gelu")
    else:
        made = Encoder(DIM, num_layers=2, attention=rotary, norm="rms", activation="swiglu", bias=False)
    with torch.no_grad():
        for each in made.parameters():
            each += 0.2 * torch.randn_like(each)
    return made.eval()


KINDS = ("source", "rotary source", "alone")


def copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


class Steps:
    """Texts that begin at different steps, whose hypotheses go on from one another."""

    def __init__(self, kind: str, texts: int = 3, width: int = 2, slots: int = 9) -> None:
        self.stack, self.draws = stack(kind), torch.Generator().manual_seed(1)
        self.table = self.drawn(VOCABULARY, DIM)
        self.exact = stack(kind).double()
        self.texts, self.width = texts, width
        self.read = Read(
            *(torch.full((2, texts + 1, slots, width, DIM), torch.nan) for _ in range(2)),
            torch.full((texts, width, slots), -1),
            torch.zeros(texts, dtype=torch.int64),
        )
        self.seen = [[torch.zeros(0, DIM) for _ in range(width)] for _ in range(texts)]
        self.memory, self.source = [None] * texts, None
        if isinstance(self.stack, Stack):
            first: Any = self.stack.layers[0]
            self.memory = [self.drawn(length, first.cross_attention.kdim) for length in (4, 1, 6)[:texts]]
            keys, values = (torch.full((2, texts, 7, DIM), torch.nan) for _ in range(2))
            for i, layer in enumerate(self.stack.layers):
                for n, memory in enumerate(self.memory):
                    k, v = (y[0].transpose(0, 1).flatten(1) for y in layer.cross_attention.project(memory[None], "kv"))
                    keys[i, n, : len(memory)], values[i, n, : len(memory)] = k.detach(), v.detach()
            self.source = Source(keys, values, torch.tensor([len(x) for x in self.memory]))

    def drawn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.draws)

    def packed(self) -> Decoder:
        with torch.no_grad():
            found = packed_decoder._packed(self.stack, self.table, "float32")
        assert found is not None
        return found

    def next(self) -> Tensor:
        """The next token of each hypothesis, [T, M]; each goes on from one that is drawn."""
        x = self.drawn(self.texts, self.width, DIM)
        for n in range(self.texts):
            parents = torch.randint(self.width, (self.width,), generator=self.draws).tolist()
            self.seen[n] = [torch.cat([self.seen[n][p], x[n, j][None]]) for j, p in enumerate(parents)]
            self.read.past[n] = self.read.past[n][parents]
            self.read.places[n] = len(self.seen[n][0]) - 1
        return x.flatten(0, 1)

    def wrote(self) -> None:
        for n in range(self.texts):
            self.read.past[n, :, self.read.places[n]] = torch.arange(self.width)

    def begin_again(self, text: int) -> None:
        self.seen[text] = [torch.zeros(0, DIM) for _ in range(self.width)]

    @torch.no_grad()
    def expected(self) -> Tensor:
        """The hidden states [T, M], in float64."""
        found = []
        for seen, memory in zip(self.seen, self.memory, strict=True):
            for each in seen:
                given = [each[None].double(), *([] if memory is None else [memory[None].double()])]
                mask = torch.ones(len(each), len(each), dtype=torch.bool).tril()
                found.append(self.exact(*given, mask=mask)[0, -1])
        return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_hypotheses_are_the_modules_forward(each_set: str, kind: str) -> None:
    steps = Steps(kind)
    decoder = steps.packed()
    for number in range(8):
        if number in (2, 5):
            steps.begin_again(number // 2)
        x = steps.next()
        hidden = decoder.hidden(x, steps.read, steps.source)
        logits = decoder.logits(x, steps.read, steps.source)
        steps.wrote()
        expected = steps.expected()
        torch.testing.assert_close(hidden.double(), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits.double(), expected @ steps.table.double().T, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_neither_threads_nor_other_texts_change_a_bit(kind: str) -> None:
    steps, before = Steps(kind), torch.get_num_threads()
    decoder = steps.packed()
    for _ in range(4):
        x, found = steps.next(), []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(decoder.logits(x, steps.read, steps.source))
        torch.set_num_threads(before)
        steps.wrote()
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
        alone = Read(
            *(copied(each[:, 1:2]) for each in steps.read[:2]), *(copied(each[1:2]) for each in steps.read[2:])
        )
        source = steps.source
        if source is not None:
            source = Source(*(copied(each[:, 1:2]) for each in source[:2]), source.lengths[1:2])
        assert torch.equal(decoder.logits(x[2:4], alone, source), found[0][2:4])


@pytest.mark.parametrize(
    ("name", "value"), [("places", 9), ("places", -1), ("past", 2), ("past", -1), ("lengths", 0), ("lengths", 8)]
)
def test_what_lies_outside_of_its_slots_is_refused(name: str, value: int) -> None:
    steps = Steps("source")
    decoder = steps.packed()
    for _ in range(2):
        decoder.logits(x := steps.next(), steps.read, steps.source)
        steps.wrote()
    changed: Any = {"places": steps.read.places, "past": steps.read.past, "lengths": steps.source.lengths}[name]
    changed.view(-1)[0] = value
    with pytest.raises(ArgumentError, match="outside of its slots"):
        decoder.logits(x, steps.read, steps.source)


def test_layers_that_the_kernels_do_not_have() -> None:
    table = torch.zeros(VOCABULARY, DIM)
    with torch.no_grad():
        for made in (
            Encoder(DIM, num_heads=HEADS, num_layers=1, norm_first=False),
            Encoder(DIM, num_layers=1, attention=lambda: MultiHeadAttention(DIM, HEADS, num_kv_heads=1)),
            Encoder(DIM, num_layers=1, attention=lambda: MultiHeadAttention(DIM, HEADS, qk_norm="rms")),
            Encoder(DIM, num_layers=1, attention=lambda: MultiHeadAttention(DIM, HEADS, sinks=True)),
            Encoder(
                DIM,
                num_layers=1,
                attention=lambda: MultiHeadAttention(DIM, HEADS, positions=Rope(20, interleaved=True)),
            ),
        ):
            assert packed_decoder._packed(made, table, "float32") is None
