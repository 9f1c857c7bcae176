"""Arguments whose values follow from what reads them: sides of a map, ids of a table, inputs of other widths."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.calling.interface import discover
from headwise.doctor.calling.token_ids import on_embeddings
from tests.doctor.calling.callees import Projected
from tests.doctor.laws.specimens import Attention


class Pairs(Projected):
    """single [B, N, M], pair [B, N, N, P], mask [B, N]: True = real."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Linear(10, 4)

    def forward(self, single: Tensor, pair: Tensor, mask: Tensor | None = None) -> Tensor:
        bias = self.bias(pair).permute(0, 3, 1, 2)
        if mask is not None:
            bias = bias.masked_fill(~mask[:, None, None, :], -torch.inf)
        return self.attend(single, single, single, attn_mask=bias)


class Decoder(Projected):
    """Ids next to hidden states, with positions that are a table of its own kind."""

    class Positions(nn.Embedding):
        def forward(self, input_ids: Tensor) -> Tensor:
            return super().forward(torch.arange(input_ids.shape[1]))

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30, 24), self.Positions(40, 24)

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.places(input_ids)
        return self.attend(x, encoder_hidden_states, encoder_hidden_states)


def test_what_reads_an_argument_tells_what_it_takes() -> None:
    found = discover(Pairs())
    assert (found.takes, found.way.slots) == ("self", (("query", "single"),))
    assert found.masks[0].works
    assert headwise.diagnose(Pairs()).healthy  # a pair keeps its numbers where there are fewer tokens


def test_ids_next_to_hidden_states() -> None:
    decoder = on_embeddings(Decoder())
    assert decoder is not None
    assert discover(decoder).way.slots == (("query", "input_ids"), ("memory", "encoder_hidden_states"))


class Packed(Attention):
    """x: [1, all tokens, M] of several requests, which begin at `starts`."""

    def forward(self, x: Tensor, starts: list[int]) -> Tensor:
        places = torch.arange(x.shape[1])
        document = torch.bucketize(places, torch.tensor(starts[1:-1]), right=True)
        if starts[-1] != x.shape[1] or len(x) != 1:
            raise ValueError("starts must end with the number of tokens")
        return self.attend(x, x, (document[:, None] == document)[None, None])


def test_a_call_that_runs_as_it_was_given_alone() -> None:
    interface = discover(Packed(), example=((torch.randn(1, 9, 16), [0, 4, 9]), {}))
    assert (interface.way.layout, interface.length, interface.batched) == ("1NM", 9, False)
    inputs = interface.inputs(3)
    out = interface.run(inputs).output
    assert out.shape == (3, 9, 16)
    for i in range(3):  # one call for each example
        assert torch.equal(out[i], interface.module(inputs.query[i : i + 1], [0, 4, 9])[0])
