"""Massive activations that were put where they are found."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.experiments import massive_activations


class Block(nn.Module):
    """Attention, after which dimension 5 of the first token grows."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        grown = torch.zeros_like(x)
        grown[:, 0, 5] = self.by
        return x + grown


class Model(nn.Module):
    def __init__(self, *by: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, by))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def model(*by: float) -> Model:
    torch.manual_seed(0)
    found = Model(*by).eval()
    for block in found.blocks:
        block.attention.in_proj_weight.data.zero_()  # every weight is 1 / N, and nothing is moved
    return found


def test_they_are_found_where_they_are() -> None:
    x = 0.01 * torch.ones(2, 6, 8)
    x[1] *= 100  # its median is 1: 900 times as much is not massive
    found = massive_activations(model(0.0, 900.0, 0.0), x)
    assert found.blocks == ("blocks.0", "blocks.1", "blocks.2")
    places = [(a.layer, a.example, a.position, a.dimension) for a in found.found]
    assert places == [("blocks.1", 0, 0, 5), ("blocks.2", 0, 0, 5)]
    assert found.found[0].value == pytest.approx(900.01)
    assert found.found[0].ratio == pytest.approx(90001)
    assert found.dimensions == {5: 2}
    negative = massive_activations(model(0.0, -900.0, 0.0), x).found
    assert [(a.value, a.ratio > 0) for a in negative] == [(pytest.approx(-899.99), True)] * 2
    torch.testing.assert_close(found.largest, torch.tensor([1.0, 901.0, 901.0]))
    assert str(found).splitlines()[:2] == [
        "massive activations: 2",
        "       900 (90001 times the median)  blocks.1, example 0, position 0, dimension 5",
    ]
    # Above 100 alone, and 1000 times the median alone, are not enough.
    assert massive_activations(model(99.0), x).found == ()
    assert len(massive_activations(model(99.0), x, above=50).found) == 1
    assert len(massive_activations(model(900.0), x, times=100).found) == 2


def test_the_sinks_beside_them() -> None:
    x = torch.ones(1, 6, 8)
    found = massive_activations(model(0.0, 0.0), x)
    assert found.layers == ("blocks.0.attention", "blocks.1.attention")
    assert found.sinks.tolist() == [0.0, 0.0]  # 1 / 6 of the weight is on the first token
    assert massive_activations(model(0.0), x[:, :3]).sinks.tolist() == [1.0]  # a third is above 0.3
    assert str(found).splitlines()[-1] == "sink rate    0%  blocks.1.attention"


def test_the_blocks_of_an_encoder_and_a_decoder() -> None:
    config = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    t5 = transformers.T5Model._from_config(config).eval()
    ids = torch.arange(5)[None]
    found = massive_activations(t5, {"input_ids": ids, "decoder_input_ids": ids})
    assert found.blocks == ("encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1")
    assert len(found.layers) == 4  # the sink rate is of self-attention
    with pytest.raises(ArgumentError, match=r"expected blocks with attention in an nn\.ModuleList or nn\.Sequential"):
        massive_activations(nn.MultiheadAttention(8, 2), (torch.ones(1, 3, 8),) * 3)
